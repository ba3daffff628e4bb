//! The middle way of a request: past the thread's magazine to a hole of the heap, without the driver.
//! What a program does whose sizes are many takes this way, so it passes the gate and the heap's lock
//! as seldom as can be; whatever it is not made for goes the long way.

use std::sync::atomic::Ordering;

use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use super::heap::{Piece, Return};
use super::map::{Known, SMALL_UNITS, Side, Slot, SlotRef, UNIT_SHIFT, tagged};
use super::shared::{NO_PASS, Shared};
use super::shelf::Kept;
use crate::Block;
use crate::sync::seat;

impl Shared {
    /// A block from this thread's magazine or from a hole of the heap. `None` where it takes more than
    /// that, with the large block of the magazine folded into the heap.
    pub(super) fn take_near(
        &self,
        requested: Bytes,
        size: Bytes,
        stream: StreamHandle,
    ) -> Option<Block> {
        let gate = self.own_gate()?;
        let side = Side::of(size);
        let mut large = None;
        let hit = gate.enter(|shelves| {
            let shelf = shelves.of(stream)?;
            let hit = self.take_from::<true>(shelf, requested, size);
            if hit.is_none() && side == Side::Large {
                // What it becomes with its neighbours may be the lower hole.
                shelf.magazine.drain_large(|kept, units| {
                    large = Some(Return::of(kept, units, stream));
                });
            }
            hit
        });
        if hit.is_some() {
            return hit;
        }
        if self.pass.load(Ordering::Relaxed) == NO_PASS {
            self.give_back_or_later(large.into_iter().collect());
            return None;
        }
        let address = {
            let mut heap = self.heap();
            let Some(lane) = heap.lanes.get(stream) else {
                drop(heap);
                self.give_back_or_later(large.into_iter().collect());
                return None;
            };
            if let Some(block) = large {
                heap.give(block.address, block.size, lane);
            }
            if heap.worth_waiting(side, size, lane) {
                return None;
            }
            let address = heap.take(Piece::plain(size), lane)?;
            heap.heap_hits += 1;
            address
        };
        let tag = seat::tag();
        let generation = self.map.slot(address)?.hand_out(address, size, tagged(requested, tag));
        let units = size.get() >> UNIT_SHIFT;
        self.count(stream, |counts| counts.allocated(units, requested.get(), tag));
        Some(Block { address, size, pool: self.id, generation })
    }

    /// Frees a live block into this thread's magazine or a hole of the heap. `false`, with nothing
    /// done, where it takes more than that.
    pub(super) fn give_near(
        &self,
        slot: &Slot,
        known: Known,
        address: Address,
        stream: StreamHandle,
    ) -> bool {
        if known.used_elsewhere() || self.pass.load(Ordering::Relaxed) == NO_PASS {
            return false;
        }
        if known.units() > SMALL_UNITS && !self.is_lone(address) {
            return self.give_large(slot, known, address, stream);
        }
        let Some(gate) = self.own_gate() else { return false };
        let mut spilled = Vec::new();
        let kept = gate.enter(|shelves| {
            let Some(shelf) = shelves.of(stream).filter(|_| self.magazine_units() > 0) else {
                return false;
            };
            if !slot.claim_plain(known) {
                return false;
            }
            let (units, requested, tag) = (known.units(), known.requested(), known.tag());
            let block = Kept { address, slot: SlotRef::new(slot) };
            let spill = |kept, units| spilled.push(Return::of(kept, units, stream));
            shelf.magazine.make_way(units, spill);
            if shelf.magazine.keep(units, block) {
                shelf.counts.back(units, requested, tag);
            } else {
                spilled.push(Return::of(block, units, stream));
                shelf.counts.freed(units, requested, tag);
            }
            true
        });
        if !spilled.is_empty() {
            self.give_back_or_later(spilled);
        }
        kept
    }

    /// Frees a large block into a hole of the heap.
    fn give_large(
        &self,
        slot: &Slot,
        known: Known,
        address: Address,
        stream: StreamHandle,
    ) -> bool {
        if !slot.claim_plain(known) {
            return false;
        }
        {
            let mut heap = self.heap();
            let Some(lane) = heap.lanes.get(stream) else {
                drop(heap);
                slot.unclaim(known);
                return false;
            };
            heap.give(address, known.size(), lane);
        }
        let (units, requested, tag) = (known.units(), known.requested(), known.tag());
        self.count(stream, |counts| counts.freed(units, requested, tag));
        true
    }
}
