//! Streams: made here, or by another library.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forebay::hal::{Event, EventKind, Progress};
use forebay::{Pool, PoolId, Priority, Stream, StreamHandle};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::device::PyDevice;
use crate::fork::{Native, unlocked};
use crate::refusal::Refusal;
use crate::site::{Site, lock};

/// A stream, with all that must know when it goes.
pub(crate) struct Course {
    site: Arc<Site>,
    handle: StreamHandle,
    /// Nothing for the default stream, which nobody ends, and once it was forgotten: then the device does
    /// not know it any more either.
    stream: Mutex<Option<Native<Stream>>>,
    /// The pools that have blocks in its order: they are told before it goes.
    pools: Mutex<Vec<PoolId>>,
    /// Whether it was said that its maker destroys it: nothing is enqueued there any more.
    forgotten: AtomicBool,
    /// The object of another library that the stream is.
    _maker: Option<Py<PyAny>>,
}

impl Course {
    /// The default stream of a device.
    pub(crate) fn default_of(site: &Arc<Site>) -> Arc<Self> {
        let make = || Arc::new(Self::of(site, StreamHandle::DEFAULT, None, None));
        Arc::clone(site.default_course(make))
    }

    /// A new stream.
    pub(crate) fn new(site: &Arc<Site>, priority: Priority) -> Result<Arc<Self>, Refusal> {
        let stream = Stream::new(site.device()?, priority)?;
        let handle = stream.handle();
        let course = Arc::new(Self::of(site, handle, Some(stream), None));
        let mut streams = site.streams()?;
        streams.own.retain(|_, course| course.strong_count() > 0);
        streams.own.insert(handle.0, Arc::downgrade(&course));
        drop(streams);
        Ok(course)
    }

    /// The stream that `raw` names: one of ours, or one that another library made and `maker` stands for.
    pub(crate) fn adopt(
        site: &Arc<Site>,
        raw: u64,
        maker: Option<Py<PyAny>>,
    ) -> Result<Arc<Self>, Refusal> {
        if raw == StreamHandle::DEFAULT.0 {
            return Ok(Self::default_of(site));
        }
        let mut streams = site.streams()?;
        if let Some(course) = streams.known(raw) {
            return Ok(course);
        }
        let course = Self::foreign(site, raw, maker)?;
        if !course.is_default() {
            streams.adopted.insert(raw, Arc::clone(&course));
        }
        Ok(course)
    }

    /// The stream that `raw` names where it is known here; else the same until what is given goes. Says
    /// whether it is known.
    pub(crate) fn passing(site: &Arc<Site>, raw: u64) -> Result<(Arc<Self>, bool), Refusal> {
        if raw == StreamHandle::DEFAULT.0 {
            return Ok((Self::default_of(site), true));
        }
        // Apart from the match, which would hold the lock to its end.
        let known = site.streams()?.known(raw);
        if let Some(course) = known {
            return Ok((course, true));
        }
        let course = Self::foreign(site, raw, None)?;
        let known = course.is_default();
        Ok((course, known))
    }

    fn foreign(site: &Arc<Site>, raw: u64, maker: Option<Py<PyAny>>) -> Result<Arc<Self>, Refusal> {
        // SAFETY: whoever hands over a stream of another library promises that it is one of this device,
        // and that it lives until it is forgotten: it is the one thing a driver cannot check.
        let stream = unsafe { Stream::foreign(site.device()?, raw) }?;
        let handle = stream.handle();
        if handle == StreamHandle::DEFAULT {
            return Ok(Self::default_of(site));
        }
        Ok(Arc::new(Self::of(site, handle, Some(stream), maker)))
    }

    fn of(
        site: &Arc<Site>,
        handle: StreamHandle,
        stream: Option<Stream>,
        maker: Option<Py<PyAny>>,
    ) -> Self {
        let (site, stream) = (Arc::clone(site), Mutex::new(stream.map(Native::new)));
        let (pools, forgotten) = (Mutex::default(), AtomicBool::new(false));
        Self { site, handle, stream, pools, forgotten, _maker: maker }
    }

    /// The handle, for calls of the device.
    pub(crate) fn handle(&self) -> StreamHandle {
        self.handle
    }

