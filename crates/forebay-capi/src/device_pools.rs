//! The process's pool of each GPU, and the streams of other libraries that its device adopted.

use core::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use forebay::bindings::{SettingsChange, entries_of};
use forebay::cuda::CudaDriver;
use forebay::pinned::PinnedOptions;
use forebay::{CudaDevice, Device, PinnedPool, Pool, StreamHandle};
use forebay_sync::lock;

use crate::fork;
use crate::status::Failure;

/// The most GPUs: more than one machine has.
pub(crate) const MAX_GPUS: usize = 64;

/// The pools of a GPU, each created by the first request.
struct DevicePool {
    pool: OnceLock<Pool>,
    /// Of host memory that is pinned for the GPU.
    pinned: OnceLock<PinnedPool>,
    /// The streams of other libraries that the device adopted, by the driver's value. Two values are special:
    /// 1 is the default stream as well, and 2 that of the calling thread.
    adopted: Mutex<BTreeMap<u64, StreamHandle>>,
    /// How many requests failed for want of memory.
    out_of_memory: AtomicU64,
}

static DEVICE_POOLS: [DevicePool; MAX_GPUS] = [const {
    DevicePool {
        pool: OnceLock::new(),
        pinned: OnceLock::new(),
        adopted: Mutex::new(BTreeMap::new()),
        out_of_memory: AtomicU64::new(0),
    }
}; MAX_GPUS];

/// Held while a pool is created, and while the settings of new pools change.
static CREATING: Mutex<()> = Mutex::new(());

/// The GPU and stream of a thread's last request, with the pool and the stream's handle.
struct CachedPool {
    /// [`STREAM_EPOCH`] when it was cached.
    epoch: Cell<u64>,
    ordinal: Cell<i32>,
    stream: Cell<u64>,
    handle: Cell<StreamHandle>,
    pool: Cell<Option<&'static Pool>>,
}

thread_local! {
    static CACHED: CachedPool = const {
        CachedPool {
            epoch: Cell::new(0),
            ordinal: Cell::new(0),
            stream: Cell::new(0),
            handle: Cell::new(StreamHandle::DEFAULT),
            pool: Cell::new(None),
        }
    };
}

/// Incremented when a stream is forgotten, which invalidates the cache of every thread: the driver may give
/// the stream's value to another stream.
static STREAM_EPOCH: AtomicU64 = AtomicU64::new(0);

/// The index of a GPU; an index that no GPU has for a negative ordinal.
fn index_of(ordinal: i32) -> usize {
    usize::try_from(ordinal).unwrap_or(usize::MAX)
}

/// The pool of a GPU and the handle of a stream, where this thread's last request was for both.
#[inline(always)]
pub(crate) fn cached_pool(ordinal: i32, stream: u64) -> Option<(&'static Pool, StreamHandle)> {
    let look = |cached: &CachedPool| {
        let same = cached.ordinal.get() == ordinal && cached.stream.get() == stream;
        if same && cached.epoch.get() == STREAM_EPOCH.load(Ordering::Relaxed) {
            Some((cached.pool.get()?, cached.handle.get()))
        } else {
            None
        }
    };
    CACHED.try_with(look).ok().flatten()
}

/// The pool of a GPU and the handle of a stream.
pub(crate) fn pool_and_stream(
    ordinal: i32,
    stream: u64,
) -> Result<(&'static Pool, StreamHandle), Failure> {
    match cached_pool(ordinal, stream) {
        Some(cached) => Ok(cached),
        None => find(ordinal, stream),
    }
}

#[cold]
#[inline(never)]
fn find(ordinal: i32, stream: u64) -> Result<(&'static Pool, StreamHandle), Failure> {
    let epoch = STREAM_EPOCH.load(Ordering::Acquire);
    let index = index_of(ordinal);
    let device_pool = device_pool(index)?;
    let pool = pool_of(device_pool, index)?;
    let handle = adopt_stream(device_pool, pool, stream)?;
    let _ = CACHED.try_with(|cached| {
        cached.epoch.set(epoch);
        cached.ordinal.set(ordinal);
        cached.stream.set(stream);
        cached.handle.set(handle);
        cached.pool.set(Some(pool));
    });
    Ok((pool, handle))
}

/// The pool of a GPU, created by the first call.
pub(crate) fn pool(ordinal: i32) -> Result<&'static Pool, Failure> {
    let index = index_of(ordinal);
    pool_of(device_pool(index)?, index)
}

/// The pool of pinned memory for a GPU, created by the first call. What is pinned for one GPU serves the others, so a GPU
/// that the process does not use yet is left alone where another is used.
pub(crate) fn pinned_pool(ordinal: i32) -> Result<&'static PinnedPool, Failure> {
    let used = match existing_pool(ordinal) {
        Some(_) => None,
        None => existing().next(),
    };
    let index = index_of(used.map_or(ordinal, |(used, _)| used));
    let device_pool = device_pool(index)?;
    let main = pool_of(device_pool, index)?;
    get_or_create(&device_pool.pinned, || {
        let options = match CudaDriver::load()?.device_count()? {
            1 => PinnedOptions::new(),
            _ => PinnedOptions::new().portable(),
        };
        Ok(options.build(main.device())?)
    })
}

