//! `forebay.PinnedPool` and `forebay.PinnedArray`: pinned host memory from a pool, which a device copies from and to.
//!
//! An array is a `forebay.View` in all but its class, so that the buffer protocol, numpy and DLPack work as for all memory.
//! What shares its memory keeps it. The memory returns to the pool with the last of them, and is used again when the copies
//! that were recorded for it are done: those of `copy_to_device` and `copy_from_device`, and of `record_use`.

use std::sync::Arc;

use forebay::pinned::{PinnedOptions, PinnedPool};
use forebay::{Bytes, PinnedArray};
use forebay_sync::fork::LeakOnFork;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::allocation::{Allocation, MemorySpace};
use crate::array_view::ArrayView;
use crate::failure::Failure;
use crate::gil::DropDetached;
use crate::memory::{Memory, same_device, stream_or_own};
use crate::open_device::{OpenDevice, PyDevice, device_argument};
use crate::protocol::{BufferType, take_next};
use crate::quantity::Size;
use crate::stack;
use crate::stream::stream_argument;
use crate::transfer::{self, Direction, MemoryRange};
use crate::value::to_python;
use crate::view::ViewCore;

/// A pool of pinned host memory of a device. Pinning is slow, so the pool keeps what it has pinned for later arrays.
///
/// ``max_bytes`` limits how much it pins, by default half of the machine's memory. With ``mapped`` the memory has an
/// address on the device too. A device that cannot pin memory raises ``UnsupportedError``.
#[pyclass(name = "PinnedPool", module = "forebay", frozen, weakref)]
pub(crate) struct PyPinnedPool {
    device: Arc<OpenDevice>,
    pool: DropDetached<LeakOnFork<PinnedPool>>,
}

#[pymethods]
impl PyPinnedPool {
    #[new]
    #[pyo3(signature = (device, max_bytes = None, mapped = false))]
    fn new(
        device: &Bound<'_, PyAny>,
        max_bytes: Option<Size>,
        mapped: bool,
    ) -> Result<Self, Failure> {
        let py = device.py();
        let device = device_argument(device)?;
        let mut options = PinnedOptions::new();
        if let Some(most) = max_bytes {
            options = options.max_bytes(most.bytes());
        }
        if mapped {
            options = options.mapped();
        }
        let pool = py.detach(|| Ok::<_, Failure>(options.build(device.opened()?)?))?;
        Ok(Self { device, pool: DropDetached::new(LeakOnFork::new(pool)) })
    }

    /// Its device.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice::new(Arc::clone(&self.device))
    }

    /// The most that it pins, in bytes.
    #[getter]
    fn limit(&self) -> Result<u64, Failure> {
        Ok(self.pool()?.limit().get())
    }

    /// How many bytes it has pinned.
    #[getter]
    fn held(&self, py: Python<'_>) -> Result<u64, Failure> {
        py.detach(|| Ok(self.pool()?.held().get()))
    }

    /// An array of elements of ``dtype``, by default bytes, in ``shape``. They have whatever values the memory had before.
    #[pyo3(signature = (shape, dtype = None))]
    fn array(
        &self,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> Result<Py<PyAny>, Failure> {
        let py = shape.py();
        let elements = ArrayView::requested(shape, dtype)?;
        let size = elements.length();
        let allocation = stack::detach(py, || {
            let array = self.pool()?.array::<u8>(size)?;
            Ok::<_, Failure>(Allocation::pinned_array(&self.device, array))
        })?;
        PINNED_ARRAY.construct(py, Memory::view(allocation.pin()?, elements))
    }

    /// Its statistics, as those of ``Pool``. All memory counts for one stream, which stands for the host.
    fn statistics<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>, Failure> {
        let figures = py.detach(|| Ok::<_, Failure>(self.pool()?.statistics()))?;
        to_python(py, &figures)
    }

    /// Unpin free memory, down to ``keep`` bytes held. Waits for copies that may still use it. Returns how many bytes
    /// were unpinned.
    #[pyo3(signature = (keep = None))]
    fn trim(&self, py: Python<'_>, keep: Option<Size>) -> Result<u64, Failure> {
        let keep = keep.map_or(Bytes::ZERO, Size::bytes);
        py.detach(|| Ok(self.pool()?.trim(keep)?.get()))
    }

    fn __repr__(&self) -> String {
        format!("<forebay.PinnedPool on {}>", self.device.name())
    }
}

impl PyPinnedPool {
    fn pool(&self) -> Result<&PinnedPool, Failure> {
        Ok(self.pool.get()?)
    }
}

/// Elements in pinned host memory, with the buffer protocol. Made by ``PinnedPool.array()``.
///
/// Its memory is kept as long as it or anything that shares it lives: arrays, views, memoryviews. Then it returns to the
/// pool, which uses it again once the copies that were recorded are done.
#[pyclass(name = "_PinnedArray", module = "forebay", extends = ViewCore, frozen, subclass)]
pub(crate) struct PinnedArrayCore;

/// `forebay.PinnedArray`.
pub(crate) static PINNED_ARRAY: BufferType<PinnedArrayCore> =
    BufferType::named(c"forebay.PinnedArray");

