//! Forgets streams. Holes stay in the order of an ended stream until its work is done, and its handle may be reused
//! from then on.

use std::sync::Arc;

use forebay_hal::{Device, StreamHandle, announce_stream_end, stream_ends};

use crate::Result;
use crate::pool::calls::checked::{quarantine, strict, unclean};
use crate::pool::calls::registry;
use crate::pool::common::wait::WaitBudget;
use crate::pool::heap::seen_streams;
use crate::pool::inner::{PoolInner, address_of};
use crate::pool::turn::with_turn;

/// Gives a stream that uses a block of the pool a slot, so that its end is noticed.
pub(in crate::pool) fn watch_stream(pool: &PoolInner, stream: StreamHandle) {
    if !pool.is_from_parent() {
        pool.heap().slot_for(stream);
    }
}

/// Whether the pool knows a stream by its handle: by a slot, or by a thread cache.
pub(in crate::pool) fn knows_stream(pool: &PoolInner, stream: StreamHandle) -> bool {
    let stream = stream.resolved();
    pool.heap().slots.knows(stream) || pool.front.all.knows(stream)
}

/// Forgets a stream that will be destroyed. An error has changed nothing but where free memory is.
pub(in crate::pool) fn forget_stream(pool: &PoolInner, stream: StreamHandle) -> Result<()> {
    pool.fork_generation.check()?;
    strict::check_stream_identity(pool, stream, &mut WaitBudget::default())?;
    // First, so that the count is past every handle that names the stream.
    announce_stream_end(&pool.device, stream);
    end_and_forget(pool, stream, false)
}

/// Forgets a stream that ends in any case, where no error can be returned. If its last event cannot be recorded,
/// its holes wait for the whole device.
fn forget_lost_stream(pool: &PoolInner, stream: StreamHandle) {
    if pool.fork_generation.check().is_ok() {
        let _ = end_and_forget(pool, stream, true);
    }
}

fn end_and_forget(pool: &PoolInner, stream: StreamHandle, force: bool) -> Result<()> {
    // A finding in the quarantine is reported after the stream is forgotten, a device error at once.
    let ended = quarantine::empty_quarantine_of(pool, stream);
    if let Err(error) = &ended
        && !error.is_finding()
        && !force
    {
        return ended;
    }
    record_end(pool, stream, force, &|| true)?;
    ended
}

/// Records the last event of a stream and forgets it, if `is_same` finds that the handle still stands for it. If
/// not, its holes wait for the whole device. Its blocks in quarantine stay there.
pub(super) fn record_end(
    pool: &PoolInner,
    stream: StreamHandle,
    force: bool,
    is_same: &dyn Fn() -> bool,
) -> Result<()> {
    {
        let mut backing = pool.backing();
        let returns = unclean::fill_unclean(pool, &mut backing);
        // The heap lock is held from before the magazines are emptied until the last event is recorded: a free on
        // the stream comes before both or after both. It is taken before the gates are shut, here and wherever both
        // are: an owner waits for the heap only outside its gate.
        let mut heap = pool.heap();
        pool.front.all.forget_stream(&mut heap, stream);
        heap.free_all(returns);
        let serial = heap.slots.get(stream).and_then(|number| heap.slots.serial(number));
        let parted = backing.end_stream(&mut heap, stream, is_same);
        if parted.is_err() && force {
            if let Some(number) = heap.slots.get(stream) {
                heap.end_without_event(number);
            }
        } else {
            parted?;
        }
        if let Some(serial) = serial {
            heap.ended.add(stream, stream_ends(), serial);
        }
        heap.counts.forget_stream(stream);
        pool.seeing().forget(stream);
        drop(heap);
        // Its work may be done already: then its holes become free for all now.
        let _ = backing.run_deferred(pool.context());
    }
    strict::forget_identity(pool, stream);
    Ok(())
}

/// Called when a stream is about to be destroyed: every pool of its device that has seen it forgets it.
pub(in crate::pool) fn on_stream_end(device: &Arc<dyn Device>, stream: StreamHandle) {
    let stream = stream.resolved();
    for id in seen_streams::pools_of(address_of(device), stream) {
        let Some(pool) = registry::weak(id) else { continue };
        // In a turn: the program may drop its last reference to the pool meanwhile.
        with_turn(id, &pool, |pool| {
            if knows_stream(pool, stream) {
                forget_lost_stream(pool, stream);
            } else {
                pool.seeing().forget(stream);
            }
        });
    }
}
