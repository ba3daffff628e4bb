//! Memory that is allocated together with its address: plain, pinned and managed.

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, Span};

use crate::{Result, StreamHandle};

/// Plain memory of a device.
///
/// # Safety
///
/// An implementation promises:
///
/// * Live allocations do not overlap.
/// * The address has the requested alignment and the device's own. Alignments up to 2 MiB are always
///   supported; larger ones may be refused.
/// * A request for 0 bytes returns [`Address::NULL`] and takes no memory. Freeing [`Address::NULL`] does
///   nothing.
/// * [`Error::OutOfMemory`](crate::Error::OutOfMemory) carries the requested size.
/// * After `free` the memory may be allocated again at once.
///   [`Capabilities::PROMPT_FREE`](crate::Capabilities::PROMPT_FREE) says that `free` does not wait for
///   work in progress.
pub unsafe trait Memory {
    /// Allocates `size` bytes with `alignment`. Their contents are undefined.
    fn allocate(&self, size: Bytes, alignment: Alignment) -> Result<Address>;

    /// Frees memory from [`allocate`](Self::allocate).
    ///
    /// # Safety
    ///
    /// * No running or enqueued work uses the memory.
    /// * Nothing reads or writes it from now on.
    unsafe fn free(&self, address: Address) -> Result<()>;
}

bitflags::bitflags! {
    /// Properties of pinned memory.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PinnedFlags: u32 {
        /// The device has an address for it too.
        const MAPPED = 1;
        /// Write-combined: fast for the device to read, slow for the host to read.
        const WRITE_COMBINED = 1 << 1;
        /// Pinned for every device of the process.
        const PORTABLE = 1 << 2;
    }
}

/// Page-locked host memory, which the device copies to and from directly.
///
/// # Safety
///
/// An implementation promises:
///
/// * The memory can be read and written by the host at the address given, and is page-aligned.
/// * A flag the device cannot honour is refused with
///   [`Error::Unsupported`](crate::Error::Unsupported), not ignored.
/// * A request for 0 bytes returns [`Address::NULL`]; freeing it does nothing.
/// * Where the system limits locked memory, the error gives that limit.
/// * Registering memory that is registered already is refused and changes nothing.
pub unsafe trait PinnedMemory {
    /// Allocates `size` bytes of pinned memory.
    fn allocate_pinned(&self, size: Bytes, flags: PinnedFlags) -> Result<Address>;

    /// Frees memory from [`allocate_pinned`](Self::allocate_pinned).
    ///
    /// # Safety
    ///
    /// * No running or enqueued work uses the memory, and nothing uses it from now on.
    unsafe fn free_pinned(&self, address: Address) -> Result<()>;

    /// Pins existing host memory.
    ///
    /// # Safety
    ///
    /// * The span is mapped, and stays mapped until it is unregistered.
    unsafe fn register(&self, span: Span, flags: PinnedFlags) -> Result<()>;

    /// Undoes [`register`](Self::register), by the span's first address.
    ///
    /// # Safety
    ///
    /// * No running or enqueued work uses the memory.
    unsafe fn unregister(&self, start: Address) -> Result<()>;

    /// The device address of a host address inside mapped pinned memory.
    fn device_address(&self, host: Address) -> Result<Address>;
}

/// How managed memory will be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// Mostly read: several devices may keep copies.
    ReadMostly,
    /// No longer mostly read.
    NotReadMostly,
    /// Best kept at this device, or on the host for `None`.
    PreferredLocation(Option<DeviceOrdinal>),
    /// No preference any more.
    NoPreferredLocation,
    /// This device, or the host for `None`, will reach for it: keep it mapped there.
    AccessedBy(Option<DeviceOrdinal>),
    /// It will no longer reach for it.
    NotAccessedBy(Option<DeviceOrdinal>),
}

/// Memory with one address for host and device that migrates to where it is used.
///
/// # Safety
///
/// An implementation promises:
///
/// * The host and the device can both read and write the memory at the address given.
/// * Advice and prefetching change where the data is, never what it is.
/// * A span that does not lie in one managed allocation is refused, and so is an ordinal that names
///   no device.
/// * A request for 0 bytes returns [`Address::NULL`]; freeing it does nothing.
pub unsafe trait ManagedMemory {
    /// Allocates `size` bytes of managed memory.
    fn allocate_managed(&self, size: Bytes) -> Result<Address>;

    /// Frees memory from [`allocate_managed`](Self::allocate_managed).
    ///
    /// # Safety
    ///
    /// * No running or enqueued work uses the memory, and nothing uses it from now on.
    unsafe fn free_managed(&self, address: Address) -> Result<()>;

    /// Moves `span` to device `to`, or to the host for `None`, in the order of `stream`.
    fn prefetch(&self, span: Span, to: Option<DeviceOrdinal>, stream: StreamHandle) -> Result<()>;

    /// Says how `span` will be used.
    fn advise(&self, span: Span, advice: Advice) -> Result<()>;
}
