//! Hits: the calling thread's own magazine for the stream that it used last. No lock, no driver call, no allocation.
//!
//! If the pool records events and checks nothing else, a hit keeps its event in a buffer of the thread. That takes at most
//! 2.5 times the instructions (`cargo xtask instructions`) and less than twice the time.

use core::ptr::NonNull;
use std::sync::atomic::Ordering;

use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use super::claimed::FreeClaim;
use super::thread_cache::{ThreadCache, ThreadCaches};
use super::{Front, NO_HITS};
use crate::pool::common::event::{History, RawEvent};
use crate::pool::common::free_block::CachedBlock;
use crate::report::{EventAction, Stack};
use crate::sync::gate::Gate;
use crate::sync::map::{BlockState, SMALL_UNITS, Slot, SlotRef, UNIT_SHIFT, is_wide, tagged};
use crate::sync::thread_slot;
use crate::{Block, Tag};

/// # Hits
impl Front {
    /// Allocates `size` bytes, rounded up from `requested`, under `tag` unless the thread has entered one. With `OWNED`
    /// the caller owns the block. `COUNTED` is false only where the cost of counting is measured.
    #[inline(always)]
    pub(in crate::pool) fn take<const COUNTED: bool, const OWNED: bool>(
        &self,
        requested: Bytes,
        size: Bytes,
        stream: StreamHandle,
        tag: Tag,
    ) -> Option<Block> {
        let gate = self.remembered_gate(self.epoch.load(Ordering::Relaxed))?;
        // SAFETY: the gate belongs to this thread by its thread slot, and nothing up to `leave` enters a gate.
        let mut passed = unsafe { gate.pass() }?;
        let block = match passed.data().front(stream) {
            Some(cache) => self.take_from::<COUNTED, OWNED>(cache, requested, size, tag),
            None => None,
        };
        passed.leave();
        block
    }

    /// Like [`take`](Self::take), and records it; `None` if the pool does more than record.
    #[inline(always)]
    pub(in crate::pool) fn take_recorded(
        &self,
        history: &History,
        requested: Bytes,
        size: Bytes,
        stream: StreamHandle,
    ) -> Option<Block> {
        self.recorded(history, |caches| {
            let cache = caches.front(stream)?;
            let block = self.take_from::<true, false>(cache, requested, size, Tag::NONE)?;
            let (action, tag, stack) = (EventAction::Allocate, Tag::current(), Stack::NONE);
            let Block { address, generation, .. } = block;
            let event = RawEvent { action, address, generation, requested, stream, tag, stack };
            Some((block, event))
        })
    }

    /// Like [`take`](Self::take), for a small block from any magazine of this thread, its reserve included.
    #[inline]
    pub(in crate::pool) fn take_any(
        &self,
        requested: Bytes,
        size: Bytes,
        stream: StreamHandle,
    ) -> Option<Block> {
        let units = size.get() >> UNIT_SHIFT;
        if units > SMALL_UNITS {
            return None;
        }
        let tag = Tag::NONE.unless_tagged();
        // The block is returned in registers, and made live outside the gate.
        let taken = self.own_gate()?.enter(|caches| {
            let cache = caches.of(stream)?;
            let taken =
                cache.magazine.refill(units).then(|| cache.magazine.take_small::<true>(units));
            taken.flatten().inspect(|_| cache.counts.count_live(units, requested.get(), tag))
        })?;
        Some(self.revive::<false>(taken, requested, size, tag))
    }

