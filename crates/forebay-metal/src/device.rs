//! The Metal device.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use forebay_core::{Address, Bytes, DeviceOrdinal, StreamId};
use forebay_hal::{
    Call, Capabilities, Descriptor, Device, DeviceKind, Error, EventHandle, EventKind, HostTask,
    MemoryInfo, PointerClass, Priority, Progress, Result, StreamHandle, StreamTable, Streams,
    fresh_handle, optional_groups, run_host_task,
};
use forebay_sync::fork::{LeakOnFork, PerProcess};
use forebay_sync::lock;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSProcessInfo;
use objc2_metal::{MTLBuffer, MTLCommandBuffer, MTLCopyAllDevices, MTLDevice, MTLGPUFamily};

use crate::buffer::BufferRef;
use crate::event::EVENTS;
use crate::kernel::Kernels;
use crate::memory::ALIGNMENT;
use crate::space::Space;
use crate::stream::{Health, StreamCore};
use crate::{MetalMissing, event, transfer};

/// A GPU through Metal.
///
/// Several may be open at once, each with its own tables; events order work across all of them.
pub struct MetalDevice {
    descriptor: Descriptor,
    /// Of the parent's, in a forked child: Metal does not work there.
    inner: LeakOnFork<Inner>,
}

/// What a device has.
pub(crate) struct Inner {
    pub(crate) raw: Retained<ProtocolObject<dyn MTLDevice>>,
    pub(crate) health: Arc<Health>,
    pub(crate) space: Mutex<Space<BufferRef>>,
    pub(crate) streams: Mutex<StreamTable<StreamCore>>,
    /// Tells its events from those of other devices.
    serial: u64,
    kernels: OnceLock<core::result::Result<Kernels, String>>,
}

/// The devices that the system shows.
pub(crate) fn all() -> impl Iterator<Item = Retained<ProtocolObject<dyn MTLDevice>>> {
    MTLCopyAllDevices().to_vec().into_iter()
}

impl MetalDevice {
    /// Opens a device by its number; the first is 0.
    pub fn open(ordinal: u32) -> core::result::Result<Arc<Self>, MetalMissing> {
        let index = usize::try_from(ordinal).unwrap_or(usize::MAX);
        let missing = || MetalMissing::Device { ordinal, count: all().count() };
        let raw = all().nth(index).ok_or_else(missing)?;
        let name = raw.name().to_string();
        // Of this family every buffer has an address of the GPU's.
        if !raw.supportsFamily(MTLGPUFamily::Metal3) {
            return Err(MetalMissing::Family { name });
        }
        let health = Arc::new(Health::default());
        let Some(default) = StreamCore::new(&raw, &health) else {
            return Err(MetalMissing::Queue { name });
        };
        let capabilities = Capabilities::DATA
            | Capabilities::PINNED
            | Capabilities::PINNED_MAPPED
            | Capabilities::PINNED_WRITE_COMBINED
            | Capabilities::REGISTER
            | Capabilities::HOST_TASKS
            | Capabilities::TIMED_EVENTS
            | Capabilities::PROMPT_FREE;
        let system = NSProcessInfo::processInfo().operatingSystemVersionString();
        let descriptor = Descriptor::new(DeviceKind::Metal, DeviceOrdinal(ordinal), name)
            .driver(format!("Metal, macOS {system}"))
            .capabilities(capabilities)
            .alignment(ALIGNMENT);
        let inner = LeakOnFork::new(Inner {
            raw,
            health,
            space: Mutex::default(),
            streams: Mutex::new(StreamTable::new(default)),
            serial: fresh_handle(),
            kernels: OnceLock::new(),
        });
        Ok(Arc::new(Self { descriptor, inner }))
    }

    /// Returns the process-wide device with that number: every caller gets the same object while any of them holds it.
    pub fn shared(ordinal: u32) -> core::result::Result<Arc<Self>, MetalMissing> {
        static SHARED: PerProcess<BTreeMap<u32, Weak<MetalDevice>>> = PerProcess::new();
        SHARED.get_or_open(ordinal, || Self::open(ordinal))
    }

    pub(crate) fn inner(&self, call: Call) -> Result<&Inner> {
        self.inner.get().map_err(|_| Error::Forked { call })
    }

    /// Returns the buffer that contains plain or mapped memory, and the offset of `address` in it, for binding to
    /// kernels. `None` if the memory is not this device's.
    pub fn buffer_at(
        &self,
        address: Address,
    ) -> Option<(Retained<ProtocolObject<dyn MTLBuffer>>, u64)> {
        let location = self.inner(Call::Launch).ok()?.locate(address)?;
        Some((location.buffer.raw().clone(), location.offset))
    }

    /// Enqueues the caller's work on a stream: `encode` gets a command buffer that runs after all work enqueued there,
    /// and before all later work. It must end its encoders, commit nothing, and make no call of the device.
    ///
    /// # Safety
    ///
    /// * The memory that the work uses is live until the work is done, and is used by nobody else in a way that conflicts.
    pub unsafe fn encode(
        &self,
        stream: StreamHandle,
        encode: impl FnOnce(&ProtocolObject<dyn MTLCommandBuffer>) -> Result<()>,
    ) -> Result<()> {
        let inner = self.inner(Call::Launch)?;
        let core = lock(&inner.streams).get(Call::Launch, stream)?;
        core.submit(Call::Launch, Vec::new(), encode).map(drop)
    }
}

