//! Visits to every thread's caches, each behind its gate. A visitor shuts the owner out first.

use forebay_core::{Bytes, Span};
use forebay_hal::StreamHandle;

use super::thread_cache::ThreadCaches;
use crate::pool::common::event::ThreadEvents;
use crate::pool::common::free_block::FreedBlock;
use crate::pool::heap::Heap;
use crate::sync::gates::Gates;
use crate::sync::map::UNIT_SHIFT;

/// The caches of all threads.
#[derive(Debug)]
pub(in crate::pool) struct AllCaches(pub(super) Gates<ThreadCaches>);

impl AllCaches {
    /// Sets the most that each magazine holds, in units of 512 B. One above it shrinks at its next use.
    pub(super) fn set_bound(&self, units: u64) {
        self.0.change(|caches| {
            caches.set_bound(units);
            true
        });
    }

    /// Takes out all blocks. Does not wait: threads that are inside their gate flush at their next entry.
    pub(in crate::pool) fn flush(&self, returns: &mut Vec<FreedBlock>) {
        self.0.drain(|caches| caches.drain(returns));
    }

    /// Takes out the large blocks, in the same way.
    pub(in crate::pool) fn flush_large(&self, returns: &mut Vec<FreedBlock>) {
        self.0.change(|caches| caches.drain_large(returns));
    }

    /// Takes out all blocks, and waits for threads that are inside their gate: for callers that need all of them.
    pub(in crate::pool) fn flush_all(&self, returns: &mut Vec<FreedBlock>) {
        self.0.drain_all(|caches| caches.drain(returns));
    }

    /// Whether more than one thread uses the pool, or did.
    pub(in crate::pool) fn is_shared(&self) -> bool {
        self.0.is_shared()
    }

    /// Bytes of small blocks in magazines, without those of threads that are inside their gate.
    pub(in crate::pool) fn small_held(&self) -> Bytes {
        let mut units = 0_u64;
        self.0.measure(|caches| units = units.saturating_add(caches.small_held()));
        Bytes::new(units << UNIT_SHIFT)
    }

    /// Adds the addresses of all cached blocks.
    pub(in crate::pool) fn add_spans(&self, spans: &mut Vec<Span>) {
        self.0.read_filled(|caches| caches.add_spans(spans));
    }

    /// Moves the counts of threads that have used the pool since the last call to the heap.
    pub(in crate::pool) fn add_counts(&self, heap: &mut Heap) {
        self.0.count_changed(|caches| {
            let more = caches.take_counts(|stream, counts| heap.counts.add(stream, &counts));
            heap.cached = heap.cached.wrapping_add(more);
        });
    }

    /// Whether any thread has a cache for a stream.
    pub(in crate::pool) fn knows(&self, stream: StreamHandle) -> bool {
        let mut known = false;
        self.0.each(|caches| known |= caches.has(stream));
        known
    }

    /// Removes every cache of a stream. Its blocks and counts move to the heap.
    pub(in crate::pool) fn forget_stream(&self, heap: &mut Heap, stream: StreamHandle) {
        self.0.each(|caches| {
            while let Some(cache) = caches.remove(stream) {
                cache.empty_into(heap);
            }
        });
    }

    /// Waits until no thread is inside its gate.
    pub(in crate::pool) fn wait_for_hits(&self) {
        self.0.each(|_| ());
    }

    /// The events that threads have not handed over.
    pub(in crate::pool) fn events(&self) -> Vec<ThreadEvents> {
        let mut of_threads = Vec::new();
        self.0.each(|caches| of_threads.extend(caches.events.as_deref().cloned()));
        of_threads
    }

    /// Drops the events that threads have not handed over.
    pub(in crate::pool) fn drop_events(&self) {
        self.0.each(|caches| caches.events = None);
    }
}
