//! `forebay.UnifiedBuffer`: elements with a replica on the host and one on a device.
//!
//! A view of either replica is a `forebay.View` over an [`Allocation`], so that the buffer protocol, numpy, DLPack and
//! `__cuda_array_interface__` work as for all memory. The view is counted until the last array that shares it is gone;
//! meanwhile a conflicting call raises `InUseError`. A slice is an object of the same class over the same buffer.

use std::sync::{Arc, Mutex};

use forebay::bindings::{CountedBuffer, View, host_vec};
use forebay::buffer::{Access, BufferStatistics, Replica};
use forebay::hal::Call;
use forebay::{Bytes, StreamHandle};
use forebay_sync::lock;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PySlice, PyTuple};

use crate::allocation::{Allocation, MemorySpace};
use crate::array_view::{ArrayView, shape_argument};
use crate::dlpack::{self, ExportRequest};
use crate::failure::Failure;
use crate::ffi::HostBytes;
use crate::gil::DropDetached;
use crate::open_device::{OpenDevice, PyDevice, StreamRef};
use crate::quantity::integer;
use crate::stack;
use crate::stream::stream_argument;
use crate::value::dict;
use crate::view::new_view;

/// A view of a replica, which ends when this is dropped.
struct ReplicaView {
    buffer: Arc<CountedBuffer>,
    number: u64,
}

impl Drop for ReplicaView {
    fn drop(&mut self) {
        // It is there, but in a forked child: it was entered when this was made.
        let _ = self.buffer.end_view(self.number);
    }
}

/// Elements with a replica on the host and one on a device, copied when and as far as a use needs it.
///
/// Made by ``BufferManager.buffer()`` and ``BufferManager.buffer_from()``. Views of either side share its memory; while one lives, a
/// call that conflicts with it raises ``InUseError``, which is a ``BufferError``.
///
/// ``buffer[10:20]`` is a slice: a buffer of these elements, rows of the first dimension, in the same memory. Only their
/// bytes are copied, and views of other slices do not conflict with it. It keeps the memory.
#[pyclass(name = "UnifiedBuffer", module = "forebay", frozen, weakref)]
pub(crate) struct PyUnifiedBuffer {
    device: Arc<OpenDevice>,
    /// Its elements, and at which byte of the buffer they begin. Locked only to copy or replace it.
    array: Mutex<ArrayView>,
    /// Whether it is a slice of another.
    is_slice: bool,
    buffer: DropDetached<Arc<CountedBuffer>>,
}

impl PyUnifiedBuffer {
    pub(crate) fn new(device: Arc<OpenDevice>, array: ArrayView, buffer: CountedBuffer) -> Self {
        let buffer = DropDetached::new(Arc::new(buffer));
        Self { device, array: Mutex::new(array), is_slice: false, buffer }
    }

    fn array(&self) -> ArrayView {
        lock(&self.array).clone()
    }

    fn replica_view(&self, view: View) -> ReplicaView {
        ReplicaView { buffer: Arc::clone(&self.buffer), number: view.number }
    }

    /// The buffer, for what is done to all of it.
    fn whole(&self) -> Result<&CountedBuffer, Failure> {
        if self.is_slice {
            let said = "this is a slice; call it on the buffer, as it concerns all elements";
            return Err(Failure::invalid(said));
        }
        Ok(&self.buffer)
    }

    fn host_view(&self, array: &ArrayView, write: bool) -> Result<Arc<Allocation>, Failure> {
        let access = if write { Access::Update } else { Access::Read };
        let view = self.buffer.map(array.offset(), array.bytes(), access)?;
        let kept = self.replica_view(view);
        // As for tensors of other libraries in host memory.
        let range = (view.address, Bytes::new(array.bytes()), MemorySpace::Host);
        let host = OpenDevice::named("host")?;
        Ok(Allocation::replica(&host, &StreamRef::default_of(&host), range, kept))
    }

    fn device_view(
        &self,
        array: &ArrayView,
        access: Access,
        stream: &Arc<StreamRef>,
    ) -> Result<Arc<Allocation>, Failure> {
        let (offset, bytes) = (array.offset(), array.bytes());
        let view = self.buffer.export(offset, bytes, access, stream.handle())?;
        let kept = self.replica_view(view);
        let host = self.device.is_host();
        let space = if host { MemorySpace::HostDevice } else { MemorySpace::Device };
        let range = (view.address, Bytes::new(bytes), space);
        Ok(Allocation::replica(&self.device, stream, range, kept))
    }

