//! The CUDA device.

use core::ffi::{CStr, c_char, c_int};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, PageSize, Span};
use forebay_hal::address_book::Figures;
use forebay_hal::{
    Asked, Call, Capabilities, Descriptor, Device, Error, Granularity, MemoryInfo, PointerClass,
    Result, fresh_handle, optional_groups,
};
use forebay_sync::fork::PerProcess;
use forebay_sync::lock;

use crate::context::{Context, DriverPointer};
use crate::context_pools::ContextPools;
use crate::driver::CudaDriver;
use crate::kernel::can_launch;
use crate::refusal::{self};
use crate::space::{PageOrigin, Space};
use crate::stream::StreamTable;
use crate::sys::values::{allocation, attribute, granularity, handle_type, location};
use crate::sys::{AllocationProperties, DriverError, MemoryLocation, Outcome};

/// The alignment of every address of `cuMemAlloc`, by CUDA's documentation.
pub(crate) const ALIGNMENT: Alignment = match Alignment::of_log2(8) {
    Some(alignment) => alignment,
    None => Alignment::ONE,
};

/// The most pitch every driver takes, for those that do not say.
const LEAST_MAX_PITCH: u64 = 262_144;

/// An NVIDIA GPU through the CUDA driver.
///
/// It works in the device's primary context, which the CUDA runtime and so most libraries use, or in a given one. Every
/// call leaves the calling thread's current context unchanged. Several devices may be open at once, each with its own
/// tables; they share pooled streams and events.
#[derive(Debug)]
pub struct CudaDevice {
    pub(crate) driver: &'static CudaDriver,
    pub(crate) pools: &'static ContextPools,
    /// That of `pools`.
    pub(crate) context: &'static Context,
    /// Tells this device from others opened in the same context.
    pub(crate) serial: u64,
    pub(crate) descriptor: Descriptor,
    pub(crate) granularity: Granularity,
    pub(crate) max_pitch: u64,
    pub(crate) space: Arc<Mutex<Space>>,
    /// Held across calls that change what is mapped where.
    pub(crate) mapping: Mutex<()>,
    pub(crate) streams: RwLock<StreamTable>,
    pub(crate) enabled_peers: Mutex<BTreeSet<DeviceOrdinal>>,
}

impl CudaDevice {
    /// Opens a device of the system's driver by its number.
    pub fn open(ordinal: u32) -> Result<Arc<Self>> {
        Self::open_with(CudaDriver::load()?, ordinal)
    }

    /// Returns the process-wide device with that number: every caller gets the same object while any of them holds it,
    /// so all share the streams that one created or adopted.
    pub fn shared(ordinal: u32) -> Result<Arc<Self>> {
        static SHARED: PerProcess<BTreeMap<u32, Weak<CudaDevice>>> = PerProcess::new();
        SHARED.get_or_open(ordinal, || Self::open(ordinal))
    }

    /// Opens a device of a given driver by its number.
    pub fn open_with(driver: &'static CudaDriver, ordinal: u32) -> Result<Arc<Self>> {
        let pools = driver.primary_context(Call::Open, DeviceOrdinal(ordinal))?;
        Ok(Arc::new(Self::new(driver, pools)))
    }

    /// Opens a device in a context that another library created, so that its streams can be used.
    ///
    /// # Safety
    ///
    /// * `context` is a live context of `driver`, and stays one for the rest of the process.
    pub unsafe fn open_in(driver: &'static CudaDriver, context: u64) -> Result<Arc<Self>> {
        // SAFETY: as the caller promised.
        let pools = unsafe { driver.foreign_context(context) }?;
        Ok(Arc::new(Self::new(driver, pools)))
    }

    fn new(driver: &'static CudaDriver, pools: &'static ContextPools) -> Self {
        let context = pools.context;
        let granularity = granularity_of(context);
        let descriptor = Descriptor::new(context.vendor.kind, context.ordinal, name(context))
            .driver(driver_name(driver))
            .capabilities(capabilities(context, granularity))
            .alignment(ALIGNMENT);
        let pages = Granularity { minimum: PageSize::DEVICE, recommended: PageSize::DEVICE };
        let max_pitch = u64::try_from(context.attribute(attribute::MAX_PITCH)).unwrap_or(0);
        Self {
            driver,
            pools,
            context,
            serial: fresh_handle(),
            descriptor,
            granularity: granularity.unwrap_or(pages),
            max_pitch: max_pitch.max(LEAST_MAX_PITCH),
            space: context.new_space(),
            mapping: Mutex::default(),
            streams: RwLock::new(StreamTable::new(&pools.default_stream)),
            enabled_peers: Mutex::default(),
        }
    }

