//! Pooled events: none is ever destroyed, because a wait may still refer to it.
//!
//! A handle is a number that is never reused; the driver's event behind it is reused once the handle is unused. That is
//! safe because a wait refers to the record that was current when it was made, and recording the event again does not
//! affect it.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_hal::{
    Call, Error, EventHandle, EventKind, Progress, Result, StreamHandle, fresh_handle, invalid,
};

use crate::CudaDevice;
use crate::context::Context;
use crate::refusal::CallInfo;
use crate::sys::values::event;
use crate::sys::{Code, RawEvent, Refusal};

/// The unused events of a context.
#[derive(Debug, Default)]
pub(crate) struct EventPool {
    order: Mutex<Vec<RawEvent>>,
    timed: Mutex<Vec<RawEvent>>,
}

impl EventPool {
    const fn of(&self, kind: EventKind) -> &Mutex<Vec<RawEvent>> {
        match kind {
            EventKind::Order => &self.order,
            EventKind::Timed => &self.timed,
        }
    }
}

/// An event in use. Goes back to its pool when the last user lets it go.
#[derive(Debug)]
pub(crate) struct EventCore {
    pub(crate) raw: RawEvent,
    context: &'static Context,
    kind: EventKind,
    /// The device that made it, which alone destroys and records it.
    owner: u64,
    /// The driver's event may carry a record from an earlier life: until there is one of this, it
    /// counts as never recorded.
    recorded: AtomicBool,
}

impl EventCore {
    /// An event of the context, from the pool or new.
    pub(crate) fn take(
        context: &'static Context,
        kind: EventKind,
        owner: u64,
    ) -> core::result::Result<Self, Refusal> {
        let spare = context.events.of(kind).lock().unwrap_or_else(PoisonError::into_inner).pop();
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
                context.driver.events_made.fetch_add(1, Ordering::Relaxed);
                raw
            }
        };
        Ok(Self { raw, context, kind, owner, recorded: AtomicBool::new(false) })
    }

    /// Whether the device of this number made it.
    pub(crate) const fn is_of(&self, serial: u64) -> bool {
        self.owner == serial
    }

    /// Whether there is a record to wait for.
    fn is_recorded(&self) -> bool {
        self.recorded.load(Ordering::Acquire)
    }

    /// Puts it after all work of a live stream of its context.
    pub(crate) fn record(
        &self,
        stream: crate::sys::RawStream,
    ) -> core::result::Result<(), Refusal> {
        // SAFETY: the event is live while this value is, and the stream by the caller's word.
        self.context.call(|table| unsafe { table.event_record(self.raw, stream) })?;
        self.recorded.store(true, Ordering::Release);
        Ok(())
    }

    /// Makes later work of a live stream wait for it, on the device.
    pub(crate) fn hold_back(
        &self,
        stream: crate::sys::RawStream,
    ) -> core::result::Result<(), Refusal> {
        // SAFETY: the event is live while this value is, and the stream by the caller's word.
        self.context.call(|table| unsafe { table.stream_wait_event(stream, self.raw, 0) })
    }

    /// Whether it was reached.
    pub(crate) fn query(&self) -> core::result::Result<Progress, Refusal> {
        if !self.is_recorded() {
            return Ok(Progress::Done);
        }
        // SAFETY: the event is live while this value is.
        progress(self.context.call(|table| unsafe { table.event_query(self.raw) }))
    }

    /// Waits until it was reached.
    pub(crate) fn synchronize(&self) -> core::result::Result<(), Refusal> {
        if !self.is_recorded() {
            return Ok(());
        }
        // SAFETY: the event is live while this value is.
        self.context.call(|table| unsafe { table.event_synchronize(self.raw) })
    }
}

impl Drop for EventCore {
    fn drop(&mut self) {
        let pool = self.context.events.of(self.kind);
        pool.lock().unwrap_or_else(PoisonError::into_inner).push(self.raw);
    }
}

/// A query's answer: not ready is no failure.
pub(crate) fn progress(
    outcome: core::result::Result<(), Refusal>,
) -> core::result::Result<Progress, Refusal> {
    match outcome {
        Ok(()) => Ok(Progress::Done),
        Err(refusal) if refusal.code == Code::ERROR_NOT_READY => Ok(Progress::Pending),
        Err(refusal) => Err(refusal),
    }
}

