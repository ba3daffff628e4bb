//! `forebay.BufferManager`: makes unified and shared buffers, and tells what is live.

use std::sync::Arc;

use forebay::bindings::CountedBuffer;
use forebay::buffer::{BufferManager, LiveBuffer};
use forebay::named::SharedOptions;
use forebay_sync::fork::LeakOnFork;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::array_view::ArrayView;
use crate::copies;
use crate::creation;
use crate::dtype;
use crate::failure::Failure;
use crate::gil::DropDetached;
use crate::host_side::elements_of;
use crate::memory::Memory;
use crate::open_device::{OpenDevice, PyDevice, device_argument};
use crate::pool::PyPool;
use crate::quantity::seconds;
use crate::replica::Unified;
use crate::shared::PySharedBuffer;
use crate::unified::new_unified;
use crate::unified_methods::statistics;

/// Makes buffers on one device, which are on the host and on the device.
///
/// ``BufferManager(device)`` has a pool of its own; ``BufferManager(pool)`` takes device memory from that pool.
#[pyclass(name = "BufferManager", module = "forebay", frozen, weakref)]
pub(crate) struct PyMemory {
    device: Arc<OpenDevice>,
    memory: DropDetached<LeakOnFork<BufferManager>>,
}

#[pymethods]
impl PyMemory {
    #[new]
    fn new(of: &Bound<'_, PyAny>) -> Result<Self, Failure> {
        let py = of.py();
        if let Ok(pool) = of.cast::<PyPool>() {
            let (device, pool) = (Arc::clone(pool.get().open_device()), pool.get().pool()?);
            return Ok(Self::over(device, BufferManager::over(&pool)));
        }
        let device = device_argument(of)?;
        let memory = py.detach(|| Ok::<_, Failure>(BufferManager::new(device.opened()?)?))?;
        Ok(Self::over(device, memory))
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
    ) -> Result<Py<PyAny>, Failure> {
        self.make(shape.py(), ArrayView::requested(shape, dtype, dtype::bytes())?)
    }

    /// A buffer with the elements of ``source``: anything with the buffer protocol, such as a numpy array.
    fn buffer_from(&self, source: &Bound<'_, PyAny>) -> Result<Py<PyAny>, Failure> {
        let made = self.make(source.py(), elements_of(source)?)?;
        copies::copy_to_array(creation::memory(made.bind(source.py()))?, source, None, true)?;
        Ok(made)
    }

    /// Create a buffer of elements of ``dtype`` in ``shape``, all zero, that other processes of this user open by its
    /// name: 1 to 80 characters of ``A-Z a-z 0-9 . _ -``. Raises ``NameTakenError`` where a living process has the name;
    /// with ``or_open`` it is opened then, if it has the same elements. With ``any_user`` every user of the machine may
    /// open it; such names are apart. ``patience``: how many seconds an opener waits for an answer. Linux only.
    #[pyo3(signature = (name, shape, dtype = None, *, or_open = false, any_user = false, patience = 5.0))]
    #[allow(clippy::too_many_arguments, reason = "Python's keywords")]
    fn shared(
        &self,
        name: &str,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        or_open: bool,
        any_user: bool,
        patience: f64,
    ) -> Result<PySharedBuffer, Failure> {
        let array = ArrayView::requested(shape, dtype, dtype::bytes())?;
        let options = shared_options(any_user, patience)?;
        let (device, manager) = (&self.device, self.manager()?);
        PySharedBuffer::create(shape.py(), device, manager, &options, name, array, or_open)
    }

    /// Open a buffer that a process of this user has created. Without a ``shape`` it has one dimension; a ``dtype``
    /// refuses elements of another type. Raises ``NotFoundError`` where no living process has the name.
    #[pyo3(signature = (name, shape = None, dtype = None, *, any_user = false, patience = 5.0))]
    #[allow(clippy::too_many_arguments, reason = "Python's keywords")]
    fn open_shared(
        &self,
        py: Python<'_>,
        name: &str,
        shape: Option<&Bound<'_, PyAny>>,
        dtype: Option<&Bound<'_, PyAny>>,
        any_user: bool,
        patience: f64,
    ) -> Result<PySharedBuffer, Failure> {
        let options = shared_options(any_user, patience)?;
        PySharedBuffer::open(py, &self.device, self.manager()?, &options, name, (shape, dtype))
    }

    /// What its buffers add up to: ``buffers``, ``created``, bytes of memory, and copies.
    fn totals<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>, Failure> {
        let totals = self.manager()?.totals();
        let dict = statistics(py, &totals.statistics)?;
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
        format!("<forebay.BufferManager on {}>", self.device.name())
    }
}

impl PyMemory {
    fn over(device: Arc<OpenDevice>, memory: BufferManager) -> Self {
        Self { device, memory: DropDetached::new(LeakOnFork::new(memory)) }
    }

    fn manager(&self) -> Result<&BufferManager, Failure> {
        Ok(self.memory.get()?)
    }

    fn make(&self, py: Python<'_>, array: ArrayView) -> Result<Py<PyAny>, Failure> {
        let buffer = CountedBuffer::new(self.manager()?.buffer::<u8>(array.length())?);
        new_unified(py, Memory::unified(Arc::clone(&self.device), array, Unified::new(buffer)))
    }
}

fn rows<'py>(py: Python<'py>, live: &[LiveBuffer]) -> Result<Bound<'py, PyList>, Failure> {
    let list = PyList::empty(py);
    for one in live {
        let row = statistics(py, &one.statistics)?;
        row.set_item("number", one.id)?;
        row.set_item("bytes", one.bytes)?;
        row.set_item("age_s", one.age.as_secs_f64())?;
        list.append(row)?;
    }
    Ok(list)
}

/// The live buffers of all ``BufferManager`` objects of the process: at the end of a program, its leaks.
#[pyfunction]
pub(crate) fn live_buffers(py: Python<'_>) -> Result<Bound<'_, PyList>, Failure> {
    rows(py, &forebay::buffer::leaks())
}

/// Options of a shared buffer from Python's keywords.
fn shared_options(any_user: bool, patience: f64) -> Result<SharedOptions, Failure> {
    let options = SharedOptions::new().patience(seconds(patience)?);
    Ok(if any_user { options.any_user() } else { options })
}
