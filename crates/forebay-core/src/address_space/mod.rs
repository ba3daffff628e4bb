//! The addresses of a pool as one space: which are backed by pages, which of those are free, and in
//! the order of which streams.
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
//! Words: **boundaries**: whether holes may span driver allocations. **Relabel**: change a group's streams after a wait.
//! **Window**: where a block could lie once gaps are filled. **Plan**: which pages to create or move there. **Growth**: page
//! sizes. **Reach**: the most a pool could hold.
//!
//! | file | subject |
//! |---|---|
//! | `streams` | sets of streams |
//! | `tree` | holes by address, and the lowest hole of a size |
//! | `groups`, `hole`, `relabel`, `lengths` | holes of many streams |
//! | `gaps` | reserved ranges, gaps, and pages side by side |
//! | `kept` | old mappings to which a page may return |
//! | `plan`, `window`, `donors` | how to make room |
//! | `claim` | what a plan needs, out of everyone's reach while the driver works |
//! | `outline` | what could be held if more were free |

mod claim;
mod donors;
mod error;
mod gaps;
mod groups;
mod hole;
mod kept;
mod lengths;
mod outline;
mod plan;
mod relabel;
mod streams;
#[cfg(test)]
mod tests;
mod tree;
mod window;

use std::collections::BTreeMap;

use crate::{Bytes, PageSize};

pub use claim::{Claim, ClaimedGap, PageMapping, RemovedPage, SetAside};
pub use error::AddressSpaceError;
use gaps::Spans;
use groups::StreamsRef;
use hole::{Holes, MayMerge};
use kept::Kept;
pub use outline::Outline;
pub use plan::{Growth, Plan, PlanError, Step};
pub use streams::Streams;

/// An address in the address space.
pub type Offset = u64;

/// A hole is a good fit if at most this fraction of the block is left over: 8 means an eighth.
const GOOD_FIT: u64 = 8;

/// One past the highest address: no supported machine has 57-bit addresses or more.
const END: Offset = 1 << 57;

/// How many recent runs are cached, a power of two.
const RECENT: usize = 64;

/// A cache of runs that were looked up lately, indexed by some bits of the address: frees hit few runs.
type Recent = [(Offset, Offset); RECENT];

/// An empty cache: no address lies in these runs.
const NO_RUNS: Recent = [(Offset::MAX, 0); RECENT];

/// The address bits below the cache index: 32 MiB, so that most pages have an entry of their own.
const RECENT_SHIFT: u32 = 25;

/// A page in the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlacedPage {
    size: u64,
    page: u64,
    /// The number of the growth that it came by.
    growth: u64,
}

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
/// ```
/// use forebay_core::address_space::{Boundaries, AddressSpace, Streams};
/// use forebay_core::{Bytes, PageSize};
///
/// let mut space = AddressSpace::new(PageSize::DEVICE, Boundaries::Joined);
/// let (at, a) = (0x7000_0000_0000, Streams::only(0));
/// space.reserve(at, Bytes::gib(64))?;
/// space.add_page(at, Bytes::mib(2), 7, a)?;
/// let block = space.allocate(Bytes::mib(1), a).ok_or("a hole of 2 MiB holds 1 MiB")?;
/// assert_eq!((block, space.free_bytes()), (at, Bytes::mib(1)));
/// space.free(block, Bytes::mib(1), a)?;
/// assert_eq!(space.largest_hole(), Bytes::mib(2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct AddressSpace {
    granule: PageSize,
    boundaries: Boundaries,
    reserved: Spans,
    /// Reserved addresses without a page or an alias. They may have kept mappings.
    gaps: Spans,
    pages: BTreeMap<Offset, PlacedPage>,
    /// Where each page is, by its number.
    places: BTreeMap<u64, Offset>,
    aliases: BTreeMap<Offset, u64>,
    kept: Kept,
    holes: Holes,
    /// The ranges within which a block may lie: runs of adjacent pages, or each page.
    runs: Spans,
    recent: Recent,
    backed: u64,
    /// Bytes of holes that were set aside for requests.
    aside: u64,
    /// The most bytes ever taken at once.
    peak: u64,
    /// Bytes of pages that were moved, less a few times those of pages that were created since.
    moved: u64,
    /// How many growths were recorded.
    growths: u64,
    /// How often a page was added or removed.
    page_changes: u64,
}

