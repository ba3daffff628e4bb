//! `forebay.Buffer`: a whole allocation, which Python frees.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::allocation::Allocation;
use crate::array::new_array;
use crate::array_view::{ArrayView, shape_argument};
use crate::copies;
use crate::dtype::Dtype;
use crate::engine::PyTransfer;
use crate::failure::Failure;
use crate::ffi::HostBytes;
use crate::host_side::HostSide;
use crate::memory::{Memory, Use, stream_or_own};
use crate::numpy;
use crate::protocol::{BufferType, Family, take_next};
use crate::quantity::{integer, optional_integer};
use crate::stream::PyStream;
use crate::transfer::{self, Direction, HostPointer, MemoryRange};

/// Memory of a device: made by ``Pool.allocate()``, ``Arena.allocate()`` and ``Device.pinned()``.
///
/// It is freed by ``free()``, at the end of its ``with``, or with the last reference to it and to its views. Memory that the host can reach has the buffer protocol, so that
/// ``memoryview(buffer)`` and ``numpy.asarray(buffer)`` share it.
#[pyclass(name = "_Buffer", module = "forebay", extends = Memory, frozen, subclass)]
pub(crate) struct BufferCore;

/// `forebay.Buffer`.
pub(crate) static BUFFER: BufferType<BufferCore> =
    BufferType::new(c"forebay.Buffer", Family::Alone);

/// A new `forebay.Buffer` of `allocation`.
pub(crate) fn new_buffer(
    py: Python<'_>,
    allocation: Arc<Allocation>,
) -> Result<Py<PyAny>, Failure> {
    BUFFER.construct(py, Memory::buffer(allocation))
}

#[pymethods]
impl BufferCore {
    #[new]
    #[pyo3(signature = (*_arguments))]
    fn new(_arguments: &Bound<'_, PyTuple>) -> PyResult<PyClassInitializer<Self>> {
        let memory = take_next().filter(Memory::is_whole).ok_or_else(|| {
            PyTypeError::new_err(
                "buffers are made by Pool.allocate(), Arena.allocate() and Device.pinned()",
            )
        })?;
        Ok(PyClassInitializer::from(memory).add_subclass(Self))
    }

    /// The requested size in bytes.
    #[getter]
    fn size(slf: &Bound<'_, Self>) -> u64 {
        memory(slf).array().bytes()
    }

    /// The stream in whose order it was allocated and is freed.
    #[getter]
    fn stream(slf: &Bound<'_, Self>) -> Result<PyStream, Failure> {
        Ok(PyStream::new(memory(slf).allocation()?.stream_ref()))
    }

