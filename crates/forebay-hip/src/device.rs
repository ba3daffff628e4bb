//! The device: the one of `forebay-cuda`, with HIP's functions.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use forebay_core::{Address, Alignment, Bytes, Span, StreamId};
use forebay_cuda::{CudaDevice, DriverPointer};
use forebay_hal::{
    Copy, Decompression, Descriptor, Device, EventHandle, EventKind, Fill, ForeignStreams,
    HostTask, ManagedMemory, Memory, MemoryInfo, Peers, PinnedMemory, PointerClass, Priority,
    Progress, Result, Sharing, StreamHandle, Streams, Transfers, VirtualMemory,
};
use forebay_sync::fork::PerProcess;

use crate::HipDriver;

/// An AMD GPU through HIP.
///
/// The calling thread's current device is the same after every call as before it. Several devices may be open at once,
/// each with its own books; streams and events are pooled for all of them together.
#[derive(Debug)]
pub struct HipDevice {
    inner: Arc<CudaDevice>,
    driver: HipDriver,
}

impl HipDevice {
    /// Opens a device of the system's library by its number.
    pub fn open(ordinal: u32) -> Result<Arc<Self>> {
        Self::open_with(HipDriver::load()?, ordinal)
    }

    /// The device of that number for the whole process: the same object for everybody who asks here, as long as anyone has
    /// it, so that the streams one made or adopted are known to all.
    pub fn shared(ordinal: u32) -> Result<Arc<Self>> {
        static SHARED: PerProcess<BTreeMap<u32, Weak<HipDevice>>> = PerProcess::new();
        SHARED.get_or_open(ordinal, || Self::open(ordinal))
    }

    /// Opens a device of a given library by its number.
    pub fn open_with(driver: HipDriver, ordinal: u32) -> Result<Arc<Self>> {
        let inner = CudaDevice::open_with(driver.as_cuda(), ordinal)?;
        Ok(Arc::new(Self { inner, driver }))
    }

    /// The library it came from.
    pub const fn driver(&self) -> HipDriver {
        self.driver
    }

    /// What HIP knows of an address, of any library's memory; `None` where it knows nothing.
    /// [`classify`](Device::classify) tells of this device's own alone.
    pub fn driver_pointer(&self, address: Address) -> Option<DriverPointer> {
        self.inner.driver_pointer(address)
    }
}

// SAFETY: every call is one of the device inside, which keeps the contract.
unsafe impl Memory for HipDevice {
    fn allocate(&self, size: Bytes, alignment: Alignment) -> Result<Address> {
        self.inner.allocate(size, alignment)
    }

    unsafe fn free(&self, address: Address) -> Result<()> {
        // SAFETY: as the caller promised.
        unsafe { self.inner.free(address) }
    }
}

// SAFETY: as above.
unsafe impl Streams for HipDevice {
    fn create_stream(&self, priority: Priority) -> Result<StreamHandle> {
        self.inner.create_stream(priority)
    }

    fn destroy_stream(&self, stream: StreamHandle) -> Result<()> {
        self.inner.destroy_stream(stream)
    }

    fn stream_id(&self, stream: StreamHandle) -> Result<StreamId> {
        self.inner.stream_id(stream)
    }

    fn query_stream(&self, stream: StreamHandle) -> Result<Progress> {
        self.inner.query_stream(stream)
    }

    fn synchronize_stream(&self, stream: StreamHandle) -> Result<()> {
        self.inner.synchronize_stream(stream)
    }

    fn synchronize_device(&self) -> Result<()> {
        self.inner.synchronize_device()
    }

    fn synchronize_process(&self) -> Result<()> {
        self.inner.synchronize_process()
    }

    fn enqueue_host(&self, task: HostTask, stream: StreamHandle) -> Result<()> {
        self.inner.enqueue_host(task, stream)
    }

    fn create_event(&self, kind: EventKind) -> Result<EventHandle> {
        self.inner.create_event(kind)
    }

    fn destroy_event(&self, event: EventHandle) -> Result<()> {
        self.inner.destroy_event(event)
    }

    fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        self.inner.record_event(event, stream)
    }

    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        self.inner.wait_event(stream, event)
    }

    fn query_event(&self, event: EventHandle) -> Result<Progress> {
        self.inner.query_event(event)
    }

    fn synchronize_event(&self, event: EventHandle) -> Result<()> {
        self.inner.synchronize_event(event)
    }

    fn elapsed(&self, start: EventHandle, end: EventHandle) -> Result<Duration> {
        self.inner.elapsed(start, end)
    }
}

// SAFETY: as above.
unsafe impl Transfers for HipDevice {
    unsafe fn copy(&self, copy: &Copy, stream: StreamHandle) -> Result<()> {
        // SAFETY: as the caller promised.
        unsafe { self.inner.copy(copy, stream) }
    }

    unsafe fn copy_all(&self, copies: &[Copy], stream: StreamHandle) -> Result<()> {
        // SAFETY: as the caller promised.
        unsafe { self.inner.copy_all(copies, stream) }
    }

    unsafe fn fill(&self, fill: &Fill, stream: StreamHandle) -> Result<()> {
        // SAFETY: as the caller promised.
        unsafe { self.inner.fill(fill, stream) }
    }
}

// SAFETY: as above. Groups are those of the device inside.
unsafe impl Device for HipDevice {
    fn descriptor(&self) -> &Descriptor {
        self.inner.descriptor()
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.inner.memory_info()
    }

    fn classify(&self, address: Address) -> Result<Option<PointerClass>> {
        self.inner.classify(address)
    }

    fn is_pinned(&self, span: Span) -> bool {
        self.inner.is_pinned(span)
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.inner.virtual_memory()
    }

    fn pinned_memory(&self) -> Option<&dyn PinnedMemory> {
        self.inner.pinned_memory()
    }

    fn managed_memory(&self) -> Option<&dyn ManagedMemory> {
        self.inner.managed_memory()
    }

    fn peers(&self) -> Option<&dyn Peers> {
        self.inner.peers()
    }

    fn foreign_streams(&self) -> Option<&dyn ForeignStreams> {
        self.inner.foreign_streams()
    }

    fn decompression(&self) -> Option<&dyn Decompression> {
        self.inner.decompression()
    }

    fn sharing(&self) -> Option<&dyn Sharing> {
        self.inner.sharing()
    }
}
