//! The end of a thread, as the pool handles it: the last event of the thread's own default stream.

use std::sync::Arc;

use forebay_core::StreamId;
use forebay_hal::{Call, StreamHandle};

use crate::Result;
use crate::pool::calls::{stream_end, waits};
use crate::pool::common::log::LoggedEvent;
use crate::pool::common::wait::Deadline;
use crate::pool::inner::PoolInner;

/// Ends the own default stream of the calling thread, which is ending.
pub(in crate::pool) fn end_own_stream(pool: &PoolInner, known_as: Option<StreamId>) {
    if pool.fork_generation.check().is_err() {
        return;
    }
    let stream = StreamHandle::of_this_thread();
    let is_same = || {
        let now = pool.log.call(Call::StreamId, || pool.device.stream_id(stream));
        known_as.is_some() && now.ok() == known_as
    };
    let _ = stream_end::record_end(pool, stream, true, &is_same);
}

/// Waits, on the host, for all work enqueued so far on the stand-in stream. Returns `false` if the deadline passed or
/// a capture is under way.
pub(super) fn wait_for_stand_in(pool: &PoolInner, deadline: Deadline) -> Result<bool> {
    let event = {
        // Locked, so that no capture begins while the event is recorded.
        let _backing = pool.backing();
        if pool.captures.any() {
            return Ok(false);
        }
        Arc::new(LoggedEvent::after(&pool.device, &pool.log, STAND_IN)?)
    };
    waits::wait_for_events(pool, &[event], deadline)
}

/// The stream that stands in for the own stream of a thread that has dropped its list.
pub(super) const STAND_IN: StreamHandle = StreamHandle::DEFAULT;
