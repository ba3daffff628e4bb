//! `forebay.Memory` and `forebay.UnifiedBuffer`: elements with a replica on the host and one on a device.
//!
//! A view of either replica is a `forebay.View` over an [`Allocation`], so that the buffer protocol, numpy, DLPack and
//! `__cuda_array_interface__` work as for all memory. The view is counted until the last array that shares it is gone;
//! meanwhile a conflicting call raises `InUseError`.

use std::sync::Arc;

use forebay::bindings::{CountedBuffer, CountedError, CountedFigures, View};
use forebay::buffer::{Access, BufferFigures, LiveBuffer, Memory, Replica};
use forebay::{Bytes, StreamHandle};
use forebay_sync::fork::LeakOnFork;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::allocation::{Allocation, MemorySpace};
use crate::array_view::{ArrayView, shape_argument, size_of_shape};
use crate::construct::new_view;
use crate::device::{PyDevice, device_argument};
use crate::dlpack::{self, ExportRequest};
use crate::dtype::Dtype;
use crate::failure::Failure;
use crate::ffi::HostBytes;
use crate::gil::without_gil;
use crate::open_device::OpenDevice;
use crate::pool::PyPool;
use crate::quantity::integer;
use crate::shared::PySharedBuffer;
use crate::stream::{StreamRef, stream_argument};

impl From<CountedError> for Failure {
    fn from(error: CountedError) -> Self {
        match error {
            CountedError::Library(error) => error.into(),
            CountedError::InUse(words) => Self::InUse(words),
            other => Self::closed(other.to_string()),
        }
    }
}

/// A view of a replica, which ends when this is dropped.
pub(crate) struct ReplicaView {
    buffer: Arc<LeakOnFork<CountedBuffer>>,
    number: u64,
}

impl Drop for ReplicaView {
    fn drop(&mut self) {
        if let Ok(buffer) = self.buffer.get() {
            // It is there: it was entered when this was made.
            let _ = buffer.end_view(self.number);
        }
    }
}

/// Makes buffers on one device, which are on the host and on the device.
///
/// ``Memory(device)`` has a pool of its own; ``Memory(pool)`` takes device memory from that pool.
#[pyclass(name = "Memory", module = "forebay", frozen, weakref)]
pub(crate) struct PyMemory {
    device: Arc<OpenDevice>,
    /// `None` once it is dropped.
    memory: Option<LeakOnFork<Memory>>,
}

impl Drop for PyMemory {
    fn drop(&mut self) {
        // Dropping a pool waits for its device.
        let memory = self.memory.take();
        without_gil(|| drop(memory));
    }
}

#[pymethods]
impl PyMemory {
    #[new]
    fn new(of: &Bound<'_, PyAny>) -> Result<Self, Failure> {
        let py = of.py();
        if let Ok(pool) = of.cast::<PyPool>() {
            let (device, pool) = (Arc::clone(pool.get().open_device()), pool.get().pool()?);
            return Ok(Self { device, memory: Some(LeakOnFork::new(Memory::over(&pool))) });
        }
        let device = device_argument(of)?;
        let memory = py.detach(|| Ok::<_, Failure>(Memory::new(device.opened()?)?))?;
        Ok(Self { device, memory: Some(LeakOnFork::new(memory)) })
    }

