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

use forebay_core::{Address, Bytes, PageSize, Span};
use forebay_hal::{Access, Call, Device, PageHandle, PageOptions, StreamHandle, VirtualMemory};

use super::probe::Probe;
use crate::pool::common::log::LoggedEvent;
use crate::sync::map::LEAF;
use crate::sync::tracked::lock;
use crate::{Error, Result};

/// How many times the device's memory the region spans: the pages of all blocks and as much again
/// that is resting.
const ADDRESSES_PER_BYTE: u64 = 4;

/// The least a region spans.
const LEAST_ADDRESSES: Bytes = Bytes::gib(16);

/// The most bytes of freed blocks that are still mapped: a program that frees faster than its streams
/// work waits for them, rather than taking more and more of the device. As much as the preset
/// for debugging keeps in quarantine where there are no guard pages.
pub(in crate::pool) const MOST_PENDING: Bytes = Bytes::mib(64);

/// The pages of one block.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct GuardedBlock {
    pub(in crate::pool) pages: Span,
    pub(in crate::pool) page: PageHandle,
}

/// When the pages of a freed block can go.
#[derive(Debug)]
pub(in crate::pool) enum Until {
    /// Once this event is reached.
    Reached(LoggedEvent),
    /// Once the whole device was synchronised: there was no event to be had.
    Synchronised,
    /// Now: their time had come, but the device refused.
    Now,
}

/// The pages of a freed block.
#[derive(Debug)]
pub(in crate::pool) struct PendingUnmap {
    pub(in crate::pool) until: Until,
    /// The stream it was freed on.
    pub(in crate::pool) stream: StreamHandle,
    pub(in crate::pool) guarded: GuardedBlock,
    /// How many were freed before it.
    pub(in crate::pool) number: u64,
}

/// What is where.
#[derive(Debug)]
pub(in crate::pool) struct GuardState {
    /// Where the next block is looked for.
    pub(in crate::pool) cursor: Address,
    /// Addresses in use, by their start: pages and the guard behind them, to their end.
    pub(in crate::pool) taken: BTreeMap<Address, Address>,
    /// The pages of live blocks, by the block's address.
    pub(in crate::pool) live: HashMap<Address, GuardedBlock>,
    /// The pages of freed blocks, still mapped, the oldest first; and how many bytes they have.
    pub(in crate::pool) pending: VecDeque<PendingUnmap>,
    pub(in crate::pool) pending_bytes: Bytes,
    /// How many blocks were freed so far, and of how many the pages were unmapped.
    pub(in crate::pool) freed: u64,
    pub(in crate::pool) unmapped: u64,
    /// Pages that are nowhere any more, which the device would not take back when asked.
    pub(in crate::pool) orphans: Vec<(PageHandle, Bytes)>,
    /// Bytes in all pages that were had from the device and did not go back.
    pub(in crate::pool) held: Bytes,
}

impl GuardState {
    /// Has the pages of a block go.
    pub(in crate::pool) fn queue(&mut self, pending: PendingUnmap) {
        self.pending_bytes = self.pending_bytes.saturating_add(pending.guarded.pages.size());
        self.pending.push_back(pending);
    }

    /// A free range of `size` addresses in `region`, from the cursor on and round.
    pub(in crate::pool) fn place(&mut self, region: Span, size: Bytes) -> Option<Address> {
        let round = [(self.cursor, region.end()), (region.start(), region.end())];
        let start = round.into_iter().find_map(|(from, to)| self.place_between(from, to, size))?;
        self.cursor = start.checked_add(size)?;
        self.taken.insert(start, self.cursor);
        Some(start)
    }

