//! The addresses of a pool as one space: which are backed by pages, which of those are free, and in
//! whose order.
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
//! A **hole** is free memory with pages behind all of it. It is free in the order of some streams:
//! those on which it was freed, and those that have waited for them since. Neighbouring holes are
//! one where a stream is common to both. Holes that are free in the order of the same streams are a
//! **group**. Where addresses are reserved and nothing is mapped there is a **gap**, and where a page
//! was taken from but its old mapping still stands there is an **alias**: both are addresses that no
//! block may have.
//!
//! The address space decides nothing about growing; it answers questions and records what was done, each
//! record leaving it whole. [`Plan`] is where the deciding is.
//!
//! | file | subject |
//! |---|---|
//! | `streams` | sets of streams |
//! | `tree` | holes by address, and the lowest of a size |
//! | `groups`, `hole`, `relabel`, `lengths` | holes of many streams |
//! | `gaps` | reserved ranges, gaps, and pages side by side |
//! | `plan`, `window` | how to make room |

mod error;
mod gaps;
mod groups;
mod hole;
mod lengths;
mod plan;
mod relabel;
mod streams;
#[cfg(test)]
mod tests;
mod tree;
mod window;

use std::collections::BTreeMap;

use crate::{Bytes, PageSize};

pub use error::AddressSpaceError;
use gaps::Spans;
use groups::Order;
use hole::{Holes, Open};
pub use plan::{Growth, Lack, Plan, Step};
pub use streams::Streams;

/// An address in the address space.
pub type Offset = u64;

/// A hole fits well where no more than this part of a block is left over: 8 means an eighth.
const SNUG: u64 = 8;

/// No address space has addresses from here on: no machine has.
const END: Offset = 1 << 57;

/// How many runs are remembered, a power of two.
const RECENT: usize = 64;

/// Runs that were looked for lately, by some bits of the address: blocks come back to few of them.
type Recent = [(Offset, Offset); RECENT];

/// Runs that have no addresses.
const NO_RUNS: Recent = [(Offset::MAX, 0); RECENT];

/// How many bits below those an address has: 32 MiB, so that most pages have an entry of their own.
const RECENT_SHIFT: u32 = 25;

/// A page in the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Placed {
    size: u64,
    page: u64,
}

