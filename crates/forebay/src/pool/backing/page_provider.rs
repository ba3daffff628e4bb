//! The page provider: carries out a growth plan of one address space with the driver. The heap lock is held to record
//! results and while addresses are reserved, but not while the driver creates, maps or releases memory.

use std::sync::{Arc, Mutex};

use forebay_core::address_space::{AddressSpace, Boundaries, Growth, Offset, Plan, Step, Streams};
use forebay_core::{Address, Bytes, Span};
use forebay_hal::{Access, Call, Device, Fill, PageHandle, Pattern, StreamHandle, VirtualMemory};

use crate::pool::common::backing_kind::BackingKind;
use crate::pool::common::log::CallLog;
use crate::pool::heap::{Heap, SideHeap, span_of};
use crate::sync::map::{AddressMap, LEAF, Side};
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

/// With this many new pages, the device is first asked whether it has enough memory. Asking takes a tenth of the time
/// of one page, and creating pages until it fails would take them from every other user.
const ASK_FIRST: usize = 4;

/// How many pages enter the address space under one lock of the heap: some 2 ms.
const BATCH: usize = 1024;

/// Where a page is mapped that is no longer in the address space there: the old mapping of a moved page, or a page that
/// is to be returned to the device. It stays until no work uses it.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct PageMapping {
    pub(in crate::pool) at: Offset,
    pub(in crate::pool) page: u64,
    pub(in crate::pool) size: Bytes,
}

/// A page that was taken out of the address space, to be moved or released.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct RemovedPage {
    pub(in crate::pool) at: Offset,
    pub(in crate::pool) page: u64,
    pub(in crate::pool) size: Bytes,
    pub(in crate::pool) streams: Streams,
}

impl RemovedPage {
    /// Where it is still mapped.
    pub(in crate::pool) fn mapping(&self) -> PageMapping {
        PageMapping { at: self.at, page: self.page, size: self.size }
    }

    /// Whether no work can use it, as far as is known without asking the device.
    pub(in crate::pool) fn is_idle(&self) -> bool {
        self.streams == Streams::ALL
    }
}

/// Whether the device has the memory that a plan needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceRoom {
    /// It has enough.
    Enough,
    /// Perhaps enough for smaller pages that fit the request more closely.
    ForSmallerPages,
    /// It has too little.
    TooLittle,
}

/// A growth for which memory of the device is reserved.
pub(super) enum Planned {
    Pages(Plan),
    Segment(Bytes),
}

impl Planned {
    /// What it takes from the device.
    pub(super) fn created(&self) -> Bytes {
        match self {
            Self::Pages(plan) => plan.created(),
            Self::Segment(size) => *size,
        }
    }
}

/// A page that is mapped where the plan wants it, and not in the address space yet.
#[derive(Debug)]
struct Staged {
    at: Offset,
    span: Span,
    page: PageHandle,
    /// Where a moved page came from.
    from: Option<RemovedPage>,
    /// Whether it was mapped there before.
    was_mapped: bool,
}

/// The device memory of one side.
#[derive(Debug)]
pub(in crate::pool) struct PageProvider {
    pub(in crate::pool) device: Arc<dyn Device>,
    pub(in crate::pool) kind: BackingKind,
    pub(in crate::pool) side: Side,
    /// Whether the memory consists of pages, as opposed to segments.
    pub(in crate::pool) maps_pages: bool,
    /// The reserved regions, by their starts.
    pub(in crate::pool) regions: Vec<Address>,
    /// Unmapped pages that the device refused to take back. They count as outgoing.
    pub(in crate::pool) orphans: Vec<(PageHandle, Bytes)>,
    /// Unused mappings that the device refused to remove. Their ranges stay claimed in the address space.
    pub(in crate::pool) stranded: Vec<PageMapping>,
    /// Segments that never came into the address space and that the device refused to take back. They count as
    /// outgoing.
    pub(in crate::pool) strays: Vec<(Address, Bytes)>,
}

impl PageProvider {
    /// Makes the provider of a side, and reserves addresses if the device maps pages.
    pub(in crate::pool) fn new(
        device: &Arc<dyn Device>,
        kind: &BackingKind,
        side: Side,
        log: &CallLog,
    ) -> Result<(Self, SideHeap)> {
        let provider = |maps_pages| Self {
            device: Arc::clone(device),
            kind: kind.clone(),
            side,
            maps_pages,
            regions: Vec::new(),
            orphans: Vec::new(),
            stranded: Vec::new(),
            strays: Vec::new(),
        };
        let Some(memory) = kind.pages_of(&**device) else {
            return Ok((provider(false), SideHeap::new(kind.segment_granule(), Boundaries::Apart)));
        };
        let granule = memory.granularity().recommended;
        let total = device.memory_info()?.total;
        let first = match side {
            Side::Small => Bytes::new(total.get() / SMALL_PART),
            Side::Large => Bytes::new(total.get() / LARGE_PART),
        };
        let (mut provider, mut side_heap) =
            (provider(true), SideHeap::new(granule, Boundaries::Joined));
        provider.reserve(&mut side_heap, first.max(LEAST_FIRST), Bytes::ZERO, log)?;
        Ok((provider, side_heap))
    }

