//! The page provider: carries out a growth plan of one address space with the driver. The heap lock is held to record
//! results and while addresses are reserved, but not while the driver creates, maps or releases memory.

use std::sync::Arc;

use forebay_core::address_space::{
    AddressSpace, Boundaries, Claim, ClaimedGap, Offset, PageMapping,
};
use forebay_core::{Address, Bytes, Span};
use forebay_hal::{
    Access, Call, Device, Fill, MemoryInfo, PageHandle, Pattern, Queue, StreamHandle, VirtualMemory,
};

use crate::pool::backing::growth::{GrowthContext, Made};
use crate::pool::common::backing_kind::BackingKind;
use crate::pool::common::log::CallLog;
use crate::pool::common::step::{self, Step};
use crate::pool::heap::span_of;
use crate::sync::map::{LEAF, Side};
use crate::sync::quota::Reservation;
use crate::sync::tracked::lock;
use crate::{Error, Result};

/// The first region of a side spans this fraction of the device's memory. More is reserved when needed, doubling each
/// time: a process may have thousands of pools, and the pools of graphs stay small.
const SMALL_PART: u64 = 32;
const LARGE_PART: u64 = 8;

/// The smallest region, if the process has that many addresses: a leaf of the address map.
const LEAST_REGION: Bytes = LEAF.bytes();

/// The smallest first region, for devices that report little memory.
const LEAST_FIRST: Bytes = Bytes::gib(4);

/// From this many new pages on, the device is first asked whether it has enough memory. Asking takes a tenth of the
/// time of one page, and creating pages until one fails would take memory from every other user.
const ASK_FIRST: usize = 4;

/// How many pages enter the address space under one lock of the heap: some 2 ms.
const BATCH: usize = 1024;

/// Whether the device has the memory that a plan needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceRoom {
    /// It has enough.
    Enough,
    /// Perhaps enough for smaller pages that fit the request more closely.
    ForSmallerPages(MemoryInfo),
    /// It has too little.
    TooLittle,
}

/// A growth for which memory of the device is reserved.
pub(super) enum Planned {
    /// There is no way, or no need, to grow.
    Done(Made),
    /// Pages, with everything that they need out of reach of other requests.
    Pages {
        claim: Claim,
        reserved: Reservation,
    },
    Segment(Reservation),
}

/// A page that is mapped where the plan wants it, and not in the address space yet.
#[derive(Debug)]
struct Staged {
    gap: ClaimedGap,
    page: PageHandle,
}

/// The device memory of one side.
#[derive(Debug)]
pub(in crate::pool) struct PageProvider {
    pub(in crate::pool) kind: BackingKind,
    /// What fills new memory.
    queue: Arc<dyn Queue>,
    pub(in crate::pool) side: Side,
    /// Whether the memory consists of pages, as opposed to segments.
    pub(in crate::pool) maps_pages: bool,
    /// The reserved regions, by their starts.
    pub(in crate::pool) regions: Vec<Address>,
    /// Unmapped pages that the device refused to take back. They count as outgoing.
    pub(in crate::pool) orphans: Vec<(PageHandle, Bytes)>,
    /// Unused mappings that the device refused to remove. Their ranges stay claimed in the address space.
    pub(super) stranded: Vec<PageMapping>,
    /// Segments that never came into the address space and that the device refused to take back. They count as
    /// outgoing.
    pub(in crate::pool) strays: Vec<(Address, Bytes)>,
}

