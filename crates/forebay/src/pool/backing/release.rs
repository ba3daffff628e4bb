//! Releasing memory: pages and segments on their way from an address space to the device, and those that the device
//! refused to take back, which are kept, counted and retried. Guarded by the backing lock.
//!
//! ```text
//!   free in the pool ──> out: waits for its work ──> due ──> returned to the device
//!          ^                      │                   │
//!          └───── a request takes it back ────────────┘
//! ```
//!
//! A page leaves the address space only when it is about to be returned: calls that do not wait take out
//! [`MAX_SLOW`](super::deferred::MAX_SLOW) at a time, and everything else stays in the pool, where requests use it. A
//! request that finds no hole takes back what is out, without a driver call.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use forebay_core::address_space::{AddressSpace, Offset, PageMapping, RemovedPage, Streams};
use forebay_core::{Address, Bytes, Span};
use forebay_hal::{Call, PageHandle, VirtualMemory};

use crate::Result;
use crate::pool::backing::deferred::{FreeFor, Task, WorkEnd};
use crate::pool::backing::page_provider::PageProvider;
use crate::pool::backing::{Backing, PoolContext};
use crate::pool::common::log::CallLog;
use crate::pool::heap::stream_slots::{StreamState, WaitTarget};
use crate::pool::heap::{Heap, span_of};
use crate::retry::retry_once;
use crate::sync::map::Side;
use crate::sync::quota::Reservation;
use crate::sync::tracked::lock;

/// The most kept mappings for each page, on average: a page serves few places again and again, and each mapping takes
/// some memory of the driver.
const MAX_KEPT: usize = 4;

/// A page in an address space that is entirely free.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct FreePage {
    side: Side,
    at: Offset,
    pub(in crate::pool) size: Bytes,
    /// Whether it is free for all streams, so that no work uses it.
    pub(in crate::pool) is_idle: bool,
}

impl Backing {
    /// The pages that could be released, in the order in which they should be: from the highest address down, so that
    /// the remaining ones stay together.
    pub(in crate::pool) fn free_pages(&self, pool: PoolContext<'_>) -> Vec<FreePage> {
        if self.is_stable() || self.captures.any() {
            return Vec::new();
        }
        let heap = pool.heap();
        let sides = [
            (Side::Large, heap.spaces.of(Side::Large)),
            (Side::Small, heap.spaces.of(Side::Small)),
        ];
        let pages = sides.into_iter().flat_map(|(side, space)| {
            space.free_pages().rev().map(move |(at, size)| {
                let is_idle = space.is_page_idle(at);
                FreePage { side, at, size, is_idle }
            })
        });
        pages.collect()
    }

    /// Takes the next of `pages` out of the address spaces, at most `most` of them and so that `keep` bytes stay, and
    /// defers their release until the work that may use them is done. Pages that are in use again are skipped. Returns
    /// how many bytes were taken out. Does not wait.
    pub(in crate::pool) fn defer_release(
        &mut self,
        pool: PoolContext<'_>,
        pages: &mut impl Iterator<Item = FreePage>,
        keep: Bytes,
        most: usize,
    ) -> Bytes {
        if self.is_stable() || self.captures.any() {
            return Bytes::ZERO;
        }
        // Pages that wait for the same event are deferred together.
        let mut by_owner: BTreeMap<u32, (WorkEnd, Vec<Task>)> = BTreeMap::new();
        let (mut bytes, mut count, mut unknown) = (Bytes::ZERO, 0, Vec::new());
        {
            let mut heap = pool.heap();
            let [small, large] = heap.spaces.backed();
            let mut spare = small.saturating_add(large).saturating_sub(keep);
            while count < most && !spare.is_zero() {
                let Some(FreePage { side, at, .. }) = pages.next() else { break };
                let space = heap.spaces.of_mut(side);
                // Taking a larger page would leave less than the caller wants to keep.
                if space.page_table().page(at).is_none_or(|(_, size)| size > spare) {
                    continue;
                }
                let Ok(page) = space.remove_page(at) else { continue };
                let mapping = page.mapping();
                count += 1;
                spare = spare.saturating_sub(page.size);
                bytes = bytes.saturating_add(page.size);
                heap.ledger.add_outgoing(page.size);
                // No work can use it, as far as is known without asking the device.
                if page.streams == Streams::ALL {
                    self.deferred.push_ready(Task::ReleasePage(side, mapping, None));
                    continue;
                }
                // The page is free in the order of each of its streams: the end of one of them is enough.
                let end = page.streams.numbers().find_map(|number| {
                    let (end, serial) = match heap.slots.wait_target(number) {
                        WaitTarget::Stream(stream, serial) => {
                            (WorkEnd::Stream(stream, serial), Some(serial))
                        }
                        // The slot of an event may be gone before the event is reached.
                        WaitTarget::Event(event, serial) => (WorkEnd::Event(event, serial), None),
                        WaitTarget::Unknown => return None,
                    };
                    Some((number, end, serial))
                });
                match end {
                    Some((number, end, serial)) => {
                        let task = Task::ReleasePage(side, mapping, serial);
                        by_owner.entry(number).or_insert((end, Vec::new())).1.push(task);
                    }
                    None => unknown.push(Task::ReleasePage(side, mapping, None)),
                }
            }
        }
        for (end, tasks) in by_owner.into_values() {
            self.defer(pool, &tasks, [end]);
        }
        self.defer(pool, &unknown, [WorkEnd::Unknown]);
        bytes
    }

