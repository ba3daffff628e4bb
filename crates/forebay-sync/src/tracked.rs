//! Locks of a pool, counted per thread in debug builds, so that tests catch a wait for the device under a
//! lock.
//!
//! A wait for the device may last as long as the program's own work, and that work may wait for a thread
//! that needs the lock. So **a pool holds none of its locks while it waits for the program's work**. Its calls go through
//! `CallLog::wait`, which checks [`held`]; the last drop, a helper thread that holds no lock, and the debug checks' waits for
//! a stream of their own do not. Locks that the pool takes last and releases at once are not counted: those of its history,
//! its call log and process-wide lists.

use core::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};

#[cfg(debug_assertions)]
use core::cell::Cell;

#[cfg(debug_assertions)]
thread_local! {
    static LOCKS_HELD: Cell<u32> = const { Cell::new(0) };
}

/// A locked mutex of a pool.
#[derive(Debug)]
pub struct Guard<'a, T: ?Sized> {
    // Unlocked before the count goes down: no other thread reads this one's count.
    guard: MutexGuard<'a, T>,
    _counted: Counted,
}

/// Locks a mutex of a pool, as [`lock`](super::lock) does.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> Guard<'_, T> {
    Guard { guard: super::lock(mutex), _counted: Counted::new() }
}

/// Like [`lock`], but fails if any thread holds the lock, including this one.
pub fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<Guard<'_, T>> {
    super::try_lock(mutex).map(|guard| Guard { guard, _counted: Counted::new() })
}

impl<T: ?Sized> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: ?Sized> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// How many locks of pools this thread holds; always 0 in release builds.
#[inline]
pub fn held() -> u32 {
    #[cfg(debug_assertions)]
    return LOCKS_HELD.try_with(Cell::get).unwrap_or(0);
    #[cfg(not(debug_assertions))]
    0
}

/// One lock, counted as long as this lives.
#[derive(Debug)]
struct Counted;

impl Counted {
    #[inline(always)]
    fn new() -> Self {
        #[cfg(debug_assertions)]
        let _ = LOCKS_HELD.try_with(|held| held.set(held.get() + 1));
        Self
    }
}

#[cfg(debug_assertions)]
impl Drop for Counted {
    fn drop(&mut self) {
        let _ = LOCKS_HELD.try_with(|held| held.set(held.get().saturating_sub(1)));
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn locks_are_counted_while_they_are_held() {
        let (one, two) = (Mutex::new(1), Mutex::new(2));
        let before = held();
        let first = lock(&one);
        let second = lock(&two);
        assert_eq!((*first, *second), (1, 2));
        assert_eq!(held() - before, if cfg!(debug_assertions) { 2 } else { 0 });
        drop(first);
        drop(second);
        assert_eq!(held(), before);
    }
}
