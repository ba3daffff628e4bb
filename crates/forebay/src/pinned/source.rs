//! Pinned host memory as the source of a pool.

use std::sync::Arc;

use forebay_core::{Address, Bytes, PageSize};
use forebay_hal::{
    Call, Capabilities, Descriptor, Device, DeviceKind, Error, MemoryInfo, MemorySource,
    PageOptions, PinnedFlags, PinnedMemory, Priority, Result, Stream, StreamHandle, VirtualMemory,
};
use forebay_host::system::System;

/// The pinned memory of a device, with a stream that represents the host.
#[derive(Debug)]
pub(super) struct PinnedSource {
    device: Arc<dyn Device>,
    descriptor: Descriptor,
    flags: PinnedFlags,
    host: Stream,
    /// Whether memory comes as pages, which serve any request, rather than as whole allocations.
    in_pages: bool,
}

impl PinnedSource {
    /// Fails for devices that cannot pin memory.
    pub(super) fn new(device: Arc<dyn Device>, flags: PinnedFlags) -> Result<Self> {
        let mut descriptor = device.descriptor().clone();
        descriptor.check_process(Call::Open)?;
        group(&*device)?;
        // Pages are pinned for one device only, and are cached normally.
        let in_segments = PinnedFlags::WRITE_COMBINED | PinnedFlags::PORTABLE;
        let in_pages = descriptor.capabilities.contains(Capabilities::PINNED_PAGES)
            && !flags.intersects(in_segments);
        descriptor.capabilities &= Capabilities::PROMPT_FREE;
        descriptor.capabilities.set(Capabilities::VIRTUAL_MEMORY, in_pages);
        descriptor.name.insert_str(0, "pinned memory of ");
        let host = Stream::new(&device, Priority::Normal)?;
        Ok(Self { device, descriptor, flags, host, in_pages })
    }

    /// The stream that represents the host.
    pub(super) fn host(&self) -> StreamHandle {
        self.host.handle()
    }

    /// The device address of a host address in mapped memory.
    pub(super) fn device_address(&self, host: Address) -> Result<Address> {
        self.descriptor.check_process(Call::DeviceAddress)?;
        if self.in_pages && self.flags.contains(PinnedFlags::MAPPED) {
            // Pages have the same address on both sides.
            return Ok(host);
        }
        group(&*self.device)?.device_address(host)
    }
}

/// The calls for pinned memory.
fn group(device: &dyn Device) -> Result<&dyn PinnedMemory> {
    device.pinned_memory().ok_or_else(|| {
        let of = device.descriptor();
        let missing = format!("{of} cannot pin host memory; copy from and to plain host memory");
        Error::Unsupported { call: Call::AllocatePinned, missing: missing.into() }
    })
}

// SAFETY: every call is the device's own. Pinned memory begins at whole pages of the host.
unsafe impl MemorySource for PinnedSource {
    fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The free and total memory of the host.
    fn memory_info(&self) -> Result<MemoryInfo> {
        if self.descriptor.kind == DeviceKind::Host {
            return self.device.memory_info();
        }
        let memory = System::here().memory();
        let unknown = |what: &str, why: &dyn core::fmt::Display| Error::Unsupported {
            call: Call::MemoryInfo,
            missing: format!("the {what} memory of this machine is not known: {why}").into(),
        };
        let total = memory.usable_total().map_err(|why| unknown("total", &why))?;
        let free = memory.usable_free().map_err(|why| unknown("free", &why))?.min(total);
        Ok(MemoryInfo { total, free, ..MemoryInfo::default() })
    }

    fn pages(&self) -> Option<&dyn VirtualMemory> {
        self.device.virtual_memory().filter(|_| self.in_pages)
    }

    fn page_options(&self) -> PageOptions {
        PageOptions::pinned()
    }

    fn segment_granule(&self) -> PageSize {
        PageSize::HOST
    }

    fn allocate(&self, size: Bytes) -> Result<Address> {
        group(&*self.device)?.allocate_pinned(size, self.flags)
    }

    unsafe fn free(&self, segment: Address) -> Result<()> {
        // SAFETY: as the caller promised.
        unsafe { group(&*self.device)?.free_pinned(segment) }
    }

    fn host_stream(&self) -> Option<StreamHandle> {
        Some(self.host())
    }

    fn outlives_device(&self) -> bool {
        true
    }
}