    /// Its device.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice::new(Arc::clone(&self.device))
    }

    /// A buffer of elements of ``dtype`` in ``shape``, all zero. It has no memory until it is used, on either side.
    #[pyo3(signature = (shape, dtype = None))]
    fn buffer(
        &self,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> Result<PyUnifiedBuffer, Failure> {
        let dtype = dtype.map_or(Ok(crate::dtype::bytes()), Dtype::of_argument)?;
        self.make(dtype, shape_argument(shape)?)
    }

    /// A buffer with the elements of ``source``: anything with the buffer protocol, such as a numpy array.
    fn buffer_from(&self, source: &Bound<'_, PyAny>) -> Result<PyUnifiedBuffer, Failure> {
        let memory = source.py().import("builtins")?.call_method1("memoryview", (source,))?;
        let dtype = match source.getattr("dtype") {
            Ok(dtype) => Dtype::of_argument(&dtype)?,
            Err(_) => {
                let format: String = memory.getattr("format")?.extract()?;
                Dtype::of_format(&format)?
            }
        };
        let made = self.make(dtype, shape_argument(&memory.getattr("shape")?)?)?;
        made.copy_from(source, 0)?;
        Ok(made)
    }

    /// Create a buffer of elements of ``dtype`` in ``shape``, all zero, that other processes of this user open by its
    /// name: 1 to 80 characters of ``A-Z a-z 0-9 . _ -``. Raises ``NameTakenError`` where a living process has the name;
    /// with ``or_open`` it is opened then, if it has the same elements. Linux only.
    #[pyo3(signature = (name, shape, dtype = None, *, or_open = false))]
    fn shared(
        &self,
        name: &str,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        or_open: bool,
    ) -> Result<PySharedBuffer, Failure> {
        PySharedBuffer::create(&self.device, self.manager()?, name, (shape, dtype), or_open)
    }

    /// Open a buffer that a process of this user has created. Without a ``shape`` it has one dimension; a ``dtype``
    /// refuses elements of another type. Raises ``NotFoundError`` where no living process has the name.
    #[pyo3(signature = (name, shape = None, dtype = None))]
    fn open_shared(
        &self,
        py: Python<'_>,
        name: &str,
        shape: Option<&Bound<'_, PyAny>>,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> Result<PySharedBuffer, Failure> {
        PySharedBuffer::open(py, &self.device, self.manager()?, name, (shape, dtype))
    }

    /// What its buffers add up to: ``buffers``, ``created``, bytes of memory, and copies.
    fn totals<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>, Failure> {
        let totals = self.manager()?.totals();
        let dict = figures(py, &totals.figures)?;
        dict.set_item("buffers", totals.buffers)?;
        dict.set_item("created", totals.created)?;
        dict.set_item("parked_bytes", totals.parked_bytes)?;
        Ok(dict)
    }

    /// The live buffers, the oldest first: ``number``, ``bytes``, ``age_s`` and their figures.
    fn live_buffers<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyList>, Failure> {
        rows(py, &self.manager()?.live_buffers())
    }

    fn __repr__(&self) -> String {
        format!("<forebay.Memory on {}>", self.device.name())
    }
}

impl PyMemory {
    fn manager(&self) -> Result<&Memory, Failure> {
        let memory =
            self.memory.as_ref().ok_or_else(|| Failure::closed("the memory was closed"))?;
        Ok(memory.get()?)
    }

    fn make(&self, dtype: &'static Dtype, shape: Vec<u64>) -> Result<PyUnifiedBuffer, Failure> {
        let size = size_of_shape(dtype, &shape)?;
        let buffer = CountedBuffer::new(self.manager()?.buffer::<u8>(size)?);
        let device = Arc::clone(&self.device);
        Ok(PyUnifiedBuffer {
            device,
            array: ArrayView::imported(dtype, shape, size as u64, true),
            buffer: Some(Arc::new(LeakOnFork::new(buffer))),
        })
    }
}

/// Elements with a replica on the host and one on a device, copied when and as far as a use needs it.
///
/// Made by ``Memory.buffer()`` and ``Memory.buffer_from()``. Views of either side share its memory; while one lives, a
/// call that conflicts with it raises ``InUseError``, which is a ``BufferError``.
#[pyclass(name = "UnifiedBuffer", module = "forebay", frozen, weakref)]
pub(crate) struct PyUnifiedBuffer {
    device: Arc<OpenDevice>,
    array: ArrayView,
    /// `None` once it is dropped.
    buffer: Option<Arc<LeakOnFork<CountedBuffer>>>,
}

impl Drop for PyUnifiedBuffer {
    fn drop(&mut self) {
        // Dropping the memory may wait for a pool's lock, whose owner may wait for the GIL.
        let buffer = self.buffer.take();
        without_gil(|| drop(buffer));
    }
}

impl PyUnifiedBuffer {
    fn shared(&self) -> Result<&Arc<LeakOnFork<CountedBuffer>>, Failure> {
        self.buffer.as_ref().ok_or_else(|| Failure::closed("the buffer was closed"))
    }

    /// The buffer, for a call with the GIL released.
    fn counted(&self) -> Result<&CountedBuffer, Failure> {
        Ok(self.shared()?.get()?)
    }

    fn replica_view(&self, view: View) -> Result<ReplicaView, Failure> {
        Ok(ReplicaView { buffer: Arc::clone(self.shared()?), number: view.number })
    }

    /// The elements, to be written or not.
    fn elements(&self, writable: bool) -> ArrayView {
        let (dtype, shape) = (self.array.dtype(), self.array.shape().to_vec());
        ArrayView::imported(dtype, shape, self.array.bytes(), writable)
    }

    fn size(&self) -> Bytes {
        Bytes::new(self.array.bytes())
    }

