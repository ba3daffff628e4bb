//! The driver's own pools, one for each device: attributes that are kept, and figures that tests set,
//! since nothing here allocates from them.

use core::ffi::{c_int, c_void};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{CUdevice, CUmemPool_attribute, CUmemoryPool, CUresult};

use crate::answer::{Answer, exports, put};
use crate::context::{handle, number, ordinal_of};

/// Handles begin here, so that they are no other's by chance.
const FIRST: u64 = 0xb001_0000;

/// A pool.
#[derive(Clone, Copy, Debug)]
struct Pool {
    flags: [c_int; 3],
    threshold: u64,
    reserved: u64,
    reserved_high: u64,
    used: u64,
    used_high: u64,
}

/// As CUDA's documentation has a fresh one: all reuse is allowed, and nothing is kept.
const FRESH: Pool =
    Pool { flags: [1; 3], threshold: 0, reserved: 0, reserved_high: 0, used: 0, used_high: 0 };

static POOLS: Mutex<BTreeMap<u32, Pool>> = Mutex::new(BTreeMap::new());

fn pools() -> MutexGuard<'static, BTreeMap<u32, Pool>> {
    POOLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Works on the pool of that handle.
fn with<T>(pool: CUmemoryPool, act: impl FnOnce(&mut Pool) -> Answer<T>) -> Answer<T> {
    let ordinal =
        number(pool).checked_sub(FIRST).and_then(|ordinal| CUdevice::try_from(ordinal).ok());
    let ordinal = ordinal_of(ordinal.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?)?;
    act(pools().entry(ordinal).or_insert(FRESH))
}

/// Sets what a device's pool holds and what of it is used.
#[unsafe(no_mangle)]
extern "C" fn forebay_fake_use_pool(ordinal: u32, reserved: u64, used: u64) {
    let mut pools = pools();
    let pool = pools.entry(ordinal).or_insert(FRESH);
    (pool.reserved, pool.used) = (reserved, used);
    pool.reserved_high = pool.reserved_high.max(reserved);
    pool.used_high = pool.used_high.max(used);
}

exports! {
    "cuDeviceGetDefaultMemPool" 11020 fn cuDeviceGetDefaultMemPool(
        pool: *mut CUmemoryPool,
        device: CUdevice,
    ) {
        let ordinal = ordinal_of(device)?;
        // SAFETY: a place of the caller's.
        unsafe { put(pool, handle(FIRST + u64::from(ordinal))) }
    }

    "cuMemPoolGetAttribute" 11020 fn cuMemPoolGetAttribute(
        pool: CUmemoryPool,
        attribute: CUmemPool_attribute,
        value: *mut c_void,
    ) {
        use CUmemPool_attribute as A;
        with(pool, |pool| {
            let figure = match attribute {
                A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => pool.threshold,
                A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => pool.reserved,
                A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => pool.reserved_high,
                A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT => pool.used,
                A::CU_MEMPOOL_ATTR_USED_MEM_HIGH => pool.used_high,
                _ => {
                    let flag = flag(pool, attribute)?;
                    // SAFETY: a place for a flag, as the attribute asks for.
                    return unsafe { put(value.cast::<c_int>(), *flag) };
                }
            };
            // SAFETY: a place for a figure, as the attribute asks for.
            unsafe { put(value.cast::<u64>(), figure) }
        })
    }

    "cuMemPoolSetAttribute" 11020 fn cuMemPoolSetAttribute(
        pool: CUmemoryPool,
        attribute: CUmemPool_attribute,
        value: *mut c_void,
    ) {
        use CUmemPool_attribute as A;
        if value.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: a figure of the caller's, where the attribute is one.
        let figure = || unsafe { value.cast::<u64>().read() };
        with(pool, |pool| match attribute {
            A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => {
                pool.threshold = figure();
                Ok(())
            }
            // The only value that these take, and it means what is now.
            A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH if figure() == 0 => {
                pool.reserved_high = pool.reserved;
                Ok(())
            }
            A::CU_MEMPOOL_ATTR_USED_MEM_HIGH if figure() == 0 => {
                pool.used_high = pool.used;
                Ok(())
            }
            _ => {
                // SAFETY: a flag of the caller's, as the attribute asks for.
                *flag(pool, attribute)? = unsafe { value.cast::<c_int>().read() };
                Ok(())
            }
        })
    }

    "cuMemPoolTrimTo" 11020 fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) {
        with(pool, |pool| {
            pool.reserved = pool.reserved.min((keep as u64).max(pool.used));
            Ok(())
        })
    }
}

/// The flag of an attribute that is one.
fn flag(pool: &mut Pool, attribute: CUmemPool_attribute) -> Answer<&mut c_int> {
    use CUmemPool_attribute as A;
    let [follow, opportunistic, internal] = &mut pool.flags;
    match attribute {
        A::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => Ok(follow),
        A::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => Ok(opportunistic),
        A::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => Ok(internal),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}
