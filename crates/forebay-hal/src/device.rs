//! The root trait of the device contract.

use core::fmt;

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, Span};
use forebay_sync::fork::ForkGeneration;

#[cfg(unix)]
use crate::Sharing;
use crate::{
    Call, Capabilities, Decompression, Error, ForeignStreams, ManagedMemory, Memory, Peers,
    PinnedMemory, Result, Streams, Transfers, VirtualMemory,
};

named_enum! {
    /// The kinds of devices.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum DeviceKind {
        /// The host's own memory and threads.
        Host = "host",
        /// A simulated accelerator.
        Sim = "sim",
        /// An NVIDIA GPU through the CUDA driver.
        Cuda = "cuda",
        /// An AMD GPU through ROCm's HIP.
        Hip = "hip",
        /// A device behind OpenCL.
        OpenCl = "opencl",
        /// An Apple GPU through Metal.
        Metal = "metal",
    }
}

/// The fixed properties of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Descriptor {
    /// The kind.
    pub kind: DeviceKind,
    /// The index among devices of its kind.
    pub ordinal: DeviceOrdinal,
    /// The name the vendor or system gives it.
    pub name: String,
    /// The version of the driver or system, for display.
    pub driver: String,
    /// Its capabilities.
    pub capabilities: Capabilities,
    /// The minimum alignment of its plain memory.
    pub alignment: Alignment,
    /// Whether it computes on the host's own processor.
    pub is_processor: bool,
    /// The process that opened it.
    fork_generation: ForkGeneration,
}

impl Descriptor {
    /// Creates a descriptor without driver version and capabilities.
    pub fn new(kind: DeviceKind, ordinal: DeviceOrdinal, name: impl Into<String>) -> Self {
        Self {
            kind,
            ordinal,
            name: name.into(),
            driver: String::new(),
            capabilities: Capabilities::empty(),
            alignment: Alignment::BLOCK,
            is_processor: false,
            fork_generation: ForkGeneration::here(),
        }
    }

    /// Returns an error unless the device has the capability.
    pub fn check_capability(&self, call: Call, capability: Capabilities) -> Result<()> {
        if self.capabilities.contains(capability) {
            return Ok(());
        }
        let missing = format!("{capability}, which {self} lacks");
        Err(Error::Unsupported { call, missing: missing.into() })
    }

    /// Whether the parent opened the device before this process was forked. In that case its threads and driver do not
    /// exist here, and its locks may stay locked forever: only [`Device::descriptor`] may be called, and dropping the
    /// device leaks it.
    pub fn is_from_parent(&self) -> bool {
        self.fork_generation.is_stale()
    }

    /// Returns [`Error::Forked`] if the device [is inherited](Self::is_from_parent). Takes no lock.
    pub fn check_process(&self, call: Call) -> Result<()> {
        if self.is_from_parent() { Err(Error::Forked { call }) } else { Ok(()) }
    }

    /// Sets the driver version.
    #[must_use]
    pub fn driver(mut self, driver: impl Into<String>) -> Self {
        self.driver = driver.into();
        self
    }

    /// Sets the capabilities.
    #[must_use]
    pub fn capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// Sets the minimum alignment.
    #[must_use]
    pub fn alignment(mut self, alignment: Alignment) -> Self {
        self.alignment = alignment;
        self
    }

    /// Sets whether it computes on the host's own processor.
    #[must_use]
    pub fn processor(mut self, is_processor: bool) -> Self {
        self.is_processor = is_processor;
        self
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} {}", self.kind, self.ordinal, self.name)
    }
}

/// How much memory a device has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryInfo {
    /// The total memory. On the host, no more than a container's limit.
    pub total: Bytes,
    /// The free memory. Other processes may take it first.
    pub free: Bytes,
    /// The memory that this device object has allocated and not freed: plain memory and pages it created.
    /// Imported pages count for their creator. Each counts in the device's granularity: the requested size
    /// or up to 2 MiB more.
    pub held: Bytes,
    /// The managed memory it has allocated. On some devices this can exceed the total, since it migrates.
    pub managed: Bytes,
}

