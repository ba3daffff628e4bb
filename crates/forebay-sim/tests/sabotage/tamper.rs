//! What can be done to each call on its way to a device.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, Span, StreamId};
use forebay_hal::{
    Access, Advice, Call, Copy, Device, Error, EventHandle, EventKind, Fill, HostTask, MemoryInfo,
    PageHandle, PageOptions, PeerCopy, PinnedFlags, PointerClass, Priority, Progress, Result,
    StreamHandle,
};

/// The inner device's group, or the error of a device without it.
fn group<T>(call: Call, group: Option<T>) -> Result<T> {
    group.ok_or_else(|| Error::Unsupported { call, missing: "the inner device's group".into() })
}

/// What is done to each call on its way: what the inner device does, unless an implementation says
/// otherwise. The unsafe calls have the contract of those they stand in for.
#[allow(clippy::missing_safety_doc)] // said once, above
pub(crate) trait Tamper: fmt::Debug + Send + Sync + 'static {
    /// Told before each call.
    fn note(&self, _call: Call) {}

    /// Told how each call ended that the inner device was asked.
    fn ended(&self, _call: Call, _succeeded: bool) {}

    fn memory_info(&self, inner: &dyn Device) -> Result<MemoryInfo> {
        inner.memory_info()
    }

    fn classify(&self, inner: &dyn Device, address: Address) -> Result<Option<PointerClass>> {
        inner.classify(address)
    }

    fn allocate(&self, inner: &dyn Device, size: Bytes, alignment: Alignment) -> Result<Address> {
        inner.allocate(size, alignment)
    }

    unsafe fn free(&self, inner: &dyn Device, address: Address) -> Result<()> {
        // SAFETY: the caller keeps the contract of the call itself.
        unsafe { inner.free(address) }
    }

    fn create_stream(&self, inner: &dyn Device, priority: Priority) -> Result<StreamHandle> {
        inner.create_stream(priority)
    }

    fn destroy_stream(&self, inner: &dyn Device, stream: StreamHandle) -> Result<()> {
        inner.destroy_stream(stream)
    }

    fn stream_id(&self, inner: &dyn Device, stream: StreamHandle) -> Result<StreamId> {
        inner.stream_id(stream)
    }

    fn query_stream(&self, inner: &dyn Device, stream: StreamHandle) -> Result<Progress> {
        inner.query_stream(stream)
    }

    fn synchronize_stream(&self, inner: &dyn Device, stream: StreamHandle) -> Result<()> {
        inner.synchronize_stream(stream)
    }

    fn synchronize_device(&self, inner: &dyn Device) -> Result<()> {
        inner.synchronize_device()
    }

    fn enqueue_host(&self, inner: &dyn Device, task: HostTask, stream: StreamHandle) -> Result<()> {
        inner.enqueue_host(task, stream)
    }

    fn create_event(&self, inner: &dyn Device, kind: EventKind) -> Result<EventHandle> {
        inner.create_event(kind)
    }

    fn destroy_event(&self, inner: &dyn Device, event: EventHandle) -> Result<()> {
        inner.destroy_event(event)
    }

    fn record_event(
        &self,
        inner: &dyn Device,
        event: EventHandle,
        stream: StreamHandle,
    ) -> Result<()> {
        inner.record_event(event, stream)
    }

    fn wait_event(
        &self,
        inner: &dyn Device,
        stream: StreamHandle,
        event: EventHandle,
    ) -> Result<()> {
        inner.wait_event(stream, event)
    }

    fn query_event(&self, inner: &dyn Device, event: EventHandle) -> Result<Progress> {
        inner.query_event(event)
    }

    fn synchronize_event(&self, inner: &dyn Device, event: EventHandle) -> Result<()> {
        inner.synchronize_event(event)
    }

    fn elapsed(
        &self,
        inner: &dyn Device,
        start: EventHandle,
        end: EventHandle,
    ) -> Result<Duration> {
        inner.elapsed(start, end)
    }

    unsafe fn copy(&self, inner: &dyn Device, copy: &Copy, stream: StreamHandle) -> Result<()> {
        // SAFETY: the caller keeps the contract of the call itself.
        unsafe { inner.copy(copy, stream) }
    }

    unsafe fn fill(&self, inner: &dyn Device, fill: &Fill, stream: StreamHandle) -> Result<()> {
        // SAFETY: the caller keeps the contract of the call itself.
        unsafe { inner.fill(fill, stream) }
    }

    fn reserve(&self, inner: &dyn Device, size: Bytes, alignment: Alignment) -> Result<Span> {
        group(Call::Reserve, inner.virtual_memory())?.reserve(size, alignment)
    }

    unsafe fn release_region(&self, inner: &dyn Device, start: Address) -> Result<()> {
        let inner = group(Call::ReleaseRegion, inner.virtual_memory())?;
        // SAFETY: the caller keeps the contract of the call itself.
        unsafe { inner.release_region(start) }
    }

    fn create_page(
        &self,
        inner: &dyn Device,
        size: Bytes,
        options: PageOptions,
    ) -> Result<PageHandle> {
        group(Call::CreatePage, inner.virtual_memory())?.create_page(size, options)
    }

    fn release_page(&self, inner: &dyn Device, page: PageHandle) -> Result<()> {
        group(Call::ReleasePage, inner.virtual_memory())?.release_page(page)
    }

    fn map(&self, inner: &dyn Device, at: Address, page: PageHandle) -> Result<()> {
        group(Call::Map, inner.virtual_memory())?.map(at, page)
    }

    unsafe fn set_access(
        &self,
        inner: &dyn Device,
        span: Span,
        access: Access,
        device: DeviceOrdinal,
    ) -> Result<()> {
        let inner = group(Call::SetAccess, inner.virtual_memory())?;
        // SAFETY: the caller keeps the contract of the call itself.
        unsafe { inner.set_access(span, access, device) }
    }

    unsafe fn unmap(&self, inner: &dyn Device, span: Span) -> Result<()> {
        let inner = group(Call::Unmap, inner.virtual_memory())?;
        // SAFETY: the caller keeps the contract of the call itself.
        unsafe { inner.unmap(span) }
    }

    fn allocate_pinned(
        &self,
        inner: &dyn Device,
        size: Bytes,
        flags: PinnedFlags,
    ) -> Result<Address> {
        group(Call::AllocatePinned, inner.pinned_memory())?.allocate_pinned(size, flags)
    }

    unsafe fn free_pinned(&self, inner: &dyn Device, address: Address) -> Result<()> {
        let inner = group(Call::FreePinned, inner.pinned_memory())?;
        // SAFETY: the caller keeps the contract of the call itself.
        unsafe { inner.free_pinned(address) }
    }

    unsafe fn register(&self, inner: &dyn Device, span: Span, flags: PinnedFlags) -> Result<()> {
        let inner = group(Call::Register, inner.pinned_memory())?;
        // SAFETY: the caller keeps the contract of the call itself.
        unsafe { inner.register(span, flags) }
    }

    unsafe fn unregister(&self, inner: &dyn Device, start: Address) -> Result<()> {
        let inner = group(Call::Unregister, inner.pinned_memory())?;
        // SAFETY: the caller keeps the contract of the call itself.
        unsafe { inner.unregister(start) }
    }

    fn device_address(&self, inner: &dyn Device, host: Address) -> Result<Address> {
        group(Call::DeviceAddress, inner.pinned_memory())?.device_address(host)
    }

    fn allocate_managed(&self, inner: &dyn Device, size: Bytes) -> Result<Address> {
        group(Call::AllocateManaged, inner.managed_memory())?.allocate_managed(size)
    }

    unsafe fn free_managed(&self, inner: &dyn Device, address: Address) -> Result<()> {
        let inner = group(Call::FreeManaged, inner.managed_memory())?;
        // SAFETY: the caller keeps the contract of the call itself.
        unsafe { inner.free_managed(address) }
    }

    fn prefetch(
        &self,
        inner: &dyn Device,
        span: Span,
        to: Option<DeviceOrdinal>,
        stream: StreamHandle,
    ) -> Result<()> {
        group(Call::Prefetch, inner.managed_memory())?.prefetch(span, to, stream)
    }

    fn advise(&self, inner: &dyn Device, span: Span, advice: Advice) -> Result<()> {
        group(Call::Advise, inner.managed_memory())?.advise(span, advice)
    }

    fn can_reach(&self, inner: &dyn Device, peer: DeviceOrdinal) -> Result<bool> {
        group(Call::CanReach, inner.peers())?.can_reach(peer)
    }

    fn enable_peer(&self, inner: &dyn Device, peer: DeviceOrdinal) -> Result<()> {
        group(Call::EnablePeer, inner.peers())?.enable_peer(peer)
    }

    fn disable_peer(&self, inner: &dyn Device, peer: DeviceOrdinal) -> Result<()> {
        group(Call::DisablePeer, inner.peers())?.disable_peer(peer)
    }

    unsafe fn copy_peer(
        &self,
        inner: &dyn Device,
        copy: &PeerCopy,
        stream: StreamHandle,
    ) -> Result<()> {
        let inner = group(Call::CopyPeer, inner.peers())?;
        // SAFETY: the caller keeps the contract of the call itself.
        unsafe { inner.copy_peer(copy, stream) }
    }

    fn export_page(&self, inner: &dyn Device, page: PageHandle) -> Result<OwnedFd> {
        group(Call::ExportPage, inner.sharing())?.export_page(page)
    }

    fn import_page(
        &self,
        inner: &dyn Device,
        descriptor: BorrowedFd<'_>,
        size: Bytes,
    ) -> Result<PageHandle> {
        group(Call::ImportPage, inner.sharing())?.import_page(descriptor, size)
    }
}
