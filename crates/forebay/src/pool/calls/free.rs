//! Freeing: one way down. A block is claimed before anything else, so that of two frees one is refused.
//!
//! ```text
//!   free    this thread's magazine for the stream used last         no lock
//!   claim   double free, wrong pool, wrong size: refused here
//!   put     any other magazine of this thread, or its reserve       no lock
//!           the heap: a hole, or room in the magazine               heap lock
//!           later, if other streams used the block                  backing lock
//! ```

use std::sync::Arc;

use forebay_core::Address;
use forebay_hal::StreamHandle;

use crate::pool::backing::Backing;
use crate::pool::backing::deferred::Task;
use crate::pool::calls::registry;
use crate::pool::common::free_block::{CachedBlock, FreedBlock};
use crate::pool::common::log::LoggedEvent;
use crate::pool::common::step::{self, Step};
use crate::pool::front::claimed_as::ClaimedAs;
use crate::pool::heap::Heap;
use crate::pool::heap::thread_ends::is_ending;
use crate::pool::shared::Shared;
use crate::sync::map::{BlockState, Slot, SlotRef};
use crate::sync::tracked::Guard;
use crate::{Block, Error, Result};

/// A block that was claimed by one free: no other call has it.
#[derive(Clone, Copy)]
pub(in crate::pool) struct Claimed<'a> {
    pub(in crate::pool) slot: &'a Slot,
    pub(in crate::pool) known: BlockState,
    pub(in crate::pool) address: Address,
}

impl Shared {
    /// Frees the block at `address`, in the order of `stream`.
    #[inline(always)]
    pub(in crate::pool) fn free<const COUNTED: bool>(
        &self,
        address: Address,
        stream: StreamHandle,
        claimed: ClaimedAs,
    ) -> Result<()> {
        if self.front.keep::<COUNTED, true>(address, stream, claimed) {
            return Ok(());
        }
        self.free_slowly(address, stream, claimed)
    }

    #[cold]
    #[inline(never)]
    fn free_slowly(
        &self,
        address: Address,
        stream: StreamHandle,
        claimed: ClaimedAs,
    ) -> Result<()> {
        if self.front.keep_recorded(&self.history, address, stream, claimed) {
            return Ok(());
        }
        self.free_below(address, stream, claimed)
    }

    /// Frees past the front cache.
    #[inline(never)]
    pub(in crate::pool) fn free_below(
        &self,
        address: Address,
        stream: StreamHandle,
        claimed: ClaimedAs,
    ) -> Result<()> {
        self.birth.check()?;
        if address.is_null() {
            return Ok(());
        }
        // Caches are keyed by the resolved handle: every thread uses the same name for its own default stream.
        let stream = stream.resolved();
        if !self.front.is_plain() {
            return self.free_layered(address, stream, claimed);
        }
        let block = self.claim(address, claimed)?;
        self.put(block, stream);
        Ok(())
    }

