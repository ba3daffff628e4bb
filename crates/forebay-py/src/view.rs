//! Views: parts of buffers as elements.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::access::{array, copy_from, copy_to, cuda_array_interface, part_of, to_bytes};
use crate::device::PyDevice;
use crate::dlpack::{self, Wish};
use crate::face::Face;
use crate::fork::Held;
use crate::lot::Pin;
use crate::making::{Cargo, new_view, unpack};
use crate::protocol::Shown;
use crate::quantity::whole;
use crate::refusal::Refusal;

/// A part of a buffer as elements of one type, in a shape. Its memory is kept as long as it lives.
///
/// Made by ``Buffer.view()`` and ``forebay.from_dlpack()``.
#[pyclass(name = "_View", module = "forebay", frozen, subclass, weakref)]
pub(crate) struct ViewCore {
    pin: Held<Pin>,
    face: Face,
}

impl Shown for ViewCore {
    fn of<'a>(object: &'a Bound<'_, Self>) -> &'a Self {
        object.get()
    }

    fn show(&self) -> Result<(Pin, Face), Refusal> {
        Ok((self.pin.lot().pin()?, self.face.clone()))
    }
}

#[pymethods]
impl ViewCore {
    #[new]
    #[pyo3(signature = (*_arguments))]
    fn new(_arguments: &Bound<'_, PyTuple>) -> PyResult<Self> {
        match unpack() {
            Some(Cargo::View(pin, face)) => Ok(Self { pin: Held::new(pin), face }),
            _ => Err(PyTypeError::new_err(
                "views are made by Buffer.view() and forebay.from_dlpack()",
            )),
        }
    }

    /// The type of its elements, by name.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.face.dtype().name
    }

    /// How many elements in each direction.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.face.shape_tuple(py)
    }

    /// How many bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.face.bytes()
    }

    /// Whether it may be read alone.
    #[getter]
    fn readonly(&self) -> bool {
        !self.face.writable()
    }

    /// Where it begins, as a number.
    #[getter]
    fn address(&self) -> u64 {
        self.face.address(self.pin.lot()).get()
    }

    /// The device it is of.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice::new(Arc::clone(self.pin.lot().site()))
    }

    /// A part of it, as ``Buffer.view()`` makes them.
    #[pyo3(signature = (dtype = None, shape = None, offset = 0))]
    fn view(
        &self,
        py: Python<'_>,
        dtype: Option<&Bound<'_, PyAny>>,
        shape: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = whole::<u64>)] offset: u64,
    ) -> Result<Py<PyAny>, Refusal> {
        let (pin, face) = py.detach(|| self.show())?;
        part_of(py, (pin, &face), dtype, (shape, offset))
    }

    /// As ``Buffer.copy_from()``.
    #[pyo3(signature = (source, offset = 0, stream = None))]
    fn copy_from(
        &self,
        source: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = whole::<u64>)] offset: u64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<(), Refusal> {
        copy_from((&self.pin, &self.face), source, offset, stream)
    }

    /// As ``Buffer.copy_to()``.
    #[pyo3(signature = (target, offset = 0, stream = None))]
    fn copy_to(
        &self,
        target: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = whole::<u64>)] offset: u64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<(), Refusal> {
        copy_to((&self.pin, &self.face), target, offset, stream)
    }

    /// What it holds, as bytes.
    #[pyo3(signature = (stream = None))]
    fn to_bytes<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyBytes>, Refusal> {
        to_bytes(py, (&self.pin, &self.face), stream)
    }

    /// As of a buffer, with its elements and shape.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> Result<Bound<'py, PyAny>, Refusal> {
        let (pin, face) = py.detach(|| self.show())?;
        dlpack::export(py, pin, &face, &Wish { stream, max_version, device: dl_device, copy })
    }

    /// The kind and number of its device, as DLPack has them.
    fn __dlpack_device__(&self) -> Result<(i32, i32), Refusal> {
        dlpack::device_of(self.pin.lot())
    }

    /// As of a buffer, with its elements and shape.
    #[getter]
    fn __cuda_array_interface__<'py>(
        &self,
        py: Python<'py>,
    ) -> Result<Bound<'py, PyDict>, Refusal> {
        cuda_array_interface(py, (&self.pin, &self.face))
    }

    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        array(slf.as_any(), dtype, copy)
    }

    fn __repr__(&self) -> String {
        let (name, shape) = (self.face.dtype().name, self.face.shape());
        format!("<forebay.View of {name} {shape:?} on {}>", self.pin.lot().site().name())
    }
}

/// The memory of an object that speaks DLPack, shared, as a ``View``: a tensor in one piece, on the host or
/// on a GPU.
#[pyfunction]
pub(crate) fn from_dlpack(object: &Bound<'_, PyAny>) -> Result<Py<PyAny>, Refusal> {
    let (pin, face) = dlpack::import(object)?;
    new_view(object.py(), pin, face)
}
