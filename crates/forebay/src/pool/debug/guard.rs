//! Guard pages: each block is at the end of its own pages, with nothing mapped behind. Guarded by the guard-pages lock.
//!
//! ```text
//!   region   ... [ page: rest, block ]  nothing  [ page: rest, block ]  nothing ...   cursor ->
//!                  live                            freed: unmapped once its stream is done
//! ```
//!
//! Addresses cycle through the whole region before any is reused, so a use of a freed block hits an unmapped address,
//! and the device stops it. The bytes of pages waiting to be unmapped are bounded: beyond that a request waits until
//! some are.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use forebay_core::{Address, Bytes, PageSize, Span};
use forebay_hal::{Access, Call, Device, PageHandle, PageOptions, StreamHandle, VirtualMemory};

use crate::pool::common::log::{CallLog, LoggedEvent};
use crate::sync::map::LEAF;
use crate::sync::tracked::lock;
use crate::{Error, Result};

/// The region spans this multiple of the device's memory: the pages of all blocks, and addresses not reused yet.
const ADDRESSES_PER_BYTE: u64 = 4;

/// The smallest region.
const LEAST_ADDRESSES: Bytes = Bytes::gib(16);

/// The most bytes of freed blocks that are still mapped: a program that frees faster than its streams work waits for
/// them, rather than taking ever more memory. The same as the quarantine of the debugging preset without guard pages.
pub(in crate::pool) const MAX_PENDING: Bytes = Bytes::mib(64);

/// The pages of one block.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct GuardedBlock {
    pub(in crate::pool) pages: Span,
    pub(in crate::pool) page: PageHandle,
}

/// When the pages of a freed block can be unmapped.
#[derive(Debug)]
pub(in crate::pool) enum Until {
    /// Once this event is reached.
    Reached(LoggedEvent),
    /// Once the whole device was synchronised: no event could be recorded.
    Synchronised,
    /// Now: they were due, but the device refused.
    Now,
}

/// The pages of a freed block.
#[derive(Debug)]
pub(in crate::pool) struct PendingUnmap {
    pub(in crate::pool) until: Until,
    /// The stream it was freed on.
    pub(in crate::pool) stream: StreamHandle,
    pub(in crate::pool) guarded: GuardedBlock,
    /// Its place in the order of frees.
    pub(in crate::pool) number: u64,
}

/// The address ranges and pages of guarded blocks.
#[derive(Debug, Default)]
pub(in crate::pool) struct GuardState {
    /// Where the search for the next range starts.
    cursor: Address,
    /// Address ranges in use, from their start to their end: pages and the guard behind them.
    pub(in crate::pool) taken: BTreeMap<Address, Address>,
    /// The pages of live blocks, by the block's address.
    pub(in crate::pool) live: HashMap<Address, GuardedBlock>,
    /// The pages of freed blocks that are still mapped, oldest first, and their bytes.
    pub(in crate::pool) pending: VecDeque<PendingUnmap>,
    pub(in crate::pool) pending_bytes: Bytes,
    /// The number of blocks freed so far, and of those unmapped.
    pub(in crate::pool) freed: u64,
    pub(in crate::pool) unmapped: u64,
    /// Unmapped pages that the device refused to take back.
    pub(in crate::pool) orphans: Vec<(PageHandle, Bytes)>,
    /// Bytes of all pages created and not released.
    pub(in crate::pool) held: Bytes,
}

impl GuardState {
    /// Queues the pages of a block to be unmapped.
    pub(in crate::pool) fn queue(&mut self, pending: PendingUnmap) {
        self.pending_bytes = self.pending_bytes.saturating_add(pending.guarded.pages.size());
        self.pending.push_back(pending);
    }

