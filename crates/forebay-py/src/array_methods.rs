//! What Python calls on an `Array`: its elements, parts of it, copies, transfers and values.

use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyEllipsis, PySlice, PyTuple};

use crate::allocation::MemorySpace;
use crate::array::{ArrayCore, new_array};
use crate::array_view::{ArrayView, open_shape_argument, shape_argument};
use crate::buffer::new_buffer;
use crate::copies;
use crate::creation::{self, Maker};
use crate::dtype::Dtype;
use crate::engine::PyTransfer;
use crate::failure::{Failure, shown};
use crate::host_side::HostSide;
use crate::memory::{Memory, Use, stream_or_own};
use crate::numpy;
use crate::protocol::take_next;
use crate::stream::{PyStream, stream_argument};
use crate::transfer::{self, Direction, MemoryRange};
use crate::unified::new_unified;
use crate::value::dict;

/// The most bytes of which a representation shows the values.
const MAX_SHOWN: u64 = 1 << 20;

#[pymethods]
impl ArrayCore {
    #[new]
    #[pyo3(signature = (*_arguments))]
    fn new(_arguments: &Bound<'_, PyTuple>) -> PyResult<PyClassInitializer<Self>> {
        let memory = take_next().filter(|memory| !memory.is_whole()).ok_or_else(|| {
            PyTypeError::new_err(
                "arrays are made by forebay.empty(), zeros(), full(), array() and asarray(), and those of a pool",
            )
        })?;
        Ok(PyClassInitializer::from(memory).add_subclass(Self))
    }

