//! Strict streams: checks that a handle still stands for the same stream. The strict-streams lock is taken before the
//! backing lock.
//!
//! Drivers reuse the handle of a destroyed stream. A pool that only compares handles treats memory freed on the old
//! stream as free on the new one while the old one's work still runs, and hands out memory in use. Here every handle is
//! checked against the stream's identity. If a handle stands for another stream, the pool notices before it takes
//! memory or waits by it, waits for the device, and makes the old stream's memory free for all.

use forebay_core::{Address, StreamId};
use forebay_hal::StreamHandle;

use crate::pool::calls::{settle, waits};
use crate::pool::common::wait::WaitBudget;
use crate::pool::heap::stream_slots::StreamState;
use crate::pool::inner::PoolInner;
use crate::sync::tracked::lock;
use crate::{Error, Result};

/// Checks that `stream` is the stream it was, and starts afresh if not. Does nothing without strict streams.
pub(in crate::pool::calls) fn check_stream_identity(
    pool: &PoolInner,
    stream: StreamHandle,
    wait: &mut WaitBudget,
) -> Result<()> {
    if !pool.debug.aids.strict_streams {
        return Ok(());
    }
    let id = pool.debug.probe.stream_id(stream)?;
    note_identity(pool, stream, Some(id), wait)?;
    pool.heap().slots.set_doubted(stream, false);
    Ok(())
}

/// Records which stream a handle stands for now; `None` if for none. If it was another one before, that one has
/// ended: its memory is unknown until a wait for the device, which follows at once unless the deadline passes.
///
/// The identity and the order of the memory change together, under the strict-streams lock: two threads that see
/// the new stream at once must not both take it for the old one.
fn note_identity(
    pool: &PoolInner,
    stream: StreamHandle,
    id: Option<StreamId>,
    wait: &mut WaitBudget,
) -> Result<()> {
    let gone = {
        let mut noted = lock(&pool.debug.streams);
        let gone = noted.get(&stream).is_some_and(|&before| Some(before) != id);
        if gone {
            end_replaced_stream(pool, stream);
        }
        match id {
            Some(id) => noted.insert(stream, id),
            None => noted.remove(&stream),
        };
        gone
    };
    if gone {
        settle::settle(pool, waits::deadline(pool, wait))?;
    }
    Ok(())
}

/// Checks every stream that the pool may wait for, before it does: an event on a reused handle says nothing about
/// the old stream's work. A stream that cannot be checked now is not waited for until it can.
pub(in crate::pool::calls) fn recheck_streams(pool: &PoolInner, wait: &mut WaitBudget) {
    if !pool.debug.aids.strict_streams {
        return;
    }
    let noted: Vec<StreamHandle> = lock(&pool.debug.streams).keys().copied().collect();
    for stream in noted {
        let doubted = recheck_stream(pool, stream, wait).is_err();
        pool.heap().slots.set_doubted(stream, doubted);
    }
}

/// Checks the further streams that the block at `address` was used on.
pub(in crate::pool::calls) fn recheck_users(pool: &PoolInner, address: Address) -> Result<()> {
    if !pool.debug.aids.strict_streams {
        return Ok(());
    }
    let users: Vec<StreamHandle> = {
        let heap = pool.heap();
        let uses = heap.uses.get(&address);
        let users = uses.into_iter().flat_map(|uses| &uses.streams);
        let live = users.filter_map(|&serial| match heap.slots.state_of(serial) {
            StreamState::Live(stream, _) => Some(stream),
            _ => None,
        });
        live.collect()
    };
    let mut wait = WaitBudget::default();
    users.into_iter().try_for_each(|stream| recheck_stream(pool, stream, &mut wait))
}

/// Checks that `stream` is the stream it was, and ends the old one if not.
fn recheck_stream(pool: &PoolInner, stream: StreamHandle, wait: &mut WaitBudget) -> Result<()> {
    // The device cannot identify another thread's own stream, and its handle is never reused.
    if stream.is_of_another_thread() || !lock(&pool.debug.streams).contains_key(&stream) {
        return Ok(());
    }
    match pool.debug.probe.stream_id(stream) {
        Ok(now) => note_identity(pool, stream, Some(now), wait),
        // The stream does not exist any more.
        Err(Error::Device(forebay_hal::Error::Invalid { .. })) => {
            note_identity(pool, stream, None, wait)
        }
        Err(error) => Err(error),
    }
}

/// Ends a stream whose handle was reused or is invalid. Its memory comes back after a wait for the device, since no
/// handle is left to wait for the one stream.
fn end_replaced_stream(pool: &PoolInner, stream: StreamHandle) {
    let _backing = pool.backing();
    let mut heap = pool.heap();
    pool.front.all.forget_stream(&mut heap, stream);
    let slot = heap.slots.get(stream);
    let serial = slot.and_then(|slot| heap.slots.serial(slot));
    slot.into_iter().for_each(|slot| heap.end_without_event(slot));
    heap.counts.forget_stream(stream);
    drop(heap);
    // Blocks in quarantine were freed in the order of the old stream too. Unclean memory stays until that stream's
    // work is done.
    let Some(serial) = serial else { return };
    let quarantined = lock(&pool.debug.quarantine).take_of(serial, u64::MAX);
    let mut heap = pool.heap();
    quarantined.into_iter().for_each(|block| heap.free_unknown(block.memory));
}

pub(in crate::pool::calls) fn forget_identity(pool: &PoolInner, stream: StreamHandle) {
    lock(&pool.debug.streams).remove(&stream);
    pool.heap().slots.set_doubted(stream, false);
}
