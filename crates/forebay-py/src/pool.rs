//! `forebay.Pool`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::bindings::{Counted, CountedError, effective_settings, host_vec, overlay};
use forebay::hal::Call;
use forebay::handle::{allocate_batch, warm_up};
use forebay::report::EventAction;
use forebay::transfer::TransferEvent;
use forebay::{Alignment, Bytes, OwnedBlock, Pool, PoolOptions, Request};
use forebay_trace::format::{check_ending, write_path};
use forebay_trace::{Recorder, trace_of_pool};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::allocation::Allocation;
use crate::arena::PyArena;
use crate::array_view::ArrayView;
use crate::buffer::new_buffer;
use crate::callback;
use crate::creation::{self, Maker};
use crate::dtype;
use crate::engine::PyTransfer;
use crate::failure::{Failure, leave};
use crate::gil::DropDetached;
use crate::host_side::HostSide;
use crate::live_blocks;
use crate::open_device::{OpenDevice, PyDevice, device_or_host};
use crate::quantity::{Size, items, optional_integer, seconds};
use crate::scope::PyScope;
use crate::settings;
use crate::stack;
use crate::stream::stream_argument;
use crate::tag;
use crate::transfer::Direction;
use crate::value::{dict, to_python};

/// A pool of a device's memory.
///
/// ``forebay.pool(device)`` is the process's own, which C and PyTorch use too. ``Pool(device)`` makes
/// another, with settings of its own: keywords such as ``max_bytes="8GiB"``, or one text as in FOREBAY_CONF.
#[pyclass(name = "Pool", module = "forebay", frozen, weakref)]
pub(crate) struct PyPool {
    device: Arc<OpenDevice>,
    pool: DropDetached<Counted<Pool>>,
    recorder: Option<Recorder>,
}

impl PyPool {
    /// The process's pool of a device.
    pub(crate) fn of_process(device: &Arc<OpenDevice>) -> Result<Self, Failure> {
        Ok(Self::new(device, device.pool()?, None))
    }

    fn new(device: &Arc<OpenDevice>, pool: Pool, recorder: Option<Recorder>) -> Self {
        let pool = DropDetached::new(Counted::new("pool", pool));
        Self { device: Arc::clone(device), pool, recorder }
    }

    /// Its device.
    pub(crate) fn open_device(&self) -> &Arc<OpenDevice> {
        &self.device
    }

