//! Copies under way that touch host memory.

use std::sync::Arc;

use forebay_hal::{self as hal, Call, Device, Event, EventKind, StreamHandle};

/// Work under way that reads or writes host memory.
#[derive(Debug)]
pub(super) struct HostUse {
    /// After that work; `None` if the device had none to give, so that the whole device is waited for.
    event: Option<Event>,
}

impl HostUse {
    /// What was enqueued on `stream` so far.
    pub(super) fn on(device: &Arc<dyn Device>, stream: StreamHandle) -> Self {
        let record = || {
            let event = Event::new(device, EventKind::Order)?;
            device.record_event(event.handle(), stream)?;
            Ok(event)
        };
        let event = match record() {
            Err(error) if hal::Error::may_pass(&error) => record().ok(),
            recorded => recorded.ok(),
        };
        Self { event }
    }

    /// Makes `stream` wait for the work.
    pub(super) fn precede(&self, device: &dyn Device, stream: StreamHandle) -> hal::Result<()> {
        match &self.event {
            Some(event) => device.wait_event(stream, event.handle()),
            None => self.wait(device),
        }
    }

    /// Waits for the work on the host.
    pub(super) fn wait(&self, device: &dyn Device) -> hal::Result<()> {
        device.descriptor().check_process(Call::SynchronizeEvent)?;
        let wait = || match &self.event {
            Some(event) => event.synchronize(),
            None => device.synchronize_device(),
        };
        match wait() {
            Err(error) if error.may_pass() => wait(),
            done => done,
        }
    }

    /// Whether the work is done, as far as that can be known without waiting.
    pub(super) fn is_done(&self) -> bool {
        let done = |event: &Event| matches!(event.query(), Ok(hal::Progress::Done));
        self.event.as_ref().is_some_and(done)
    }
}
