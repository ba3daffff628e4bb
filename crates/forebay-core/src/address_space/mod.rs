//! The addresses of a pool as one space: which are backed by pages, which of those are free, and in which streams'
//! order.
//!
//! ```text
//!   addresses   ────────────────────────────────────────────────────────────────────>
//!   reserved    [                                                                     ]
//!   pages       [   page 1   ][ page 2 ]          [ page 3 ]  (alias)      [  page 4  ]
//!   blocks      ####  ########                      ######                  ##########
//!   holes           ..        .........           ..      ..
//!                   {A}       {A, B}              {B}     {B}
//! ```
//!
//! A **hole** is free memory, backed by pages throughout. It is free in the order of some streams:
//! those on which it was freed, and those that have waited for them since. Neighbouring holes merge
//! if they have a stream in common. Holes with the same set of streams form a **group**. A **gap** is
//! reserved addresses without a page, and an **alias** is addresses whose page has moved away while work
//! may still use the old mapping. No block may lie in a gap or an alias.
//!
//! The address space does not decide when to grow: it answers questions and records what was done, and
//! it is consistent after every call. [`Plan`] makes the decisions.
//!
//! ```text
//!   Plan, Claim, Outline      ask and change          growth: what to do, what it needs, what could be
//!        │
//!   AddressSpace              every hole is in a page; counts of bytes in blocks
//!     │        │
//!   PageTable  Holes          either knows nothing of the other
//!     │        │
//!   Kept       HoleIndex ── Tree, Groups, Seams, Lengths
//! ```
//!
//! Words: **boundaries**: whether holes may span driver allocations. **Relabel**: change a group's streams after a wait.
//! **Window**: where a block could lie once gaps are filled. **Plan**: which pages to create or move there. **Growth**: page
//! sizes. **Reach**: the most a pool could hold.
//!
//! | file | subject |
//! |---|---|
//! | `streams`, `spans` | sets of streams; ranges of addresses |
//! | `page_table` | pages, gaps, aliases, and old mappings to which a page may return |
//! | `holes` | free memory, and who may use it |
//! | `plan` | how to make room |
//! | `claim` | what a plan needs, out of everyone's reach while the driver works |
//! | `outline` | what could be held if more were free |

mod claim;
mod error;
mod holes;
mod outline;
mod page_table;
mod plan;
mod spans;
mod streams;
#[cfg(test)]
mod tests;

use crate::{Bytes, PageSize};

pub use claim::{Claim, ClaimedGap, RemovedPage, SetAside};
pub use error::AddressSpaceError;
pub use holes::Holes;
pub use outline::Outline;
pub use page_table::{Kept, PageMapping, PageTable};
pub use plan::{Growth, Plan, PlanError, Step};
pub use streams::Streams;
use streams::StreamsRef;

/// An address in the address space.
pub type Offset = u64;

/// Whether a block may cross from one page to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Boundaries {
    /// Adjacent pages are contiguous: holes and blocks cross from one to the next.
    Joined,
    /// Every page is an island, as on a device that allocates whole segments: no hole and no block
    /// crosses from one to another, and a page may be at any address.
    Apart,
}

/// The addresses of a pool.
///
/// The runs of the holes are those of the pages, so every hole is in pages. What is in pages and neither free nor set
/// aside is in blocks.
///
/// ```
/// use forebay_core::address_space::{Boundaries, AddressSpace, Streams};
/// use forebay_core::{Bytes, PageSize};
///
/// let mut space = AddressSpace::new(PageSize::DEVICE, Boundaries::Joined);
/// let (at, stream) = (0x7000_0000_0000, 0);
/// space.page_table_mut().reserve(at, Bytes::gib(64))?;
/// space.add_page(at, Bytes::mib(2), 7, Streams::only(stream))?;
/// let block = space.allocate_for(Bytes::mib(1), stream).ok_or("a hole of 2 MiB holds 1 MiB")?;
/// assert_eq!((block, space.holes().bytes()), (at, Bytes::mib(1)));
/// space.free_for(block, Bytes::mib(1), stream)?;
/// assert_eq!(space.holes().largest(), Bytes::mib(2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct AddressSpace {
    pages: PageTable,
    holes: Holes,
    /// Bytes of holes that were set aside for requests.
    aside: u64,
    /// The most bytes ever taken at once.
    peak: u64,
    /// Bytes of pages that were moved, less a few times those of pages that were created since.
    moved: u64,
}