/// The event calls of the contract.
impl CudaDevice {
    pub(crate) fn event(&self, call: Call, event: EventHandle) -> Result<Arc<EventCore>> {
        let events = self.context.driver.events.read().unwrap_or_else(PoisonError::into_inner);
        events.get(&event.0).cloned().ok_or_else(|| not_an_event(call, event))
    }

    /// An event this device made.
    fn own_event(&self, call: Call, event: EventHandle) -> Result<Arc<EventCore>> {
        let found = self.event(call, event)?;
        if found.owner == self.serial { Ok(found) } else { Err(not_an_event(call, event)) }
    }

    pub(crate) fn new_event(&self, kind: EventKind) -> Result<EventHandle> {
        let core = EventCore::take(self.context, kind, self.serial).map_err(|refusal| {
            let asked = CallInfo::of("kind", format!("{kind:?}"), "order or timed");
            self.refused(Call::CreateEvent, refusal, &asked)
        })?;
        let handle = fresh_handle();
        let mut events = self.context.driver.events.write().unwrap_or_else(PoisonError::into_inner);
        events.insert(handle, Arc::new(core));
        Ok(EventHandle(handle))
    }

    pub(crate) fn end_event(&self, event: EventHandle) -> Result<()> {
        self.own_event(Call::DestroyEvent, event)?;
        let mut events = self.context.driver.events.write().unwrap_or_else(PoisonError::into_inner);
        // Two threads may both have found it; one of them is too late.
        match events.remove(&event.0) {
            Some(_) => Ok(()),
            None => Err(not_an_event(Call::DestroyEvent, event)),
        }
    }

    pub(crate) fn record(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        let call = Call::RecordEvent;
        let lane = self.stream(call, stream)?;
        let event = self.own_event(call, event)?;
        event.record(lane.raw).map_err(|refusal| {
            let asked = CallInfo::of("stream", stream, "a live stream of the event's context");
            self.refused(call, refusal, &asked)
        })
    }

    pub(crate) fn wait(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        let call = Call::WaitEvent;
        let lane = self.stream(call, stream)?;
        let core = self.event(call, event)?;
        if !core.is_recorded() {
            return Ok(());
        }
        core.hold_back(lane.raw).map_err(|refusal| {
            self.refused(call, refusal, &CallInfo::of("event", event, "an event of this machine"))
        })
    }

    pub(crate) fn event_progress(&self, event: EventHandle) -> Result<Progress> {
        let call = Call::QueryEvent;
        let core = self.event(call, event)?;
        core.query().map_err(|refusal| {
            self.refused(call, refusal, &CallInfo::of("event", event, "a live event"))
        })
    }

    pub(crate) fn wait_for_event(&self, event: EventHandle) -> Result<()> {
        let call = Call::SynchronizeEvent;
        let core = self.event(call, event)?;
        core.synchronize().map_err(|refusal| {
            self.refused(call, refusal, &CallInfo::of("event", event, "a live event"))
        })
    }

    pub(crate) fn time_between(&self, start: EventHandle, end: EventHandle) -> Result<Duration> {
        let call = Call::Elapsed;
        let cores = [("start", start), ("end", end)].map(|(argument, handle)| {
            let core = self.event(call, handle)?;
            if core.kind != EventKind::Timed || !core.is_recorded() {
                let lack = if core.is_recorded() { "keeps no time" } else { "was never recorded" };
                let given = format!("{handle}, which {lack}");
                return Err(invalid(call, argument, given, "a timed event that was recorded"));
            }
            Ok(core)
        });
        let [first, last] = cores;
        let (first, last) = (first?, last?);
        let mut milliseconds = 0.0_f32;
        let told = self.context.call(|table| {
            // SAFETY: both events are live while their values are, and the time is written to a
            // place of our own.
            unsafe { table.event_elapsed(&raw mut milliseconds, first.raw, last.raw) }
        });
        told.map_err(|refusal| match refusal.code {
            Code::ERROR_NOT_READY => {
                Error::Busy { call, what: format!("{start} or {end} was not reached yet").into() }
            }
            _ => {
                let given = format!("{start} and {end}");
                self.refused(call, refusal, &CallInfo::of("start", given, "events of one device"))
            }
        })?;
        // An end before its start is a negative time, which there is no room for: none.
        Ok(Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).unwrap_or_default())
    }
}

fn not_an_event(call: Call, event: EventHandle) -> Error {
    invalid(call, "event", event, "an event that was made and not destroyed")
}
