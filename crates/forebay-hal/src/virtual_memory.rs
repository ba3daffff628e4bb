//! Addresses apart from the memory behind them.
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

/// One physical handle of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageHandle(pub u64);

impl fmt::Display for PageHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {}", self.0)
    }
}

/// What sizes of pages and addresses a device deals in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granularity {
    /// Page sizes, region sizes and mapping addresses are multiples of this.
    pub minimum: PageSize,
    /// The page size the driver handles best.
    pub recommended: PageSize,
}

/// What a page is to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageOptions {
    /// Whether the page can leave the process through [`Sharing`](crate::Sharing).
    pub shareable: bool,
    /// Whether the page is pinned host memory: see [`PageOptions::pinned`].
    pub pinned: bool,
}

impl PageOptions {
    /// A page that can leave the process.
    pub const fn shareable() -> Self {
        Self { shareable: true, pinned: false }
    }

    /// A page of pinned host memory, where the device has
    /// [`Capabilities::PINNED_PAGES`](crate::Capabilities::PINNED_PAGES). The host reads and writes it
    /// wherever it is mapped and the device has access, and copies name these addresses as
    /// [`Place::Host`](crate::Place::Host).
    pub const fn pinned() -> Self {
        Self { shareable: false, pinned: true }
    }
}

/// Who may do what with mapped addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// Nothing: as it is after `map`.
    None,
    /// Reading.
    Read,
    /// Reading and writing.
    ReadWrite,
}

impl Access {
    /// Whether it allows what `need` is: reading, or reading and writing.
    pub const fn allows(self, need: Self) -> bool {
        self as u8 >= need as u8
    }
}

/// Reserve, create, map, set access, unmap, release.
///
/// None of these calls waits for the device: order against enqueued work is the caller's, by
/// streams and events.
///
/// # Safety
///
/// An implementation promises:
///
/// * Regions overlap neither each other nor anything else of the device.
/// * Sizes and addresses that are not multiples of [`Granularity::minimum`], and no bytes, are
///   refused with [`Error::Invalid`](crate::Error::Invalid).
/// * A page maps whole or not at all, inside one region, where nothing is mapped; anything else is
///   refused.
/// * One page may be mapped at several places at once: what is written through one is read through
///   the other, once the operation that wrote has finished.
/// * After `map` nobody has access until `set_access` grants it, over whole mappings with no hole
///   between them, to a device that exists; anything else is refused.
/// * `unmap` takes whole mappings, one or several that lie side by side, and refuses to cut one.
/// * A released page lives on, in [`MemoryInfo::held`](crate::MemoryInfo::held) too, while it is
///   mapped somewhere; its memory goes back with the last mapping. It cannot be mapped again.
/// * A [pinned](PageOptions::pinned) page is in no figure of the device's memory. Devices that have none
///   refuse it with [`Error::Unsupported`](crate::Error::Unsupported).
/// * A region with something mapped in it is not released:
///   [`Error::Busy`](crate::Error::Busy).
pub unsafe trait VirtualMemory {
    /// What sizes the device deals in.
    fn granularity(&self) -> Granularity;

    /// Reserves `size` addresses from a multiple of `alignment`.
    fn reserve(&self, size: Bytes, alignment: Alignment) -> Result<Span>;

    /// Gives back a region, by its first address.
    ///
    /// # Safety
    ///
    /// * Nobody uses an address in it from now on, nor does enqueued work.
    unsafe fn release_region(&self, start: Address) -> Result<()>;

    /// Gets `size` bytes of physical memory, to be mapped. What they hold is not defined.
    fn create_page(&self, size: Bytes, options: PageOptions) -> Result<PageHandle>;

    /// Gives back a page.
    fn release_page(&self, page: PageHandle) -> Result<()>;

    /// Puts a page behind the addresses from `at`.
    fn map(&self, at: Address, page: PageHandle) -> Result<()>;

    /// Grants `access` to `device` over mappings that cover `span` exactly.
    ///
    /// # Safety
    ///
    /// * Nobody, enqueued work included, uses `span` in a way that `access` takes away.
    unsafe fn set_access(&self, span: Span, access: Access, device: DeviceOrdinal) -> Result<()>;

    /// Takes the pages behind `span` away.
    ///
    /// # Safety
    ///
    /// * Nobody uses an address in `span` from now on, nor does enqueued work.
    unsafe fn unmap(&self, span: Span) -> Result<()>;
}
