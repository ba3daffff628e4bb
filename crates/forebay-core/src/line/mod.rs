//! The addresses of a pool as one line: which are backed by pages, which of those are free, and in
//! whose order.
//!
//! ```text
//!   addresses   0 ─────────────────────────────────────────────────────────────────>
//!   pages       [   page 1   ][ page 2 ]          [ page 3 ]  (alias)      [  page 4  ]
//!   blocks      ####  ########                      ######                  ##########
//!   holes           ..        .........           ..      ..
//!                   {A}       {A, B}              {B}     {B}
//! ```
//!
//! A **hole** is free memory with pages behind all of it. It is free in the order of some streams:
//! those on which it was freed, and those that have waited for them since. Neighbouring holes are
//! one where a stream is common to both. Where nothing is mapped there is a **gap**, and where a
//! page was taken from but its old mapping still stands there is an **alias**: both are addresses
//! that no block may have.
//!
//! The line decides nothing about growing; it answers questions and records what was done, each
//! record leaving it whole. [`Plan`] is where the deciding is.

mod hole;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::{Bytes, PageSize};

pub use hole::Streams;
use hole::{Hole, Holes};
pub use plan::{Growth, Plan, Step};

/// A place on the line, in bytes from its start.
pub type Offset = u64;

/// A hole fits well where no more than this part of a block is left over: 8 means an eighth.
const SNUG: u64 = 8;

/// A page on the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Placed {
    size: u64,
    page: u64,
}

/// Why a record does not fit what the line knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LineError {
    /// The span is not a multiple of the granule, is empty, or passes the end of the line.
    Malformed {
        /// Where it begins.
        at: Offset,
        /// How long it is.
        size: u64,
    },
    /// Something is there already: a page or an alias.
    Occupied {
        /// Where.
        at: Offset,
    },
    /// No page or alias begins there.
    Absent {
        /// Where.
        at: Offset,
    },
    /// A page is not free from end to end, or a block to be freed was not taken.
    InUse {
        /// Where.
        at: Offset,
    },
}

impl core::fmt::Display for LineError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Malformed { at, size } => {
                write!(f, "{size} B at offset {at:#x} cannot be on the line")
            }
            Self::Occupied { at } => write!(f, "offset {at:#x} has a page or alias already"),
            Self::Absent { at } => write!(f, "no page or alias begins at offset {at:#x}"),
            Self::InUse { at } => write!(f, "what is at offset {at:#x} is in use"),
        }
    }
}

impl core::error::Error for LineError {}

/// The addresses of a pool.
///
/// ```
/// use forebay_core::line::{Line, Streams};
/// use forebay_core::{Bytes, PageSize};
///
/// let mut line = Line::new(PageSize::DEVICE, Bytes::gib(64));
/// let a = Streams::only(0);
/// line.place(0, Bytes::mib(2), 7, a)?;
/// let block = line.take(Bytes::mib(1), a).ok_or("a hole of 2 MiB holds 1 MiB")?;
/// assert_eq!(line.free_bytes(), Bytes::mib(1));
/// line.give(block, Bytes::mib(1), a)?;
/// assert_eq!(line.largest_hole(), Bytes::mib(2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Line {
    granule: PageSize,
    size: u64,
    pages: BTreeMap<Offset, Placed>,
    aliases: BTreeMap<Offset, u64>,
    holes: Holes,
    /// Where pages lie side by side: where each such stretch begins, and where it ends, in order. A few,
    /// where pages are mapped side by side.
    runs: Vec<(Offset, Offset)>,
    backed: u64,
    /// The most bytes ever taken at once.
    peak: u64,
}

impl Line {
    /// A line of `size` bytes with nothing on it.
    pub fn new(granule: PageSize, size: Bytes) -> Self {
        Self {
            granule,
            size: size.align_down(granule.alignment()).get(),
            pages: BTreeMap::new(),
            aliases: BTreeMap::new(),
            holes: Holes::default(),
            runs: Vec::new(),
            backed: 0,
            peak: 0,
        }
    }

    /// What pages are multiples of.
    pub fn granule(&self) -> PageSize {
        self.granule
    }

    /// The bytes of all pages on the line.
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
    pub fn take(&mut self, size: Bytes, streams: Streams) -> Option<Offset> {
        if size.is_zero() {
            return None;
        }
        let at = self.holes.take(size.get(), streams)?;
        self.peak = self.peak.max(self.taken());
        Some(at)
    }

