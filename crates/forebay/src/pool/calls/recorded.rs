//! The fast path of a pool that records events and checks nothing else: as `fast_path.rs`, with the event kept in a
//! buffer of the thread. A pair takes less than twice the time, and at most 2.5 times the instructions (`cargo xtask
//! instructions`).
//!
//! The event is made inside the gate, where nobody else gets the block.

use std::sync::atomic::Ordering;

use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use crate::pool::common::event::RawEvent;
use crate::pool::front::claimed_as::ClaimedAs;
use crate::pool::front::thread_cache::ThreadCaches;
use crate::pool::shared::{SLOW_PATH, Shared};
use crate::report::{EventAction, Stack};
use crate::sync::gate::Gate;
use crate::sync::map::{BlockState, SMALL_UNITS, Slot};
use crate::{Block, Tag};

impl Shared {
    /// This thread's gate, if the pool records on the fast path.
    #[inline(always)]
    fn recorded_gate(&self) -> Option<&Gate<ThreadCaches>> {
        let epoch = self.record_epoch.load(Ordering::Relaxed);
        if epoch == SLOW_PATH {
            return None;
        }
        self.remembered_as(epoch).or_else(|| self.find_gate(epoch))
    }

    /// Allocates from this thread's magazine and records it; `None` if the pool does more than record, or the magazine
    /// has no such block.
    #[inline(always)]
    pub(in crate::pool) fn allocate_recorded(
        &self,
        requested: Bytes,
        stream: StreamHandle,
    ) -> Option<Block> {
        let gate = self.recorded_gate()?;
        let size = self.round_fast(requested)?;
        // SAFETY: the gate belongs to this thread by its thread slot, and nothing up to `leave` enters a gate.
        let mut passed = unsafe { gate.pass() }?;
        let caches = passed.data();
        if !caches.events.as_mut().is_some_and(|events| events.has_room()) {
            passed.leave();
            self.hand_over_events();
            return None;
        }
        let cache = caches.front(stream);
        let block = cache.and_then(|cache| self.take_cached::<true>(cache, requested, size));
        if let (Some(block), Some(events)) = (block, &mut caches.events) {
            let (action, tag, stack) = (EventAction::Allocate, Tag::current(), Stack::NONE);
            let Block { address, generation, .. } = block;
            events.push(RawEvent { action, address, generation, requested, stream, tag, stack });
        }
        passed.leave();
        block
    }

    /// Moves this thread's events to the history of the pool. The call that found them full takes the slow path, which
    /// one in a thousand may.
    #[cold]
    #[inline(never)]
    fn hand_over_events(&self) {
        let begin = |caches: &mut ThreadCaches| caches.events.get_or_insert_default().begin_batch();
        if let Some(events) = self.with_own_caches(begin) {
            self.history.add(events);
        }
    }

    /// Frees a block into this thread's magazine and records it; `false`, with nothing changed, if the pool does more
    /// than record, or the fast path would not take the block.
    #[inline(always)]
    pub(in crate::pool) fn free_recorded(
        &self,
        address: Address,
        stream: StreamHandle,
        claimed: ClaimedAs,
    ) -> bool {
        let Some(gate) = self.recorded_gate() else { return false };
        let Some(slot) = self.map.slot(address) else { return false };
        let Some(known) = claimed.plain(slot, address) else { return false };
        if known.units() > SMALL_UNITS {
            self.free_recorded_large(gate, slot, (address, known, claimed), stream)
        } else {
            self.free_recorded_to::<false>(gate, slot, (address, known, claimed), stream)
        }
    }

    #[inline(never)]
    fn free_recorded_large(
        &self,
        gate: &Gate<ThreadCaches>,
        slot: &Slot,
        block: (Address, BlockState, ClaimedAs),
        stream: StreamHandle,
    ) -> bool {
        self.free_recorded_to::<true>(gate, slot, block, stream)
    }

    /// Without `LARGE` the block is known to be small.
    #[inline(always)]
    fn free_recorded_to<const LARGE: bool>(
        &self,
        gate: &Gate<ThreadCaches>,
        slot: &Slot,
        (address, known, claimed): (Address, BlockState, ClaimedAs),
        stream: StreamHandle,
    ) -> bool {
        // SAFETY: the gate belongs to this thread by its thread slot, and nothing up to `leave` enters a gate.
        let Some(mut passed) = (unsafe { gate.pass() }) else { return false };
        let caches = passed.data();
        if !caches.events.as_mut().is_some_and(|events| events.has_room()) {
            passed.leave();
            self.hand_over_events();
            return false;
        }
        let is_kept = match caches.front(stream) {
            Some(cache) => self.keep_cached::<true, LARGE>(cache, slot, known, address, claimed),
            None => false,
        };
        if is_kept && let Some(events) = &mut caches.events {
            let requested = if LARGE { known.requested() } else { known.requested_small() };
            let (requested, tag) = (Bytes::new(requested), Tag::of_known(known));
            let (action, generation, stack) = (EventAction::Free, known.generation(), Stack::NONE);
            events.push(RawEvent { action, address, generation, requested, stream, tag, stack });
        }
        passed.leave();
        is_kept
    }

    /// Records an event of the slow path, and calls the observers.
    pub(in crate::pool) fn note(&self, event: RawEvent) {
        self.history.note(event, |push| {
            self.with_own_caches(|caches| push(caches.events.get_or_insert_default()))
        });
    }
}
