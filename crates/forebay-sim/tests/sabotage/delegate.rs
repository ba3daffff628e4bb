//! A device in front of another: every call goes through a [`Tamper`], which by itself changes
//! nothing.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, Span, StreamId};
use forebay_hal::{
    Access, Advice, Call, Copy, Descriptor, Device, EventHandle, EventKind, Fill, Granularity,
    HostTask, ManagedMemory, Memory, MemoryInfo, PageHandle, PageOptions, PeerCopy, Peers,
    PinnedFlags, PinnedMemory, PointerClass, Priority, Progress, Result, Sharing, StreamHandle,
    Streams, Transfers, VirtualMemory,
};

use crate::tamper::Tamper;

/// The device in front.
#[derive(Debug)]
pub(crate) struct Delegate {
    inner: Arc<dyn Device>,
    tamper: Arc<dyn Tamper>,
}

impl Delegate {
    pub(crate) fn new(inner: Arc<dyn Device>, tamper: Arc<dyn Tamper>) -> Arc<Self> {
        Arc::new(Self { inner, tamper })
    }

    /// Tells the tamper of a call and of its end.
    fn through<T>(&self, call: Call, make: impl FnOnce(&dyn Device) -> Result<T>) -> Result<T> {
        self.tamper.note(call);
        let result = make(&*self.inner);
        self.tamper.ended(call, result.is_ok());
        result
    }
}

// SAFETY: every promise is the inner device's, passed on; breaking one on purpose is what the
// tests here are about.
unsafe impl Device for Delegate {
    fn descriptor(&self) -> &Descriptor {
        self.inner.descriptor()
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.through(Call::MemoryInfo, |inner| self.tamper.memory_info(inner))
    }

    fn classify(&self, address: Address) -> Result<Option<PointerClass>> {
        self.through(Call::Classify, |inner| self.tamper.classify(inner, address))
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.inner.virtual_memory().map(|_| self as &dyn VirtualMemory)
    }

    fn pinned_memory(&self) -> Option<&dyn PinnedMemory> {
        self.inner.pinned_memory().map(|_| self as &dyn PinnedMemory)
    }

    fn managed_memory(&self) -> Option<&dyn ManagedMemory> {
        self.inner.managed_memory().map(|_| self as &dyn ManagedMemory)
    }

    fn peers(&self) -> Option<&dyn Peers> {
        self.inner.peers().map(|_| self as &dyn Peers)
    }

    fn sharing(&self) -> Option<&dyn Sharing> {
        self.inner.sharing().map(|_| self as &dyn Sharing)
    }
}

// SAFETY: as for `Device`.
unsafe impl Memory for Delegate {
    fn allocate(&self, size: Bytes, alignment: Alignment) -> Result<Address> {
        self.through(Call::Allocate, |inner| self.tamper.allocate(inner, size, alignment))
    }

    unsafe fn free(&self, address: Address) -> Result<()> {
        self.through(Call::Free, |inner| {
            // SAFETY: the caller keeps the contract of the call.
            unsafe { self.tamper.free(inner, address) }
        })
    }
}

// SAFETY: as for `Device`.
unsafe impl Streams for Delegate {
    fn create_stream(&self, priority: Priority) -> Result<StreamHandle> {
        self.through(Call::CreateStream, |inner| self.tamper.create_stream(inner, priority))
    }

    fn destroy_stream(&self, stream: StreamHandle) -> Result<()> {
        self.through(Call::DestroyStream, |inner| self.tamper.destroy_stream(inner, stream))
    }

    fn stream_id(&self, stream: StreamHandle) -> Result<StreamId> {
        self.through(Call::StreamId, |inner| self.tamper.stream_id(inner, stream))
    }

    fn query_stream(&self, stream: StreamHandle) -> Result<Progress> {
        self.through(Call::QueryStream, |inner| self.tamper.query_stream(inner, stream))
    }