    /// The type of its elements: numpy's, or its name where numpy is not installed or does not know it.
    #[getter]
    fn dtype<'py>(slf: &Bound<'py, Self>) -> Result<Bound<'py, PyAny>, Failure> {
        let (py, dtype) = (slf.py(), memory(slf).array().dtype());
        match dtype.numpy(py) {
            Some(numpy) => Ok(numpy),
            None => Ok(dtype.name.into_pyobject(py).map_err(PyErr::from)?.into_any()),
        }
    }

    /// How many elements in each dimension.
    #[getter]
    fn shape<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        memory(slf).array().shape_tuple(slf.py())
    }

    /// How many dimensions.
    #[getter]
    fn ndim(slf: &Bound<'_, Self>) -> usize {
        memory(slf).array().shape().len()
    }

    /// How many elements.
    #[getter]
    fn size(slf: &Bound<'_, Self>) -> u64 {
        memory(slf).array().elements()
    }

    /// The bytes of an element.
    #[getter]
    fn itemsize(slf: &Bound<'_, Self>) -> u64 {
        memory(slf).array().dtype().size()
    }

    /// Whether it is read-only.
    #[getter]
    fn readonly(slf: &Bound<'_, Self>) -> bool {
        !memory(slf).array().writable()
    }

    /// The stream in whose order it is used.
    #[getter]
    fn stream(slf: &Bound<'_, Self>) -> Result<PyStream, Failure> {
        Ok(PyStream::new(memory(slf).allocation()?.stream_ref()))
    }

    /// The buffer whose memory it has: all of it, of which the array may be a part.
    #[getter]
    fn buffer(slf: &Bound<'_, Self>) -> Result<Py<PyAny>, Failure> {
        let (pin, _) = memory(slf).pinned(slf.py())?;
        new_buffer(slf.py(), pin.allocation().clone())
    }

    /// The same elements in another shape, in the same memory. One length may be -1: what the others leave.
    #[pyo3(signature = (*shape))]
    fn reshape(slf: &Bound<'_, Self>, shape: &Bound<'_, PyTuple>) -> Result<Py<PyAny>, Failure> {
        let first = shape.get_item(0).ok().filter(|_| shape.len() == 1);
        let wanted = open_shape_argument(first.as_ref().unwrap_or(shape.as_any()))?;
        sibling(slf, memory(slf).array().reshaped(&wanted)?)
    }

    /// The same bytes as elements of ``dtype``, in the same memory, with the last dimension longer or shorter, or in
    /// ``shape``. ``cast()`` converts the values instead.
    #[pyo3(signature = (dtype, shape = None))]
    fn view(
        slf: &Bound<'_, Self>,
        dtype: &Bound<'_, PyAny>,
        shape: Option<&Bound<'_, PyAny>>,
    ) -> Result<Py<PyAny>, Failure> {
        let (array, dtype) = (memory(slf).array(), Dtype::of_argument(dtype)?);
        let viewed = match shape {
            Some(shape) => ArrayView::within(&array, dtype, Some(shape_argument(shape)?), 0)?,
            None => array.reinterpreted(dtype)?,
        };
        sibling(slf, viewed)
    }

    /// A new array of the same values as elements of ``dtype``, in memory of the same pool. They are converted on the host,
    /// as numpy's ``astype`` does; ``view()`` takes the bytes for another type instead.
    fn cast(slf: &Bound<'_, Self>, dtype: &Bound<'_, PyAny>) -> Result<Py<PyAny>, Failure> {
        let (py, memory) = (slf.py(), memory(slf));
        let dtype = Dtype::of_argument(dtype)?;
        let words = dict!(py, { "copy": false, });
        let wanted = dtype.numpy_or_refuse(py)?;
        let values = Self::numpy(slf)?.call_method("astype", (wanted,), Some(&words))?;
        let array = memory.array().anew(dtype)?;
        let (device, pool, stream_ref) =
            (memory.open_device(), memory.pool()?, memory.stream_ref()?);
        let made = Maker { device, pool, stream_ref, tag: None }.empty(py, array)?;
        copies::copy_to_array(creation::memory(&made)?, &values, None, true)?;
        Ok(made.unbind())
    }

    /// Give all elements one value. Without ``wait`` the call returns before that is done, and the device keeps the order.
    #[pyo3(signature = (value, *, stream = None, wait = true))]
    fn fill(
        slf: &Bound<'_, Self>,
        value: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        wait: bool,
    ) -> Result<(), Failure> {
        fill(memory(slf), value, stream, wait)
    }

    /// Copy all elements of ``source`` to it, and return it. The source has the same dtype and shape: a numpy array or
    /// anything else with the buffer protocol, a tensor of another library, an array or buffer of any device.
    ///
    /// With ``wait=False`` a copy between memory of one device, or between a device and memory that is pinned for it,
    /// returns at once; any other one waits.
    #[pyo3(signature = (source, *, stream = None, wait = true))]
    fn copy_<'a, 'py>(
        slf: &'a Bound<'py, Self>,
        source: &Bound<'py, PyAny>,
        stream: Option<&Bound<'py, PyAny>>,
        wait: bool,
    ) -> Result<&'a Bound<'py, Self>, Failure> {
        copies::copy_to_array(memory(slf), source, stream, wait)?;
        Ok(slf)
    }

    /// Copy ``source``, host memory of the same dtype and shape, to it with several threads, after the work on ``stream``
    /// (by default its own), and wait. ``priority`` is "low", "normal" or "high".
    #[pyo3(signature = (source, *, stream = None, priority = "normal"))]
    fn upload(
        slf: &Bound<'_, Self>,
        source: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        priority: &str,
    ) -> Result<(), Failure> {
        let memory = memory(slf);
        let is_host = || Ok::<_, Failure>(memory.allocation()?.space() == MemorySpace::Host);
        let is_whole = memory.array().contiguous().is_ok();
        if memory.as_unified().is_some() || !is_whole || is_host()? {
            return copies::copy_to_array(memory, source, stream, true);
        }
        Self::upload_async(slf, source, stream, priority)?.finish(slf.py()).map(drop)
    }

    /// As ``upload()``, and does not wait: returns a ``Transfer``.
    #[pyo3(signature = (source, *, stream = None, priority = "normal"))]
    fn upload_async(
        slf: &Bound<'_, Self>,
        source: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        priority: &str,
    ) -> Result<PyTransfer, Failure> {
        let (py, host) = (slf.py(), HostSide::of(source, false)?);
        copies::same_elements(&memory(slf).array(), &host.elements(source)?)?;
        let pinned = memory(slf).pinned(py)?;
        let result = slf.clone().into_any().unbind();
        PyTransfer::with(py, Direction::Up, (pinned, 0), host, (stream, priority), result)
    }

    /// Copy it to ``into`` with several threads, after the work on ``stream`` (by default its own), wait, and return
    /// ``into``: host memory of the same dtype and shape that can be written, by default a new numpy array.
    #[pyo3(signature = (into = None, *, stream = None, priority = "normal"))]
    fn download(
        slf: &Bound<'_, Self>,
        into: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
        priority: &str,
    ) -> Result<Py<PyAny>, Failure> {
        let (py, memory) = (slf.py(), memory(slf));
        let (pin, array) = memory.pinned_for(py, Use::Read)?;
        if array.contiguous().is_ok() && pin.allocation().space() != MemorySpace::Host {
            return Self::download_async(slf, into, stream, priority)?.finish(py);
        }
        let into = numpy::target(py, into, &array)?;
        let host = HostSide::of(&into, true)?;
        copies::same_elements(&array, &host.elements(&into)?)?;
        memory.settle(py)?;
        copies::host_copy(py, Direction::Down, (pin, array), host, stream)?;
        Ok(into.unbind())
    }

    /// As ``download()``, and does not wait: returns a ``Transfer``.
    #[pyo3(signature = (into = None, *, stream = None, priority = "normal"))]
    fn download_async(
        slf: &Bound<'_, Self>,
        into: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
        priority: &str,
    ) -> Result<PyTransfer, Failure> {
        let py = slf.py();
        let pinned = memory(slf).pinned(py)?;
        let into = numpy::target(py, into, &pinned.1)?;
        let host = HostSide::of(&into, true)?;
        copies::same_elements(&pinned.1, &host.elements(&into)?)?;
        let choices = (stream, priority);
        PyTransfer::with(py, Direction::Down, (pinned, 0), host, choices, into.unbind())
    }

    /// A numpy array of it: one that shares its memory where the host can reach that, after waiting for work that uses it;
    /// else a copy.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> Result<Bound<'py, PyAny>, Failure> {
        let (py, memory) = (slf.py(), memory(slf));
        let pinned = memory.pinned_for(py, Use::Read)?;
        memory.settle(py)?;
        match pinned.0.allocation().space() {
            MemorySpace::Device => numpy::copied(py, pinned),
            MemorySpace::Host | MemorySpace::HostDevice => numpy::shared(py, pinned),
        }
    }

    /// The value of its only element.
    fn item<'py>(slf: &Bound<'py, Self>) -> Result<Bound<'py, PyAny>, Failure> {
        let array = memory(slf).array();
        if array.elements() != 1 {
            let said = format!("item() is of an array with one element, and this is {array}");
            return Err(Failure::invalid(said));
        }
        Ok(Self::numpy(slf)?.call_method0("item")?)
    }

    /// Record that work enqueued so far on ``stream`` uses it, such as a copy by another library. Without this, the pool
    /// may use the memory again while that work still runs.
    #[pyo3(signature = (stream = None))]
    fn record_use(slf: &Bound<'_, Self>, stream: Option<&Bound<'_, PyAny>>) -> Result<(), Failure> {
        let allocation = memory(slf).allocation()?;
        let stream = stream_argument(allocation.device(), stream)?;
        slf.py().detach(|| allocation.record_use(&stream))
    }

    /// Whether all work that uses it is done: of pinned memory what was recorded, else that of its stream. Does not wait.
    #[getter]
    fn idle(slf: &Bound<'_, Self>) -> Result<bool, Failure> {
        let allocation = memory(slf).allocation()?;
        slf.py().detach(|| match allocation.pool_array() {
            Some(array) => Ok(array.is_idle()),
            None => allocation.stream_ref().is_done(),
        })
    }

    /// Wait for all work that uses it: of pinned memory what was recorded, else that of its stream.
    fn wait(slf: &Bound<'_, Self>) -> Result<(), Failure> {
        let allocation = memory(slf).allocation()?;
        slf.py().detach(|| match allocation.pool_array() {
            Some(array) => Ok(array.wait()?),
            None => allocation.stream_ref().synchronize(),
        })
    }

    /// Its address on the device as a number, for memory of a ``PinnedPool`` that is ``mapped``.
    #[getter]
    fn device_address(slf: &Bound<'_, Self>) -> Result<u64, Failure> {
        let allocation = memory(slf).allocation()?;
        let array = allocation.pool_array().ok_or_else(|| {
            Failure::unsupported(
                "only arrays of a PinnedPool have another address on the device: use address",
            )
        })?;
        let offset = memory(slf).array().offset();
        slf.py().detach(|| Ok(array.device_address()?.get().saturating_add(offset)))
    }

    /// ``x[3]`` is a row of the first dimension, ``x[10:20]`` and ``x[::2]`` are rows of it, in the same memory.
    fn __getitem__(slf: &Bound<'_, Self>, key: &Bound<'_, PyAny>) -> Result<Py<PyAny>, Failure> {
        sibling(slf, part(&memory(slf).array(), key)?)
    }

    /// Give rows a value, or the elements of an array of their dtype and shape.
    fn __setitem__(
        slf: &Bound<'_, Self>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> Result<(), Failure> {
        let rows = sibling(slf, part(&memory(slf).array(), key)?)?;
        let rows = creation::memory(rows.bind(slf.py()))?;
        if is_one_value(value) {
            return fill(rows, value, None, true);
        }
        copies::copy_to_array(rows, value, None, true)
    }

    /// How many rows its first dimension has.
    fn __len__(slf: &Bound<'_, Self>) -> Result<usize, Failure> {
        Ok(usize::try_from(memory(slf).array().rows()?)?)
    }

    /// An array is true, however small it is.
    fn __bool__(&self) -> bool {
        true
    }

    fn __repr__(slf: &Bound<'_, Self>) -> String {
        let (memory, class) = (memory(slf), slf.get_type());
        let class = class.name().map_or_else(|_| "Array".to_owned(), |name| name.to_string());
        let (array, device) = (memory.array(), memory.open_device().name());
        let is_gone = memory.is_gone();
        let head = format!("forebay.{class}(");
        if !is_gone && let Some(values) = values(slf, &head) {
            let dtype = array.dtype().name;
            return format!("{head}{values}, dtype={dtype}, device={device})");
        }
        let slice = memory.as_unified().is_some_and(|(unified, _)| unified.is_slice());
        let (slice, freed) =
            (if slice { "slice of a " } else { "" }, if is_gone { ", freed" } else { "" });
        format!("<{slice}forebay.{class} of {array} on {device}{freed}>")
    }
}