impl AddressSpace {
    /// An address space without addresses.
    pub fn new(granule: PageSize, boundaries: Boundaries) -> Self {
        Self {
            granule,
            boundaries,
            reserved: Spans::default(),
            gaps: Spans::default(),
            pages: BTreeMap::new(),
            places: BTreeMap::new(),
            aliases: BTreeMap::new(),
            kept: Kept::default(),
            holes: Holes::default(),
            runs: Spans::default(),
            recent: NO_RUNS,
            backed: 0,
            aside: 0,
            peak: 0,
            moved: 0,
            growths: 0,
            page_changes: 0,
        }
    }

    /// Adds a range of addresses in which pages may be placed. It may touch other ranges, but a page
    /// lies within one. An address space with [`Boundaries::Apart`] needs no ranges and refuses them.
    pub fn reserve(&mut self, at: Offset, size: Bytes) -> Result<(), AddressSpaceError> {
        let end = self.whole_granules(at, size.get())?;
        if self.boundaries == Boundaries::Apart {
            return Err(AddressSpaceError::Malformed { at, size: size.get() });
        }
        if self.reserved.meets(at, end) {
            return Err(AddressSpaceError::Occupied { at });
        }
        self.reserved.add(at, end);
        self.gaps.add(at, end);
        Ok(())
    }

    /// The bytes of all reserved ranges.
    pub fn reserved_bytes(&self) -> Bytes {
        Bytes::new(self.reserved.each().map(|(start, end)| end - start).sum())
    }

    /// The granularity: every page size is a multiple of it.
    pub fn granule(&self) -> PageSize {
        self.granule
    }

    /// The bytes of all pages in the address space.
    pub fn backed_bytes(&self) -> Bytes {
        Bytes::new(self.backed)
    }

    /// The bytes of all holes.
    pub fn free_bytes(&self) -> Bytes {
        Bytes::new(self.holes.bytes())
    }

    /// The bytes in blocks.
    pub fn taken_bytes(&self) -> Bytes {
        Bytes::new(self.taken())
    }

    /// The size of the largest hole, whatever its streams.
    pub fn largest_hole(&self) -> Bytes {
        Bytes::new(self.holes.largest())
    }

    /// How many holes there are.
    pub fn hole_count(&self) -> usize {
        self.holes.len()
    }

    /// Every hole, as address and size, the lowest first. Neighbours that are free in different orders are apart.
    pub fn holes(&self) -> impl Iterator<Item = (Offset, Bytes)> {
        self.holes.each().map(|hole| (hole.start, Bytes::new(hole.end - hole.start)))
    }

    /// Allocates from the start of the lowest hole that has `size` bytes and is free in the order of
    /// all of `streams`. If `streams` is empty, only memory that is free for all streams qualifies.
    /// Returns `None` if there is no such hole or `size` is 0.
    ///
    /// The lowest hole, not the smallest: long-lived blocks gather at the low end, so whole pages
    /// become free at the high end, where large requests grow.
    #[inline]
    pub fn allocate(&mut self, size: Bytes, streams: Streams) -> Option<Offset> {
        self.allocate_in(size, StreamsRef::of(&streams))
    }

    /// [`allocate`](Self::allocate) for one stream, given by its number. Faster.
    #[inline]
    pub fn allocate_for(&mut self, size: Bytes, number: u32) -> Option<Offset> {
        self.allocate_in(size, StreamsRef::One(number))
    }

    #[inline]
    fn allocate_in(&mut self, size: Bytes, taker: StreamsRef<'_>) -> Option<Offset> {
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
        let malformed = AddressSpaceError::Malformed { at, size: size.get() };
        let end = at.checked_add(size.get()).filter(|_| !size.is_zero()).ok_or(malformed)?;
        if !self.is_backed(at, end) || !self.holes.covers(at, end) {
            return Err(AddressSpaceError::Occupied { at });
        }
        self.holes.remove_range(at, end);
        self.holes.adapt(&self.runs);
        self.peak = self.peak.max(self.taken());
        Ok(())
    }

    /// Whether a block may lie in `at..end`: pages are there throughout, and one island of them.
    pub fn is_backed(&self, at: Offset, end: Offset) -> bool {
        self.runs.around(at, end).is_some()
    }

