//! Guard pages: each block on pages of its own, at their end, with nothing mapped behind.
//!
//! ```text
//!   region   ... [ page: rest, block ]  nothing  [ page: rest, block ]  nothing ...   cursor ->
//!                  live                            freed: unmapped once its stream is done
//! ```
//!
//! Addresses are given out round the whole region before any comes again, so what still uses a freed
//! block meets nothing, and the device stops it. Pages that are on their way out are bounded: beyond
//! that a request waits until some have gone.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use forebay_core::{Address, Alignment, Bytes, Ladder, PageSize, Span};
use forebay_hal::{
    Access, Call, Device, PageHandle, PageOptions, Progress, StreamHandle, VirtualMemory,
};

use super::super::log::Point;
use super::super::map::{LARGEST, LEAF, Side};
use super::super::reclaim::{Patience, poll};
use super::super::shared::Shared;
use super::super::slow_path::Source;
use super::blocks::canary_before;
use super::probe::Probe;
use crate::sync::tracked::lock;
use crate::{Block, Error, Request, Result};

/// How many times the device's memory the region spans: the pages of all blocks and as much again
/// that is resting.
const ADDRESSES_PER_BYTE: u64 = 4;

/// The least a region spans.
const LEAST_ADDRESSES: Bytes = Bytes::gib(16);

/// The most bytes of freed blocks that are still mapped: a program that frees faster than its streams
/// work waits for them, rather than taking more and more of the device. As much as the preset
/// for debugging keeps in quarantine where there are no guard pages.
const MOST_GOING: Bytes = Bytes::mib(64);

/// The pages of one block.
#[derive(Clone, Copy, Debug)]
struct Fenced {
    pages: Span,
    page: PageHandle,
}

/// When the pages of a freed block can go.
#[derive(Debug)]
enum Until {
    /// Once this event is reached.
    Reached(Point),
    /// Once the whole device was synchronised: there was no event to be had.
    Synchronised,
    /// Now: their time had come, but the device refused.
    Now,
}

/// The pages of a freed block.
#[derive(Debug)]
struct Going {
    until: Until,
    /// The stream it was freed on.
    stream: StreamHandle,
    fenced: Fenced,
    /// How many were freed before it.
    number: u64,
}

/// What is where.
#[derive(Debug)]
struct Yard {
    /// Where the next block is looked for.
    cursor: Address,
    /// Addresses in use, by their start: pages and the guard behind them, to their end.
    taken: BTreeMap<Address, Address>,
    /// The pages of live blocks, by the block's address.
    live: HashMap<Address, Fenced>,
    /// The pages of freed blocks, still mapped, the oldest first; and how many bytes they have.
    going: VecDeque<Going>,
    going_bytes: Bytes,
    /// How many blocks were freed so far, and of how many the pages were unmapped.
    freed: u64,
    unmapped: u64,
    /// Pages that are nowhere any more, which the device would not take back when asked.
    orphans: Vec<(PageHandle, Bytes)>,
    /// Bytes in all pages that were had from the device and did not go back.
    held: Bytes,
}

impl Yard {
    /// Has the pages of a block go.
    fn let_go(&mut self, going: Going) {
        self.going_bytes = self.going_bytes.saturating_add(going.fenced.pages.size());
        self.going.push_back(going);
    }

    /// A free range of `size` addresses in `region`, from the cursor on and round.
    fn place(&mut self, region: Span, size: Bytes) -> Option<Address> {
        let round = [(self.cursor, region.end()), (region.start(), region.end())];
        let start = round.into_iter().find_map(|(from, to)| self.place_between(from, to, size))?;
        self.cursor = start.checked_add(size)?;
        self.taken.insert(start, self.cursor);
        Some(start)
    }

    fn place_between(&self, from: Address, to: Address, size: Bytes) -> Option<Address> {
        let before = self.taken.range(..=from).next_back().map(|(_, &end)| end);
        let mut at = before.map_or(from, |end| end.max(from));
        for (&start, &end) in self.taken.range(at..to) {
            if start.offset_from(at).is_some_and(|gap| gap >= size) {
                return Some(at);
            }
            at = end;
        }
        to.offset_from(at).filter(|&gap| gap >= size).map(|_| at)
    }
}

