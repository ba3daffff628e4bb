//! What every device is: the root of the contract.

use core::fmt;

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, Span};
use forebay_sync::fork::Birth;

#[cfg(unix)]
use crate::Sharing;
use crate::{
    Call, Capabilities, Error, ForeignStreams, ManagedMemory, Memory, Peers, PinnedMemory, Result,
    Streams, Transfers, VirtualMemory,
};

/// The kinds of device forebay knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The host's own memory and threads.
    Host,
    /// A simulated accelerator.
    Sim,
    /// An NVIDIA GPU through the CUDA driver.
    Cuda,
    /// An AMD GPU through ROCm's HIP.
    Hip,
    /// A device behind OpenCL.
    OpenCl,
    /// An Apple GPU through Metal.
    Metal,
}

impl DeviceKind {
    /// The name in commands and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Sim => "sim",
            Self::Cuda => "cuda",
            Self::Hip => "hip",
            Self::OpenCl => "opencl",
            Self::Metal => "metal",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a device is. Fixed for its life.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Descriptor {
    /// The kind.
    pub kind: DeviceKind,
    /// Which of its kind.
    pub ordinal: DeviceOrdinal,
    /// The name the vendor or system gives it.
    pub name: String,
    /// The version of the driver or system, for people.
    pub driver: String,
    /// What it can do.
    pub capabilities: Capabilities,
    /// What every address of its plain memory is a multiple of, whatever was asked.
    pub alignment: Alignment,
    /// The process that opened it.
    birth: Birth,
}

impl Descriptor {
    /// A descriptor of its parts.
    pub fn new(kind: DeviceKind, ordinal: DeviceOrdinal, name: impl Into<String>) -> Self {
        Self {
            kind,
            ordinal,
            name: name.into(),
            driver: String::new(),
            capabilities: Capabilities::empty(),
            alignment: Alignment::BLOCK,
            birth: Birth::here(),
        }
    }

    /// Whether the device was opened before this process was forked from the one that opened it. Then its
    /// threads and its driver did not come along, and its locks may be held for ever: nothing but
    /// [`Device::descriptor`] may be called, and dropping it leaks.
    pub fn is_inherited(&self) -> bool {
        self.birth.is_elsewhere()
    }

    /// [`Error::Forked`] where the device [is inherited](Self::is_inherited). Takes no lock.
    pub fn check_process(&self, call: Call) -> Result<()> {
        if self.is_inherited() { Err(Error::Forked { call }) } else { Ok(()) }
    }

    /// The same with `driver`.
    #[must_use]
    pub fn driver(mut self, driver: impl Into<String>) -> Self {
        self.driver = driver.into();
        self
    }

    /// The same with `capabilities`.
    #[must_use]
    pub fn capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// The same with `alignment`.
    #[must_use]
    pub fn alignment(mut self, alignment: Alignment) -> Self {
        self.alignment = alignment;
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
    /// All there is. On the host, no more than a container's limit.
    pub total: Bytes,
    /// What could still be had. Others may take it first.
    pub free: Bytes,
    /// What this device object has given out and not taken back: plain memory and pages it created.
    /// Imported pages are their creator's. Each counts in the units the device takes memory in: what
    /// was asked, or up to 2 MiB more.
    pub held: Bytes,
    /// What it has given out as managed memory: on some devices more than there is, since it moves.
    pub managed: Bytes,
}

impl MemoryInfo {
    /// What is in use, by this process or others.
    pub const fn used(self) -> Bytes {
        self.total.saturating_sub(self.free)
    }

    /// The used part of the total in percent, 0 where there is no memory.
    pub fn used_percent(self) -> f64 {
        if self.total.is_zero() {
            return 0.0;
        }
        self.used().get() as f64 / self.total.get() as f64 * 100.0
    }
}

/// What kind of memory an address lies in.
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

/// What a device knows of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerClass {
    /// The kind of memory.
    pub kind: PointerKind,
    /// The allocation, mapping or range the address lies in.
    pub span: Span,
}

/// Somewhere memory lives and work runs.
///
/// # Safety
///
/// An implementation promises, besides the rules in the [crate's documentation](crate):
///
/// * Everything the traits [`Memory`], [`Streams`], [`Transfers`] and the groups it gives demand.
/// * A group is given always or never, and exactly where its bit is in
///   [`Descriptor::capabilities`].
/// * [`MemoryInfo::free`] plus [`MemoryInfo::held`] is never above [`MemoryInfo::total`].
/// * In a forked child a device that was opened before the fork takes no lock when it is dropped: it leaks
///   what it has. [`Descriptor::new`] notes the process, [`Descriptor::is_inherited`] tells.
/// * Dropping the device with things still alive neither crashes nor blocks for ever. Copies, fills
///   and kernels that nobody waited for may still run or may be let go: who wants to know, and who
///   lent host memory to them, synchronises first.
pub unsafe trait Device: Memory + Streams + Transfers + Send + Sync + fmt::Debug {
    /// What the device is.
    fn descriptor(&self) -> &Descriptor;

    /// How much memory there is. Not for hot paths: a driver takes microseconds for it.
    fn memory_info(&self) -> Result<MemoryInfo>;

    /// What the device knows of `address`; `None` for memory that is none of its own.
    fn classify(&self, address: Address) -> Result<Option<PointerClass>>;

    /// Addresses apart from the memory behind them, where the device can.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        None
    }

    /// Pinned host memory, where the device can.
    fn pinned_memory(&self) -> Option<&dyn PinnedMemory> {
        None
    }

    /// Memory that moves by itself, where the device can.
    fn managed_memory(&self) -> Option<&dyn ManagedMemory> {
        None
    }

    /// Other devices' memory, where the device can.
    fn peers(&self) -> Option<&dyn Peers> {
        None
    }

    /// Streams that others made, where there can be any.
    fn foreign_streams(&self) -> Option<&dyn ForeignStreams> {
        None
    }

    /// Other processes' memory, where the device can.
    #[cfg(unix)]
    fn sharing(&self) -> Option<&dyn Sharing> {
        None
    }
}
