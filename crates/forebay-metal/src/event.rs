//! Events: values of streams' timelines.

use core::time::Duration;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use forebay_hal::{
    Call, Error, EventEntry, EventHandle, EventKind, EventTable, Progress, Result, invalid,
};
use forebay_sync::lock;
use objc2_metal::MTLCommandBuffer;

use crate::stream::StreamCore;

/// The events of all devices.
pub(crate) static EVENTS: EventTable<Mutex<Option<Record>>> = EventTable::new();

/// A point in a stream.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    core: Arc<StreamCore>,
    value: u64,
    /// When it was reached, of a timed event.
    time: Arc<OnceLock<Instant>>,
}

/// The latest record.
fn record_of(call: Call, handle: EventHandle) -> Result<Option<Record>> {
    Ok(lock(&EVENTS.get(call, handle)?.state).clone())
}

/// Puts the event after all that is enqueued on the stream. A timed one is a function of the host that reads the clock.
pub(crate) fn record(
    event: &EventEntry<Mutex<Option<Record>>>,
    core: &Arc<StreamCore>,
) -> Result<()> {
    let time = Arc::new(OnceLock::new());
    let value = match event.kind {
        EventKind::Order => core.last(),
        EventKind::Timed => {
            let time = Arc::clone(&time);
            core.task(Call::RecordEvent, move || {
                let _ = time.set(Instant::now());
            })?
        }
    };
    *lock(&event.state) = Some(Record { core: Arc::clone(core), value, time });
    Ok(())
}

/// Makes later work of the stream wait, on the device, for the latest record.
pub(crate) fn make_stream_wait(core: &Arc<StreamCore>, handle: EventHandle) -> Result<()> {
    let call = Call::WaitEvent;
    let Some(record) = record_of(call, handle)? else { return Ok(()) };
    if Arc::ptr_eq(&record.core, core) || record.core.has_reached(record.value) {
        return Ok(());
    }
    core.submit(call, Vec::new(), |commands| {
        commands.encodeWaitForEvent_value(record.core.timeline(), record.value);
        Ok(())
    })?;
    Ok(())
}

pub(crate) fn query(handle: EventHandle) -> Result<Progress> {
    let call = Call::QueryEvent;
    match record_of(call, handle)? {
        Some(record) => record.core.progress(call, record.value),
        None => Ok(Progress::Done),
    }
}

pub(crate) fn synchronize(handle: EventHandle) -> Result<()> {
    let call = Call::SynchronizeEvent;
    match record_of(call, handle)? {
        Some(record) => record.core.wait(call, record.value),
        None => Ok(()),
    }
}

pub(crate) fn elapsed(start: EventHandle, end: EventHandle) -> Result<Duration> {
    let (start, end) = (time_of("start", start)?, time_of("end", end)?);
    Ok(end.saturating_duration_since(start))
}

/// When a timed event was reached.
fn time_of(argument: &'static str, handle: EventHandle) -> Result<Instant> {
    let call = Call::Elapsed;
    let event = EVENTS.get(call, handle)?;
    let record = lock(&event.state).clone().filter(|_| event.kind == EventKind::Timed);
    let Some(record) = record else {
        return Err(invalid(call, argument, handle, "an event that is timed and was recorded"));
    };
    let busy = || Error::Busy { call, what: format!("{handle} was not reached").into() };
    record.time.get().copied().ok_or_else(busy)
}
