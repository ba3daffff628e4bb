//! Giving back: pages and segments on their way from an address space to the device, and what the device would not
//! take when asked. That is kept, counted and tried again.

use std::sync::Mutex;

use forebay_core::address_space::{Offset, Streams};
use forebay_core::{Address, Bytes, Span};
use forebay_hal::{Call, PageHandle, VirtualMemory};

use crate::Result;
use crate::pool::backing::page_provider::{Alias, Lifted, Outgoing, PageProvider, put_back, twice};
use crate::pool::common::log::CallLog;
use crate::pool::heap::{Heap, SideHeap, span_of};
use crate::sync::tracked::lock;

impl PageProvider {
    /// Tries again what the device refused before: mappings that nobody uses go, then pages that are
    /// nowhere. What is refused again stays for the next time, and keeps nothing else; the first refusal
    /// is told.
    pub(in crate::pool) fn tidy(&mut self, heap: &Mutex<Heap>, log: &CallLog) -> Result<()> {
        let (mut outcome, mut gone) = (Ok(()), Bytes::ZERO);
        for (alias, page) in core::mem::take(&mut self.stranded) {
            if let Err(error) = self.clear(heap, alias, log) {
                self.stranded.push((alias, page));
                outcome = outcome.and(Err(error));
            }
        }
        for (page, size) in core::mem::take(&mut self.orphans) {
            // A page that is mapped somewhere would not come back: it waits for its mapping to go.
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
            let mut heap = lock(heap);
            heap.going = heap.going.saturating_sub(gone);
            heap.note_held();
        }
        outcome
    }

    /// Whether a mapping of `page` stands that nobody is to use.
    fn is_mapped(&self, page: PageHandle) -> bool {
        self.stranded.iter().any(|&(_, stranded)| stranded == page)
    }

    /// Notes a page that is nowhere.
    pub(in crate::pool) fn orphan(&mut self, heap: &Mutex<Heap>, page: PageHandle, size: Bytes) {
        self.orphans.push((page, size));
        count_going(heap, size);
    }

    /// Notes a segment that is in no address space: the device is to have it back.
    pub(in crate::pool) fn stray(&mut self, heap: &Mutex<Heap>, start: Address, size: Bytes) {
        self.strays.push((start, size));
        count_going(heap, size);
    }

    /// A segment that was taken out of the address space went to the device; where it did not, it is in the address space again,
    /// free for all, since all work that used it is over.
    pub(in crate::pool) fn segment_went(&mut self, heap: &Mutex<Heap>, page: Outgoing, went: bool) {
        let mut heap = lock(heap);
        if !went {
            let space = &mut heap.side_heap(self.side).space;
            let placed = space.add_page(page.at, page.size, page.page, Streams::ALL);
            debug_assert!(placed.is_ok(), "another segment is there: {placed:?}");
        }
        heap.going = heap.going.saturating_sub(page.size);
        heap.note_held();
    }

    /// Takes the old mapping of a moved page away: nothing may use it any more.
    pub(in crate::pool) fn clear(
        &mut self,
        heap: &Mutex<Heap>,
        alias: Alias,
        log: &CallLog,
    ) -> Result<()> {
        self.unmap(span_of(alias.at, alias.size), log)?;
        let cleared = lock(heap).side_heap(self.side).space.clear_alias(alias.at);
        debug_assert!(cleared.is_ok(), "an alias that is none: {cleared:?}");
        Ok(())
    }

    /// Takes free pages out of the address space, until `spare` bytes are: nobody can have them any more.
    pub(in crate::pool) fn lift(&self, heap: &mut Heap, spare: Bytes) -> Vec<Lifted> {
        let side_heap = heap.side_heap(self.side);
        let mut pages: Vec<(Offset, Bytes)> = side_heap.space.free_pages().collect();
        // From the end: what is left stays together.
        pages.sort_unstable_by_key(|&(at, _)| core::cmp::Reverse(at));
        let (mut lifted, mut bytes) = (Vec::new(), Bytes::ZERO);
        for (at, size) in pages {
            if bytes >= spare {
                break;
            }
            // A page larger than what is to go stays: less would be kept than was asked.
            if bytes.saturating_add(size) > spare {
                continue;
            }
            if let Ok((page, size, streams)) = side_heap.space.remove_page(at) {
                lifted.push(Lifted { at, page, size, streams });
                bytes = bytes.saturating_add(size);
            }
        }
        heap.going = heap.going.saturating_add(bytes);
        lifted
    }

