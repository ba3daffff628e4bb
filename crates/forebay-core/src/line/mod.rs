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
mod sorted;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::{Bytes, PageSize};

pub use hole::Streams;
use hole::{Hole, Holes};
pub use plan::{Growth, Plan, Standing, Step};
use sorted::Sorted;

/// A place on the line, in bytes from its start.
pub type Offset = u64;

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
    /// Where pages lie side by side, as (start, end).
    stretches: Sorted<(Offset, Offset)>,
    backed: u64,
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
            stretches: Sorted::default(),
            backed: 0,
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

    /// The size of the largest hole, in whatever order it is free.
    pub fn largest_hole(&self) -> Bytes {
        Bytes::new(self.holes.largest())
    }

    /// How many holes there are.
    pub fn hole_count(&self) -> usize {
        self.holes.len()
    }

    /// Takes the start of the smallest hole that holds `size` and is free in the order of all of
    /// `streams`; among equals the one with the lowest address. The hole at the end of the line,
    /// which can always be made longer, is spared for as long as another will do: it is the one
    /// that large requests grow from. Where `streams` is empty, only what is free for all will do.
    /// `None` where there is no such hole, and where `size` is nothing.
    pub fn take(&mut self, size: Bytes, streams: Streams) -> Option<Offset> {
        if size.is_zero() {
            return None;
        }
        let top = self.top();
        let at = self.holes.best_fit(size.get(), streams, |end| end == top)?;
        self.holes.cut(at, size.get());
        Some(at)
    }

    /// Makes `size` bytes from `at` free, in the order of `streams`.
    pub fn give(&mut self, at: Offset, size: Bytes, streams: Streams) -> Result<(), LineError> {
        let end = at.checked_add(size.get()).filter(|_| !size.is_zero());
        let end = end.ok_or(LineError::Malformed { at, size: size.get() })?;
        if self.is_backed(at, end) && self.holes.add(at, Hole { end, streams }) {
            Ok(())
        } else {
            Err(LineError::InUse { at })
        }
    }

    /// The streams in whose order the smallest hole that holds `size` is free, whoever they are.
    pub fn nearest_owner(&self, size: Bytes) -> Option<Streams> {
        self.holes.owner_of_best_fit(size.get())
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
        self.pages.insert(at, Placed { size, page });
        self.back(at, end);
        self.backed += size;
        let added = self.holes.add(at, Hole { end, streams });
        debug_assert!(added, "{at:#x} had no page and was free");
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

    /// Every page on the line: where, which, and how large.
    pub fn pages(&self) -> impl Iterator<Item = (Offset, u64, Bytes)> {
        self.pages.iter().map(|(&at, placed)| (at, placed.page, Bytes::new(placed.size)))
    }

    /// Where the last page ends: beyond it the line can always grow.
    fn top(&self) -> Offset {
        self.pages.last_key_value().map_or(0, |(&start, page)| start + page.size)
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
        let found = self.stretches.get(self.stretches.seek(|stretch| stretch.1 <= at));
        found.is_some_and(|stretch| stretch.0 <= at && end <= stretch.1)
    }

    /// Notes that `at..end`, where nothing was, has a page behind it.
    fn back(&mut self, at: Offset, end: Offset) {
        let after = self.stretches.seek(|stretch| stretch.0 < at);
        let joins = |cursor, side: fn(&(Offset, Offset)) -> Offset, edge| {
            self.stretches.get(cursor).filter(|stretch| side(stretch) == edge).copied()
        };
        let left = self.stretches.before(after);
        let left = left.and_then(|cursor| Some((cursor, joins(cursor, |s| s.1, at)?)));
        let right = joins(after, |s| s.0, end);
        let whole = (left.map_or(at, |(_, left)| left.0), right.map_or(end, |right| right.1));
        if right.is_some() {
            self.stretches.remove(after);
        }
        match left.and_then(|(cursor, _)| self.stretches.get_mut(cursor)) {
            Some(left) => *left = whole,
            None => self.stretches.insert(self.stretches.seek(|s| s.0 < whole.0), whole),
        }
    }

    /// Notes that `at..end`, that a page was behind, has none.
    fn unback(&mut self, at: Offset, end: Offset) {
        let found = self.stretches.seek(|stretch| stretch.1 <= at);
        let Some(stretch) = self.stretches.remove(found) else { return };
        for part in [(stretch.0, at), (end, stretch.1)] {
            if part.0 < part.1 {
                self.stretches.insert(self.stretches.seek(|s| s.0 < part.0), part);
            }
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
