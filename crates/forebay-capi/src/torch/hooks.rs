//! The functions that PyTorch calls besides allocating and freeing, once they are installed.

use core::ffi::{c_int, c_void};

use forebay::{Address, Bytes, Pool};

use super::captures;
use super::exceptions::{ExceptionKind, throw_last_error};
use super::guarded;
use crate::device_pools;
use crate::error::set_last_error;

/// How many GPUs PyTorch has found, when it begins. Pools are made when they are needed.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_init(_devices: c_int) {}

/// Releases the free memory of every GPU's pool: `torch.cuda.empty_cache`. Waits for work that may still use it.
/// Releases nothing while a graph is captured.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn forebay_torch_reset() {
    let reset = guarded(false, || {
        captures::drop_unused();
        let mut good = true;
        for (_, pool) in device_pools::existing() {
            if let Err(error) = pool.trim(Bytes::ZERO) {
                set_last_error(&error);
                good = false;
            }
        }
        good
    });
    if !reset {
        throw_last_error(ExceptionKind::Error);
    }
}

/// The most that the pool of GPU `device` takes, as a part of its memory. A fraction that is not from
/// 0.01 to 1 is thrown as `RuntimeError` and changes nothing.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn forebay_torch_memory_fraction(fraction: f64, device: c_int) {
    let changed = guarded(false, || {
        let changed = device_pools::pool(device).and_then(|pool| {
            // As many decimals as the setting has.
            let text = format!("{fraction:.6}");
            pool.change("max_fraction", &text).map_err(|error| error.to_string())
        });
        changed.map_err(|reason| set_last_error(&reason)).is_ok()
    });
    if !changed {
        throw_last_error(ExceptionKind::Error);
    }
}

/// Where the block begins that `pointer` is in, with its size. What is in no live block is thrown as
/// `RuntimeError`; without a way to throw, null and 0.
///
/// # Safety
///
/// * `size` is null, or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn forebay_torch_base_allocation(
    pointer: *mut c_void,
    size: *mut usize,
) -> *mut c_void {
    let found = guarded(None, || {
        let found = block_around(pointer.addr() as u64);
        if found.is_none() {
            set_last_error(&format_args!("{pointer:p} is not in a live block of forebay"));
        }
        found
    });
    let Some((address, length)) = found else {
        throw_last_error(ExceptionKind::Error);
        // SAFETY: as the caller promised.
        if let Some(size) = unsafe { size.as_mut() } {
            *size = 0;
        }
        return core::ptr::null_mut();
    };
    // SAFETY: as the caller promised.
    if let Some(size) = unsafe { size.as_mut() } {
        *size = usize::try_from(length).unwrap_or(usize::MAX);
    }
    pointer.with_addr(usize::try_from(address).unwrap_or_default())
}

/// All pools: those of the GPUs, and the private ones.
fn all_pools() -> Vec<(c_int, Pool)> {
    let made: Vec<(c_int, Pool)> =
        device_pools::existing().map(|(device, pool)| (device, pool.clone())).collect();
    let private = made.iter().flat_map(|&(device, _)| {
        captures::pools_of(device).into_iter().map(move |(_, pool)| (device, pool))
    });
    let private: Vec<(c_int, Pool)> = private.collect();
    made.into_iter().chain(private).collect()
}

/// The block that contains an address. Almost always the block begins there.
fn block_around(address: u64) -> Option<(u64, u64)> {
    let pools = all_pools();
    let begins = pools.iter().find_map(|(_, pool)| pool.block_at(Address::new(address)));
    if let Some(block) = begins {
        return Some((block.address().get(), block.size().get()));
    }
    pools.iter().find_map(|(_, pool)| {
        let blocks = pool.memory_map().blocks;
        let before = blocks.partition_point(|block| block.address <= address);
        let block = blocks.get(before.checked_sub(1)?)?;
        let within = address - block.address < block.size_bytes;
        within.then_some((block.address, block.size_bytes))
    })
}

/// Notes that the block at `pointer` is used on `stream` beside the one it will be freed on:
/// `tensor.record_stream`. Null is ignored; what is no live block is thrown as `RuntimeError`.
///
/// # Safety
///
/// * `stream` is a stream of the block's GPU as CUDA names it, and is not destroyed while the block is in
///   use.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn forebay_torch_record_stream(
    pointer: *mut c_void,
    stream: *mut c_void,
) {
    let recorded = guarded(false, || {
        let address = Address::new(pointer.addr() as u64);
        if address.is_null() {
            return true;
        }
        let pools = all_pools();
        let mut having = pools.into_iter().filter(|(_, pool)| pool.block_at(address).is_some());
        let Some((device, pool)) = having.next() else {
            set_last_error(&format_args!("{pointer:p} is not a live block of forebay"));
            return false;
        };
        let known = device_pools::pool_and_stream(device, stream.addr() as u64);
        let used = known.and_then(|(_, stream)| {
            pool.record_use(address, stream).map_err(|error| error.to_string())
        });
        used.map_err(|reason| set_last_error(&reason)).is_ok()
    });
    if !recorded {
        throw_last_error(ExceptionKind::Error);
    }
}
