//! The middle way of a request: past the thread's magazine to a hole of the heap, without the driver.
//! What a program does whose sizes are many takes this way, so it locks the heap once, and passes the
//! gate once while it has it; whatever it is not made for goes the long way.
//!
//! Locked before the gate is passed, here as wherever both are: an owner waits for the heap outside
//! its gate alone.

use std::sync::atomic::Ordering;

use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use super::claimed_as::ClaimedAs;
use super::map::{Known, SMALL_UNITS, Side, SlotRef, UNIT_SHIFT, tagged};
use super::shared::{NO_PASS, OwnGate, Shared};
use super::shelf::Kept;
use crate::Block;
use crate::sync::seat;

impl Shared {
    /// A block from a hole of the heap, or from a magazine of this thread that was not used last. `None`
    /// where it takes more than that.
    #[inline]
    pub(super) fn take_near(&self, requested: Bytes, stream: StreamHandle) -> Option<Block> {
        if self.pass.load(Ordering::Relaxed) == NO_PASS {
            return None;
        }
        let size = self.round(requested)?;
        let side = Side::of(size);
        let gate = self.own_gate()?;
        if side == Side::Small {
            let hit = gate.enter(|shelves| {
                let shelf = shelves.of(stream)?;
                let at_hand = shelf.magazine.refill(size.get() >> UNIT_SHIFT);
                at_hand.then(|| self.take_from::<true>(shelf, requested, size))?
            });
            if hit.is_some() {
                return hit;
            }
        }
        let mut heap = self.heap();
        let slot_number = heap.slots.get(stream)?;
        gate.enter(|shelves| {
            let shelf = shelves.of(stream)?;
            if side == Side::Large {
                // What it becomes with its neighbours may be the lower hole; where it is the one that
                // would be given, it is given again.
                shelf.magazine.drain_large(|kept, units| {
                    heap.give(kept.address, Bytes::new(units << UNIT_SHIFT), slot_number);
                });
            }
            if heap.worth_waiting(side, size, slot_number) {
                return None;
            }
            let address = heap.take_plain(side, size, slot_number)?;
            let Some(slot) = self.map.slot(address) else {
                // There is one for every address on the lines.
                heap.give(address, size, slot_number);
                return None;
            };
            heap.heap_hits += 1;
            let tag = seat::tag();
            let generation = slot.hand_out(address, size, tagged(requested, tag));
            shelf.counts.allocated(size.get() >> UNIT_SHIFT, requested.get(), tag);
            Some(Block { address, size, pool: self.id, generation })
        })
    }

    /// Frees the block at `address`, if it is live and as it is said to be, into a hole of the heap or this
    /// thread's magazine, where that has to make way for it. `false`, with nothing done, where it takes
    /// more than that.
    #[inline]
    pub(super) fn give_near(
        &self,
        address: Address,
        stream: StreamHandle,
        said: ClaimedAs,
    ) -> bool {
        if self.pass.load(Ordering::Relaxed) == NO_PASS {
            return false;
        }
        // What is freed on a thread's own stream has to be made known to others.
        if stream.is_per_thread() {
            return false;
        }
        let Some(slot) = self.map.slot(address) else { return false };
        let Some(known) = said.plain(slot, address) else { return false };
        if !said.fits(known) {
            return false;
        }
        let Some(gate) = self.own_gate() else { return false };
        let block = Kept { address, slot: SlotRef::new(slot) };
        let large = known.units() > SMALL_UNITS && !self.is_lone(address);
        let kept_whole = !large
            && gate.enter(|shelves| {
                let Some(shelf) = shelves.of(stream) else { return false };
                let claim = || slot.claim_plain(known);
                let room = shelf.magazine.stow(known.units());
                let kept = room && shelf.magazine.keep_if(known.units(), block, claim);
                if kept {
                    shelf.counts.back(known.units(), known.requested(), known.tag());
                }
                kept
            });
        kept_whole || self.give_to_heap(gate, block, known, stream, large)
    }

    /// Frees a block into a hole of the heap, or into this thread's magazine, what stands in its way
    /// there going to the heap.
    fn give_to_heap(
        &self,
        gate: OwnGate<'_>,
        block: Kept,
        known: Known,
        stream: StreamHandle,
        large: bool,
    ) -> bool {
        let mut heap = self.heap();
        let Some(slot) = heap.slots.get(stream) else { return false };
        gate.enter(|shelves| {
            let Some(shelf) = shelves.of(stream) else { return false };
            // SAFETY: the slot is of this pool's map.
            if !unsafe { block.slot.get() }.claim_plain(known) {
                return false;
            }
            let (units, requested, tag) = (known.units(), known.requested(), known.tag());
            let mut give = |kept: Kept, units| {
                heap.give(kept.address, Bytes::new(units << UNIT_SHIFT), slot);
            };
            if !large {
                shelf.magazine.make_way(units, &mut give);
                if shelf.magazine.keep(units, block) {
                    shelf.counts.back(units, requested, tag);
                    return true;
                }
            }
            give(block, units);
            shelf.counts.freed(units, requested, tag);
            true
        })
    }
}