#[pymethods]
impl PinnedArrayCore {
    #[new]
    #[pyo3(signature = (*_arguments))]
    fn new(_arguments: &Bound<'_, PyTuple>) -> PyResult<PyClassInitializer<Self>> {
        let memory = take_next().filter(|memory| memory.allocation().pool_array().is_some());
        let memory = memory
            .ok_or_else(|| PyTypeError::new_err("pinned arrays are made by PinnedPool.array()"))?;
        Ok(PyClassInitializer::from(memory).add_subclass(ViewCore).add_subclass(Self))
    }

    /// A numpy array that shares its memory. Waits for the copies that were recorded so far.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> Result<Bound<'py, PyAny>, Failure> {
        let numpy = slf.py().import("numpy")?;
        Self::wait(slf)?;
        Ok(numpy.call_method1("asarray", (slf,))?)
    }

    /// Copy all of it to ``target``, a buffer or view of its device with as many bytes, in the order of ``stream``, by
    /// default the target's. Without ``wait`` the call returns at once: do not write to it before ``wait()``.
    #[pyo3(signature = (target, stream = None, wait = true))]
    fn copy_to_device(
        slf: &Bound<'_, Self>,
        target: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        wait: bool,
    ) -> Result<(), Failure> {
        enqueue(memory(slf), target, Direction::Up, stream, wait)
    }

    /// Copy all of ``source``, a buffer or view of its device with as many bytes, to it, in the order of ``stream``, by
    /// default the source's. Without ``wait`` the call returns at once: neither read nor write it before ``wait()``.
    #[pyo3(signature = (source, stream = None, wait = true))]
    fn copy_from_device(
        slf: &Bound<'_, Self>,
        source: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        wait: bool,
    ) -> Result<(), Failure> {
        enqueue(memory(slf), source, Direction::Down, stream, wait)
    }

    /// Record that work enqueued so far on ``stream`` uses it, such as a copy by another library. Without this, the pool
    /// may use the memory again while that work still runs.
    #[pyo3(signature = (stream = None))]
    fn record_use(slf: &Bound<'_, Self>, stream: Option<&Bound<'_, PyAny>>) -> Result<(), Failure> {
        let allocation = memory(slf).allocation();
        let stream = stream_argument(allocation.device(), stream)?;
        slf.py().detach(|| allocation.record_use(&stream))
    }

    /// Whether all recorded work that uses it is done. Does not wait.
    #[getter]
    fn idle(slf: &Bound<'_, Self>) -> Result<bool, Failure> {
        let array = array(memory(slf))?;
        slf.py().detach(|| Ok(array.is_idle()))
    }

    /// Wait for all recorded work that uses it.
    fn wait(slf: &Bound<'_, Self>) -> Result<(), Failure> {
        let array = array(memory(slf))?;
        slf.py().detach(|| Ok(array.wait()?))
    }

    /// Its address on the device as a number, for memory of a pool that is ``mapped``.
    #[getter]
    fn device_address(slf: &Bound<'_, Self>) -> Result<u64, Failure> {
        let array = array(memory(slf))?;
        slf.py().detach(|| Ok(array.device_address()?.get()))
    }

    fn __repr__(slf: &Bound<'_, Self>) -> String {
        let memory = memory(slf);
        let (array, device) = (memory.array(), memory.allocation().device().name());
        format!("<forebay.PinnedArray of {array} on {device}>")
    }
}

fn memory<'a>(array: &'a Bound<'_, PinnedArrayCore>) -> &'a Memory {
    array.as_super().as_super().get()
}

fn array(memory: &Memory) -> Result<Arc<PinnedArray<u8>>, Failure> {
    memory.allocation().pool_array().ok_or_else(|| Failure::closed("the array was freed"))
}

/// Copies between pinned memory and all of a buffer or view of its device.
fn enqueue(
    pinned: &Memory,
    other: &Bound<'_, PyAny>,
    direction: Direction,
    stream: Option<&Bound<'_, PyAny>>,
    wait: bool,
) -> Result<(), Failure> {
    let py = other.py();
    let other = other.cast::<Memory>().map_err(|_| {
        PyTypeError::new_err("expected device memory: a forebay.Buffer or a forebay.View")
    })?;
    let other = other.get();
    let pin = || Ok::<_, Failure>((pinned.pin()?, other.pin()?));
    let (pinned_pin, other_pin) = py.detach(pin)?;
    let (array, other_array) = (pinned.array(), other.array());
    same_device(pinned_pin.allocation(), other_pin.allocation())?;
    if other_pin.allocation().space() == MemorySpace::Host {
        return Err(Failure::invalid(
            "the other side is host memory: expected memory of the device, such as Pool.allocate() gives",
        ));
    }
    let size = array.bytes();
    if other_array.bytes() != size {
        let given = other_array.bytes();
        return Err(Failure::invalid(format!(
            "the pinned array has {size} B and the other side {given} B: expected as many; use view() for a part"
        )));
    }
    if direction == Direction::Up && !other_array.writable() {
        return Err(Failure::invalid("the target is read-only"));
    }
    let stream_ref = stream_or_own(other_pin.allocation(), stream)?;
    let host = MemoryRange { pin: &pinned_pin, offset: array.span(0, size)?, size };
    let device = MemoryRange { pin: &other_pin, offset: other_array.span(0, size)?, size };
    py.detach(|| {
        let (to, from) = direction.ends(device, host);
        transfer::enqueue_copy(from, to, &stream_ref)?;
        if wait { stream_ref.synchronize() } else { Ok(()) }
    })
}