    /// Claims the live block at `address` for one free, if the block agrees with what the caller claims about it.
    #[inline]
    pub(in crate::pool) fn claim(
        &self,
        address: Address,
        claimed: ClaimedAs,
    ) -> Result<Claimed<'_>> {
        if let Some(slot) = self.map.slot(address)
            && let Some(known) = claimed.plain(slot, address)
            && claimed.matches(known)
        {
            step::reach(Step::Claiming);
            if claimed.claim(slot, known) {
                return Ok(Claimed { slot, known, address });
            }
        }
        self.claim_slowly(address, claimed)
    }

    #[cold]
    #[inline(never)]
    fn claim_slowly(&self, address: Address, claimed: ClaimedAs) -> Result<Claimed<'_>> {
        loop {
            let (slot, known) = self.live(address)?;
            claimed.check(known, address)?;
            if known.owned() && !claimed.is_owner() {
                return Err(Error::Owned { address });
            }
            if known.used_elsewhere() {
                self.recheck_users(address)?;
            }
            step::reach(Step::Claiming);
            if slot.claim(known) {
                return Ok(Claimed { slot, known, address });
            }
            // The state has changed: another thread freed the block, which the next look shows, or recorded a use on a
            // further stream.
        }
    }

    /// Frees a claimed block, and counts it.
    #[inline]
    pub(in crate::pool) fn put(&self, block: Claimed<'_>, stream: StreamHandle) {
        let Claimed { slot, known, address } = block;
        if known.used_elsewhere() || is_ending(stream) {
            return self.put_later(block, stream);
        }
        let cached = CachedBlock { address, slot: SlotRef::new(slot) };
        if self.front.keep_claimed(cached, known, stream) {
            return;
        }
        self.watch_own_stream(stream);
        let mut heap = self.heap();
        if self.front.put(&mut heap, cached, known, stream) && stream.is_per_thread() {
            self.publish_or_recover(heap, stream);
        }
    }

    /// Frees a block that other streams have used, or the own stream of an ending thread, and counts it.
    #[cold]
    #[inline(never)]
    fn put_later(&self, block: Claimed<'_>, stream: StreamHandle) {
        let Claimed { known, address, .. } = block;
        let freed = FreedBlock { address, size: known.size(), stream };
        if known.used_elsewhere() {
            self.return_used(freed);
        } else {
            self.heap().free_unknown(freed);
        }
        self.front.count(stream, |counts| {
            counts.count_free(known.units(), known.requested(), known.tag());
        });
    }

    /// Frees a block once the further streams that used it are done with it.
    pub(in crate::pool) fn return_used(&self, block: FreedBlock) {
        let mut backing = self.backing();
        let (ends, serial) = {
            let mut heap = self.heap();
            let slot = heap.slot_for(block.stream);
            let uses = heap.uses.remove(&block.address).unwrap_or_default();
            let Some(serial) = heap.slots.serial(slot) else {
                heap.free(block.address, block.size, slot);
                return;
            };
            let ends = Backing::ends_of(&mut heap, uses, Some(serial));
            if ends.is_empty() {
                heap.free(block.address, block.size, slot);
                return;
            }
            (ends, serial)
        };
        backing.defer(self.context(), &[Task::ReturnBlock(block, serial)], ends);
    }

    /// Frees blocks into the heap. On a thread's own stream, publishes an event for the other threads.
    pub(in crate::pool) fn return_to_heap(&self, returns: Vec<FreedBlock>) {
        let Some(stream) = returns.last().map(|one| one.stream) else { return };
        let mut heap = self.heap();
        heap.free_all(returns);
        if stream.is_per_thread() {
            self.publish_or_recover(heap, stream);
        }
    }

    fn publish_or_recover(&self, mut heap: Guard<'_, Heap>, stream: StreamHandle) {
        if !self.publish(&mut heap, stream) && heap.slots.may_recover() {
            drop(heap);
            self.backing().recover_slots(self.context());
            self.publish(&mut self.heap(), stream);
        }
    }

    /// Records an event on the calling thread's own stream, by which other threads can wait for what was freed there so
    /// far: only the thread itself can record one. Returns `false` if no slot is left for it.
    pub(in crate::pool) fn publish(&self, heap: &mut Heap, stream: StreamHandle) -> bool {
        // A capture that begins now is not on this stream: only its own thread begins one there, and that thread is
        // here.
        if stream.is_of_another_thread() || is_ending(stream) || self.captures.any() {
            return true;
        }
        let slot = heap.slot_for(stream);
        let event = match heap.slots.published(slot) {
            Some((_, event)) => event,
            None => match LoggedEvent::new(&self.device, &self.log) {
                Ok(event) => Arc::new(event),
                // The memory then serves its own thread, and all others after a wait for the device.
                Err(_) => return true,
            },
        };
        if event.record(stream).is_err() {
            return true;
        }
        let published = heap.slots.publish(slot, &event);
        if let Some(published) = published {
            heap.record_event(published, slot);
        }
        published.is_some()
    }

    /// The live block at `address`, and its slot in the address map.
    pub(in crate::pool) fn live(&self, address: Address) -> Result<(&Slot, BlockState)> {
        let slot = self.map.slot(address);
        let known = slot.and_then(|slot| slot.state_at(address));
        match (slot, known) {
            (Some(slot), Some(known)) if known.live() => Ok((slot, known)),
            _ => Err(self.not_live(address, known)),
        }
    }

    /// The error for an address at which no live block begins.
    #[cold]
    fn not_live(&self, address: Address, known: Option<BlockState>) -> Error {
        if let Some(known) = known.filter(|known| !known.live()) {
            return Error::DoubleFree { address, size: known.size() };
        }
        match registry::other_owner_of(address, self.id) {
            Some(owner) => Error::WrongPool { address, pool: self.id, owner },
            None => Error::NotABlock { address },
        }
    }

    /// Makes a handle the owner of a live block.
    pub(in crate::pool) fn own(&self, block: Block) -> Result<()> {
        let Block { address, pool: owner, generation, .. } = block;
        if address.is_null() {
            return Ok(());
        }
        if owner != self.id {
            return Err(Error::WrongPool { address, pool: self.id, owner });
        }
        self.birth.check()?;
        loop {
            let (slot, known) = self.live(address)?;
            if known.generation() != generation {
                return Err(Error::StaleBlock { address, size: known.size() });
            }
            if known.owned() {
                return Err(Error::Owned { address });
            }
            if slot.set_owned(known, true) {
                return Ok(());
            }
        }
    }

    /// Ends a handle's ownership of a block.
    pub(in crate::pool) fn disown(&self, block: Block) {
        while !self.is_inherited()
            && let Ok((slot, known)) = self.live(block.address)
        {
            let is_it = block.pool == self.id && known.generation() == block.generation;
            if !is_it || !known.owned() || slot.set_owned(known, false) {
                return;
            }
        }
    }
}
