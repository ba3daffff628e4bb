//! What the adapter calls: the C++ class that is PyTorch's allocator (`python/forebay/torch_adapter`). Each function
//! that can fail returns 0 or -1, with the reason in `forebay_last_error`; those that return a block return null.

use core::ffi::{c_int, c_void};

use forebay::bindings::effective_settings;
use forebay::{Address, Bytes};

use super::allocate::{self, TORCH};
use super::origins::{self, Origin};
use super::private::{self, PoolNumber};
use super::sharing;
use crate::error::{catch_panic, code_of, guarded};
use crate::text::write_optional;
use crate::{device_pools, slow_path};

/// Allocates at least `size` bytes of GPU `device`, to be used in the order of `stream`. Null on failure, and where
/// `size` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_allocate(
    size: usize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    // No machine has half of all addresses.
    let size = isize::try_from(size).unwrap_or(isize::MAX);
    let block = allocate::allocate::<1>(size, device, stream, TORCH.tag());
    origins::note(block.addr() as u64, Origin { device, private: 0, stream: stream.addr() as u64 });
    block
}

/// As [`forebay_torch_allocate`], from a private pool. `capturing`: whether `stream` is being captured. `routed`: whether
/// the request goes there by a [`forebay_torch_begin`], and not because its own pool refused it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_allocate_in(
    size: usize,
    device: c_int,
    stream: *mut c_void,
    number: PoolNumber,
    capturing: c_int,
    routed: c_int,
) -> *mut c_void {
    guarded(core::ptr::null_mut(), || {
        let capturing = capturing != 0;
        let held = private::pool_for(device, number, capturing, routed != 0);
        let (block, private) =
            allocate::allocate_private(size as u64, device, stream, held, capturing);
        let stream = stream.addr() as u64;
        origins::note(block.addr() as u64, Origin { device, private, stream });
        block
    })
}

/// Whether this thread's last request that failed did so for want of memory: 1, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_is_out_of_memory() -> c_int {
    c_int::from(allocate::is_out_of_memory())
}

/// Frees a block in the order of the stream it was allocated for. Null is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_deallocate(block: *mut c_void) -> c_int {
    catch_panic(-1, move || {
        if slow_path::forked() && !allocate::check_free(block) {
            return -1;
        }
        let origin = origins::take(block.addr() as u64);
        sharing::forget(block.addr() as u64);
        let freed = if origin.private == 0 {
            allocate::free(block, origin.device, stream_pointer(origin.stream))
        } else {
            free_private(block, origin)
        };
        if freed { 0 } else { -1 }
    })
}

/// A stream as CUDA names it.
fn stream_pointer(stream: u64) -> *mut c_void {
    core::ptr::without_provenance_mut(usize::try_from(stream).unwrap_or_default())
}

#[cold]
#[inline(never)]
fn free_private(block: *mut c_void, origin: Origin) -> bool {
    let freed = code_of(|| {
        let (_, stream) = device_pools::pool_and_stream(origin.device, origin.stream)?;
        let (_, pool) = private::of_key(origin.private)
            .ok_or_else(|| format!("{block:p} is not a live block of forebay"))?;
        Ok(pool.free(Address::new(block.addr() as u64), stream)?)
    });
    freed == 0
}

/// Records that a block is used on `stream` beside the one it was allocated for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_record_stream(
    block: *mut c_void,
    stream: *mut c_void,
) -> c_int {
    code_of(|| {
        let (address, stream) = (block.addr() as u64, stream.addr() as u64);
        let origin = origins::of(address);
        if address == 0 || origin.stream == stream {
            return Ok(());
        }
        let (main, stream) = device_pools::pool_and_stream(origin.device, stream)?;
        let private = private::of_key(origin.private);
        let pool = private.as_ref().map_or(main, |(_, pool)| pool);
        Ok(pool.record_use(Address::new(address), stream)?)
    })
}

