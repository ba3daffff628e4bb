//! The end of a thread, as the pool handles it: the last event of the thread's own default stream.

use std::sync::Arc;

use forebay_core::{Bytes, StreamId};
use forebay_hal::{Call, StreamHandle};

use crate::pool::common::log::LoggedEvent;
use crate::pool::common::wait::{Deadline, WaitBudget};
use crate::pool::front::claimed_as::ClaimedAs;
use crate::pool::shared::Shared;
use crate::{Block, Request, Result};

impl Shared {
    /// Has the pool notified when this thread ends, if `stream` is the thread's own. The first time it asks the driver
    /// which stream that is.
    pub(in crate::pool) fn watch_own_stream(&self, stream: StreamHandle) {
        if !stream.is_per_thread() || self.captures.any() {
            return;
        }
        if !self.thread_ends.is_watching() {
            let id = self.log.call(Call::StreamId, || self.device.stream_id(stream));
            self.thread_ends.watch_this_thread(id.ok());
        }
    }

    /// Ends the own default stream of the calling thread, which is ending.
    pub(in crate::pool) fn end_own_stream(&self, known_as: Option<StreamId>) {
        if self.birth.check().is_err() {
            return;
        }
        let stream = StreamHandle::of_this_thread();
        let is_same = || {
            let now = self.log.call(Call::StreamId, || self.device.stream_id(stream));
            known_as.is_some() && now.ok() == known_as
        };
        let _ = self.record_end(stream, true, &is_same);
    }

    /// Serves a request on the own stream of an ending thread by the stand-in stream, and waits for that on the host: the
    /// driver may make a new stream for every call of such a thread, so no wait on the device orders them.
    #[cold]
    pub(in crate::pool) fn allocate_at_thread_end(
        &self,
        request: Request,
        size: Bytes,
    ) -> Result<Block> {
        let block = self.allocate_below(Request { stream: STAND_IN, ..request }, size)?;
        let deadline = self.deadline(&mut WaitBudget::default());
        if matches!(self.wait_for_stand_in(deadline), Ok(true)) {
            return Ok(block);
        }
        let claimed = ClaimedAs::Exact(block.generation);
        let _ = self.free_below(block.address, STAND_IN, claimed);
        Err(self.shortage(request, size).into())
    }

    /// Waits, on the host, for all work enqueued so far on the stand-in stream. Returns `false` if the deadline passed or
    /// a capture is under way.
    fn wait_for_stand_in(&self, deadline: Deadline) -> Result<bool> {
        let event = {
            // Locked, so that no capture begins while the event is recorded.
            let _backing = self.backing();
            if self.captures.any() {
                return Ok(false);
            }
            Arc::new(LoggedEvent::after(&self.device, &self.log, STAND_IN)?)
        };
        self.wait_for_events(&[event], deadline)
    }
}

/// The stream that stands in for the own stream of a thread that has dropped its list.
const STAND_IN: StreamHandle = StreamHandle::DEFAULT;
