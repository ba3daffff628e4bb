//! What threads share, in small protocols that know no device.
//!
//! * [`seat`]: a small number for each thread, its own for as long as it lives.
//! * [`gate`]: data that one thread enters almost for free, and others by shutting it out.
//! * [`gates`]: a gate for each seat, and the ways to visit all of them.
//! * [`barrier`]: the order between owner and visitor, paid by the visitor.
//!
//! Atomics come through [`atomic`] so that a model checker can stand in for them
//! (`RUSTFLAGS="--cfg loom" cargo test -p forebay --lib loom`).

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

pub mod barrier;
pub(crate) mod gate;
pub(crate) mod gates;
pub(crate) mod seat;
pub(crate) mod tracked;

/// Locks a mutex, one that a thread panicked under too: what this crate has under locks is changed in
/// steps that each leave it whole.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a mutex as [`lock`] does, unless a thread has it, the calling one included.
pub(crate) fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Atomics, the machine's or the model checker's.
pub(crate) mod atomic {
    #[cfg(not(loom))]
    pub(crate) use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
    #[cfg(loom)]
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
}