    /// The driver that opened it.
    pub fn driver(&self) -> &'static CudaDriver {
        self.driver
    }

    /// The context it works in, as the driver names it.
    pub fn raw_context(&self) -> u64 {
        self.context.raw.0
    }

    /// An attribute of the device by its number in CUDA's header; 0 if the driver does not know it.
    pub fn attribute(&self, number: u32) -> c_int {
        self.context.attribute(number)
    }

    /// What the driver knows about an address, whichever library allocated the memory; `None` if it knows nothing.
    /// [`classify`](Device::classify) covers only this device's own memory.
    pub fn driver_pointer(&self, address: Address) -> Option<DriverPointer> {
        self.context.pointer(address)
    }

    /// The books.
    pub(crate) fn space(&self) -> MutexGuard<'_, Space> {
        lock(&self.space)
    }

    /// Whether pages can leave the process.
    pub(crate) fn shares(&self) -> bool {
        self.descriptor.capabilities.contains(Capabilities::SHARE_BY_FD)
    }

    pub(crate) fn has(&self, capability: Capabilities) -> bool {
        self.descriptor.capabilities.contains(capability)
    }

    /// How much memory there is, by the driver and by the books.
    fn figures(&self) -> Outcome<MemoryInfo> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are written to places of our own.
        self.context.call(|table| unsafe { table.mem_get_info(&raw mut free, &raw mut total) })?;
        let Figures { held, managed, .. } = self.space().figures;
        let total = Bytes::new(total);
        // Others take and give back between the two looks: what is held is never free.
        let free = Bytes::new(free).min(total.saturating_sub(held));
        Ok(MemoryInfo { total, free, held: held.min(total), managed })
    }

    /// The error of a call the driver refused.
    pub(crate) fn refused(&self, call: Call, refusal: DriverError, asked: &Asked) -> Error {
        let figures = || self.figures().unwrap_or_default();
        refusal::error(call, refusal, asked, figures, Some(self.context.table()))
    }

    /// What makes the error of a refusal: for `map_err`.
    pub(crate) fn refusing(
        &self,
        call: Call,
        asked: impl FnOnce() -> Asked,
    ) -> impl FnOnce(DriverError) -> Error {
        move |refusal| self.refused(call, refusal, &asked())
    }

    /// More than there is.
    pub(crate) fn out_of_memory(&self, call: Call, requested: Bytes) -> Error {
        self.figures().unwrap_or_default().out_of_memory(call, requested)
    }
}

/// What the vendor calls the device.
fn name(context: &Context) -> String {
    const LENGTH: c_int = 256;
    let mut name: [c_char; 256] = [0; 256];
    // SAFETY: a place of our own of that length.
    let told = context
        .call(|table| unsafe { table.device_get_name(name.as_mut_ptr(), LENGTH, context.device) });
    // The last place is never written, so there is an end.
    if let Some(last) = name.last_mut() {
        *last = 0;
    }
    // SAFETY: it ends with a zero.
    let text = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    if told.is_err() || text.is_empty() { context.vendor.unnamed.to_owned() } else { text }
}

/// The versions of the interface and, where the system tells it, of the kernel's module.
fn driver_name(driver: &CudaDriver) -> String {
    let (major, minor) = driver.version();
    let interface = format!("{} {major}.{minor}", driver.vendor.interface.name);
    let text = std::fs::read_to_string(driver.vendor.module_version).unwrap_or_default();
    let is_version = |word: &&str| {
        word.contains('.') && word.chars().all(|letter| letter.is_ascii_digit() || letter == '.')
    };
    match text.lines().next().and_then(|line| line.split_whitespace().find(is_version)) {
        Some(module) => format!("{interface}, driver {module}"),
        None => interface,
    }
}

/// The properties of pages of the context's device.
pub(crate) fn properties(context: &Context, origin: PageOrigin) -> AllocationProperties {
    AllocationProperties {
        kind: allocation::PINNED,
        handle_types: match origin {
            PageOrigin::Private | PageOrigin::Pinned => handle_type::NONE,
            PageOrigin::Shareable | PageOrigin::Imported => handle_type::FILE_DESCRIPTOR,
        },
        location: match origin {
            PageOrigin::Pinned => host_location(context),
            _ => MemoryLocation { kind: location::DEVICE, id: context.device },
        },
        ..AllocationProperties::default()
    }
}

/// The host memory nearest to the device.
pub(crate) fn host_location(context: &Context) -> MemoryLocation {
    let node = context.attribute(attribute::HOST_NUMA_NODE);
    MemoryLocation { kind: location::HOST_NUMA, id: node.max(0) }
}

/// The page sizes of the context's device; `None` if the driver does not say.
fn granularity_of(context: &Context) -> Option<Granularity> {
    let ask = |option| page_size_of(context, PageOrigin::Private, option);
    let minimum = ask(granularity::MINIMUM)?;
    let recommended = ask(granularity::RECOMMENDED).unwrap_or(minimum).max(minimum);
    Some(Granularity { minimum, recommended })
}

/// The smallest page of pinned host memory; `None` if the driver does not say.
fn pinned_page_of(context: &Context) -> Option<PageSize> {
    page_size_of(context, PageOrigin::Pinned, granularity::MINIMUM)
}

