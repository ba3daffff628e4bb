//! Pooled events: none is ever destroyed, because a wait may still refer to it.
//!
//! A handle is a number that is never reused; the driver's event behind it is reused once the handle is unused. That is
//! safe because a wait refers to the record that was current when it was made, and recording the event again does not
//! affect it.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

use forebay_hal::{EventKind, Progress};
use forebay_sync::lock;

use crate::context::Context;
use crate::sys::values::event;
use crate::sys::{Code, Outcome, RawEvent, RawStream};

/// The unused events of a context.
#[derive(Debug)]
pub(crate) struct EventPool {
    context: &'static Context,
    order: Mutex<Vec<RawEvent>>,
    timed: Mutex<Vec<RawEvent>>,
}

impl EventPool {
    pub(crate) fn new(context: &'static Context) -> Self {
        Self { context, order: Mutex::default(), timed: Mutex::default() }
    }

    /// An event of the context, from the pool or new. `owner` is the serial number of the device that makes it, or 0.
    pub(crate) fn take(&'static self, kind: EventKind, owner: u64) -> Outcome<EventCore> {
        let context = self.context;
        let spare = lock(self.of(kind)).pop();
        let raw = match spare {
            Some(raw) => raw,
            None => {
                let flags = match kind {
                    EventKind::Order => event::DISABLE_TIMING,
                    EventKind::Timed => event::DEFAULT,
                };
                let mut raw = RawEvent::NULL;
                // SAFETY: the event is written to a place of our own.
                context.call(|table| unsafe { table.event_create(&raw mut raw, flags) })?;
                context.created.events.fetch_add(1, Ordering::Relaxed);
                raw
            }
        };
        Ok(EventCore { raw, context, pool: self, kind, owner, recorded: AtomicBool::new(false) })
    }

    /// An event that was recorded on a live stream of the context, after all work that the stream has now.
    pub(crate) fn take_recorded(&'static self, stream: RawStream) -> Outcome<EventCore> {
        let event = self.take(EventKind::Order, 0)?;
        event.record(stream)?;
        Ok(event)
    }

    const fn of(&self, kind: EventKind) -> &Mutex<Vec<RawEvent>> {
        match kind {
            EventKind::Order => &self.order,
            EventKind::Timed => &self.timed,
        }
    }
}

/// An event in use. Returns to its pool when it is dropped.
#[derive(Debug)]
pub(crate) struct EventCore {
    pub(crate) raw: RawEvent,
    context: &'static Context,
    pool: &'static EventPool,
    pub(crate) kind: EventKind,
    /// The device that made it. Only that device destroys and records it.
    owner: u64,
    /// The driver's event may still have a record from its previous use, so this says whether it was recorded in this
    /// one.
    recorded: AtomicBool,
}

impl EventCore {
    /// Whether the device of this number made it.
    pub(crate) const fn is_of(&self, serial: u64) -> bool {
        self.owner == serial
    }

    /// Whether there is a record to wait for.
    pub(crate) fn is_recorded(&self) -> bool {
        self.recorded.load(Ordering::Acquire)
    }

    /// Puts it after all work of a live stream of its context.
    pub(crate) fn record(&self, stream: RawStream) -> Outcome {
        // SAFETY: the event is live while this value is, and the stream as the caller promised.
        self.context.call(|table| unsafe { table.event_record(self.raw, stream) })?;
        self.recorded.store(true, Ordering::Release);
        Ok(())
    }

    /// Makes later work of a live stream wait for it, on the device.
    pub(crate) fn hold_back(&self, stream: RawStream) -> Outcome {
        // SAFETY: the event is live while this value is, and the stream as the caller promised.
        self.context.call(|table| unsafe { table.stream_wait_event(stream, self.raw, 0) })
    }

    /// Whether it was reached.
    pub(crate) fn query(&self) -> Outcome<Progress> {
        if !self.is_recorded() {
            return Ok(Progress::Done);
        }
        // SAFETY: the event is live while this value is.
        progress(self.context.call(|table| unsafe { table.event_query(self.raw) }))
    }

    /// Waits until it was reached.
    pub(crate) fn synchronize(&self) -> Outcome {
        if !self.is_recorded() {
            return Ok(());
        }
        // SAFETY: the event is live while this value is.
        self.context.call(|table| unsafe { table.event_synchronize(self.raw) })
    }
}

impl Drop for EventCore {
    fn drop(&mut self) {
        lock(self.pool.of(self.kind)).push(self.raw);
    }
}

/// A query's answer: not ready is no failure.
pub(crate) fn progress(outcome: Outcome) -> Outcome<Progress> {
    match outcome {
        Ok(()) => Ok(Progress::Done),
        Err(refusal) if refusal.code == Code::ERROR_NOT_READY => Ok(Progress::Pending),
        Err(refusal) => Err(refusal),
    }
}
