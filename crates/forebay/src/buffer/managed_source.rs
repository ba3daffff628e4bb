//! Managed memory as the source of a pool.

use std::sync::Arc;

use forebay_core::{Address, Bytes, PageSize};
use forebay_hal::{
    Call, Capabilities, Descriptor, Device, Error, ManagedMemory, MemoryInfo, MemorySource, Result,
    VirtualMemory,
};

/// The managed memory of a device. The host accesses it at the device's addresses.
#[derive(Debug)]
pub(super) struct ManagedSource {
    device: Arc<dyn Device>,
    descriptor: Descriptor,
}

impl ManagedSource {
    /// Fails for devices without managed memory.
    pub(super) fn new(device: Arc<dyn Device>) -> Result<Self> {
        let mut descriptor = device.descriptor().clone();
        descriptor.check_process(Call::Open)?;
        group(&*device)?;
        descriptor.capabilities &= Capabilities::PROMPT_FREE | Capabilities::DATA;
        descriptor.capabilities |= Capabilities::HOST_VISIBLE;
        descriptor.name.insert_str(0, "managed memory of ");
        Ok(Self { device, descriptor })
    }
}

/// The calls for managed memory.
fn group(device: &dyn Device) -> Result<&dyn ManagedMemory> {
    device.managed_memory().ok_or_else(|| {
        let of = device.descriptor();
        let missing = format!("{of} has no managed memory; ordinary buffers copy instead");
        Error::Unsupported { call: Call::AllocateManaged, missing: missing.into() }
    })
}

// SAFETY: every call is the device's own. Memory that does not begin at a whole page of the host is refused.
unsafe impl MemorySource for ManagedSource {
    fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.device.memory_info()
    }

    fn pages(&self) -> Option<&dyn VirtualMemory> {
        None
    }

    fn segment_granule(&self) -> PageSize {
        PageSize::HOST
    }

    fn allocate(&self, size: Bytes) -> Result<Address> {
        let managed = group(&*self.device)?;
        let address = managed.allocate_managed(size)?;
        if address.is_aligned_to(self.segment_granule().alignment()) {
            return Ok(address);
        }
        // No known driver does this.
        // SAFETY: it was just allocated, and nothing else knows of it.
        unsafe { managed.free_managed(address) }?;
        let missing = format!("managed memory at whole pages: the driver gave {address}");
        Err(Error::Unsupported { call: Call::AllocateManaged, missing: missing.into() })
    }

    unsafe fn free(&self, segment: Address) -> Result<()> {
        // SAFETY: as the caller promised.
        unsafe { group(&*self.device)?.free_managed(segment) }
    }

    fn outlives_device(&self) -> bool {
        true
    }
}