impl PageProvider {
    /// Makes the provider of a side, and reserves addresses if the device maps pages.
    pub(in crate::pool) fn new(
        kind: &BackingKind,
        device: &Arc<dyn Device>,
        side: Side,
        log: &CallLog,
    ) -> Result<(Self, AddressSpace)> {
        let provider = |maps_pages| Self {
            kind: kind.clone(),
            queue: Arc::<dyn Device>::clone(device),
            side,
            maps_pages,
            regions: Vec::new(),
            orphans: Vec::new(),
            stranded: Vec::new(),
            strays: Vec::new(),
        };
        let Some(memory) = kind.pages() else {
            let space = AddressSpace::new(kind.source.segment_granule(), Boundaries::Apart);
            return Ok((provider(false), space));
        };
        let granule = memory.granularity().recommended;
        let total = kind.source.memory_info()?.total;
        let first = match side {
            Side::Small => Bytes::new(total.get() / SMALL_PART),
            Side::Large => Bytes::new(total.get() / LARGE_PART),
        };
        let (mut provider, mut space) =
            (provider(true), AddressSpace::new(granule, Boundaries::Joined));
        provider.reserve(&mut space, first.max(LEAST_FIRST), Bytes::ZERO, log)?;
        Ok((provider, space))
    }

    /// Reserves more addresses: `wanted`, or fewer if the process does not have that many left, but at least `least`.
    pub(super) fn reserve(
        &mut self,
        space: &mut AddressSpace,
        wanted: Bytes,
        least: Bytes,
        log: &CallLog,
    ) -> Result<()> {
        let memory = self.memory()?;
        let granule = space.page_table().granule();
        // In whole leaves of the address map, with one more to align the start: no leaf belongs to both sides.
        let leaves = |size: Bytes| size.checked_align_up(LEAF).unwrap_or(size).max(LEAST_REGION);
        let (mut size, least) = (leaves(wanted.max(least)), leaves(least));
        let region = loop {
            let whole = size.saturating_add(LEAF.bytes());
            let reserve = || memory.reserve(whole, granule.alignment());
            match log.make(Call::Reserve, whole, reserve) {
                Ok(region) => break region,
                Err(_) if size > least => {
                    size = Bytes::new(size.get() / 2).align_down(LEAF).max(least);
                }
                Err(error) => return Err(error.into()),
            }
        };
        self.regions.push(region.start());
        let start = region.start().checked_align_up(LEAF).unwrap_or(region.start());
        let reserved = space.page_table_mut().reserve(start.get(), size);
        debug_assert!(
            reserved.is_ok(),
            "the address space has these addresses already: {reserved:?}"
        );
        Ok(())
    }

    pub(in crate::pool) fn memory(&self) -> Result<&dyn VirtualMemory> {
        let unsupported = || forebay_hal::Error::Unsupported {
            call: Call::Map,
            missing: "mapping of pages".into(),
        };
        Ok(self.kind.pages().ok_or_else(unsupported)?)
    }

    /// Maps `page` at `span`, the addresses of `at`, and grants access to the device and its peers. After a failure
    /// nothing is mapped there, or the mapping is [stranded](Self::stranded).
    fn map_with_access(
        &mut self,
        at: Offset,
        span: Span,
        page: PageHandle,
        log: &CallLog,
    ) -> Result<()> {
        let memory = self.memory()?;
        let (own, size) = (self.kind.source.descriptor().ordinal, span.size());
        log.make(Call::Map, size, || memory.map(span.start(), page))?;
        // SAFETY: the mapping was made just now by this call, and no block lies in it yet.
        let grant = |to| unsafe { memory.set_access(span, Access::ReadWrite, to) };
        let mut all = [own].into_iter().chain(self.kind.peers());
        let granted = all.try_for_each(|to| log.make(Call::SetAccess, size, || grant(to)));
        if granted.is_err() {
            self.unmap_or_strand(at, span, page, log);
        }
        Ok(granted?)
    }

    /// Removes an unused new mapping. If the device refuses, the mapping is stranded and retried later.
    fn unmap_or_strand(&mut self, at: Offset, span: Span, page: PageHandle, log: &CallLog) {
        if self.unmap(span, log).is_err() {
            self.stranded.push(PageMapping { at, page: page.0, size: span.size() });
        }
    }

    /// Fills new memory, in the order of the stream it was made for.
    fn fill(
        &self,
        span: Span,
        fresh: Option<(Pattern, StreamHandle)>,
        log: &CallLog,
    ) -> Result<()> {
        let Some((pattern, stream)) = fresh else { return Ok(()) };
        let fill = Fill::linear(span.start(), span.size(), pattern)?;
        // SAFETY: the memory belongs to this provider, which returns it to the device only after all work in whose
        // order it is free is done.
        let fill = || unsafe { self.queue.fill(&fill, stream) };
        Ok(log.make(Call::Fill, span.size(), fill)?)
    }

