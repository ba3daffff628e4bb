//! Holes: free memory, and in whose order.

use std::collections::{BTreeMap, BTreeSet};

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

/// All holes, by address and, for each set of streams, by size.
///
/// There are few different sets at a time (each stream's own, and those that waits have made), so
/// looking through the sets is cheap; within a set the best fit is one step down a tree.
#[derive(Clone, Debug, Default)]
pub(super) struct Holes {
    by_start: BTreeMap<u64, Hole>,
    by_size: BTreeMap<Streams, BTreeSet<(u64, u64)>>,
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
        let last = |sizes: &BTreeSet<(u64, u64)>| sizes.last().map(|&(size, _)| size);
        self.by_size.values().filter_map(last).max().unwrap_or(0)
    }

    /// Each hole with its start. Neighbours that are free in different orders are apart.
    pub(super) fn each(&self) -> impl Iterator<Item = (u64, Hole)> {
        self.by_start.iter().map(|(&start, &hole)| (start, hole))
    }

    /// Stretches of free memory as (start, end), in whatever order its parts are free.
    pub(super) fn runs(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (&start, hole) in &self.by_start {
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
            for &(hole, start) in sizes.range((size, 0)..) {
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
        let fits = |(set, sizes): (&Streams, &BTreeSet<(u64, u64)>)| {
            let found = sizes.range((size, 0)..).next().filter(|_| !set.is_empty())?;
            Some((*found, *set))
        };
        self.by_size.iter().filter_map(fits).min().map(|(_, set)| set)
    }

    /// Every stream in whose order something is free.
    pub(super) fn owners(&self) -> Streams {
        self.by_size.keys().fold(Streams::NONE, |all, set| all.or(*set))
    }

    /// Whether a hole shares a byte with `start..end`.
    pub(super) fn overlap(&self, start: u64, end: u64) -> bool {
        self.by_start.range(..end).next_back().is_some_and(|(_, hole)| hole.end > start)
    }

    /// The streams in whose order all of `start..end` is free; `None` where not all of it is.
    pub(super) fn covering(&self, start: u64, end: u64) -> Option<Streams> {
        let (&first, _) = self.by_start.range(..=start).next_back()?;
        let (mut reached, mut streams) = (start, Streams::ALL);
        for (&from, hole) in self.by_start.range(first..end) {
            if from > reached {
                return None;
            }
            reached = reached.max(hole.end);
            streams = streams.and(hole.streams);
        }
        (reached >= end).then_some(streams)
    }

    /// Adds a hole and makes it one with neighbours that have a stream in common with it.
    pub(super) fn add(&mut self, mut start: u64, mut hole: Hole) {
        let before = self.by_start.range(..start).next_back();
        if let Some((&left, &neighbour)) = before
            && neighbour.end == start
            && joins(neighbour, hole)
        {
            self.remove(left);
            start = left;
            hole.streams = hole.streams.and(neighbour.streams);
        }
        if let Some(&neighbour) = self.by_start.get(&hole.end)
            && joins(neighbour, hole)
        {
            self.remove(hole.end);
            hole.end = neighbour.end;
            hole.streams = hole.streams.and(neighbour.streams);
        }
        self.insert(start, hole);
    }

    /// Takes `size` bytes off the start of the hole at `start`.
    pub(super) fn cut(&mut self, start: u64, size: u64) {
        let Some(hole) = self.remove(start) else { return };
        if start + size < hole.end {
            self.insert(start + size, hole);
        }
    }

    /// Takes `start..end`, all of it free, out.
    pub(super) fn remove_range(&mut self, start: u64, end: u64) {
        let Some((&first, _)) = self.by_start.range(..=start).next_back() else { return };
        let touched: Vec<u64> = self.by_start.range(first..end).map(|(&at, _)| at).collect();
        for at in touched {
            let Some(hole) = self.remove(at) else { continue };
            if at < start {
                self.insert(at, Hole { end: start.min(hole.end), ..hole });
            }
            if hole.end > end {
                self.insert(end, hole);
            }
        }
    }

    /// Every hole whose streams `which` is true of becomes free in the order of `more` too, and one
    /// with its neighbours where that gives them a stream in common.
    pub(super) fn extend_owners(&mut self, which: impl Fn(Streams) -> bool, more: Streams) {
        let sets = self.by_size.iter().filter(|(set, _)| which(**set) && !set.contains(more));
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

    fn insert(&mut self, start: u64, hole: Hole) {
        self.bytes += hole.end - start;
        self.by_start.insert(start, hole);
        self.by_size.entry(hole.streams).or_default().insert((hole.end - start, start));
    }

    fn remove(&mut self, start: u64) -> Option<Hole> {
        let hole = self.by_start.remove(&start)?;
        self.bytes -= hole.end - start;
        if let Some(sizes) = self.by_size.get_mut(&hole.streams) {
            sizes.remove(&(hole.end - start, start));
            if sizes.is_empty() {
                self.by_size.remove(&hole.streams);
            }
        }
        Some(hole)
    }
}

/// Whether two neighbours are one: where both are free in the order of some stream, or both are
/// nobody's.
fn joins(one: Hole, two: Hole) -> bool {
    one.streams == two.streams || !one.streams.and(two.streams).is_empty()
}
