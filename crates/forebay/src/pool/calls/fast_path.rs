//! The fast path: the calling thread's own magazines, with no lock, no driver call and no heap allocation.

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
    /// Rounds a request in a few instructions.
    #[inline(always)]
    pub(in crate::pool) fn round_fast(&self, requested: Bytes) -> Option<Bytes> {
        if !self.exact {
            return self.round_by_class(requested);
        }
        // Zero and overflow round to sizes that no magazine has.
        Some(Bytes::new(requested.get().wrapping_add(511) & !511))
    }

    #[cold]
    #[inline(never)]
    fn round_by_class(&self, requested: Bytes) -> Option<Bytes> {
        self.round(requested)
    }

    /// This thread's gate of this pool, if it is one of the two that the thread cached last.
    #[inline(always)]
    fn remembered_gate(&self) -> Option<&Gate<ThreadCaches>> {
        self.remembered_as(self.fast_epoch.load(Ordering::Relaxed))
    }

    /// The same, cached under `epoch`.
    #[inline(always)]
    pub(in crate::pool) fn remembered_as(&self, epoch: u64) -> Option<&Gate<ThreadCaches>> {
        let place = thread_slot::cached_pool(epoch)?;
        // SAFETY: the thread cached the address under an epoch of this pool, which no other pool ever has, so it is a gate
        // of this pool. `Gates` never moves a gate while the pool lives.
        Some(unsafe { place.cast::<Gate<ThreadCaches>>().as_ref() })
    }

    /// This thread's gate, created if it has none; `None` if no thread slots are left.
    #[inline]
    pub(in crate::pool) fn own_gate(&self) -> Option<OwnGate<'_>> {
        let epoch = self.fast_epoch.load(Ordering::Relaxed);
        let gate = match self.remembered_as(epoch) {
            Some(gate) => gate,
            None => self.find_gate(epoch)?,
        };
        Some(OwnGate { gate, shared: self })
    }

    /// This thread's gate, created if it has none. The thread caches it under `epoch`, which is the fast epoch or the
    /// record epoch.
    #[cold]
    #[inline(never)]
    pub(in crate::pool) fn find_gate(&self, epoch: u64) -> Option<&Gate<ThreadCaches>> {
        let gate: &Gate<ThreadCaches> =
            self.thread_caches.get_or_make(thread_slot::current()?, ThreadCaches::default)?;
        if epoch != SLOW_PATH {
            thread_slot::cache_pool(epoch, NonNull::from(gate).cast());
        }
        Some(gate)
    }

    /// Runs `work` with this thread's caches, created if it has none; `None` if no thread slots are left.
    #[inline]
    pub(in crate::pool) fn with_own_caches<R>(
        &self,
        work: impl FnMut(&mut ThreadCaches) -> R,
    ) -> Option<R> {
        Some(self.own_gate()?.enter(work))
    }

    /// Allocates from this thread's magazine for `stream`.
    #[inline(always)]
    pub(in crate::pool) fn allocate_cached<const COUNTED: bool>(
        &self,
        requested: Bytes,
        stream: StreamHandle,
        tag: Tag,
    ) -> Option<Block> {
        let size = self.round_fast(requested)?;
        self.allocate_rounded::<COUNTED, false>(requested, size, stream, tag)
    }

    /// As [`allocate_cached`](Self::allocate_cached), with the caller as the owner of the block.
    #[inline(always)]
    pub(in crate::pool) fn allocate_cached_owned(
        &self,
        requested: Bytes,
        stream: StreamHandle,
    ) -> Option<Block> {
        let size = self.round_fast(requested)?;
        self.allocate_rounded::<true, true>(requested, size, stream, Tag::NONE)
    }

    /// As [`allocate_cached`](Self::allocate_cached), for what needs no call of a function: a small block of a size
    /// that rounds in place. With `OWNED` the caller owns it.
    #[inline(always)]
    pub(in crate::pool) fn allocate_small<const OWNED: bool>(
        &self,
        requested: Bytes,
        stream: StreamHandle,
    ) -> Option<Block> {
        if !self.exact {
            return None;
        }
        let size = Bytes::new(requested.get().wrapping_add(511) & !511);
        if size.get() >> UNIT_SHIFT > SMALL_UNITS {
            return None;
        }
        self.allocate_rounded::<true, OWNED>(requested, size, stream, Tag::NONE)
    }

    #[inline(always)]
    fn allocate_rounded<const COUNTED: bool, const OWNED: bool>(
        &self,
        requested: Bytes,
        size: Bytes,
        stream: StreamHandle,
        tag: Tag,
    ) -> Option<Block> {
        let gate = self.remembered_gate()?;
        // SAFETY: the gate belongs to this thread by its thread slot, and nothing up to `leave` enters a gate.
        let mut passed = unsafe { gate.pass() }?;
        let block = match passed.data().front(stream) {
            Some(cache) => self.take_cached_for::<COUNTED, OWNED>(cache, requested, size, tag),
            None => None,
        };
        passed.leave();
        block
    }

    /// Allocates from a magazine, under the thread's tag.
    #[inline(always)]
    pub(in crate::pool) fn take_cached<const COUNTED: bool>(
        &self,
        cache: &mut ThreadCache,
        requested: Bytes,
        size: Bytes,
    ) -> Option<Block> {
        self.take_cached_for::<COUNTED, false>(cache, requested, size, Tag::NONE)
    }

    /// Allocates from a magazine, under `tag` unless the thread has entered one.
    #[inline(always)]
    fn take_cached_for<const COUNTED: bool, const OWNED: bool>(
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
        // SAFETY: the slot was found in this pool's map, which lives as long as the pool.
        let slot = unsafe { slot.get() };
        let generation = if OWNED {
            slot.mark_owned_again(size, tagged(requested, tag))
        } else {
            slot.mark_live_again(size, tagged(requested, tag))
        };
        Some(Block { address, size, pool: self.id, generation })
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
    pub(in crate::pool) fn is_last_large(&self, address: Address) -> bool {
        self.last_large.load(Ordering::Relaxed) == address.get()
    }

    /// Frees a block into this thread's magazine for `stream`, if it is live and plain, agrees with `claimed`, and the
    /// magazine has room. Otherwise changes nothing and returns `false`.
    #[inline(always)]
    pub(in crate::pool) fn free_cached<const COUNTED: bool>(
        &self,
        address: Address,
        stream: StreamHandle,
        claimed: ClaimedAs,
    ) -> bool {
        self.free_plain::<COUNTED, true>(address, stream, claimed)
    }

    /// As [`free_cached`](Self::free_cached), for what needs no call of a function: a small block.
    #[inline(always)]
    pub(in crate::pool) fn free_small(
        &self,
        address: Address,
        stream: StreamHandle,
        claimed: ClaimedAs,
    ) -> bool {
        self.free_plain::<true, false>(address, stream, claimed)
    }

    #[inline(always)]
    fn free_plain<const COUNTED: bool, const LARGE: bool>(
        &self,
        address: Address,
        stream: StreamHandle,
        claimed: ClaimedAs,
    ) -> bool {
        let Some(gate) = self.remembered_gate() else { return false };
        let Some(slot) = self.map.slot(address) else { return false };
        let Some(known) = claimed.plain(slot, address) else { return false };
        if !LARGE && known.units() > SMALL_UNITS {
            return false;
        }
        // SAFETY: the gate belongs to this thread by its thread slot, and nothing up to `leave` enters a gate.
        let Some(mut passed) = (unsafe { gate.pass() }) else { return false };
        let kept = match passed.data().front(stream) {
            Some(cache) => self.keep_cached::<COUNTED, LARGE>(cache, slot, known, address, claimed),
            None => false,
        };
        passed.leave();
        kept
    }

    /// Without `LARGE` the block is known to be small.
    #[inline(always)]
    pub(in crate::pool) fn keep_cached<const COUNTED: bool, const LARGE: bool>(
        &self,
        cache: &mut ThreadCache,
        slot: &Slot,
        known: BlockState,
        address: Address,
        claimed: ClaimedAs,
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

/// This thread's gate of a pool.
#[derive(Clone, Copy)]
pub(in crate::pool) struct OwnGate<'a> {
    gate: &'a Gate<ThreadCaches>,
    shared: &'a Shared,
}

impl OwnGate<'_> {
    /// Runs `work` inside the gate. `work` must not enter a gate itself.
    #[inline(always)]
    pub(in crate::pool) fn enter<R>(self, mut work: impl FnMut(&mut ThreadCaches) -> R) -> R {
        // SAFETY: the gate belongs to this thread by its thread slot, and `work` enters no gate.
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
            // SAFETY: as in `enter`.
            if let Some(done) = unsafe { self.gate.enter(&mut *work) } {
                return done;
            }
            self.shared.thread_caches.wait();
        }
    }

    /// Does what a visitor asked for when it passed over this thread: flushes the magazines and applies their bound. If
    /// the heap is locked, perhaps by this thread, the request stays for the next entry.
    fn serve_flush_request(self) {
        let Some(mut heap) = try_lock(&self.shared.heap) else { return };
        let mut returns = Vec::new();
        let drain = |caches: &mut ThreadCaches| {
            self.gate.take_request();
            caches.set_bound(self.shared.bound_now());
            caches.drain(&mut returns);
            // Inside the gate, as in `free_to_heap`: no stream is forgotten before its blocks are in the heap.
            heap.free_all(core::mem::take(&mut returns));
        };
        // SAFETY: as in `enter`.
        unsafe { self.gate.enter(drain) };
    }
}
