//! Events.
//!
//! An event is a name; each time it is recorded it stands for a new [`Record`]. Waits hold the record that was the
//! latest when they began, so a later record or destroying the event does not affect them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use forebay_hal::{EventTable, Progress};

/// The events of all host devices.
pub(crate) static EVENTS: EventTable<Latest> = EventTable::new();

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

/// The latest record of an event.
#[derive(Debug, Default)]
pub(crate) struct Latest(Mutex<Option<Arc<Record>>>);

impl Latest {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Record>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self) -> Option<Arc<Record>> {
        self.lock().as_ref().map(Arc::clone)
    }

    /// Makes a new record with `enqueue`, and the latest one where that succeeds. Two threads that
    /// record one event at once do so one after the other.
    pub(crate) fn record<E>(
        &self,
        enqueue: impl FnOnce(Arc<Record>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut latest = self.lock();
        let record = Arc::new(Record::default());
        enqueue(Arc::clone(&record))?;
        *latest = Some(record);
        Ok(())
    }
}
