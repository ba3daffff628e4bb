//! The middle way of a request: past the thread's magazine to a hole of the heap, without the driver.
//! What a program does whose sizes are many takes this way, so it passes the gate and the heap's lock
//! as seldom as can be; whatever it is not made for goes the long way.

use std::sync::atomic::Ordering;

use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use super::heap::{Piece, Return};
use super::map::{Known, SMALL_UNITS, Side, Slot, SlotRef};
use super::shared::{NO_PASS, Shared};
use super::shelf::Kept;
use crate::{Block, Request};

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
        let mut large = None;
        let hit = self.own_gate()?.enter(|shelves| {
            let shelf = shelves.of(stream)?;
            if side == Side::Small {
                return self.take_from::<true>(shelf, requested, size);
            }
            // What it becomes with its neighbours may be the lower hole; where it is the one that
            // would be given, it is given again.
            shelf.magazine.drain_large(|kept, units| {
                large = Some(Return::of(kept, units, stream));
            });
            None
        });
        if hit.is_some() {
            return hit;
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
        self.note_out(address, size, Request::new(requested, stream)).ok()
    }

    /// Frees the block at `address`, if it is live and `allowed`, into a hole of the heap or this
    /// thread's magazine, where that has to make way for it. `false`, with nothing done, where it takes
    /// more than that.
    #[inline]
    pub(super) fn give_near(
        &self,
        address: Address,
        stream: StreamHandle,
        allowed: impl FnOnce(Known) -> bool,
    ) -> bool {
        if self.pass.load(Ordering::Relaxed) == NO_PASS {
            return false;
        }
        let Some(slot) = self.map.slot(address) else { return false };
        let Some(known) = slot.plain(address).filter(|&known| allowed(known)) else { return false };
        if known.units() > SMALL_UNITS && !self.is_lone(address) {
            self.give_large(slot, known, address, stream)
        } else {
            self.keep_near(slot, known, address, stream)
        }
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
        self.count(stream, |counts| {
            counts.freed(known.units(), known.requested(), known.tag());
        });
        true
    }

    /// Frees a block into this thread's magazine, where there is one for the stream.
    fn keep_near(&self, slot: &Slot, known: Known, address: Address, stream: StreamHandle) -> bool {
        let Some(gate) = self.own_gate().filter(|_| self.magazine_units() > 0) else {
            return false;
        };
        let mut spilled = Vec::new();
        let kept = gate.enter(|shelves| {
            let Some(shelf) = shelves.of(stream) else { return false };
            if !slot.claim_plain(known) {
                return false;
            }
            let (units, requested, tag) = (known.units(), known.requested(), known.tag());
            let block = Kept { address, slot: SlotRef::new(slot) };
            if shelf.keep(units, block, &mut spilled) {
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
}
