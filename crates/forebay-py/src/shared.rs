//! `forebay.SharedBuffer`: elements that several processes have at the same time, found by name.
//!
//! Other processes may write at any moment, so elements are copied, and no view is given but by `unsafe_numpy`. The types of
//! elements have Rust's names, so that programs in Rust, C and Python share a buffer.

use core::time::Duration;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use forebay::bindings::{SharedBytes, host_vec};
use forebay::buffer::BufferManager;
use forebay::hal::Call;
use forebay::named::SharedOptions;
use forebay_sync::fork::LeakOnFork;
use forebay_sync::lock;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::allocation::{Allocation, MemorySpace};
use crate::array_view::{ArrayView, shape_argument};
use crate::dtype::Dtype;
use crate::failure::Failure;
use crate::ffi::HostBytes;
use crate::gil::DropDetached;
use crate::numpy;
use crate::open_device::{OpenDevice, PyDevice};
use crate::quantity::{integer, optional_integer, seconds};

/// How long a lock is waited for before the interpreter may handle a signal, such as Ctrl-C.
const SLICE: Duration = Duration::from_millis(50);

/// Elements that several processes have at the same time, found by name.
///
/// Made by ``BufferManager.shared()`` and ``BufferManager.open_shared()``. Other processes may write at any moment: a read that meets a
/// write gets old elements in part and new ones in part. ``lock()`` keeps reads and writes apart where all sides use it. The
/// name lives as long as any process has the buffer.
#[pyclass(name = "SharedBuffer", module = "forebay", frozen, weakref)]
pub(crate) struct PySharedBuffer {
    device: Arc<OpenDevice>,
    array: ArrayView,
    name: String,
    any_user: bool,
    /// `None` once it was closed. Locked for moments in which nothing waits.
    buffer: Mutex<Option<Handle>>,
}

/// A buffer that calls share.
type Handle = DropDetached<Arc<LeakOnFork<SharedBytes>>>;

impl PySharedBuffer {
    /// Creates a buffer, or opens it where `or_open`.
    pub(crate) fn create(
        py: Python<'_>,
        device: &Arc<OpenDevice>,
        memory: &BufferManager,
        options: &SharedOptions,
        name: &str,
        array: ArrayView,
        or_open: bool,
    ) -> Result<Self, Failure> {
        let make = if or_open { SharedBytes::create_or_open } else { SharedBytes::create };
        let type_name = array.dtype().shared_name();
        let buffer = py.detach(|| make(memory, options, name, &type_name, array.bytes()))?;
        Ok(Self::new(device, buffer, array, options))
    }

    /// Opens a buffer, whatever its elements are unless `dtype` says.
    pub(crate) fn open(
        py: Python<'_>,
        device: &Arc<OpenDevice>,
        memory: &BufferManager,
        options: &SharedOptions,
        name: &str,
        (shape, dtype): (Option<&Bound<'_, PyAny>>, Option<&Bound<'_, PyAny>>),
    ) -> Result<Self, Failure> {
        let dtype = dtype.map(Dtype::of_argument).transpose()?;
        let shape = shape.map(shape_argument).transpose()?;
        let buffer = py.detach(|| SharedBytes::open(memory, options, name, None))?;
        let (type_name, element) = buffer.element();
        let found = Dtype::of_shared(type_name, element);
        if let Some(wanted) = dtype.filter(|wanted| wanted.shared_name() != type_name) {
            let (found, wanted) = (found.name, wanted.name);
            return Err(Failure::invalid(format!(
                "the shared buffer {name:?} has elements of {found}, not {wanted}: open it without a dtype, or with that one"
            )));
        }
        let dtype = dtype.unwrap_or(found);
        let size = buffer.size().get();
        let shape = shape.unwrap_or_else(|| vec![size / dtype.size()]);
        let array = ArrayView::of_shape(dtype, shape)?;
        let found = array.bytes();
        if found != size {
            return Err(Failure::invalid(format!(
                "elements of {array} are {found} B, and the shared buffer {name:?} has {size} B; open it without a shape"
            )));
        }
        Ok(Self::new(device, buffer, array, options))
    }

