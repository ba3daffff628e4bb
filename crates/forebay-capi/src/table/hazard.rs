//! Who is inside what: each thread has a place where it writes down the handle it is using.
//!
//! A place is written by its thread alone and read by whoever closes something. It outlives its
//! thread and serves the next, so that reading it needs no thought.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::barrier;

/// A thread's place: the handle it is using, or 0. On lines of the cache of its own, since its thread
/// writes there with every call.
#[repr(align(128))]
pub(super) struct Place {
    inside: AtomicU64,
}

/// All places there are, and those whose threads have ended.
struct Places {
    all: Vec<&'static Place>,
    free: Vec<&'static Place>,
}

static PLACES: Mutex<Places> = Mutex::new(Places { all: Vec::new(), free: Vec::new() });

fn places() -> std::sync::MutexGuard<'static, Places> {
    PLACES.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// Without a destructor, so that reaching it is a load.
    static MINE: Cell<Option<&'static Place>> = const { Cell::new(None) };
    /// Gives the place back when the thread ends.
    static LEASE: Lease = Lease::take();
}

struct Lease(&'static Place);

impl Lease {
    fn take() -> Self {
        let mut places = places();
        if let Some(place) = places.free.pop() {
            return Self(place);
        }
        // As many as there ever were threads at once.
        let place: &'static Place = Box::leak(Box::new(Place { inside: AtomicU64::new(0) }));
        places.all.push(place);
        Self(place)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Destructors that run after this one find things the slow way.
        let _ = MINE.try_with(|mine| mine.set(None));
        places().free.push(self.0);
    }
}

/// This thread's place, where it has one and is inside nothing.
#[inline(always)]
pub(super) fn mine() -> Option<&'static Place> {
    let place = MINE.try_with(Cell::get).ok().flatten()?;
    // Written by this thread alone.
    (place.inside.load(Ordering::Relaxed) == 0).then_some(place)
}

/// Sees that this thread has a place from the next call on, where there can be any.
pub(super) fn settle() {
    if barrier::available()
        && MINE.try_with(Cell::get) == Ok(None)
        && let Ok(place) = LEASE.try_with(|lease| lease.0)
    {
        let _ = MINE.try_with(|mine| mine.set(Some(place)));
    }
}

impl PartialEq for &'static Place {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(*self, *other)
    }
}

/// The time a thread is inside something. Ends by a panic too.
pub(super) struct Visit(&'static Place);

impl Place {
    /// Writes down that the thread is inside `id`, before anything that is read from here on. There are
    /// places only where the barrier is one-sided, so a light one is enough.
    #[inline(always)]
    pub(super) fn enter(&'static self, id: u64) -> Visit {
        self.inside.store(id, Ordering::Relaxed);
        barrier::light();
        Visit(self)
    }
}

impl Drop for Visit {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: what was done inside is done before whoever sees this ends the thing.
        self.0.inside.store(0, Ordering::Release);
        barrier::light();
        super::look_for_graves();
    }
}

/// Whether any thread is inside `id`. Exact for what was closed, and a heavy barrier passed, before.
pub(super) fn anyone_in(id: u64) -> bool {
    places().all.iter().any(|place| place.inside.load(Ordering::Acquire) == id)
}
