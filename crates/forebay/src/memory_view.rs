//! A device as one of its other memories: what a pool of pinned or managed memory sees of it.
//!
//! Plain memory of the view is pinned host memory of the device, or managed memory. Streams, events and copies are the
//! device's own. A view of pinned memory has a stream of its own, [`host`](MemoryView::host), which stands for the host:
//! nothing is ever enqueued there, so memory that is free in its order is free now, and the host may write to it without
//! a wait.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex};

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, PageSize, Span, StreamId};
use forebay_hal::{
    Access, Call, Capabilities, Copy, Descriptor, Device, DeviceKind, Error, EventHandle,
    EventKind, Fill, Granularity, HostTask, ManagedMemory, Memory, MemoryInfo, PageHandle,
    PageOptions, PinnedFlags, PinnedMemory, PointerClass, Priority, Progress, Result, StreamHandle,
    Streams, Transfers, VirtualMemory, invalid,
};
use forebay_host::system::System;

use crate::retry::retry_once;
use crate::sync::lock;

/// Which memory of a device a view is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Pinned host memory.
    Pinned(PinnedFlags),
    /// Memory that migrates to where it is used. The host reads and writes it at the device's addresses.
    Managed,
}

/// A device as one of its memories.
#[derive(Debug)]
pub(crate) struct MemoryView {
    device: Arc<dyn Device>,
    descriptor: Descriptor,
    source: Source,
    /// The stream that stands for the host, in a view of pinned memory.
    host: Option<StreamHandle>,
    /// Whether the memory comes as pages, which serve any request, or else as whole allocations.
    in_pages: bool,
    /// Whether the device was lost: then work may use the memory for ever, and none of it is given back.
    lost: AtomicBool,
    /// The last refusal of the device, which may know of limits that the pool does not.
    refusal: Mutex<Option<Error>>,
}

impl MemoryView {
    /// Refuses devices without such memory.
    pub(crate) fn new(device: Arc<dyn Device>, source: Source) -> Result<Self> {
        let of = device.descriptor().clone();
        of.check_process(Call::Open)?;
        let has = match source {
            Source::Pinned(_) => device.pinned_memory().is_some(),
            Source::Managed => device.managed_memory().is_some(),
        };
        if !has {
            return Err(missing(&of, source));
        }
        let mut capabilities = of.capabilities & Capabilities::PROMPT_FREE;
        let mut in_pages = false;
        let (name, host) = match source {
            Source::Pinned(flags) => {
                // Pages are for one device alone, and cached like any memory.
                let segments = PinnedFlags::WRITE_COMBINED | PinnedFlags::PORTABLE;
                in_pages = of.capabilities.contains(Capabilities::PINNED_PAGES)
                    && !flags.intersects(segments);
                let host = device.create_stream(Priority::Normal)?;
                ("pinned memory of ", Some(host))
            }
            Source::Managed => {
                let kept = Capabilities::DATA | Capabilities::MANAGED | Capabilities::HOST_TASKS;
                capabilities |= (of.capabilities & kept) | Capabilities::HOST_VISIBLE;
                ("managed memory of ", None)
            }
        };
        capabilities.set(Capabilities::VIRTUAL_MEMORY, in_pages);
        let mut descriptor = of.capabilities(capabilities).alignment(Alignment::HOST_PAGE);
        descriptor.name.insert_str(0, name);
        let (lost, refusal) = (AtomicBool::new(false), Mutex::new(None));
        Ok(Self { device, descriptor, source, host, in_pages, lost, refusal })
    }

    /// The device itself.
    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Whether the memory comes as pages.
    pub(crate) fn is_in_pages(&self) -> bool {
        self.in_pages
    }

    /// The stream that stands for the host; the default stream in a view of managed memory.
    pub(crate) fn host(&self) -> StreamHandle {
        self.host.unwrap_or(StreamHandle::DEFAULT)
    }

    /// Takes the last refusal of the device.
    pub(crate) fn take_refusal(&self) -> Option<Error> {
        lock(&self.refusal).take()
    }

    /// The device address of a host address in mapped memory.
    pub(crate) fn device_address(&self, host: Address) -> Result<Address> {
        self.descriptor.check_process(Call::DeviceAddress)?;
        if self.in_pages
            && matches!(self.source, Source::Pinned(flags) if flags.contains(PinnedFlags::MAPPED))
        {
            // Pages have one address for both.
            return Ok(host);
        }
        self.pinned(Call::DeviceAddress)?.device_address(host)
    }