/// Releases the free memory of every GPU's pool, or of one private pool. Waits for work that may still use it.
/// Releases nothing that a graph may use.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_empty_cache(number: PoolNumber) -> c_int {
    code_of(|| {
        let mut result = private::release_unused().map(drop);
        for (device, main) in device_pools::existing() {
            let private = private::pools_of(device).into_iter();
            let private = private.filter(|(_, of, _)| *of == number).map(|(.., pool)| pool);
            let own = (number == PoolNumber::default()).then(|| main.clone());
            for pool in private.chain(own) {
                if let Err(error) = pool.trim(Bytes::ZERO) {
                    result = Err(error.into());
                }
            }
        }
        result
    })
}

/// Gives back what private pools without users hold and do not need, for a request that was refused: 1 if that was
/// anything, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_drop_unused() -> c_int {
    // The request has failed already, and says why.
    guarded(0, || c_int::from(private::release_unused().unwrap_or(false)))
}

/// The most that the pools of GPU `device` take, as a part of its memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_fraction(device: c_int, fraction: *mut f64) -> c_int {
    code_of(|| {
        let settings = match device_pools::existing_pool(device) {
            Some(pool) => pool.settings(),
            None => effective_settings()?,
        };
        let millionths = settings.max_fraction().as_millionths();
        // SAFETY: as the caller promised.
        unsafe { write_optional(fraction, f64::from(millionths) / 1e6) };
        Ok(())
    })
}

/// Changes what [`forebay_torch_fraction`] tells.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_set_fraction(device: c_int, fraction: f64) -> c_int {
    // As many decimals as the setting has.
    code_of(|| Ok(device_pools::pool(device)?.set("max_fraction", &format!("{fraction:.6}"))?))
}

/// Counts `bytes` of GPU `device` that PyTorch's own allocator holds against the limit of the GPU's pools.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_count_outside(device: c_int, bytes: u64) -> c_int {
    code_of(|| {
        device_pools::pool(device)?.count_outside(Bytes::new(bytes));
        Ok(())
    })
}

/// The memory of a GPU, for [`forebay_torch_memory`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceMemory {
    /// What the driver says is free.
    pub free: u64,
    /// What the driver says there is.
    pub total: u64,
    /// The most that the pools take.
    pub limit: u64,
    /// The largest hole of the GPU's pool.
    pub largest: u64,
}

/// Tells the memory of GPU `device`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_memory(device: c_int, memory: *mut DeviceMemory) -> c_int {
    code_of(|| {
        let pool = device_pools::pool(device)?;
        let info = pool.device().memory_info()?;
        let (free, total, limit) = (info.free.get(), info.total.get(), pool.limit().get());
        let largest = pool.statistics().largest_free.get();
        // SAFETY: as the caller promised.
        unsafe { write_optional(memory, DeviceMemory { free, total, limit, largest }) };
        Ok(())
    })
}

/// Adds a user to a private pool of GPU `device`, and lets requests go there: perhaps those of a graph.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_begin(device: c_int, number: PoolNumber) -> c_int {
    code_of(|| private::begin(device, number))
}

/// Ends what [`forebay_torch_begin`] began. The user stays until [`forebay_torch_release`].
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_end(device: c_int, number: PoolNumber) -> c_int {
    code_of(|| private::end(device, number))
}

/// Adds a user to a private pool of GPU `device`, which is created where it is not there.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_retain(device: c_int, number: PoolNumber) -> c_int {
    code_of(|| private::retain(device, number))
}

/// Removes a user from a private pool of GPU `device`.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_release(device: c_int, number: PoolNumber) -> c_int {
    code_of(|| private::release(device, number))
}

/// How many users a private pool of GPU `device` has: 0 where it is not there.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_use_count(device: c_int, number: PoolNumber) -> c_int {
    guarded(0, || c_int::try_from(private::users(device, number)).unwrap_or(c_int::MAX))
}

/// A number that changes when the GPU's pools take memory from the device or give it back.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_growth(device: c_int) -> u64 {
    guarded(0, || {
        let Some(main) = device_pools::existing_pool(device) else { return 0 };
        let private = private::pools_of(device).into_iter();
        private.fold(main.page_changes(), |sum, (key, _, pool)| {
            sum.wrapping_mul(31).wrapping_add(pool.page_changes()).wrapping_add(u64::from(key))
        })
    })
}