fn memory<'a>(array: &'a Bound<'_, ArrayCore>) -> &'a Memory {
    array.as_super().get()
}

/// An array with other elements in the same memory, of the same class.
fn sibling(slf: &Bound<'_, ArrayCore>, array: ArrayView) -> Result<Py<PyAny>, Failure> {
    let (py, memory) = (slf.py(), memory(slf));
    if let Some((unified, _)) = memory.as_unified() {
        let device = memory.open_device().clone();
        return new_unified(py, Memory::unified(device, array, unified.slice()));
    }
    let (pin, _) = memory.pinned(py)?;
    new_array(py, Memory::shared(pin, array))
}

/// The rows that a key names.
fn part(array: &ArrayView, key: &Bound<'_, PyAny>) -> Result<ArrayView, Failure> {
    if key.is_instance_of::<PyEllipsis>() {
        return Ok(array.clone());
    }
    if key.is_instance_of::<PyTuple>() {
        let said = "an array has one index: x[1][2:4] takes them one after the other, and x.numpy() all at once";
        return Err(Failure::wrong_type(said));
    }
    let rows = array.rows()?;
    let length = isize::try_from(rows).unwrap_or(isize::MAX);
    if let Ok(range) = key.cast::<PySlice>() {
        let range = range.indices(length)?;
        let step = u64::try_from(range.step).map_err(|_| {
            let said = format!(
                "a step of {} is not possible: expected 1 or more; x.numpy() has others",
                range.step
            );
            Failure::invalid(said)
        })?;
        return array.part(range.start.unsigned_abs() as u64, range.slicelength as u64, step);
    }
    let index: isize = key.extract().map_err(|_| {
        let given = shown(key);
        Failure::wrong_type(format!(
            "an index is a whole number or a range such as 10:20, not {given}"
        ))
    })?;
    let place = if index < 0 { index.saturating_add(length) } else { index };
    let place = u64::try_from(place).ok().filter(|&place| place < rows);
    let place = place.ok_or_else(|| {
        Failure::Python(PyIndexError::new_err(format!("row {index} of {rows}: there is none")))
    })?;
    array.row(place)
}