fn page_size_of(context: &Context, origin: PageOrigin, option: u32) -> Option<PageSize> {
    let (mut bytes, properties) = (0, properties(context, origin));
    context
        .call(|table| {
            // SAFETY: the figure is written to a place of our own.
            unsafe { table.mem_granularity(&raw mut bytes, &raw const properties, option) }
        })
        .ok()?;
    PageSize::new(bytes).ok()
}

/// What the device can do: what the hardware can and the driver has functions for.
fn capabilities(context: &Context, granularity: Option<Granularity>) -> Capabilities {
    let table = context.table();
    let can = |number| context.attribute(number) != 0;
    let mut bits = Capabilities::DATA | Capabilities::TIMED_EVENTS | Capabilities::FOREIGN_STREAMS;
    let pinned = table.mem_host_alloc.is_some() && table.mem_free_host.is_some();
    let maps =
        pinned && table.mem_host_device_pointer.is_some() && can(attribute::CAN_MAP_HOST_MEMORY);
    let registers = pinned
        && table.mem_host_register.is_some()
        && table.mem_host_unregister.is_some()
        && can(attribute::HOST_REGISTER);
    // Without concurrent access the host would crash where it touches memory while a kernel runs.
    let managed = table.mem_alloc_managed.is_some()
        && (table.mem_prefetch_v2.is_some() || table.mem_prefetch_v1.is_some())
        && (table.mem_advise_v2.is_some() || table.mem_advise_v1.is_some())
        && can(attribute::MANAGED_MEMORY)
        && can(attribute::CONCURRENT_MANAGED_ACCESS);
    let pages = granularity.is_some()
        && table.mem_address_reserve.is_some()
        && table.mem_address_free.is_some()
        && table.mem_create.is_some()
        && table.mem_release.is_some()
        && table.mem_map.is_some()
        && table.mem_unmap.is_some()
        && table.mem_set_access.is_some()
        && can(attribute::VIRTUAL_MEMORY);
    let pinned_pages = pages
        && can(attribute::HOST_PAGES)
        && pinned_page_of(context)
            .is_some_and(|host| granularity.is_some_and(|own| host <= own.minimum));
    let shares = pages
        && table.mem_export.is_some()
        && table.mem_import.is_some()
        && can(attribute::SHARE_BY_DESCRIPTOR);
    let peers = table.device_can_access_peer.is_some()
        && table.context_enable_peer.is_some()
        && table.context_disable_peer.is_some()
        && table.memcpy_peer.is_some();
    let priorities = table.context_priority_range.is_some() && can(attribute::STREAM_PRIORITIES);
    for (bit, has) in [
        (Capabilities::PINNED, pinned),
        (Capabilities::PINNED_MAPPED, maps),
        (Capabilities::PINNED_WRITE_COMBINED, pinned),
        (Capabilities::REGISTER, registers),
        (Capabilities::MANAGED, managed),
        (Capabilities::VIRTUAL_MEMORY, pages),
        (Capabilities::PINNED_PAGES, pinned_pages),
        (Capabilities::SHARE_BY_FD, shares),
        (Capabilities::PEERS, peers),
        (Capabilities::PRIORITIES, priorities),
        (Capabilities::HOST_TASKS, context.has_tasks()),
        (Capabilities::DECOMPRESSION, can_launch(table)),
        (Capabilities::PER_THREAD_STREAMS, table.context_synchronize.is_some()),
    ] {
        bits.set(bit, has);
    }
    bits
}

// SAFETY: the groups given are those whose bits are set, fixed when the device is opened. What is
// free is cut to what is not held, read after the driver's figure. Dropping the device waits for
// nothing: see `leftovers`.
unsafe impl Device for CudaDevice {
    fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.figures().map_err(|refusal| {
            let asked = Asked::of("device", &self.descriptor, "a device that is up");
            self.refused(Call::MemoryInfo, refusal, &asked)
        })
    }

    fn classify(&self, address: Address) -> Result<Option<PointerClass>> {
        Ok(self.space().book.classify(address))
    }

    fn is_pinned(&self, span: Span) -> bool {
        // What other libraries have pinned the driver knows.
        let known = || self.context.pointer(span.start()).filter(|known| known.on_host);
        !span.size().is_zero()
            && !self.descriptor().is_from_parent()
            && (self.space().is_pinned(span)
                || known().is_some_and(|known| !known.managed && known.span.contains_span(span)))
    }

    optional_groups! {
        virtual_memory: VirtualMemory if VIRTUAL_MEMORY;
        pinned_memory: PinnedMemory if PINNED;
        managed_memory: ManagedMemory if MANAGED;
        decompression: Decompression if DECOMPRESSION;
        peers: Peers if PEERS;
        foreign_streams: ForeignStreams if FOREIGN_STREAMS;
        sharing: Sharing if SHARE_BY_FD;
    }
}