    /// Makes a hole of the wanted size in the order of the taker, which has waited for all others, and cuts the piece
    /// out of it. Adds the old mappings of moved pages to `aliases`. The caller keeps the heap's slots
    /// [frozen](crate::pool::heap::Heap::frozen) meanwhile.
    ///
    /// All or nothing: what the plan needs is claimed first, a large plan in parts (`plan.rs`). Pages are created and mapped
    /// where no request can see them, and enter the address space together. If a step fails, new pages are released and
    /// moved ones put back.
    pub(in crate::pool) fn grow(
        &mut self,
        context: GrowthContext<'_>,
        aliases: &mut Vec<PageMapping>,
        log: &CallLog,
    ) -> Result<Made> {
        loop {
            let (reserved, made) = match self.plan_growth(context, log)? {
                Planned::Done(made) => return Ok(made),
                Planned::Segment(mut reserved) => {
                    let made = self.add_segment(context, &mut reserved, log);
                    (reserved, made.map(Some))
                }
                Planned::Pages { claim, mut reserved } => {
                    let made = self.make_pages(context, claim, aliases, &mut reserved, log);
                    (reserved, made)
                }
            };
            context.end_reservation(reserved);
            if let Some(made) = made? {
                return Ok(made);
            }
        }
    }

    /// Carries out a claimed plan. Takes from `reserved` what the pool holds afterwards. Returns `None` if a mapping in
    /// the way could not be removed: the next plan avoids it.
    fn make_pages(
        &mut self,
        context: GrowthContext<'_>,
        mut claim: Claim,
        aliases: &mut Vec<PageMapping>,
        reserved: &mut Reservation,
        log: &CallLog,
    ) -> Result<Option<Made>> {
        step::reach(Step::Claimed);
        let room = self.device_room(&claim, reserved.bytes(), context.size, log);
        if !matches!(room, Ok(DeviceRoom::Enough)) {
            {
                let mut heap = lock(context.heap);
                heap.ledger.remove_outgoing(claim.moved());
                claim.give_back(heap.spaces.of_mut(self.side));
            }
            return match room? {
                DeviceRoom::ForSmallerPages(info) => {
                    Err(too_large_pages(reserved.bytes(), info).into())
                }
                _ => Ok(Some(Made::Nothing)),
            };
        }
        // Kept mappings in the way. Those that the device refuses stay in the claim, and become stranded with it.
        claim.cleared.retain(|it| self.unmap(span_of(it.at, it.size), log).is_err());
        if !claim.cleared.is_empty() {
            self.roll_back(context, Vec::new(), claim, reserved, log);
            return Ok(None);
        }
        let mut staged = Vec::new();
        match self.stage(context, &mut claim, &mut staged, reserved, log) {
            Ok(()) => self.commit(context, staged, claim, aliases, reserved, log).map(Some),
            Err(error) => {
                self.roll_back(context, staged, claim, reserved, log);
                Err(error)
            }
        }
    }

    /// Checks that the device has memory for a plan that creates `created` bytes, before the first of many pages.
    fn device_room(
        &self,
        claim: &Claim,
        created: Bytes,
        size: Bytes,
        log: &CallLog,
    ) -> Result<DeviceRoom> {
        if claim.new_pages() < ASK_FIRST {
            return Ok(DeviceRoom::Enough);
        }
        let info = log.call(Call::MemoryInfo, || self.kind.source.memory_info())?;
        Ok(match info.free {
            free if free >= created => DeviceRoom::Enough,
            // The last page may be larger than the rest of the request.
            free if free >= size.min(created) => DeviceRoom::ForSmallerPages(info),
            _ => DeviceRoom::TooLittle,
        })
    }

