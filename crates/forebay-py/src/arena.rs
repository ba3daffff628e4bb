//! Arenas, as Python sees them: parts are refused once they were taken back.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use forebay::arena::{Arena, ArenaOptions, ArenaToken, Checkpoint};
use forebay::{Alignment, Bytes, Pool};
use forebay_core::BumpGrowth;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::fork::{Birth, Ending, Held, Native};
use crate::lot::Lot;
use crate::making::new_buffer;
use crate::quantity::{Size, whole_or_none};
use crate::refusal::Refusal;
use crate::site::{Site, lock};
use crate::stream::Course;

/// An arena, and how many uses of its memory there are.
///
/// Its lock is never waited for under Python's: whoever holds it may be growing, and a pool that has no
/// more asks the program, which is Python.
pub(crate) struct Ground {
    /// Nothing once it was closed. The first to go: its memory is given back in the order of `course`,
    /// which may end with this.
    arena: Mutex<Option<Native<Arena<Pool>>>>,
    course: Arc<Course>,
    site: Arc<Site>,
    born: Birth,
    /// Raised under the arena's lock; lowered at any time.
    pins: AtomicUsize,
}

impl Ground {
    /// The device.
    pub(crate) fn site(&self) -> &Arc<Site> {
        &self.site
    }

    /// The stream in whose order it is used.
    pub(crate) fn course(&self) -> &Arc<Course> {
        &self.course
    }

    /// Begins a use of a part; an error where it was taken back.
    pub(crate) fn pin(&self, token: ArenaToken) -> Result<(), Refusal> {
        self.with(|arena| {
            let _stands = arena.get()?.resolve(token)?;
            self.pins.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    }

    /// Ends a use.
    pub(crate) fn unpin(&self) {
        self.pins.fetch_sub(1, Ordering::Relaxed);
    }

    fn with<R>(
        &self,
        work: impl FnOnce(&mut Native<Arena<Pool>>) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        // Before the lock: a thread that the fork left behind may hold it.
        self.born.check()?;
        match &mut *lock(&self.arena) {
            Some(arena) => work(arena),
            None => Err(closed()),
        }
    }

    /// Does what takes parts back. Refused while any part of the arena is in use.
    fn take_back<R>(
        &self,
        work: impl FnOnce(&mut Arena<Pool>) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        self.with(|arena| {
            self.check_idle()?;
            work(arena.get_mut()?)
        })
    }

    fn check_idle(&self) -> Result<(), Refusal> {
        match self.pins.load(Ordering::Relaxed) {
            0 => Ok(()),
            pins => Err(Refusal::InUse(format!(
                "{pins} views of buffers of the arena still live, as arrays, memoryviews or DLPack \
                 tensors: let them go first"
            ))),
        }
    }
}

fn closed() -> Refusal {
    Refusal::closed("the arena was closed, and its buffers with it")
}

/// A place in an arena to come back to.
#[pyclass(name = "Checkpoint", module = "forebay", frozen)]
pub(crate) struct PyCheckpoint(Checkpoint);

#[pymethods]
impl PyCheckpoint {
    fn __repr__(&self) -> &'static str {
        "<forebay.Checkpoint>"
    }
}

/// Memory that is allocated one by one and given back all at once.
///
/// Made by ``Pool.arena()``. Its buffers are good until ``reset()``, a ``rewind()`` to before them or
/// ``close()``; after that they raise ``forebay.LapsedError``.
#[pyclass(name = "Arena", module = "forebay", frozen)]
pub(crate) struct PyArena {
    ground: Held<Arc<Ground>>,
}

impl PyArena {
    /// An arena of `capacity` bytes over `pool`, which grows to `most` where that is said.
    pub(crate) fn new(
        site: &Arc<Site>,
        pool: Pool,
        course: Arc<Course>,
        (capacity, most): (Bytes, Option<Bytes>),
    ) -> Result<Self, Refusal> {
        let options = ArenaOptions::new(capacity);
        let options = match most {
            Some(most) => options.growth(BumpGrowth::Doubling { most }),
            None => options,
        };
        course.used_by(pool.id());
        let arena = Mutex::new(Some(Native::new(options.build(pool, course.handle())?)));
        let (site, born, pins) = (Arc::clone(site), Birth::here(), AtomicUsize::new(0));
        let ground = Arc::new(Ground { arena, course, site, born, pins });
        Ok(Self { ground: Held::new(ground) })
    }
}

impl Ending for Arc<Ground> {
    fn may_wait(&self) -> bool {
        // Buffers have it otherwise. Where it was the last that needed its pool this waits for the device.
        Self::strong_count(self) == 1
    }
}

#[pymethods]
impl PyArena {
    /// A buffer of ``size`` bytes, at a multiple of ``alignment`` (512 unless said). What it holds is not
    /// defined.
    #[pyo3(signature = (size, alignment = None))]
    fn allocate(
        &self,
        py: Python<'_>,
        size: Size,
        #[pyo3(from_py_with = whole_or_none::<u64>)] alignment: Option<u64>,
    ) -> Result<Py<PyAny>, Refusal> {
        let lot = py.detach(|| {
            self.ground.with(|arena| {
                let arena = arena.get()?;
                let block = match alignment {
                    Some(alignment) => {
                        arena.allocate_aligned(size.bytes(), Alignment::new(alignment)?)?
                    }
                    None => arena.allocate(size.bytes())?,
                };
                Ok::<_, Refusal>((block.address(), block.token()))
            })
        });
        let (address, token) = lot?;
        new_buffer(py, Lot::part(&self.ground, address, token))
    }

