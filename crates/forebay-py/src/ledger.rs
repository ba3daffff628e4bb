//! What lives, since when, from where: of the blocks that Python asked for.

use core::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use forebay::{Address, Pool, PoolId};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::device::site_of;
use crate::pool::PyPool;
use crate::quantity::whole;
use crate::refusal::Refusal;
use crate::site::{Site, lock};

/// Deeper stacks than this say nothing more, and each frame costs.
const MOST_FRAMES: usize = 64;

/// The places of a program from which a block was asked for, the innermost first: "file.py:12 in f".
pub(crate) type Origin = Arc<[String]>;

/// When a block began to live, and from where.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    began: Instant,
    origin: Option<Origin>,
}

impl Life {
    /// One that begins now.
    pub(crate) fn beginning(origin: Option<Origin>) -> Self {
        Self { began: Instant::now(), origin }
    }
}

/// Blocks by their pool and address.
type Lives = Option<HashMap<(PoolId, Address), Life>>;

/// The blocks that live. Its lock is held to enter one or to take it out, and calls nothing.
static LIVES: Mutex<Lives> = Mutex::new(None);

thread_local! {
    /// The lock, while this thread forks.
    static HELD: RefCell<Option<MutexGuard<'static, Lives>>> = const { RefCell::new(None) };
}

/// Keeps everybody out, until this thread lets go.
pub(crate) fn hold() {
    // A thread that is about to end forks no more.
    let _ = HELD.try_with(|held| held.replace(Some(lock(&LIVES))));
}

/// Lets others in again.
pub(crate) fn let_go() {
    let _ = HELD.try_with(|held| held.take());
}

/// How many frames of an origin are noted; none unless asked for.
static FRAMES: AtomicUsize = AtomicUsize::new(0);

/// Enters a block.
pub(crate) fn enter(pool: PoolId, address: Address, life: Life) {
    if !address.is_null() {
        lock(&LIVES).get_or_insert_default().insert((pool, address), life);
    }
}

/// Takes a block out.
pub(crate) fn leave(pool: PoolId, address: Address) -> Option<Life> {
    lock(&LIVES).as_mut()?.remove(&(pool, address))
}

fn find(pool: PoolId, address: Address) -> Option<Life> {
    lock(&LIVES).as_ref()?.get(&(pool, address)).cloned()
}

/// Where the program is, as deep as was asked for; nothing where that is off.
pub(crate) fn origin(py: Python<'_>) -> Option<Origin> {
    let depth = FRAMES.load(Ordering::Relaxed);
    if depth == 0 {
        return None;
    }
    // What cannot be told is left out: an allocation does not fail for it.
    frames(py, depth).ok().map(Arc::from)
}

fn frames(py: Python<'_>, depth: usize) -> PyResult<Vec<String>> {
    let mut frame = py.import("sys")?.call_method0("_getframe")?;
    let mut frames = Vec::new();
    while frames.len() < depth && !frame.is_none() {
        let code = frame.getattr("f_code")?;
        let (file, name): (String, String) =
            (code.getattr("co_filename")?.extract()?, code.getattr("co_name")?.extract()?);
        let line: Option<u32> = frame.getattr("f_lineno")?.extract()?;
        frames.push(format!("{file}:{} in {name}", line.unwrap_or(0)));
        frame = frame.getattr("f_back")?;
    }
    Ok(frames)
}

/// Note from where blocks are asked for, from now on, ``frames`` calls deep; 0 turns it off.
///
/// For ``leaks()``. Each allocation then takes some microseconds more.
#[pyfunction]
#[pyo3(signature = (frames = 8))]
pub(crate) fn trace_origins(
    #[pyo3(from_py_with = whole::<u64>)] frames: u64,
) -> Result<(), Refusal> {
    let depth = usize::try_from(frames).ok().filter(|&depth| depth <= MOST_FRAMES);
    let depth = depth.ok_or_else(|| {
        Refusal::invalid(format!("{frames} frames cannot be noted: allowed are 0 to {MOST_FRAMES}"))
    })?;
    FRAMES.store(depth, Ordering::Relaxed);
    Ok(())
}

/// The live blocks of a pool as rows: what, since when, from where. The oldest first; what others than
/// Python asked for, as PyTorch, has no time and comes last.
pub(crate) fn rows<'py>(py: Python<'py>, pool: &Pool) -> Result<Bound<'py, PyList>, Refusal> {
    let blocks = py.detach(|| pool.snapshot().blocks);
    let mut rows: Vec<_> = blocks
        .into_iter()
        .map(|block| (find(pool.id(), Address::new(block.address)), block))
        .collect();
    rows.sort_by_key(|(life, _)| (life.is_none(), life.as_ref().map(|life| life.began)));
    // One clock is read for a block, the one that never goes back; the day is told from now.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let list = PyList::empty(py);
    for (life, block) in rows {
        let row = PyDict::new(py);
        row.set_item("address", block.address)?;
        row.set_item("size_bytes", block.size_bytes)?;
        row.set_item("requested_bytes", block.requested_bytes)?;
        row.set_item("tag", &block.tag)?;
        let age = life.as_ref().map(|life| life.began.elapsed().as_secs_f64());
        row.set_item("age_s", age)?;
        row.set_item("since_unix_s", age.map(|age| now - age))?;
        let origin = life.and_then(|life| life.origin);
        row.set_item("origin", origin.map(|origin| origin.to_vec()))?;
        list.append(row)?;
    }
    Ok(list)
}

/// What lives of the process's pools, or of the pool of ``device``: a row for each block, the oldest
/// first, with ``device``, ``address``, sizes, ``tag``, ``age_s``, ``since_unix_s`` and ``origin`` (the
/// calls it was asked for from, where ``trace_origins()`` was on). At most 4096 of a pool, the largest.
#[pyfunction]
#[pyo3(signature = (device = None))]
pub(crate) fn leaks<'py>(
    py: Python<'py>,
    device: Option<&Bound<'py, PyAny>>,
) -> Result<Bound<'py, PyList>, Refusal> {
    let pools = match device {
        Some(device) => {
            let site = site_of(device)?;
            vec![py.detach(|| site.pool())?]
        }
        None => Site::pools()?,
    };
    let all = PyList::empty(py);
    for pool in pools {
        let name = PyPool::name_of(&pool);
        for row in rows(py, &pool)? {
            row.set_item("device", &name)?;
            all.append(row)?;
        }
    }
    Ok(all)
}
