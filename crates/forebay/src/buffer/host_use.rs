//! Copies in flight that touch host memory, and their durations.

use std::sync::Arc;

use forebay_core::Replica;
use forebay_hal::{self as hal, Call, Device, Event, EventKind, StreamHandle};

use super::statistics::Counters;
use crate::retry::retry_once;

/// Smallest copy, in bytes, that is timed. A copy of this size takes some 10 us, the extra event about 1 us. Tests time
/// nearly all copies, so that injected faults strike there too.
const TIMED_FROM: u64 = if cfg!(test) { 512 } else { 64 << 10 };

/// Work in flight that reads or writes host memory.
#[derive(Debug)]
pub(super) struct HostUse {
    /// Recorded after that work; `None` if the device had no event to give, in which case we wait for the whole device.
    event: Option<Event>,
    timed: Option<TimedCopy>,
}

/// A copy that is timed.
#[derive(Debug)]
pub(super) struct TimedCopy {
    /// Recorded before it.
    start: Event,
    to: Replica,
    bytes: u64,
}

impl TimedCopy {
    /// Starts timing a copy of `bytes` about to be enqueued on `stream`. `None` if it is too small to time or the
    /// device cannot time it.
    pub(super) fn start(
        device: &Arc<dyn Device>,
        stream: StreamHandle,
        to: Replica,
        bytes: u64,
    ) -> Option<Self> {
        if bytes < TIMED_FROM {
            return None;
        }
        let start = Event::new(device, EventKind::Timed).ok()?;
        device.record_event(start.handle(), stream).ok()?;
        Some(Self { start, to, bytes })
    }
}

impl HostUse {
    /// Tracks everything enqueued on `stream` so far: a copy, timed or not.
    pub(super) fn on(
        device: &Arc<dyn Device>,
        stream: StreamHandle,
        timed: Option<TimedCopy>,
    ) -> Self {
        let kind = if timed.is_some() { EventKind::Timed } else { EventKind::Order };
        let record = || {
            let event = Event::new(device, kind)?;
            device.record_event(event.handle(), stream)?;
            Ok::<_, hal::Error>(event)
        };
        let event = retry_once(record).ok();
        Self { event, timed }
    }

    /// Counts the duration of the copy, which is done.
    pub(super) fn count_time(&self, statistics: &Counters) {
        if let (Some(end), Some(TimedCopy { start, to, bytes })) = (&self.event, &self.timed)
            && let Ok(time) = end.since(start)
        {
            statistics.count_time(*to, *bytes, time);
        }
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
        retry_once(|| match &self.event {
            Some(event) => event.synchronize(),
            None => device.synchronize_device(),
        })
    }

    /// Whether the work is known to be done, without waiting.
    pub(super) fn is_done(&self) -> bool {
        let done = |event: &Event| matches!(event.query(), Ok(hal::Progress::Done));
        self.event.as_ref().is_some_and(done)
    }
}