/// Whether it is a number, and not an array of any shape.
fn is_one_value(value: &Bound<'_, PyAny>) -> bool {
    let has_rows = value.len().is_ok() || value.cast::<Memory>().is_ok();
    let is_complex = value.hasattr("__complex__").unwrap_or(false);
    !has_rows && (is_complex || value.extract::<f64>().is_ok())
}

/// Fills an array.
fn fill(
    memory: &Memory,
    value: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyAny>>,
    wait: bool,
) -> Result<(), Failure> {
    let (py, array) = (value.py(), memory.array());
    let pattern = array.dtype().pattern(value)?;
    if let Some((unified, array)) = memory.as_unified()
        && array.contiguous().is_ok()
        && pattern.len() <= 8
    {
        let word = pattern.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        let (offset, bytes, width) = (array.offset(), array.bytes(), u32::try_from(pattern.len())?);
        return py.detach(|| Ok(unified.buffer().fill(offset, bytes, word, width)?));
    }
    let (pin, array) = memory.pinned_for(py, Use::Overwrite)?;
    memory.settle(py)?;
    let stream_ref = stream_or_own(pin.allocation(), stream)?;
    let range = MemoryRange::of(&pin, &array);
    py.detach(|| transfer::fill(range, &pattern, &stream_ref, wait))
}

/// The values as numpy shows them after `head`; `None` where they are too many, or cannot be had now.
fn values(array: &Bound<'_, ArrayCore>, head: &str) -> Option<String> {
    if memory(array).array().bytes() > MAX_SHOWN {
        return None;
    }
    let words = PyDict::new(array.py());
    words.set_item("separator", ", ").ok()?;
    words.set_item("prefix", head).ok()?;
    let values = ArrayCore::numpy(array).ok()?;
    let numpy = array.py().import("numpy").ok()?;
    numpy.call_method("array2string", (values,), Some(&words)).ok()?.extract().ok()
}
