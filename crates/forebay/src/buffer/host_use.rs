//! Copies under way that touch host memory, and how long they took.

use std::sync::Arc;

use forebay_core::Replica;
use forebay_hal::{self as hal, Call, Device, Event, EventKind, StreamHandle};

use super::figures::Figures;
use crate::retry::retry_once;

/// Copies of fewer bytes are not timed. At this size a copy takes some 10 us, and the one event more that timing needs
/// about 1 us. Tests time nearly all copies, so that injected faults strike there too.
const TIMED_FROM: u64 = if cfg!(test) { 512 } else { 64 << 10 };

/// Work under way that reads or writes host memory.
#[derive(Debug)]
pub(super) struct HostUse {
    /// After that work; `None` if the device had none to give, so that the whole device is waited for.
    event: Option<Event>,
    timed: Option<TimedCopy>,
}

/// A copy that is timed.
#[derive(Debug)]
pub(super) struct TimedCopy {
    /// Before it.
    start: Event,
    to: Replica,
    bytes: u64,
}

impl TimedCopy {
    /// Before a copy of so many bytes is enqueued on `stream`. `None` if it is not worth timing, or the device does not:
    /// then it goes untimed.
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
    /// What was enqueued on `stream` so far: a copy, timed or not.
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

    /// Counts how long the copy took, which is done.
    pub(super) fn count_time(&self, figures: &Figures) {
        if let (Some(end), Some(TimedCopy { start, to, bytes })) = (&self.event, &self.timed)
            && let Ok(time) = end.since(start)
        {
            figures.count_time(*to, *bytes, time);
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

    /// Whether the work is done, as far as that can be known without waiting.
    pub(super) fn is_done(&self) -> bool {
        let done = |event: &Event| matches!(event.query(), Ok(hal::Progress::Done));
        self.event.as_ref().is_some_and(done)
    }
}
