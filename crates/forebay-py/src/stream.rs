//! Streams: created here, or adopted from another library.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forebay::hal::{Event, EventKind, Progress};
use forebay::{Pool, PoolId, Priority, Stream, StreamHandle};
use forebay_sync::fork::LeakOnFork;
use forebay_sync::lock;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::device::PyDevice;
use crate::failure::Failure;
use crate::gil::without_gil;
use crate::open_device::OpenDevice;

/// A reference-counted stream. Before it ends, or is forgotten, the pools that use it are told.
pub(crate) struct StreamRef {
    device: Arc<OpenDevice>,
    handle: StreamHandle,
    /// `None` for the default stream, which never ends, and once it was forgotten: the device does not know
    /// it then either.
    stream: Mutex<Option<LeakOnFork<Stream>>>,
    /// The pools that have blocks in its order. They are told before it ends.
    pools: Mutex<Vec<PoolId>>,
    /// Set before its maker destroys it: nothing is enqueued there any more.
    forgotten: AtomicBool,
    /// The other library's stream object, kept alive.
    _maker: Option<Py<PyAny>>,
}

impl StreamRef {
    /// The default stream of a device.
    pub(crate) fn default_of(device: &Arc<OpenDevice>) -> Arc<Self> {
        let make = || Arc::new(Self::of(device, StreamHandle::DEFAULT, None, None));
        Arc::clone(device.default_stream(make))
    }

    /// A new stream.
    pub(crate) fn new(device: &Arc<OpenDevice>, priority: Priority) -> Result<Arc<Self>, Failure> {
        let stream = Stream::new(device.opened()?, priority)?;
        let handle = stream.handle();
        let stream_ref = Arc::new(Self::of(device, handle, Some(stream), None));
        let mut streams = device.streams()?;
        streams.own.retain(|_, stream_ref| stream_ref.strong_count() > 0);
        streams.own.insert(handle.0, Arc::downgrade(&stream_ref));
        drop(streams);
        Ok(stream_ref)
    }

    /// The stream with the driver's handle `raw`: one of ours, or one of another library, whose object is
    /// `maker`.
    pub(crate) fn adopt(
        device: &Arc<OpenDevice>,
        raw: u64,
        maker: Option<Py<PyAny>>,
    ) -> Result<Arc<Self>, Failure> {
        if raw == StreamHandle::DEFAULT.0 {
            return Ok(Self::default_of(device));
        }
        let mut streams = device.streams()?;
        if let Some(stream_ref) = streams.find(raw) {
            return Ok(stream_ref);
        }
        let stream_ref = Self::foreign(device, raw, maker)?;
        if !stream_ref.is_default() {
            streams.adopted.insert(raw, Arc::clone(&stream_ref));
        }
        Ok(stream_ref)
    }

    /// The stream with the driver's handle `raw`, and whether it is known here. One that is not known is
    /// adopted only until the reference is dropped.
    pub(crate) fn find_or_borrow(
        device: &Arc<OpenDevice>,
        raw: u64,
    ) -> Result<(Arc<Self>, bool), Failure> {
        if raw == StreamHandle::DEFAULT.0 {
            return Ok((Self::default_of(device), true));
        }
        // A statement of its own: a match would hold the lock to its end.
        let known = device.streams()?.find(raw);
        if let Some(stream_ref) = known {
            return Ok((stream_ref, true));
        }
        // SAFETY: as in `foreign`, for this one call. The reference tells the pools that used it when it is dropped.
        let stream = unsafe { Stream::borrowed(device.opened()?, raw) }?;
        let stream_ref = Self::adopted(device, stream, None);
        let known = stream_ref.is_default();
        Ok((stream_ref, known))
    }

    fn foreign(
        device: &Arc<OpenDevice>,
        raw: u64,
        maker: Option<Py<PyAny>>,
    ) -> Result<Arc<Self>, Failure> {
        // SAFETY: the program promises that a stream of another library belongs to this device and lives
        // until it is forgotten. The driver cannot check that.
        let stream = unsafe { Stream::foreign(device.opened()?, raw) }?;
        Ok(Self::adopted(device, stream, maker))
    }

    fn adopted(device: &Arc<OpenDevice>, stream: Stream, maker: Option<Py<PyAny>>) -> Arc<Self> {
        let handle = stream.handle();
        if handle == StreamHandle::DEFAULT {
            return Self::default_of(device);
        }
        Arc::new(Self::of(device, handle, Some(stream), maker))
    }

    fn of(
        device: &Arc<OpenDevice>,
        handle: StreamHandle,
        stream: Option<Stream>,
        maker: Option<Py<PyAny>>,
    ) -> Self {
        let (device, stream) = (Arc::clone(device), Mutex::new(stream.map(LeakOnFork::new)));
        let (pools, forgotten) = (Mutex::default(), AtomicBool::new(false));
        Self { device, handle, stream, pools, forgotten, _maker: maker }
    }

