//! Events that mark the end of the work that uses a block, for handles whose memory the host reads and writes.

use std::sync::Arc;

use forebay_core::Address;
use forebay_hal::StreamHandle;

use crate::Result;
use crate::pool::Pool;
use crate::pool::calls::uses;
use crate::pool::common::log::LoggedEvent;

/// An event that is recorded once, after the work that uses a block. Clones are the same event.
#[derive(Clone, Debug)]
pub(crate) struct WorkEvent(Arc<LoggedEvent>);

impl WorkEvent {
    /// Puts the event after all work enqueued on `stream` so far.
    pub(crate) fn record(&self, stream: StreamHandle) -> Result<()> {
        self.0.record(stream)
    }

    /// Whether the work is done. A failed query counts as not done.
    pub(crate) fn is_reached(&self) -> bool {
        self.0.is_reached()
    }

    /// Makes what is enqueued on `stream` from now on wait for the work, on the device.
    pub(crate) fn make_wait(&self, stream: StreamHandle) -> Result<()> {
        self.0.make_wait(stream)
    }

    /// Waits for the work, on the host.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.0.synchronize()
    }
}

impl Pool {
    /// Creates an event that is not recorded yet.
    pub(crate) fn work_event(&self) -> Result<WorkEvent> {
        self.shared.fork_generation.check()?;
        Ok(WorkEvent(Arc::new(LoggedEvent::new(&self.shared.device, &self.shared.log)?)))
    }

    /// Records that the live block at `address` is used until `event` or, without one, until a wait for the whole
    /// device. After its free, the memory is reused only once the host has seen that.
    pub(crate) fn record_use_until(
        &self,
        address: Address,
        event: Option<&WorkEvent>,
    ) -> Result<()> {
        uses::record_use_until(&self.shared, address, event.map(|event| &event.0))
    }
}