    /// Creates and maps the pages of a claim, outside the address space.
    fn stage(
        &mut self,
        context: GrowthContext<'_>,
        claim: &mut Claim,
        staged: &mut Vec<Staged>,
        reserved: &mut Reservation,
        log: &CallLog,
    ) -> Result<()> {
        let mut gaps = core::mem::take(&mut claim.gaps).into_iter();
        let outcome = gaps.by_ref().try_for_each(|gap| {
            let made = self.stage_page(context, gap, reserved, log);
            match made {
                Ok(page) => staged.push(Staged { gap, page }),
                Err(_) => self.unclaim(context, gap),
            }
            made.map(drop)
        });
        claim.gaps = gaps.collect();
        outcome
    }

    /// Creates a page, if none moves there, and maps it at a claimed gap.
    fn stage_page(
        &mut self,
        context: GrowthContext<'_>,
        gap: ClaimedGap,
        reserved: &mut Reservation,
        log: &CallLog,
    ) -> Result<PageHandle> {
        let span = span_of(gap.at, gap.size);
        if !context.map.make(span, self.side) {
            return Err(Error::AddressRange { span });
        }
        let page = match gap.from {
            Some(from) => PageHandle(from.page),
            None => {
                let memory = self.memory()?;
                let create = || memory.create_page(gap.size, self.kind.page_options());
                log.make(Call::CreatePage, gap.size, create)?
            }
        };
        if !gap.is_mapped
            && let Err(error) = self.map_with_access(gap.at, span, page, log)
        {
            if gap.from.is_none() {
                self.add_orphan(context.heap, page, gap.size, reserved);
            }
            return Err(error);
        }
        Ok(page)
    }

    /// Gives a claimed gap back, and the page that was to move there. If a mapping is stranded there, the gap stays
    /// claimed.
    fn unclaim(&self, context: GrowthContext<'_>, gap: ClaimedGap) {
        let mut heap = lock(context.heap);
        if let Some(from) = gap.from {
            heap.ledger.remove_outgoing(from.size);
        }
        let space = heap.spaces.of_mut(self.side);
        if self.stranded.iter().all(|alias| alias.at != gap.at) {
            gap.give_back(space);
        } else if let Some(from) = gap.from {
            from.put_back(space);
        }
    }

    /// Undoes the staged steps, and gives back what is left of the claim: new pages are released, moved ones put back.
    fn roll_back(
        &mut self,
        context: GrowthContext<'_>,
        staged: Vec<Staged>,
        mut claim: Claim,
        reserved: &mut Reservation,
        log: &CallLog,
    ) {
        for Staged { gap, page } in staged {
            if !gap.is_mapped {
                self.unmap_or_strand(gap.at, span_of(gap.at, gap.size), page, log);
            }
            if gap.from.is_none() {
                self.add_orphan(context.heap, page, gap.size, reserved);
            }
            self.unclaim(context, gap);
        }
        core::mem::take(&mut claim.gaps).into_iter().for_each(|gap| self.unclaim(context, gap));
        {
            let mut heap = lock(context.heap);
            let space = heap.spaces.of_mut(self.side);
            space.put_aside_back(&mut claim.aside);
            for mapping in claim.cleared {
                let claimed = space.page_table_mut().claim_gap(mapping.at, mapping.size);
                debug_assert!(claimed.is_ok(), "a kept mapping lies in a gap: {claimed:?}");
                self.stranded.push(mapping);
            }
            heap.account(|_| {});
        }
        // What the device refuses now is retried later.
        let _ = self.retry_refused(context.heap, log);
    }

