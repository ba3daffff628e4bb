//! The device under an address space: what a plan says, done by the driver. The heap's lock is held to note what was
//! done, and while addresses are reserved, but not while the driver makes, maps or takes back memory.

use std::sync::{Arc, Mutex};

use forebay_core::address_space::{
    AddressSpace, Boundaries, Growth, Offset, Plan, PlanError, Step, Streams,
};
use forebay_core::{Address, Alignment, Bytes, PageSize, Span};
use forebay_hal::{Access, Call, Device, Fill, PageHandle, Pattern, StreamHandle, VirtualMemory};

use crate::pool::common::backing_kind::BackingKind;
use crate::pool::common::log::CallLog;
use crate::pool::heap::{Heap, SideHeap, span_of};
use crate::sync::map::{AddressMap, LEAF, Side};
use crate::sync::tracked::lock;
use crate::{Error, Result};

/// The part of the device's memory that the first region of a side spans. More is reserved when it is needed,
/// as much again each time; a process may have thousands of pools, and the pools of graphs stay small.
const SMALL_PART: u64 = 32;
const LARGE_PART: u64 = 8;

/// The least a region spans, where there are that many addresses: a leaf of the address map.
const LEAST_REGION: Bytes = LEAF.bytes();

/// The least the first region spans where the device says little of its memory.
const LEAST_FIRST: Bytes = Bytes::gib(4);

/// From how many new pages on the device is asked first whether it has that much: asking takes a tenth of
/// what one page does, and finding out by making pages until it says no takes them from everyone else.
const ASK_FIRST: usize = 4;

/// A page that was moved away, whose old mapping stands until nothing uses it.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Alias {
    pub(in crate::pool) at: Offset,
    pub(in crate::pool) size: Bytes,
}

/// A page taken out of the address space to be given back.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Lifted {
    pub(in crate::pool) at: Offset,
    pub(in crate::pool) page: u64,
    pub(in crate::pool) size: Bytes,
    pub(in crate::pool) streams: Streams,
}

/// A page on its way to the device, once the work that used it is over: in nobody's order.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Outgoing {
    pub(in crate::pool) at: Offset,
    pub(in crate::pool) page: u64,
    pub(in crate::pool) size: Bytes,
}

impl Lifted {
    /// The same, to be given to the device.
    pub(in crate::pool) fn outgoing(&self) -> Outgoing {
        Outgoing { at: self.at, page: self.page, size: self.size }
    }

    /// Whether no work can use it any more, as far as is known without asking the device.
    pub(in crate::pool) fn is_idle(&self) -> bool {
        self.streams == Streams::ALL
    }
}

/// What a device has for a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceRoom {
    /// All it needs.
    Enough,
    /// Perhaps enough for pages that fit the request more closely.
    ForSmallerPages,
    /// Not the bytes.
    TooLittle,
}

/// A page that is mapped where the plan says, and not in the address space yet.
#[derive(Debug)]
struct Staged {
    at: Offset,
    span: Span,
    page: PageHandle,
    /// Where it was, for one that moves.
    from: Option<Lifted>,
}

/// What one side has from the device.
#[derive(Debug)]
pub(in crate::pool) struct PageProvider {
    pub(in crate::pool) device: Arc<dyn Device>,
    pub(in crate::pool) kind: BackingKind,
    pub(in crate::pool) side: Side,
    /// Whether memory is made of pages, as opposed to segments.
    pub(in crate::pool) maps_pages: bool,
    /// The regions reserved, by their starts.
    pub(in crate::pool) regions: Vec<Address>,
    /// Pages that are nowhere any more, which the device would not take back when asked. They count
    /// as going.
    pub(in crate::pool) orphans: Vec<(PageHandle, Bytes)>,
    /// Mappings that nobody is to use, which the device would not take away when asked, and what page
    /// is there. Their places are held in the address space.
    pub(in crate::pool) stranded: Vec<(Alias, PageHandle)>,
    /// Segments that were never in the address space, which the device would not take back when asked. They
    /// count as going.
    pub(in crate::pool) strays: Vec<(Address, Bytes)>,
}

impl PageProvider {
    /// Reserves addresses for a side on `device`, where it maps pages.
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
            return Ok((provider(false), SideHeap::new(PageSize::DEVICE, Boundaries::Apart)));
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

