//! Copies under way that touch host memory.

use forebay_hal::{self as hal, Device, Event, StreamHandle};

/// Work under way that reads or writes host memory.
#[derive(Debug)]
pub(super) struct HostUse {
    pub(super) stream: StreamHandle,
    /// After that work; `None` if the device has none to give, so that the whole device is waited for.
    pub(super) event: Option<Event>,
}

impl HostUse {
    pub(super) fn wait(&self, device: &dyn Device) -> hal::Result<()> {
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
        self.event.as_ref().is_some_and(|event| matches!(event.query(), Ok(hal::Progress::Done)))
    }

    pub(super) fn finish(&self, device: &dyn Device) -> bool {
        self.wait(device).is_ok()
    }
}
