//! `forebay.View`: a part of an allocation as elements, which keeps the allocation alive.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::allocation::Pin;
use crate::array_view::ArrayView;
use crate::dlpack;
use crate::failure::Failure;
use crate::memory::Memory;
use crate::protocol::{BufferType, take_next};

/// A part of a buffer as elements of one type, in a shape. Its memory is kept as long as it lives.
///
/// Made by ``Buffer.view()`` and ``forebay.from_dlpack()``.
#[pyclass(name = "_View", module = "forebay", extends = Memory, frozen, subclass)]
pub(crate) struct ViewCore;

/// `forebay.View`.
pub(crate) static VIEW: BufferType<ViewCore> = BufferType::named(c"forebay.View");

/// A new `forebay.View` of pinned memory.
pub(crate) fn new_view(py: Python<'_>, pin: Pin, array: ArrayView) -> Result<Py<PyAny>, Failure> {
    VIEW.construct(py, Memory::view(pin, array))
}

#[pymethods]
impl ViewCore {
    #[new]
    #[pyo3(signature = (*_arguments))]
    fn new(_arguments: &Bound<'_, PyTuple>) -> PyResult<PyClassInitializer<Self>> {
        let memory = take_next().filter(|memory| !memory.is_buffer()).ok_or_else(|| {
            PyTypeError::new_err("views are made by Buffer.view() and forebay.from_dlpack()")
        })?;
        Ok(PyClassInitializer::from(memory).add_subclass(Self))
    }

    /// The type of its elements, by name.
    #[getter]
    fn dtype(slf: &Bound<'_, Self>) -> &'static str {
        memory(slf).array().dtype().name
    }

    /// How many elements in each dimension.
    #[getter]
    fn shape<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        memory(slf).array().shape_tuple(slf.py())
    }

    /// Whether it is read-only.
    #[getter]
    fn readonly(slf: &Bound<'_, Self>) -> bool {
        !memory(slf).array().writable()
    }

    fn __repr__(slf: &Bound<'_, Self>) -> String {
        let (array, device) = (memory(slf).array(), memory(slf).allocation().device().name());
        format!("<forebay.View of {array} on {device}>")
    }
}

fn memory<'a>(view: &'a Bound<'_, ViewCore>) -> &'a Memory {
    view.as_super().get()
}

/// A ``View`` that shares the memory of an object with DLPack: a contiguous tensor, on the host or on a GPU.
#[pyfunction]
pub(crate) fn from_dlpack(object: &Bound<'_, PyAny>) -> Result<Py<PyAny>, Failure> {
    let (pin, array) = dlpack::import(object)?;
    new_view(object.py(), pin, array)
}