    /// The handle, for calls of the device.
    pub(crate) fn handle(&self) -> StreamHandle {
        self.handle
    }

    /// The driver's handle, for other libraries.
    fn raw(&self) -> Result<u64, Failure> {
        let streams = self.device.opened()?.foreign_streams();
        Ok(streams.map_or(self.handle.0, |streams| streams.raw_stream(self.handle)))
    }

    /// Its device.
    pub(crate) fn device(&self) -> &Arc<OpenDevice> {
        &self.device
    }

    fn is_default(&self) -> bool {
        self.handle == StreamHandle::DEFAULT
    }

    /// Records that a pool has blocks in its order.
    pub(crate) fn register_pool(&self, pool: PoolId) {
        if !self.is_default() {
            let mut pools = lock(&self.pools);
            if !pools.contains(&pool) {
                pools.push(pool);
            }
        }
    }

    /// Waits until all its work is done.
    pub(crate) fn synchronize(&self) -> Result<(), Failure> {
        Ok(self.device.opened()?.synchronize_stream(self.handle)?)
    }

    /// This stream, or the default stream once this one was forgotten.
    pub(crate) fn live_or_default(self: &Arc<Self>) -> Arc<Self> {
        if self.is_forgotten() { Self::default_of(&self.device) } else { Arc::clone(self) }
    }

    /// An error once it was forgotten.
    fn check(&self) -> Result<(), Failure> {
        if self.is_forgotten() {
            return Err(Failure::closed("the stream was forgotten; adopt() takes it again"));
        }
        Ok(())
    }

    fn is_forgotten(&self) -> bool {
        // Relaxed: the program that destroys the stream synchronises with the threads that use it.
        self.forgotten.load(Ordering::Relaxed)
    }

    /// Stops using the stream before its maker destroys it, even while references exist: the default stream
    /// waits for all its work and replaces it. An error leaves the stream as it was.
    pub(crate) fn forget(&self) -> Result<(), Failure> {
        Self::default_of(&self.device).wait_for(self)?;
        // Without the lock: a pool may wait for threads that wait for the lock.
        let pools = lock(&self.pools).clone();
        for id in pools {
            // A pool that was closed has no blocks left there.
            if let Ok(pool) = Pool::find(id) {
                pool.forget_stream(self.handle)?;
            }
            lock(&self.pools).retain(|&known| known != id);
        }
        self.forgotten.store(true, Ordering::Relaxed);
        // Otherwise a device-wide synchronisation would use the destroyed stream. Dropped without the lock,
        // since the device takes its own.
        let known = lock(&self.stream).take();
        drop(known);
        Ok(())
    }

    /// Makes later work of this stream wait, on the device, for all work that `earlier` has now.
    pub(crate) fn wait_for(&self, earlier: &Self) -> Result<(), Failure> {
        if self.handle == earlier.handle {
            return Ok(());
        }
        let device = self.device.opened()?;
        let event = Event::new(device, EventKind::Order)?;
        device.record_event(event.handle(), earlier.handle)?;
        Ok(device.wait_event(self.handle, event.handle())?)
    }
}

impl Drop for StreamRef {
    fn drop(&mut self) {
        let stream = self.stream.get_mut().unwrap_or_else(PoisonError::into_inner);
        if stream.as_ref().is_none_or(|stream| stream.get().is_err()) {
            return;
        }
        for &pool in lock(&self.pools).iter() {
            // A pool that was closed has no blocks left there. One that fails keeps its free memory in the
            // stream's order, and reports an error when it needs it.
            let _ = Pool::find(pool).map(|pool| pool.forget_stream(self.handle));
        }
    }
}

/// The stream an argument names: `None`, a `Stream`, a number, or an object of another library.
pub(crate) fn stream_argument(
    device: &Arc<OpenDevice>,
    argument: Option<&Bound<'_, PyAny>>,
) -> Result<Arc<StreamRef>, Failure> {
    let Some(argument) = argument.filter(|argument| !argument.is_none()) else {
        return Ok(StreamRef::default_of(device));
    };
    if let Ok(stream) = argument.cast::<PyStream>() {
        let stream_ref = stream.get().stream_ref()?;
        if !Arc::ptr_eq(stream_ref.device(), device) {
            let (theirs, ours) = (stream_ref.device().name(), device.name());
            let said = format!("the stream belongs to {theirs}; expected a stream of {ours}");
            return Err(Failure::invalid(said));
        }
        stream_ref.check()?;
        return Ok(stream_ref);
    }
    let raw = raw_stream_argument(argument)?;
    let maker = argument.clone().unbind();
    argument.py().detach(|| StreamRef::adopt(device, raw, Some(maker)))
}