    /// Its recorder, if it was made with `record=True`.
    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    fn maker<'a>(
        &'a self,
        stream: Option<&Bound<'_, PyAny>>,
        tag: Option<&'a str>,
    ) -> Result<Maker<'a>, Failure> {
        Maker::new(&self.device, self.pool()?, stream, tag)
    }

    /// The library's pool; an error once it was closed.
    pub(crate) fn pool(&self) -> Result<Pool, Failure> {
        self.pool.with(|pool| Ok(pool.clone()))
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
        let device = device_or_host(device)?;
        let entries = settings::entries(conf, settings)?;
        let options = PoolOptions::with(overlay(effective_settings()?, &entries)?);
        let options = callback::add(py, options, on_shortage, on_pressure, on_leak)?;
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

    /// The device of its memory.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice::new(Arc::clone(&self.device))
    }

    /// Its number, which is unique in the process.
    #[getter]
    fn id(&self) -> Result<u64, Failure> {
        Ok(self.pool()?.id().get())
    }

    /// Allocate a buffer of ``size`` bytes, to be used in the order of ``stream`` (by default the default
    /// stream). Its contents are undefined. ``tag`` is for whom it is, as in ``forebay.tag()``.
    #[pyo3(signature = (size, stream = None, alignment = None, *, tag = None))]
    fn allocate(
        &self,
        py: Python<'_>,
        size: Size,
        stream: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = optional_integer::<u64>)] alignment: Option<u64>,
        tag: Option<&str>,
    ) -> Result<Py<PyAny>, Failure> {
        let stream_ref = stream_argument(&self.device, stream)?;
        let origin = live_blocks::origin(py);
        let allocation = tag::request(py, tag, || {
            let mut request = Request::new(size.bytes(), stream_ref.handle());
            if let Some(alignment) = alignment {
                request = request.aligned_to(Alignment::new(alignment)?);
            }
            let block = OwnedBlock::new(&self.pool()?, request)?;
            Ok::<_, Failure>(Allocation::block(&self.device, &stream_ref, block, origin))
        })?;
        new_buffer(py, allocation)
    }

    /// A new array in ``shape``, of elements of ``dtype``, by default "float64". Their values are undefined. ``stream`` is
    /// the one in whose order it is used, by default the default stream.
    #[pyo3(signature = (shape, dtype = None, *, stream = None, tag = None))]
    fn empty<'py>(
        &self,
        shape: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
        stream: Option<&Bound<'py, PyAny>>,
        tag: Option<&str>,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        let elements = ArrayView::requested(shape, dtype, dtype::float64())?;
        self.maker(stream, tag)?.empty(shape.py(), elements)
    }

    /// As ``empty()``, with all elements 0.
    #[pyo3(signature = (shape, dtype = None, *, stream = None, tag = None))]
    fn zeros<'py>(
        &self,
        shape: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
        stream: Option<&Bound<'py, PyAny>>,
        tag: Option<&str>,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        let elements = ArrayView::requested(shape, dtype, dtype::float64())?;
        self.maker(stream, tag)?.full(shape.py(), elements, &[0])
    }

    /// As ``empty()``, with all elements ``value``; by default of its type.
    #[pyo3(signature = (shape, value, dtype = None, *, stream = None, tag = None))]
    fn full<'py>(
        &self,
        shape: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
        stream: Option<&Bound<'py, PyAny>>,
        tag: Option<&str>,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        let elements = ArrayView::requested(shape, dtype, creation::dtype_of_value(value)?)?;
        let pattern = elements.dtype().pattern(value)?;
        self.maker(stream, tag)?.full(shape.py(), elements, &pattern)
    }

    /// A new array with a copy of ``source``: numbers in lists, a numpy array, a tensor or an array of any device. With
    /// ``dtype`` they are converted.
    #[pyo3(signature = (source, dtype = None, *, stream = None, tag = None))]
    fn array<'py>(
        &self,
        source: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
        stream: Option<&Bound<'py, PyAny>>,
        tag: Option<&str>,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        self.maker(stream, tag)?.copy(source, dtype)
    }

    /// As ``array()``, without a copy where ``source`` is on this device, can be written and is of that ``dtype``.
    #[pyo3(signature = (source, dtype = None, *, stream = None, tag = None))]
    fn asarray<'py>(
        &self,
        source: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
        stream: Option<&Bound<'py, PyAny>>,
        tag: Option<&str>,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        self.maker(stream, tag)?.shared(source, dtype)
    }

    /// Allocate an array for the elements of ``source`` and copy them there with several threads, in the order of
    /// ``stream``; wait, and return it. The source is host memory: anything with the buffer protocol, such as a numpy array,
    /// or with DLPack, such as a tensor of PyTorch's. ``priority`` is "low", "normal" or "high".
    #[pyo3(signature = (source, *, stream = None, priority = "normal", tag = None))]
    fn upload(
        &self,
        source: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        priority: &str,
        tag: Option<&str>,
    ) -> Result<Py<PyAny>, Failure> {
        self.upload_async(source, stream, priority, tag)?.finish(source.py())
    }

    /// As ``upload()``, and does not wait: returns a ``Transfer``, whose ``wait()`` returns the array.
    #[pyo3(signature = (source, *, stream = None, priority = "normal", tag = None))]
    fn upload_async(
        &self,
        source: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        priority: &str,
        tag: Option<&str>,
    ) -> Result<PyTransfer, Failure> {
        let py = source.py();
        let host = HostSide::of(source, false)?;
        let elements = host.elements(source)?;
        let made = self.maker(stream, tag)?.empty(py, elements)?;
        let to = (creation::memory(&made)?.pinned(py)?, 0);
        PyTransfer::with(py, Direction::Up, to, host, (None, priority), made.unbind())
    }

    /// Allocate buffers of all these sizes, or raise and allocate none.
    #[pyo3(signature = (sizes, stream = None, *, tag = None))]
    fn allocate_batch<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = items::<Size>)] sizes: Vec<Size>,
        stream: Option<&Bound<'_, PyAny>>,
        tag: Option<&str>,
    ) -> Result<Bound<'py, PyList>, Failure> {
        let stream_ref = stream_argument(&self.device, stream)?;
        let sizes: Vec<Bytes> = sizes.into_iter().map(Size::bytes).collect();
        let origin = live_blocks::origin(py);
        let blocks = tag::request(py, tag, || {
            Ok::<_, Failure>(allocate_batch(&self.pool()?, &sizes, stream_ref.handle())?)
        })?;
        let buffers = PyList::empty(py);
        for block in blocks {
            let allocation = Allocation::block(&self.device, &stream_ref, block, origin);
            buffers.append(new_buffer(py, allocation)?)?;
        }
        Ok(buffers)
    }

    /// Take memory from the device ahead of time: for sizes, or pairs of a size and a count. Returns what was
    /// requested and what could be allocated, in blocks and bytes.
    #[pyo3(signature = (shapes, stream = None))]
    fn warmup<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = items::<Bound<'py, PyAny>>)] shapes: Vec<Bound<'py, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<Bound<'py, PyDict>, Failure> {
        let stream_ref = stream_argument(&self.device, stream)?;
        let mut list = host_vec::with_capacity(shapes.len(), Call::Allocate)?;
        for shape in &shapes {
            list.push(match shape.extract::<(Size, u64)>() {
                Ok((size, count)) => (size.bytes(), count),
                Err(_) => (shape.extract::<Size>()?.bytes(), 1),
            });
        }
        let had =
            py.detach(|| Ok::<_, Failure>(warm_up(&self.pool()?, &list, stream_ref.handle())?))?;
        Ok(dict!(py, {
            "complete": had.is_complete(),
            "asked_blocks": had.asked_blocks,
            "asked_bytes": had.asked_bytes.get(),
            "had_blocks": had.had_blocks,
            "had_bytes": had.had_bytes.get(),
            "refusal": had.refusal.map(|error| error.to_string()),
        }))
    }

    /// Release free memory to the device, down to ``keep`` bytes held. Waits for work that may still use it.
    /// Returns how many bytes were released.
    #[pyo3(signature = (keep = None))]
    fn trim(&self, py: Python<'_>, keep: Option<Size>) -> Result<u64, Failure> {
        let keep = keep.map_or(Bytes::ZERO, Size::bytes);
        py.detach(|| Ok(self.pool()?.trim(keep)?.get()))
    }

    /// Release all free memory to the device: ``trim(0)``, by PyTorch's name.
    fn empty_cache(&self, py: Python<'_>) -> Result<u64, Failure> {
        self.trim(py, None)
    }

    /// Release memory to the device that was not used in the last ``age`` seconds, without waiting. Returns
    /// how many bytes were released; memory that work may still use stays for a later call.
    #[pyo3(signature = (age = 60.0))]
    fn collect(&self, py: Python<'_>, age: f64) -> Result<u64, Failure> {
        let age = seconds(age)?;
        py.detach(|| Ok(self.pool()?.collect(age)?.get()))
    }

    /// Merge free memory into as few and as large pieces as possible without waiting.
    fn defragment(&self, py: Python<'_>) -> Result<(), Failure> {
        py.detach(|| Ok(self.pool()?.defragment()?))
    }

    /// Complete frees that were deferred for other streams, where those are done.
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
                pool.set(name, value)?;
            }
            Ok(())
        })
    }

    /// The current settings by name: ``value``, ``source``, ``changeable`` and ``help``; of ``max_bytes`` also ``in_force``,
    /// the limit in bytes, which is whole pages.
    fn settings<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>, Failure> {
        let pool = self.pool()?;
        let table = settings::table(py, &pool.settings())?;
        let row = table.as_any().get_item("max_bytes")?;
        row.set_item("in_force", pool.limit().get())?;
        Ok(table)
    }

    /// The most bytes that it may take from the device.
    #[getter]
    fn limit(&self) -> Result<u64, Failure> {
        Ok(self.pool()?.limit().get())
    }

    /// How many bytes it has taken from the device.
    #[getter]
    fn held(&self) -> Result<u64, Failure> {
        Ok(self.pool()?.held().get())
    }

    /// Its memory pressure: "low", "normal", "moderate", "high" or "critical".
    #[getter]
    fn pressure(&self) -> Result<String, Failure> {
        Ok(self.pool()?.pressure().to_string())
    }

    /// Its statistics: bytes in names that end in ``_bytes``, counts, and lists by size, stream and tag.
    fn statistics<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>, Failure> {
        let figures = py.detach(|| Ok::<_, Failure>(self.pool()?.statistics()))?;
        let object = to_python(py, &figures)?;
        object.set_item("hit_rate", figures.hit_rate())?;
        object.set_item("efficiency", figures.efficiency())?;
        object.set_item("fragmentation", figures.fragmentation())?;
        Ok(object)
    }

    /// A snapshot of it as plain data with the schema "forebay.pool.v1".
    fn snapshot<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>, Failure> {
        let snapshot = py.detach(|| Ok::<_, Failure>(self.pool()?.snapshot()))?;
        to_python(py, &snapshot)
    }

    /// A snapshot of it as one line of JSON.
    fn snapshot_json(&self, py: Python<'_>) -> Result<String, Failure> {
        py.detach(|| Ok(self.pool()?.snapshot().to_json()))
    }

    /// A summary of its statistics: some lines of text.
    fn summary(&self, py: Python<'_>) -> Result<String, Failure> {
        py.detach(|| Ok(self.pool()?.statistics().to_string()))
    }

    /// The last events, the oldest first; the setting ``history`` says how many are kept. With the setting ``stacks`` on,
    /// ``stack`` is the call stack of an allocation: a list of lines, the innermost first.
    fn history<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyList>, Failure> {
        let events = py.detach(|| Ok::<_, Failure>(self.pool()?.history()))?;
        let list = PyList::empty(py);
        let mut stacks = HashMap::new();
        for event in events {
            let row = dict!(py, {
                "time_s": event.time.as_secs_f64(),
                "action": match event.action {
                    EventAction::Allocate => "allocate",
                    EventAction::Free => "free",
                    _ => "refuse",
                },
                "address": event.address.get(),
                "requested_bytes": event.requested.get(),
                "stream": event.stream.0,
                "tag": event.tag.name(),
                "thread": event.thread,
            });
            let stack = stacks.entry(event.stack).or_insert_with(|| stack::lines(event.stack));
            row.set_item("stack", stack.as_ref())?;
            list.append(row)?;
        }
        Ok(list)
    }

    /// The live blocks: a row for each, the oldest first, with its sizes, ``tag``, ``age_s``,
    /// ``since_unix_s`` and ``origin`` (where ``forebay.trace_origins()`` was on).
    fn leaks<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyList>, Failure> {
        let pool = self.pool()?;
        live_blocks::rows(py, &pool)
    }

    /// Check all memory that the debugging aids watch, and wait for that. Raises ``CorruptionError`` where
    /// memory was corrupted.
    fn check(&self, py: Python<'_>) -> Result<(), Failure> {
        py.detach(|| Ok(self.pool()?.check()?))
    }

    /// What the debugging aids have found so far, as texts.
    fn findings(&self, py: Python<'_>) -> Result<Vec<String>, Failure> {
        let found = py.detach(|| Ok::<_, Failure>(self.pool()?.findings()))?;
        Ok(found.iter().map(ToString::to_string).collect())
    }

    /// A context manager that measures the pool: see ``forebay.performance_context()``.
    fn performance_context(&self) -> Result<PyScope, Failure> {
        Ok(PyScope::new(self.pool()?))
    }

    /// Create an arena of ``capacity`` bytes in the order of ``stream``. With ``most`` it grows, by doubling,
    /// up to that many bytes.
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
        stack::detach(py, || PyArena::new(&self.device, self.pool()?, stream_ref, sizes))
    }

    /// Write the pool's requests to a file for ``forebay.replay()``: all of them where the pool was made with
    /// ``record=True``, which this ends unless it fails; else those in its history. With the setting ``stacks`` on, each
    /// allocation has its call stack: in Python, the lines of the program. The last 65,536 transfers of the device are in
    /// it if they began meanwhile. The suffix selects the format, as for
    /// ``forebay convert``: .csv, .fbt, .pickle, .log or .json, each also with .gz. Returns how many events were written.
    fn save_trace(&self, py: Python<'_>, path: PathBuf) -> Result<usize, Failure> {
        py.detach(|| {
            let transfers = self.device.transfer_history();
            save(&self.pool()?, self.recorder.as_ref(), &transfers, &path)
        })
    }

    /// Close the pool. Live buffers keep their memory, which is released with the last of them.
    fn close(&self, py: Python<'_>) -> Result<(), Failure> {
        py.detach(|| match self.pool.close() {
            Ok(_) | Err(CountedError::Closed(_)) => Ok(()),
            Err(error) => Err(error.into()),
        })
    }

    /// Whether close() was called.
    #[getter]
    fn closed(&self) -> bool {
        self.pool.is_closed()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*error))]
    fn __exit__(&self, py: Python<'_>, error: &Bound<'_, PyTuple>) -> Result<(), Failure> {
        leave(error, self.close(py))
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

/// The process's pool of a device: created by the first call, and shared with C and PyTorch.
#[pyfunction]
#[pyo3(signature = (device = None))]
pub(crate) fn pool(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> Result<PyPool, Failure> {
    let device = device_or_host(device)?;
    py.detach(|| PyPool::of_process(&device))
}

/// A context manager that measures a pool: ``with performance_context(pool) as scope: ...`` and then
/// ``scope.statistics``. The pool is a ``Pool``, or the process's pool of a device by name; by
/// default the host's. It measures the pool for all threads.
#[pyfunction]
#[pyo3(signature = (pool = None))]
pub(crate) fn performance_context(
    py: Python<'_>,
    pool: Option<&Bound<'_, PyAny>>,
) -> Result<PyScope, Failure> {
    if let Some(Ok(pool)) = pool.map(|pool| pool.cast::<PyPool>()) {
        return pool.get().performance_context();
    }
    let device = device_or_host(pool)?;
    Ok(PyScope::new(py.detach(|| device.pool())?))
}

/// Saves the events of a pool; returns how many.
fn save(
    pool: &Pool,
    recorder: Option<&Recorder>,
    transfers: &[TransferEvent],
    path: &Path,
) -> Result<usize, Failure> {
    check_ending(path).map_err(|error| Failure::invalid(error.to_string()))?;
    let trace = match recorder {
        Some(recorder) => recorder.copy_with(transfers),
        None => trace_of_pool(path.display().to_string(), pool, None, transfers),
    };
    if trace.is_empty() {
        let said = match recorder {
            Some(_) => "nothing was recorded, or the recording was saved already",
            None => {
                "the pool records no events: create it with record=True, or with history=100000 to keep \
                 the last 100000"
            }
        };
        return Err(Failure::trace(said));
    }
    let unwritten = |error| Failure::trace(format!("{}: {error}", path.display()));
    write_path(&trace, path).map_err(unwritten)?;
    // Where it could not be written it goes on.
    if let Some(recorder) = recorder {
        recorder.discard();
    }
    Ok(trace.len())
}
