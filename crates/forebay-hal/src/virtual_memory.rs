//! Address ranges, separate from the memory mapped there.
//!
//! ```text
//!   region   |------------------------------------------------|   reserve: addresses, no memory
//!   pages         [ A ]   [ B ][ A ]                              create_page: memory, no address
//!                   ^       ^    ^
//!                   map     map  map: the same page at two places is one memory
//! ```

use core::fmt;

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, PageSize, Span};

use crate::Result;

/// The driver's handle of a physical page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageHandle(pub u64);

impl fmt::Display for PageHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {}", self.0)
    }
}

/// The page and address granularity of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granularity {
    /// Page sizes, region sizes and mapping addresses are multiples of this.
    pub minimum: PageSize,
    /// The page size the driver handles best.
    pub recommended: PageSize,
}

/// The options for a new page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageOptions {
    /// Whether the page can leave the process through [`Sharing`](crate::Sharing).
    pub shareable: bool,
    /// Whether the page is pinned host memory: see [`PageOptions::pinned`].
    pub pinned: bool,
}

impl PageOptions {
    /// A page that can be shared with other processes.
    pub const fn shareable() -> Self {
        Self { shareable: true, pinned: false }
    }

    /// A page of pinned host memory, where the device has
    /// [`Capabilities::PINNED_PAGES`](crate::Capabilities::PINNED_PAGES). The host reads and writes it
    /// wherever it is mapped and the device has access, and copies name these addresses as
    /// [`Location::Host`](crate::Location::Host).
    pub const fn pinned() -> Self {
        Self { shareable: false, pinned: true }
    }
}

/// The access a device has to mapped addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// No access: the state after `map`.
    None,
    /// Reading.
    Read,
    /// Reading and writing.
    ReadWrite,
}

impl Access {
    /// Whether it allows `need`: reading, or reading and writing.
    pub const fn allows(self, need: Self) -> bool {
        self as u8 >= need as u8
    }
}

/// Reserve, create, map, set access, unmap, release.
///
/// None of these calls waits for the device: the caller orders them against enqueued work with streams and events.
///
/// # Safety
///
/// An implementation promises:
///
/// * Regions overlap neither each other nor anything else of the device.
/// * Sizes of 0, and sizes and addresses that are not multiples of [`Granularity::minimum`], are refused with
///   [`Error::Invalid`](crate::Error::Invalid).
/// * A page is mapped whole, inside one region, where nothing else is mapped; anything else is refused.
/// * One page may be mapped at several places at once: what is written through one is read through
///   the other, once the operation that wrote has finished.
/// * After `map` there is no access until `set_access` grants it, over whole mappings with no hole between them, to a
///   device that exists; anything else is refused.
/// * `unmap` takes one or more whole, adjacent mappings, and refuses to split one.
/// * A released page lives on, in [`MemoryInfo::held`](crate::MemoryInfo::held) too, while it is
///   mapped somewhere; its memory goes back with the last mapping. It cannot be mapped again.
/// * A [pinned](PageOptions::pinned) page does not count towards the device's memory. Devices without pinned pages
///   refuse it with [`Error::Unsupported`](crate::Error::Unsupported).
/// * Releasing a region with something mapped in it fails with [`Error::Busy`](crate::Error::Busy).
pub unsafe trait VirtualMemory {
    /// The page and address granularity.
    fn granularity(&self) -> Granularity;

    /// Reserves `size` bytes of addresses that start at a multiple of `alignment`.
    fn reserve(&self, size: Bytes, alignment: Alignment) -> Result<Span>;

    /// Releases a region, by its first address.
    ///
    /// # Safety
    ///
    /// * Nothing, including enqueued work, uses an address in it from now on.
    unsafe fn release_region(&self, start: Address) -> Result<()>;

    /// Creates a page of `size` bytes of physical memory. Its contents are undefined.
    fn create_page(&self, size: Bytes, options: PageOptions) -> Result<PageHandle>;

    /// Releases a page.
    fn release_page(&self, page: PageHandle) -> Result<()>;

    /// Maps a page at `at`.
    fn map(&self, at: Address, page: PageHandle) -> Result<()>;

    /// Grants `access` to `device` over mappings that cover `span` exactly.
    ///
    /// # Safety
    ///
    /// * Nothing, including enqueued work, uses `span` in a way that `access` takes away.
    unsafe fn set_access(&self, span: Span, access: Access, device: DeviceOrdinal) -> Result<()>;

    /// Unmaps the pages in `span`.
    ///
    /// # Safety
    ///
    /// * Nothing, including enqueued work, uses an address in `span` from now on.
    unsafe fn unmap(&self, span: Span) -> Result<()>;
}