    /// Puts pages and segments of a side whose release has not begun back into the address space, as many as a request
    /// of `size` needs. No driver call but the queries that tell for whom they are free.
    pub(in crate::pool) fn take_back(&mut self, pool: PoolContext<'_>, side: Side, size: Bytes) {
        let idle = self.outgoing.iter().filter(|(of, _)| *of == side);
        let idle = idle.map(|(_, page)| (page.at, page.size));
        let mut pages: Vec<(Offset, Bytes)> = self.deferred.released(side).chain(idle).collect();
        if pages.is_empty() {
            return;
        }
        // The lowest first: those that are still in the address space are below them, and holes should merge.
        pages.sort_unstable();
        let mut needed = size.saturating_add(self.growth.largest_page);
        let pages = pages.into_iter().take_while(|&(_, size)| {
            let goes_on = !needed.is_zero();
            needed = needed.saturating_sub(size);
            goes_on
        });
        let chosen: BTreeSet<Offset> = pages.map(|page| page.0).collect();
        if !self.captures.any() {
            self.deferred.poll();
        }
        let mut taken = self.deferred.take_back(side, &chosen);
        let segments = self
            .outgoing
            .extract_if(.., |(of, page)| *of == side && chosen.contains(&page.at))
            .map(|(_, page)| (page, FreeFor::All));
        taken.extend(segments);
        let mut heap = pool.heap();
        for (page, free) in taken {
            let streams = match free {
                FreeFor::All => Streams::ALL,
                FreeFor::Unknown => Streams::only(heap.slots.serials.mark()),
                FreeFor::Stream(serial) => match heap.slots.state_of(serial) {
                    StreamState::Live(_, slot)
                    | StreamState::Ended(_, slot)
                    | StreamState::Unknown(slot) => Streams::only(slot),
                    StreamState::Done => Streams::ALL,
                },
            };
            self.provider(side).0.put_back(&mut heap, page, streams);
        }
    }
}

impl PageProvider {
    /// Retries what the device refused before: first unused mappings, then unmapped pages. One that is refused again
    /// stays for the next time and does not stop the others. Returns the first refusal.
    pub(super) fn retry_refused(&mut self, heap: &Mutex<Heap>, log: &CallLog) -> Result<()> {
        let (mut outcome, mut gone) = (Ok(()), Bytes::ZERO);
        for alias in core::mem::take(&mut self.stranded) {
            if let Err(error) = self.clear_alias(heap, alias, log) {
                self.stranded.push(alias);
                outcome = outcome.and(Err(error));
            }
        }
        for (page, size) in core::mem::take(&mut self.orphans) {
            // The device would not release a page that is still mapped.
            let released = if self.is_mapped(page) {
                None
            } else {
                let release = |memory: &dyn VirtualMemory| {
                    Ok(log.make(Call::ReleasePage, size, || memory.release_page(page))?)
                };
                Some(self.memory().and_then(release))
            };
            match released {
                Some(Ok(())) => gone = gone.saturating_add(size),
                other => {
                    self.orphans.push((page, size));
                    outcome = outcome.and(other.unwrap_or(Ok(())));
                }
            }
        }
        if !gone.is_zero() {
            lock(heap).released(gone);
        }
        outcome
    }

