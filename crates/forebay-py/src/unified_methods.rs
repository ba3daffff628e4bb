//! What Python calls on a `UnifiedBuffer` beside what every array can: its replicas, and arrays of them.
//!
//! An array of either replica is a `forebay.Array` over an [`Allocation`](crate::allocation::Allocation), so that the buffer
//! protocol, numpy, DLPack and `__cuda_array_interface__` work as for all memory. It is counted until the last array that
//! shares it is gone; meanwhile a conflicting call raises `InUseError`.

use std::sync::Mutex;

use forebay::StreamHandle;
use forebay::buffer::{Access, BufferStatistics, Replica};
use forebay_sync::lock;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::array::{ArrayCore, new_array};
use crate::array_view::{ArrayView, shape_argument};
use crate::failure::Failure;
use crate::memory::{Memory, Use};
use crate::numpy;
use crate::protocol::take_next;
use crate::replica::Unified;
use crate::stack;
use crate::stream::stream_argument;
use crate::unified::UnifiedCore;
use crate::value::dict;

#[pymethods]
impl UnifiedCore {
    #[new]
    #[pyo3(signature = (*_arguments))]
    fn new(_arguments: &Bound<'_, PyTuple>) -> PyResult<PyClassInitializer<Self>> {
        let memory = take_next().filter(|memory| memory.as_unified().is_some());
        let memory = memory.ok_or_else(|| {
            PyTypeError::new_err(
                "unified buffers are made by BufferManager.buffer() and buffer_from()",
            )
        })?;
        Ok(PyClassInitializer::from(memory).add_subclass(ArrayCore).add_subclass(Self))
    }

    /// Which replicas are there, and which is newer: "HostDirty", "Synchronized" and so on.
    #[getter]
    fn state(slf: &Bound<'_, Self>) -> Result<String, Failure> {
        let (unified, _) = unified(slf)?;
        let found = slf.py().detach(|| unified.buffer().statistics())?;
        Ok(format!("{:?}", found.state))
    }

    /// Its memory and copies so far.
    fn statistics<'py>(slf: &Bound<'py, Self>) -> Result<Bound<'py, PyDict>, Failure> {
        let (py, (unified, _)) = (slf.py(), unified(slf)?);
        let found = py.detach(|| unified.buffer().statistics())?;
        let dict = statistics(py, &found.statistics)?;
        dict.set_item("number", found.id)?;
        dict.set_item("views", found.views)?;
        Ok(dict)
    }

    /// An array of its elements in host memory, with the buffer protocol. Copies what the host lacks, and waits for that.
    /// With ``write`` the elements count as newer than the device's; without, the array is read-only.
    #[pyo3(signature = (write = false))]
    fn on_host(slf: &Bound<'_, Self>, write: bool) -> Result<Py<PyAny>, Failure> {
        let used = if write { Use::Update } else { Use::Read };
        let (pin, array) = memory(slf).pinned_for(slf.py(), used)?;
        new_array(slf.py(), Memory::shared(pin, array))
    }

    /// The same as a numpy array, without a copy: read-only, unless ``write``.
    #[pyo3(signature = (write = false))]
    fn numpy<'py>(slf: &Bound<'py, Self>, write: bool) -> Result<Bound<'py, PyAny>, Failure> {
        let used = if write { Use::Update } else { Use::Read };
        numpy::shared(slf.py(), memory(slf).pinned_for(slf.py(), used)?)
    }

    /// For a ``with``: a memoryview of its elements in host memory, which is released at the end.
    #[pyo3(signature = (write = false))]
    fn host(slf: Py<Self>, write: bool) -> PyHostAccess {
        PyHostAccess { buffer: slf, write, view: Mutex::new(None) }
    }

    /// An array of its elements in device memory, for work on ``stream``: with DLPack and ``__cuda_array_interface__``.
    /// Copies what the device lacks, in the order of the stream. With ``write`` the elements count as newer than the
    /// host's. While the array or one that shares it lives, the host is refused.
    #[pyo3(signature = (stream = None, write = true))]
    fn on_device(
        slf: &Bound<'_, Self>,
        stream: Option<&Bound<'_, PyAny>>,
        write: bool,
    ) -> Result<Py<PyAny>, Failure> {
        let device = memory(slf).open_device();
        let stream = stream_argument(device, stream)?;
        let access = if write { Access::Update } else { Access::Read };
        let (unified, array) = unified(slf)?;
        let export = || unified.on_device(device, &array, access, &stream);
        let (pin, array) = stack::detach(slf.py(), export)?;
        new_array(slf.py(), Memory::part(pin, array))
    }

    /// Change its shape and size. The first bytes stay, new ones are zero. The contents move to new host memory, so it
    /// raises while arrays of them live. Slices made before stay what they were; one that reaches past the new end raises.
    fn resize(slf: &Bound<'_, Self>, shape: &Bound<'_, PyAny>) -> Result<(), Failure> {
        let (unified, array) = unified(slf)?;
        let array = ArrayView::of_shape(array.dtype(), shape_argument(shape)?)?;
        let (size, memory) = (array.bytes(), memory(slf));
        slf.py().detach(|| Ok(unified.whole()?.resize(size, || memory.set_array(array))?))
    }

    /// Make both replicas current.
    fn synchronize(slf: &Bound<'_, Self>) -> Result<(), Failure> {
        let (unified, _) = unified(slf)?;
        slf.py().detach(|| Ok(unified.whole()?.synchronize(StreamHandle::DEFAULT)?))
    }

    /// Free the memory of a replica, "host" or "device", after copying to the other what it alone had. Returns how
    /// many bytes were freed.
    fn compact(slf: &Bound<'_, Self>, replica: &str) -> Result<u64, Failure> {
        let (replica, (unified, _)) = (replica_of(replica)?, unified(slf)?);
        slf.py().detach(|| Ok(unified.whole()?.compact(replica, StreamHandle::DEFAULT)?.get()))
    }

    /// Forget what a replica, "host" or "device", has: it is copied from the other when it is needed next.
    fn invalidate(slf: &Bound<'_, Self>, replica: &str) -> Result<(), Failure> {
        let (replica, (unified, _)) = (replica_of(replica)?, unified(slf)?);
        slf.py().detach(|| Ok(unified.whole()?.invalidate(replica)?))
    }
}