    fn pages(&self, call: Call) -> Result<&dyn VirtualMemory> {
        self.device.virtual_memory().ok_or_else(|| {
            let missing = format!("{} maps no pages", self.device.descriptor());
            Error::Unsupported { call, missing: missing.into() }
        })
    }

    /// Refuses to give memory of a lost device back: the pool that is dropped has waited for the device in vain, and work
    /// may still use the memory.
    fn check_kept(&self, call: Call) -> Result<()> {
        if self.lost.load(Ordering::Relaxed) {
            return Err(Error::Lost { call, reason: "work may still use the memory".into() });
        }
        Ok(())
    }

    fn pinned(&self, call: Call) -> Result<&dyn PinnedMemory> {
        self.device.pinned_memory().ok_or_else(|| {
            let missing = format!("{} cannot pin host memory", self.device.descriptor());
            Error::Unsupported { call, missing: missing.into() }
        })
    }

    /// Refuses managed memory that begins inside a page, which no driver was seen to give.
    fn aligned(&self, address: Address) -> Result<Address> {
        if self.source != Source::Managed || address.is_aligned_to(self.descriptor.alignment) {
            return Ok(address);
        }
        // SAFETY: just allocated, and nobody knows of it.
        unsafe { self.managed()?.free_managed(address) }?;
        let missing = format!("managed memory at whole pages: the driver gave {address}");
        Err(Error::Unsupported { call: Call::AllocateManaged, missing: missing.into() })
    }

    fn managed(&self) -> Result<&dyn ManagedMemory> {
        let none = || missing(self.device.descriptor(), Source::Managed);
        self.device.managed_memory().ok_or_else(none)
    }
}

/// The refusal of a device that has no such memory.
fn missing(of: &Descriptor, source: Source) -> Error {
    let (call, missing) = match source {
        Source::Pinned(_) => {
            let missing =
                format!("{of} cannot pin host memory; copy from and to plain host memory");
            (Call::AllocatePinned, missing)
        }
        Source::Managed => {
            let missing = format!("{of} has no managed memory; ordinary buffers copy instead");
            (Call::AllocateManaged, missing)
        }
    };
    Error::Unsupported { call, missing: missing.into() }
}

impl Drop for MemoryView {
    fn drop(&mut self) {
        let Some(host) = self.host else { return };
        if !self.descriptor.is_inherited() {
            // A drop cannot return the error, and the stream has no work.
            let _ = retry_once(|| self.device.destroy_stream(host));
        }
    }
}

