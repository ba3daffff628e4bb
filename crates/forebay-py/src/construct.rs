//! How `Buffer`, `View` and `PinnedArray` objects are constructed: by calling their Python types.
//!
//! The types that Python sees add the buffer protocol to classes of PyO3, and PyO3 cannot construct objects of
//! such a type. So the type is called as Python calls it, and the object's [`Memory`] waits in a thread-local
//! until the constructor takes it.

use core::cell::Cell;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::allocation::{Allocation, Pin};
use crate::array_view::ArrayView;
use crate::buffer::BufferCore;
use crate::failure::Failure;
use crate::memory::Memory;
use crate::pinned::PinnedArrayCore;
use crate::protocol::buffer_protocol_type;
use crate::view::ViewCore;

static BUFFER: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static VIEW: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static PINNED_ARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// `forebay.Buffer`.
pub(crate) fn buffer_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    let made =
        BUFFER.get_or_try_init(py, || buffer_protocol_type::<BufferCore>(py, c"forebay.Buffer"));
    Ok(made?.bind(py))
}

/// `forebay.View`.
pub(crate) fn view_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    let made = VIEW.get_or_try_init(py, || buffer_protocol_type::<ViewCore>(py, c"forebay.View"));
    Ok(made?.bind(py))
}

/// `forebay.PinnedArray`.
pub(crate) fn pinned_array_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    let make = || buffer_protocol_type::<PinnedArrayCore>(py, c"forebay.PinnedArray");
    Ok(PINNED_ARRAY.get_or_try_init(py, make)?.bind(py))
}

/// A new `forebay.Buffer` of `allocation`.
pub(crate) fn new_buffer(
    py: Python<'_>,
    allocation: Arc<Allocation>,
) -> Result<Py<PyAny>, Failure> {
    construct(buffer_type(py)?, Memory::buffer(allocation))
}

/// A new `forebay.View` of pinned memory.
pub(crate) fn new_view(py: Python<'_>, pin: Pin, array: ArrayView) -> Result<Py<PyAny>, Failure> {
    construct(view_type(py)?, Memory::view(pin, array))
}

/// A new `forebay.PinnedArray` of an array of a pool of pinned memory.
pub(crate) fn new_pinned_array(
    py: Python<'_>,
    pin: Pin,
    array: ArrayView,
) -> Result<Py<PyAny>, Failure> {
    construct(pinned_array_type(py)?, Memory::view(pin, array))
}

thread_local! {
    /// The memory of the object that this thread constructs next.
    static NEXT: Cell<Option<Memory>> = const { Cell::new(None) };
}

/// The memory for the constructor that runs on this thread; `None` where a program called the type itself.
pub(crate) fn take_next() -> Option<Memory> {
    NEXT.take()
}

fn construct(class: &Bound<'_, PyType>, memory: Memory) -> Result<Py<PyAny>, Failure> {
    // A value that waits already belongs to a construction that this one interrupted: the garbage collector
    // may run any code.
    let interrupted = NEXT.replace(Some(memory));
    let object = class.call0();
    NEXT.set(interrupted);
    Ok(object?.unbind())
}
