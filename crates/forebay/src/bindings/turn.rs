//! Turns: one call at a time uses a value, and no lock is held while it does.
//!
//! A call of a buffer may wait for the device, or call the program's own shortage callback. So the value is taken out of
//! its place for the time of the call, and other threads sleep until it is back. The thread that has it already is
//! refused: a callback that uses the buffer it is called for would wait for itself.

use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use crate::sync::lock;

/// A value that one call at a time uses.
#[derive(Debug)]
pub(super) struct TakeTurns<T> {
    place: Mutex<Place<T>>,
    returned: Condvar,
}

#[derive(Debug)]
enum Place<T> {
    /// Nobody uses it.
    Here(T),
    /// A call of that thread has it.
    TakenBy(ThreadId),
    /// It was removed for good.
    Gone,
}

/// Why there is no turn.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoTurn {
    /// This thread has the value already.
    SameThread,
    /// The value was removed.
    Gone,
}

impl<T> TakeTurns<T> {
    pub(super) fn new(value: T) -> Self {
        Self { place: Mutex::new(Place::Here(value)), returned: Condvar::new() }
    }

    /// Waits until no other call has the value, and takes it.
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

/// The value for the time of a call. It goes back when this is dropped, also by a panic.
pub(super) struct Turn<'a, T> {
    owner: &'a TakeTurns<T>,
    /// Always there, until the turn ends.
    value: Option<T>,
}

impl<T> Turn<'_, T> {
    /// Calls `work` with the value.
    pub(super) fn with<R>(&mut self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.value.as_mut().map(work)
    }

    /// Takes the value out for good. Later calls find it gone.
    pub(super) fn remove(mut self) -> Option<T> {
        self.value.take()
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        self.owner.put(self.value.take().map_or(Place::Gone, Place::Here));
    }
}
