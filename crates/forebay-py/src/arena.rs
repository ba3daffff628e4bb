//! `forebay.Arena`. Using a part that the arena took back is an error.

use std::sync::Arc;

use forebay::arena::Checkpoint;
use forebay::{Alignment, Bytes, Pool};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::allocation::Allocation;
use crate::buffer::new_buffer;
use crate::failure::{Failure, leave};
use crate::gil::DropDetached;
use crate::open_device::{OpenDevice, StreamRef};
use crate::quantity::{Size, optional_integer};
use crate::shared_arena::SharedArena;
use crate::stack;
use crate::value::dict;

/// A position in an arena to rewind to.
#[pyclass(name = "Checkpoint", module = "forebay", frozen)]
pub(crate) struct PyCheckpoint(Checkpoint);

#[pymethods]
impl PyCheckpoint {
    fn __repr__(&self) -> &'static str {
        "<forebay.Checkpoint>"
    }
}

/// Memory that is allocated piece by piece and freed all at once.
///
/// Made by ``Pool.arena()``. Its buffers are valid until ``reset()``, a ``rewind()`` to before them or
/// ``close()``; after that they raise ``forebay.LapsedError``.
#[pyclass(name = "Arena", module = "forebay", frozen)]
pub(crate) struct PyArena {
    shared: DropDetached<Arc<SharedArena>>,
}

impl PyArena {
    /// An arena of `capacity` bytes over `pool`, which grows to `most` where that is said.
    pub(crate) fn new(
        device: &Arc<OpenDevice>,
        pool: Pool,
        stream_ref: Arc<StreamRef>,
        sizes: (Bytes, Option<Bytes>),
    ) -> Result<Self, Failure> {
        let shared = SharedArena::new(device, pool, stream_ref, sizes)?;
        Ok(Self { shared: DropDetached::new(Arc::new(shared)) })
    }
}

#[pymethods]
impl PyArena {
    /// Allocate a buffer of ``size`` bytes, at a multiple of ``alignment`` (by default 512). Its contents are
    /// undefined.
    #[pyo3(signature = (size, alignment = None))]
    fn allocate(
        &self,
        py: Python<'_>,
        size: Size,
        #[pyo3(from_py_with = optional_integer::<u64>)] alignment: Option<u64>,
    ) -> Result<Py<PyAny>, Failure> {
        let allocation = stack::detach(py, || {
            self.shared.with(|arena| {
                let block = match alignment {
                    Some(alignment) => {
                        arena.allocate_aligned(size.bytes(), Alignment::new(alignment)?)?
                    }
                    None => arena.allocate(size.bytes())?,
                };
                Ok::<_, Failure>((block.address(), block.token()))
            })
        });
        let (address, token) = allocation?;
        new_buffer(py, Allocation::part(&self.shared, address, token))
    }

    /// The present position, to rewind to.
    fn checkpoint(&self, py: Python<'_>) -> Result<PyCheckpoint, Failure> {
        py.detach(|| self.shared.with(|arena| Ok(PyCheckpoint(arena.checkpoint()))))
    }

    /// Take back everything that was allocated since the checkpoint, which can be used again.
    fn rewind(&self, py: Python<'_>, checkpoint: &Bound<'_, PyCheckpoint>) -> Result<(), Failure> {
        let place = checkpoint.get().0;
        py.detach(|| self.shared.take_back(|arena| Ok(arena.rewind(place)?)))
    }

    /// Take back everything, in constant time. The memory stays the arena's.
    fn reset(&self, py: Python<'_>) -> Result<(), Failure> {
        py.detach(|| {
            self.shared.take_back(|arena| {
                arena.reset();
                Ok(())
            })
        })
    }

    /// Its usage in bytes: ``used``, ``available``, ``capacity``, ``high_water``; and ``chunks``.
    fn usage<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>, Failure> {
        let usage = py.detach(|| self.shared.with(|arena| Ok(arena.usage())))?;
        Ok(dict!(py, {
            "used": usage.used.get(),
            "available": usage.available.get(),
            "capacity": usage.capacity.get(),
            "high_water": usage.high_water.get(),
            "chunks": usage.chunks,
        }))
    }

    /// Free all memory to the pool. Closing twice does nothing.
    fn close(&self, py: Python<'_>) -> Result<(), Failure> {
        py.detach(|| self.shared.close())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*error))]
    fn __exit__(&self, py: Python<'_>, error: &Bound<'_, PyTuple>) -> Result<(), Failure> {
        leave(error, self.close(py))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match py.detach(|| self.shared.with(|arena| Ok(arena.usage()))) {
            Ok(usage) => {
                format!(
                    "<forebay.Arena on {}: {} used of {}>",
                    self.shared.device().name(),
                    usage.used,
                    usage.capacity
                )
            }
            Err(_) => "<forebay.Arena, closed>".to_owned(),
        }
    }
}
