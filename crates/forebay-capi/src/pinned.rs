//! Pinned host memory, which the device copies to and from directly. It comes from one pool for each open device.

use core::ffi::c_void;

use forebay::host::mapping::system_page;
use forebay::{Address, Bytes, Error, PinnedPool};

use crate::block::{address, pointer};
use crate::device::{DeviceEntry, forebay_device};
use crate::error::status_of;
use crate::status::{Failure, forebay_status};
use crate::table;
use crate::text::Out;

/// The device's pool, made by the first call. Not locked while the pool is used.
fn pinned_pool(entry: &DeviceEntry) -> Result<PinnedPool, Failure> {
    let mut pool = entry.pinned_pool();
    match &*pool {
        Some(pool) => Ok(pool.clone()),
        None => Ok(pool.insert(PinnedPool::new(entry.device())?).clone()),
    }
}

/// The refusal of an address at which no live memory of the pool begins.
fn not_pinned(memory: Address) -> Failure {
    let allowed = "memory of forebay_pinned_alloc of this device that was not freed";
    Failure::argument("memory", memory, allowed)
}

/// Allocates `size` bytes of pinned host memory, aligned to a page of the system. `memory` gets the address,
/// which the host reads and writes and copies from and to the device name; null on failure, and where `size`
/// is 0. The contents are undefined. Refused with `FOREBAY_STATUS_UNSUPPORTED` where the device has no
/// `FOREBAY_CAN_PINNED`. The memory comes from a pool of the device, which pins at most half of the machine's
/// memory and keeps it for later calls: only the first calls are as slow as the driver's.
///
/// # Safety
///
/// * `memory` is null, or a pointer can be written there.
#[must_use = "there is no memory where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pinned_alloc(
    device: forebay_device,
    size: u64,
    memory: *mut *mut c_void,
) -> forebay_status {
    status_of(|| {
        // SAFETY: as the caller promises.
        let to = unsafe { Out::new(memory, "memory") }?;
        to.set(core::ptr::null_mut());
        let entry = table::find::<DeviceEntry>(device.id)?;
        // Segments begin at whole pages of the system, and where all blocks are whole pages all begin at one.
        let pages = Bytes::new(size).checked_align_up(system_page()).ok_or_else(|| {
            Failure::argument("size", size, "a size that can be rounded up to whole pages")
        })?;
        let block = pinned_pool(&entry)?.allocate_raw(pages)?;
        debug_assert!(block.address().is_aligned_to(system_page()), "{block:?}");
        to.set(pointer(block.address()));
        Ok(())
    })
}

/// Frees memory of `forebay_pinned_alloc` of the same device, for later calls of that. Null is ignored; any other
/// address is refused.
///
/// # Safety
///
/// * All copies from and to the memory are done: synchronise their streams first. Nobody uses it from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pinned_free(
    device: forebay_device,
    memory: *mut c_void,
) -> forebay_status {
    status_of(|| {
        let entry = table::find::<DeviceEntry>(device.id)?;
        let memory = address(memory);
        if memory.is_null() {
            return Ok(());
        }
        let pool = entry.pinned_pool().clone().ok_or_else(|| not_pinned(memory))?;
        // SAFETY: the caller promises that no work uses the memory; the pool refuses what it did not give.
        match unsafe { pool.free_raw(memory) } {
            Err(Error::NotABlock { .. } | Error::DoubleFree { .. } | Error::WrongPool { .. }) => {
                Err(not_pinned(memory))
            }
            freed => Ok(freed?),
        }
    })
}

#[cfg(test)]
mod tests {
    use forebay::hal::{Call, Capabilities};
    use forebay::sim::SimMachine;

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
        let entry = table::find::<DeviceEntry>(device.id).unwrap();
        let driver = pinned_pool(&entry).unwrap().statistics().driver;
        let pins = driver.of(Call::Allocate) + driver.of(Call::CreatePage);
        assert!(pins <= 6, "{pins} calls of the driver");
        assert_eq!(crate::device::forebay_device_close(device), forebay_status::Ok);
    }
}