    /// Where the hole around `at` ends; `None` if `at` is not free.
    pub fn hole_end(&self, at: Offset) -> Option<Offset> {
        self.holes.around(at).map(|hole| hole.end)
    }

    #[inline]
    fn taken(&self) -> u64 {
        // Every hole is backed, and so is what was one.
        self.backed - self.holes.bytes() - self.aside
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
        let end = at.checked_add(size.get()).filter(|_| !size.is_zero());
        let end = end.ok_or(AddressSpaceError::Malformed { at, size: size.get() })?;
        // Less than `RECENT`.
        let part = (at >> RECENT_SHIFT & (RECENT as u64 - 1)) as usize;
        let recent = self.recent.get(part).filter(|run| run.0 <= at && end <= run.1).copied();
        let run = recent.or_else(|| self.runs.around(at, end));
        let run = run.ok_or(AddressSpaceError::InUse { at })?;
        // A hole that touches it from beyond the run lies on another island.
        let may_merge = MayMerge { below: at > run.0, above: end < run.1 };
        if !self.holes.add(at, end, owner, may_merge) {
            return Err(AddressSpaceError::InUse { at });
        }
        self.holes.adapt(&self.runs);
        if let Some(recent) = self.recent.get_mut(part) {
            *recent = run;
        }
        Ok(())
    }

    /// The streams that own a hole worth waiting for: `taker` should wait for one of them rather than
    /// split a larger hole of its own, or grow. `None` if `taker` has a hole that fits well, or no
    /// other stream has a smaller one of at least `size` bytes.
    ///
    /// A wait costs less than a hundredth of a new page and gains everything the other stream has
    /// freed so far; a large hole split for a small block stays split until the block is freed.
    #[inline]
    pub fn better_owner(&mut self, size: Bytes, taker: Streams) -> Option<Streams> {
        self.holes.better_owner(size.get(), size.get() / GOOD_FIT, StreamsRef::of(&taker))
    }

    /// [`better_owner`](Self::better_owner) for one stream, given by its number. Faster.
    #[inline]
    pub fn better_owner_for(&mut self, size: Bytes, number: u32) -> Option<Streams> {
        self.holes.better_owner(size.get(), size.get() / GOOD_FIT, StreamsRef::One(number))
    }

    /// Every stream in whose order something is free.
    pub fn owners(&self) -> Streams {
        self.holes.owners()
    }

    /// Whether no hole is free in the order of `stream`, except those that are free for all streams.
    pub fn owns_nothing(&self, stream: Streams) -> bool {
        self.holes.has_none_of(&stream)
    }

    /// Records that `taker` has waited for `owner`: what is free in the order of `owner` is now
    /// free in the order of `taker` too. With an empty `owner` nothing changes.
    pub fn record_wait(&mut self, taker: Streams, owner: Streams) {
        self.holes.waited(&taker, &owner, &self.runs);
    }

    /// Records that `taker` has waited for each of `owners`: what is free in the order of any of them is now
    /// free in the order of `taker` too. Like one [`record_wait`](Self::record_wait) for each, in one pass.
    pub fn record_wait_any(&mut self, taker: Streams, owners: Streams) {
        self.holes.record_wait_any(&taker, &owners, &self.runs);
    }

    /// Records that all work on `streams` has completed: memory freed on any of them is free for all.
    /// With [`Streams::ALL`] that is every hole, including those that no stream could use yet.
    pub fn record_idle(&mut self, streams: Streams) {
        self.holes.idle(&streams, &self.runs);
    }

    /// Records that stream `from` has ended and that `to` are ordered after it: memory that was free in
    /// the order of `from` is free in the order of `to` instead, or of no stream if `to` is empty. The
    /// number may then be reused. Memory that is free for all streams stays so.
    pub fn hand_over(&mut self, from: Streams, to: Streams) {
        self.holes.hand_over(&from, &to, &self.runs);
    }

    /// Every stream that owns a hole `taker` may not use.
    pub fn other_owners(&self, taker: Streams) -> Streams {
        self.holes.other_owners(&taker)
    }

    /// Whether some hole of at least `size` bytes may be used by `taker`.
    pub fn can_take(&self, size: Bytes, taker: Streams) -> bool {
        self.holes.can_take(size.get(), &taker)
    }