    fn host_view(&self, write: bool) -> Result<Arc<Allocation>, Failure> {
        let access = if write { Access::Update } else { Access::Read };
        let view = self.counted()?.map(0, self.array.bytes(), access)?;
        let kept = self.replica_view(view)?;
        // As for tensors of other libraries in host memory.
        let range = (view.address, self.size(), MemorySpace::Host);
        let host = OpenDevice::named("host")?;
        Ok(Allocation::replica(&host, &StreamRef::default_of(&host), range, kept))
    }

    fn device_view(
        &self,
        access: Access,
        stream: &Arc<StreamRef>,
    ) -> Result<Arc<Allocation>, Failure> {
        let bytes = self.array.bytes();
        let view = self.counted()?.export(0, bytes, access, stream.handle())?;
        let kept = self.replica_view(view)?;
        let host = self.device.is_host();
        let space = if host { MemorySpace::HostDevice } else { MemorySpace::Device };
        Ok(Allocation::replica(&self.device, stream, (view.address, self.size(), space), kept))
    }
}

#[pymethods]
impl PyUnifiedBuffer {
    /// The type of its elements, by name.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.array.dtype().name
    }

    /// How many elements in each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.array.shape_tuple(py)
    }

    /// How many bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.array.bytes()
    }

    /// Its device.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice::new(Arc::clone(&self.device))
    }

    /// Which replicas are there, and which is newer: "HostDirty", "Synchronized" and so on.
    #[getter]
    fn state(&self, py: Python<'_>) -> Result<String, Failure> {
        let found = py.detach(|| Ok::<CountedFigures, Failure>(self.counted()?.figures()?))?;
        Ok(format!("{:?}", found.state))
    }

    /// Its memory and copies so far.
    fn figures<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>, Failure> {
        let found = py.detach(|| Ok::<CountedFigures, Failure>(self.counted()?.figures()?))?;
        let dict = figures(py, &found.figures)?;
        dict.set_item("number", found.id)?;
        dict.set_item("views", found.views)?;
        Ok(dict)
    }

    /// A view of its elements in host memory, with the buffer protocol. Copies what the host lacks, and waits for that.
    /// With ``write`` the elements count as newer than the device's.
    #[pyo3(signature = (write = false))]
    fn view(&self, py: Python<'_>, write: bool) -> Result<Py<PyAny>, Failure> {
        let allocation = py.detach(|| self.host_view(write))?;
        new_view(py, allocation.pin()?, self.elements(write))
    }

    /// The same as a numpy array, without a copy: read-only, unless ``write``.
    #[pyo3(signature = (write = false))]
    fn numpy<'py>(&self, py: Python<'py>, write: bool) -> Result<Bound<'py, PyAny>, Failure> {
        let numpy = py.import("numpy")?;
        Ok(numpy.call_method1("asarray", (self.view(py, write)?,))?)
    }

    /// For a ``with``: a memoryview of its elements in host memory, which is released at the end.
    #[pyo3(signature = (write = false))]
    fn host(slf: Py<Self>, write: bool) -> PyHostAccess {
        PyHostAccess { buffer: slf, write, view: std::sync::Mutex::new(None) }
    }

    /// A view of its elements in device memory, for work on ``stream``: with DLPack and ``__cuda_array_interface__``.
    /// Copies what the device lacks, in the order of the stream. With ``write`` the elements count as newer than the
    /// host's. While the view or an array that shares it lives, the host is refused.
    #[pyo3(signature = (stream = None, write = true))]
    fn on_device(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        write: bool,
    ) -> Result<Py<PyAny>, Failure> {
        let stream = stream_argument(&self.device, stream)?;
        let access = if write { Access::Update } else { Access::Read };
        let allocation = py.detach(|| self.device_view(access, &stream))?;
        new_view(py, allocation.pin()?, self.elements(write))
    }

    /// A DLPack capsule of its elements on the device, to be read and written; on a host device, of the CPU. The host is
    /// refused until the consumer releases the tensor, and waits for ``stream`` then where that is the default stream, a
    /// ``forebay.Stream``, or was adopted. ``Device.adopt()`` any other stream first.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        let own = StreamRef::default_of(&self.device);
        let allocation = py.detach(|| self.device_view(Access::Update, &own))?;
        let request = ExportRequest { stream, max_version, device: dl_device, copy };
        dlpack::export(py, allocation.pin()?, &self.elements(true), &request)
    }

    /// The device type and number, as DLPack defines them.
    fn __dlpack_device__(&self) -> Result<(i32, i32), Failure> {
        dlpack::device_of(&self.device)
    }

    /// Replace its bytes, from byte ``offset`` on, by all of ``source``: anything with the buffer protocol.
    #[pyo3(signature = (source, offset = 0))]
    fn copy_from(
        &self,
        source: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = integer::<u64>)] offset: u64,
    ) -> Result<(), Failure> {
        let bytes = HostBytes::of(source, false)?;
        let from = bytes.to_vec();
        source.py().detach(|| Ok(self.counted()?.write(offset, &from)?))
    }

    /// Its contents as bytes.
    fn to_bytes(&self, py: Python<'_>) -> Result<Vec<u8>, Failure> {
        py.detach(|| {
            let mut bytes = Vec::new();
            self.counted()?.read(0, self.array.bytes(), |from| bytes.extend_from_slice(from))?;
            Ok(bytes)
        })
    }

    /// Fill it with a byte.
    fn fill(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = integer::<u8>)] value: u8,
    ) -> Result<(), Failure> {
        let size = self.array.bytes();
        py.detach(|| Ok(self.counted()?.fill(0, size, u64::from(value), 1)?))
    }

    /// Make both replicas current.
    fn synchronize(&self, py: Python<'_>) -> Result<(), Failure> {
        py.detach(|| Ok(self.counted()?.synchronize(StreamHandle::DEFAULT)?))
    }

    /// Free the memory of a replica, "host" or "device", after copying to the other what it alone had. Returns how
    /// many bytes were freed.
    fn compact(&self, py: Python<'_>, replica: &str) -> Result<u64, Failure> {
        let replica = replica_of(replica)?;
        py.detach(|| Ok(self.counted()?.compact(replica, StreamHandle::DEFAULT)?.get()))
    }

    /// Forget what a replica, "host" or "device", has: it is copied from the other when it is needed next.
    fn invalidate(&self, py: Python<'_>, replica: &str) -> Result<(), Failure> {
        let replica = replica_of(replica)?;
        py.detach(|| Ok(self.counted()?.invalidate(replica)?))
    }

    /// Free its memory. Raises while views of it live, and the second time.
    fn close(&self, py: Python<'_>) -> Result<(), Failure> {
        py.detach(|| Ok(self.counted()?.close()?))
    }

    fn __repr__(&self) -> String {
        let (name, shape, device) = (self.dtype(), self.array.shape(), self.device.name());
        format!("<forebay.UnifiedBuffer of {name} {shape:?} on {device}>")
    }
}

