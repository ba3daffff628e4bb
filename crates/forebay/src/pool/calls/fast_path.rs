//! The fast path: a thread's own magazines, with no lock, no driver call and no allocation.

use core::ptr::NonNull;
use std::sync::atomic::Ordering;

use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use crate::pool::front::cached_block::CachedBlock;
use crate::pool::front::claimed_as::ClaimedAs;
use crate::pool::front::thread_cache::{ThreadCache, ThreadCaches};
use crate::pool::shared::{SLOW_PATH, Shared};
use crate::sync::gate::Gate;
use crate::sync::map::{BlockState, SMALL_UNITS, Slot, SlotRef, UNIT_SHIFT, is_wide, tagged};
use crate::sync::thread_slot;
use crate::sync::tracked::try_lock;
use crate::{Block, Tag};

impl Shared {
    /// The same where it takes no more than a few instructions.
    #[inline(always)]
    fn round_fast(&self, requested: Bytes) -> Option<Bytes> {
        if !self.exact {
            return self.round_by_class(requested);
        }
        // Nothing, and what passes the end, come to sizes that no magazine has.
        Some(Bytes::new(requested.get().wrapping_add(511) & !511))
    }

    #[cold]
    #[inline(never)]
    fn round_by_class(&self, requested: Bytes) -> Option<Bytes> {
        self.round(requested)
    }

    /// This thread's gate, where it was the last that the thread passed.
    #[inline(always)]
    fn remembered_gate(&self) -> Option<&Gate<ThreadCaches>> {
        let place = thread_slot::cached_pool(self.fast_epoch.load(Ordering::Relaxed))?;
        // SAFETY: remembered under this pool's epoch, which no other pool ever has, so it is a gate of
        // this pool; gates stay where they are as long as the pool.
        Some(unsafe { place.cast::<Gate<ThreadCaches>>().as_ref() })
    }

    /// This thread's gate, made where it has none; `None` where there are no thread slots left.
    #[inline]
    pub(in crate::pool) fn own_gate(&self) -> Option<OwnGate<'_>> {
        let gate = match self.remembered_gate() {
            Some(gate) => gate,
            None => self.find_gate()?,
        };
        Some(OwnGate { gate, shared: self })
    }

    fn find_gate(&self) -> Option<&Gate<ThreadCaches>> {
        let gate: &Gate<ThreadCaches> =
            self.thread_caches.get_or_make(thread_slot::current()?, ThreadCaches::default)?;
        let epoch = self.fast_epoch.load(Ordering::Relaxed);
        if epoch != SLOW_PATH {
            thread_slot::cache_pool(epoch, NonNull::from(gate).cast());
        }
        Some(gate)
    }

    /// Does `work` with this thread's caches, made where it has none; `None` where there are no
    /// thread slots left.
    #[inline]
    pub(in crate::pool) fn with_own_caches<R>(
        &self,
        work: impl FnMut(&mut ThreadCaches) -> R,
    ) -> Option<R> {
        Some(self.own_gate()?.enter(work))
    }

    /// A block from the magazine of this thread and stream.
    #[inline(always)]
    pub(in crate::pool) fn allocate_cached<const COUNTED: bool>(
        &self,
        requested: Bytes,
        stream: StreamHandle,
        tag: Tag,
    ) -> Option<Block> {
        let size = self.round_fast(requested)?;
        let gate = self.remembered_gate()?;
        // SAFETY: the gate is this thread's, and nothing in here comes back to a gate.
        let mut passed = unsafe { gate.pass() }?;
        let block = match passed.data().front(stream) {
            Some(cache) => self.take_cached_for::<COUNTED>(cache, requested, size, tag),
            None => None,
        };
        passed.leave();
        block
    }

    /// A block from a magazine.
    #[inline(always)]
    pub(in crate::pool) fn take_cached<const COUNTED: bool>(
        &self,
        cache: &mut ThreadCache,
        requested: Bytes,
        size: Bytes,
    ) -> Option<Block> {
        self.take_cached_for::<COUNTED>(cache, requested, size, Tag::NONE)
    }

    /// The same, under `tag` where the thread allocates under none.
    #[inline(always)]
    fn take_cached_for<const COUNTED: bool>(
        &self,
        cache: &mut ThreadCache,
        requested: Bytes,
        size: Bytes,
        tag: Tag,
    ) -> Option<Block> {
        let units = size.get() >> UNIT_SHIFT;
        let CachedBlock { address, slot } = if units > SMALL_UNITS {
            self.take_large(cache, units, size.saturating_sub(requested))?
        } else {
            cache.magazine.take_small::<COUNTED>(units)?
        };
        let tag = tag.unless_tagged();
        if COUNTED {
            cache.counts.count_live(units, requested.get(), tag);
        }
        // SAFETY: the slot is of this pool's map.
        let generation = unsafe { slot.get() }.mark_live_again(size, tagged(requested, tag));
        Some(Block { address, size, pool: self.id, generation })
    }

    /// The large block of a magazine, where the heap would give the same.
    #[inline(never)]
    fn take_large(&self, cache: &mut ThreadCache, units: u64, added: Bytes) -> Option<CachedBlock> {
        if is_wide(added) {
            return None;
        }
        cache.magazine.take_large_if(units, |kept| {
            // SAFETY: the slot is of this pool's map.
            self.is_last_large(kept.address) && !unsafe { kept.slot.get() }.is_wide()
        })
    }

    /// Whether the heap would give the large block at `address` again for a request of its size.
    #[inline(always)]
    pub(in crate::pool) fn is_last_large(&self, address: Address) -> bool {
        self.last_large.load(Ordering::Relaxed) == address.get()
    }

    /// Frees a block into the magazine of this thread and stream, if it is live and plain, `allowed`,
    /// and there is room. Nothing is changed where not.
    #[inline(always)]
    pub(in crate::pool) fn free_cached<const COUNTED: bool>(
        &self,
        address: Address,
        stream: StreamHandle,
        claimed: ClaimedAs,
    ) -> bool {
        let Some(gate) = self.remembered_gate() else { return false };
        let Some(slot) = self.map.slot(address) else { return false };
        let Some(known) = claimed.plain(slot, address) else { return false };
        // SAFETY: the gate is this thread's, and nothing in here comes back to a gate.
        let Some(mut passed) = (unsafe { gate.pass() }) else { return false };
        let kept = match passed.data().front(stream) {
            Some(cache) => self.keep_cached::<COUNTED>(cache, slot, known, address, claimed),
            None => false,
        };
        passed.leave();
        kept
    }

    #[inline(always)]
    fn keep_cached<const COUNTED: bool>(
        &self,
        cache: &mut ThreadCache,
        slot: &Slot,
        known: BlockState,
        address: Address,
        claimed: ClaimedAs,
    ) -> bool {
        let block = CachedBlock { address, slot: SlotRef::new(slot) };
        let units = known.units();
        let (kept, requested) = if units > SMALL_UNITS {
            let claim = || {
                claimed.matches_requested(known, BlockState::requested) && slot.claim_plain(known)
            };
            // Any other that is large goes to the heap.
            let kept =
                self.is_last_large(address) && cache.magazine.keep_large_if(units, block, claim);
            (kept, known.requested())
        } else {
            let claim = || {
                claimed.matches_requested(known, BlockState::requested_small)
                    && slot.claim_plain(known)
            };
            let kept = cache.magazine.keep_small_if::<COUNTED>(units, block, claim);
            (kept, known.requested_small())
        };
        if COUNTED && kept {
            cache.counts.uncount_live(units, requested, known.tag());
        }
        kept
    }
}