impl AddressSpace {
    /// An empty address space.
    pub fn new(granule: PageSize, boundaries: Boundaries) -> Self {
        let pages = PageTable::new(granule, boundaries);
        Self { pages, holes: Holes::default(), aside: 0, peak: 0, moved: 0 }
    }

    /// The pages and their mappings.
    pub fn page_table(&self) -> &PageTable {
        &self.pages
    }

    /// The pages, to reserve addresses and to record what became of old mappings.
    pub fn page_table_mut(&mut self) -> &mut PageTable {
        &mut self.pages
    }

    /// The holes.
    pub fn holes(&self) -> &Holes {
        &self.holes
    }

    /// The holes, to record the order of streams.
    pub fn holes_mut(&mut self) -> &mut Holes {
        &mut self.holes
    }

    /// The bytes of all pages.
    pub fn backed_bytes(&self) -> Bytes {
        self.pages.backed_bytes()
    }

    /// The bytes in blocks.
    pub fn taken_bytes(&self) -> Bytes {
        Bytes::new(self.taken())
    }

    #[inline]
    fn taken(&self) -> u64 {
        // Every hole is backed, and so is what was one.
        self.pages.backed_bytes().get() - self.holes.bytes().get() - self.aside
    }

    /// Allocates from the start of the lowest hole that has `size` bytes and is free in the order of
    /// the stream with number `taker`. From [`Streams::MAX`] on, only memory that is free for all streams qualifies.
    /// Returns `None` if there is no such hole or `size` is 0.
    ///
    /// The lowest hole, not the smallest: long-lived blocks gather at the low end, so whole pages
    /// become free at the high end, where large requests grow.
    #[inline]
    pub fn allocate_for(&mut self, size: Bytes, taker: u32) -> Option<Offset> {
        if size.is_zero() {
            return None;
        }
        let at = self.holes.take(size.get(), taker)?;
        self.peak = self.peak.max(self.taken());
        Some(at)
    }

    /// Allocates exactly `size` bytes from `at`, whatever the streams of the holes there: the caller vouches for the
    /// order. Refused unless all of it is free and a block may lie there.
    pub fn allocate_at(&mut self, at: Offset, size: Bytes) -> Result<(), AddressSpaceError> {
        let end = end_of(at, size)?;
        if !self.holes.is_backed(at, end) || !self.holes.covers(at, end) {
            return Err(AddressSpaceError::Occupied { at });
        }
        self.holes.remove(at, end);
        self.peak = self.peak.max(self.taken());
        Ok(())
    }

    /// Frees `size` bytes from `at`, in the order of `streams`.
    #[inline]
    pub fn free(
        &mut self,
        at: Offset,
        size: Bytes,
        streams: Streams,
    ) -> Result<(), AddressSpaceError> {
        self.free_in(at, size, StreamsRef::of(&streams))
    }

    /// [`free`](Self::free) for one stream, given by its number. Faster.
    #[inline]
    pub fn free_for(
        &mut self,
        at: Offset,
        size: Bytes,
        number: u32,
    ) -> Result<(), AddressSpaceError> {
        self.free_in(at, size, StreamsRef::One(number))
    }

    #[inline]
    fn free_in(
        &mut self,
        at: Offset,
        size: Bytes,
        owner: StreamsRef<'_>,
    ) -> Result<(), AddressSpaceError> {
        let end = end_of(at, size)?;
        if self.holes.free(at, end, owner) { Ok(()) } else { Err(AddressSpaceError::InUse { at }) }
    }

