//! The live blocks that Python allocated: since when, and from which line of the program.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use forebay::devices::DeviceName;
use forebay::report::Stack;
use forebay::{Address, Pool, PoolId};
use forebay_sync::fork::ForkSafeMutex;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::failure::Failure;
use crate::open_device::{OpenDevice, device_argument};
use crate::quantity::integer;
use crate::stack;
use crate::value::dict;

/// As many as a stack has.
const MAX_FRAMES: usize = 64;

/// The calls that led to an allocation, and how many of them are shown.
pub(crate) type Origin = (Stack, usize);

/// When a block was allocated, and from where.
#[derive(Clone, Debug)]
pub(crate) struct BlockRecord {
    allocated: Instant,
    origin: Option<Origin>,
}

impl BlockRecord {
    /// A block that is allocated now.
    pub(crate) fn new(origin: Option<Origin>) -> Self {
        Self { allocated: Instant::now(), origin }
    }
}

/// The live blocks by pool and address; `None` until the first. Whole in a forked child, so that the child can
/// list and free blocks of its own.
static LIVE_BLOCKS: ForkSafeMutex<Option<HashMap<(PoolId, Address), BlockRecord>>> =
    ForkSafeMutex::new(None);

/// How many frames of an origin are recorded; 0 turns it off.
static FRAMES: AtomicUsize = AtomicUsize::new(0);

/// Records a live block.
pub(crate) fn insert(pool: PoolId, address: Address, record: BlockRecord) {
    if !address.is_null() {
        LIVE_BLOCKS.lock().get_or_insert_default().insert((pool, address), record);
    }
}

/// Removes a block that is about to be freed.
pub(crate) fn remove(pool: PoolId, address: Address) -> Option<BlockRecord> {
    LIVE_BLOCKS.lock().as_mut()?.remove(&(pool, address))
}

fn find(pool: PoolId, address: Address) -> Option<BlockRecord> {
    LIVE_BLOCKS.lock().as_ref()?.get(&(pool, address)).cloned()
}

/// The program's call stack, as deep as was asked for; `None` where that is off.
pub(crate) fn origin(_: Python<'_>) -> Option<Origin> {
    let depth = FRAMES.load(Ordering::Relaxed);
    if depth == 0 {
        return None;
    }
    Some((Stack::capture(), depth))
}

/// Record the call stack of each allocation from now on, ``frames`` calls deep; 0 turns it off.
///
/// For ``leaks()``. Each allocation then takes some microseconds more.
#[pyfunction]
#[pyo3(signature = (frames = 8))]
pub(crate) fn trace_origins(
    #[pyo3(from_py_with = integer::<u64>)] frames: u64,
) -> Result<(), Failure> {
    let depth = usize::try_from(frames).ok().filter(|&depth| depth <= MAX_FRAMES);
    let depth = depth.ok_or_else(|| {
        Failure::invalid(format!("cannot record {frames} frames: expected 0 to {MAX_FRAMES}"))
    })?;
    FRAMES.store(depth, Ordering::Relaxed);
    Ok(())
}

/// The live blocks of a pool as rows, the oldest first. Blocks that other libraries allocated, such as
/// PyTorch's, have no time and come last.
pub(crate) fn rows<'py>(py: Python<'py>, pool: &Pool) -> Result<Bound<'py, PyList>, Failure> {
    let blocks = py.detach(|| pool.snapshot().blocks);
    let mut rows: Vec<_> = blocks
        .into_iter()
        .map(|block| (find(pool.id(), Address::new(block.address)), block))
        .collect();
    rows.sort_by_key(|(record, _)| {
        (record.is_none(), record.as_ref().map(|record| record.allocated))
    });
    // Ages come from the monotonic clock; the time of day is computed back from now.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let list = PyList::empty(py);
    for (record, block) in rows {
        let row = dict!(py, {
            "address": block.address,
            "size_bytes": block.size_bytes,
            "requested_bytes": block.requested_bytes,
            "tag": &block.tag,
        });
        let age = record.as_ref().map(|record| record.allocated.elapsed().as_secs_f64());
        row.set_item("age_s", age)?;
        row.set_item("since_unix_s", age.map(|age| now - age))?;
        let origin = record.and_then(|record| record.origin);
        let lines = origin.and_then(|(stack, depth)| {
            let mut lines = stack::lines(stack)?;
            lines.truncate(depth);
            Some(lines)
        });
        row.set_item("origin", lines)?;
        list.append(row)?;
    }
    Ok(list)
}

/// The live blocks of the process's pools, or of the pool of ``device``: a row for each, the oldest
/// first, with ``device``, ``address``, sizes, ``tag``, ``age_s``, ``since_unix_s`` and ``origin`` (the
/// call stack of its allocation, where ``trace_origins()`` was on). At most 4096 of a pool, the largest.
#[pyfunction]
#[pyo3(signature = (device = None))]
pub(crate) fn leaks<'py>(
    py: Python<'py>,
    device: Option<&Bound<'py, PyAny>>,
) -> Result<Bound<'py, PyList>, Failure> {
    let pools = match device {
        Some(device) => {
            let device = device_argument(device)?;
            vec![py.detach(|| device.pool())?]
        }
        None => OpenDevice::pools()?,
    };
    let all = PyList::empty(py);
    for pool in pools {
        let name = name_of(&pool);
        for row in rows(py, &pool)? {
            row.set_item("device", &name)?;
            all.append(row)?;
        }
    }
    Ok(all)
}

/// The name of a pool's device.
fn name_of(pool: &Pool) -> String {
    let descriptor = pool.device().descriptor();
    DeviceName::new(descriptor.kind, descriptor.ordinal.0).to_string()
}