    /// Reserves more addresses: `wanted`, or less where the process has not that many left, but room for
    /// `least` in any case.
    fn reserve(
        &mut self,
        side_heap: &mut SideHeap,
        wanted: Bytes,
        least: Bytes,
        log: &CallLog,
    ) -> Result<()> {
        let memory = self.memory()?;
        let granule = side_heap.space.granule();
        // In whole leaves of the address map, and one more, so that the region can begin where one does:
        // no leaf is of both sides.
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
        debug_assert!(reserved.is_ok(), "addresses that the space has already: {reserved:?}");
        Ok(())
    }

    pub(in crate::pool) fn memory(&self) -> Result<&dyn VirtualMemory> {
        let unsupported = || forebay_hal::Error::Unsupported {
            call: Call::Map,
            missing: "mapping of pages".into(),
        };
        Ok(self.device.virtual_memory().ok_or_else(unsupported)?)
    }

    /// Maps `page` at `span`, the addresses of `at`, with access for the device and its peers. Where it fails
    /// nothing is mapped there, or the mapping is [stranded](Self::stranded).
    fn attach(&mut self, at: Offset, span: Span, page: PageHandle, log: &CallLog) -> Result<()> {
        let memory = self.memory()?;
        let (own, size) = (self.device.descriptor().ordinal, span.size());
        log.make(Call::Map, size, || memory.map(span.start(), page))?;
        // SAFETY: access is granted to a mapping made just now, which nobody uses yet.
        let grant = |to| unsafe { memory.set_access(span, Access::ReadWrite, to) };
        let mut all = [own].into_iter().chain(self.kind.peers().iter().copied());
        let granted = all.try_for_each(|to| log.make(Call::SetAccess, size, || grant(to)));
        if granted.is_err() {
            self.detach(at, span, page, log);
        }
        Ok(granted?)
    }

    /// Takes a mapping away that was made just now and that nobody uses; where the device refuses
    /// that too, it is tried again later.
    fn detach(&mut self, at: Offset, span: Span, page: PageHandle, log: &CallLog) {
        if self.unmap(span, log).is_err() {
            self.stranded.push((Alias { at, size: span.size() }, page));
        }
    }

    /// Whether a mapping stands at `at` that nobody is to use.
    fn is_stranded(&self, at: Offset) -> bool {
        self.stranded.iter().any(|(alias, _)| alias.at == at)
    }

    /// Fills memory that came just now, in the order of the stream it came for.
    fn fill(
        &self,
        span: Span,
        fresh: Option<(Pattern, StreamHandle)>,
        log: &CallLog,
    ) -> Result<()> {
        let Some((pattern, stream)) = fresh else { return Ok(()) };
        let fill = Fill::linear(span.start(), span.size(), pattern)?;
        // SAFETY: it is memory of this provider, which goes back to the device only after the end of
        // all work in whose order it is free was seen.
        let fill = || unsafe { self.device.fill(&fill, stream) };
        Ok(log.make(Call::Fill, span.size(), fill)?)
    }

    /// Does what it takes for a hole of `size` in the order of `taker`, which has waited for all
    /// others; `false` where there is no way. Gives the old mappings of pages that moved in
    /// `aliases`. The heap's slots are [frozen](Heap::frozen) meanwhile.
    ///
    /// All or nothing: pages are made and mapped first, where no request can see them, and come onto the
    /// space together. Where a step fails, what was made goes back to the device, and what was moved is
    /// where it was.
    pub(in crate::pool) fn make_room(
        &mut self,
        context: Context<'_>,
        size: Bytes,
        taker: Streams,
        aliases: &mut Vec<Alias>,
        log: &CallLog,
    ) -> Result<bool> {
        let plan = {
            let mut heap = lock(context.heap);
            let held = heap.held();
            let side_heap = heap.side_heap(self.side);
            let limit =
                context.limit.saturating_sub(held.saturating_sub(side_heap.space.backed_bytes()));
            if !self.maps_pages {
                let segment = Plan::segment(&side_heap.space, size, context.growth, limit);
                drop(heap);
                return match segment {
                    Some(wanted) => self.add_segment(context, wanted, size, taker, log),
                    None => Ok(false),
                };
            }
            let mut plan = Plan::make(&side_heap.space, size, taker, context.growth, limit);
            if plan == Err(PlanError::Addresses) {
                // As many again as there are: so a pool that grows reserves a few times at the most. A call
                // of half a microsecond, under the heap's lock.
                let page = context.growth.largest_page.max(side_heap.space.granule().bytes());
                let least = size.saturating_add(page);
                self.reserve(side_heap, side_heap.space.reserved_bytes(), least, log)?;
                plan = Plan::make(&side_heap.space, size, taker, context.growth, limit);
            }
            plan
        };
        let Ok(plan) = plan else { return Ok(false) };
        let room = self.device_room(&plan, size, log)?;
        if room != DeviceRoom::Enough {
            return match room {
                DeviceRoom::ForSmallerPages => Err(self.too_large_pages(&plan).into()),
                _ => Ok(false),
            };
        }
        let mut staged = Vec::new();
        match self.stage(context, &plan, taker, &mut staged, log) {
            Ok(()) => self.commit(context, staged, taker, aliases, log),
            Err(error) => {
                self.roll_back(context, staged, log);
                Err(error)
            }
        }
    }