    /// The streams that own a hole worth waiting for: the stream with number `taker` should wait for one of them rather
    /// than split a larger hole of its own, or grow. `None` if `taker` has a hole that fits well, or no
    /// other stream has a smaller one of at least `size` bytes.
    ///
    /// A wait costs less than a hundredth of a new page and gains everything the other stream has
    /// freed so far; a large hole split for a small block stays split until the block is freed.
    #[inline]
    pub fn better_owner_for(&mut self, size: Bytes, taker: u32) -> Option<Streams> {
        self.holes.better_owner(size.get(), taker)
    }

    /// Adds page `page` at `at`, free in the order of `streams`.
    pub fn add_page(
        &mut self,
        at: Offset,
        size: Bytes,
        page: u64,
        streams: Streams,
    ) -> Result<(), AddressSpaceError> {
        let end = self.pages.add(at, size, page)?;
        self.holes.add_run(at, end, self.pages.is_joined(), &streams);
        Ok(())
    }

    /// Removes the page at `at`, which must be free; its addresses become an alias until
    /// [`clear_alias`](PageTable::clear_alias).
    pub fn remove_page(&mut self, at: Offset) -> Result<RemovedPage, AddressSpaceError> {
        let (page, size) = self.pages.page(at).ok_or(AddressSpaceError::Absent { at })?;
        let end = at + size.get();
        let streams = self.holes.covering(at, end).ok_or(AddressSpaceError::InUse { at })?;
        self.holes.remove_run(at, end);
        self.pages.remove(at);
        Ok(RemovedPage { at, page, size, streams })
    }

    /// The pages that are entirely free, whatever the streams of their parts: address and size. Trimming
    /// releases these.
    pub fn free_pages(&self) -> impl DoubleEndedIterator<Item = (Offset, Bytes)> {
        let pages = self.pages.pages().map(|(at, _, size)| (at, size));
        pages.filter(|&(at, size)| self.holes.covers(at, at + size.get()))
    }

    /// Whether the page at `at` is entirely free for all streams.
    pub fn is_page_idle(&self, at: Offset) -> bool {
        let end = self.pages.page(at).map(|(_, size)| at + size.get());
        end.and_then(|end| self.holes.covering(at, end)) == Some(Streams::ALL)
    }

    /// Takes the holes in `start..end` out of the address space. Their bytes count as neither free nor taken.
    pub fn set_aside(&mut self, start: Offset, end: Offset) -> SetAside {
        let inside = self.holes.within(start, end);
        let parts: Vec<_> = inside.map(|(start, end, streams)| (start, end, *streams)).collect();
        for &(start, end, _) in &parts {
            self.holes.remove(start, end);
            self.aside += end - start;
        }
        SetAside(parts)
    }

    /// Puts holes back that were [set aside](Self::set_aside).
    pub fn put_aside_back(&mut self, aside: &mut SetAside) {
        for (start, end, streams) in aside.0.drain(..) {
            self.aside -= end - start;
            let freed = self.free(start, Bytes::new(end - start), streams);
            debug_assert!(freed.is_ok(), "what was set aside is free already: {freed:?}");
        }
    }

    /// Records that a plan was carried out: pages of `moved` bytes were moved and pages of `created` bytes created.
    pub fn record_growth(&mut self, moved: Bytes, created: Bytes, growth: &Growth) {
        let paid = created.get().saturating_mul(growth.moves_per_growth);
        self.moved = self.moved.saturating_add(moved.get()).saturating_sub(paid);
        self.pages.growths += 1;
    }
}

/// Where a block of `size` bytes at `at` ends.
#[inline]
fn end_of(at: Offset, size: Bytes) -> Result<Offset, AddressSpaceError> {
    let end = at.checked_add(size.get()).filter(|_| !size.is_zero());
    end.ok_or(AddressSpaceError::Malformed { at, size: size.get() })
}