/// This thread's gate of a pool.
#[derive(Clone, Copy)]
pub(in crate::pool) struct OwnGate<'a> {
    gate: &'a Gate<ThreadCaches>,
    shared: &'a Shared,
}

impl OwnGate<'_> {
    /// Does `work`, the pool's own, which comes back to no gate, with what is behind it.
    #[inline(always)]
    pub(in crate::pool) fn enter<R>(self, mut work: impl FnMut(&mut ThreadCaches) -> R) -> R {
        // SAFETY: the gate is this thread's by its thread slot, and `work` comes back to no gate.
        if let Some(mut passed) = unsafe { self.gate.pass() } {
            return work(passed.data());
        }
        self.wait_and_enter(&mut work)
    }

    #[cold]
    #[inline(never)]
    fn wait_and_enter<R>(self, work: &mut dyn FnMut(&mut ThreadCaches) -> R) -> R {
        loop {
            if self.gate.is_asked() {
                self.serve_flush_request();
            }
            // SAFETY: as above.
            if let Some(done) = unsafe { self.gate.enter(&mut *work) } {
                return done;
            }
            self.shared.thread_caches.wait();
        }
    }

    /// Does what a visitor that passed this thread over would have done: gives the heap what is in the
    /// magazines, and fits their bound. Where the heap is locked, perhaps by this thread, the request
    /// stays for the next entry.
    fn serve_flush_request(self) {
        let Some(mut heap) = try_lock(&self.shared.heap) else { return };
        let mut returns = Vec::new();
        let drain = |caches: &mut ThreadCaches| {
            self.gate.take_request();
            caches.set_bound(self.shared.bound_now());
            caches.drain(&mut returns);
            // Inside, as in `free_to_heap`: none of the streams is forgotten before its blocks are here.
            heap.free_all(core::mem::take(&mut returns));
        };
        // SAFETY: as in `enter`.
        unsafe { self.gate.enter(drain) };
    }
}