    /// What the device has for a plan; asked before the first of many pages is made.
    fn device_room(&self, plan: &Plan, size: Bytes, log: &CallLog) -> Result<DeviceRoom> {
        let pages = plan.steps.iter().filter(|step| matches!(step, Step::Create { .. })).count();
        if pages < ASK_FIRST {
            return Ok(DeviceRoom::Enough);
        }
        let wanted = plan.created();
        let info = log.call(Call::MemoryInfo, || self.device.memory_info())?;
        Ok(match info.free {
            free if free >= wanted => DeviceRoom::Enough,
            // The last page is larger than what is asked of it.
            free if free >= size.min(wanted) => DeviceRoom::ForSmallerPages,
            _ => DeviceRoom::TooLittle,
        })
    }

    /// What the device would say to a plan whose pages are too large for it.
    fn too_large_pages(&self, plan: &Plan) -> forebay_hal::Error {
        let (call, requested) = (Call::CreatePage, plan.created());
        forebay_hal::Error::OutOfMemory { call, requested, free: Bytes::ZERO, total: Bytes::ZERO }
    }

    /// Makes and maps what a plan says, out of the address space. Stops early, without an error, where the address space has
    /// changed since it was planned: what is there by then helps, and the next plan sees how things stand.
    fn stage(
        &mut self,
        context: Context<'_>,
        plan: &Plan,
        taker: Streams,
        staged: &mut Vec<Staged>,
        log: &CallLog,
    ) -> Result<()> {
        for &step in &plan.steps {
            let (to, size, from) = match step {
                Step::Create { at, size } => (at, size, None),
                Step::Move { from, to, size } => (to, size, Some(from)),
                // A step that this pool does not know is not done.
                _ => return Ok(()),
            };
            let Some((span, from)) = self.hold(context, to, size, from, taker) else {
                return Ok(());
            };
            if !context.map.make(span, self.side) {
                self.let_go(context, to, from);
                return Err(Error::AddressRange { span });
            }
            let page = match from {
                Some(from) => PageHandle(from.page),
                None => match self.create(size, log) {
                    Ok(page) => page,
                    Err(error) => {
                        self.let_go(context, to, from);
                        return Err(error);
                    }
                },
            };
            if let Err(error) = self.attach(to, span, page, log) {
                if from.is_none() {
                    self.orphan(context.heap, page, size);
                }
                if !self.is_stranded(to) {
                    self.let_go(context, to, from);
                } else if let Some(from) = from {
                    put_back(&mut lock(context.heap).side_heap(self.side).space, from);
                }
                lock(context.heap).note_held();
                // The error that brought us here is the one to tell.
                let _ = self.tidy(context.heap, log);
                return Err(error);
            }
            staged.push(Staged { at: to, span, page, from });
        }
        Ok(())
    }

    /// Keeps `to` from other plans, and takes the page at `from` out of the address space where one is to move there.
    /// `None` where the address space is not as it was planned with.
    fn hold(
        &self,
        context: Context<'_>,
        to: Offset,
        size: Bytes,
        from: Option<Offset>,
        taker: Streams,
    ) -> Option<(Span, Option<Lifted>)> {
        let mut heap = lock(context.heap);
        let side_heap = heap.side_heap(self.side);
        let lifted = match from {
            None => None,
            Some(at) => {
                let (page, size, streams) = side_heap.space.remove_page(at).ok()?;
                let lifted = Lifted { at, page, size, streams };
                if !streams.contains(taker) {
                    put_back(&mut side_heap.space, lifted);
                    return None;
                }
                Some(lifted)
            }
        };
        if side_heap.space.claim_gap(to, size).is_err() {
            lifted.into_iter().for_each(|page| put_back(&mut side_heap.space, page));
            return None;
        }
        Some((span_of(to, size), lifted))
    }

