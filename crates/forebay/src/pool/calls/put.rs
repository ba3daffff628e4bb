//! Blocks on their way back: claimed from the program, put into a cache, the heap, or deferred until their uses end.

use std::sync::Arc;

use forebay_core::Address;
use forebay_hal::{Call, StreamHandle};

use crate::pool::backing::Backing;
use crate::pool::backing::deferred::Task;
use crate::pool::calls::checked::strict;
use crate::pool::calls::registry;
use crate::pool::common::free_block::FreedBlock;
use crate::pool::common::log::LoggedEvent;
use crate::pool::common::step::{self, Step};
use crate::pool::front::claimed::{Claimed, FreeClaim};
use crate::pool::heap::Heap;
use crate::pool::heap::thread_ends::is_ending;
use crate::pool::inner::PoolInner;
use crate::sync::map::{BlockState, Slot};
use crate::sync::tracked::Guard;
use crate::{Block, Error, Result};

/// Claims the live block at `address` for one free, if the block agrees with what the caller claims about it.
pub(in crate::pool) fn claim(
    pool: &PoolInner,
    address: Address,
    claimed: FreeClaim,
) -> Result<Claimed<'_>> {
    claim_plain(pool, address, claimed).map_or_else(|| claim_slowly(pool, address, claimed), Ok)
}

/// The same for a block that a hit could have freed.
#[inline(always)]
pub(in crate::pool) fn claim_plain(
    pool: &PoolInner,
    address: Address,
    claimed: FreeClaim,
) -> Option<Claimed<'_>> {
    let slot = pool.map.slot(address)?;
    let known = claimed.plain(slot, address).filter(|&known| claimed.matches(known))?;
    step::reach(Step::Claiming);
    claimed.claim(slot, known).then_some(Claimed { slot, known, address })
}

/// The same for any block: says why a claim is refused.
#[cold]
#[inline(never)]
pub(super) fn claim_slowly(
    pool: &PoolInner,
    address: Address,
    claimed: FreeClaim,
) -> Result<Claimed<'_>> {
    loop {
        let (slot, known) = live(pool, address)?;
        claimed.check(known, address)?;
        if known.owned() && !claimed.is_owner() {
            return Err(Error::Owned { address });
        }
        if known.used_elsewhere() {
            strict::recheck_users(pool, address)?;
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
pub(in crate::pool) fn put(pool: &PoolInner, block: &Claimed<'_>, stream: StreamHandle) {
    if block.known.used_elsewhere() || is_ending(stream) {
        return put_later(pool, block, stream);
    }
    if pool.front.keep_claimed(block, stream) {
        return;
    }
    watch_own_stream(pool, stream);
    let mut heap = pool.heap();
    if pool.front.put(&mut heap, block, stream) && stream.is_per_thread() {
        publish_or_recover(pool, heap, stream);
    }
}

/// Frees a block that other streams have used, or the own stream of an ending thread, and counts it.
#[cold]
#[inline(never)]
fn put_later(pool: &PoolInner, block: &Claimed<'_>, stream: StreamHandle) {
    watch_own_stream(pool, stream);
    let &Claimed { known, address, .. } = block;
    let freed = FreedBlock { address, size: known.size(), stream };
    if known.used_elsewhere() {
        return_used(pool, freed);
    } else {
        pool.heap().free_unknown(freed);
    }
    pool.front.count(stream, |counts| {
        counts.count_free(known.units(), known.requested(), known.tag());
    });
}

/// Frees a block once the further streams that used it are done with it.
pub(super) fn return_used(pool: &PoolInner, block: FreedBlock) {
    let mut backing = pool.backing();
    let (ends, serial) = {
        let mut heap = pool.heap();
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
    backing.defer(pool.context(), &[Task::ReturnBlock(block, serial)], ends);
}

/// Frees blocks into the heap. On a thread's own stream, publishes an event for the other threads.
pub(super) fn return_to_heap(pool: &PoolInner, returns: Vec<FreedBlock>) {
    let Some(stream) = returns.last().map(|one| one.stream) else { return };
    let mut heap = pool.heap();
    heap.free_all(returns);
    if stream.is_per_thread() {
        publish_or_recover(pool, heap, stream);
    }
}

fn publish_or_recover(pool: &PoolInner, mut heap: Guard<'_, Heap>, stream: StreamHandle) {
    if !publish(pool, &mut heap, stream) && heap.slots.may_recover() {
        drop(heap);
        pool.backing().recover_slots(pool.context());
        publish(pool, &mut pool.heap(), stream);
    }
}

/// Records an event on the calling thread's own stream, by which other threads can wait for what was freed there so
/// far: only the thread itself can record one. Returns `false` if no slot is left for it.
pub(in crate::pool) fn publish(pool: &PoolInner, heap: &mut Heap, stream: StreamHandle) -> bool {
    // A capture that begins now is not on this stream: only its own thread begins one there, and that thread is
    // here.
    if stream.is_of_another_thread() || is_ending(stream) || pool.captures.any() {
        return true;
    }
    let slot = heap.slot_for(stream);
    let event = match heap.slots.published(slot) {
        Some((_, event)) => event,
        None => match LoggedEvent::new(&pool.device, &pool.log) {
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
        heap.spaces.record_wait(published, slot);
    }
    published.is_some()
}

/// The live block at `address`, and its slot in the address map.
pub(in crate::pool) fn live(pool: &PoolInner, address: Address) -> Result<(&Slot, BlockState)> {
    let slot = pool.map.slot(address);
    let known = slot.and_then(|slot| slot.state_at(address));
    match (slot, known) {
        (Some(slot), Some(known)) if known.live() => Ok((slot, known)),
        _ => Err(not_live(pool, address, known)),
    }
}

/// The error for an address at which no live block begins.
#[cold]
fn not_live(pool: &PoolInner, address: Address, known: Option<BlockState>) -> Error {
    if let Some(known) = known.filter(|known| !known.live()) {
        return Error::DoubleFree { address, size: known.size() };
    }
    match registry::other_owner_of(address, pool.id) {
        Some(owner) => Error::WrongPool { address, pool: pool.id, owner },
        None => Error::NotABlock { address },
    }
}

/// Makes a handle the owner of a live block.
pub(in crate::pool) fn own(pool: &PoolInner, block: Block) -> Result<()> {
    let Block { address, pool: owner, generation, .. } = block;
    if address.is_null() {
        return Ok(());
    }
    if owner != pool.id {
        return Err(Error::WrongPool { address, pool: pool.id, owner });
    }
    pool.fork_generation.check()?;
    loop {
        let (slot, known) = live(pool, address)?;
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
pub(in crate::pool) fn disown(pool: &PoolInner, block: Block) {
    while !pool.is_from_parent()
        && let Ok((slot, known)) = live(pool, block.address)
    {
        let is_it = block.pool == pool.id && known.generation() == block.generation;
        if !is_it || !known.owned() || slot.set_owned(known, false) {
            return;
        }
    }
}

/// Has the pool notified when this thread ends, if `stream` is the thread's own. The first time it asks the driver
/// which stream that is.
#[inline]
pub(super) fn watch_own_stream(pool: &PoolInner, stream: StreamHandle) {
    if stream.is_per_thread() {
        watch_this_thread(pool, stream);
    }
}

#[cold]
fn watch_this_thread(pool: &PoolInner, stream: StreamHandle) {
    if !pool.captures.any() && !pool.thread_ends.is_watching() {
        let id = pool.log.call(Call::StreamId, || pool.device.stream_id(stream));
        pool.thread_ends.watch_this_thread(id.ok());
    }
}
