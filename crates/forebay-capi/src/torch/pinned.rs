//! Pinned host memory for PyTorch: a pool for each GPU, from which `pin_memory()` and data loaders allocate.

use core::ffi::{c_int, c_void};
use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock};

use forebay::cuda::CudaDriver;
use forebay::pinned::PinnedOptions;
use forebay::{Address, Bytes, PinnedPool};
use forebay_sync::lock;

use super::adapter::{status, write};
use super::guarded;
use super::relaxed::RelaxedCapture;
use crate::block::pointer;
use crate::device_pools;
use crate::error::set_last_error;

/// The pools by the ordinals of their GPUs.
static POOLS: [OnceLock<PinnedPool>; device_pools::MAX_GPUS] =
    [const { OnceLock::new() }; device_pools::MAX_GPUS];

/// So that of two threads one creates a pool.
static CREATING: Mutex<()> = Mutex::new(());

/// Memory that was used on a stream while it was captured, by its address: whether it is freed. A graph may read it
/// whenever it is replayed, and a capture takes no events to wait for, so it is kept until the cache is emptied.
static CAPTURED: Mutex<BTreeMap<u64, bool>> = Mutex::new(BTreeMap::new());

/// What [`forebay_torch_pinned_record`] and [`forebay_torch_pinned_free`] return for memory of another allocator.
const NOT_OURS: c_int = 1;

fn existing() -> impl Iterator<Item = &'static PinnedPool> {
    POOLS.iter().filter_map(OnceLock::get)
}

fn pool_of(address: Address) -> Option<(&'static PinnedPool, Bytes)> {
    existing().find_map(|pool| Some((pool, pool.requested_raw(address)?)))
}

/// The pool of a GPU. Memory that is pinned for one GPU serves the others, so a GPU that the process does not use yet is
/// left alone where another is used.
fn pool(device: c_int) -> Result<&'static PinnedPool, String> {
    let used = match device_pools::existing_pool(device) {
        Some(_) => None,
        None => device_pools::existing().next(),
    };
    let device = used.map_or(device, |(used, _)| used);
    let place = usize::try_from(device).ok().and_then(|index| POOLS.get(index));
    let place = place.ok_or_else(|| format!("there is no GPU {device}"))?;
    if let Some(pool) = place.get() {
        return Ok(pool);
    }
    let main = device_pools::pool(device)?;
    let _creating = lock(&CREATING);
    if let Some(pool) = place.get() {
        return Ok(pool);
    }
    let driver = CudaDriver::load().map_err(|error| error.to_string())?;
    let options = match driver.device_count().map_err(|error| error.to_string())? {
        1 => PinnedOptions::new(),
        _ => PinnedOptions::new().portable(),
    };
    let pool = options.build(main.device()).map_err(|error| error.to_string())?;
    Ok(place.get_or_init(|| pool))
}

/// Allocates `size` bytes of pinned host memory, best of GPU `device`. Null on failure, and where `size` is 0.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_pinned_alloc(size: usize, device: c_int) -> *mut c_void {
    guarded(core::ptr::null_mut(), || {
        let _relaxed = RelaxedCapture::begin();
        let found = pool(device).and_then(|pool| {
            pool.allocate_raw(Bytes::new(size as u64)).map_err(|error| error.to_string())
        });
        match found {
            Ok(block) => pointer(block.address()),
            Err(reason) => {
                set_last_error(&reason);
                core::ptr::null_mut()
            }
        }
    })
}

/// Frees memory of [`forebay_torch_pinned_alloc`], once the work that was recorded is done. `size` gets what was requested.
/// 1 for other memory.
///
/// # Safety
///
/// * Nobody uses the memory but recorded work. `size` is null, or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_pinned_free(memory: *mut c_void, size: *mut u64) -> c_int {
    guarded(-1, || {
        let address = Address::new(memory.addr() as u64);
        let Some((pool, found)) = pool_of(address) else { return NOT_OURS };
        // SAFETY: as the caller promises.
        unsafe { write(size, found.get()) };
        if let Some(freed) = lock(&CAPTURED).get_mut(&address.get()) {
            *freed = true;
            return 0;
        }
        let _relaxed = RelaxedCapture::begin();
        // SAFETY: work that uses the memory was recorded, as the caller promises, and the pool keeps it until then.
        let freed = unsafe { pool.free_raw(address) };
        status(freed.map_err(|error| error.to_string()))
    })
}

/// Records that work enqueued so far on `stream` of GPU `device` uses the memory, which is reused after it.
/// `capturing`: whether the stream is being captured; then the memory is kept until [`forebay_torch_pinned_trim`].
/// 1 for other memory.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_pinned_record(
    memory: *mut c_void,
    device: c_int,
    stream: *mut c_void,
    capturing: c_int,
) -> c_int {
    guarded(-1, || {
        let address = Address::new(memory.addr() as u64);
        let Some((pool, _)) = pool_of(address) else { return NOT_OURS };
        if capturing != 0 {
            lock(&CAPTURED).entry(address.get()).or_insert(false);
            return 0;
        }
        let _relaxed = RelaxedCapture::begin();
        let recorded = device_pools::pool_and_stream(device, stream.addr() as u64);
        let recorded = recorded.and_then(|(main, stream)| {
            pool.record_raw(address, main, stream).map_err(|error| error.to_string())
        });
        status(recorded)
    })
}

/// Frees what captures had used, once the work of all GPUs is done. Leaves it where a capture is under way.
fn free_captured() -> Result<(), String> {
    let freed: Vec<u64> =
        lock(&CAPTURED).iter().filter(|(_, freed)| **freed).map(|(&address, _)| address).collect();
    if freed.is_empty() {
        return Ok(());
    }
    for (_, main) in device_pools::existing() {
        main.device().synchronize_device().map_err(|error| error.to_string())?;
    }
    for address in freed {
        // Of two threads one finds it.
        if lock(&CAPTURED).remove(&address).is_some()
            && let Some((pool, _)) = pool_of(Address::new(address))
        {
            // SAFETY: PyTorch has freed it, and all work is done.
            unsafe { pool.free_raw(Address::new(address)) }.map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// Unpins free memory of every pool, that of graphs included.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_pinned_trim() -> c_int {
    guarded(-1, || {
        let _relaxed = RelaxedCapture::begin();
        let mut result = free_captured();
        for pool in existing() {
            if let Err(error) = pool.trim(Bytes::ZERO) {
                result = Err(error.to_string());
            }
        }
        status(result)
    })
}

/// What all pools have pinned.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PinnedFigures {
    /// Bytes that are pinned now.
    pub held: u64,
    /// The most since the last reset.
    pub peak: u64,
    /// Requests for which memory was pinned, in all.
    pub misses: u64,
}

/// The figures of all pools together. `reset`: whether the peak begins anew.
///
/// # Safety
///
/// * `figures` is null, or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_pinned_figures(
    figures: *mut PinnedFigures,
    reset: c_int,
) -> c_int {
    guarded(-1, || {
        let mut all = PinnedFigures::default();
        for pool in existing() {
            let one = pool.statistics();
            all.held += one.held.get();
            all.peak += pool.peak_held().get();
            all.misses += one.misses;
            if reset != 0 {
                pool.reset_peak_held();
            }
        }
        // SAFETY: as the caller promises.
        unsafe { write(figures, all) };
        0
    })
}