    /// Undoes [`hold`](Self::hold).
    fn let_go(&self, context: Context<'_>, to: Offset, from: Option<Lifted>) {
        let mut heap = lock(context.heap);
        let space = &mut heap.side_heap(self.side).space;
        let cleared = space.clear_alias(to);
        debug_assert!(cleared.is_ok(), "what was held is gone: {cleared:?}");
        from.into_iter().for_each(|page| put_back(space, page));
    }

    fn create(&self, size: Bytes, log: &CallLog) -> Result<PageHandle> {
        let memory = self.memory()?;
        let create = || memory.create_page(size, self.kind.page_options());
        Ok(log.make(Call::CreatePage, size, create)?)
    }

    /// Takes away what was staged: new pages go to the device, moved ones are where they were.
    fn roll_back(&mut self, context: Context<'_>, staged: Vec<Staged>, log: &CallLog) {
        for Staged { at, span, page, from } in staged {
            self.detach(at, span, page, log);
            if from.is_none() {
                self.orphan(context.heap, page, span.size());
            }
            if !self.is_stranded(at) {
                self.let_go(context, at, from);
            } else if let Some(from) = from {
                put_back(&mut lock(context.heap).side_heap(self.side).space, from);
            }
        }
        lock(context.heap).note_held();
        // What the device would not take now it is asked to take the next time.
        let _ = self.tidy(context.heap, log);
    }

    /// Puts what was staged onto the address space, free in the order of `taker`; new memory is in nobody's past,
    /// but free for all it would become one with a neighbour that the taker cannot use.
    fn commit(
        &mut self,
        context: Context<'_>,
        mut staged: Vec<Staged>,
        taker: Streams,
        aliases: &mut Vec<Alias>,
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
        // What was filled is in use by the device, and stays; nothing was enqueued for the rest.
        let rest = filled.map(|failed| staged.split_off(failed));
        {
            let mut heap = lock(context.heap);
            let space = &mut heap.side_heap(self.side).space;
            for Staged { at, span, page, from } in staged {
                let cleared = space.clear_alias(at);
                let placed = space.add_page(at, span.size(), page.0, taker);
                debug_assert!(cleared.is_ok() && placed.is_ok(), "{cleared:?}, {placed:?}");
                aliases.extend(from.map(|page| Alias { at: page.at, size: page.size }));
            }
            heap.note_held();
        }
        if let Some(rest) = rest {
            self.roll_back(context, rest, log);
        }
        outcome
    }

    /// A segment of `wanted` bytes, or of what is needed where the device has not that much.
    fn add_segment(
        &mut self,
        context: Context<'_>,
        wanted: Bytes,
        size: Bytes,
        taker: Streams,
        log: &CallLog,
    ) -> Result<bool> {
        let least = size.checked_align_up(Alignment::DEVICE_PAGE).unwrap_or(wanted).min(wanted);
        let allocate = |bytes: Bytes| {
            log.make(Call::Allocate, bytes, || self.device.allocate(bytes, Alignment::DEVICE_PAGE))
        };
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
            self.stray(context.heap, start, bytes);
            return Err(error);
        }
        let placed = {
            let mut heap = lock(context.heap);
            let placed =
                heap.side_heap(self.side).space.add_page(start.get(), bytes, start.get(), taker);
            heap.note_held();
            placed
        };
        if placed.is_err() {
            debug_assert!(false, "the device gave a segment where one is: {placed:?}");
            self.stray(context.heap, start, bytes);
            return Ok(false);
        }
        Ok(true)
    }
}

/// Tries once more what failed: for the end of a pool, after which nobody can.
pub(in crate::pool) fn twice<T, E>(
    mut call: impl FnMut() -> core::result::Result<T, E>,
) -> core::result::Result<T, E> {
    call().or_else(|_| call())
}

/// What making room needs beside the provider.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Context<'a> {
    pub(in crate::pool) heap: &'a Mutex<Heap>,
    pub(in crate::pool) map: &'a AddressMap,
    pub(in crate::pool) growth: &'a Growth,
    /// The most both sides may hold.
    pub(in crate::pool) limit: Bytes,
    /// What new memory is filled with, and in whose order: that of the stream it comes for.
    pub(in crate::pool) fresh: Option<(Pattern, StreamHandle)>,
}

/// Puts a lifted page back where it was: its mapping still stands.
pub(in crate::pool) fn put_back(space: &mut AddressSpace, page: Lifted) {
    let cleared = space.clear_alias(page.at);
    let placed = space.add_page(page.at, page.size, page.page, page.streams);
    debug_assert!(cleared.is_ok() && placed.is_ok(), "{cleared:?}, {placed:?}");
}