    fn new(
        device: &Arc<OpenDevice>,
        buffer: SharedBytes,
        array: ArrayView,
        options: &SharedOptions,
    ) -> Self {
        let (name, any_user) = (buffer.name().to_owned(), options.is_for_any_user());
        let buffer = Mutex::new(Some(DropDetached::new(Arc::new(LeakOnFork::new(buffer)))));
        Self { device: Arc::clone(device), array, name, any_user, buffer }
    }

    /// The buffer, for a call; an error once it was closed.
    fn handle(&self) -> Result<Handle, Failure> {
        let held = lock(&self.buffer);
        let handle = held.as_ref().map(|buffer| DropDetached::new(Arc::clone(buffer)));
        handle
            .ok_or_else(|| Failure::closed(format!("the shared buffer {:?} was closed", self.name)))
    }

    /// Calls `work` with the buffer.
    fn with<R>(&self, work: impl FnOnce(&SharedBytes) -> Result<R, Failure>) -> Result<R, Failure> {
        work(self.handle()?.get()?)
    }
}

#[pymethods]
impl PySharedBuffer {
    /// The name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

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

    /// Its address on the device as a number, in this process. Valid as long as the buffer lives.
    #[getter]
    fn address(&self) -> Result<u64, Failure> {
        self.with(|shared| Ok(shared.address().get()))
    }

    /// Who created it: ``pid`` and ``uid``. The process may have ended.
    #[getter]
    fn creator<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>, Failure> {
        let (creator, dict) = (self.with(|shared| Ok(shared.creator()))?, PyDict::new(py));
        dict.set_item("pid", creator.pid)?;
        dict.set_item("uid", creator.uid)?;
        Ok(dict)
    }

