//! Turns: gives one call at a time exclusive use of a value, without holding a lock during the call.
//!
//! A call on a buffer may wait for the device, or invoke the program's shortage callback. So the call takes the value
//! out of its place, and other threads sleep until it is back. If the thread that has the value asks again, it gets an
//! error: a callback that uses its own buffer would otherwise deadlock.

use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use crate::sync::lock;

/// A value used by one call at a time.
#[derive(Debug)]
pub(super) struct TakeTurns<T> {
    place: Mutex<Place<T>>,
    returned: Condvar,
}

#[derive(Debug)]
enum Place<T> {
    /// Not in use.
    Here(T),
    /// In use by a call of that thread.
    TakenBy(ThreadId),
    /// Removed for good.
    Gone,
}

/// Why a turn was refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoTurn {
    /// This thread already has the value.
    SameThread,
    /// The value was removed.
    Gone,
}

impl<T> TakeTurns<T> {
    pub(super) fn new(value: T) -> Self {
        Self { place: Mutex::new(Place::Here(value)), returned: Condvar::new() }
    }

    /// Waits until no other call has the value, then takes it.
    pub(super) fn take(&self) -> Result<Turn<'_, T>, NoTurn> {
        let me = thread::current().id();
        let mut place = lock(&self.place);
        loop {
            match core::mem::replace(&mut *place, Place::TakenBy(me)) {
                Place::Here(value) => return Ok(Turn { owner: self, value: Some(value) }),
                other => *place = other,
            }
            match &*place {
                Place::TakenBy(other) if *other == me => return Err(NoTurn::SameThread),
                Place::Gone => return Err(NoTurn::Gone),
                _ => {}
            }
            place = self.returned.wait(place).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn put(&self, place: Place<T>) {
        *lock(&self.place) = place;
        self.returned.notify_all();
    }
}

/// The value for the duration of a call. Dropping this puts it back, also during a panic.
pub(super) struct Turn<'a, T> {
    owner: &'a TakeTurns<T>,
    /// `Some` until the turn ends.
    value: Option<T>,
}

impl<T> Turn<'_, T> {
    /// Calls `work` with the value.
    pub(super) fn with<R>(&mut self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.value.as_mut().map(work)
    }

    /// Removes the value for good. Later calls get [`NoTurn::Gone`].
    pub(super) fn remove(mut self) -> Option<T> {
        self.value.take()
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        self.owner.put(self.value.take().map_or(Place::Gone, Place::Here));
    }
}