    /// Adds page `page` at `at`, free in the order of `streams`.
    pub fn add_page(
        &mut self,
        at: Offset,
        size: Bytes,
        page: u64,
        streams: Streams,
    ) -> Result<(), AddressSpaceError> {
        let size = size.get();
        let end = self.vacant(at, size)?;
        // Another page may be mapped there still.
        if self.kept.get(at).is_some_and(|kept| kept.page != page) {
            return Err(AddressSpaceError::Occupied { at });
        }
        let joined = self.boundaries == Boundaries::Joined;
        // Holes are in pages, and no page is there.
        let may_merge = MayMerge { below: joined, above: joined };
        if !self.holes.add(at, end, StreamsRef::of(&streams), may_merge) {
            return Err(AddressSpaceError::InUse { at });
        }
        self.page_changes += 1;
        self.pages.insert(at, PlacedPage { size, page, growth: self.growths });
        self.places.insert(page, at);
        self.kept.remove(at);
        self.gaps.cut(at, end);
        self.runs.add_joined(at, end, joined, joined);
        self.holes.adapt(&self.runs);
        self.recent = NO_RUNS;
        self.backed += size;
        Ok(())
    }

    /// Removes the page at `at`, which must be free; its addresses become an alias until
    /// [`clear_alias`](Self::clear_alias).
    pub fn remove_page(&mut self, at: Offset) -> Result<RemovedPage, AddressSpaceError> {
        let placed = *self.pages.get(&at).ok_or(AddressSpaceError::Absent { at })?;
        let end = at + placed.size;
        let streams = self.holes.covering(at, end).ok_or(AddressSpaceError::InUse { at })?;
        self.holes.remove_range(at, end);
        self.page_changes += 1;
        self.pages.remove(&at);
        self.places.remove(&placed.page);
        self.runs.cut(at, end);
        self.recent = NO_RUNS;
        self.aliases.insert(at, placed.size);
        self.backed -= placed.size;
        Ok(RemovedPage { at, page: placed.page, size: Bytes::new(placed.size), streams })
    }

    /// Claims unused addresses for a page that is about to be mapped there. Like an alias, no plan uses
    /// them until [`clear_alias`](Self::clear_alias).
    pub fn claim_gap(&mut self, at: Offset, size: Bytes) -> Result<(), AddressSpaceError> {
        let end = self.vacant(at, size.get())?;
        self.gaps.cut(at, end);
        self.aliases.insert(at, end - at);
        Ok(())
    }

    /// Records that the old mapping of an alias is gone, or that a claim has ended: its addresses are a
    /// gap again. See also [`keep_alias`](Self::keep_alias).
    pub fn clear_alias(&mut self, at: Offset) -> Result<(), AddressSpaceError> {
        let size = self.aliases.remove(&at).ok_or(AddressSpaceError::Absent { at })?;
        if self.boundaries == Boundaries::Joined {
            let end = at + size;
            let (below, above) = (!self.reserved.begins_at(at), !self.reserved.begins_at(end));
            self.gaps.add_joined(at, end, below, above);
        }
        Ok(())
    }

    /// The pages that are entirely free, whatever the streams of their parts: address and size. Trimming
    /// releases these.
    pub fn free_pages(&self) -> impl DoubleEndedIterator<Item = (Offset, Bytes)> {
        let pages = self.pages.iter().map(|(&at, placed)| (at, placed.size));
        let free = pages.filter(|&(at, size)| self.holes.covers(at, at + size));
        free.map(|(at, size)| (at, Bytes::new(size)))
    }

    /// Whether the page at `at` is entirely free for all streams.
    pub fn is_page_idle(&self, at: Offset) -> bool {
        let end = self.pages.get(&at).map(|placed| at + placed.size);
        let streams = end.and_then(|end| self.holes.covering(at, end));
        streams.is_some_and(|streams| streams == Streams::ALL)
    }

    /// The bytes of all pages that are entirely free, whatever the streams of their parts.
    pub fn free_whole_pages(&self) -> Bytes {
        self.free_pages().fold(Bytes::ZERO, |sum, (_, size)| sum.saturating_add(size))
    }