    /// A copy of its bytes from byte ``offset`` on: ``size`` of them, or all that are left.
    #[pyo3(signature = (offset = 0, size = None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = integer::<u64>)] offset: u64,
        #[pyo3(from_py_with = optional_integer::<u64>)] size: Option<u64>,
    ) -> Result<Bound<'py, PyBytes>, Failure> {
        let size = size.unwrap_or(self.nbytes().saturating_sub(offset));
        self.array.span(offset, size)?;
        let length = usize::try_from(size)?;
        let bytes = PyBytes::new_with(py, length, |bytes| {
            py.detach(|| self.with(|shared| Ok(shared.read(offset, bytes)?)))?;
            Ok(())
        });
        Ok(bytes?)
    }

    /// Copy from byte ``offset`` on into all of ``target``: anything with the buffer protocol that can be written.
    #[pyo3(signature = (target, offset = 0))]
    fn read_into(
        &self,
        target: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = integer::<u64>)] offset: u64,
    ) -> Result<(), Failure> {
        let py = target.py();
        let to = HostBytes::of(target, true)?;
        self.array.span(offset, to.length())?;
        let length = usize::try_from(to.length()).unwrap_or(0);
        let mut bytes = host_vec::zeroed(length, Call::Copy)?;
        py.detach(|| self.with(|shared| Ok(shared.read(offset, &mut bytes)?)))?;
        to.fill_from(&bytes);
        Ok(())
    }

    /// Copy all of ``source``, anything with the buffer protocol, into it, from byte ``offset`` on.
    #[pyo3(signature = (source, offset = 0))]
    fn write(
        &self,
        source: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = integer::<u64>)] offset: u64,
    ) -> Result<(), Failure> {
        let from = HostBytes::of(source, false)?;
        self.array.span(offset, from.length())?;
        let bytes = from.copied()?;
        source.py().detach(|| self.with(|shared| Ok(shared.write(offset, &bytes)?)))
    }

    /// For a ``with``: holds the lock of the buffer, which no other thread or process has meanwhile. Without ``timeout``,
    /// in seconds, it waits as long as it takes; after it, it raises ``BusyError``.
    #[pyo3(signature = (timeout = None))]
    fn lock(slf: Py<Self>, timeout: Option<f64>) -> Result<PySharedLock, Failure> {
        slf.get().handle()?;
        let timeout = timeout.map(seconds).transpose()?;
        Ok(PySharedLock { buffer: slf, held: Mutex::new(None), timeout })
    }

    /// A numpy array that shares its memory, on the host only. Other processes may write to it at any moment, in the middle
    /// of a computation too: hold the lock as long as you use it, and see that all sides do.
    fn unsafe_numpy<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>, Failure> {
        let buffer = self.handle()?;
        if !self.device.is_host() || !buffer.get()?.is_host() {
            let name = self.device.name();
            return Err(Failure::export(format!(
                "the host cannot reach shared memory of {name}; use read() and write()"
            )));
        }
        let range = (buffer.get()?.address(), buffer.get()?.size(), MemorySpace::Host);
        let allocation = Allocation::foreign(&self.device, range, Arc::clone(&buffer));
        let pin = DropDetached::new(Arc::new(allocation.pin()?));
        numpy::shared(py, (pin, self.array.clone()))
    }

    /// Close it in this process: the name lives on as long as another has it. Closing twice does nothing.
    fn close(&self) {
        // A statement of its own, so that the lock is not held while the buffer goes.
        let held = lock(&self.buffer).take();
        drop(held);
    }

    fn __enter__<'a, 'py>(slf: &'a Bound<'py, Self>) -> Result<&'a Bound<'py, Self>, Failure> {
        slf.get().handle()?;
        Ok(slf)
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, PyTuple>) {
        self.close();
    }

    /// Pickled, it is the buffer of that name, which a process of the same machine opens while this one has it.
    fn __reduce__<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyTuple>, Failure> {
        self.handle()?;
        let open = py.import("forebay._shared")?.getattr("reopened")?;
        let (device, shape) = (self.device.name(), self.array.shape_tuple(py)?);
        let words = (device, &self.name, shape, self.array.dtype().name, self.any_user);
        Ok((open, words).into_pyobject(py)?)
    }

    fn __repr__(&self) -> String {
        let (name, array, device) = (&self.name, &self.array, self.device.name());
        let closed = if lock(&self.buffer).is_none() { ", closed" } else { "" };
        format!("<forebay.SharedBuffer {name:?} of {array} on {device}{closed}>")
    }
}

/// The ``with`` of ``SharedBuffer.lock()``.
#[pyclass(name = "_SharedLock", module = "forebay", frozen)]
pub(crate) struct PySharedLock {
    buffer: Py<PySharedBuffer>,
    /// While the lock is held: it is released whatever becomes of the object.
    held: Mutex<Option<Handle>>,
    timeout: Option<Duration>,
}

#[pymethods]
impl PySharedLock {
    fn __enter__(&self, py: Python<'_>) -> Result<(), Failure> {
        let (buffer, begun) = (self.buffer.get().handle()?, Instant::now());
        loop {
            let left = self.timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
            let slice = left.map_or(SLICE, |left| left.min(SLICE));
            let patience = Some(slice);
            if py.detach(|| Ok::<_, Failure>(buffer.get()?.lock(patience)?))? {
                *lock(&self.held) = Some(buffer);
                return Ok(());
            }
            if let (Some(Duration::ZERO), Some(timeout)) = (left, self.timeout) {
                let (name, waited) = (&self.buffer.get().name, timeout.as_secs_f64());
                let said = format!("another holds the lock of {name:?} after {waited} s");
                return Err(Failure::busy(said));
            }
            py.check_signals()?;
        }
    }

    /// Releases the lock, on the thread that took it.
    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> Result<(), Failure> {
        // A statement of its own, so that no lock is held while the buffer goes.
        let held = lock(&self.held).take();
        let held = held.map_or_else(|| self.buffer.get().handle(), Ok)?;
        py.detach(|| Ok(held.get()?.unlock()?))
    }
}