/// The ``with`` of ``UnifiedBuffer.host()``.
#[pyclass(name = "_HostAccess", module = "forebay", frozen)]
pub(crate) struct PyHostAccess {
    buffer: Py<PyUnifiedBuffer>,
    write: bool,
    view: std::sync::Mutex<Option<Py<PyAny>>>,
}

#[pymethods]
impl PyHostAccess {
    fn __enter__(&self, py: Python<'_>) -> Result<Py<PyAny>, Failure> {
        let view = self.buffer.get().view(py, self.write)?;
        let memory = py.import("builtins")?.call_method1("memoryview", (view,))?.unbind();
        // Locked last: making the view releases the GIL, and no thread may wait for the lock with it.
        let mut entered = forebay_sync::lock(&self.view);
        if entered.is_some() {
            return Err(Failure::InUse("this with is entered already".to_owned()));
        }
        *entered = Some(memory.clone_ref(py));
        Ok(memory)
    }

    /// Releases the memoryview. Arrays that share its memory keep it, and conflicting calls raise until they are gone.
    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> Result<(), Failure> {
        let view = forebay_sync::lock(&self.view).take();
        if let Some(view) = view {
            view.call_method0(py, "release")?;
        }
        Ok(())
    }
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

fn figures<'py>(py: Python<'py>, figures: &BufferFigures) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("host_bytes", figures.host_bytes)?;
    dict.set_item("device_bytes", figures.device_bytes)?;
    dict.set_item("copies_to_host", figures.to_host.copies)?;
    dict.set_item("bytes_to_host", figures.to_host.bytes)?;
    dict.set_item("copies_to_device", figures.to_device.copies)?;
    dict.set_item("bytes_to_device", figures.to_device.bytes)?;
    Ok(dict)
}

fn rows<'py>(py: Python<'py>, live: &[LiveBuffer]) -> Result<Bound<'py, PyList>, Failure> {
    let list = PyList::empty(py);
    for one in live {
        let row = figures(py, &one.figures)?;
        row.set_item("number", one.id)?;
        row.set_item("bytes", one.bytes)?;
        row.set_item("age_s", one.age.as_secs_f64())?;
        list.append(row)?;
    }
    Ok(list)
}

/// The live buffers of all ``Memory`` objects of the process: at the end of a program, its leaks.
#[pyfunction]
pub(crate) fn live_buffers(py: Python<'_>) -> Result<Bound<'_, PyList>, Failure> {
    rows(py, &forebay::buffer::leaks())
}
