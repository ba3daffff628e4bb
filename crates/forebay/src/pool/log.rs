//! The log of the driver's calls, and events whose every call is in it.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use forebay_core::Bytes;
use forebay_hal::{Call, Device, Event, EventHandle, EventKind, Progress, StreamHandle};

use super::DriverLog;
use crate::Result;
use crate::sync::fork::Birth;
use crate::sync::{lock, tracked};

/// The calls of the driver that a pool made. Clones are the same log.
///
/// Its lock is its own and the last of all: it is held to note a call, never while one is made, so
/// whoever reads the log waits for nobody at the driver.
#[derive(Clone, Debug)]
pub(super) struct CallLog {
    log: Arc<Mutex<DriverLog>>,
    /// The process whose driver it is.
    birth: Birth,
}

impl Default for CallLog {
    fn default() -> Self {
        Self { log: Arc::default(), birth: Birth::here() }
    }
}

impl CallLog {
    /// Makes one call over one page or range of `size`, and notes it.
    pub(super) fn make<T>(&self, call: Call, size: Bytes, make: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let made = make();
        lock(&self.log).note(call, size, begun.elapsed());
        made
    }

    /// Makes one call over no memory, and notes it.
    pub(super) fn call<T>(&self, call: Call, make: impl FnOnce() -> T) -> T {
        self.make(call, Bytes::ZERO, make)
    }

    /// Makes one call over `size` that may wait for work of the device, and notes it. With no lock of a
    /// pool held: that work may wait for whoever needs the lock.
    pub(super) fn wait<T>(&self, call: Call, size: Bytes, make: impl FnOnce() -> T) -> T {
        debug_assert_eq!(tracked::held(), 0, "{call:?} would wait with a lock of a pool held");
        self.make(call, size, make)
    }

    /// The calls made so far.
    pub(super) fn so_far(&self) -> DriverLog {
        lock(&self.log).clone()
    }

    /// Whether this is a forked child: then nothing of the parent's driver can be given back here.
    pub(super) fn is_forked(&self) -> bool {
        self.birth.check().is_err()
    }
}

/// An event of a pool.
#[derive(Debug)]
pub(super) struct Point {
    /// There until it is dropped.
    event: Option<Event>,
    handle: EventHandle,
    device: Arc<dyn Device>,
    log: CallLog,
}

impl Point {
    /// A new one, in nobody's order yet.
    pub(super) fn new(device: &Arc<dyn Device>, log: &CallLog) -> Result<Self> {
        let event = log.call(Call::CreateEvent, || Event::new(device, EventKind::Order))?;
        let handle = event.handle();
        Ok(Self { event: Some(event), handle, device: Arc::clone(device), log: log.clone() })
    }

    /// One after all work enqueued on `stream`.
    pub(super) fn after(
        device: &Arc<dyn Device>,
        log: &CallLog,
        stream: StreamHandle,
    ) -> Result<Self> {
        let point = Self::new(device, log)?;
        point.record(stream)?;
        Ok(point)
    }

    /// Puts it after all work enqueued on `stream`.
    pub(super) fn record(&self, stream: StreamHandle) -> Result<()> {
        let record = || self.device.record_event(self.handle, stream);
        Ok(self.log.call(Call::RecordEvent, record)?)
    }

    /// Makes `stream` wait for it, on the device.
    pub(super) fn make_wait(&self, stream: StreamHandle) -> Result<()> {
        let wait = || self.device.wait_event(stream, self.handle);
        Ok(self.log.call(Call::WaitEvent, wait)?)
    }

    /// Whether it is known to be reached. Where asking fails it is not.
    pub(super) fn is_reached(&self) -> bool {
        self.query().is_ok_and(|progress| progress == Progress::Done)
    }

    /// Whether it is reached.
    pub(super) fn query(&self) -> Result<Progress> {
        Ok(self.log.call(Call::QueryEvent, || self.device.query_event(self.handle))?)
    }

    /// Waits for it, on the host.
    pub(super) fn synchronize(&self) -> Result<()> {
        let wait = || self.device.synchronize_event(self.handle);
        Ok(self.log.wait(Call::SynchronizeEvent, Bytes::ZERO, wait)?)
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        let event = self.event.take();
        if self.log.is_forked() {
            core::mem::forget(event);
            return;
        }
        self.log.call(Call::DestroyEvent, || drop(event));
    }
}
