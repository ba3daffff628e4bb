//! Forks: a child has a copy of the parent's memory and none of its threads.
//!
//! A device's streams are threads or a driver's, and a pool's locks may be held by threads that the
//! child does not have. So what was made before a fork is not used after it: every call says so, and
//! nothing is given back when it goes, since the memory is the parent's. The child opens its own.

use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::ledger;
use crate::refusal::Refusal;

/// How many forks lie between this process and the one that loaded the library.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Runs before a fork, in the thread that forks: nobody else is inside the ledger while it happens, so
/// the child finds it whole.
extern "C" fn before() {
    ledger::hold();
}

/// Runs after a fork in the parent.
extern "C" fn in_parent() {
    ledger::let_go();
}

/// Runs after a fork in the child, before anything else of it.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    ledger::let_go();
}

/// Counts forks from now on, however they are made.
pub(crate) fn watch() -> Result<(), Refusal> {
    static WATCHED: OnceLock<i32> = OnceLock::new();
    // SAFETY: the functions are there as long as the process, since Python unloads no extension, and they
    // touch nothing but an atomic number and a lock that the thread that forks takes and lets go.
    let code = *WATCHED.get_or_init(|| unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child))
    });
    if code == 0 {
        return Ok(());
    }
    Err(Refusal::invalid(format!("the system does not tell of forks (error {code})")))
}

/// The process in which something was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Birth(u32);

impl Birth {
    /// Here.
    pub(crate) fn here() -> Self {
        // Only the number matters, and only this process's own fork changes it.
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether this process is the one.
    pub(crate) fn is_here(self) -> bool {
        self == Self::here()
    }

    /// Whether it is the child of one that had the library.
    pub(crate) fn is_forked(self) -> bool {
        self.0 > 0
    }

    /// An error where it is not.
    pub(crate) fn check(self) -> Result<(), Refusal> {
        if self.is_here() { Ok(()) } else { Err(Refusal::Forked) }
    }
}

/// A value of the library that is used, and given back, in the process it was made in alone.
#[derive(Debug)]
pub(crate) struct Native<T> {
    value: ManuallyDrop<T>,
    born: Birth,
}

impl<T> Native<T> {
    /// A value made here and now.
    pub(crate) fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), born: Birth::here() }
    }

    /// The value, where this is its process.
    pub(crate) fn get(&self) -> Result<&T, Refusal> {
        self.born.check()?;
        Ok(&self.value)
    }

    /// The value, to be changed, where this is its process.
    pub(crate) fn get_mut(&mut self) -> Result<&mut T, Refusal> {
        self.born.check()?;
        Ok(&mut self.value)
    }

    /// The value itself, where this is its process. Elsewhere it is left as it is.
    pub(crate) fn take(mut self) -> Result<T, Refusal> {
        self.born.check()?;
        // SAFETY: the value is there, as only this takes it, and what is forgotten is not dropped.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        core::mem::forget(self);
        Ok(value)
    }
}

impl<T> Drop for Native<T> {
    fn drop(&mut self) {
        if self.born.is_here() {
            // SAFETY: the value is there, and is not used after this.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// Does work that can wait in the drop of an object of Python's, which has Python's lock: without it.
pub(crate) fn unlocked(work: impl FnOnce() + Send) {
    // SAFETY: it may be called by any thread at any time. One that Python does not know, as that of a
    // library that lets a tensor go, has no lock of Python's and shall not wait for it.
    if unsafe { ffi::PyGILState_GetThisThreadState() }.is_null() {
        return work();
    }
    let mut work = Some(work);
    Python::try_attach(|py| py.detach(|| work.take().map(|work| work())));
    // Python is at its end, and nobody waits for its lock any more.
    if let Some(work) = work {
        work();
    }
}

/// What may have to wait when it goes: for a lock of a pool, or for the device.
pub(crate) trait Ending: Send {
    /// Whether it may now.
    fn may_wait(&self) -> bool;
}

/// A value of an object of Python's, which goes without Python's lock where it may wait: who holds what it
/// waits for may be asking Python.
pub(crate) struct Held<T: Ending>(ManuallyDrop<T>);

impl<T: Ending> Held<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }
}

impl<T: Ending> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Ending> Drop for Held<T> {
    fn drop(&mut self) {
        // SAFETY: the value is there until this takes it, and nothing comes after this.
        let value = unsafe { ManuallyDrop::take(&mut self.0) };
        if value.may_wait() {
            unlocked(|| drop(value));
        }
    }
}