    /// Reserves more addresses: `wanted`, or fewer if the process has not that many left, but at least `least`.
    pub(super) fn reserve(
        &mut self,
        side_heap: &mut SideHeap,
        wanted: Bytes,
        least: Bytes,
        log: &CallLog,
    ) -> Result<()> {
        let memory = self.memory()?;
        let granule = side_heap.space.granule();
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
        let reserved = side_heap.space.reserve(start.get(), size);
        debug_assert!(
            reserved.is_ok(),
            "the address space has these addresses already: {reserved:?}"
        );
        Ok(())
    }

    /// The class of its memory.
    pub(in crate::pool) fn kind(&self) -> &BackingKind {
        &self.kind
    }

    pub(in crate::pool) fn memory(&self) -> Result<&dyn VirtualMemory> {
        let unsupported = || forebay_hal::Error::Unsupported {
            call: Call::Map,
            missing: "mapping of pages".into(),
        };
        Ok(self.device.virtual_memory().ok_or_else(unsupported)?)
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
        let (own, size) = (self.device.descriptor().ordinal, span.size());
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

    /// Whether a stranded mapping is at `at`.
    fn is_stranded(&self, at: Offset) -> bool {
        self.stranded.iter().any(|alias| alias.at == at)
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
        let fill = || unsafe { self.device.fill(&fill, stream) };
        Ok(log.make(Call::Fill, span.size(), fill)?)
    }

    /// Makes a hole of `size` in the order of `taker`, which has waited for all others. Returns `false` if that is
    /// impossible. Adds the old mappings of moved pages to `aliases`. The caller keeps the heap's slots
    /// [frozen](Heap::frozen) meanwhile.
    ///
    /// All or nothing: pages are created and mapped first, where no request can see them, and enter the address space
    /// together. If a step fails, new pages are released and moved ones put back.
    pub(in crate::pool) fn grow(
        &mut self,
        context: GrowthContext<'_>,
        size: Bytes,
        taker: Streams,
        aliases: &mut Vec<PageMapping>,
        log: &CallLog,
    ) -> Result<bool> {
        let growth = self.plan_growth(context, size, taker, log)?;
        let Some(planned) = growth else { return Ok(false) };
        let mut reserved = planned.created();
        let made = match planned {
            Planned::Segment(wanted) => {
                self.add_segment(context, wanted, size, taker, &mut reserved, log)
            }
            Planned::Pages(plan) => {
                self.make_pages(context, &plan, size, taker, aliases, &mut reserved, log)
            }
        };
        lock(context.heap).end_reservation(reserved);
        made
    }

    /// Carries out a plan. Takes from `reserved` what the pool holds afterwards.
    #[allow(clippy::too_many_arguments, reason = "the parts of one growth")]
    fn make_pages(
        &mut self,
        context: GrowthContext<'_>,
        plan: &Plan,
        size: Bytes,
        taker: Streams,
        aliases: &mut Vec<PageMapping>,
        reserved: &mut Bytes,
        log: &CallLog,
    ) -> Result<bool> {
        match self.device_room(plan, size, log)? {
            DeviceRoom::Enough => {}
            DeviceRoom::ForSmallerPages => return Err(self.too_large_pages(plan).into()),
            DeviceRoom::TooLittle => return Ok(false),
        }
        let mut staged = Vec::new();
        match self.stage(context, plan, taker, &mut staged, log) {
            Ok(()) => self.commit(context, staged, taker, aliases, reserved, log),
            Err(error) => {
                self.roll_back(context, staged, log);
                Err(error)
            }
        }
    }

    /// Checks that the device has memory for a plan, before the first of many pages is created.
    fn device_room(&self, plan: &Plan, size: Bytes, log: &CallLog) -> Result<DeviceRoom> {
        let pages = plan.steps.iter().filter(|step| matches!(step, Step::Create { .. })).count();
        if pages < ASK_FIRST {
            return Ok(DeviceRoom::Enough);
        }
        let wanted = plan.created();
        let info = log.call(Call::MemoryInfo, || self.device.memory_info())?;
        Ok(match info.free {
            free if free >= wanted => DeviceRoom::Enough,
            // The last page may be larger than the rest of the request.
            free if free >= size.min(wanted) => DeviceRoom::ForSmallerPages,
            _ => DeviceRoom::TooLittle,
        })
    }

    /// The error that the device would return for a plan whose pages are too large for it.
    fn too_large_pages(&self, plan: &Plan) -> forebay_hal::Error {
        let (call, requested) = (Call::CreatePage, plan.created());
        forebay_hal::Error::OutOfMemory { call, requested, free: Bytes::ZERO, total: Bytes::ZERO }
    }

    /// Creates and maps the pages of a plan, outside the address space. Stops early without an error if the address
    /// space has changed since it was planned: the pages so far help, and the next plan sees the new state.
    fn stage(
        &mut self,
        context: GrowthContext<'_>,
        plan: &Plan,
        taker: Streams,
        staged: &mut Vec<Staged>,
        log: &CallLog,
    ) -> Result<()> {
        for &step in &plan.steps {
            let (to, size, from, was_mapped) = match step {
                Step::Create { at, size } => (at, size, None, false),
                Step::Move { from, to, size } => (to, size, Some(from), false),
                Step::Return { from, to, size } => (to, size, Some(from), true),
                Step::Clear { at, .. } => {
                    if self.clear_kept(context.heap, at, log).is_err() {
                        return Ok(());
                    }
                    continue;
                }
                // Unknown kinds of steps are not carried out.
                _ => return Ok(()),
            };
            let Some((span, from)) = self.claim_step(context, to, size, from, taker) else {
                return Ok(());
            };
            if !context.map.make(span, self.side) {
                self.unclaim_step(context, to, from);
                return Err(Error::AddressRange { span });
            }
            let page = match from {
                Some(from) => PageHandle(from.page),
                None => match self.create(size, log) {
                    Ok(page) => page,
                    Err(error) => {
                        self.unclaim_step(context, to, from);
                        return Err(error);
                    }
                },
            };
            let mapped =
                if was_mapped { Ok(()) } else { self.map_with_access(to, span, page, log) };
            if let Err(error) = mapped {
                if from.is_none() {
                    self.add_orphan(context.heap, page, size);
                }
                if !self.is_stranded(to) {
                    self.unclaim_step(context, to, from);
                } else if let Some(from) = from {
                    put_back(&mut lock(context.heap).side_heap(self.side).space, from);
                }
                lock(context.heap).note_held();
                // The first error is the one to report.
                let _ = self.retry_refused(context.heap, log);
                return Err(error);
            }
            staged.push(Staged { at: to, span, page, from, was_mapped });
        }
        Ok(())
    }

    /// Claims the gap at `to`, and takes the page at `from` out of the address space if one is to move there. Returns
    /// `None` if the address space has changed since it was planned.
    fn claim_step(
        &self,
        context: GrowthContext<'_>,
        to: Offset,
        size: Bytes,
        from: Option<Offset>,
        taker: Streams,
    ) -> Option<(Span, Option<RemovedPage>)> {
        let mut heap = lock(context.heap);
        let side_heap = heap.side_heap(self.side);
        let removed = match from {
            None => None,
            Some(at) => {
                let (page, size, streams) = side_heap.space.remove_page(at).ok()?;
                let removed = RemovedPage { at, page, size, streams };
                if !streams.contains(taker) {
                    put_back(&mut side_heap.space, removed);
                    return None;
                }
                Some(removed)
            }
        };
        if side_heap.space.claim_gap(to, size).is_err() {
            removed.into_iter().for_each(|page| put_back(&mut side_heap.space, page));
            return None;
        }
        Some((span_of(to, size), removed))
    }

    /// Undoes [`claim_step`](Self::claim_step).
    fn unclaim_step(&self, context: GrowthContext<'_>, to: Offset, from: Option<RemovedPage>) {
        let mut heap = lock(context.heap);
        let space = &mut heap.side_heap(self.side).space;
        let cleared = space.clear_alias(to);
        debug_assert!(cleared.is_ok(), "the claimed gap is gone: {cleared:?}");
        from.into_iter().for_each(|page| put_back(space, page));
    }

    fn create(&self, size: Bytes, log: &CallLog) -> Result<PageHandle> {
        let memory = self.memory()?;
        let create = || memory.create_page(size, self.kind.page_options());
        Ok(log.make(Call::CreatePage, size, create)?)
    }

    /// Undoes the staged steps: new pages are released, moved ones put back.
    fn roll_back(&mut self, context: GrowthContext<'_>, staged: Vec<Staged>, log: &CallLog) {
        for Staged { at, span, page, from, was_mapped } in staged {
            if !was_mapped {
                self.unmap_or_strand(at, span, page, log);
            }
            if from.is_none() {
                self.add_orphan(context.heap, page, span.size());
            }
            if !self.is_stranded(at) {
                self.unclaim_step(context, at, from);
            } else if let Some(from) = from {
                put_back(&mut lock(context.heap).side_heap(self.side).space, from);
            }
        }
        lock(context.heap).note_held();
        // What the device refuses now is retried later.
        let _ = self.retry_refused(context.heap, log);
    }

    /// Adds the staged pages to the address space, free in the order of `taker`. New memory could be free for all, but
    /// then it would not merge with a neighbouring hole of the taker's.
    fn commit(
        &mut self,
        context: GrowthContext<'_>,
        mut staged: Vec<Staged>,
        taker: Streams,
        aliases: &mut Vec<PageMapping>,
        reserved: &mut Bytes,
        log: &CallLog,
    ) -> Result<bool> {
        let mut outcome = Ok(true);
        let filled = staged.iter().position(|one| {
            let filled = match one.from {
                Some(_) => Ok(()),
                None => self.fill(one.span, context.fresh, log),
            };
            let failed = filled.is_err();
            outcome = core::mem::replace(&mut outcome, Ok(true)).and(filled.map(|()| true));
            failed
        });
        // Filled pages are in use by the device and stay; nothing was enqueued for the rest.
        let rest = filled.map(|failed| staged.split_off(failed));
        let mut staged = staged.into_iter();
        let (mut moved, mut created) = (Bytes::ZERO, Bytes::ZERO);
        // In batches, between which other requests go on: they may take some of it, as they may after the last.
        while staged.len() > 0 {
            let mut heap = lock(context.heap);
            let space = &mut heap.side_heap(self.side).space;
            let created_before = created;
            for Staged { at, span, page, from, was_mapped } in staged.by_ref().take(BATCH) {
                let cleared = space.clear_alias(at);
                let placed = space.add_page(at, span.size(), page.0, taker);
                debug_assert!(cleared.is_ok() && placed.is_ok(), "{cleared:?}, {placed:?}");
                match from {
                    // The driver maps nothing, so it does not count as a move.
                    Some(_) if was_mapped => {}
                    Some(_) => moved = moved.saturating_add(span.size()),
                    None => created = created.saturating_add(span.size()),
                }
                aliases.extend(from.map(|from| from.mapping()));
            }
            if staged.len() == 0 {
                space.record_growth(moved, created, context.growth);
            }
            let of_batch = created.saturating_sub(created_before);
            heap.share.unreserve(of_batch);
            *reserved = reserved.saturating_sub(of_batch);
            heap.note_held();
        }
        if let Some(rest) = rest {
            self.roll_back(context, rest, log);
        }
        outcome
    }

    /// Adds a segment of `wanted` bytes, or of the least that serves `size` if the device has less.
    fn add_segment(
        &mut self,
        context: GrowthContext<'_>,
        wanted: Bytes,
        size: Bytes,
        taker: Streams,
        reserved: &mut Bytes,
        log: &CallLog,
    ) -> Result<bool> {
        let granule = self.kind.segment_granule().alignment();
        let least = size.checked_align_up(granule).unwrap_or(wanted).min(wanted);
        let allocate =
            |bytes: Bytes| log.make(Call::Allocate, bytes, || self.device.allocate(bytes, granule));
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
            self.add_stray(context.heap, start, bytes);
            return Err(error);
        }
        let placed = {
            let mut heap = lock(context.heap);
            let placed =
                heap.side_heap(self.side).space.add_page(start.get(), bytes, start.get(), taker);
            heap.end_reservation(core::mem::take(reserved));
            placed
        };
        if placed.is_err() {
            debug_assert!(false, "the device returned a segment that overlaps another: {placed:?}");
            self.add_stray(context.heap, start, bytes);
            return Ok(false);
        }
        Ok(true)
    }
}

/// The inputs of making room, beside the provider.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct GrowthContext<'a> {
    pub(in crate::pool) heap: &'a Mutex<Heap>,
    pub(in crate::pool) map: &'a AddressMap,
    pub(in crate::pool) growth: &'a Growth,
    /// The most that both sides together may hold.
    pub(in crate::pool) limit: Bytes,
    /// The pattern for new memory, and the stream to fill it on: the one it is made for.
    pub(in crate::pool) fresh: Option<(Pattern, StreamHandle)>,
}

/// Puts a removed page back where it was: it is still mapped there.
pub(in crate::pool) fn put_back(space: &mut AddressSpace, page: RemovedPage) {
    let cleared = space.clear_alias(page.at);
    let placed = space.add_page(page.at, page.size, page.page, page.streams);
    debug_assert!(cleared.is_ok() && placed.is_ok(), "{cleared:?}, {placed:?}");
}
