//! A lock that refuses a thread that already holds it, and code of the program that runs while its thread holds another.
//!
//! A call on a buffer may run code of the program: the callback that frees memory for a pool, a host task on a device
//! without threads. If that code uses the same buffer, it gets an error; an ordinary lock would wait for itself. It gets
//! one also if another thread has the buffer that it uses, since that thread may run such code too, and wait for this one.

use core::ops::{Deref, DerefMut};
use core::ptr;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::callback::Callbacks;
use crate::sync::lock;

thread_local! {
    /// How many of these locks this thread holds.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// A value used by one thread at a time.
#[derive(Debug)]
pub(crate) struct ReentryLock<T> {
    value: Mutex<T>,
    /// The [number](this_thread) of the thread that has the value; 0 if none has.
    holder: AtomicUsize,
}

/// The value, for the duration of a call.
#[derive(Debug)]
pub(crate) struct ReentryGuard<'a, T> {
    holder: &'a AtomicUsize,
    value: MutexGuard<'a, T>,
}

/// A number that no other living thread has: the address of a thread-local.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| ptr::from_ref(here).addr())
}

impl<T> ReentryLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), holder: AtomicUsize::new(0) }
    }

    /// Waits until no other thread has the value. `None` if this thread has it, or may not wait.
    pub(crate) fn take(&self) -> Option<ReentryGuard<'_, T>> {
        // Relaxed: a thread always sees its own stores, and no other thread stores its number.
        if self.holder.load(Ordering::Relaxed) == this_thread() {
            return None;
        }
        let value = if Callbacks::is_inside() && HELD.get() > 0 {
            match self.value.try_lock() {
                Ok(value) => value,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return None,
            }
        } else {
            lock(&self.value)
        };
        HELD.set(HELD.get() + 1);
        self.holder.store(this_thread(), Ordering::Relaxed);
        Some(ReentryGuard { holder: &self.holder, value })
    }

    /// The value, without the lock.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for ReentryGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for ReentryGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for ReentryGuard<'_, T> {
    fn drop(&mut self) {
        self.holder.store(0, Ordering::Relaxed);
        HELD.set(HELD.get().saturating_sub(1));
    }
}
