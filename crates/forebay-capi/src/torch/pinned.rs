//! Pinned host memory for PyTorch: a pool for each GPU, from which `pin_memory()` and data loaders allocate.

use core::ffi::{c_int, c_void};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay::{Address, Bytes, PinnedPool};
use forebay_sync::lock;

use super::relaxed::RelaxedCapture;
use crate::device_pools;
use crate::error::{code_of, guarded};
use crate::status::Failure;
use crate::text::pointer;

/// Memory that was used on a stream while it was captured, by its address: whether it is freed. A graph may read it
/// whenever it is replayed, and a capture takes no events to wait for, so it is kept until the cache is emptied.
static CAPTURED: Mutex<BTreeMap<u64, bool>> = Mutex::new(BTreeMap::new());

/// Whether [`CAPTURED`] has anything: a free looks there only then. Changed under its lock.
static ANY_CAPTURED: AtomicBool = AtomicBool::new(false);

/// What [`forebay_torch_pinned_record`] and [`forebay_torch_pinned_free`] return for memory of another allocator.
const NOT_OURS: c_int = 1;

fn pool_of(address: Address) -> Option<&'static PinnedPool> {
    device_pools::existing_pinned().find(|pool| pool.requested_raw(address).is_some())
}

/// Allocates `size` bytes of pinned host memory, best of GPU `device`. Null on failure, and where `size` is 0.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_pinned_alloc(size: usize, device: c_int) -> *mut c_void {
    let mut memory = core::ptr::null_mut();
    code_of(|| {
        let _relaxed = RelaxedCapture::begin();
        let pool = device_pools::pinned_pool(device)?;
        memory = pointer(pool.allocate_raw(Bytes::new(size as u64))?.address());
        Ok(())
    });
    memory
}

/// Frees memory of [`forebay_torch_pinned_alloc`], once the work that was recorded is done. 1 for other memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_pinned_free(memory: *mut c_void) -> c_int {
    guarded(-1, || {
        let address = Address::new(memory.addr() as u64);
        let Some(pool) = pool_of(address) else { return NOT_OURS };
        // Relaxed: the program orders the capture's use of this memory before its free.
        if ANY_CAPTURED.load(Ordering::Relaxed)
            && let Some(freed) = lock(&CAPTURED).get_mut(&address.get())
        {
            *freed = true;
            return 0;
        }
        let _relaxed = RelaxedCapture::begin();
        // SAFETY: work that uses the memory was recorded, as the caller promises, and the pool keeps it until then.
        code_of(|| Ok(unsafe { pool.free_raw(address) }?))
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
        let Some(pool) = pool_of(address) else { return NOT_OURS };
        if capturing != 0 {
            let mut captured = lock(&CAPTURED);
            captured.entry(address.get()).or_insert(false);
            ANY_CAPTURED.store(true, Ordering::Relaxed);
            return 0;
        }
        let _relaxed = RelaxedCapture::begin();
        code_of(|| {
            let (main, stream) = device_pools::pool_and_stream(device, stream.addr() as u64)?;
            Ok(pool.record_raw(address, main, stream)?)
        })
    })
}

/// Frees what captures had used, once the work of all GPUs is done. Leaves it where a capture is under way.
fn free_captured() -> Result<(), Failure> {
    let freed: Vec<u64> =
        lock(&CAPTURED).iter().filter(|(_, freed)| **freed).map(|(&address, _)| address).collect();
    if freed.is_empty() {
        return Ok(());
    }
    for (_, main) in device_pools::existing() {
        main.device().synchronize_device()?;
    }
    for address in freed {
        // Of two threads one finds it.
        if forget_captured(address)
            && let Some(pool) = pool_of(Address::new(address))
        {
            // SAFETY: PyTorch has freed it, and all work is done.
            unsafe { pool.free_raw(Address::new(address)) }?;
        }
    }
    Ok(())
}

/// Takes memory from the list of captured memory: whether it was there.
fn forget_captured(address: u64) -> bool {
    let mut captured = lock(&CAPTURED);
    let found = captured.remove(&address).is_some();
    ANY_CAPTURED.store(!captured.is_empty(), Ordering::Relaxed);
    found
}

/// Unpins free memory of every pool, that of graphs included.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_pinned_trim() -> c_int {
    code_of(|| {
        let _relaxed = RelaxedCapture::begin();
        let mut result = free_captured();
        for pool in device_pools::existing_pinned() {
            if let Err(error) = pool.trim(Bytes::ZERO) {
                result = Err(error.into());
            }
        }
        result
    })
}
