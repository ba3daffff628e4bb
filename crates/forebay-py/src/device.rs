//! What Python calls on `forebay.Device`, and the functions that return one.

use core::hash::{Hash, Hasher};
use std::hash::DefaultHasher;
use std::sync::Arc;

use forebay::hal::PinnedFlags;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFrozenSet};

use crate::allocation::Allocation;
use crate::buffer::new_buffer;
use crate::failure::Failure;
use crate::open_device::{OpenDevice, PyDevice, StreamRef, device_argument, present};
use crate::pool::PyPool;
use crate::quantity::Size;
use crate::stream::{PyStream, priority_argument, raw_stream_argument, stream_argument};
use crate::value::dict;

#[pymethods]
impl PyDevice {
    /// Its name: "host", "cuda:0", "hip:0", "opencl:0", "metal:0", "sim".
    #[getter]
    fn name(&self) -> String {
        self.device.name()
    }

    /// Its kind: "host", "cuda", "hip", "opencl", "metal" or "sim".
    #[getter]
    fn kind(&self) -> &'static str {
        self.device.kind().name()
    }

    /// Its number among devices of its kind, from 0.
    #[getter]
    fn ordinal(&self) -> u32 {
        self.device.ordinal()
    }

    /// The name that its vendor or the system has for it.
    #[getter]
    fn label(&self, py: Python<'_>) -> Result<String, Failure> {
        py.detach(|| Ok(self.device.opened()?.descriptor().name.clone()))
    }

    /// The version of the driver or system, for people.
    #[getter]
    fn driver(&self, py: Python<'_>) -> Result<String, Failure> {
        py.detach(|| Ok(self.device.opened()?.descriptor().driver.clone()))
    }

    /// What it can do, as a set of names: "virtual_memory", "pinned", "foreign_streams" and others.
    #[getter]
    fn capabilities<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyFrozenSet>, Failure> {
        let has =
            py.detach(|| self.device.opened().map(|device| device.descriptor().capabilities))?;
        let names = has.iter_names().map(|(name, _)| name.to_ascii_lowercase());
        Ok(PyFrozenSet::new(py, names)?)
    }

    /// Bytes of its memory: ``total``, ``free``, and ``held`` by forebay in this process.
    fn memory<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>, Failure> {
        let info = py.detach(|| Ok::<_, Failure>(self.device.opened()?.memory_info()?))?;
        Ok(dict!(py, {
            "total": info.total.get(),
            "free": info.free.get(),
            "held": info.held.get(),
        }))
    }

    /// Create a stream. ``priority`` is "low", "normal" or "high", where the device has priorities.
    #[pyo3(signature = (priority = "normal"))]
    fn stream(&self, py: Python<'_>, priority: &str) -> Result<PyStream, Failure> {
        let priority = priority_argument(priority)?;
        py.detach(|| Ok(PyStream::new(StreamRef::new(&self.device, priority)?)))
    }

    /// Its default stream.
    #[getter]
    fn default_stream(&self) -> PyStream {
        PyStream::new(StreamRef::default_of(&self.device))
    }

    /// Adopt a stream of another library: its handle as a number, or an object with
    /// ``__cuda_stream__``, ``cuda_stream`` (PyTorch) or ``ptr`` (CuPy).
    ///
    /// The stream must live until ``forget`` is called. The driver cannot check that.
    fn adopt(&self, stream: &Bound<'_, PyAny>) -> Result<PyStream, Failure> {
        Ok(PyStream::new(stream_argument(&self.device, Some(stream))?))
    }

    /// Forget an adopted stream that is about to be destroyed: what ``adopt`` took, or the stream that it
    /// returned. Every pool that used it forgets it before this returns. Buffers of it continue in the order
    /// of the default stream, which waits for its work; close its arenas before. Does nothing where the
    /// stream is not known.
    fn forget(&self, py: Python<'_>, stream: &Bound<'_, PyAny>) -> Result<(), Failure> {
        let raw = raw_stream_argument(stream)?;
        let known = self.device.streams()?.adopted.get(&raw).cloned();
        let Some(stream_ref) = known else { return Ok(()) };
        // Forget it in the pools first: where that fails, the stream is still known and can be forgotten again.
        py.detach(|| stream_ref.forget())?;
        let forgotten = self.device.streams()?.adopted.remove(&raw);
        py.detach(|| drop((forgotten, stream_ref)));
        Ok(())
    }

    /// Wait until the work of all its streams is done.
    fn synchronize(&self, py: Python<'_>) -> Result<(), Failure> {
        py.detach(|| Ok(self.device.opened()?.synchronize_device()?))
    }

    /// The process's pool of this device: created by the first call, and shared with C and PyTorch.
    fn pool(&self, py: Python<'_>) -> Result<PyPool, Failure> {
        py.detach(|| PyPool::of_process(&self.device))
    }

    /// Allocate pinned host memory, which the device copies to and from by DMA. The host reads and writes it
    /// like any buffer.
    fn pinned(&self, py: Python<'_>, size: Size) -> Result<Py<PyAny>, Failure> {
        let allocation =
            py.detach(|| Allocation::pinned(&self.device, size.bytes(), PinnedFlags::empty()))?;
        new_buffer(py, allocation)
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| Arc::ptr_eq(&self.device, &other.get().device))
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        Arc::as_ptr(&self.device).hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        format!("<forebay.Device {}>", self.device.name())
    }
}

/// Every device of this machine: the host, those that the drivers of CUDA, HIP, Metal and OpenCL show, and the
/// simulated one. This opens none of them, but loads the drivers: a process that forks later, as PyTorch's data
/// loaders do, had better name its device.
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> Vec<PyDevice> {
    let present = py.detach(present);
    OpenDevice::all(present).into_iter().map(PyDevice::new).collect()
}

/// The device of that name, opened: "host", "sim", or "cuda:0", "hip:0", "opencl:0", "metal:0" with its number.
#[pyfunction]
pub(crate) fn device(py: Python<'_>, name: &Bound<'_, PyAny>) -> Result<PyDevice, Failure> {
    let device = device_argument(name)?;
    py.detach(|| device.opened().map(|_| ()))?;
    Ok(PyDevice::new(device))
}