/// The blocks on pages of their own.
#[derive(Debug)]
pub(in super::super) struct Guards {
    device: Arc<dyn Device>,
    granule: PageSize,
    /// What was reserved, by its start.
    reserved: Address,
    /// The part of it that is used.
    region: Span,
    yard: Mutex<Yard>,
}

impl Guards {
    /// Reserves addresses on `device`.
    pub(super) fn new(device: &Arc<dyn Device>, probe: &Probe) -> Result<Self> {
        let Some(memory) = device.virtual_memory() else {
            return Err(Error::AidUnavailable {
                aid: "guard_pages",
                device: device.descriptor().to_string(),
                missing: "it does not map pages; set guard_pages to off, or use canaries",
            });
        };
        let granule = memory.granularity().minimum;
        let total = device.memory_info()?.total;
        let size = total.checked_mul(ADDRESSES_PER_BYTE).unwrap_or(total).max(LEAST_ADDRESSES);
        let size = size.align_down(LEAF);
        // One leaf of the address map more, so that no leaf is shared with others.
        let whole = size.saturating_add(LEAF.bytes());
        let reserve = || memory.reserve(whole, granule.alignment());
        let reserved = probe.log().make(Call::Reserve, whole, reserve)?.start();
        let start = reserved.checked_align_up(LEAF).unwrap_or(reserved);
        let yard = Yard {
            cursor: start,
            taken: BTreeMap::new(),
            live: HashMap::new(),
            going: VecDeque::new(),
            going_bytes: Bytes::ZERO,
            freed: 0,
            unmapped: 0,
            orphans: Vec::new(),
            held: Bytes::ZERO,
        };
        let device = Arc::clone(device);
        let region = Span::new(start, size).unwrap_or_default();
        Ok(Self { device, granule, reserved, region, yard: Mutex::new(yard) })
    }

    fn memory(&self) -> Result<&dyn VirtualMemory> {
        let unsupported = || forebay_hal::Error::Unsupported {
            call: Call::Map,
            missing: "mapping of pages".into(),
        };
        Ok(self.device.virtual_memory().ok_or_else(unsupported)?)
    }

    /// New pages at `span`, with access for the device. Where it fails, what the device would not take
    /// away or back is on its way out, and the addresses are free unless something stands there.
    fn make_pages(
        &self,
        yard: &mut Yard,
        span: Span,
        stream: StreamHandle,
        probe: &Probe,
    ) -> Result<PageHandle> {
        let (memory, size) = (self.memory()?, span.size());
        let create = || memory.create_page(size, PageOptions::default());
        let created = probe.log().make(Call::CreatePage, size, create);
        let page = match created {
            Ok(page) => page,
            Err(error) => {
                yard.taken.remove(&span.start());
                return Err(error.into());
            }
        };
        yard.held = yard.held.saturating_add(size);
        let own = self.device.descriptor().ordinal;
        let mapped = probe.log().make(Call::Map, size, || memory.map(span.start(), page));
        // The error that brought us here is the one to tell.
        if let Err(error) = mapped {
            yard.taken.remove(&span.start());
            yard.orphans.push((page, size));
            let _ = self.release_orphans(yard, probe);
            return Err(error.into());
        }
        // SAFETY: access is granted to a mapping made just now, which nobody uses yet.
        let grant = || unsafe { memory.set_access(span, Access::ReadWrite, own) };
        if let Err(error) = probe.log().make(Call::SetAccess, size, grant) {
            let fenced = Fenced { pages: span, page };
            if self.take_away(yard, fenced, probe).is_err() {
                yard.let_go(Going { until: Until::Now, stream, fenced, number: u64::MAX });
            }
            return Err(error.into());
        }
        Ok(page)
    }

    /// Gives pages that are nowhere to the device. What it refuses stays for the next time, and keeps
    /// nothing else; the first refusal is told.
    fn release_orphans(&self, yard: &mut Yard, probe: &Probe) -> Result<()> {
        let memory = self.memory()?;
        let mut outcome = Ok(());
        for (page, size) in core::mem::take(&mut yard.orphans) {
            match probe.log().make(Call::ReleasePage, size, || memory.release_page(page)) {
                Ok(()) => yard.held = yard.held.saturating_sub(size),
                Err(error) => {
                    yard.orphans.push((page, size));
                    outcome = outcome.and(Err(error.into()));
                }
            }
        }
        outcome
    }

