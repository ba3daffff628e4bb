//! Uses of a block on streams other than the one it was allocated on: after its free, the memory is reused only after
//! those too.

#[cfg(feature = "host")]
use std::sync::Arc;

use forebay_core::Address;
use forebay_hal::{self as hal, Call, NamedStream, StreamHandle};

use crate::pool::calls::checked::strict;
use crate::pool::calls::put;
#[cfg(feature = "host")]
use crate::pool::common::log::LoggedEvent;
use crate::pool::common::wait::WaitBudget;
use crate::pool::heap::Heap;
use crate::pool::heap::uses::Use;
use crate::pool::inner::PoolInner;
use crate::{Error, Result};

/// Records that the block at `address` is used on `stream` too: after its free, the memory is reused only after the
/// work enqueued there by then.
pub(in crate::pool) fn record_use(
    pool: &PoolInner,
    address: Address,
    stream: StreamHandle,
) -> Result<()> {
    pool.fork_generation.check()?;
    strict::check_stream_identity(pool, stream, &mut WaitBudget::default())?;
    mark_used(pool, address, |heap| heap.note_use(address, Use::Stream(stream)))
}

/// Like [`record_use`], for a stream that may have ended since it was named.
pub(in crate::pool) fn record_named_use(
    pool: &PoolInner,
    address: Address,
    used: NamedStream,
) -> Result<()> {
    pool.fork_generation.check()?;
    let stream = used.handle();
    // Work may have been enqueued on whichever stream has the handle now. Nothing is asked during a capture, where
    // every use waits for the whole device.
    let is_there = !used.has_ended(&pool.device)
        || pool.captures.any()
        || pool.log.call(Call::StreamId, || pool.device.stream_id(stream)).is_ok();
    let mut was_announced = true;
    if is_there {
        match strict::check_stream_identity(pool, stream, &mut WaitBudget::default()) {
            Err(Error::Device(hal::Error::Invalid { .. })) => was_announced = false,
            checked => checked?,
        }
    }
    mark_used(pool, address, |heap| {
        if !was_announced {
            heap.note_use(address, Use::Unknown);
        } else if is_there {
            heap.note_use(address, Use::Stream(stream));
        }
        // Looked at under the heap lock, under which the pool hears of ends.
        if used.has_ended(&pool.device) {
            heap.note_use(address, Use::Ended(used));
        }
    })
}

/// Records that the block at `address` is used until `event`, or until a wait for the whole device: after its free,
/// the memory is reused only after that.
#[cfg(feature = "host")]
pub(in crate::pool) fn record_use_until(
    pool: &PoolInner,
    address: Address,
    event: Option<&Arc<LoggedEvent>>,
) -> Result<()> {
    pool.fork_generation.check()?;
    let used = event.map_or(Use::Unknown, |event| Use::Until(Arc::clone(event)));
    mark_used(pool, address, |heap| heap.note_use(address, used.clone()))
}

/// Marks the live block at `address` as used elsewhere too. `note` records the use.
fn mark_used(pool: &PoolInner, address: Address, note: impl Fn(&mut Heap)) -> Result<()> {
    loop {
        // Not under the heap lock: the error path looks at other pools.
        let (slot, known) = put::live(pool, address)?;
        let mut heap = pool.heap();
        let is_first = !heap.uses.contains_key(&address);
        note(&mut heap);
        if slot.mark_used(known) {
            return Ok(());
        }
        // The block was freed meanwhile, and perhaps allocated again; the next look shows. Uses recorded before
        // belong to the block that is there now.
        if is_first {
            heap.uses.remove(&address);
        }
    }
}
