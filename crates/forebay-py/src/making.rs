//! How buffers and views come to be: through Python's own call of their types.
//!
//! The types that Python sees add the buffer protocol to classes of the bindings, which cannot make objects of
//! them. So what an object is made of travels as the argument of the call.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::buffer::BufferCore;
use crate::face::Face;
use crate::lot::{Lot, Pin};
use crate::protocol::showing_type;
use crate::refusal::Refusal;
use crate::site::lock;
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
    let parcel = Bound::new(py, Parcel::of(Cargo::Buffer(lot)))?;
    Ok(buffer_type(py)?.call1((parcel,))?.unbind())
}

/// A view of memory in use.
pub(crate) fn new_view(py: Python<'_>, pin: Pin, face: Face) -> Result<Py<PyAny>, Refusal> {
    let parcel = Bound::new(py, Parcel::of(Cargo::View(pin, face)))?;
    Ok(view_type(py)?.call1((parcel,))?.unbind())
}

/// What a new object is made of, on its way through Python's own call of the type. Of no use to others.
#[pyclass(frozen, module = "forebay")]
pub(crate) struct Parcel(Mutex<Option<Cargo>>);

/// What becomes a buffer or a view.
pub(crate) enum Cargo {
    /// The memory of a buffer.
    Buffer(Arc<Lot>),
    /// A use of memory, and what it is seen as.
    View(Pin, Face),
}

impl Parcel {
    fn of(cargo: Cargo) -> Self {
        Self(Mutex::new(Some(cargo)))
    }

    /// What is in it; nothing where it is none, or empty by now.
    pub(crate) fn unpack(parcel: Option<&Bound<'_, PyAny>>) -> Option<Cargo> {
        let parcel = parcel?.cast::<Self>().ok()?;
        lock(&parcel.get().0).take()
    }
}
