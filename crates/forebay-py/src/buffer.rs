//! Buffers: memory in Python's hands.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::access::{array, copy_from, copy_to, course, cuda_array_interface, part_of, to_bytes};
use crate::device::PyDevice;
use crate::dlpack::{self, Wish};
use crate::face::Face;
use crate::fork::Held;
use crate::lot::{Lot, Pin};
use crate::making::{Cargo, unpack};
use crate::protocol::Shown;
use crate::quantity::{whole, whole_or_none};
use crate::refusal::Refusal;
use crate::stream::PyStream;
use crate::transfer::{self, Part};

/// Memory of a device: made by ``Pool.allocate()``, ``Arena.allocate()`` and ``Device.pinned()``.
///
/// It goes back to where it came from by ``free()``, at the end of its ``with``, or when the last reference
/// to it and to its views is gone. Memory that the host can reach has the buffer protocol, so that
/// ``memoryview(buffer)`` and ``numpy.asarray(buffer)`` share it.
#[pyclass(name = "_Buffer", module = "forebay", frozen, subclass, weakref)]
pub(crate) struct BufferCore {
    lot: Held<Arc<Lot>>,
}

impl Shown for BufferCore {
    fn of<'a>(object: &'a Bound<'_, Self>) -> &'a Self {
        object.get()
    }

    fn show(&self) -> Result<(Pin, Face), Refusal> {
        Ok((self.lot.pin()?, Face::whole(&self.lot)))
    }
}

#[pymethods]
impl BufferCore {
    #[new]
    #[pyo3(signature = (*_arguments))]
    fn new(_arguments: &Bound<'_, PyTuple>) -> PyResult<Self> {
        match unpack() {
            Some(Cargo::Buffer(lot)) => Ok(Self { lot: Held::new(lot) }),
            _ => Err(PyTypeError::new_err(
                "buffers are made by Pool.allocate(), Arena.allocate() and Device.pinned()",
            )),
        }
    }

    /// How many bytes: what was asked for.
    #[getter]
    fn size(&self) -> u64 {
        self.lot.size().get()
    }

    /// The same, by the name that arrays have for it.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.lot.size().get()
    }

    /// Where it begins, as a number; 0 for a buffer of no bytes. Good until it is freed.
    #[getter]
    fn address(&self, py: Python<'_>) -> Result<u64, Refusal> {
        py.detach(|| Ok(self.lot.pin()?.lot().address().get()))
    }

    /// The stream in whose order it was allocated and is freed.
    #[getter]
    fn stream(&self) -> PyStream {
        PyStream::new(self.lot.course())
    }

    /// The device it is of.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice::new(Arc::clone(self.lot.site()))
    }

    /// Whether it was freed.
    #[getter]
    fn freed(&self) -> bool {
        self.lot.is_freed()
    }

    /// Give the memory back, in the order of ``stream``; of its own unless said. What comes next on that
    /// stream may use it. Refused while views of it live, and a second time.
    #[pyo3(signature = (stream = None))]
    fn free(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> Result<(), Refusal> {
        let course = course(&self.lot, stream)?;
        py.detach(|| self.lot.free(&course))
    }

    /// The same as ``free()``, but that closing twice does nothing.
    fn close(&self, py: Python<'_>) -> Result<(), Refusal> {
        if self.lot.is_freed() { Ok(()) } else { self.free(py, None) }
    }

    /// A part of it as elements: ``dtype`` by name or as numpy's, in ``shape``, from byte ``offset`` on.
    /// Without a shape all that is left, in a row.
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

    /// Copy all of ``source`` into it, from byte ``offset`` on, and wait for that. The source is anything
    /// with the buffer protocol, or a buffer or view of the same device.
    #[pyo3(signature = (source, offset = 0, stream = None))]
    fn copy_from(
        &self,
        source: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = whole::<u64>)] offset: u64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<(), Refusal> {
        let (pin, face) = source.py().detach(|| self.show())?;
        copy_from((&pin, &face), source, offset, stream)
    }

    /// Fill all of ``target`` with what is here from byte ``offset`` on, and wait for that. The target is
    /// anything with the buffer protocol that can be written, or a buffer or view of the same device.
    #[pyo3(signature = (target, offset = 0, stream = None))]
    fn copy_to(
        &self,
        target: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = whole::<u64>)] offset: u64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<(), Refusal> {
        let (pin, face) = target.py().detach(|| self.show())?;
        copy_to((&pin, &face), target, offset, stream)
    }

    /// What it holds, as bytes.
    #[pyo3(signature = (stream = None))]
    fn to_bytes<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyBytes>, Refusal> {
        let (pin, face) = py.detach(|| self.show())?;
        to_bytes(py, (&pin, &face), stream)
    }

    /// Fill it with a byte, from ``offset`` on, ``size`` bytes or all that is left. Without ``wait`` the
    /// call returns before it is done, and the device keeps the order.
    #[pyo3(signature = (value, offset = 0, size = None, stream = None, wait = true))]
    fn fill(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::<u8>)] value: u8,
        #[pyo3(from_py_with = whole::<u64>)] offset: u64,
        #[pyo3(from_py_with = whole_or_none::<u64>)] size: Option<u64>,
        stream: Option<&Bound<'_, PyAny>>,
        wait: bool,
    ) -> Result<(), Refusal> {
        let (pin, face) = py.detach(|| self.show())?;
        let size = size.unwrap_or(face.bytes().saturating_sub(offset));
        let offset = face.span(offset, size)?;
        let course = course(&self.lot, stream)?;
        py.detach(|| transfer::fill(Part { pin: &pin, offset, size }, value, &course, wait))
    }

    /// A DLPack capsule of it, as bytes. The memory is kept until whoever takes the tensor lets it go.
    ///
    /// ``stream`` waits for the buffer's. What is freed after the tensor waits for ``stream`` too where it is
    /// the default one, a ``forebay.Stream``, or was adopted: ``Device.adopt()`` first a stream that may
    /// still have work with the tensor when that is let go. Any other is not asked for anything later.
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
        dlpack::device_of(&self.lot)
    }

    /// Its memory as CUDA libraries want it, as bytes. For memory of CUDA devices alone.
    #[getter]
    fn __cuda_array_interface__<'py>(
        &self,
        py: Python<'py>,
    ) -> Result<Bound<'py, PyDict>, Refusal> {
        let (pin, face) = py.detach(|| self.show())?;
        cuda_array_interface(py, (&pin, &face))
    }

    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        array(slf.as_any(), dtype, copy)
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.lot.size().get()).unwrap_or(usize::MAX)
    }

    /// A buffer is true, however small it is.
    fn __bool__(&self) -> bool {
        true
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> Result<(), Refusal> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let (size, name) = (self.lot.size().get(), self.lot.site().name());
        let freed = if self.lot.is_freed() { ", freed" } else { "" };
        format!("<forebay.Buffer of {size} B on {name}{freed}>")
    }
}
