//! How buffers and views come to be: through Python's own call of their types.
//!
//! The types that Python sees add the buffer protocol to classes of the bindings, which cannot make objects of
//! them. So the type is called as Python calls it, and what the object is made of waits on the thread.

use core::cell::Cell;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::buffer::BufferCore;
use crate::face::Face;
use crate::lot::{Lot, Pin};
use crate::protocol::showing_type;
use crate::refusal::Refusal;
use crate::view::ViewCore;

static BUFFER: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static VIEW: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// The type of buffers.
pub(crate) fn buffer_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    let made = BUFFER.get_or_try_init(py, || showing_type::<BufferCore>(py, c"forebay.Buffer"));
    Ok(made?.bind(py))
}

/// The type of views.
pub(crate) fn view_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    let made = VIEW.get_or_try_init(py, || showing_type::<ViewCore>(py, c"forebay.View"));
    Ok(made?.bind(py))
}

/// A buffer over `lot`.
pub(crate) fn new_buffer(py: Python<'_>, lot: Arc<Lot>) -> Result<Py<PyAny>, Refusal> {
    make(buffer_type(py)?, Cargo::Buffer(lot))
}

/// A view of memory in use.
pub(crate) fn new_view(py: Python<'_>, pin: Pin, face: Face) -> Result<Py<PyAny>, Refusal> {
    make(view_type(py)?, Cargo::View(pin, face))
}

/// What becomes a buffer or a view.
pub(crate) enum Cargo {
    /// The memory of a buffer.
    Buffer(Arc<Lot>),
    /// A use of memory, and what it is seen as.
    View(Pin, Face),
}

thread_local! {
    /// What the next object of this thread is made of.
    static NEXT: Cell<Option<Cargo>> = const { Cell::new(None) };
}

/// What an object is made of that Python's call of its type makes on this thread; nothing where it was not
/// asked for here.
pub(crate) fn unpack() -> Option<Cargo> {
    NEXT.take()
}

fn make(made: &Bound<'_, PyType>, cargo: Cargo) -> Result<Py<PyAny>, Refusal> {
    // What waits already is of a call that was interrupted: a collection of garbage may run any code.
    let waiting = NEXT.replace(Some(cargo));
    let object = made.call0();
    NEXT.set(waiting);
    Ok(object?.unbind())
}
