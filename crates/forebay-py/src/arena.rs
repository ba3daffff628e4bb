//! `forebay.Arena`. Using a part that the arena took back is an error.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use forebay::arena::{Arena, ArenaOptions, ArenaToken, Checkpoint};
use forebay::{Alignment, Bytes, Pool};
use forebay_core::BumpGrowth;
use forebay_sync::fork::{Birth, LeakOnFork};
use forebay_sync::lock;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::allocation::Allocation;
use crate::buffer::new_buffer;
use crate::failure::{Failure, leave};
use crate::gil::{DropDetached, MayBlockOnDrop};
use crate::open_device::{OpenDevice, StreamRef};
use crate::quantity::{Size, optional_integer};
use crate::stack;

/// An arena that its buffers share, with the count of pins of its memory.
///
/// No thread waits for its lock while it holds the GIL: the thread that holds the lock may be growing the
/// arena, and a pool without memory calls Python's `on_shortage`.
pub(crate) struct SharedArena {
    /// `None` once it was closed. Dropped first: its memory is freed in the order of `stream_ref`, which may
    /// end with this.
    arena: Mutex<Option<LeakOnFork<Arena<Pool>>>>,
    stream_ref: Arc<StreamRef>,
    device: Arc<OpenDevice>,
    birth: Birth,
    /// Incremented under the arena's lock; decremented at any time.
    pins: AtomicUsize,
}

impl SharedArena {
    /// Its device.
    pub(crate) fn device(&self) -> &Arc<OpenDevice> {
        &self.device
    }

    /// The stream in whose order it is used.
    pub(crate) fn stream_ref(&self) -> &Arc<StreamRef> {
        &self.stream_ref
    }

    /// Pins a part; an error where it was taken back.
    pub(crate) fn pin(&self, token: ArenaToken) -> Result<(), Failure> {
        self.with(|arena| {
            let _valid = arena.get()?.resolve(token)?;
            self.pins.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    }

    /// Ends a pin.
    pub(crate) fn unpin(&self) {
        self.pins.fetch_sub(1, Ordering::Relaxed);
    }

    fn with<R>(
        &self,
        work: impl FnOnce(&mut LeakOnFork<Arena<Pool>>) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        // Before the lock: in a forked child a thread of the parent may hold it for ever.
        self.birth.check()?;
        match &mut *lock(&self.arena) {
            Some(arena) => work(arena),
            None => Err(closed()),
        }
    }

    /// Calls `work`, which takes parts back. An error while any part is pinned.
    fn take_back<R>(
        &self,
        work: impl FnOnce(&mut Arena<Pool>) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        self.with(|arena| {
            self.check_idle()?;
            work(arena.get_mut()?)
        })
    }

    fn check_idle(&self) -> Result<(), Failure> {
        match self.pins.load(Ordering::Relaxed) {
            0 => Ok(()),
            pins => Err(Failure::InUse(format!(
                "the arena's buffers still have {pins} live views (arrays, memoryviews or DLPack \
                 tensors); delete them first"
            ))),
        }
    }
}

fn closed() -> Failure {
    Failure::closed("the arena was closed, and its buffers with it")
}

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
        (capacity, most): (Bytes, Option<Bytes>),
    ) -> Result<Self, Failure> {
        let options = ArenaOptions::new(capacity);
        let options = match most {
            Some(most) => options.growth(BumpGrowth::Doubling { most }),
            None => options,
        };
        stream_ref.register_pool(pool.id());
        let arena = Mutex::new(Some(LeakOnFork::new(options.build(pool, stream_ref.handle())?)));
        let (device, birth, pins) = (Arc::clone(device), Birth::here(), AtomicUsize::new(0));
        let shared = Arc::new(SharedArena { arena, stream_ref, device, birth, pins });
        Ok(Self { shared: DropDetached::new(shared) })
    }
}

impl MayBlockOnDrop for Arc<SharedArena> {
    fn may_block(&self) -> bool {
        // Only the last reference frees the memory, and with it perhaps the pool, which waits for the device.
        Self::strong_count(self) == 1
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
                let arena = arena.get()?;
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
        py.detach(|| self.shared.with(|arena| Ok(PyCheckpoint(arena.get()?.checkpoint()))))
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
        let usage = py.detach(|| self.shared.with(|arena| Ok(arena.get()?.usage())))?;
        let figures = PyDict::new(py);
        figures.set_item("used", usage.used.get())?;
        figures.set_item("available", usage.available.get())?;
        figures.set_item("capacity", usage.capacity.get())?;
        figures.set_item("high_water", usage.high_water.get())?;
        figures.set_item("chunks", usage.chunks)?;
        Ok(figures)
    }

    /// Free all memory to the pool. Closing twice does nothing.
    fn close(&self, py: Python<'_>) -> Result<(), Failure> {
        py.detach(|| {
            self.shared.birth.check()?;
            let mut arena = lock(&self.shared.arena);
            if arena.is_some() {
                self.shared.check_idle()?;
            }
            match arena.take() {
                Some(arena) => Ok(arena.take()?.close()?),
                None => Ok(()),
            }
        })
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*error))]
    fn __exit__(&self, py: Python<'_>, error: &Bound<'_, PyTuple>) -> Result<(), Failure> {
        leave(error, self.close(py))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match py.detach(|| self.shared.with(|arena| Ok(arena.get()?.usage()))) {
            Ok(usage) => {
                format!(
                    "<forebay.Arena on {}: {} used of {}>",
                    self.shared.device.name(),
                    usage.used,
                    usage.capacity
                )
            }
            Err(_) => "<forebay.Arena, closed>".to_owned(),
        }
    }
}