/// The driver's handle of the stream that an argument names.
pub(crate) fn raw_stream_argument(argument: &Bound<'_, PyAny>) -> Result<u64, Failure> {
    let refused = || {
        Failure::invalid(format!(
            "{argument:?} is not a stream: expected None, a forebay.Stream, a driver's handle as a whole \
             number, or an object with __cuda_stream__, cuda_stream or ptr"
        ))
    };
    let number = if let Ok(protocol) = argument.getattr("__cuda_stream__") {
        // A method since the first version of the protocol; an attribute in drafts.
        let told = if protocol.is_callable() { protocol.call0()? } else { protocol };
        told.cast::<PyTuple>().map_err(|_| refused())?.get_item(1)?
    } else if let Ok(number) = argument.getattr("cuda_stream") {
        number
    } else if let Ok(number) = argument.getattr("ptr") {
        number
    } else {
        argument.clone()
    };
    number.extract().map_err(|_| refused())
}

/// A stream of a device: its work runs in order.
///
/// Made by ``Device.stream()``; ``Device.adopt()`` takes one that another library made. As a context
/// manager it waits for its work at the end.
#[pyclass(name = "Stream", module = "forebay", frozen)]
pub(crate) struct PyStream {
    /// `None` once it was closed.
    stream_ref: Mutex<Option<Arc<StreamRef>>>,
}

impl PyStream {
    pub(crate) fn new(stream_ref: Arc<StreamRef>) -> Self {
        Self { stream_ref: Mutex::new(Some(stream_ref)) }
    }

    pub(crate) fn stream_ref(&self) -> Result<Arc<StreamRef>, Failure> {
        let stream_ref = lock(&self.stream_ref).clone();
        stream_ref.ok_or_else(|| Failure::closed("the stream was closed"))
    }

    /// The stream, where it was neither closed nor forgotten.
    fn usable(&self) -> Result<Arc<StreamRef>, Failure> {
        let stream_ref = self.stream_ref()?;
        stream_ref.check()?;
        Ok(stream_ref)
    }
}

impl Drop for PyStream {
    fn drop(&mut self) {
        let stream_ref = self.stream_ref.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // The last reference tells pools of the stream's end, which may wait for their locks.
        if let Some(stream_ref) = stream_ref.filter(|stream_ref| Arc::strong_count(stream_ref) == 1)
        {
            without_gil(|| drop(stream_ref));
        }
    }
}

#[pymethods]
impl PyStream {
    /// The driver's handle; 0 for the default stream.
    #[getter]
    fn handle(&self) -> Result<u64, Failure> {
        self.stream_ref()?.raw()
    }

    /// Its device.
    #[getter]
    fn device(&self) -> Result<PyDevice, Failure> {
        Ok(PyDevice::new(Arc::clone(self.stream_ref()?.device())))
    }

    /// Whether close() was called.
    #[getter]
    fn closed(&self) -> bool {
        lock(&self.stream_ref).is_none()
    }

    /// The version of the protocol and the handle, for other libraries.
    fn __cuda_stream__(&self) -> Result<(u32, u64), Failure> {
        Ok((0, self.stream_ref()?.raw()?))
    }

    /// Wait until all its work is done.
    fn synchronize(&self, py: Python<'_>) -> Result<(), Failure> {
        let stream_ref = self.usable()?;
        py.detach(|| stream_ref.synchronize())
    }

    /// Whether all its work is done.
    fn done(&self, py: Python<'_>) -> Result<bool, Failure> {
        let stream_ref = self.usable()?;
        py.detach(|| {
            Ok(stream_ref.device().opened()?.query_stream(stream_ref.handle())? == Progress::Done)
        })
    }

    /// Make later work of this stream wait for all work that ``other`` has now, on the device.
    fn wait_for(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> Result<(), Failure> {
        let stream_ref = self.usable()?;
        let other = stream_argument(stream_ref.device(), Some(other))?;
        py.detach(|| stream_ref.wait_for(&other))
    }

    /// Close the stream. It is destroyed with the last buffer in its order.
    fn close(&self, py: Python<'_>) {
        let stream_ref = lock(&self.stream_ref).take();
        py.detach(|| drop(stream_ref));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> Result<(), Failure> {
        if self.closed() { Ok(()) } else { self.synchronize(py) }
    }

    fn __repr__(&self) -> String {
        match self.stream_ref() {
            Ok(stream_ref) => {
                format!(
                    "<forebay.Stream {:#x} of {}>",
                    stream_ref.handle().0,
                    stream_ref.device().name()
                )
            }
            Err(_) => "<forebay.Stream, closed>".to_owned(),
        }
    }
}
