//! Pinned host memory, which the device copies to and from directly. It comes from one pool for each open device.

use core::ffi::c_void;

use forebay::Address;

use crate::block::hit_or;
use crate::device::{DeviceEntry, forebay_device};
use crate::error::{catch_panic, fail, status_of};
use crate::page_pool::{PagePool, not_pinned};
use crate::status::{Failure, forebay_status};
use crate::table;
use crate::text::{Out, address, pointer};

/// Calls `work` with the pool of a device, without a lock where there is one; else calls `otherwise`.
fn with_pool(
    device: forebay_device,
    work: impl Fn(&PagePool) -> Result<(), Failure>,
    otherwise: impl FnOnce(&DeviceEntry) -> Result<(), Failure>,
) -> forebay_status {
    catch_panic(forebay_status::Defect, || {
        let done = table::with(device, |entry| entry.pinned().map(&work));
        match done.flatten() {
            Some(Ok(())) => forebay_status::Ok,
            Some(Err(failure)) => fail(&failure),
            // Finds out what is wrong, if anything is.
            None => status_of(|| {
                let entry = table::find(device)?;
                entry.pinned().map_or_else(|| otherwise(&entry), &work)
            }),
        }
    })
}

#[inline(never)]
fn allocate_missed(device: forebay_device, size: u64, memory: *mut *mut c_void) -> forebay_status {
    // The hit before this one may have been the last that kept a closed device.
    table::reclaim_if_any();
    // SAFETY: as the caller of `forebay_pinned_alloc` promises.
    let to = match unsafe { Out::new(memory, "memory") }.check() {
        Ok(to) => to,
        Err(failure) => return fail(&failure),
    };
    to.set(core::ptr::null_mut());
    let allocate = |pool: &PagePool| {
        to.set(pointer(pool.allocate(size)?));
        Ok(())
    };
    with_pool(device, allocate, |entry| allocate(entry.pinned_or_new()?))
}

#[inline(never)]
fn free_missed(device: forebay_device, memory: Address) -> forebay_status {
    // As above.
    table::reclaim_if_any();
    if memory.is_null() {
        return status_of(|| table::find(device).map(drop));
    }
    // SAFETY: as the caller of `forebay_pinned_free` promises.
    let free = |pool: &PagePool| unsafe { pool.free(memory) };
    with_pool(device, free, |_| Err(not_pinned(memory)))
}

/// Allocates `size` bytes of pinned host memory, aligned to a page of the system. `memory` gets the address,
/// which the host reads and writes and copies from and to the device name; null on failure, and where `size`
/// is 0. The contents are undefined. Refused with `FOREBAY_STATUS_UNSUPPORTED` where the device has no
/// `FOREBAY_CAN_PINNED`. The memory comes from a pool of the device, which pins at most half of the machine's
/// memory and keeps it for later calls: only the first calls are as slow as the driver's.
#[must_use = "there is no memory where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pinned_alloc(
    device: forebay_device,
    size: u64,
    memory: *mut *mut c_void,
) -> forebay_status {
    hit_or(
        device,
        |entry| {
            let hit = match entry.pinned() {
                Some(pool) if !memory.is_null() => pool.allocate_hit(size),
                _ => None,
            };
            let Some(hit) = hit else { return false };
            // SAFETY: it is not null, so the caller promises that a pointer can be written there. C may pass memory
            // that is not aligned for it.
            unsafe { memory.write_unaligned(pointer(hit)) };
            true
        },
        || allocate_missed(device, size, memory),
    )
}

/// Frees memory of `forebay_pinned_alloc` of the same device, for later calls of that. Null is ignored; any other
/// address is refused.
///
/// # Safety
///
/// * All copies from and to the memory are done (synchronise their streams first), and nothing uses it afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pinned_free(
    device: forebay_device,
    memory: *mut c_void,
) -> forebay_status {
    let memory = address(memory);
    hit_or(
        device,
        |entry| {
            // SAFETY: the caller promises that no work uses the memory; the pool refuses what it did not give.
            entry.pinned().is_some_and(|pool| unsafe { pool.pool.free_raw_hit(memory) })
        },
        || free_missed(device, memory),
    )
}

