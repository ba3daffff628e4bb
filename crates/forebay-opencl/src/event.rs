//! Events of the contract: names for points in streams.
//!
//! An event stands for the last command of its stream when it was recorded. Waits hold that command's OpenCL event, so
//! recording again or destroying the name does not affect them.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use forebay_hal::{
    Call, Error, EventHandle, EventKind, Progress, Result, StreamHandle, fresh_handle, invalid,
};
use forebay_sync::fork::PerProcess;
use forebay_sync::lock;

use crate::OpenClDevice;
use crate::code::{Asked, Outcome};
use crate::context::Context;
use crate::object::Event;
use crate::stream::about;
use crate::task;

/// The events of all OpenCL devices: one device's streams may wait for another's event.
static EVENTS: PerProcess<BTreeMap<EventHandle, Arc<NamedEvent>>> = PerProcess::new();

/// A point that a stream comes to, or came to.
#[derive(Clone, Debug)]
struct Record {
    context: &'static Context,
    /// `None` where the stream had nothing to do.
    event: Option<Event>,
}

/// An event of the contract.
#[derive(Debug)]
pub(crate) struct NamedEvent {
    kind: EventKind,
    /// The device that made it, which alone destroys and records it.
    owner: u64,
    latest: Mutex<Option<Record>>,
}

impl NamedEvent {
    /// What a wait is for; `None` where nothing is to be waited for.
    fn awaited(&self) -> Option<(&'static Context, Event)> {
        let Record { context, event } = lock(&self.latest).clone()?;
        Some((context, event?))
    }
}

/// Forgets the events of a device that goes.
pub(crate) fn forget_events_of(owner: u64) {
    EVENTS.lock().retain(|_, event| event.owner != owner);
}

/// The event calls of the contract.
impl OpenClDevice {
    fn event(&self, call: Call, event: EventHandle) -> Result<Arc<NamedEvent>> {
        self.descriptor.check_process(call)?;
        EVENTS.lock().get(&event).map(Arc::clone).ok_or_else(|| not_an_event(call, event))
    }

    fn own_event(&self, call: Call, event: EventHandle) -> Result<Arc<NamedEvent>> {
        let found = self.event(call, event)?;
        if found.owner == self.serial { Ok(found) } else { Err(not_an_event(call, event)) }
    }

    pub(crate) fn new_event(&self, kind: EventKind) -> Result<EventHandle> {
        self.descriptor.check_process(Call::CreateEvent)?;
        let handle = EventHandle(fresh_handle());
        let event = NamedEvent { kind, owner: self.serial, latest: Mutex::default() };
        EVENTS.lock().insert(handle, Arc::new(event));
        Ok(handle)
    }

    pub(crate) fn end_event(&self, event: EventHandle) -> Result<()> {
        let call = Call::DestroyEvent;
        self.own_event(call, event)?;
        // Two threads may both have found it; one of them is too late.
        let removed = EVENTS.lock().remove(&event);
        removed.map(drop).ok_or_else(|| not_an_event(call, event))
    }

    pub(crate) fn record(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        let call = Call::RecordEvent;
        let queue = self.queue(call, stream)?;
        let named = self.own_event(call, event)?;
        let mut latest = lock(&named.latest);
        let event = match named.kind {
            // The last command's event will do: nothing is enqueued for this.
            EventKind::Order => queue.tail(),
            EventKind::Timed => {
                let marked = queue.begin().mark();
                Some(marked.map_err(|refusal| self.refused(call, refusal, &about(stream)))?)
            }
        };
        *latest = Some(Record { context: queue.context, event });
        Ok(())
    }

    pub(crate) fn make_stream_wait(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        let call = Call::WaitEvent;
        let queue = self.queue(call, stream)?;
        let Some((context, awaited)) = self.event(call, event)?.awaited() else { return Ok(()) };
        if awaited.is_over() {
            return Ok(());
        }
        let mut submission = queue.begin();
        let waited = if core::ptr::eq(context, queue.context) {
            submission.join(&[&awaited])
        } else {
            // OpenCL's waits end at the context; a thread of ours carries the news across.
            task::enqueue_after(&mut submission, Some(&awaited), Box::new(|| ()))
        };
        waited.map_err(|refusal| {
            self.refused(call, refusal, &Asked::of("event", event, "an event of OpenCL"))
        })
    }

    pub(crate) fn event_progress(&self, event: EventHandle) -> Result<Progress> {
        let call = Call::QueryEvent;
        let awaited = self.event(call, event)?.awaited();
        self.settled(call, event, awaited.map_or(Ok(Progress::Done), |(_, event)| event.progress()))
    }

    pub(crate) fn wait_for_event(&self, event: EventHandle) -> Result<()> {
        let call = Call::SynchronizeEvent;
        let awaited = self.event(call, event)?.awaited();
        self.settled(call, event, awaited.map_or(Ok(()), |(_, event)| event.wait()))
    }

    pub(crate) fn time_between(&self, start: EventHandle, end: EventHandle) -> Result<Duration> {
        let call = Call::Elapsed;
        let find = |argument, handle| {
            let event = self.event(call, handle)?;
            let lack = match event.kind {
                EventKind::Order => "made for order alone",
                EventKind::Timed => "never recorded",
            };
            event.awaited().filter(|_| event.kind == EventKind::Timed).ok_or_else(|| {
                let given = format!("{handle}, {lack}");
                invalid(call, argument, given, "a timed event that was recorded")
            })
        };
        let ((here, first), (there, last)) = (find("start", start)?, find("end", end)?);
        if !core::ptr::eq(here, there) {
            let given = format!("{end}, of another device than {start}");
            return Err(invalid(call, "end", given, "events of one device, which has one clock"));
        }
        for (handle, event) in [(start, &first), (end, &last)] {
            if self.settled(call, handle, event.progress())? == Progress::Pending {
                let what = format!("{handle} was recorded and is not reached yet");
                return Err(Error::Busy { call, what: what.into() });
            }
        }
        let first = self.settled(call, start, first.end_time())?;
        let last = self.settled(call, end, last.end_time())?;
        // Zero where the end was reached before the start, as it may be on two streams.
        Ok(Duration::from_nanos(last.saturating_sub(first)))
    }

    fn settled<T>(&self, call: Call, event: EventHandle, outcome: Outcome<T>) -> Result<T> {
        let settled = outcome.map_err(|refusal| {
            self.refused(call, refusal, &Asked::of("event", event, "a live event"))
        })?;
        self.lost.check(call)?;
        Ok(settled)
    }
}

fn not_an_event(call: Call, event: EventHandle) -> Error {
    invalid(call, "event", event, "an event that was made and not destroyed")
}