fn memory<'a>(buffer: &'a Bound<'_, UnifiedCore>) -> &'a Memory {
    buffer.as_super().as_super().get()
}

/// The buffer and the elements; an error once it was closed.
fn unified(buffer: &Bound<'_, UnifiedCore>) -> Result<(Unified, ArrayView), Failure> {
    memory(buffer).as_unified().ok_or_else(|| Failure::closed("the buffer was closed"))
}

/// The ``with`` of ``UnifiedBuffer.host()``.
#[pyclass(name = "_HostAccess", module = "forebay", frozen)]
pub(crate) struct PyHostAccess {
    buffer: Py<UnifiedCore>,
    write: bool,
    view: Mutex<Option<Py<PyAny>>>,
}

#[pymethods]
impl PyHostAccess {
    fn __enter__(&self, py: Python<'_>) -> Result<Py<PyAny>, Failure> {
        let view = UnifiedCore::on_host(self.buffer.bind(py), self.write)?;
        let memory = py.import("builtins")?.call_method1("memoryview", (view,))?.unbind();
        // Locked last: making the view releases the GIL, and no thread may wait for the lock with it.
        let mut entered = lock(&self.view);
        if entered.is_some() {
            return Err(Failure::in_use("this with is entered already"));
        }
        *entered = Some(memory.clone_ref(py));
        Ok(memory)
    }

    /// Releases the memoryview. Arrays that share its memory keep it, and conflicting calls raise until they are gone.
    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> Result<(), Failure> {
        let view = lock(&self.view).take();
        if let Some(view) = view {
            view.call_method0(py, "release")?;
        }
        Ok(())
    }
}

/// The memory of a buffer or of several, and copies so far.
pub(crate) fn statistics<'py>(
    py: Python<'py>,
    statistics: &BufferStatistics,
) -> PyResult<Bound<'py, PyDict>> {
    Ok(dict!(py, {
        "host_bytes": statistics.host_bytes,
        "device_bytes": statistics.device_bytes,
        "copies_to_host": statistics.to_host.copies,
        "bytes_to_host": statistics.to_host.bytes,
        "copies_to_device": statistics.to_device.copies,
        "bytes_to_device": statistics.to_device.bytes,
    }))
}

fn replica_of(name: &str) -> Result<Replica, Failure> {
    match name {
        "host" => Ok(Replica::Host),
        "device" => Ok(Replica::Device),
        other => {
            Err(Failure::invalid(format!("a replica is \"host\" or \"device\", not {other:?}")))
        }
    }
}
