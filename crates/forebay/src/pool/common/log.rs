//! The log of the driver's calls, and events whose every call is in it.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use forebay_core::Bytes;
use forebay_hal::{Call, Device, Event, EventHandle, EventKind, Progress, StreamHandle};

use crate::Result;
use crate::sync::fork::Birth;
use crate::sync::{lock, tracked};

/// How often the pool called the driver, and over what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverLog {
    counts: BTreeMap<(Call, Bytes), u64>,
    time: Duration,
}

impl DriverLog {
    /// Notes one call.
    pub(crate) fn note(&mut self, call: Call, size: Bytes, took: Duration) {
        *self.counts.entry((call, size)).or_default() += 1;
        self.time = self.time.saturating_add(took);
    }

    /// How long all of them took, by the clock.
    pub fn time(&self) -> Duration {
        self.time
    }

    /// Each kind of call, the size it was over, and how often it was made.
    pub fn entries(&self) -> impl Iterator<Item = (Call, Bytes, u64)> {
        self.counts.iter().map(|(&(call, size), &count)| (call, size, count))
    }

    /// How often a kind of call was made.
    pub fn of(&self, call: Call) -> u64 {
        self.entries().filter(|&(kind, ..)| kind == call).map(|(.., count)| count).sum()
    }
}

/// The calls of the driver that a pool made. Clones are the same log.
///
/// Its lock is its own and the last of all: it is held to note a call, never while one is made, so
/// whoever reads the log waits for nobody at the driver.
#[derive(Clone, Debug)]
pub(in crate::pool) struct CallLog {
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
    pub(in crate::pool) fn make<T>(&self, call: Call, size: Bytes, make: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let made = make();
        lock(&self.log).note(call, size, begun.elapsed());
        made
    }

    /// Makes one call over no memory, and notes it.
    pub(in crate::pool) fn call<T>(&self, call: Call, make: impl FnOnce() -> T) -> T {
        self.make(call, Bytes::ZERO, make)
    }

    /// Makes one call over `size` that may wait for work of the device, and notes it. With no lock of a
    /// pool held: that work may wait for whoever needs the lock.
    pub(in crate::pool) fn wait<T>(&self, call: Call, size: Bytes, make: impl FnOnce() -> T) -> T {
        debug_assert_eq!(tracked::held(), 0, "{call:?} would wait with a lock of a pool held");
        self.make(call, size, make)
    }

    /// The calls made so far.
    pub(in crate::pool) fn so_far(&self) -> DriverLog {
        lock(&self.log).clone()
    }

    /// Whether this is a forked child: then nothing of the parent's driver can be given back here.
    pub(in crate::pool) fn is_forked(&self) -> bool {
        self.birth.check().is_err()
    }
}

/// An event of a pool.
#[derive(Debug)]
pub(in crate::pool) struct Point {
    /// There until it is dropped.
    event: Option<Event>,
    handle: EventHandle,
    device: Arc<dyn Device>,
    log: CallLog,
}

impl Point {
    /// A new one, in nobody's order yet.
    pub(in crate::pool) fn new(device: &Arc<dyn Device>, log: &CallLog) -> Result<Self> {
        let event = log.call(Call::CreateEvent, || Event::new(device, EventKind::Order))?;
        let handle = event.handle();
        Ok(Self { event: Some(event), handle, device: Arc::clone(device), log: log.clone() })
    }

    /// One after all work enqueued on `stream`.
    pub(in crate::pool) fn after(
        device: &Arc<dyn Device>,
        log: &CallLog,
        stream: StreamHandle,
    ) -> Result<Self> {
        let point = Self::new(device, log)?;
        point.record(stream)?;
        Ok(point)
    }

    /// Puts it after all work enqueued on `stream`.
    pub(in crate::pool) fn record(&self, stream: StreamHandle) -> Result<()> {
        let record = || self.device.record_event(self.handle, stream);
        Ok(self.log.call(Call::RecordEvent, record)?)
    }

    /// Makes `stream` wait for it, on the device.
    pub(in crate::pool) fn make_wait(&self, stream: StreamHandle) -> Result<()> {
        let wait = || self.device.wait_event(stream, self.handle);
        Ok(self.log.call(Call::WaitEvent, wait)?)
    }

    /// Whether it is known to be reached. Where asking fails it is not.
    pub(in crate::pool) fn is_reached(&self) -> bool {
        self.query().is_ok_and(|progress| progress == Progress::Done)
    }

    /// Whether it is reached.
    pub(in crate::pool) fn query(&self) -> Result<Progress> {
        Ok(self.log.call(Call::QueryEvent, || self.device.query_event(self.handle))?)
    }

    /// Waits for it, on the host.
    pub(in crate::pool) fn synchronize(&self) -> Result<()> {
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