    /// Frees the block at `address`, if it is live and plain, agrees with `claimed`, and the magazine has room. Otherwise
    /// changes nothing and returns `false`. Without `LARGE` it takes small blocks alone, which needs no call of a function.
    #[inline(always)]
    pub(in crate::pool) fn keep<const COUNTED: bool, const LARGE: bool>(
        &self,
        address: Address,
        stream: StreamHandle,
        claimed: FreeClaim,
    ) -> bool {
        let Some(gate) = self.remembered_gate(self.epoch.load(Ordering::Relaxed)) else {
            return false;
        };
        let Some(slot) = self.map.slot(address) else { return false };
        let Some(known) = claimed.plain(slot, address) else { return false };
        if !LARGE && known.units() > SMALL_UNITS {
            return false;
        }
        // SAFETY: the gate belongs to this thread by its thread slot, and nothing up to `leave` enters a gate.
        let Some(mut passed) = (unsafe { gate.pass() }) else { return false };
        let kept = match passed.data().front(stream) {
            Some(cache) => self.keep_in::<COUNTED, LARGE>(cache, slot, known, address, claimed),
            None => false,
        };
        passed.leave();
        kept
    }

    /// Like [`keep`](Self::keep), and records it; `false` if the pool does more than record.
    #[inline(always)]
    pub(in crate::pool) fn keep_recorded(
        &self,
        history: &History,
        address: Address,
        stream: StreamHandle,
        claimed: FreeClaim,
    ) -> bool {
        let kept = self.recorded(history, |caches| {
            let slot = self.map.slot(address)?;
            let known = claimed.plain(slot, address)?;
            let cache = caches.front(stream)?;
            if !self.keep_in::<true, true>(cache, slot, known, address, claimed) {
                return None;
            }
            let (requested, tag) = (Bytes::new(known.requested()), Tag::of_known(known));
            let (action, generation, stack) = (EventAction::Free, known.generation(), Stack::NONE);
            Some(((), RawEvent { action, address, generation, requested, stream, tag, stack }))
        });
        kept.is_some()
    }

    /// Runs `work` behind this thread's gate, where no other thread gets the block, and keeps the event that it returns.
    /// `None` if the pool does more than record, or there is no room for an event: then the call takes the slow path.
    #[inline(always)]
    fn recorded<R>(
        &self,
        history: &History,
        work: impl FnOnce(&mut ThreadCaches) -> Option<(R, RawEvent)>,
    ) -> Option<R> {
        let epoch = self.record_epoch.load(Ordering::Relaxed);
        if epoch == NO_HITS {
            return None;
        }
        let gate = self.remembered_gate(epoch).or_else(|| self.find_gate(epoch))?;
        // SAFETY: the gate belongs to this thread by its thread slot, and nothing up to `leave` enters a gate.
        let mut passed = unsafe { gate.pass() }?;
        let caches = passed.data();
        if !caches.events.as_mut().is_some_and(|events| events.has_room()) {
            passed.leave();
            self.hand_over_events(history);
            return None;
        }
        let done = work(caches);
        if let (Some((_, event)), Some(events)) = (&done, &mut caches.events) {
            events.push(*event);
        }
        passed.leave();
        done.map(|(done, _)| done)
    }

    /// This thread's gate, if it is one of the two that the thread cached last, and under `epoch`.
    #[inline(always)]
    pub(super) fn remembered_gate(&self, epoch: u64) -> Option<&Gate<ThreadCaches>> {
        let place = thread_slot::cached_pool(epoch)?;
        // SAFETY: the thread cached the address under an epoch of this pool, which no other pool ever has, so it is a gate
        // of this pool. `Gates` never moves a gate while the pool lives.
        Some(unsafe { place.cast::<Gate<ThreadCaches>>().as_ref() })
    }

    /// This thread's gate, created if it has none; `None` if no thread slots are left. The thread caches it under `epoch`.
    #[cold]
    #[inline(never)]
    pub(super) fn find_gate(&self, epoch: u64) -> Option<&Gate<ThreadCaches>> {
        let gate: &Gate<ThreadCaches> =
            self.all.0.get_or_make(thread_slot::current()?, ThreadCaches::default)?;
        if epoch != NO_HITS {
            thread_slot::cache_pool(epoch, NonNull::from(gate).cast());
        }
        Some(gate)
    }