// SAFETY: every promise is the device's, passed on. Groups that the view lacks are `None` and not among its
// capabilities; managed memory is visible to the host. Free memory of a pinned view is the host's, of which it counts
// nothing as held.
unsafe impl Device for MemoryView {
    fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The figures of the host's memory for pinned memory, of the device's for managed memory.
    fn memory_info(&self) -> Result<MemoryInfo> {
        if self.descriptor.kind == DeviceKind::Host || self.source == Source::Managed {
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

    fn classify(&self, address: Address) -> Result<Option<PointerClass>> {
        self.device.classify(address)
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.in_pages.then_some(self)
    }

    fn managed_memory(&self) -> Option<&dyn ManagedMemory> {
        if self.source == Source::Managed { self.device.managed_memory() } else { None }
    }
}

// SAFETY: every call is the device's own, for pages of host memory.
unsafe impl VirtualMemory for MemoryView {
    fn granularity(&self) -> Granularity {
        let none = Granularity { minimum: PageSize::DEVICE, recommended: PageSize::DEVICE };
        self.device.virtual_memory().map_or(none, VirtualMemory::granularity)
    }

    fn reserve(&self, size: Bytes, alignment: Alignment) -> Result<Span> {
        self.pages(Call::Reserve)?.reserve(size, alignment)
    }

    unsafe fn release_region(&self, start: Address) -> Result<()> {
        self.check_kept(Call::ReleaseRegion)?;
        // SAFETY: as the caller promised.
        unsafe { self.pages(Call::ReleaseRegion)?.release_region(start) }
    }

    fn create_page(&self, size: Bytes, _: PageOptions) -> Result<PageHandle> {
        let made = self.pages(Call::CreatePage)?.create_page(size, PageOptions::pinned());
        *lock(&self.refusal) = made.as_ref().err().cloned();
        made
    }

    fn release_page(&self, page: PageHandle) -> Result<()> {
        self.check_kept(Call::ReleasePage)?;
        self.pages(Call::ReleasePage)?.release_page(page)
    }

    fn map(&self, at: Address, page: PageHandle) -> Result<()> {
        self.pages(Call::Map)?.map(at, page)
    }

    unsafe fn set_access(&self, span: Span, access: Access, device: DeviceOrdinal) -> Result<()> {
        // SAFETY: as the caller promised.
        unsafe { self.pages(Call::SetAccess)?.set_access(span, access, device) }
    }

    unsafe fn unmap(&self, span: Span) -> Result<()> {
        self.check_kept(Call::Unmap)?;
        // SAFETY: as the caller promised.
        unsafe { self.pages(Call::Unmap)?.unmap(span) }
    }
}

// SAFETY: allocations do not overlap and begin at whole pages of the system, which is what `Descriptor::alignment` says;
// managed memory that does not is refused. The pool asks for no larger alignment, and one is refused.
unsafe impl Memory for MemoryView {
    fn allocate(&self, size: Bytes, alignment: Alignment) -> Result<Address> {
        if alignment > self.descriptor.alignment {
            let allowed = format!("{} B at most", self.descriptor.alignment.get());
            return Err(invalid(Call::AllocatePinned, "alignment", alignment.get(), allowed));
        }
        let made = match self.source {
            Source::Pinned(flags) => {
                self.pinned(Call::AllocatePinned)?.allocate_pinned(size, flags)
            }
            Source::Managed => self.managed()?.allocate_managed(size),
        };
        let made = made.and_then(|address| self.aligned(address));
        *lock(&self.refusal) = made.as_ref().err().cloned();
        made
    }

    unsafe fn free(&self, address: Address) -> Result<()> {
        self.check_kept(Call::FreePinned)?;
        // SAFETY: as the caller promised. For both.
        unsafe {
            match self.source {
                Source::Pinned(_) => self.pinned(Call::FreePinned)?.free_pinned(address),
                Source::Managed => self.managed()?.free_managed(address),
            }
        }
    }
}

// SAFETY: every call is the device's own, but for waits of the host's stream, which are refused.
unsafe impl Streams for MemoryView {
    fn create_stream(&self, priority: Priority) -> Result<StreamHandle> {
        self.device.create_stream(priority)
    }

    fn destroy_stream(&self, stream: StreamHandle) -> Result<()> {
        self.device.destroy_stream(stream)
    }

    fn stream_id(&self, stream: StreamHandle) -> Result<StreamId> {
        self.device.stream_id(stream)
    }

    fn query_stream(&self, stream: StreamHandle) -> Result<Progress> {
        self.device.query_stream(stream)
    }

    fn synchronize_stream(&self, stream: StreamHandle) -> Result<()> {
        self.device.synchronize_stream(stream)
    }

    fn synchronize_device(&self) -> Result<()> {
        let waited = self.device.synchronize_device();
        if matches!(waited, Err(Error::Lost { .. })) {
            self.lost.store(true, Ordering::Relaxed);
        }
        waited
    }

    fn enqueue_host(&self, task: HostTask, stream: StreamHandle) -> Result<()> {
        self.device.enqueue_host(task, stream)
    }

    fn create_event(&self, kind: EventKind) -> Result<EventHandle> {
        self.device.create_event(kind)
    }

    fn destroy_event(&self, event: EventHandle) -> Result<()> {
        self.device.destroy_event(event)
    }

    fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        self.device.record_event(event, stream)
    }

    /// Refuses to make the host's stream wait: the host does not wait with it, and would write to memory that work of
    /// the other stream still uses.
    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        if self.host == Some(stream) {
            let allowed = "a stream of the program; the host waits for events itself";
            return Err(invalid(Call::WaitEvent, "stream", stream, allowed));
        }
        self.device.wait_event(stream, event)
    }

    fn query_event(&self, event: EventHandle) -> Result<Progress> {
        self.device.query_event(event)
    }

    fn synchronize_event(&self, event: EventHandle) -> Result<()> {
        self.device.synchronize_event(event)
    }

    fn elapsed(&self, start: EventHandle, end: EventHandle) -> Result<Duration> {
        self.device.elapsed(start, end)
    }
}

// SAFETY: every call is the device's own.
unsafe impl Transfers for MemoryView {
    unsafe fn copy(&self, copy: &Copy, stream: StreamHandle) -> Result<()> {
        // SAFETY: as the caller promised.
        unsafe { self.device.copy(copy, stream) }
    }

    unsafe fn fill(&self, fill: &Fill, stream: StreamHandle) -> Result<()> {
        // SAFETY: as the caller promised.
        unsafe { self.device.fill(fill, stream) }
    }
}
