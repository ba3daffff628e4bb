//! The log of driver calls, and events that log their calls.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use forebay_core::Bytes;
use forebay_hal::{Call, Device, Event, EventHandle, EventKind, Progress, StreamHandle};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::Result;
use crate::sync::fork::ForkGeneration;
use crate::sync::{lock, tracked};

/// The number of duration ranges: from a microsecond, each four times as long as the one before, up to four seconds,
/// and one for longer calls.
const LATENCIES: usize = 13;

/// How often a pool called the driver, by kind of call and size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverLog {
    counts: BTreeMap<(Call, Bytes), u64>,
    time: Duration,
    latencies: [u64; LATENCIES],
}

impl DriverLog {
    pub(crate) fn note(&mut self, call: Call, size: Bytes, took: Duration) {
        *self.counts.entry((call, size)).or_default() += 1;
        self.time = self.time.saturating_add(took);
        let range = Self::bounds().position(|bound| took <= bound);
        if let Some(count) = range.and_then(|range| self.latencies.get_mut(range)) {
            *count += 1;
        }
    }

    /// The longest duration of each range.
    fn bounds() -> impl Iterator<Item = Duration> {
        let finite = (0..LATENCIES - 1).map(|range| Duration::from_micros(1 << (2 * range)));
        finite.chain([Duration::MAX])
    }

    /// How long calls took: for each range, its longest duration and how many calls fell into it. The last range ends
    /// at [`Duration::MAX`].
    pub fn latencies(&self) -> impl Iterator<Item = (Duration, u64)> {
        Self::bounds().zip(self.latencies)
    }

    /// The total wall-clock time of all calls.
    pub fn time(&self) -> Duration {
        self.time
    }

    /// Each kind of call, its size in bytes, and how often it was made.
    pub fn entries(&self) -> impl Iterator<Item = (Call, Bytes, u64)> {
        self.counts.iter().map(|(&(call, size), &count)| (call, size, count))
    }

    /// How often one kind of call was made, over all sizes.
    pub fn of(&self, call: Call) -> u64 {
        self.entries().filter(|&(kind, ..)| kind == call).map(|(.., count)| count).sum()
    }
}

/// Writes `driver`, a list of calls with their size and number, and `driver_ns`, their total wall-clock time.
impl Serialize for DriverLog {
    fn serialize<S: Serializer>(&self, to: S) -> core::result::Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Calls {
            call: &'static str,
            size_bytes: u64,
            count: u64,
        }

        let calls = |(call, size, count): (Call, Bytes, u64)| Calls {
            call: call.name(),
            size_bytes: size.get(),
            count,
        };
        let mut log = to.serialize_struct("DriverLog", 2)?;
        log.serialize_field("driver", &self.entries().map(calls).collect::<Vec<_>>())?;
        let time = u64::try_from(self.time().as_nanos()).unwrap_or(u64::MAX);
        log.serialize_field("driver_ns", &time)?;
        log.end()
    }
}

/// The driver calls of a pool. Clones share the log.
///
/// Its own lock is the last in the lock order. It is held only to add or copy entries, never during a driver call, so
/// reading the log never waits for the driver.
#[derive(Clone, Debug)]
pub(in crate::pool) struct CallLog {
    log: Arc<Mutex<DriverLog>>,
    /// The process that made the log.
    fork_generation: ForkGeneration,
}

impl Default for CallLog {
    fn default() -> Self {
        Self { log: Arc::default(), fork_generation: ForkGeneration::here() }
    }
}

impl CallLog {
    /// Makes a driver call over `size` bytes and logs it.
    pub(in crate::pool) fn make<T>(&self, call: Call, size: Bytes, make: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let made = make();
        lock(&self.log).note(call, size, begun.elapsed());
        made
    }

    /// Makes a driver call that involves no memory and logs it.
    pub(in crate::pool) fn call<T>(&self, call: Call, make: impl FnOnce() -> T) -> T {
        self.make(call, Bytes::ZERO, make)
    }

    /// Makes a driver call over `size` bytes that may wait for work of the device, and logs it. The caller holds no
    /// lock of a pool: the work may itself wait for a thread that needs the lock.
    pub(in crate::pool) fn wait<T>(&self, call: Call, size: Bytes, make: impl FnOnce() -> T) -> T {
        debug_assert_eq!(tracked::held(), 0, "{call:?} would wait with a lock of a pool held");
        self.make(call, size, make)
    }

    pub(in crate::pool) fn snapshot(&self) -> DriverLog {
        lock(&self.log).clone()
    }
}

/// A device event of a pool. Every driver call on it is logged.
#[derive(Debug)]
pub(in crate::pool) struct LoggedEvent {
    /// `None` only while it is being dropped.
    event: Option<Event>,
    handle: EventHandle,
    device: Arc<dyn Device>,
    log: CallLog,
}

impl LoggedEvent {
    /// Creates an event that is not recorded yet.
    pub(in crate::pool) fn new(device: &Arc<dyn Device>, log: &CallLog) -> Result<Self> {
        let event = log.call(Call::CreateEvent, || Event::new(device, EventKind::Order))?;
        let handle = event.handle();
        Ok(Self { event: Some(event), handle, device: Arc::clone(device), log: log.clone() })
    }

    /// Creates an event and records it after all work enqueued on `stream` so far.
    pub(in crate::pool) fn after(
        device: &Arc<dyn Device>,
        log: &CallLog,
        stream: StreamHandle,
    ) -> Result<Self> {
        let event = Self::new(device, log)?;
        event.record(stream)?;
        Ok(event)
    }

    /// Records it after all work enqueued on `stream` so far.
    pub(in crate::pool) fn record(&self, stream: StreamHandle) -> Result<()> {
        let record = || self.device.record_event(self.handle, stream);
        Ok(self.log.call(Call::RecordEvent, record)?)
    }

    pub(in crate::pool) fn make_wait(&self, stream: StreamHandle) -> Result<()> {
        let wait = || self.device.wait_event(stream, self.handle);
        Ok(self.log.call(Call::WaitEvent, wait)?)
    }

    /// Whether the event is reached. A failed query counts as not reached.
    pub(in crate::pool) fn is_reached(&self) -> bool {
        self.query().is_ok_and(|progress| progress == Progress::Done)
    }

    pub(in crate::pool) fn query(&self) -> Result<Progress> {
        Ok(self.log.call(Call::QueryEvent, || self.device.query_event(self.handle))?)
    }

    pub(in crate::pool) fn synchronize(&self) -> Result<()> {
        let wait = || self.device.synchronize_event(self.handle);
        Ok(self.log.wait(Call::SynchronizeEvent, Bytes::ZERO, wait)?)
    }
}

impl Drop for LoggedEvent {
    fn drop(&mut self) {
        let event = self.event.take();
        // In a forked child the parent's driver objects cannot be released.
        if self.log.fork_generation.is_stale() {
            core::mem::forget(event);
            return;
        }
        self.log.call(Call::DestroyEvent, || drop(event));
    }
}
