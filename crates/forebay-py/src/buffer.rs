//! `forebay.Buffer`: a whole allocation, which Python frees.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::allocation::Allocation;
use crate::failure::{Failure, leave};
use crate::memory::{Memory, stream_or_own};
use crate::protocol::{BufferType, take_next};
use crate::quantity::{integer, optional_integer};
use crate::stream::PyStream;

/// Memory of a device: made by ``Pool.allocate()``, ``Arena.allocate()`` and ``Device.pinned()``.
///
/// It is freed by ``free()``, at the end of its ``with``, or with the last reference to it and to its views. Memory that the host can reach has the buffer protocol, so that
/// ``memoryview(buffer)`` and ``numpy.asarray(buffer)`` share it.
#[pyclass(name = "_Buffer", module = "forebay", extends = Memory, frozen, subclass)]
pub(crate) struct BufferCore;

/// `forebay.Buffer`.
pub(crate) static BUFFER: BufferType<BufferCore> = BufferType::named(c"forebay.Buffer");

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
        let memory = take_next().filter(Memory::is_buffer).ok_or_else(|| {
            PyTypeError::new_err(
                "buffers are made by Pool.allocate(), Arena.allocate() and Device.pinned()",
            )
        })?;
        Ok(PyClassInitializer::from(memory).add_subclass(Self))
    }

    /// The requested size in bytes.
    #[getter]
    fn size(slf: &Bound<'_, Self>) -> u64 {
        memory(slf).allocation().size().get()
    }

    /// The stream in whose order it was allocated and is freed.
    #[getter]
    fn stream(slf: &Bound<'_, Self>) -> PyStream {
        PyStream::new(memory(slf).allocation().stream_ref())
    }

    /// Whether it was freed.
    #[getter]
    fn freed(slf: &Bound<'_, Self>) -> bool {
        memory(slf).allocation().is_freed()
    }

    /// Free the memory in the order of ``stream``, by default its own: later work of that stream may reuse it.
    /// Raises while views of it live, and the second time.
    #[pyo3(signature = (stream = None))]
    fn free(slf: &Bound<'_, Self>, stream: Option<&Bound<'_, PyAny>>) -> Result<(), Failure> {
        let allocation = memory(slf).allocation();
        let stream_ref = stream_or_own(allocation, stream)?;
        slf.py().detach(|| allocation.free(&stream_ref))
    }

    /// Free the memory as ``free()`` does. Closing twice does nothing.
    fn close(slf: &Bound<'_, Self>) -> Result<(), Failure> {
        if Self::freed(slf) { Ok(()) } else { Self::free(slf, None) }
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
        memory(slf).fill(slf.py(), value, (offset, size), stream, wait)
    }

    fn __len__(slf: &Bound<'_, Self>) -> usize {
        usize::try_from(Self::size(slf)).unwrap_or(usize::MAX)
    }

    /// A buffer is true, however small it is.
    fn __bool__(&self) -> bool {
        true
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*error))]
    fn __exit__(slf: &Bound<'_, Self>, error: &Bound<'_, PyTuple>) -> Result<(), Failure> {
        leave(error, Self::close(slf))
    }

    fn __repr__(slf: &Bound<'_, Self>) -> String {
        let allocation = memory(slf).allocation();
        let (size, name) = (allocation.size().get(), allocation.device().name());
        let freed = if allocation.is_freed() { ", freed" } else { "" };
        format!("<forebay.Buffer of {size} B on {name}{freed}>")
    }
}

fn memory<'a>(buffer: &'a Bound<'_, BufferCore>) -> &'a Memory {
    buffer.as_super().get()
}