    /// Whether `page` is still mapped by a stranded mapping.
    fn is_mapped(&self, page: PageHandle) -> bool {
        self.stranded.iter().any(|alias| alias.page == page.0)
    }

    /// Adds an unmapped page that is to be released: held until then, from what was reserved for it.
    pub(super) fn add_orphan(
        &mut self,
        heap: &Mutex<Heap>,
        page: PageHandle,
        size: Bytes,
        reserved: &mut Reservation,
    ) {
        self.orphans.push((page, size));
        count_outgoing(heap, reserved.split(size), size);
    }

    /// Adds a segment that is in no address space and is to be released.
    pub(super) fn add_stray(
        &mut self,
        heap: &Mutex<Heap>,
        start: Address,
        size: Bytes,
        reserved: &mut Reservation,
    ) {
        self.strays.push((start, size));
        count_outgoing(heap, reserved.split(size), size);
    }

    /// Finishes the release of a segment. If the device refused it, the segment returns to the address space, free for
    /// all, since all work that used it is done.
    pub(in crate::pool) fn finish_segment_release(
        &mut self,
        heap: &Mutex<Heap>,
        page: PageMapping,
        released: bool,
    ) {
        let mut heap = lock(heap);
        if released {
            heap.released(page.size);
            return;
        }
        let space = heap.spaces.of_mut(self.side);
        let placed = space.add_page(page.at, page.size, page.page, Streams::ALL);
        debug_assert!(placed.is_ok(), "the range of the segment is in use: {placed:?}");
        heap.arrivals += 1;
        heap.account(|ledger| ledger.remove_outgoing(page.size));
    }

    /// Removes the old mapping of a moved page. No work uses it any more.
    pub(in crate::pool) fn clear_alias(
        &mut self,
        heap: &Mutex<Heap>,
        alias: PageMapping,
        log: &CallLog,
    ) -> Result<()> {
        self.unmap(span_of(alias.at, alias.size), log)?;
        let cleared = lock(heap).spaces.of_mut(self.side).page_table_mut().clear_alias(alias.at);
        debug_assert!(cleared.is_ok(), "there was no alias: {cleared:?}");
        Ok(())
    }

    /// Removes the kept mapping at `at`. No work uses it. If the device refuses, it is stranded: plans avoid it, and it
    /// is retried later.
    fn clear_kept(&mut self, heap: &Mutex<Heap>, at: Offset, log: &CallLog) -> Result<()> {
        let kept = lock(heap).spaces.of_mut(self.side).page_table().kept().get(at);
        let Some(kept) = kept else { return Ok(()) };
        let unmapped = self.unmap(span_of(at, kept.size), log);
        let mut heap = lock(heap);
        let table = heap.spaces.of_mut(self.side).page_table_mut();
        let cleared = table.clear_kept(at);
        debug_assert!(cleared.is_ok(), "there was no kept mapping: {cleared:?}");
        if unmapped.is_err() {
            let claimed = table.claim_gap(at, kept.size);
            debug_assert!(claimed.is_ok(), "a kept mapping lies in a gap: {claimed:?}");
            self.stranded.push(kept);
        }
        unmapped
    }

    /// Removes the oldest kept mappings beyond [`MAX_KEPT`] for each page, at most as many as one request should pay
    /// for.
    pub(super) fn clear_oldest_kept(&mut self, heap: &Mutex<Heap>, most: usize, log: &CallLog) {
        let oldest: Vec<Offset> = {
            let mut heap = lock(heap);
            let table = heap.spaces.of_mut(self.side).page_table();
            let allowed = table.page_count().saturating_mul(MAX_KEPT);
            let beyond = table.kept().count().saturating_sub(allowed).min(most);
            table.kept().oldest_first().take(beyond).map(|kept| kept.0).collect()
        };
        // One that the device refuses now is retried later.
        oldest.into_iter().for_each(|at| drop(self.clear_kept(heap, at, log)));
    }

    /// Puts a page whose release was called off back into the address space, free in the order of `streams`.
    pub(in crate::pool) fn put_back(&self, heap: &mut Heap, page: PageMapping, streams: Streams) {
        let PageMapping { at, page, size } = page;
        heap.arrivals += 1;
        heap.ledger.remove_outgoing(size);
        let space = heap.spaces.of_mut(self.side);
        RemovedPage { at, page, size, streams }.put_back(space);
    }