    /// Copies all elements of another buffer, from byte `offset` on. On the device, where both are whole buffers of one
    /// size.
    fn copy_from_buffer(
        &self,
        from: &Self,
        offset: u64,
        stream: StreamHandle,
    ) -> Result<(), Failure> {
        let (array, source) = (self.array(), from.array());
        let to = array.span(offset, source.bytes())?;
        if !self.is_slice && !from.is_slice && source.bytes() == array.bytes() {
            return Ok(self.buffer.copy_from(&from.buffer, stream)?);
        }
        let mut bytes = Ok(Vec::new());
        let take = |from: &[u8]| bytes = host_vec::copied(from, Call::Copy);
        from.buffer.read(source.offset(), source.bytes(), take)?;
        Ok(self.buffer.write(to, &bytes?)?)
    }
}

#[pymethods]
impl PyUnifiedBuffer {
    /// The type of its elements, by name.
    #[getter]
    fn dtype(&self) -> &'static str {
        lock(&self.array).dtype().name
    }

    /// How many elements in each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.array().shape_tuple(py)
    }

    /// How many bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        lock(&self.array).bytes()
    }

    /// Its device.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice::new(Arc::clone(&self.device))
    }

    /// Which replicas are there, and which is newer: "HostDirty", "Synchronized" and so on.
    #[getter]
    fn state(&self, py: Python<'_>) -> Result<String, Failure> {
        let found = py.detach(|| self.buffer.statistics())?;
        Ok(format!("{:?}", found.state))
    }

    /// Its memory and copies so far.
    fn statistics<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>, Failure> {
        let found = py.detach(|| self.buffer.statistics())?;
        let dict = statistics(py, &found.statistics)?;
        dict.set_item("number", found.id)?;
        dict.set_item("views", found.views)?;
        Ok(dict)
    }

    /// A view of its elements in host memory, with the buffer protocol. Copies what the host lacks, and waits for that.
    /// With ``write`` the elements count as newer than the device's.
    #[pyo3(signature = (write = false))]
    fn view(&self, py: Python<'_>, write: bool) -> Result<Py<PyAny>, Failure> {
        let array = self.array();
        let allocation = py.detach(|| self.host_view(&array, write))?;
        new_view(py, allocation.pin()?, array.alone(write))
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
        PyHostAccess { buffer: slf, write, view: Mutex::new(None) }
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
        let array = self.array();
        let allocation = stack::detach(py, || self.device_view(&array, access, &stream))?;
        new_view(py, allocation.pin()?, array.alone(write))
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
        let (own, array) = (StreamRef::default_of(&self.device), self.array());
        let allocation = stack::detach(py, || self.device_view(&array, Access::Update, &own))?;
        let request = ExportRequest { stream, max_version, device: dl_device, copy };
        dlpack::export(py, allocation.pin()?, &array.alone(true), &request)
    }

    /// The device type and number, as DLPack defines them.
    fn __dlpack_device__(&self) -> Result<(i32, i32), Failure> {
        dlpack::device_of(&self.device)
    }

    /// Replace its bytes, from byte ``offset`` on, by all of ``source``: anything with the buffer protocol, or another
    /// ``UnifiedBuffer``, of any device. Two whole buffers of one size and device are copied there, in the order of
    /// ``stream``, where the source is newer there; all else is copied through the host.
    #[pyo3(signature = (source, offset = 0, stream = None))]
    pub(crate) fn copy_from(
        &self,
        source: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = integer::<u64>)] offset: u64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<(), Failure> {
        let py = source.py();
        if let Ok(from) = source.cast::<Self>() {
            let stream = stream_argument(&self.device, stream)?.handle();
            let from = from.get();
            return py.detach(|| self.copy_from_buffer(from, offset, stream));
        }
        let bytes = HostBytes::of(source, false)?;
        let to = self.array().span(offset, bytes.length())?;
        let from = bytes.copied()?;
        py.detach(|| Ok(self.buffer.write(to, &from)?))
    }

    /// Its contents as bytes.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyBytes>, Failure> {
        let array = self.array();
        let length = usize::try_from(array.bytes())?;
        let bytes = PyBytes::new_with(py, length, |bytes| {
            let take = |from: &[u8]| bytes.copy_from_slice(from);
            let read = || self.buffer.read(array.offset(), array.bytes(), take);
            Ok(py.detach(read).map_err(Failure::from)?)
        });
        Ok(bytes?)
    }

    /// Give all elements one value. Zeros cost nothing until they are needed.
    fn fill(&self, value: &Bound<'_, PyAny>) -> Result<(), Failure> {
        let array = self.array();
        let (pattern, width) = array.dtype().pattern(value)?;
        let (offset, bytes) = (array.offset(), array.bytes());
        value.py().detach(|| Ok(self.buffer.fill(offset, bytes, pattern, width)?))
    }

    /// Change its shape and size. The first bytes stay, new ones are zero. The contents move to new host memory, so it
    /// raises while views of it live. Slices made before stay what they were; one that reaches past the new end raises.
    fn resize(&self, shape: &Bound<'_, PyAny>) -> Result<(), Failure> {
        let py = shape.py();
        let array = ArrayView::of_shape(self.array().dtype(), shape_argument(shape)?)?;
        let size = array.bytes();
        py.detach(|| Ok(self.whole()?.resize(size, || *lock(&self.array) = array)?))
    }

    /// Make both replicas current.
    fn synchronize(&self, py: Python<'_>) -> Result<(), Failure> {
        py.detach(|| Ok(self.whole()?.synchronize(StreamHandle::DEFAULT)?))
    }

    /// Free the memory of a replica, "host" or "device", after copying to the other what it alone had. Returns how
    /// many bytes were freed.
    fn compact(&self, py: Python<'_>, replica: &str) -> Result<u64, Failure> {
        let replica = replica_of(replica)?;
        py.detach(|| Ok(self.whole()?.compact(replica, StreamHandle::DEFAULT)?.get()))
    }

    /// Forget what a replica, "host" or "device", has: it is copied from the other when it is needed next.
    fn invalidate(&self, py: Python<'_>, replica: &str) -> Result<(), Failure> {
        let replica = replica_of(replica)?;
        py.detach(|| Ok(self.whole()?.invalidate(replica)?))
    }

    /// Free its memory. Raises while views of it live, and the second time.
    fn close(&self, py: Python<'_>) -> Result<(), Failure> {
        py.detach(|| Ok(self.whole()?.close()?))
    }

    /// Rows of its first dimension that follow each other, as a buffer in the same memory.
    fn __getitem__(&self, rows: &Bound<'_, PySlice>) -> Result<Self, Failure> {
        let array = self.array();
        let indices = rows.indices(isize::try_from(array.rows()?).unwrap_or(isize::MAX))?;
        if indices.step != 1 {
            let step = indices.step;
            let said = format!("a slice has every element: step {step} is not 1; use numpy()");
            return Err(Failure::invalid(said));
        }
        let (first, count) = (indices.start.unsigned_abs() as u64, indices.slicelength as u64);
        let array = Mutex::new(array.part(first, count)?);
        let (device, buffer) =
            (Arc::clone(&self.device), DropDetached::new(Arc::clone(&self.buffer)));
        Ok(Self { device, array, is_slice: true, buffer })
    }

    /// How many rows its first dimension has.
    fn __len__(&self) -> Result<usize, Failure> {
        Ok(usize::try_from(self.array().rows()?)?)
    }

    /// A buffer is true, however small it is.
    fn __bool__(&self) -> bool {
        true
    }

    fn __repr__(&self) -> String {
        let (array, device) = (self.array(), self.device.name());
        let slice = if self.is_slice { "slice of a " } else { "" };
        format!("<{slice}forebay.UnifiedBuffer of {array} on {device}>")
    }
}

/// The ``with`` of ``UnifiedBuffer.host()``.
#[pyclass(name = "_HostAccess", module = "forebay", frozen)]
pub(crate) struct PyHostAccess {
    buffer: Py<PyUnifiedBuffer>,
    write: bool,
    view: Mutex<Option<Py<PyAny>>>,
}

#[pymethods]
impl PyHostAccess {
    fn __enter__(&self, py: Python<'_>) -> Result<Py<PyAny>, Failure> {
        let view = self.buffer.get().view(py, self.write)?;
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