    /// The number by which the driver knows it, for other libraries.
    fn raw(&self) -> Result<u64, Refusal> {
        let streams = self.site.device()?.foreign_streams();
        Ok(streams.map_or(self.handle.0, |streams| streams.raw_stream(self.handle)))
    }

    /// The device.
    pub(crate) fn site(&self) -> &Arc<Site> {
        &self.site
    }

    fn is_default(&self) -> bool {
        self.handle == StreamHandle::DEFAULT
    }

    /// Notes that a pool has blocks in its order.
    pub(crate) fn used_by(&self, pool: PoolId) {
        if !self.is_default() {
            let mut pools = lock(&self.pools);
            if !pools.contains(&pool) {
                pools.push(pool);
            }
        }
    }

    /// Waits until all its work is done.
    pub(crate) fn synchronize(&self) -> Result<(), Refusal> {
        Ok(self.site.device()?.synchronize_stream(self.handle)?)
    }

    /// The stream to go on with: this one, or the default stream once this one was forgotten.
    pub(crate) fn standing(self: &Arc<Self>) -> Arc<Self> {
        if self.is_forgotten() { Self::default_of(&self.site) } else { Arc::clone(self) }
    }

    /// An error once it was forgotten.
    fn check(&self) -> Result<(), Refusal> {
        if self.is_forgotten() {
            return Err(Refusal::closed("the stream was forgotten; adopt() takes it again"));
        }
        Ok(())
    }

    fn is_forgotten(&self) -> bool {
        // Whoever destroys the stream keeps order with those who use it; the flag alone keeps none.
        self.forgotten.load(Ordering::Relaxed)
    }

    /// Gives the stream up before its maker destroys it, whoever still has it here: the default stream
    /// waits for all its work, and goes on in its place. Where it fails the stream is what it was.
    pub(crate) fn forget(&self) -> Result<(), Refusal> {
        self.lead(&Self::default_of(&self.site))?;
        // Apart from the lock: a pool may wait for others, who may wait for this.
        let pools = lock(&self.pools).clone();
        for id in pools {
            // A pool that is gone has nothing left there.
            if let Ok(pool) = Pool::find(id) {
                pool.forget_stream(self.handle)?;
            }
            lock(&self.pools).retain(|&known| known != id);
        }
        self.forgotten.store(true, Ordering::Relaxed);
        // The device would ask for it when it waits for all its work, and its maker destroys it. Apart from
        // the lock, as the device has its own.
        let known = lock(&self.stream).take();
        drop(known);
        Ok(())
    }

    /// Makes later work of `other` wait for all work of this one, on the device.
    pub(crate) fn lead(&self, other: &Self) -> Result<(), Refusal> {
        if self.handle == other.handle {
            return Ok(());
        }
        let device = self.site.device()?;
        let event = Event::new(device, EventKind::Order)?;
        device.record_event(event.handle(), self.handle)?;
        Ok(device.wait_event(other.handle, event.handle())?)
    }
}

impl Drop for Course {
    fn drop(&mut self) {
        let stream = self.stream.get_mut().unwrap_or_else(PoisonError::into_inner);
        if stream.as_ref().is_none_or(|stream| stream.get().is_err()) {
            return;
        }
        for &pool in lock(&self.pools).iter() {
            // A pool that is gone has nothing left there; one that cannot be told now keeps what is free
            // in the stream's order, and says so when it is asked for it.
            let _ = Pool::find(pool).map(|pool| pool.forget_stream(self.handle));
        }
    }
}

/// The stream an argument names: `None`, a `Stream`, a number, or an object of another library.
pub(crate) fn course_of(
    site: &Arc<Site>,
    argument: Option<&Bound<'_, PyAny>>,
) -> Result<Arc<Course>, Refusal> {
    let Some(argument) = argument.filter(|argument| !argument.is_none()) else {
        return Ok(Course::default_of(site));
    };
    if let Ok(stream) = argument.cast::<PyStream>() {
        let course = stream.get().course()?;
        if !Arc::ptr_eq(course.site(), site) {
            let (theirs, ours) = (course.site().name(), site.name());
            let said = format!("the stream is of {theirs}; here streams of {ours} are allowed");
            return Err(Refusal::invalid(said));
        }
        course.check()?;
        return Ok(course);
    }
    let raw = raw_of(argument)?;
    let maker = argument.clone().unbind();
    argument.py().detach(|| Course::adopt(site, raw, Some(maker)))
}