    /// The pages of the live block at `address`.
    pub(in super::super) fn pages_behind(&self, address: Address) -> Option<(Span, PageHandle)> {
        lock(&self.yard).live.get(&address).map(|fenced| (fenced.pages, fenced.page))
    }

    /// Takes the pages of a freed block away.
    fn take_away(&self, yard: &mut Yard, fenced: Fenced, probe: &Probe) -> Result<()> {
        let (memory, size) = (self.memory()?, fenced.pages.size());
        // SAFETY: the end of all work that was enqueued on the block's stream before it was freed,
        // and on the others it was said to be used on, was seen. Who uses it later is who guard pages
        // are for.
        let unmap = || unsafe { memory.unmap(fenced.pages) };
        probe.log().make(Call::Unmap, size, unmap)?;
        yard.unmapped += 1;
        yard.taken.remove(&fenced.pages.start());
        yard.orphans.push((fenced.page, size));
        // What the device will not take now it is asked to take the next time.
        let _ = self.release_orphans(yard, probe);
        Ok(())
    }
}

impl Shared {
    /// A block on pages of its own.
    pub(in super::super) fn find_guarded(
        &self,
        guards: &Guards,
        request: Request,
        size: Bytes,
        patience: Patience,
    ) -> Result<Block> {
        let (stream, alignment) = (request.stream, request.alignment);
        // The end of the block is the end of the pages, but for what its start is moved down by.
        let slack = alignment.bytes().saturating_sub(Alignment::BLOCK.bytes());
        let pages = size.checked_add(slack).filter(|&whole| whole <= LARGEST);
        let pages = pages.and_then(|whole| whole.checked_align_up(guards.granule.alignment()));
        let pages = pages.ok_or_else(|| self.shortage(request, size))?;
        if !self.wait_for_freed(guards, patience, |yard| yard.going_bytes <= MOST_GOING)? {
            return Err(self.shortage(request, pages).into());
        }
        let mut calls = 0;
        let fenced = loop {
            let before = lock(&guards.yard).unmapped;
            if let Some(fenced) = self.fence(guards, pages, stream)? {
                break fenced;
            }
            // Another thread may have unmapped what this one waits for.
            if self.wait_for_freed(guards, patience, |yard| yard.unmapped > before)? {
                continue;
            }
            if calls == Ladder::MAX_CALLBACKS || !self.ask_to_let_go(request, pages) {
                return Err(self.shortage(request, pages).into());
            }
            calls += 1;
        };
        let end = Bytes::new(fenced.pages.end().get().saturating_sub(size.get()));
        let start = Address::new(end.align_down(alignment).get());
        let block = Span::new(start, size).unwrap_or_default();
        let canary = canary_before(fenced.pages, start);
        lock(&guards.yard).live.insert(start, fenced);
        let dressed = self.debug.dress(block, canary, stream);
        let block = dressed.and_then(|()| self.hand_out(start, size, request, Source::Driver));
        if block.is_err() {
            lock(&self.debug.canaries).remove(start);
            self.unfence(guards, start, stream);
        }
        block
    }