    /// Finds a free range of `size` addresses in `region`, from the cursor on and around.
    pub(in crate::pool) fn place(&mut self, region: Span, size: Bytes) -> Option<Address> {
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

/// The guarded blocks of a pool.
#[derive(Debug)]
pub(in crate::pool) struct Guards {
    device: Arc<dyn Device>,
    log: CallLog,
    pub(in crate::pool) granule: PageSize,
    /// The start of the reservation.
    reserved: Address,
    /// The part of the reservation that is used, aligned to the address map.
    pub(in crate::pool) region: Span,
    pub(in crate::pool) state: Mutex<GuardState>,
}

impl Guards {
    /// Reserves addresses on `device`.
    pub(super) fn new(device: &Arc<dyn Device>, log: &CallLog) -> Result<Self> {
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
        // One more leaf of the address map, so that no leaf is shared with other memory.
        let whole = size.saturating_add(LEAF.bytes());
        let reserve = || memory.reserve(whole, granule.alignment());
        let reserved = log.make(Call::Reserve, whole, reserve)?.start();
        let start = reserved.checked_align_up(LEAF).unwrap_or(reserved);
        let state = Mutex::new(GuardState { cursor: start, ..GuardState::default() });
        let region = Span::new(start, size).unwrap_or_default();
        let (device, log) = (Arc::clone(device), log.clone());
        Ok(Self { device, log, granule, reserved, region, state })
    }

    fn memory(&self) -> Result<&dyn VirtualMemory> {
        let unsupported = || forebay_hal::Error::Unsupported {
            call: Call::Map,
            missing: "mapping of pages".into(),
        };
        Ok(self.device.virtual_memory().ok_or_else(unsupported)?)
    }

    /// Creates pages at `span` with access for the device. After a failure, what the device would not unmap or release
    /// is queued, and the addresses are free unless something is still mapped there.
    pub(in crate::pool) fn make_pages(
        &self,
        state: &mut GuardState,
        span: Span,
        stream: StreamHandle,
    ) -> Result<PageHandle> {
        let (memory, size) = (self.memory()?, span.size());
        let create = || memory.create_page(size, PageOptions::default());
        let created = self.log.make(Call::CreatePage, size, create);
        let page = created.inspect_err(|_| _ = state.taken.remove(&span.start()))?;
        state.held = state.held.saturating_add(size);
        let own = self.device.descriptor().ordinal;
        let mapped = self.log.make(Call::Map, size, || memory.map(span.start(), page));
        // The first error is the one to report.
        if let Err(error) = mapped {
            state.taken.remove(&span.start());
            state.orphans.push((page, size));
            let _ = self.release_orphans(state);
            return Err(error.into());
        }
        // SAFETY: the mapping was made just now by this call, and no block lies in it yet.
        let grant = || unsafe { memory.set_access(span, Access::ReadWrite, own) };
        if let Err(error) = self.log.make(Call::SetAccess, size, grant) {
            let guarded = GuardedBlock { pages: span, page };
            // SAFETY: the pages were mapped just now, and no work can know them.
            if unsafe { self.unmap_pages(state, guarded) }.is_err() {
                state.queue(PendingUnmap { until: Until::Now, stream, guarded, number: u64::MAX });
            }
            return Err(error.into());
        }
        Ok(page)
    }

    /// Releases unmapped pages. One that the device refuses stays for the next time and does not stop the others.
    /// Returns the first refusal.
    pub(in crate::pool) fn release_orphans(&self, state: &mut GuardState) -> Result<()> {
        let memory = self.memory()?;
        let mut outcome = Ok(());
        for (page, size) in core::mem::take(&mut state.orphans) {
            match self.log.make(Call::ReleasePage, size, || memory.release_page(page)) {
                Ok(()) => state.held = state.held.saturating_sub(size),
                Err(error) => {
                    state.orphans.push((page, size));
                    outcome = outcome.and(Err(error.into()));
                }
            }
        }
        outcome
    }

    /// Unmaps the pages of a freed block.
    ///
    /// # Safety
    ///
    /// * All work is over that was enqueued before the free on the block's stream and on every recorded further stream.
    pub(in crate::pool) unsafe fn unmap_pages(
        &self,
        state: &mut GuardState,
        guarded: GuardedBlock,
    ) -> Result<()> {
        let (memory, size) = (self.memory()?, guarded.pages.size());
        // SAFETY: the caller promises it. A later use is the mistake that guard pages exist to catch.
        let unmap = || unsafe { memory.unmap(guarded.pages) };
        self.log.make(Call::Unmap, size, unmap)?;
        state.unmapped += 1;
        state.taken.remove(&guarded.pages.start());
        state.orphans.push((guarded.page, size));
        // A page that the device refuses now is retried later.
        let _ = self.release_orphans(state);
        Ok(())
    }
}

impl Drop for Guards {
    /// Returns everything to the device. The pool has synchronised it, and the program no longer uses the blocks.
    /// Errors are dropped, as a drop cannot return them.
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
