//! The plain memory of a device as the source of a pool.

use std::sync::Arc;

use forebay_core::{Address, Bytes};
use forebay_hal::{Descriptor, Device, MemoryInfo, MemorySource, Result, VirtualMemory};

/// The plain memory of a device.
#[derive(Debug)]
pub(in crate::pool) struct DeviceMemory(pub(in crate::pool) Arc<dyn Device>);

// SAFETY: every call is the device's own.
unsafe impl MemorySource for DeviceMemory {
    fn descriptor(&self) -> &Descriptor {
        self.0.descriptor()
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.0.memory_info()
    }

    fn pages(&self) -> Option<&dyn VirtualMemory> {
        self.0.virtual_memory()
    }

    fn allocate(&self, size: Bytes) -> Result<Address> {
        self.0.allocate(size, self.segment_granule().alignment())
    }

    unsafe fn free(&self, segment: Address) -> Result<()> {
        // SAFETY: as the caller promised.
        unsafe { self.0.free(segment) }
    }
}
