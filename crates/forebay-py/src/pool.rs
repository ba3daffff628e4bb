//! `forebay.Pool`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use forebay::bindings::effective_settings;
use forebay::handle::{allocate_batch, warm_up};
use forebay::{
    Alignment, Bytes, EventAction, OwnedBlock, Pool, PoolOptions, Request, StatisticsSnapshot,
};
use forebay_trace::Recorder;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::allocation::Allocation;
use crate::arena::PyArena;
use crate::callback;
use crate::construct::new_buffer;
use crate::device::{PyDevice, device_argument};
use crate::failure::Failure;
use crate::gil::without_gil;
use crate::live_blocks;
use crate::open_device::OpenDevice;
use crate::quantity::{Size, optional_integer, seconds};
use crate::scope::PyScope;
use crate::settings;
use crate::stream::stream_argument;
use crate::trace;
use crate::value::to_python;
use forebay_sync::fork::{Birth, LeakOnFork};
use forebay_sync::lock;

/// A pool of a device's memory.
///
/// ``forebay.pool(device)`` is the process's own, which C and PyTorch use too. ``Pool(device)`` makes
/// another, with settings of its own: words as ``max_bytes="8GiB"``, or one text as FOREBAY_CONF has it.
#[pyclass(name = "Pool", module = "forebay", frozen, weakref)]
pub(crate) struct PyPool {
    device: Arc<OpenDevice>,
    birth: Birth,
    /// `None` once it was closed.
    pool: Mutex<Option<LeakOnFork<Pool>>>,
    recorder: Option<Recorder>,
}

impl PyPool {
    /// The process's pool of a device.
    pub(crate) fn of_process(device: &Arc<OpenDevice>) -> Result<Self, Failure> {
        Ok(Self::new(device, device.pool()?, None))
    }

    fn new(device: &Arc<OpenDevice>, pool: Pool, recorder: Option<Recorder>) -> Self {
        let pool = Mutex::new(Some(LeakOnFork::new(pool)));
        Self { device: Arc::clone(device), birth: Birth::here(), pool, recorder }
    }

    /// The library's pool; an error once it was closed.
    pub(crate) fn pool(&self) -> Result<Pool, Failure> {
        self.birth.check()?;
        match &*lock(&self.pool) {
            Some(pool) => Ok(pool.get()?.clone()),
            None => Err(Failure::closed("the pool was closed")),
        }
    }

    /// The name of a pool's device.
    pub(crate) fn name_of(pool: &Pool) -> String {
        let descriptor = pool.device().descriptor();
        match descriptor.kind {
            forebay::DeviceKind::Cuda => format!("cuda:{}", descriptor.ordinal.0),
            kind => kind.name().to_owned(),
        }
    }
}

impl Drop for PyPool {
    fn drop(&mut self) {
        let pool = self.pool.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // Dropping the last handle of a pool waits for its device.
        without_gil(|| drop(pool));
    }
}

