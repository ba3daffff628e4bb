//! Pinned host memory, which the device copies to and from directly.

use core::ffi::c_void;

use forebay::hal::{PinnedFlags, PinnedMemory};
use forebay::{Bytes, Device};

use crate::block::{address, pointer};
use crate::device::{DeviceEntry, forebay_device};
use crate::error::status_of;
use crate::status::{Failure, forebay_status};
use crate::table;
use crate::text::Out;

fn pinned_memory(device: &dyn Device) -> Result<&dyn PinnedMemory, Failure> {
    device.pinned_memory().ok_or_else(|| {
        let device = device.descriptor();
        Failure::new(
            forebay_status::Unsupported,
            format!("{device} cannot pin host memory: copy from and to plain host memory"),
        )
    })
}

/// Allocates `size` bytes of pinned host memory, aligned to a page of the system. `memory` gets the address,
/// which the host reads and writes and copies from and to the device name; null on failure, and where `size`
/// is 0. The contents are undefined. Refused with `FOREBAY_STATUS_UNSUPPORTED` where the device has no
/// `FOREBAY_CAN_PINNED`. This is a call of the driver, so allocate once and reuse.
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
        let pinned = pinned_memory(&**entry.device())?;
        to.set(pointer(pinned.allocate_pinned(Bytes::new(size), PinnedFlags::empty())?));
        Ok(())
    })
}

/// Frees memory of `forebay_pinned_alloc` of the same device. Null is ignored; any other address is refused.
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
        let pinned = pinned_memory(&**entry.device())?;
        // SAFETY: the caller promises that no work uses the memory; the device refuses what it did not give.
        Ok(unsafe { pinned.free_pinned(address(memory)) }?)
    })
}

#[cfg(test)]
mod tests {
    use forebay::hal::Capabilities;
    use forebay::sim::SimMachine;

    use super::*;

    #[test]
    fn a_device_without_pinned_memory_says_so() {
        let machine = SimMachine::builder().without(Capabilities::PINNED).build().unwrap();
        let refused = pinned_memory(&*machine.device(0).unwrap()).err().unwrap();
        assert_eq!(refused.status, forebay_status::Unsupported);
        assert!(refused.to_string().contains("cannot pin host memory"), "{refused}");
    }
}
