//! `forebay.PinnedPool`: pinned host memory from a pool, which a device copies from and to.
//!
//! What shares an array's memory keeps it. The memory returns to the pool with the last of them, and is used again when the
//! copies that were recorded for it are done: those of `copy_` without a wait, and of `record_use`.

use std::sync::Arc;

use forebay::Bytes;
use forebay::pinned::{PinnedOptions, PinnedPool};
use forebay_sync::fork::LeakOnFork;
use pyo3::prelude::*;

use crate::allocation::Allocation;
use crate::array::new_array;
use crate::array_view::ArrayView;
use crate::dtype;
use crate::failure::Failure;
use crate::gil::DropDetached;
use crate::memory::Memory;
use crate::open_device::{OpenDevice, PyDevice, device_argument};
use crate::quantity::Size;
use crate::tag;
use crate::value::to_python;

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

    /// A new array in ``shape``, of elements of ``dtype``, by default "float64". They have whatever values the memory had
    /// before.
    #[pyo3(signature = (shape, dtype = None))]
    fn empty(
        &self,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> Result<Py<PyAny>, Failure> {
        let py = shape.py();
        let elements = ArrayView::requested(shape, dtype, dtype::float64())?;
        let size = elements.length();
        let allocation = tag::request(py, None, || {
            let array = self.pool()?.array::<u8>(size)?;
            Ok::<_, Failure>(Allocation::pinned_array(&self.device, array))
        })?;
        new_array(py, Memory::part(allocation.pin()?, elements))
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