    fn synchronize_stream(&self, stream: StreamHandle) -> Result<()> {
        self.through(Call::SynchronizeStream, |inner| self.tamper.synchronize_stream(inner, stream))
    }

    fn synchronize_device(&self) -> Result<()> {
        self.through(Call::SynchronizeDevice, |inner| self.tamper.synchronize_device(inner))
    }

    fn enqueue_host(&self, task: HostTask, stream: StreamHandle) -> Result<()> {
        self.through(Call::EnqueueHost, |inner| self.tamper.enqueue_host(inner, task, stream))
    }

    fn create_event(&self, kind: EventKind) -> Result<EventHandle> {
        self.through(Call::CreateEvent, |inner| self.tamper.create_event(inner, kind))
    }

    fn destroy_event(&self, event: EventHandle) -> Result<()> {
        self.through(Call::DestroyEvent, |inner| self.tamper.destroy_event(inner, event))
    }

    fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        self.through(Call::RecordEvent, |inner| self.tamper.record_event(inner, event, stream))
    }

    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        self.through(Call::WaitEvent, |inner| self.tamper.wait_event(inner, stream, event))
    }

    fn query_event(&self, event: EventHandle) -> Result<Progress> {
        self.through(Call::QueryEvent, |inner| self.tamper.query_event(inner, event))
    }

    fn synchronize_event(&self, event: EventHandle) -> Result<()> {
        self.through(Call::SynchronizeEvent, |inner| self.tamper.synchronize_event(inner, event))
    }

    fn elapsed(&self, start: EventHandle, end: EventHandle) -> Result<Duration> {
        self.through(Call::Elapsed, |inner| self.tamper.elapsed(inner, start, end))
    }
}

// SAFETY: as for `Device`.
unsafe impl Transfers for Delegate {
    unsafe fn copy(&self, copy: &Copy, stream: StreamHandle) -> Result<()> {
        self.through(Call::Copy, |inner| {
            // SAFETY: the caller keeps the contract of the call.
            unsafe { self.tamper.copy(inner, copy, stream) }
        })
    }

    unsafe fn fill(&self, fill: &Fill, stream: StreamHandle) -> Result<()> {
        self.through(Call::Fill, |inner| {
            // SAFETY: the caller keeps the contract of the call.
            unsafe { self.tamper.fill(inner, fill, stream) }
        })
    }
}

// SAFETY: as for `Device`.
unsafe impl VirtualMemory for Delegate {
    fn granularity(&self) -> Granularity {
        // The group is given only where the inner device has it; anything else is a mistake here.
        self.inner.virtual_memory().expect("the inner device has it").granularity()
    }

    fn reserve(&self, size: Bytes, alignment: Alignment) -> Result<Span> {
        self.through(Call::Reserve, |inner| self.tamper.reserve(inner, size, alignment))
    }

    unsafe fn release_region(&self, start: Address) -> Result<()> {
        self.through(Call::ReleaseRegion, |inner| {
            // SAFETY: the caller keeps the contract of the call.
            unsafe { self.tamper.release_region(inner, start) }
        })
    }

    fn create_page(&self, size: Bytes, options: PageOptions) -> Result<PageHandle> {
        self.through(Call::CreatePage, |inner| self.tamper.create_page(inner, size, options))
    }

    fn release_page(&self, page: PageHandle) -> Result<()> {
        self.through(Call::ReleasePage, |inner| self.tamper.release_page(inner, page))
    }

    fn map(&self, at: Address, page: PageHandle) -> Result<()> {
        self.through(Call::Map, |inner| self.tamper.map(inner, at, page))
    }

    unsafe fn set_access(&self, span: Span, access: Access, device: DeviceOrdinal) -> Result<()> {
        self.through(Call::SetAccess, |inner| {
            // SAFETY: the caller keeps the contract of the call.
            unsafe { self.tamper.set_access(inner, span, access, device) }
        })
    }

