//! Events.
//!
//! An event is a name; each time it is recorded it stands for a new [`Record`]. Waits hold the record that was the
//! latest when they began, so a later record or destroying the event does not affect them.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use forebay_hal::{EventHandle, EventKind, Progress};
use forebay_sync::fork::PerProcess;

/// The events of all host devices: one device's streams may wait for another's event. A forked child knows none
/// of its parent's: their locks may be held for ever.
static EVENTS: PerProcess<BTreeMap<EventHandle, Arc<Event>>> = PerProcess::new();

fn events() -> MutexGuard<'static, BTreeMap<EventHandle, Arc<Event>>> {
    EVENTS.lock()
}

/// One reaching of a point, to come or past.
#[derive(Debug, Default)]
pub(crate) struct Record {
    reached: Mutex<Option<Instant>>,
    came: Condvar,
}

impl Record {
    fn reached(&self) -> MutexGuard<'_, Option<Instant>> {
        self.reached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the point was reached; `None` where it is still to come.
    pub(crate) fn time(&self) -> Option<Instant> {
        *self.reached()
    }

    /// Reaches the point: everything before it in its stream is done.
    pub(super) fn reach(&self) {
        *self.reached() = Some(Instant::now());
        self.came.notify_all();
    }

    /// Waits until the point is reached.
    pub(crate) fn wait(&self) {
        let mut reached = self.reached();
        while reached.is_none() {
            reached = self.came.wait(reached).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether the point is reached.
    pub(crate) fn progress(&self) -> Progress {
        if self.time().is_some() { Progress::Done } else { Progress::Pending }
    }
}

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) kind: EventKind,
    latest: Mutex<Option<Arc<Record>>>,
}

impl Event {
    /// Makes an event that every host device can find.
    pub(crate) fn create(kind: EventKind) -> EventHandle {
        let handle = EventHandle(forebay_hal::fresh_handle());
        events().insert(handle, Arc::new(Self { kind, latest: Mutex::new(None) }));
        handle
    }

    /// The event, where the handle is good.
    pub(crate) fn find(handle: EventHandle) -> Option<Arc<Self>> {
        events().get(&handle).map(Arc::clone)
    }

    /// Ends the handle. Records and waits that were made stay.
    pub(crate) fn destroy(handle: EventHandle) {
        events().remove(&handle);
    }

    fn latest_slot(&self) -> MutexGuard<'_, Option<Arc<Record>>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The latest record.
    pub(crate) fn latest(&self) -> Option<Arc<Record>> {
        self.latest_slot().as_ref().map(Arc::clone)
    }

    /// Makes a new record with `enqueue`, and the latest one where that succeeds. Two threads that
    /// record one event at once do so one after the other.
    pub(crate) fn record<E>(
        &self,
        enqueue: impl FnOnce(Arc<Record>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut latest = self.latest_slot();
        let record = Arc::new(Record::default());
        enqueue(Arc::clone(&record))?;
        *latest = Some(record);
        Ok(())
    }
}