    /// Returns a removed page to the device, once all work that used it is done. If the device refuses, the page
    /// returns to the address space.
    pub(in crate::pool) fn release(
        &mut self,
        heap: &Mutex<Heap>,
        page: PageMapping,
        log: &CallLog,
    ) -> Result<()> {
        let span = span_of(page.at, page.size);
        let retried = self.retry_refused(heap, log);
        // The device would not release a page that is also mapped elsewhere. Other failed retries do not concern this
        // page.
        let alone = if self.is_mapped(PageHandle(page.page)) { retried } else { Ok(()) };
        let kept: Vec<Offset> =
            lock(heap).spaces.of_mut(self.side).page_table().kept().of(page.page).collect();
        let alone =
            alone.and_then(|()| kept.into_iter().try_for_each(|at| self.clear_kept(heap, at, log)));
        if let Err(error) = alone.and_then(|()| self.unmap(span, log)) {
            // All work that used it is done, so it is free for all, whatever became of its streams.
            self.put_back(&mut lock(heap), page, Streams::ALL);
            return Err(error);
        }
        let cleared = lock(heap).spaces.of_mut(self.side).page_table_mut().clear_alias(page.at);
        debug_assert!(cleared.is_ok(), "the page was not removed: {cleared:?}");
        let page = PageHandle(page.page);
        // Its bytes count as outgoing already.
        self.orphans.push((page, span.size()));
        let retried = self.retry_refused(heap, log);
        // Reports what became of this page, not of others.
        if self.orphans.iter().any(|&(orphan, _)| orphan == page) { retried } else { Ok(()) }
    }

    pub(in crate::pool) fn unmap(&self, span: Span, log: &CallLog) -> Result<()> {
        let memory = self.memory()?;
        // SAFETY: the caller has seen the end of all work that used the mapping, and no block lies in it.
        let unmap = || unsafe { memory.unmap(span) };
        Ok(log.make(Call::Unmap, span.size(), unmap)?)
    }

    /// Returns everything to the device. Blocks that are still live lose their memory. All work is done; errors are
    /// dropped, as a drop cannot return them.
    pub(in crate::pool) fn tear_down(&mut self, space: &AddressSpace) {
        if let Some(memory) = self.kind.pages() {
            for (at, size) in space.page_table().kept().oldest_first() {
                // SAFETY: a kept mapping is a gap in the address space, so no block is in it.
                let _ = retry_once(|| unsafe { memory.unmap(span_of(at, size)) });
            }
        }
        for (at, page, size) in space.page_table().pages() {
            let span = span_of(at, size);
            match self.kind.pages() {
                Some(memory) => {
                    // SAFETY: the pool has synchronised the device, and the program that drops a pool must not use its
                    // blocks afterwards.
                    let _ = retry_once(|| unsafe { memory.unmap(span) });
                    let _ = retry_once(|| memory.release_page(PageHandle(page)));
                }
                None => {
                    // SAFETY: the pool has synchronised the device, and the program no longer uses the blocks.
                    let _ = retry_once(|| unsafe { self.kind.source.free(span.start()) });
                }
            }
        }
        for &(start, _) in &self.strays {
            // SAFETY: a stray segment never came into the address space, so no block was ever in it.
            let _ = retry_once(|| unsafe { self.kind.source.free(start) });
        }
        let Some(memory) = self.kind.pages() else { return };
        for alias in &self.stranded {
            // SAFETY: a stranded mapping is claimed in the address space, so no block is in it.
            let _ = retry_once(|| unsafe { memory.unmap(span_of(alias.at, alias.size)) });
        }
        for &(page, _) in &self.orphans {
            let _ = retry_once(|| memory.release_page(page));
        }
        for &region in &self.regions {
            // SAFETY: nothing is mapped in the region any more: pages, kept and stranded mappings were unmapped above,
            // and the pool has cleared the aliases.
            let _ = retry_once(|| unsafe { memory.release_region(region) });
        }
    }
}

/// Adds bytes that are out of the address space and not returned to the device yet.
fn count_outgoing(heap: &Mutex<Heap>, reserved: Reservation, size: Bytes) {
    lock(heap).account(|ledger| {
        ledger.share.commit(reserved);
        ledger.add_outgoing(size);
    });
}