    /// The page that begins at `at`, and its size.
    pub fn page(&self, at: Offset) -> Option<(u64, Bytes)> {
        self.pages.get(&at).map(|placed| (placed.page, Bytes::new(placed.size)))
    }

    /// Adjacent pages that came by one growth, as address and size, the lowest first: what was taken from the device
    /// for one request, as far as it is still there. Pages that are islands are one each.
    pub fn segments(&self) -> Vec<(Offset, Bytes)> {
        let mut segments: Vec<(Offset, Offset, u64)> = Vec::new();
        for (&at, placed) in &self.pages {
            let end = at + placed.size;
            match segments.last_mut() {
                Some(last)
                    if (last.1, last.2) == (at, placed.growth)
                        && self.boundaries == Boundaries::Joined =>
                {
                    last.1 = end;
                }
                _ => segments.push((at, end, placed.growth)),
            }
        }
        segments.into_iter().map(|(at, end, _)| (at, Bytes::new(end - at))).collect()
    }

    /// Records that a plan was carried out: pages of `moved` bytes were moved and pages of `created` bytes created.
    pub fn record_growth(&mut self, moved: Bytes, created: Bytes, growth: &Growth) {
        let paid = created.get().saturating_mul(growth.moves_per_growth);
        self.moved = self.moved.saturating_add(moved.get()).saturating_sub(paid);
        self.growths += 1;
    }

    /// How often a page was added or removed.
    pub fn page_changes(&self) -> u64 {
        self.page_changes
    }

    /// How many pages there are.
    pub fn page_count(&self) -> usize {
        self.pages.len()
    }

    /// Every page: address, page, size.
    pub fn pages(&self) -> impl Iterator<Item = (Offset, u64, Bytes)> {
        self.pages.iter().map(|(&at, placed)| (at, placed.page, Bytes::new(placed.size)))
    }

    /// Every page that overlaps `start..end`: address, page, size.
    pub fn pages_in(
        &self,
        start: Offset,
        end: Offset,
    ) -> impl Iterator<Item = (Offset, u64, Bytes)> {
        let below = self.pages.range(..start).next_back();
        let below = below.filter(|(at, placed)| **at + placed.size > start && start < end);
        let inside = self.pages.range(start..end.max(start));
        let pages = below.into_iter().chain(inside);
        pages.map(|(&at, placed)| (at, placed.page, Bytes::new(placed.size)))
    }

    /// Checks that `size` bytes from `at` are whole granules within the address space; returns their end.
    fn whole_granules(&self, at: Offset, size: u64) -> Result<Offset, AddressSpaceError> {
        let granule = self.granule.bytes().get();
        let whole = size > 0 && at.is_multiple_of(granule) && size.is_multiple_of(granule);
        let end = at.checked_add(size).filter(|&end| whole && end <= END);
        end.ok_or(AddressSpaceError::Malformed { at, size })
    }

    /// Checks that `size` bytes from `at` can take a page or an alias; returns their end.
    fn vacant(&self, at: Offset, size: u64) -> Result<Offset, AddressSpaceError> {
        let end = self.whole_granules(at, size)?;
        match self.boundaries {
            Boundaries::Joined if self.reserved.around(at, end).is_none() => {
                Err(AddressSpaceError::Malformed { at, size })
            }
            Boundaries::Joined if self.gaps.around(at, end).is_none() => {
                Err(AddressSpaceError::Occupied { at })
            }
            // A page may return to where it is still mapped, and no page may lie across such a mapping.
            Boundaries::Joined if self.kept.overlapping(at, end).any(|kept| kept != (at, end)) => {
                Err(AddressSpaceError::Occupied { at })
            }
            Boundaries::Apart if self.is_occupied(at, end) => {
                Err(AddressSpaceError::Occupied { at })
            }
            Boundaries::Joined | Boundaries::Apart => Ok(end),
        }
    }

    /// Whether a page or an alias overlaps `at..end`.
    fn is_occupied(&self, at: Offset, end: Offset) -> bool {
        let page = self.pages.range(..end).next_back().map(|(&start, page)| start + page.size);
        let alias = self.aliases.range(..end).next_back().map(|(&start, &size)| start + size);
        page.is_some_and(|end| end > at) || alias.is_some_and(|end| end > at)
    }
}