#[cfg(test)]
mod tests {
    use forebay::hal::{Call, Capabilities};
    use forebay::host::mapping::system_page;
    use forebay::sim::SimMachine;
    use forebay::{Bytes, PinnedPool};

    use super::*;

    fn open(name: &core::ffi::CStr) -> forebay_device {
        let mut device = forebay_device { id: 0 };
        // SAFETY: a text that ends with a zero, and a place of our own.
        let opened = unsafe { crate::device::forebay_device_open(name.as_ptr(), &raw mut device) };
        assert_eq!(opened, forebay_status::Ok);
        device
    }

    #[test]
    fn a_device_without_pinned_memory_says_so() {
        let machine = SimMachine::builder().without(Capabilities::PINNED).build().unwrap();
        let refused =
            PinnedPool::new(&machine.device(0).unwrap()).map_err(Failure::from).err().unwrap();
        assert_eq!(refused.status, forebay_status::Unsupported);
        assert!(refused.to_string().contains("cannot pin host memory"), "{refused}");
    }

    #[test]
    fn memory_is_pinned_once_and_used_again() {
        let device = open(c"sim:77");
        for round in 0..100_u64 {
            let mut memory = [core::ptr::null_mut(); 3];
            for (place, size) in memory.iter_mut().zip([1, 5000, 3 << 20]) {
                // SAFETY: a place of our own.
                let status = unsafe { forebay_pinned_alloc(device, size + round, place) };
                assert_eq!(status, forebay_status::Ok);
                assert!(address(*place).is_aligned_to(system_page()));
            }
            for memory in memory {
                // SAFETY: allocated above, and used by nobody.
                assert_eq!(unsafe { forebay_pinned_free(device, memory) }, forebay_status::Ok);
            }
        }
        let entry = table::find(device).unwrap();
        let driver = entry.pinned().unwrap().pool.statistics().driver;
        let pins = driver.of(Call::Allocate) + driver.of(Call::CreatePage);
        assert!(pins <= 6, "{pins} calls of the driver");
        assert_eq!(crate::device::forebay_device_close(device), forebay_status::Ok);
    }

    /// The first comes from the driver, the second from the cache.
    #[test]
    fn pinned_memory_is_freed_once_and_by_its_own_call_alone() {
        let (device, other) = (open(c"sim:78"), open(c"sim:79"));
        let stream = crate::stream::forebay_stream { id: 0 };
        for size in [4096, 4096, 4096, 3 << 20, 3 << 20] {
            let mut memory = core::ptr::null_mut();
            // SAFETY: a place of our own.
            let allocated = unsafe { forebay_pinned_alloc(device, size, &raw mut memory) };
            assert_eq!(allocated, forebay_status::Ok);
            // SAFETY: nobody uses the memory.
            let wrong = unsafe {
                [
                    crate::block::forebay_free_anywhere(memory, stream),
                    forebay_pinned_free(other, memory),
                    forebay_pinned_free(device, memory.byte_add(512)),
                ]
            };
            assert!(wrong.iter().all(|&status| status != forebay_status::Ok), "{wrong:?}");
            // SAFETY: likewise.
            let freed = unsafe {
                [forebay_pinned_free(device, memory), forebay_pinned_free(device, memory)]
            };
            assert_eq!(freed, [forebay_status::Ok, forebay_status::InvalidArgument]);
        }
        let entry = table::find(device).unwrap();
        let figures = entry.pinned().unwrap().pool.statistics();
        assert_eq!((figures.allocations, figures.frees, figures.live), (5, 5, Bytes::ZERO));
        for device in [device, other] {
            assert_eq!(crate::device::forebay_device_close(device), forebay_status::Ok);
        }
    }
}