#[pymethods]
impl PyPool {
    #[new]
    #[pyo3(signature = (
        device = None, conf = None, *, record = false, on_shortage = None, on_pressure = None,
        on_leak = None, **settings
    ))]
    #[allow(clippy::too_many_arguments, reason = "they are words of a call in Python")]
    fn make(
        py: Python<'_>,
        device: Option<&Bound<'_, PyAny>>,
        conf: Option<&str>,
        record: bool,
        on_shortage: Option<Py<PyAny>>,
        on_pressure: Option<Py<PyAny>>,
        on_leak: Option<Py<PyAny>>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> Result<Self, Failure> {
        let device = device.map_or_else(|| OpenDevice::named("host"), device_argument)?;
        let entries = settings::entries(conf, settings)?;
        let options = PoolOptions::with(settings::overlay(effective_settings()?, &entries)?);
        let options = callback::add(options, on_shortage, on_pressure, on_leak);
        let recorder = record.then(|| Recorder::new(format!("a pool of {}", device.name())));
        let options = match &recorder {
            Some(recorder) => recorder.watch(options),
            None => options,
        };
        py.detach(|| {
            let pool = options.build(device.opened()?)?;
            Ok(Self::new(&device, pool, recorder))
        })
    }

    /// The device its memory is of.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice::new(Arc::clone(&self.device))
    }

    /// Its number, which no other pool of the process ever has.
    #[getter]
    fn id(&self) -> Result<u64, Failure> {
        Ok(self.pool()?.id().get())
    }

    /// A buffer of ``size`` bytes, to be used in the order of ``stream``, the default one unless said.
    /// What it holds is not defined.
    #[pyo3(signature = (size, stream = None, alignment = None))]
    fn allocate(
        &self,
        py: Python<'_>,
        size: Size,
        stream: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = optional_integer::<u64>)] alignment: Option<u64>,
    ) -> Result<Py<PyAny>, Failure> {
        let stream_ref = stream_argument(&self.device, stream)?;
        let origin = live_blocks::origin(py);
        let allocation = py.detach(|| {
            let mut request = Request::new(size.bytes(), stream_ref.handle());
            if let Some(alignment) = alignment {
                request = request.aligned_to(Alignment::new(alignment)?);
            }
            let block = OwnedBlock::new(&self.pool()?, request)?;
            Ok::<_, Failure>(Allocation::block(&self.device, &stream_ref, block, origin))
        })?;
        new_buffer(py, allocation)
    }

    /// Buffers of all these sizes: all of them, or none and an error.
    #[pyo3(signature = (sizes, stream = None))]
    fn allocate_batch<'py>(
        &self,
        py: Python<'py>,
        sizes: Vec<Size>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<Bound<'py, PyList>, Failure> {
        let stream_ref = stream_argument(&self.device, stream)?;
        let sizes: Vec<Bytes> = sizes.into_iter().map(Size::bytes).collect();
        let origin = live_blocks::origin(py);
        let blocks = py.detach(|| {
            Ok::<_, Failure>(allocate_batch(&self.pool()?, &sizes, stream_ref.handle())?)
        })?;
        let buffers = PyList::empty(py);
        for block in blocks {
            let allocation = Allocation::block(&self.device, &stream_ref, block, origin.clone());
            buffers.append(new_buffer(py, allocation)?)?;
        }
        Ok(buffers)
    }

    /// Take memory ahead of time: sizes, or pairs of a size and how many of it. Gives what was asked for
    /// and what could be had, in blocks and bytes.
    #[pyo3(signature = (shapes, stream = None))]
    fn warmup<'py>(
        &self,
        py: Python<'py>,
        shapes: Vec<Bound<'py, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<Bound<'py, PyDict>, Failure> {
        let stream_ref = stream_argument(&self.device, stream)?;
        let mut list = Vec::with_capacity(shapes.len());
        for shape in &shapes {
            list.push(match shape.extract::<(Size, u64)>() {
                Ok((size, count)) => (size.bytes(), count),
                Err(_) => (shape.extract::<Size>()?.bytes(), 1),
            });
        }
        let had = py.detach(|| {
            let pool = self.pool()?;
            stream_ref.register_pool(pool.id());
            Ok::<_, Failure>(warm_up(&pool, &list, stream_ref.handle())?)
        })?;
        let figures = PyDict::new(py);
        figures.set_item("complete", had.is_complete())?;
        figures.set_item("asked_blocks", had.asked_blocks)?;
        figures.set_item("asked_bytes", had.asked_bytes.get())?;
        figures.set_item("had_blocks", had.had_blocks)?;
        figures.set_item("had_bytes", had.had_bytes.get())?;
        figures.set_item("refusal", had.refusal.map(|error| error.to_string()))?;
        Ok(figures)
    }

    /// Give back to the device what is free, down to ``keep`` bytes held. Waits for work that may still use
    /// it. Gives how many bytes went.
    #[pyo3(signature = (keep = None))]
    fn trim(&self, py: Python<'_>, keep: Option<Size>) -> Result<u64, Failure> {
        let keep = keep.map_or(Bytes::ZERO, Size::bytes);
        py.detach(|| Ok(self.pool()?.trim(keep)?.get()))
    }

    /// Give back to the device all that is free: ``trim(0)``, by the name that PyTorch has for it.
    fn empty_cache(&self, py: Python<'_>) -> Result<u64, Failure> {
        self.trim(py, None)
    }

    /// Give back to the device what was not needed in the last ``age`` seconds, without waiting. Gives how
    /// many bytes are to go.
    #[pyo3(signature = (age = 60.0))]
    fn collect(&self, py: Python<'_>, age: f64) -> Result<u64, Failure> {
        let age = seconds(age)?;
        py.detach(|| Ok(self.pool()?.collect(age)?.get()))
    }

    /// Make what is free as few and as large pieces as can be without waiting.
    fn defragment(&self, py: Python<'_>) -> Result<(), Failure> {
        py.detach(|| Ok(self.pool()?.defragment()?))
    }

    /// Take back what was freed while other streams used it, as far as they are done.
    fn process_deferred(&self, py: Python<'_>) -> Result<(), Failure> {
        py.detach(|| Ok(self.pool()?.process_deferred()?))
    }

    /// Change settings while the pool lives, as ``forebay.configure()`` takes them.
    #[pyo3(signature = (conf = None, /, **settings))]
    fn configure(
        &self,
        py: Python<'_>,
        conf: Option<&str>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> Result<(), Failure> {
        let entries = settings::entries(conf, settings)?;
        py.detach(|| {
            let pool = self.pool()?;
            // All or none.
            let mut trial = pool.settings();
            for (name, value) in &entries {
                trial.change(name, value)?;
            }
            for (name, value) in &entries {
                pool.change(name, value)?;
            }
            Ok(())
        })
    }

    /// The settings in force, by name: ``value``, ``source``, ``changeable`` and ``help``.
    fn settings<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>, Failure> {
        settings::table(py, &self.pool()?.settings())
    }

    /// The most bytes it may take from the device.
    #[getter]
    fn limit(&self) -> Result<u64, Failure> {
        Ok(self.pool()?.limit().get())
    }

    /// How many bytes it has taken from the device.
    #[getter]
    fn held(&self) -> Result<u64, Failure> {
        Ok(self.pool()?.held().get())
    }

    /// How near it is to its limit: "low", "normal", "moderate", "high" or "critical".
    #[getter]
    fn pressure(&self) -> Result<String, Failure> {
        Ok(self.pool()?.pressure().to_string())
    }

    /// How it stands: bytes in names that end in ``_bytes``, counts, and lists by size, stream and tag.
    fn statistics<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>, Failure> {
        let figures = py.detach(|| Ok::<_, Failure>(self.pool()?.statistics()))?;
        let object = to_python(py, &StatisticsSnapshot::from(&figures))?;
        object.set_item("hit_rate", figures.hit_rate())?;
        object.set_item("efficiency", figures.efficiency())?;
        object.set_item("fragmentation", figures.fragmentation())?;
        Ok(object)
    }

    /// All there is to see of it, as plain data of the form "forebay.pool.v1".
    fn snapshot<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>, Failure> {
        let snapshot = py.detach(|| Ok::<_, Failure>(self.pool()?.snapshot()))?;
        to_python(py, &snapshot)
    }

    /// The same as one line of JSON.
    fn snapshot_json(&self, py: Python<'_>) -> Result<String, Failure> {
        py.detach(|| Ok(self.pool()?.snapshot().to_json()))
    }

    /// How it stands, for people: some lines of text.
    fn summary(&self, py: Python<'_>) -> Result<String, Failure> {
        py.detach(|| Ok(self.pool()?.statistics().to_string()))
    }

    /// The last events, as many as the setting ``history`` says, the oldest first.
    fn history<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyList>, Failure> {
        let events = py.detach(|| Ok::<_, Failure>(self.pool()?.history()))?;
        let list = PyList::empty(py);
        for event in events {
            let row = PyDict::new(py);
            row.set_item("time_s", event.time.as_secs_f64())?;
            row.set_item(
                "action",
                match event.action {
                    EventAction::Allocate => "allocate",
                    EventAction::Free => "free",
                    _ => "refuse",
                },
            )?;
            row.set_item("address", event.address.get())?;
            row.set_item("requested_bytes", event.requested.get())?;
            row.set_item("stream", event.stream.0)?;
            row.set_item("tag", event.tag.name())?;
            list.append(row)?;
        }
        Ok(list)
    }

    /// What lives: a row for each block, the oldest first, with its sizes, ``tag``, ``age_s``,
    /// ``since_unix_s`` and ``origin`` (where ``forebay.trace_origins()`` was on).
    fn leaks<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyList>, Failure> {
        let pool = self.pool()?;
        live_blocks::rows(py, &pool)
    }

    /// Look at everything the debugging aids watch, and wait for it: ``CorruptionError`` where memory was
    /// written to without right.
    fn check(&self, py: Python<'_>) -> Result<(), Failure> {
        py.detach(|| Ok(self.pool()?.check()?))
    }

    /// What the debugging aids have found so far, in words.
    fn findings(&self, py: Python<'_>) -> Result<Vec<String>, Failure> {
        let found = py.detach(|| Ok::<_, Failure>(self.pool()?.findings()))?;
        Ok(found.iter().map(ToString::to_string).collect())
    }

    /// Measure from the beginning of a ``with`` to its end: see ``forebay.performance_context()``.
    fn performance_context(&self) -> Result<PyScope, Failure> {
        Ok(PyScope::new(self.pool()?))
    }

    /// An arena of ``capacity`` bytes in the order of ``stream``. Where ``most`` is said it grows, by
    /// doubling, up to that many bytes.
    #[pyo3(signature = (capacity, stream = None, most = None))]
    fn arena(
        &self,
        py: Python<'_>,
        capacity: Size,
        stream: Option<&Bound<'_, PyAny>>,
        most: Option<Size>,
    ) -> Result<PyArena, Failure> {
        let stream_ref = stream_argument(&self.device, stream)?;
        let sizes = (capacity.bytes(), most.map(Size::bytes));
        py.detach(|| PyArena::new(&self.device, self.pool()?, stream_ref, sizes))
    }

    /// Write what was asked of the pool to a file, for ``forebay.replay()``: all of it where the pool was
    /// made with ``record=True``, whose recording ends by this; else what its history has. The ending
    /// names the form: .csv, .csv.gz or .fbt. Gives how many events were written.
    fn save_trace(&self, py: Python<'_>, path: PathBuf) -> Result<usize, Failure> {
        py.detach(|| trace::save(&self.pool()?, self.recorder.as_ref(), &path))
    }

    /// Let the pool go. Buffers that live keep their memory; it goes with the last of them.
    fn close(&self, py: Python<'_>) -> Result<(), Failure> {
        self.birth.check()?;
        let pool = lock(&self.pool).take();
        py.detach(|| drop(pool));
        Ok(())
    }

    /// Whether close() was called.
    #[getter]
    fn closed(&self) -> bool {
        !self.birth.is_elsewhere() && lock(&self.pool).is_none()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> Result<(), Failure> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        match self.pool() {
            Ok(pool) => {
                let (name, held, limit) = (self.device.name(), pool.held(), pool.limit());
                format!("<forebay.Pool of {name}: {held} held of at most {limit}>")
            }
            Err(_) => format!("<forebay.Pool of {}, closed>", self.device.name()),
        }
    }
}

/// The process's pool of a device: made when it is first asked for, and shared with C and PyTorch.
#[pyfunction]
#[pyo3(signature = (device = None))]
pub(crate) fn pool(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> Result<PyPool, Failure> {
    let device = device.map_or_else(|| OpenDevice::named("host"), device_argument)?;
    py.detach(|| PyPool::of_process(&device))
}