    fn taken(&self) -> u64 {
        // Every hole is backed.
        self.backed - self.holes.bytes()
    }

    /// Makes `size` bytes from `at` free, in the order of `streams`.
    pub fn give(&mut self, at: Offset, size: Bytes, streams: Streams) -> Result<(), LineError> {
        let end = at.checked_add(size.get()).filter(|_| !size.is_zero());
        let end = end.ok_or(LineError::Malformed { at, size: size.get() })?;
        if !self.is_backed(at, end) || !self.holes.add(at, Hole { end, streams }) {
            return Err(LineError::InUse { at });
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
        if self.holes.all_serve(taker) {
            return None;
        }
        self.holes.better_elsewhere(size.get(), size.get() / SNUG, taker)
    }

    /// Every stream in whose order something is free.
    pub fn owners(&self) -> Streams {
        self.holes.owners()
    }

    /// Records that `taker` has waited for `owner`: what is free in the order of `owner` is now
    /// free in the order of `taker` too. Nothing is free in the order of an empty set.
    pub fn waited(&mut self, taker: Streams, owner: Streams) {
        self.holes.extend_owners(|set| !owner.is_empty() && set.contains(owner), taker);
    }

    /// Records that everything freed on any of `streams` is known to be over: it is free for all.
    /// With [`Streams::ALL`] that is everything, memory that is nobody's too.
    pub fn idle(&mut self, streams: Streams) {
        let over = |set: Streams| streams == Streams::ALL || !set.and(streams).is_empty();
        self.holes.extend_owners(over, Streams::ALL);
    }

    /// Every stream in whose order something is free that `taker` may not have.
    pub fn owners_beyond(&self, taker: Streams) -> Streams {
        self.holes.owners_beyond(taker)
    }

    /// Whether a hole holds `size` and may go to `taker`.
    pub fn can_take(&self, size: Bytes, taker: Streams) -> bool {
        self.holes.each().any(|(start, hole)| hole.end - start >= size.get() && hole.streams.serve(taker))
    }

    /// Takes `from` out of every set and puts `to` in.
    pub fn hand_over(&mut self, from: Streams, to: Streams) {
        self.holes.hand_over(from, to);
    }

    /// Whether nothing but what is everybody's is free in the order of `stream`.
    pub fn owns_nothing(&self, stream: Streams) -> bool {
        self.holes.each().all(|(_, hole)| hole.streams == Streams::ALL || hole.streams.and(stream).is_empty())
    }

    /// Puts page `page` on the line, free in the order of `streams`.
    pub fn place(
        &mut self,
        at: Offset,
        size: Bytes,
        page: u64,
        streams: Streams,
    ) -> Result<(), LineError> {
        let size = size.get();
        let end = self.vacant(at, size)?;
        // Holes are in pages, and no page is there.
        if !self.holes.add(at, Hole { end, streams }) {
            return Err(LineError::InUse { at });
        }
        self.pages.insert(at, Placed { size, page });
        self.back(at, end);
        self.backed += size;
        Ok(())
    }

    /// Takes the page at `at` off the line; its addresses become an alias until
    /// [`clear`](Self::clear). Gives the page, its size, and the streams in whose order all of it
    /// was free: none where its parts have no stream in common.
    pub fn lift(&mut self, at: Offset) -> Result<(u64, Bytes, Streams), LineError> {
        let placed = *self.pages.get(&at).ok_or(LineError::Absent { at })?;
        let end = at + placed.size;
        let streams = self.holes.covering(at, end).ok_or(LineError::InUse { at })?;
        self.holes.remove_range(at, end);
        self.pages.remove(&at);
        self.unback(at, end);
        self.aliases.insert(at, placed.size);
        self.backed -= placed.size;
        Ok((placed.page, Bytes::new(placed.size), streams))
    }

    /// Keeps addresses where nothing is from being planned with, as an alias does, until
    /// [`clear`](Self::clear): something is about to be put there.
    pub fn hold(&mut self, at: Offset, size: Bytes) -> Result<(), LineError> {
        let end = self.vacant(at, size.get())?;
        self.aliases.insert(at, end - at);
        Ok(())
    }

    /// Records that the mapping behind an alias is gone: its addresses are a gap again.
    pub fn clear(&mut self, at: Offset) -> Result<(), LineError> {
        self.aliases.remove(&at).map(drop).ok_or(LineError::Absent { at })
    }

    /// The pages that are free from end to end, as (where, size, size of the hole they are in).
    fn free_pages(&self) -> Vec<(Offset, u64, u64)> {
        let mut found = Vec::new();
        for (start, end) in self.holes.runs() {
            for (&at, placed) in self.pages.range(start..end) {
                if at + placed.size <= end {
                    found.push((at, placed.size, end - start));
                }
            }
        }
        found
    }

    /// The pages that are free from end to end, for trimming: where, and how large.
    pub fn idle_pages(&self) -> impl Iterator<Item = (Offset, Bytes)> {
        self.free_pages().into_iter().map(|(at, size, _)| (at, Bytes::new(size)))
    }

    /// The page that begins at `at`: which, and how large.
    pub fn page(&self, at: Offset) -> Option<(u64, Bytes)> {
        self.pages.get(&at).map(|placed| (placed.page, Bytes::new(placed.size)))
    }

    /// Every page on the line: where, which, and how large.
    pub fn pages(&self) -> impl Iterator<Item = (Offset, u64, Bytes)> {
        self.pages.iter().map(|(&at, placed)| (at, placed.page, Bytes::new(placed.size)))
    }

    /// Whether `size` bytes from `at` can take a page or alias; gives their end.
    fn vacant(&self, at: Offset, size: u64) -> Result<Offset, LineError> {
        let malformed = LineError::Malformed { at, size };
        let end = at.checked_add(size).filter(|&end| end <= self.size).ok_or(malformed)?;
        let granule = self.granule.bytes().get();
        if size == 0 || !at.is_multiple_of(granule) || !size.is_multiple_of(granule) {
            return Err(malformed);
        }
        if self.next_occupied(at) < end || self.occupied_at(at) {
            return Err(LineError::Occupied { at });
        }
        Ok(end)
    }

    /// Whether every byte of `at..end` has a page behind it.
    fn is_backed(&self, at: Offset, end: Offset) -> bool {
        let number = self.runs_up_to(at);
        number.checked_sub(1).and_then(|last| self.runs.get(last)).is_some_and(|run| end <= run.1)
    }

    /// Notes that `at..end`, where nothing was, has a page behind it.
    fn back(&mut self, at: Offset, end: Offset) {
        let number = self.runs_up_to(at);
        let above = self.runs.get(number).copied().filter(|run| run.0 == end);
        let end = above.map_or(end, |run| run.1);
        if above.is_some() {
            self.runs.remove(number);
        }
        match number.checked_sub(1).and_then(|below| self.runs.get_mut(below)) {
            Some(below) if below.1 == at => below.1 = end,
            _ => self.runs.insert(number, (at, end)),
        }
    }

    /// How many runs begin at or below `at`.
    fn runs_up_to(&self, at: Offset) -> usize {
        self.runs.partition_point(|run| run.0 <= at)
    }

    /// Notes that `at..end`, that a page was behind, has none.
    fn unback(&mut self, at: Offset, end: Offset) {
        let Some(number) = self.runs_up_to(at).checked_sub(1) else { return };
        let Some(run) = self.runs.get_mut(number) else { return };
        let (start, stop) = (run.0, core::mem::replace(&mut run.1, at));
        if end < stop {
            self.runs.insert(number + 1, (end, stop));
        }
        if start == at {
            self.runs.remove(number);
        }
    }

    /// Whether a page or alias covers `at`.
    fn occupied_at(&self, at: Offset) -> bool {
        let page = self.pages.range(..=at).next_back().map(|(&start, page)| start + page.size);
        let alias = self.aliases.range(..=at).next_back().map(|(&start, &size)| start + size);
        page.is_some_and(|end| end > at) || alias.is_some_and(|end| end > at)
    }

    /// Where the next page or alias from `at` on begins; the end of the line where there is none.
    fn next_occupied(&self, at: Offset) -> Offset {
        let page = self.pages.range(at..).next().map(|(&start, _)| start);
        let alias = self.aliases.range(at..).next().map(|(&start, _)| start);
        page.unwrap_or(self.size).min(alias.unwrap_or(self.size))
    }
}
