//! What the threads of a pool share, in small protocols that know no device. An internal part of
//! `forebay`, in a crate of its own so that Miri and the model checker build nothing else.
//!
//! * [`thread_slot`]: a small number for each thread, its own for as long as it lives.
//! * [`gate`]: data that one thread enters almost for free, and others by shutting it out.
//! * [`gates`]: a gate for each thread slot, and the ways to visit all of them.
//! * [`barrier`]: the order between owner and visitor, paid by the visitor.
//! * [`map`]: what is known of the block at an address, found and changed without a lock.
//! * [`fork`]: what a forked child may use, values that it leaks, and lists of the whole process that no
//!   fork leaves locked.
//! * [`thread`]: threads that a forked child can start.
//! * [`tracked`]: locks that are counted in debug builds.
//!
//! Atomics come through `atomic` so that a model checker can stand in for them
//! (`RUSTFLAGS="--cfg loom" cargo test -p forebay-sync --lib loom`).

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

pub mod barrier;
pub mod fork;
pub mod gate;
pub mod gates;
pub mod map;
pub mod thread;
pub mod thread_slot;
pub mod tracked;

/// Locks a mutex, one that a thread panicked under too: what this crate has under locks is changed in
/// steps that each leave it whole.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a mutex as [`lock`] does, unless a thread has it, the calling one included.
pub fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
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