    /// Pages for one block; `None` where there is no memory for them.
    fn fence(&self, guards: &Guards, size: Bytes, stream: StreamHandle) -> Result<Option<Fenced>> {
        let limit = self.limits.limit();
        let mut yard = lock(&guards.yard);
        if self.heap().held().saturating_add(size) > limit {
            return Ok(None);
        }
        let range = size.saturating_add(guards.granule.bytes());
        let Some(start) = yard.place(guards.region, range) else { return Ok(None) };
        let pages = Span::new(start, size).unwrap_or_default();
        let made = if self.map.make(pages, Side::Small) {
            guards.make_pages(&mut yard, pages, stream, &self.debug.probe)
        } else {
            yard.taken.remove(&start);
            Err(Error::AddressRange { span: pages })
        };
        self.heap().set_apart(yard.held);
        match made {
            Ok(page) => Ok(Some(Fenced { pages, page })),
            Err(Error::Device(forebay_hal::Error::OutOfMemory { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Has the pages of a block go, once the work of `stream` so far is done.
    pub(super) fn unfence(&self, guards: &Guards, address: Address, stream: StreamHandle) {
        let end = Point::after(&guards.device, self.debug.probe.log(), stream);
        let until = end.map_or(Until::Synchronised, Until::Reached);
        {
            let mut yard = lock(&guards.yard);
            if let Some(fenced) = yard.live.remove(&address) {
                let number = yard.freed;
                yard.freed += 1;
                yard.let_go(Going { until, stream, fenced, number });
            }
        }
        // What cannot go now goes with a later call.
        let _ = self.unmap_freed(guards, Patience::None);
    }

    /// Takes away the pages of freed blocks whose time has come; gives how many bytes. Waits for the device
    /// first, so that all of them go, unless time runs out.
    pub(in super::super) fn unmap_freed(
        &self,
        guards: &Guards,
        patience: Patience,
    ) -> Result<Bytes> {
        let probe = &self.debug.probe;
        // What is freed while the device is waited for is not among what that settles.
        let freed_before = {
            let yard = lock(&guards.yard);
            if yard.going.is_empty() && yard.orphans.is_empty() {
                return Ok(Bytes::ZERO);
            }
            yard.freed
        };
        let waits = !matches!(patience, Patience::None);
        let synchronised = waits && self.wait_for_device(patience)?;
        let mut yard = lock(&guards.yard);
        let before = yard.held;
        let mut outcome = guards.release_orphans(&mut yard, probe);
        // Streams that were found not to be done: what was freed on them later is not due either, and
        // need not be asked for. A handle that has become another stream's costs a look that comes later.
        let mut busy: Vec<StreamHandle> = Vec::new();
        yard.going_bytes = Bytes::ZERO;
        for Going { mut until, stream, fenced, number } in core::mem::take(&mut yard.going) {
            let due = match &until {
                Until::Now => true,
                _ if synchronised && number < freed_before => true,
                Until::Synchronised => false,
                Until::Reached(_) if busy.contains(&stream) => false,
                Until::Reached(event) => match event.query() {
                    Ok(Progress::Done) => true,
                    Ok(Progress::Pending) => {
                        busy.push(stream);
                        false
                    }
                    Err(_) => {
                        until = Until::Synchronised;
                        false
                    }
                },
            };
            if !due {
                yard.let_go(Going { until, stream, fenced, number });
            } else if let Err(error) = guards.take_away(&mut yard, fenced, probe) {
                yard.let_go(Going { until: Until::Now, stream, fenced, number });
                outcome = Err(error);
            }
        }
        self.heap().set_apart(yard.held);
        outcome.map(|()| before.saturating_sub(yard.held))
    }

    /// Unmaps the pages of freed blocks as their work ends, until `is_enough`. `false` where time ran out
    /// first, or nothing more can come.
    fn wait_for_freed(
        &self,
        guards: &Guards,
        patience: Patience,
        is_enough: impl Fn(&Yard) -> bool,
    ) -> Result<bool> {
        let came = |unmapped: Result<Bytes>| {
            let yard = lock(&guards.yard);
            // What the device refuses of earlier blocks is no error of a request that has enough.
            if is_enough(&yard) {
                return Ok(Some(true));
            }
            unmapped?;
            let waits = |going: &Going| matches!(going.until, Until::Reached(_));
            Ok((!yard.going.iter().any(waits)).then_some(false))
        };
        if poll(patience, || came(self.unmap_freed(guards, Patience::None)))? {
            return Ok(true);
        }
        let waits = |going: &Going| matches!(going.until, Until::Synchronised);
        if !lock(&guards.yard).going.iter().any(waits) {
            return Ok(false);
        }
        Ok(came(self.unmap_freed(guards, patience))? == Some(true))
    }
}

impl Drop for Guards {
    /// Gives everything back. The pool has waited for the device, and whoever drops a pool has no more
    /// use for its blocks; a drop has nobody to tell of errors.
    fn drop(&mut self) {
        let Some(memory) = self.device.virtual_memory() else { return };
        let mut yard = lock(&self.yard);
        let going = core::mem::take(&mut yard.going);
        let going = going.into_iter().map(|going| going.fenced);
        let live: Vec<Fenced> = core::mem::take(&mut yard.live).into_values().collect();
        for Fenced { pages, page } in going.chain(live) {
            // SAFETY: as above.
            let _ = unsafe { memory.unmap(pages) };
            let _ = memory.release_page(page);
        }
        for &(page, _) in &yard.orphans {
            let _ = memory.release_page(page);
        }
        // SAFETY: as above; nothing is mapped there any more.
        let _ = unsafe { memory.release_region(self.reserved) };
    }
}
