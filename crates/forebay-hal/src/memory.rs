//! Memory whose address and substance come together: plain, pinned, managed.

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, Span};

use crate::{Result, StreamHandle};

/// Plain memory of a device.
///
/// # Safety
///
/// An implementation promises:
///
/// * Memory it gives out overlaps no other memory it gave and did not take back.
/// * The address is a multiple of the alignment asked for and of the device's own. Alignments up to
///   2 MiB are always had; larger ones may be refused as too much.
/// * No bytes: [`Address::NULL`], and no memory is taken. Freeing [`Address::NULL`] does nothing.
/// * [`Error::OutOfMemory`](crate::Error::OutOfMemory) carries the size that was asked for.
/// * After `free` the memory may be given out again at once. Whether `free` waits for work under way
///   is told by [`Capabilities::PROMPT_FREE`](crate::Capabilities::PROMPT_FREE).
pub unsafe trait Memory {
    /// Gets `size` bytes at a multiple of `alignment`. What they hold is not defined.
    fn allocate(&self, size: Bytes, alignment: Alignment) -> Result<Address>;

    /// Gives back what [`allocate`](Self::allocate) gave.
    ///
    /// # Safety
    ///
    /// * No work that uses the memory is under way or enqueued.
    /// * Nobody reads or writes it from now on.
    unsafe fn free(&self, address: Address) -> Result<()>;
}

bitflags::bitflags! {
    /// What pinned memory is to be.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PinnedFlags: u32 {
        /// The device has an address for it too.
        const MAPPED = 1;
        /// Written past the caches: fast for the device to read, slow for the host to read.
        const WRITE_COMBINED = 1 << 1;
        /// Pinned for every device of the process.
        const PORTABLE = 1 << 2;
    }
}

/// Host memory that stays in place, so that the device copies to and from it on its own.
///
/// # Safety
///
/// An implementation promises:
///
/// * The memory can be read and written by the host at the address given, and is page-aligned.
/// * A flag the device cannot honour is refused with
///   [`Error::Unsupported`](crate::Error::Unsupported), not ignored.
/// * No bytes: [`Address::NULL`]; freeing it does nothing.
/// * Where the system limits locked memory, the error gives that limit.
/// * Registering memory that is registered already is refused and changes nothing.
pub unsafe trait PinnedMemory {
    /// Gets `size` bytes of pinned memory.
    fn allocate_pinned(&self, size: Bytes, flags: PinnedFlags) -> Result<Address>;

    /// Gives back what [`allocate_pinned`](Self::allocate_pinned) gave.
    ///
    /// # Safety
    ///
    /// * No work that uses the memory is under way or enqueued, and nobody uses it from now on.
    unsafe fn free_pinned(&self, address: Address) -> Result<()>;

    /// Pins memory that exists.
    ///
    /// # Safety
    ///
    /// * The span is mapped, and stays mapped until it is unregistered.
    unsafe fn register(&self, span: Span, flags: PinnedFlags) -> Result<()>;

    /// Undoes [`register`](Self::register), by the span's first address.
    ///
    /// # Safety
    ///
    /// * No work that uses the memory is under way or enqueued.
    unsafe fn unregister(&self, start: Address) -> Result<()>;

    /// Where the device sees a host address inside mapped pinned memory.
    fn device_address(&self, host: Address) -> Result<Address>;
}

/// How managed memory will be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// Mostly read: copies may stand in several places.
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

/// Memory with one address for host and device, that moves to where it is used.
///
/// # Safety
///
/// An implementation promises:
///
/// * The host and the device can both read and write the memory at the address given.
/// * Advice and prefetching change where the data is, never what it is.
/// * A span that does not lie in one managed allocation is refused, and so is an ordinal that names
///   no device.
/// * No bytes: [`Address::NULL`]; freeing it does nothing.
pub unsafe trait ManagedMemory {
    /// Gets `size` bytes of managed memory.
    fn allocate_managed(&self, size: Bytes) -> Result<Address>;

    /// Gives back what [`allocate_managed`](Self::allocate_managed) gave.
    ///
    /// # Safety
    ///
    /// * No work that uses the memory is under way or enqueued, and nobody uses it from now on.
    unsafe fn free_managed(&self, address: Address) -> Result<()>;

    /// Moves `span` to device `to`, or to the host for `None`, in the order of `stream`.
    fn prefetch(&self, span: Span, to: Option<DeviceOrdinal>, stream: StreamHandle) -> Result<()>;

    /// Says how `span` will be used.
    fn advise(&self, span: Span, advice: Advice) -> Result<()>;
}