    /// Moves this thread's events to the history of the pool: one call in a thousand does.
    #[cold]
    #[inline(never)]
    fn hand_over_events(&self, history: &History) {
        let begin = |caches: &mut ThreadCaches| caches.events.get_or_insert_default().begin_batch();
        if let Some(events) = self.with_own(begin) {
            history.add(events);
        }
    }

    /// Allocates from a magazine, under `tag` unless the thread has entered one.
    #[inline(always)]
    fn take_from<const COUNTED: bool, const OWNED: bool>(
        &self,
        cache: &mut ThreadCache,
        requested: Bytes,
        size: Bytes,
        tag: Tag,
    ) -> Option<Block> {
        let units = size.get() >> UNIT_SHIFT;
        let CachedBlock { address, slot } = if units > SMALL_UNITS {
            self.take_large::<COUNTED>(cache, size, requested)?
        } else {
            cache.magazine.take_small::<COUNTED>(units)?
        };
        let tag = tag.unless_tagged();
        if COUNTED {
            cache.counts.count_live(units, requested.get(), tag);
        }
        Some(self.revive::<OWNED>(CachedBlock { address, slot }, requested, size, tag))
    }

    /// Makes a cached block live again.
    #[inline(always)]
    fn revive<const OWNED: bool>(
        &self,
        CachedBlock { address, slot }: CachedBlock,
        requested: Bytes,
        size: Bytes,
        tag: u8,
    ) -> Block {
        // SAFETY: the slot was found in this pool's map, which lives as long as the pool.
        let slot = unsafe { slot.get() };
        let generation = if OWNED {
            slot.mark_owned_again(size, tagged(requested, tag))
        } else {
            slot.mark_live_again(size, tagged(requested, tag))
        };
        Block { address, size, pool: self.pool, generation }
    }

    /// Takes the large block of a magazine, if the heap would allocate the same one.
    #[inline(never)]
    fn take_large<const COUNTED: bool>(
        &self,
        cache: &mut ThreadCache,
        size: Bytes,
        requested: Bytes,
    ) -> Option<CachedBlock> {
        if is_wide(size.saturating_sub(requested)) {
            return None;
        }
        let taken = cache.magazine.take_large_if(size.get() >> UNIT_SHIFT, |cached| {
            // SAFETY: the slot was found in this pool's map, which lives as long as the pool.
            self.is_last_large(cached.address) && !unsafe { cached.slot.get() }.is_wide()
        })?;
        if COUNTED {
            cache.counts.count_large_request(requested.get());
        }
        Some(taken)
    }

    /// Whether the heap would allocate the large block at `address` again for a request of its size.
    #[inline(always)]
    pub(super) fn is_last_large(&self, address: Address) -> bool {
        self.last_large.load(Ordering::Relaxed) == address.get()
    }

    /// Claims and caches a block that was found plain. Without `LARGE` it is known to be small.
    #[inline(always)]
    fn keep_in<const COUNTED: bool, const LARGE: bool>(
        &self,
        cache: &mut ThreadCache,
        slot: &Slot,
        known: BlockState,
        address: Address,
        claimed: FreeClaim,
    ) -> bool {
        let block = CachedBlock { address, slot: SlotRef::new(slot) };
        let units = known.units();
        let (kept, requested) = if LARGE && units > SMALL_UNITS {
            let claim = || {
                claimed.matches_requested(known, BlockState::requested)
                    && claimed.claim(slot, known)
            };
            // Any other large block goes to the heap.
            let kept =
                self.is_last_large(address) && cache.magazine.keep_large_if(units, block, claim);
            if COUNTED && kept {
                cache.counts.uncount_large_request(known.requested());
            }
            (kept, known.requested())
        } else {
            let claim = || {
                claimed.matches_requested(known, BlockState::requested_small)
                    && claimed.claim(slot, known)
            };
            let kept = cache.magazine.keep_small_if(units, block, claim);
            (kept, known.requested_small())
        };
        if COUNTED && kept {
            cache.counts.uncount_live(units, requested, known.tag());
        }
        kept
    }
}