    /// Puts a page that the device would not take back in the address space. All work that used it is over, so it
    /// is everybody's, whatever has become of the streams it was free on.
    fn put_back(&self, heap: &Mutex<Heap>, page: Outgoing) {
        let mut heap = lock(heap);
        let Outgoing { at, page, size } = page;
        heap.going = heap.going.saturating_sub(size);
        let streams = Streams::ALL;
        put_back(&mut heap.side_heap(self.side).space, Lifted { at, page, size, streams });
    }

    /// Gives a lifted page to the device, once all work that used it is over; puts it back on the
    /// space where the device refuses.
    pub(in crate::pool) fn release(
        &mut self,
        heap: &Mutex<Heap>,
        page: Outgoing,
        log: &CallLog,
    ) -> Result<()> {
        let span = span_of(page.at, page.size);
        let tidied = self.tidy(heap, log);
        // A page that is mapped elsewhere too would not come back. What else could not be tidied is
        // nothing to this one.
        let alone = if self.is_mapped(PageHandle(page.page)) { tidied } else { Ok(()) };
        if let Err(error) = alone.and_then(|()| self.unmap(span, log)) {
            self.put_back(heap, page);
            return Err(error);
        }
        let cleared = lock(heap).side_heap(self.side).space.clear_alias(page.at);
        debug_assert!(cleared.is_ok(), "a page that was not lifted: {cleared:?}");
        let page = PageHandle(page.page);
        // It is counted among what is going already.
        self.orphans.push((page, span.size()));
        let tidied = self.tidy(heap, log);
        // What became of this one is told, whatever became of others.
        if self.orphans.iter().any(|&(orphan, _)| orphan == page) { tidied } else { Ok(()) }
    }

    pub(in crate::pool) fn unmap(&self, span: Span, log: &CallLog) -> Result<()> {
        let memory = self.memory()?;
        // SAFETY: whoever calls this has seen the end of all work that used what is mapped there,
        // and no block lies in it.
        let unmap = || unsafe { memory.unmap(span) };
        Ok(log.make(Call::Unmap, span.size(), unmap)?)
    }

    /// Gives everything back. Blocks that are still live lose their memory. All work is over; a drop
    /// has nobody to tell of errors.
    pub(in crate::pool) fn tear_down(&mut self, side_heap: &SideHeap) {
        for (at, page, size) in side_heap.space.pages() {
            let span = span_of(at, size);
            match self.device.virtual_memory() {
                Some(memory) if self.maps_pages => {
                    // SAFETY: the pool synchronised the device before, and whoever drops a pool has
                    // no more use for its blocks.
                    let _ = twice(|| unsafe { memory.unmap(span) });
                    let _ = twice(|| memory.release_page(PageHandle(page)));
                }
                _ => {
                    // SAFETY: likewise.
                    let _ = twice(|| unsafe { self.device.free(span.start()) });
                }
            }
        }
        for &(start, _) in &self.strays {
            // SAFETY: nobody was ever to use it.
            let _ = twice(|| unsafe { self.device.free(start) });
        }
        let Some(memory) = self.device.virtual_memory() else { return };
        for (alias, _) in &self.stranded {
            // SAFETY: nobody was ever to use it.
            let _ = twice(|| unsafe { memory.unmap(span_of(alias.at, alias.size)) });
        }
        for &(page, _) in &self.orphans {
            let _ = twice(|| memory.release_page(page));
        }
        for &region in &self.regions {
            // SAFETY: likewise; aliases were cleared by the pool.
            let _ = twice(|| unsafe { memory.release_region(region) });
        }
    }
}

/// Counts bytes that are out of the address space and not yet the device's.
fn count_going(heap: &Mutex<Heap>, size: Bytes) {
    let mut heap = lock(heap);
    heap.going = heap.going.saturating_add(size);
    heap.note_held();
}
