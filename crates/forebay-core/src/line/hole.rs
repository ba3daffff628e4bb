//! Holes: free memory, and in whose order.

use super::sorted::{Cursor, Sorted};

/// A set of streams, by small numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Streams(u64);

impl Streams {
    /// No stream.
    pub const NONE: Self = Self(0);
    /// Every stream there is or will be.
    pub const ALL: Self = Self(u64::MAX);

    /// How many streams can be told apart.
    pub const MOST: u32 = 64;

    /// The set of one stream. Numbers from [`Streams::MOST`] on give the empty set: memory freed
    /// there is nobody's until it is known to be idle.
    pub const fn only(number: u32) -> Self {
        if number < Self::MOST { Self(1 << number) } else { Self::NONE }
    }

    /// Whether all of `other` is in it.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether what is free in the order of all of these may go to `taker`. A taker that is no
    /// stream that can be told apart may only have what is free for all.
    pub(super) const fn serve(self, taker: Self) -> bool {
        let taker = if taker.is_empty() { Self::ALL } else { taker };
        self.contains(taker)
    }

    /// Whether it has none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// What is in both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// What is in either.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What is in it and not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The numbers of its streams, the lowest first.
    pub fn numbers(self) -> impl Iterator<Item = u32> {
        (0..Self::MOST).filter(move |&number| self.0 & 1 << number != 0)
    }
}

/// Free memory up to `end`, free in the order of `streams`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hole {
    pub(super) end: u64,
    pub(super) streams: Streams,
}

/// A hole with its start; in order of that.
#[derive(Clone, Copy, Debug)]
struct Placed {
    start: u64,
    hole: Hole,
}

/// All holes, by address and, for each set of streams, by size.
///
/// There are few different sets at a time (each stream's own, and those that waits have made), so
/// looking through the sets is cheap; within a set the best fit is one short search.
#[derive(Clone, Debug, Default)]
pub(super) struct Holes {
    by_start: Sorted<Placed>,
    /// The sizes and starts of the holes of each set. No set is without holes.
    by_size: Vec<(Streams, Sorted<(u64, u64)>)>,
    bytes: u64,
}