/// The number by which a driver knows the stream that an object is.
pub(crate) fn raw_of(argument: &Bound<'_, PyAny>) -> Result<u64, Refusal> {
    let refused = || {
        Refusal::invalid(format!(
            "{argument:?} is no stream: allowed are None, a forebay.Stream, a driver's handle as a whole \
             number from 0 on, and objects with __cuda_stream__, cuda_stream or ptr"
        ))
    };
    let number = if let Ok(protocol) = argument.getattr("__cuda_stream__") {
        // A method since its first version; an attribute in drafts of it.
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

/// An order of work on a device.
///
/// Made by ``Device.stream()``; ``Device.adopt()`` takes one that another library made. As a context
/// manager it waits for its work at the end.
#[pyclass(name = "Stream", module = "forebay", frozen)]
pub(crate) struct PyStream {
    /// Nothing once it was closed.
    course: Mutex<Option<Arc<Course>>>,
}

impl PyStream {
    pub(crate) fn new(course: Arc<Course>) -> Self {
        Self { course: Mutex::new(Some(course)) }
    }

    pub(crate) fn course(&self) -> Result<Arc<Course>, Refusal> {
        let course = lock(&self.course).clone();
        course.ok_or_else(|| Refusal::closed("the stream was closed"))
    }

    /// The stream, for work of it.
    fn working(&self) -> Result<Arc<Course>, Refusal> {
        let course = self.course()?;
        course.check()?;
        Ok(course)
    }
}

impl Drop for PyStream {
    fn drop(&mut self) {
        let course = self.course.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // Others have it otherwise. Pools are told of its end, which may wait for their locks.
        if let Some(course) = course.filter(|course| Arc::strong_count(course) == 1) {
            unlocked(|| drop(course));
        }
    }
}

#[pymethods]
impl PyStream {
    /// The number by which the driver knows it; 0 for the default stream.
    #[getter]
    fn handle(&self) -> Result<u64, Refusal> {
        self.course()?.raw()
    }

    /// The device it is of.
    #[getter]
    fn device(&self) -> Result<PyDevice, Refusal> {
        Ok(PyDevice::new(Arc::clone(self.course()?.site())))
    }

    /// Whether close() was called.
    #[getter]
    fn closed(&self) -> bool {
        lock(&self.course).is_none()
    }

    /// The version of the protocol and the handle, for libraries that take streams of others.
    fn __cuda_stream__(&self) -> Result<(u32, u64), Refusal> {
        Ok((0, self.course()?.raw()?))
    }

    /// Wait until all its work is done.
    fn synchronize(&self, py: Python<'_>) -> Result<(), Refusal> {
        let course = self.working()?;
        py.detach(|| course.synchronize())
    }

    /// Whether all its work is done.
    fn done(&self, py: Python<'_>) -> Result<bool, Refusal> {
        let course = self.working()?;
        py.detach(|| Ok(course.site().device()?.query_stream(course.handle())? == Progress::Done))
    }

    /// Make later work of this stream wait for all work that ``other`` has now, on the device.
    fn wait_for(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> Result<(), Refusal> {
        let course = self.working()?;
        let other = course_of(course.site(), Some(other))?;
        py.detach(|| other.lead(&course))
    }

    /// Give the stream up. It ends when the last buffer in its order is gone.
    fn close(&self, py: Python<'_>) {
        let course = lock(&self.course).take();
        py.detach(|| drop(course));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> Result<(), Refusal> {
        if self.closed() { Ok(()) } else { self.synchronize(py) }
    }

    fn __repr__(&self) -> String {
        match self.course() {
            Ok(course) => {
                format!("<forebay.Stream {:#x} of {}>", course.handle().0, course.site().name())
            }
            Err(_) => "<forebay.Stream, closed>".to_owned(),
        }
    }
}