impl MemoryInfo {
    /// The error of a call that requested more than there is.
    pub const fn out_of_memory(self, call: Call, requested: Bytes) -> Error {
        Error::OutOfMemory { call, requested, free: self.free, total: self.total }
    }

    /// The memory in use, by this or other processes.
    pub const fn used(self) -> Bytes {
        self.total.saturating_sub(self.free)
    }

    /// The used part of the total in percent; 0 if the total is 0.
    pub fn used_percent(self) -> f64 {
        if self.total.is_zero() {
            return 0.0;
        }
        self.used().get() as f64 / self.total.get() as f64 * 100.0
    }
}

/// The kind of memory at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum PointerKind {
    /// Plain memory of the device.
    Device,
    /// A reserved range with a page mapped there.
    Mapped,
    /// A reserved range with nothing mapped there.
    Reserved,
    /// Pinned or registered host memory.
    Pinned,
    /// Managed memory.
    Managed,
}

/// What a device knows about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerClass {
    /// The kind of memory.
    pub kind: PointerKind,
    /// The allocation, mapping or range the address lies in.
    pub span: Span,
}

/// Orders work: streams and events, copies and fills. Implemented for every type with both groups.
pub trait Queue: Streams + Transfers + Send + Sync + fmt::Debug {}

impl<T: Streams + Transfers + Send + Sync + fmt::Debug + ?Sized> Queue for T {}

/// A place where memory lives and work runs.
///
/// # Safety
///
/// An implementation promises, besides the rules in the [crate's documentation](crate):
///
/// * Everything that the traits [`Memory`], [`Streams`], [`Transfers`] and its optional groups demand.
/// * A group is always present or always absent, matching its bit in [`Descriptor::capabilities`].
/// * [`MemoryInfo::free`] plus [`MemoryInfo::held`] is never above [`MemoryInfo::total`].
/// * In a forked child, a device that was opened before the fork takes no lock when it is dropped: it leaks
///   its resources. [`Descriptor::new`] records the process, and [`Descriptor::is_from_parent`] compares it.
/// * Dropping the device while it has live objects neither crashes nor blocks forever. Copies, fills and
///   kernels that were not waited for may or may not run: synchronise first if it matters, or if they use
///   host memory.
pub unsafe trait Device: Memory + Queue {
    /// The device's fixed properties.
    fn descriptor(&self) -> &Descriptor;

    /// The memory figures. Not for hot paths: a driver takes microseconds to answer.
    fn memory_info(&self) -> Result<MemoryInfo>;

    /// What the device knows about `address`; `None` for memory that is not its own.
    fn classify(&self, address: Address) -> Result<Option<PointerClass>>;

    /// Whether the device can copy directly to and from all of this host memory, as far as it knows: memory that any
    /// library pinned or registered with the driver.
    fn is_pinned(&self, span: Span) -> bool {
        let mut at = span.start();
        while at < span.end() {
            match self.classify(at) {
                Ok(Some(class)) if class.kind == PointerKind::Pinned && class.span.end() > at => {
                    at = class.span.end();
                }
                _ => return false,
            }
        }
        !span.size().is_zero()
    }

    /// Virtual memory management, if the device supports it.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        None
    }

    /// Pinned host memory, if the device supports it.
    fn pinned_memory(&self) -> Option<&dyn PinnedMemory> {
        None
    }

    /// Managed memory, if the device supports it.
    fn managed_memory(&self) -> Option<&dyn ManagedMemory> {
        None
    }

    /// Other devices' memory, if the device supports it.
    fn peers(&self) -> Option<&dyn Peers> {
        None
    }

    /// Streams that other libraries created, if the device supports them.
    fn foreign_streams(&self) -> Option<&dyn ForeignStreams> {
        None
    }

    /// LZ4 blocks decoded by the device, if it supports that.
    fn decompression(&self) -> Option<&dyn Decompression> {
        None
    }

    /// Memory shared with other processes, if the device supports it.
    #[cfg(unix)]
    fn sharing(&self) -> Option<&dyn Sharing> {
        None
    }
}