    pub(in crate::pool) fn place_between(
        &self,
        from: Address,
        to: Address,
        size: Bytes,
    ) -> Option<Address> {
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
pub(in crate::pool) struct Guards {
    pub(in crate::pool) device: Arc<dyn Device>,
    pub(in crate::pool) granule: PageSize,
    /// What was reserved, by its start.
    pub(in crate::pool) reserved: Address,
    /// The part of it that is used.
    pub(in crate::pool) region: Span,
    pub(in crate::pool) state: Mutex<GuardState>,
}

impl Guards {
    /// Reserves addresses on `device`.
    pub(in crate::pool) fn new(device: &Arc<dyn Device>, probe: &Probe) -> Result<Self> {
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
        let state = GuardState {
            cursor: start,
            taken: BTreeMap::new(),
            live: HashMap::new(),
            pending: VecDeque::new(),
            pending_bytes: Bytes::ZERO,
            freed: 0,
            unmapped: 0,
            orphans: Vec::new(),
            held: Bytes::ZERO,
        };
        let device = Arc::clone(device);
        let region = Span::new(start, size).unwrap_or_default();
        Ok(Self { device, granule, reserved, region, state: Mutex::new(state) })
    }

    pub(in crate::pool) fn memory(&self) -> Result<&dyn VirtualMemory> {
        let unsupported = || forebay_hal::Error::Unsupported {
            call: Call::Map,
            missing: "mapping of pages".into(),
        };
        Ok(self.device.virtual_memory().ok_or_else(unsupported)?)
    }

    /// New pages at `span`, with access for the device. Where it fails, what the device would not take
    /// away or back is on its way out, and the addresses are free unless something stands there.
    pub(in crate::pool) fn make_pages(
        &self,
        state: &mut GuardState,
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
                state.taken.remove(&span.start());
                return Err(error.into());
            }
        };
        state.held = state.held.saturating_add(size);
        let own = self.device.descriptor().ordinal;
        let mapped = probe.log().make(Call::Map, size, || memory.map(span.start(), page));
        // The error that brought us here is the one to tell.
        if let Err(error) = mapped {
            state.taken.remove(&span.start());
            state.orphans.push((page, size));
            let _ = self.release_orphans(state, probe);
            return Err(error.into());
        }
        // SAFETY: access is granted to a mapping made just now, which nobody uses yet.
        let grant = || unsafe { memory.set_access(span, Access::ReadWrite, own) };
        if let Err(error) = probe.log().make(Call::SetAccess, size, grant) {
            let guarded = GuardedBlock { pages: span, page };
            if self.unmap_pages(state, guarded, probe).is_err() {
                state.queue(PendingUnmap { until: Until::Now, stream, guarded, number: u64::MAX });
            }
            return Err(error.into());
        }
        Ok(page)
    }

    /// Gives pages that are nowhere to the device. What it refuses stays for the next time, and keeps
    /// nothing else; the first refusal is told.
    pub(in crate::pool) fn release_orphans(
        &self,
        state: &mut GuardState,
        probe: &Probe,
    ) -> Result<()> {
        let memory = self.memory()?;
        let mut outcome = Ok(());
        for (page, size) in core::mem::take(&mut state.orphans) {
            match probe.log().make(Call::ReleasePage, size, || memory.release_page(page)) {
                Ok(()) => state.held = state.held.saturating_sub(size),
                Err(error) => {
                    state.orphans.push((page, size));
                    outcome = outcome.and(Err(error.into()));
                }
            }
        }
        outcome
    }

    /// The pages of the live block at `address`.
    pub(in crate::pool) fn pages_behind(&self, address: Address) -> Option<(Span, PageHandle)> {
        lock(&self.state).live.get(&address).map(|guarded| (guarded.pages, guarded.page))
    }

    /// Takes the pages of a freed block away.
    pub(in crate::pool) fn unmap_pages(
        &self,
        state: &mut GuardState,
        guarded: GuardedBlock,
        probe: &Probe,
    ) -> Result<()> {
        let (memory, size) = (self.memory()?, guarded.pages.size());
        // SAFETY: the end of all work that was enqueued on the block's stream before it was freed,
        // and on the others it was said to be used on, was seen. Who uses it later is who guard pages
        // are for.
        let unmap = || unsafe { memory.unmap(guarded.pages) };
        probe.log().make(Call::Unmap, size, unmap)?;
        state.unmapped += 1;
        state.taken.remove(&guarded.pages.start());
        state.orphans.push((guarded.page, size));
        // What the device will not take now it is asked to take the next time.
        let _ = self.release_orphans(state, probe);
        Ok(())
    }
}

impl Drop for Guards {
    /// Gives everything back. The pool has waited for the device, and whoever drops a pool has no more
    /// use for its blocks; a drop has nobody to tell of errors.
    fn drop(&mut self) {
        let Some(memory) = self.device.virtual_memory() else { return };
        let mut state = lock(&self.state);
        let pending = core::mem::take(&mut state.pending);
        let pending = pending.into_iter().map(|pending| pending.guarded);
        let live: Vec<GuardedBlock> = core::mem::take(&mut state.live).into_values().collect();
        for GuardedBlock { pages, page } in pending.chain(live) {
            // SAFETY: as above.
            let _ = unsafe { memory.unmap(pages) };
            let _ = memory.release_page(page);
        }
        for &(page, _) in &state.orphans {
            let _ = memory.release_page(page);
        }
        // SAFETY: as above; nothing is mapped there any more.
        let _ = unsafe { memory.release_region(self.reserved) };
    }
}