impl Inner {
    /// The memory figures. What the GPU can use at once without moving memory out counts as all there is.
    pub(crate) fn figures(&self) -> MemoryInfo {
        let total = Bytes::new(self.raw.recommendedMaxWorkingSetSize());
        let allocated = Bytes::new(self.raw.currentAllocatedSize() as u64);
        let held = lock(&self.space).held().min(total);
        let free = total.saturating_sub(allocated.max(held));
        MemoryInfo { total, free, held, managed: Bytes::ZERO }
    }

    pub(crate) fn out_of_memory(&self, call: Call, requested: Bytes) -> Error {
        self.figures().out_of_memory(call, requested)
    }

    /// The kernels, compiled when they are first asked for.
    pub(crate) fn kernels(&self, call: Call) -> Result<&Kernels> {
        let kernels = self.kernels.get_or_init(|| Kernels::compile(&self.raw));
        kernels.as_ref().map_err(|reason| transfer::no_kernels(call, reason))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        EVENTS.forget_all_of(self.serial);
    }
}

impl fmt::Debug for MetalDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MetalDevice({})", self.descriptor)
    }
}

// SAFETY: pinned memory is given always, and no other group; its bits are set. What is free is cut to what is not held.
// Dropping the device waits for nothing: Metal keeps what its command buffers use, and functions of the host keep their
// stream. In a forked child it leaks.
unsafe impl Device for MetalDevice {
    fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        Ok(self.inner(Call::MemoryInfo)?.figures())
    }

    fn classify(&self, address: Address) -> Result<Option<PointerClass>> {
        Ok(lock(&self.inner(Call::Classify)?.space).classify(address))
    }

    optional_groups! {
        pinned_memory: PinnedMemory if PINNED;
    }
}

// SAFETY: what is enqueued on a stream waits for what was before it, by the stream's timeline; see `stream`. Streams wait
// for nothing else unless told. An event is a value of a timeline, which never goes back. Handles are never given twice.
unsafe impl Streams for MetalDevice {
    fn create_stream(&self, _priority: Priority) -> Result<StreamHandle> {
        let call = Call::CreateStream;
        let inner = self.inner(call)?;
        inner.health.check(call)?;
        let reason = "Metal created no command queue";
        let core = StreamCore::new(&inner.raw, &inner.health);
        let core = core.ok_or_else(|| Error::Transient { call, reason: reason.into() })?;
        let stream = StreamHandle(fresh_handle());
        lock(&inner.streams).insert(stream, core);
        Ok(stream)
    }

    fn destroy_stream(&self, stream: StreamHandle) -> Result<()> {
        let mut streams = lock(&self.inner(Call::DestroyStream)?.streams);
        streams.destroy(stream)?;
        streams.settle(StreamCore::is_done);
        Ok(())
    }

    fn stream_id(&self, stream: StreamHandle) -> Result<StreamId> {
        let call = Call::StreamId;
        lock(&self.inner(call)?.streams).get(call, stream)?;
        Ok(StreamId(stream.0))
    }

    fn query_stream(&self, stream: StreamHandle) -> Result<Progress> {
        let call = Call::QueryStream;
        let core = lock(&self.inner(call)?.streams).get(call, stream)?;
        core.progress(call, core.last())
    }

    fn synchronize_stream(&self, stream: StreamHandle) -> Result<()> {
        let call = Call::SynchronizeStream;
        let core = lock(&self.inner(call)?.streams).get(call, stream)?;
        core.wait(call, core.last())
    }

    fn synchronize_device(&self) -> Result<()> {
        let call = Call::SynchronizeDevice;
        let all = lock(&self.inner(call)?.streams).all();
        all.iter().try_for_each(|core| core.wait(call, core.last()))
    }

    fn enqueue_host(&self, task: HostTask, stream: StreamHandle) -> Result<()> {
        let call = Call::EnqueueHost;
        let core = lock(&self.inner(call)?.streams).get(call, stream)?;
        core.task(call, move || run_host_task(task)).map(drop)
    }

    fn create_event(&self, kind: EventKind) -> Result<EventHandle> {
        Ok(EVENTS.create(kind, self.inner(Call::CreateEvent)?.serial))
    }

    fn destroy_event(&self, event: EventHandle) -> Result<()> {
        EVENTS.destroy(event, self.inner(Call::DestroyEvent)?.serial)
    }

    fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        let call = Call::RecordEvent;
        let inner = self.inner(call)?;
        let core = lock(&inner.streams).get(call, stream)?;
        event::record(&*EVENTS.own(call, event, inner.serial)?, &core)
    }

    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        let call = Call::WaitEvent;
        let core = lock(&self.inner(call)?.streams).get(call, stream)?;
        event::make_stream_wait(&core, event)
    }

    fn query_event(&self, event: EventHandle) -> Result<Progress> {
        self.inner(Call::QueryEvent)?;
        event::query(event)
    }

    fn synchronize_event(&self, event: EventHandle) -> Result<()> {
        self.inner(Call::SynchronizeEvent)?;
        event::synchronize(event)
    }

    fn elapsed(&self, start: EventHandle, end: EventHandle) -> Result<Duration> {
        self.inner(Call::Elapsed)?;
        event::elapsed(start, end)
    }
}
