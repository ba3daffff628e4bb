//! The heap path: past the thread's magazine to a hole of the heap, without the driver. Programs with many block sizes
//! mostly take it, so it locks the heap once and enters the gate once under that lock. Everything else takes the slow
//! path.
//!
//! The heap is locked before the gate is entered, here and wherever both are: an owner waits for the heap only outside
//! its gate.

use std::sync::atomic::Ordering;

use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use crate::Block;
use crate::pool::calls::fast_path::OwnGate;
use crate::pool::front::cached_block::CachedBlock;
use crate::pool::front::claimed_as::ClaimedAs;
use crate::pool::shared::{SLOW_PATH, Shared};
use crate::sync::map::{BlockState, SMALL_UNITS, Side, SlotRef, UNIT_SHIFT, tagged};
use crate::sync::thread_slot;

impl Shared {
    /// Allocates from a hole, or from a magazine of this thread that was not used last. Returns `None` if that is not
    /// enough.
    #[inline]
    pub(in crate::pool) fn allocate_from_heap(
        &self,
        requested: Bytes,
        stream: StreamHandle,
    ) -> Option<Block> {
        if self.fast_epoch.load(Ordering::Relaxed) == SLOW_PATH {
            return None;
        }
        let size = self.round(requested)?;
        let side = Side::of(size);
        let gate = self.own_gate()?;
        if side == Side::Small {
            let hit = gate.enter(|caches| {
                let cache = caches.of(stream)?;
                let refilled = cache.magazine.refill(size.get() >> UNIT_SHIFT);
                refilled.then(|| self.take_cached::<true>(cache, requested, size))?
            });
            if hit.is_some() {
                return hit;
            }
        }
        let mut heap = self.heap();
        let slot_number = heap.slots.get(stream)?;
        gate.enter(|caches| {
            let cache = caches.of(stream)?;
            if side == Side::Large {
                // Merged with its neighbours it may be the lower hole. If it still is the best one, it is allocated
                // again.
                cache.magazine.drain_large(|cached, units| {
                    heap.free(cached.address, Bytes::new(units << UNIT_SHIFT), slot_number);
                });
            }
            if heap.worth_waiting(side, size, slot_number) {
                return None;
            }
            let address = heap.allocate_unaligned(side, size, slot_number)?;
            let Some(slot) = self.map.slot(address) else {
                // Cannot happen: the map has a slot for every address in the address spaces.
                heap.free(address, size, slot_number);
                return None;
            };
            heap.heap_hits += 1;
            let tag = thread_slot::tag();
            let generation = slot.mark_live(address, size, tagged(requested, tag));
            cache.counts.count_allocation(size.get() >> UNIT_SHIFT, requested.get(), tag);
            Some(Block { address, size, pool: self.id, generation })
        })
    }

    /// Frees the block at `address`, if it is live and agrees with `claimed`, into a hole of the heap, or into this
    /// thread's magazine after making room there. Returns `false`, with nothing changed, if that is not enough.
    #[inline]
    pub(in crate::pool) fn free_to_heap(
        &self,
        address: Address,
        stream: StreamHandle,
        claimed: ClaimedAs,
    ) -> bool {
        if self.fast_epoch.load(Ordering::Relaxed) == SLOW_PATH {
            return false;
        }
        // A free on a thread's own stream has to publish an event for other threads.
        if stream.is_per_thread() {
            return false;
        }
        let Some(slot) = self.map.slot(address) else { return false };
        let Some(known) = claimed.plain(slot, address) else { return false };
        if !claimed.matches(known) {
            return false;
        }
        let Some(gate) = self.own_gate() else { return false };
        let block = CachedBlock { address, slot: SlotRef::new(slot) };
        let large = known.units() > SMALL_UNITS && !self.is_last_large(address);
        let kept_whole = !large
            && gate.enter(|caches| {
                let Some(cache) = caches.of(stream) else { return false };
                let claim = || slot.claim_plain(known);
                let room = cache.magazine.move_to_reserve(known.units());
                let kept = room && cache.magazine.keep_if(known.units(), block, claim);
                if kept {
                    cache.counts.count_kept(known.units(), known.requested(), known.tag());
                }
                kept
            });
        kept_whole || self.free_locked(gate, block, known, stream, large)
    }

    /// Frees a block under the heap lock: into a hole, or into this thread's magazine, from which blocks in its way
    /// move to the heap.
    fn free_locked(
        &self,
        gate: OwnGate<'_>,
        block: CachedBlock,
        known: BlockState,
        stream: StreamHandle,
        large: bool,
    ) -> bool {
        let mut heap = self.heap();
        let Some(slot) = heap.slots.get(stream) else { return false };
        gate.enter(|caches| {
            let Some(cache) = caches.of(stream) else { return false };
            // SAFETY: the slot was found in this pool's map, which lives as long as the pool.
            if !unsafe { block.slot.get() }.claim_plain(known) {
                return false;
            }
            let (units, requested, tag) = (known.units(), known.requested(), known.tag());
            let mut free = |cached: CachedBlock, units| {
                heap.free(cached.address, Bytes::new(units << UNIT_SHIFT), slot);
            };
            if !large {
                cache.magazine.evict_for(units, &mut free);
                if cache.magazine.keep(units, block) {
                    cache.counts.count_kept(units, requested, tag);
                    return true;
                }
            }
            free(block, units);
            cache.counts.count_free(units, requested, tag);
            true
        })
    }
}