impl Holes {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.by_start.len()
    }

    pub(super) fn largest(&self) -> u64 {
        let last = |sizes: &Sorted<(u64, u64)>| sizes.last().map(|&(size, _)| size);
        self.by_size.iter().filter_map(|(_, sizes)| last(sizes)).max().unwrap_or(0)
    }

    /// Each hole with its start. Neighbours that are free in different orders are apart.
    pub(super) fn each(&self) -> impl Iterator<Item = (u64, Hole)> {
        self.by_start.iter().map(|placed| (placed.start, placed.hole))
    }

    /// Stretches of free memory as (start, end), in whatever order its parts are free.
    pub(super) fn runs(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (start, hole) in self.each() {
            match runs.last_mut() {
                Some(last) if last.1 == start => last.1 = hole.end,
                _ => runs.push((start, hole.end)),
            }
        }
        runs
    }

    /// Where the smallest hole for `size` begins, of those free in the order of all of `streams`.
    /// One whose end `can_grow` counts as larger than all others: cutting it would only have to be
    /// made good by growing, while the others are of no use to a larger request.
    pub(super) fn best_fit(
        &self,
        size: u64,
        streams: Streams,
        can_grow: impl Fn(u64) -> bool,
    ) -> Option<u64> {
        let mut best: Option<(bool, u64, u64)> = None;
        for (_, sizes) in self.by_size.iter().filter(|(set, _)| set.serve(streams)) {
            // At most one hole can grow; the first that cannot ends the search.
            for &(hole, start) in sizes.from(sizes.seek(|other| *other < (size, 0))) {
                let found = (can_grow(start + hole), hole, start);
                if best.is_none_or(|best| found < best) {
                    best = Some(found);
                }
                if !found.0 {
                    break;
                }
            }
        }
        best.map(|(.., start)| start)
    }

    /// In whose order the smallest hole for `size` is free. Holes that are nobody's are left out:
    /// there is nobody to wait for.
    pub(super) fn owner_of_best_fit(&self, size: u64) -> Option<Streams> {
        let owned = self.by_size.iter().filter(|(set, _)| !set.is_empty());
        let fits = owned.filter_map(|(set, sizes)| {
            let found = sizes.get(sizes.seek(|other| *other < (size, 0)))?;
            Some((*found, *set))
        });
        fits.min().map(|(_, set)| set)
    }

    /// Every stream in whose order something is free.
    pub(super) fn owners(&self) -> Streams {
        self.by_size.iter().fold(Streams::NONE, |all, (set, _)| all.or(*set))
    }

    /// The place of the first hole from `start` on.
    fn seek(&self, start: u64) -> Cursor {
        self.by_start.seek(|placed| placed.start < start)
    }

    /// The place of the hole that has `at` in it, or of the first beyond.
    fn seek_covering(&self, at: u64) -> Cursor {
        self.by_start.seek(|placed| placed.hole.end <= at)
    }

    /// The streams in whose order all of `start..end` is free; `None` where not all of it is.
    pub(super) fn covering(&self, start: u64, end: u64) -> Option<Streams> {
        let (mut reached, mut streams) = (start, Streams::ALL);
        for placed in self.by_start.from(self.seek_covering(start)) {
            if reached >= end {
                break;
            }
            if placed.start > reached {
                return None;
            }
            reached = placed.hole.end;
            streams = streams.and(placed.hole.streams);
        }
        (reached >= end).then_some(streams)
    }

    /// Adds a hole, unless one shares a byte with it, and makes it one with neighbours that have a
    /// stream in common with it. Whether it was added.
    pub(super) fn add(&mut self, start: u64, hole: Hole) -> bool {
        let after = self.seek(start);
        let right = self.by_start.get(after).copied();
        let before = self.by_start.before(after);
        let left = before.and_then(|at| self.by_start.get(at).copied());
        if right.is_some_and(|right| right.start < hole.end)
            || left.is_some_and(|left| left.hole.end > start)
        {
            return false;
        }
        self.bytes += hole.end - start;
        let mut whole = Placed { start, hole };
        let left = left.filter(|left| left.hole.end == start && joins(left.hole, whole.hole));
        if let Some(left) = left {
            whole.start = left.start;
            whole.hole.streams = whole.hole.streams.and(left.hole.streams);
            self.forget_size(left);
        }
        let right =
            right.filter(|right| right.start == hole.end && joins(right.hole, whole.hole));
        if let Some(right) = right {
            whole.hole.end = right.hole.end;
            whole.hole.streams = whole.hole.streams.and(right.hole.streams);
            self.forget_size(right);
        }
        // What it became one with lies where it belongs: changed in place.
        match (left.and(before), right) {
            (Some(before), None) => self.change(before, whole),
            (Some(before), Some(_)) => {
                // The left one first: taking the right one out may move chunks, not what is before.
                self.change(before, whole);
                self.by_start.remove(after);
            }
            (None, Some(_)) => self.change(after, whole),
            (None, None) => self.by_start.insert(after, whole),
        }
        self.note_size(whole);
        true
    }

    fn change(&mut self, at: Cursor, placed: Placed) {
        if let Some(place) = self.by_start.get_mut(at) {
            *place = placed;
        }
    }

    /// Takes `size` bytes off the start of the hole at `start`.
    pub(super) fn cut(&mut self, start: u64, size: u64) {
        let at = self.seek(start);
        let Some(&placed) = self.by_start.get(at).filter(|placed| placed.start == start) else {
            return;
        };
        self.forget_size(placed);
        let rest = start + size;
        if rest < placed.hole.end {
            let rest = Placed { start: rest, ..placed };
            self.change(at, rest);
            self.note_size(rest);
            self.bytes -= size;
        } else {
            self.by_start.remove(at);
            self.bytes -= placed.hole.end - start;
        }
    }

    /// Takes `start..end`, all of it free, out.
    pub(super) fn remove_range(&mut self, start: u64, end: u64) {
        let first = self.seek_covering(start);
        let touched = self.by_start.from(first).take_while(|placed| placed.start < end);
        let touched: Vec<Placed> = touched.copied().collect();
        for placed in touched {
            self.remove(placed.start);
            if placed.start < start {
                let end = start.min(placed.hole.end);
                self.insert(placed.start, Hole { end, ..placed.hole });
            }
            if placed.hole.end > end {
                self.insert(end, placed.hole);
            }
        }
    }

    /// Every hole whose streams `which` is true of becomes free in the order of `more` too, and one
    /// with its neighbours where that gives them a stream in common.
    pub(super) fn extend_owners(&mut self, which: impl Fn(Streams) -> bool, more: Streams) {
        let sets = self.by_size.iter().filter(|(set, _)| which(*set) && !set.contains(more));
        let mut starts: Vec<u64> =
            sets.flat_map(|(_, sizes)| sizes.iter().map(|&(_, start)| start)).collect();
        starts.sort_unstable();
        // All are out before the first is back: one joined to a neighbour that is still to be
        // extended would be held down to what that one has now.
        let holes: Vec<(u64, Hole)> =
            starts.into_iter().filter_map(|at| Some((at, self.remove(at)?))).collect();
        for (start, hole) in holes {
            self.add(start, Hole { streams: hole.streams.or(more), ..hole });
        }
    }

    /// Puts a hole in as it is.
    fn insert(&mut self, start: u64, hole: Hole) {
        self.bytes += hole.end - start;
        let placed = Placed { start, hole };
        self.by_start.insert(self.seek(start), placed);
        self.note_size(placed);
    }

    fn remove(&mut self, start: u64) -> Option<Hole> {
        let at = self.seek(start);
        self.by_start.get(at).filter(|placed| placed.start == start)?;
        let placed = self.by_start.remove(at)?;
        self.bytes -= placed.hole.end - start;
        self.forget_size(placed);
        Some(placed.hole)
    }

    fn note_size(&mut self, Placed { start, hole }: Placed) {
        let key = (hole.end - start, start);
        let found = self.by_size.iter().position(|&(set, _)| set == hole.streams);
        let found = found.unwrap_or_else(|| {
            self.by_size.push((hole.streams, Sorted::default()));
            self.by_size.len() - 1
        });
        if let Some((_, sizes)) = self.by_size.get_mut(found) {
            sizes.insert(sizes.seek(|other| *other < key), key);
        }
    }

    fn forget_size(&mut self, Placed { start, hole }: Placed) {
        let key = (hole.end - start, start);
        let Some(found) = self.by_size.iter().position(|&(set, _)| set == hole.streams) else {
            return;
        };
        if let Some((_, sizes)) = self.by_size.get_mut(found) {
            sizes.remove(sizes.seek(|other| *other < key));
            if sizes.is_empty() {
                self.by_size.swap_remove(found);
            }
        }
    }
}

/// Whether two neighbours are one: where both are free in the order of some stream, or both are
/// nobody's.
fn joins(one: Hole, two: Hole) -> bool {
    one.streams == two.streams || !one.streams.and(two.streams).is_empty()
}
