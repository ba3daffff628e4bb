//! The synchronisation protocols of a pool, independent of any device. An internal part of `forebay`, in a
//! crate of its own so that Miri and the model checker build nothing else.
//!
//! * [`thread_slot`]: a small number for each living thread.
//! * [`gate`]: data that its owner thread accesses almost for free, and others by shutting the owner out.
//! * [`gates`]: a gate for each thread slot, and ways to visit all of them.
//! * [`barrier`]: an asymmetric barrier between owner and visitor, paid for by the visitor.
//! * [`map`]: the state of the block at an address, found and changed without a lock.
//! * [`quota`]: bytes reserved against a limit that pools share.
//! * [`exit`]: work at the end of the process.
//! * [`fork`]: values that a forked child leaks, and process-wide data that no fork leaves locked.
//! * [`thread`]: threads that a forked child can start.
//! * [`tracked`]: locks that are counted in debug builds.
//!
//! Atomics come through `atomic` so that a model checker can stand in for them
//! (`RUSTFLAGS="--cfg loom" cargo test -p forebay-sync --lib loom`).

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

pub mod barrier;
#[cfg(not(loom))]
pub mod exit;
pub mod fork;
pub mod gate;
pub mod gates;
pub mod map;
pub mod quota;
pub mod thread;
pub mod thread_slot;
pub mod tracked;
mod zeroed;

/// Locks a mutex and ignores poisoning: data behind these locks is consistent after every step, so a panic
/// leaves it usable.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Like [`lock`], but returns `None` if any thread holds the lock, including this one.
pub fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Marks the branch that calls it as unlikely. (The standard library has this from Rust 1.95 on.)
#[cold]
#[inline(always)]
pub(crate) fn cold_path() {}

/// Atomics, the machine's or the model checker's.
pub(crate) mod atomic {
    #[cfg(not(loom))]
    pub(crate) use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
    #[cfg(loom)]
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
}