    /// The present place, to come back to.
    fn checkpoint(&self, py: Python<'_>) -> Result<PyCheckpoint, Refusal> {
        py.detach(|| self.ground.with(|arena| Ok(PyCheckpoint(arena.get()?.checkpoint()))))
    }

    /// Take back everything that was allocated since the checkpoint, which can be used again.
    fn rewind(&self, py: Python<'_>, checkpoint: &Bound<'_, PyCheckpoint>) -> Result<(), Refusal> {
        let place = checkpoint.get().0;
        py.detach(|| self.ground.take_back(|arena| Ok(arena.rewind(place)?)))
    }

    /// Take back everything, in constant time. The memory stays the arena's.
    fn reset(&self, py: Python<'_>) -> Result<(), Refusal> {
        py.detach(|| {
            self.ground.take_back(|arena| {
                arena.reset();
                Ok(())
            })
        })
    }

    /// How it stands, in bytes: ``used``, ``available``, ``capacity``, ``high_water``; and ``chunks``.
    fn usage<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>, Refusal> {
        let usage = py.detach(|| self.ground.with(|arena| Ok(arena.get()?.usage())))?;
        let figures = PyDict::new(py);
        figures.set_item("used", usage.used.get())?;
        figures.set_item("available", usage.available.get())?;
        figures.set_item("capacity", usage.capacity.get())?;
        figures.set_item("high_water", usage.high_water.get())?;
        figures.set_item("chunks", usage.chunks)?;
        Ok(figures)
    }

    /// Give all memory back to the pool. Closing twice does nothing.
    fn close(&self, py: Python<'_>) -> Result<(), Refusal> {
        py.detach(|| {
            self.ground.born.check()?;
            let mut arena = lock(&self.ground.arena);
            if arena.is_some() {
                self.ground.check_idle()?;
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

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> Result<(), Refusal> {
        self.close(py)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match py.detach(|| self.ground.with(|arena| Ok(arena.get()?.usage()))) {
            Ok(usage) => {
                format!(
                    "<forebay.Arena on {}: {} used of {}>",
                    self.ground.site.name(),
                    usage.used,
                    usage.capacity
                )
            }
            Err(_) => "<forebay.Arena, closed>".to_owned(),
        }
    }
}