/// What a block may span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Boundaries {
    /// Pages that lie side by side are as one: holes and blocks go across.
    Joined,
    /// Every page is an island, as where a device gives segments: no hole and no block goes from
    /// one to another, and a page may be put at any address.
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
/// space.place(at, Bytes::mib(2), 7, a)?;
/// let block = space.take(Bytes::mib(1), a).ok_or("a hole of 2 MiB holds 1 MiB")?;
/// assert_eq!((block, space.free_bytes()), (at, Bytes::mib(1)));
/// space.give(block, Bytes::mib(1), a)?;
/// assert_eq!(space.largest_hole(), Bytes::mib(2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct AddressSpace {
    granule: PageSize,
    boundaries: Boundaries,
    reserved: Spans,
    /// Where pages may be put.
    gaps: Spans,
    pages: BTreeMap<Offset, Placed>,
    aliases: BTreeMap<Offset, u64>,
    holes: Holes,
    /// What a block may span: pages that lie side by side, or each page.
    runs: Spans,
    recent: Recent,
    backed: u64,
    /// The most bytes ever taken at once.
    peak: u64,
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
            aliases: BTreeMap::new(),
            holes: Holes::default(),
            runs: Spans::default(),
            recent: NO_RUNS,
            backed: 0,
            peak: 0,
        }
    }

    /// Adds a range of addresses in which pages may be put. It may touch others; a page lies in one
    /// of them. An address space whose pages are apart needs none, and has none.
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

    /// What pages are multiples of.
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

    /// The size of the largest hole, in whatever order it is free.
    pub fn largest_hole(&self) -> Bytes {
        Bytes::new(self.holes.largest())
    }

    /// How many holes there are.
    pub fn hole_count(&self) -> usize {
        self.holes.len()
    }

    /// Takes the start of the lowest hole that holds `size` and is free in the order of all of
    /// `streams`. Where `streams` is empty, only what is free for all will do. `None` where there
    /// is no such hole, and where `size` is nothing.
    ///
    /// The lowest, not the smallest: what lives long gathers at the low end, and the high end,
    /// which large requests grow from, comes free in whole pages.
    #[inline]
    pub fn take(&mut self, size: Bytes, streams: Streams) -> Option<Offset> {
        self.take_in(size, Order::of(&streams))
    }

    /// The same for one stream, by its number, which is faster.
    #[inline]
    pub fn take_for(&mut self, size: Bytes, number: u32) -> Option<Offset> {
        self.take_in(size, Order::One(number))
    }

    #[inline]
    fn take_in(&mut self, size: Bytes, taker: Order<'_>) -> Option<Offset> {
        if size.is_zero() {
            return None;
        }
        let at = self.holes.take(size.get(), taker)?;
        self.peak = self.peak.max(self.taken());
        Some(at)
    }

    #[inline]
    fn taken(&self) -> u64 {
        // Every hole is backed.
        self.backed - self.holes.bytes()
    }

    /// Makes `size` bytes from `at` free, in the order of `streams`.
    #[inline]
    pub fn give(
        &mut self,
        at: Offset,
        size: Bytes,
        streams: Streams,
    ) -> Result<(), AddressSpaceError> {
        self.give_in(at, size, Order::of(&streams))
    }

    /// The same for one stream, by its number, which is faster.
    #[inline]
    pub fn give_for(
        &mut self,
        at: Offset,
        size: Bytes,
        number: u32,
    ) -> Result<(), AddressSpaceError> {
        self.give_in(at, size, Order::One(number))
    }

    #[inline]
    fn give_in(
        &mut self,
        at: Offset,
        size: Bytes,
        owner: Order<'_>,
    ) -> Result<(), AddressSpaceError> {
        let end = at.checked_add(size.get()).filter(|_| !size.is_zero());
        let end = end.ok_or(AddressSpaceError::Malformed { at, size: size.get() })?;
        // Less than `RECENT`.
        let part = (at >> RECENT_SHIFT & (RECENT as u64 - 1)) as usize;
        let recent = self.recent.get(part).filter(|run| run.0 <= at && end <= run.1).copied();
        let run = recent.or_else(|| self.runs.around(at, end));
        let run = run.ok_or(AddressSpaceError::InUse { at })?;
        // Nothing touches it beyond the run but what is on another island.
        let open = Open { below: at > run.0, above: end < run.1 };
        if !self.holes.add(at, end, owner, open) {
            return Err(AddressSpaceError::InUse { at });
        }
        self.holes.adapt(&self.runs);
        if let Some(recent) = self.recent.get_mut(part) {
            *recent = run;
        }
        Ok(())
    }

    /// The streams in whose order a hole is free that `taker` should wait for rather than cut one
    /// of its own, or grow; any one of them will do. `None` where it has a hole that fits well, and
    /// where nobody has a smaller one that holds `size`.
    ///
    /// A wait costs less than a hundredth of a page and brings all that the other stream has freed
    /// so far; a large hole cut for a small block is not whole again until the block is freed.
    #[inline]
    pub fn worth_waiting_for(&mut self, size: Bytes, taker: Streams) -> Option<Streams> {
        self.holes.better_elsewhere(size.get(), size.get() / SNUG, Order::of(&taker))
    }

    /// The same for one stream, by its number, which is faster.
    #[inline]
    pub fn better_for(&mut self, size: Bytes, number: u32) -> Option<Streams> {
        self.holes.better_elsewhere(size.get(), size.get() / SNUG, Order::One(number))
    }

    /// Every stream in whose order something is free.
    pub fn owners(&self) -> Streams {
        self.holes.owners()
    }

    /// Whether no hole is free in the order of `stream`, but for those that are free for all.
    pub fn owns_nothing(&self, stream: Streams) -> bool {
        self.holes.has_none_of(&stream)
    }

    /// Records that `taker` has waited for `owner`: what is free in the order of `owner` is now
    /// free in the order of `taker` too. Nothing is free in the order of an empty set.
    pub fn waited(&mut self, taker: Streams, owner: Streams) {
        self.holes.waited(&taker, &owner, &self.runs);
    }

    /// Records that `taker` has waited for each of `owners`: what is free in the order of any of them is now
    /// free in the order of `taker` too. As [`waited`](Self::waited) for one after the other, in one pass.
    pub fn waited_for_any(&mut self, taker: Streams, owners: Streams) {
        self.holes.waited_for_any(&taker, &owners, &self.runs);
    }

    /// Records that everything freed on any of `streams` is known to be over: it is free for all.
    /// With [`Streams::ALL`] that is everything, memory that is nobody's too.
    pub fn idle(&mut self, streams: Streams) {
        self.holes.idle(&streams, &self.runs);
    }

    /// Records that stream `from` has ended and that `to` come after it: what was free in the order
    /// of `from` is free in the order of `to` instead, and nobody's where `to` is empty. The number
    /// may then be another stream's. What is free for all stays so.
    pub fn hand_over(&mut self, from: Streams, to: Streams) {
        self.holes.hand_over(&from, &to, &self.runs);
    }

    /// Every stream in whose order something is free that `taker` may not have.
    pub fn owners_beyond(&self, taker: Streams) -> Streams {
        self.holes.owners_beyond(&taker)
    }

    /// Whether a hole holds `size` and may go to `taker`.
    pub fn can_take(&self, size: Bytes, taker: Streams) -> bool {
        self.holes.can_take(size.get(), &taker)
    }

    /// Puts page `page` in the address space, free in the order of `streams`.
    pub fn place(
        &mut self,
        at: Offset,
        size: Bytes,
        page: u64,
        streams: Streams,
    ) -> Result<(), AddressSpaceError> {
        let size = size.get();
        let end = self.vacant(at, size)?;
        let joined = self.boundaries == Boundaries::Joined;
        // Holes are in pages, and no page is there.
        let open = Open { below: joined, above: joined };
        if !self.holes.add(at, end, Order::of(&streams), open) {
            return Err(AddressSpaceError::InUse { at });
        }
        self.pages.insert(at, Placed { size, page });
        self.gaps.cut(at, end);
        self.runs.add_joined(at, end, joined, joined);
        self.holes.adapt(&self.runs);
        self.recent = NO_RUNS;
        self.backed += size;
        Ok(())
    }

    /// Takes the page at `at` off the address space; its addresses become an alias until
    /// [`clear`](Self::clear). Gives the page, its size, and the streams in whose order all of it
    /// was free: none where its parts have no stream in common.
    pub fn lift(&mut self, at: Offset) -> Result<(u64, Bytes, Streams), AddressSpaceError> {
        let placed = *self.pages.get(&at).ok_or(AddressSpaceError::Absent { at })?;
        let end = at + placed.size;
        let streams = self.holes.covering(at, end).ok_or(AddressSpaceError::InUse { at })?;
        self.holes.remove_range(at, end);
        self.pages.remove(&at);
        self.runs.cut(at, end);
        self.recent = NO_RUNS;
        self.aliases.insert(at, placed.size);
        self.backed -= placed.size;
        Ok((placed.page, Bytes::new(placed.size), streams))
    }

    /// Keeps addresses where nothing is from being planned with, as an alias does, until
    /// [`clear`](Self::clear): something is about to be put there.
    pub fn hold(&mut self, at: Offset, size: Bytes) -> Result<(), AddressSpaceError> {
        let end = self.vacant(at, size.get())?;
        self.gaps.cut(at, end);
        self.aliases.insert(at, end - at);
        Ok(())
    }

    /// Records that the mapping behind an alias is gone: its addresses are a gap again.
    pub fn clear(&mut self, at: Offset) -> Result<(), AddressSpaceError> {
        let size = self.aliases.remove(&at).ok_or(AddressSpaceError::Absent { at })?;
        if self.boundaries == Boundaries::Joined {
            let end = at + size;
            let (below, above) = (!self.reserved.begins_at(at), !self.reserved.begins_at(end));
            self.gaps.add_joined(at, end, below, above);
        }
        Ok(())
    }

    /// The pages that are free from end to end, in whatever order their parts are, for trimming:
    /// where, and how large.
    pub fn idle_pages(&self) -> impl Iterator<Item = (Offset, Bytes)> {
        let pages = self.pages.iter().map(|(&at, placed)| (at, placed.size));
        let free = pages.filter(|&(at, size)| self.holes.covers(at, at + size));
        free.map(|(at, size)| (at, Bytes::new(size)))
    }

    /// The bytes of all pages that are free from end to end, in whatever order their parts are.
    pub fn free_whole_pages(&self) -> Bytes {
        self.idle_pages().fold(Bytes::ZERO, |sum, (_, size)| sum.saturating_add(size))
    }

    /// The page that begins at `at`: which, and how large.
    pub fn page(&self, at: Offset) -> Option<(u64, Bytes)> {
        self.pages.get(&at).map(|placed| (placed.page, Bytes::new(placed.size)))
    }

    /// Every page in the address space: where, which, and how large.
    pub fn pages(&self) -> impl Iterator<Item = (Offset, u64, Bytes)> {
        self.pages.iter().map(|(&at, placed)| (at, placed.page, Bytes::new(placed.size)))
    }

    /// Every page that has a byte of `start..end`: where, which, and how large.
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

    /// Whether `size` bytes from `at` are whole granules that can be in an address space; gives their end.
    fn whole_granules(&self, at: Offset, size: u64) -> Result<Offset, AddressSpaceError> {
        let granule = self.granule.bytes().get();
        let whole = size > 0 && at.is_multiple_of(granule) && size.is_multiple_of(granule);
        let end = at.checked_add(size).filter(|&end| whole && end <= END);
        end.ok_or(AddressSpaceError::Malformed { at, size })
    }

    /// Whether `size` bytes from `at` can take a page or alias; gives their end.
    fn vacant(&self, at: Offset, size: u64) -> Result<Offset, AddressSpaceError> {
        let end = self.whole_granules(at, size)?;
        match self.boundaries {
            Boundaries::Joined if self.reserved.around(at, end).is_none() => {
                Err(AddressSpaceError::Malformed { at, size })
            }
            Boundaries::Joined if self.gaps.around(at, end).is_none() => {
                Err(AddressSpaceError::Occupied { at })
            }
            Boundaries::Apart if self.is_occupied(at, end) => {
                Err(AddressSpaceError::Occupied { at })
            }
            Boundaries::Joined | Boundaries::Apart => Ok(end),
        }
    }

    /// Whether a page or alias has a byte of `at..end`.
    fn is_occupied(&self, at: Offset, end: Offset) -> bool {
        let page = self.pages.range(..end).next_back().map(|(&start, page)| start + page.size);
        let alias = self.aliases.range(..end).next_back().map(|(&start, &size)| start + size);
        page.is_some_and(|end| end > at) || alias.is_some_and(|end| end > at)
    }
}
