//! Drops that release the GIL, and the interpreter that the module works in.
//!
//! Dropping some values waits for a pool's lock or for the device. The thread that holds such a lock may be
//! waiting for the GIL, so an object of Python's drops such a value with the GIL released.

use core::mem::ManuallyDrop;
use core::ops::Deref;
use std::sync::Arc;

use forebay::bindings::{Counted, CountedBuffer};
use forebay_sync::fork::LeakOnFork;
use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

/// The number of the main interpreter.
const MAIN: i64 = 0;

/// Fails in a sub-interpreter.
///
/// Threads of the library, frees and the buffer protocol take the GIL by `PyGILState_Ensure`, which knows the main
/// interpreter alone: a thread that runs another one waits there for the GIL that it holds itself.
pub(crate) fn check_interpreter() -> PyResult<()> {
    // SAFETY: this thread imports the module, so it runs an interpreter and holds its GIL.
    match unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) } {
        MAIN => Ok(()),
        number => Err(PyImportError::new_err(format!(
            "forebay works in the main interpreter alone, and this is sub-interpreter {number}: import it there, or \
             start a process with multiprocessing"
        ))),
    }
}

/// Does `work` with the GIL released, where this thread holds it.
pub(crate) fn without_gil(work: impl FnOnce() + Send) {
    // SAFETY: any thread may call it at any time. A thread that Python does not know, such as one of a
    // library that drops a tensor, does not hold the GIL and must not wait for it.
    if unsafe { ffi::PyGILState_GetThisThreadState() }.is_null() {
        return work();
    }
    let mut work = Some(work);
    Python::try_attach(|py| py.detach(|| work.take().map(|work| work())));
    // The interpreter is shutting down, and no thread waits for the GIL any more.
    if let Some(work) = work {
        work();
    }
}

/// A value whose drop may wait for a pool's lock or for the device.
pub(crate) trait MayBlockOnDrop: Send {
    /// Whether dropping it now may wait.
    fn may_block(&self) -> bool {
        true
    }
}

impl<T: Send> MayBlockOnDrop for LeakOnFork<T> {}

impl<T: Send> MayBlockOnDrop for Counted<T> {}

impl<T: Send + Sync> MayBlockOnDrop for Arc<LeakOnFork<T>> {
    fn may_block(&self) -> bool {
        Self::strong_count(self) == 1
    }
}

impl MayBlockOnDrop for Arc<CountedBuffer> {
    fn may_block(&self) -> bool {
        Self::strong_count(self) == 1
    }
}

/// A value inside an object of Python's, dropped with the GIL released where the drop may wait.
pub(crate) struct DropDetached<T: MayBlockOnDrop>(ManuallyDrop<T>);

impl<T: MayBlockOnDrop> DropDetached<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }
}

impl<T: MayBlockOnDrop> Deref for DropDetached<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: MayBlockOnDrop> Drop for DropDetached<T> {
    fn drop(&mut self) {
        // SAFETY: the value is initialised until this takes it out, and nothing uses the field afterwards.
        let value = unsafe { ManuallyDrop::take(&mut self.0) };
        if value.may_block() {
            without_gil(|| drop(value));
        }
    }
}