    /// An array of a part of it: elements of ``dtype`` (a name, or numpy's) in ``shape``, from byte ``offset``
    /// on. Without a shape all that is left, in one dimension.
    #[pyo3(signature = (dtype = None, shape = None, offset = 0))]
    fn view(
        slf: &Bound<'_, Self>,
        dtype: Option<&Bound<'_, PyAny>>,
        shape: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = integer::<u64>)] offset: u64,
    ) -> Result<Py<PyAny>, Failure> {
        let (pin, array) = memory(slf).pinned(slf.py())?;
        let dtype = dtype.map_or(Ok(array.dtype()), Dtype::of_argument)?;
        let shape = shape.map(shape_argument).transpose()?;
        let array = ArrayView::within(&array, dtype, shape, offset)?;
        new_array(slf.py(), Memory::shared(pin, array))
    }

    /// Copy all bytes of ``source`` into it, from byte ``offset`` on, and wait. The source is anything with the buffer
    /// protocol, or memory of any device.
    #[pyo3(signature = (source, offset = 0, stream = None))]
    fn copy_from(
        slf: &Bound<'_, Self>,
        source: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = integer::<u64>)] offset: u64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<(), Failure> {
        copy(memory(slf), Direction::Up, source, offset, stream)
    }

    /// Copy from byte ``offset`` on into all of ``target``, and wait. The target is anything with the buffer protocol that
    /// can be written, or memory of any device.
    #[pyo3(signature = (target, offset = 0, stream = None))]
    fn copy_to(
        slf: &Bound<'_, Self>,
        target: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = integer::<u64>)] offset: u64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<(), Failure> {
        copy(memory(slf), Direction::Down, target, offset, stream)
    }

    /// Copy all bytes of ``source`` into it with several threads, from byte ``offset`` on, after the work on ``stream`` (by
    /// default its own), and wait. The source is host memory: anything with the buffer protocol, such as a numpy array, or
    /// with DLPack, such as a tensor of PyTorch's. ``priority`` is "low", "normal" or "high".
    #[pyo3(signature = (source, offset = 0, *, stream = None, priority = "normal"))]
    fn upload(
        slf: &Bound<'_, Self>,
        source: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = integer::<u64>)] offset: u64,
        stream: Option<&Bound<'_, PyAny>>,
        priority: &str,
    ) -> Result<(), Failure> {
        Self::upload_async(slf, source, offset, stream, priority)?.finish(slf.py()).map(drop)
    }

    /// As ``upload()``, and does not wait: returns a ``Transfer``.
    #[pyo3(signature = (source, offset = 0, *, stream = None, priority = "normal"))]
    fn upload_async(
        slf: &Bound<'_, Self>,
        source: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = integer::<u64>)] offset: u64,
        stream: Option<&Bound<'_, PyAny>>,
        priority: &str,
    ) -> Result<PyTransfer, Failure> {
        let (choices, host) = ((stream, priority), HostSide::of(source, false)?);
        let pinned = memory(slf).pinned(slf.py())?;
        let result = slf.clone().into_any().unbind();
        PyTransfer::with(slf.py(), Direction::Up, (pinned, offset), host, choices, result)
    }

    /// Copy from byte ``offset`` on to all of ``into`` with several threads, after the work on ``stream`` (by default its
    /// own), wait, and return ``into``: host memory as for ``upload()`` that can be written, by default a new numpy array of
    /// all bytes.
    #[pyo3(signature = (into = None, offset = 0, *, stream = None, priority = "normal"))]
    fn download(
        slf: &Bound<'_, Self>,
        into: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = integer::<u64>)] offset: u64,
        stream: Option<&Bound<'_, PyAny>>,
        priority: &str,
    ) -> Result<Py<PyAny>, Failure> {
        Self::download_async(slf, into, offset, stream, priority)?.finish(slf.py())
    }

    /// As ``download()``, and does not wait: returns a ``Transfer``.
    #[pyo3(signature = (into = None, offset = 0, *, stream = None, priority = "normal"))]
    fn download_async(
        slf: &Bound<'_, Self>,
        into: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = integer::<u64>)] offset: u64,
        stream: Option<&Bound<'_, PyAny>>,
        priority: &str,
    ) -> Result<PyTransfer, Failure> {
        let pinned = memory(slf).pinned(slf.py())?;
        let into = numpy::target(slf.py(), into, &pinned.1)?;
        let host = HostSide::of(&into, true)?;
        let choices = (stream, priority);
        PyTransfer::with(slf.py(), Direction::Down, (pinned, offset), host, choices, into.unbind())
    }

    /// Fill it with a byte, from ``offset`` on, ``size`` bytes or all that is left. Without ``wait`` the call
    /// returns before that is done, and the device keeps the order.
    #[pyo3(signature = (value, offset = 0, size = None, stream = None, wait = true))]
    fn fill(
        slf: &Bound<'_, Self>,
        #[pyo3(from_py_with = integer::<u8>)] value: u8,
        #[pyo3(from_py_with = integer::<u64>)] offset: u64,
        #[pyo3(from_py_with = optional_integer::<u64>)] size: Option<u64>,
        stream: Option<&Bound<'_, PyAny>>,
        wait: bool,
    ) -> Result<(), Failure> {
        let (pin, array) = memory(slf).pinned(slf.py())?;
        let size = size.unwrap_or(array.bytes().saturating_sub(offset));
        let range = MemoryRange::within(&pin, &array, (offset, size))?;
        let stream_ref = stream_or_own(pin.allocation(), stream)?;
        slf.py().detach(|| transfer::fill(range, &[value], &stream_ref, wait))
    }

    fn __len__(slf: &Bound<'_, Self>) -> usize {
        usize::try_from(Self::size(slf)).unwrap_or(usize::MAX)
    }

    /// A buffer is true, however small it is.
    fn __bool__(&self) -> bool {
        true
    }

    fn __repr__(slf: &Bound<'_, Self>) -> String {
        let memory = memory(slf);
        let (size, name) = (memory.array().bytes(), memory.open_device().name());
        let freed = if memory.is_gone() { ", freed" } else { "" };
        format!("<forebay.Buffer of {size} B on {name}{freed}>")
    }
}

fn memory<'a>(buffer: &'a Bound<'_, BufferCore>) -> &'a Memory {
    buffer.as_super().get()
}

/// Copies between a buffer, from byte `offset` on, and all bytes of a Python object, and waits.
fn copy(
    memory: &Memory,
    direction: Direction,
    object: &Bound<'_, PyAny>,
    offset: u64,
    stream: Option<&Bound<'_, PyAny>>,
) -> Result<(), Failure> {
    let py = object.py();
    let (pin, array) = memory.pinned(py)?;
    if let Ok(other) = object.cast::<Memory>() {
        let used = if direction == Direction::Up { Use::Read } else { Use::Overwrite };
        let (other_pin, other) = other.get().pinned_for(py, used)?;
        let far = MemoryRange::within(&pin, &array, (offset, other.bytes()))?;
        let near = MemoryRange::of(&other_pin, &other);
        let (to, from) = direction.ends(far, near);
        return copies::between(py, from, to, stream, true);
    }
    let stream_ref = stream_or_own(pin.allocation(), stream)?;
    let bytes = HostBytes::of(object, direction == Direction::Down)?;
    let range = MemoryRange::within(&pin, &array, (offset, bytes.length()))?;
    let host = HostPointer::at(bytes.start());
    // SAFETY: the object exports that many bytes until `bytes` is dropped, downwards to be written. A thread of Python
    // that uses them meanwhile gets a mixture of both, as with any copy in Python.
    py.detach(|| unsafe { transfer::copy_host(direction, range, host, &stream_ref) })
}