/// The pools of pinned memory that exist.
pub(crate) fn existing_pinned() -> impl Iterator<Item = &'static PinnedPool> {
    DEVICE_POOLS.iter().filter_map(|entry| entry.pinned.get())
}

/// The pools that exist, with the ordinals of their GPUs.
pub(crate) fn existing() -> impl Iterator<Item = (i32, &'static Pool)> {
    (0..).zip(&DEVICE_POOLS).filter_map(|(ordinal, entry)| Some((ordinal, entry.pool.get()?)))
}

/// The pool of a GPU, if it has one. Asking creates none, and so no context on a GPU that the program does not use.
pub(crate) fn existing_pool(ordinal: i32) -> Option<&'static Pool> {
    DEVICE_POOLS.get(index_of(ordinal))?.pool.get()
}

/// Counts a request that failed for want of memory.
pub(crate) fn count_out_of_memory(ordinal: i32) {
    if let Ok(device_pool) = device_pool(index_of(ordinal)) {
        device_pool.out_of_memory.fetch_add(1, Ordering::Relaxed);
    }
}

/// How many requests failed for want of memory.
pub(crate) fn out_of_memory_count(ordinal: i32) -> u64 {
    let device_pool = device_pool(index_of(ordinal));
    device_pool.map_or(0, |device_pool| device_pool.out_of_memory.load(Ordering::Relaxed))
}

/// What the last `configure` changed, for [`undo_configure`].
static LAST_CHANGE: Mutex<Option<SettingsChange>> = Mutex::new(None);

/// Overrides settings of the environment for new pools, and changes them in existing pools. An error changes
/// nothing.
pub(crate) fn configure(text: &str) -> Result<(), Failure> {
    let entries = entries_of(text)?;
    let _creating = lock(&CREATING);
    let pools: Vec<Pool> = existing().map(|(_, pool)| pool.clone()).collect();
    *lock(&LAST_CHANGE) = Some(SettingsChange::make(&pools, &entries)?);
    Ok(())
}

/// Reverts the last `configure`, once: for an installation whose later step failed.
pub(crate) fn undo_configure() {
    let _creating = lock(&CREATING);
    if let Some(change) = lock(&LAST_CHANGE).take() {
        change.undo(existing().map(|(_, pool)| pool));
    }
}

fn device_pool(index: usize) -> Result<&'static DevicePool, Failure> {
    // Every request that misses the cache comes here. In a forked child the entry points refuse before, without allocating.
    fork::check()?;
    let beyond = || format!("there is no GPU {index}: ordinals are 0 to {}", MAX_GPUS - 1);
    Ok(DEVICE_POOLS.get(index).ok_or_else(beyond)?)
}

fn pool_of(device_pool: &'static DevicePool, index: usize) -> Result<&'static Pool, Failure> {
    get_or_create(&device_pool.pool, || {
        let ordinal = u32::try_from(index).unwrap_or(u32::MAX);
        // The process's device and pool, which the other bindings and Rust programs share.
        let device: Arc<dyn Device> = CudaDevice::shared(ordinal)?;
        Ok(Pool::of(&device)?)
    })
}

fn get_or_create<P>(
    place: &'static OnceLock<P>,
    build: impl FnOnce() -> Result<P, Box<dyn core::error::Error>>,
) -> Result<&'static P, Failure> {
    if let Some(pool) = place.get() {
        return Ok(pool);
    }
    // Before anything is opened that a child must not use.
    fork::register();
    let _creating = lock(&CREATING);
    if let Some(pool) = place.get() {
        return Ok(pool);
    }
    let pool = build().map_err(|error| error.to_string())?;
    Ok(place.get_or_init(|| pool))
}

/// The handle of a stream, adopted by the device where it does not know the stream yet.
fn adopt_stream(
    device_pool: &DevicePool,
    pool: &Pool,
    stream: u64,
) -> Result<StreamHandle, Failure> {
    if stream == StreamHandle::DEFAULT.0 {
        return Ok(StreamHandle::DEFAULT);
    }
    let mut adopted = lock(&device_pool.adopted);
    if let Some(&handle) = adopted.get(&stream) {
        return Ok(handle);
    }
    let foreign = pool.device().foreign_streams().ok_or("the device takes no foreign streams")?;
    // SAFETY: the C caller promises that the stream belongs to that GPU and lives as long as the pool has
    // blocks of it.
    let handle = unsafe { foreign.adopt_stream(stream) }?;
    adopted.insert(stream, handle);
    Ok(handle)
}

/// Forgets a stream of a GPU that is about to be destroyed: memory freed on it serves other streams, and the
/// device drops it. Another stream may get the same value later.
pub(crate) fn forget_stream(ordinal: i32, stream: u64) -> Result<(), Failure> {
    let (pool, handle) = find(ordinal, stream)?;
    pool.forget_stream(handle)?;
    if handle == StreamHandle::DEFAULT || handle.is_per_thread() {
        // The driver never destroys these.
        return Ok(());
    }
    let device_pool = device_pool(index_of(ordinal))?;
    let mut adopted = lock(&device_pool.adopted);
    // Of two threads that forget it at once, one tells the device.
    let was_adopted = adopted.remove(&stream).is_some();
    STREAM_EPOCH.fetch_add(1, Ordering::Release);
    match pool.device().foreign_streams().filter(|_| was_adopted) {
        Some(foreign) => Ok(foreign.forget_stream(handle)?),
        None => Ok(()),
    }
}