    unsafe fn unmap(&self, span: Span) -> Result<()> {
        self.through(Call::Unmap, |inner| {
            // SAFETY: the caller keeps the contract of the call.
            unsafe { self.tamper.unmap(inner, span) }
        })
    }
}

// SAFETY: as for `Device`.
unsafe impl PinnedMemory for Delegate {
    fn allocate_pinned(&self, size: Bytes, flags: PinnedFlags) -> Result<Address> {
        self.through(Call::AllocatePinned, |inner| self.tamper.allocate_pinned(inner, size, flags))
    }

    unsafe fn free_pinned(&self, address: Address) -> Result<()> {
        self.through(Call::FreePinned, |inner| {
            // SAFETY: the caller keeps the contract of the call.
            unsafe { self.tamper.free_pinned(inner, address) }
        })
    }

    unsafe fn register(&self, span: Span, flags: PinnedFlags) -> Result<()> {
        self.through(Call::Register, |inner| {
            // SAFETY: the caller keeps the contract of the call.
            unsafe { self.tamper.register(inner, span, flags) }
        })
    }

    unsafe fn unregister(&self, start: Address) -> Result<()> {
        self.through(Call::Unregister, |inner| {
            // SAFETY: the caller keeps the contract of the call.
            unsafe { self.tamper.unregister(inner, start) }
        })
    }

    fn device_address(&self, host: Address) -> Result<Address> {
        self.through(Call::DeviceAddress, |inner| self.tamper.device_address(inner, host))
    }
}

// SAFETY: as for `Device`.
unsafe impl ManagedMemory for Delegate {
    fn allocate_managed(&self, size: Bytes) -> Result<Address> {
        self.through(Call::AllocateManaged, |inner| self.tamper.allocate_managed(inner, size))
    }

    unsafe fn free_managed(&self, address: Address) -> Result<()> {
        self.through(Call::FreeManaged, |inner| {
            // SAFETY: the caller keeps the contract of the call.
            unsafe { self.tamper.free_managed(inner, address) }
        })
    }

    fn prefetch(&self, span: Span, to: Option<DeviceOrdinal>, stream: StreamHandle) -> Result<()> {
        self.through(Call::Prefetch, |inner| self.tamper.prefetch(inner, span, to, stream))
    }

    fn advise(&self, span: Span, advice: Advice) -> Result<()> {
        self.through(Call::Advise, |inner| self.tamper.advise(inner, span, advice))
    }
}

// SAFETY: as for `Device`.
unsafe impl Peers for Delegate {
    fn can_reach(&self, peer: DeviceOrdinal) -> Result<bool> {
        self.through(Call::CanReach, |inner| self.tamper.can_reach(inner, peer))
    }

    fn enable_peer(&self, peer: DeviceOrdinal) -> Result<()> {
        self.through(Call::EnablePeer, |inner| self.tamper.enable_peer(inner, peer))
    }

    fn disable_peer(&self, peer: DeviceOrdinal) -> Result<()> {
        self.through(Call::DisablePeer, |inner| self.tamper.disable_peer(inner, peer))
    }

    unsafe fn copy_peer(&self, copy: &PeerCopy, stream: StreamHandle) -> Result<()> {
        self.through(Call::CopyPeer, |inner| {
            // SAFETY: the caller keeps the contract of the call.
            unsafe { self.tamper.copy_peer(inner, copy, stream) }
        })
    }
}

// SAFETY: as for `Device`.
unsafe impl Sharing for Delegate {
    fn export_page(&self, page: PageHandle) -> Result<OwnedFd> {
        self.through(Call::ExportPage, |inner| self.tamper.export_page(inner, page))
    }

    fn import_page(&self, descriptor: BorrowedFd<'_>, size: Bytes) -> Result<PageHandle> {
        self.through(Call::ImportPage, |inner| self.tamper.import_page(inner, descriptor, size))
    }
}