    /// Adds the staged pages to the address space, free in the order of the taker, and cuts the piece out of them. New
    /// memory could be free for all, but then it would not merge with a neighbouring hole of the taker's.
    fn commit(
        &mut self,
        context: GrowthContext<'_>,
        mut staged: Vec<Staged>,
        mut claim: Claim,
        aliases: &mut Vec<PageMapping>,
        reserved: &mut Reservation,
        log: &CallLog,
    ) -> Result<Made> {
        let mut outcome = Ok(());
        let filled = staged.iter().position(|one| {
            if one.gap.from.is_none() {
                outcome = self.fill(span_of(one.gap.at, one.gap.size), context.fresh, log);
            }
            outcome.is_err()
        });
        // Filled pages are in use by the device and stay; nothing was enqueued for the rest.
        let rest = filled.map(|failed| staged.split_off(failed));
        let (mut staged, mut made) = (staged.into_iter(), Made::Nothing);
        let (mut moved, mut created) = (Bytes::ZERO, Bytes::ZERO);
        // In batches, between which other requests go on. What the request needs of them is set aside until the last.
        loop {
            let mut heap = lock(context.heap);
            let (mut of_batch, mut arrived) = (Bytes::ZERO, Bytes::ZERO);
            let is_last = staged.len() <= BATCH;
            let space = heap.spaces.of_mut(self.side);
            for Staged { gap, page } in staged.by_ref().take(BATCH) {
                gap.settle(space, page.0, context.stream());
                if !is_last {
                    claim.set_aside(space, gap);
                }
                match gap.from {
                    // The driver maps nothing, so it does not count as a move.
                    Some(_) if gap.is_mapped => {}
                    Some(_) => moved = moved.saturating_add(gap.size),
                    None => of_batch = of_batch.saturating_add(gap.size),
                }
                arrived = gap.from.map_or(arrived, |from| arrived.saturating_add(from.size));
                aliases.extend(gap.from.map(|from| from.mapping()));
            }
            created = created.saturating_add(of_batch);
            if is_last {
                space.put_aside_back(&mut claim.aside);
                space.record_growth(moved, created, context.growth);
            }
            heap.account(|ledger| {
                ledger.remove_outgoing(arrived);
                ledger.share.commit(reserved.split(of_batch));
            });
            if is_last {
                heap.arrivals += 1;
                if rest.is_none() {
                    made = context.cut(&mut heap);
                }
                break;
            }
        }
        if let Some(rest) = rest {
            self.roll_back(context, rest, claim, reserved, log);
        }
        outcome.map(|()| made)
    }

    /// Adds a segment of the reserved size, or of the least that serves the request if the device has less, and cuts the
    /// piece out of it.
    fn add_segment(
        &mut self,
        context: GrowthContext<'_>,
        reserved: &mut Reservation,
        log: &CallLog,
    ) -> Result<Made> {
        let (source, wanted) = (&self.kind.source, reserved.bytes());
        let granule = source.segment_granule().alignment();
        let least = context.size.checked_align_up(granule).unwrap_or(wanted).min(wanted);
        let allocate = |bytes: Bytes| log.make(Call::Allocate, bytes, || source.allocate(bytes));
        let (start, bytes) = match allocate(wanted) {
            Ok(start) => (start, wanted),
            Err(forebay_hal::Error::OutOfMemory { .. }) if least < wanted => {
                (allocate(least)?, least)
            }
            Err(error) => return Err(error.into()),
        };
        let span = Span::new(start, bytes).unwrap_or_default();
        let made = if context.map.make_segment(span, self.side) {
            self.fill(span, context.fresh, log)
        } else {
            Err(Error::AddressRange { span })
        };
        if let Err(error) = made {
            self.add_stray(context.heap, start, bytes, reserved);
            return Err(error);
        }
        let (placed, made) = {
            let mut heap = lock(context.heap);
            let space = heap.spaces.of_mut(self.side);
            let placed = space.add_page(start.get(), bytes, start.get(), context.stream());
            heap.account(|ledger| ledger.share.commit(reserved.split(bytes)));
            heap.arrivals += 1;
            let made = if placed.is_ok() { context.cut(&mut heap) } else { Made::Nothing };
            (placed, made)
        };
        if placed.is_err() {
            debug_assert!(false, "the device returned a segment that overlaps another: {placed:?}");
            self.add_stray(context.heap, start, bytes, reserved);
        }
        Ok(made)
    }
}

/// The error that the device would return for a plan whose pages are too large for it.
fn too_large_pages(
    requested: Bytes,
    MemoryInfo { free, total, .. }: MemoryInfo,
) -> forebay_hal::Error {
    forebay_hal::Error::OutOfMemory { call: Call::CreatePage, requested, free, total }
}
