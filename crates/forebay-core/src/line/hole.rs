//! Holes: free memory, and in whose order.

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

/// The most holes a chunk has: six cache lines of them, and a pool of a thousand holes has few enough
/// chunks to look through all.
const CHUNK: usize = 16;

/// Holes that lie side by side, in order.
#[derive(Clone, Debug, Default)]
struct Chunk {
    /// Where the first begins.
    first: u64,
    /// None of them is larger. It may be too large itself, since a hole that was the largest and got
    /// shorter says nothing of the others: who looks here in vain measures.
    most: u64,
    /// Where each begins, and the hole. Never empty.
    holes: Vec<(u64, Hole)>,
}

impl Chunk {
    fn new(holes: Vec<(u64, Hole)>) -> Self {
        let first = holes.first().map_or(0, |hole| hole.0);
        let mut chunk = Self { first, most: 0, holes };
        chunk.measure();
        chunk
    }

    /// Finds out how large its largest is.
    fn measure(&mut self) {
        self.most = self.holes.iter().map(|(start, hole)| hole.end - start).max().unwrap_or(0);
    }
}

/// All holes in the order of their addresses, in chunks that know their largest.
///
/// Looking for the lowest hole that holds a request passes over whole chunks; putting one in or
/// taking one out moves what lies behind it in one chunk alone; and what happens most, a hole that
/// gets shorter or longer at one end, moves nothing.
#[derive(Clone, Debug)]
pub(super) struct Holes {
    chunks: Vec<Chunk>,
    count: usize,
    bytes: u64,
    /// The streams in whose order every one of them is free, or fewer.
    common: Streams,
    /// A hole is gone that may have been why `common` is not more.
    doubtful: bool,
}

impl Default for Holes {
    fn default() -> Self {
        Self { chunks: Vec::new(), count: 0, bytes: 0, common: Streams::ALL, doubtful: false }
    }
}

/// A place among the holes: which chunk, and which of it.
type Place = (usize, usize);

impl Holes {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn largest(&self) -> u64 {
        self.each().map(|(start, hole)| hole.end - start).max().unwrap_or(0)
    }

    /// Each hole with its start. Neighbours that are free in different orders are apart.
    pub(super) fn each(&self) -> impl Iterator<Item = (u64, Hole)> {
        self.chunks.iter().flat_map(|chunk| chunk.holes.iter().copied())
    }

    /// Each hole from a place on.
    fn each_from(&self, (chunk, index): Place) -> impl Iterator<Item = (u64, Hole)> {
        let chunks = self.chunks.get(chunk..).unwrap_or_default();
        let first = chunks.first().map_or(&[][..], |chunk| chunk.holes.get(index..).unwrap_or(&[]));
        let rest = chunks.iter().skip(1).flat_map(|chunk| &chunk.holes);
        first.iter().chain(rest).copied()
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

    /// Takes `size` bytes off the start of the lowest hole that has them in the order of all of
    /// `streams`; gives where they begin.
    pub(super) fn take(&mut self, size: u64, streams: Streams) -> Option<u64> {
        let fits =
            |&(start, hole): &(u64, Hole)| hole.end - start >= size && hole.streams.serve(streams);
        for number in 0..self.chunks.len() {
            let Some(chunk) = self.chunks.get_mut(number) else { break };
            if chunk.most < size {
                continue;
            }
            let Some(index) = chunk.holes.iter().position(fits) else {
                chunk.measure();
                continue;
            };
            let entry = chunk.holes.get_mut(index)?;
            let start = entry.0;
            entry.0 += size;
            let nothing_left = entry.0 == entry.1.end;
            if index == 0 {
                chunk.first = start + size;
            }
            self.bytes -= size;
            if nothing_left {
                self.remove((number, index));
            }
            return Some(start);
        }
        None
    }

    /// Whether all there is may go to `taker`, as far as can be told at a glance.
    #[inline]
    pub(super) fn all_serve(&mut self, taker: Streams) -> bool {
        self.common.serve(taker) || self.all_serve_looked_at(taker)
    }

    #[inline(never)]
    fn all_serve_looked_at(&mut self, taker: Streams) -> bool {
        if self.doubtful {
            self.common = self.each().fold(Streams::ALL, |all, (_, hole)| all.and(hole.streams));
            self.doubtful = false;
        }
        self.common.serve(taker)
    }

    /// In whose order the smallest hole for `size` is free, where it may not go to `taker` and all
    /// that may are larger, by more than `slack` larger than `size`; the lowest of equals. What is
    /// nobody's is left out.
    pub(super) fn better_elsewhere(
        &self,
        size: u64,
        slack: u64,
        taker: Streams,
    ) -> Option<Streams> {
        let (mut own, mut best) = (u64::MAX, (u64::MAX, None));
        let chunks = self.chunks.iter().filter(|chunk| chunk.most >= size);
        for &(start, hole) in chunks.flat_map(|chunk| &chunk.holes) {
            let length = hole.end - start;
            if length < size {
                continue;
            }
            if hole.streams.serve(taker) {
                if length - size <= slack {
                    return None;
                }
                own = own.min(length);
            } else if length < best.0 && !hole.streams.is_empty() {
                best = (length, Some(hole.streams));
            }
        }
        best.1.filter(|_| best.0 < own)
    }

    /// Every stream in whose order something is free.
    pub(super) fn owners(&self) -> Streams {
        self.each().fold(Streams::NONE, |all, (_, hole)| all.or(hole.streams))
    }

    pub(super) fn owners_beyond(&self, taker: Streams) -> Streams {
        self.each().filter(|(_, hole)| !hole.streams.serve(taker)).fold(Streams::NONE, |all, (_, hole)| all.or(hole.streams))
    }

    pub(super) fn hand_over(&mut self, from: Streams, to: Streams) {
        let all: Vec<(u64, Hole)> = self.each().collect();
        *self = Self::default();
        for (start, mut hole) in all {
            if hole.streams != Streams::ALL && hole.streams.contains(from) {
                hole.streams = hole.streams.without(from).or(to);
            }
            self.add(start, hole);
        }
    }

    /// The streams in whose order all of `start..end` is free; `None` where not all of it is.
    pub(super) fn covering(&self, start: u64, end: u64) -> Option<Streams> {
        let (mut reached, mut streams) = (start, Streams::ALL);
        for (from, hole) in self.each_from(self.at_or_below(start)?) {
            if reached >= end {
                break;
            }
            if from > reached || hole.end <= reached {
                return None;
            }
            reached = hole.end;
            streams = streams.and(hole.streams);
        }
        (reached >= end).then_some(streams)
    }

    /// Adds a hole and makes it one with neighbours that have a stream in common with it: first
    /// the one below, then the one above. `false`, and nothing changed, where another shares a byte
    /// with it.
    pub(super) fn add(&mut self, start: u64, hole: Hole) -> bool {
        // From the low end, where most come and go: there are few chunks to pass.
        let above = self.chunks.iter().position(|chunk| chunk.first > start);
        let number = above.unwrap_or(self.chunks.len()).saturating_sub(1);
        let next_chunk = self.chunks.get(number + 1).map_or(u64::MAX, |chunk| chunk.first);
        if next_chunk <= hole.end {
            return self.add_between(start, hole);
        }
        let Some(chunk) = self.chunks.get_mut(number) else {
            return self.add_between(start, hole);
        };
        // Whatever it touches is in this chunk. Counted rather than searched for: a few comparisons
        // that wait for nothing.
        let index: usize = chunk.holes.iter().map(|other| usize::from(other.0 <= start)).sum();
        let (lower, upper) = chunk.holes.split_at_mut(index);
        let (below, above) = (lower.last_mut(), upper.first_mut());
        let (lies_below, lies_above) = (below.as_deref().copied(), above.as_deref().copied());
        let Some(joined) = Joined::new(start, hole, lies_below, lies_above) else { return false };
        self.bytes += hole.end - start;
        let hole = joined.hole;
        self.common = self.common.and(hole.streams);
        match (below.filter(|_| joined.below), above.filter(|_| joined.above)) {
            (Some(below), above) => {
                below.1 = hole;
                chunk.most = chunk.most.max(hole.end - below.0);
                if above.is_some() {
                    self.remove((number, index));
                }
            }
            (None, Some(above)) => {
                *above = (start, hole);
                chunk.most = chunk.most.max(hole.end - start);
                if index == 0 {
                    chunk.first = start;
                }
            }
            (None, None) => self.insert((number, index), start, hole),
        }
        true
    }

    /// The same where there is no chunk yet, or the one above may touch it.
    #[cold]
    #[inline(never)]
    fn add_between(&mut self, start: u64, hole: Hole) -> bool {
        let place = self.at_or_below(start);
        let below = place.and_then(|place| Some((place, self.hole(place)?)));
        let next = place.map_or((0, 0), |(chunk, index)| (chunk, index + 1));
        let above = self.settle(next);
        let (lies_below, lies_above) = (below.map(|below| below.1), above.map(|above| above.1));
        let Some(joined) = Joined::new(start, hole, lies_below, lies_above) else { return false };
        self.bytes += hole.end - start;
        let hole = joined.hole;
        self.common = self.common.and(hole.streams);
        match (below.filter(|_| joined.below), above.filter(|_| joined.above)) {
            (Some((below, _)), Some((above, _))) => {
                // The one above first: taking it out moves nothing below it.
                self.remove(above);
                self.set_end(below, hole);
            }
            (Some((below, _)), None) => self.set_end(below, hole),
            (None, Some((above, _))) => self.set(above, start, hole),
            (None, None) => self.insert(next, start, hole),
        }
        true
    }

    /// Takes `start..end`, all of it free, out.
    pub(super) fn remove_range(&mut self, start: u64, end: u64) {
        let Some(place) = self.at_or_below(start) else { return };
        let touched: Vec<(u64, Hole)> =
            self.each_from(place).take_while(|(from, _)| *from < end).collect();
        for (from, hole) in touched {
            let Some(place) = self.at_or_below(from).filter(|_| hole.end > start) else { continue };
            self.bytes -= hole.end.min(end) - from.max(start);
            match (from < start, hole.end > end) {
                (true, true) => {
                    self.set_end(place, Hole { end: start, ..hole });
                    self.insert((place.0, place.1 + 1), end, hole);
                }
                (true, false) => self.set_end(place, Hole { end: start, ..hole }),
                (false, true) => self.set(place, end, hole),
                (false, false) => self.remove(place),
            }
        }
    }

    /// Every hole whose streams `which` is true of becomes free in the order of `more` too, and one
    /// with its neighbours where that gives them a stream in common.
    pub(super) fn extend_owners(&mut self, which: impl Fn(Streams) -> bool, more: Streams) {
        let grows = |streams: Streams| which(streams) && !streams.contains(more);
        if !self.each().any(|(_, hole)| grows(hole.streams)) {
            return;
        }
        let mut all: Vec<(u64, Hole)> = Vec::with_capacity(self.count);
        for (start, mut hole) in self.each() {
            if grows(hole.streams) {
                hole.streams = hole.streams.or(more);
            }
            match all.last_mut() {
                Some((_, last)) if last.end == start && joins(*last, hole) => {
                    *last = Hole { end: hole.end, streams: last.streams.and(hole.streams) };
                }
                _ => all.push((start, hole)),
            }
        }
        self.count = all.len();
        self.doubtful = true;
        // Half full, so that each has room for more.
        self.chunks = all.chunks(CHUNK / 2).map(|holes| Chunk::new(holes.to_vec())).collect();
    }

    fn hole(&self, (chunk, index): Place) -> Option<(u64, Hole)> {
        self.chunks.get(chunk)?.holes.get(index).copied()
    }

    /// The last hole that begins at or below `at`.
    fn at_or_below(&self, at: u64) -> Option<Place> {
        let chunk = self.chunks.partition_point(|chunk| chunk.first <= at).checked_sub(1)?;
        let holes = &self.chunks.get(chunk)?.holes;
        Some((chunk, holes.partition_point(|hole| hole.0 <= at).checked_sub(1)?))
    }

    /// The hole at a place, or at the start of the next chunk where that place is past the last.
    fn settle(&self, place: Place) -> Option<(Place, (u64, Hole))> {
        let here = self.hole(place).map(|hole| (place, hole));
        here.or_else(|| {
            let next = (place.0 + 1, 0);
            self.hole(next).map(|hole| (next, hole))
        })
    }

    /// Makes a hole end elsewhere, and free in another order.
    fn set_end(&mut self, (chunk, index): Place, hole: Hole) {
        let Some(chunk) = self.chunks.get_mut(chunk) else { return };
        let Some(entry) = chunk.holes.get_mut(index) else { return };
        entry.1 = hole;
        chunk.most = chunk.most.max(hole.end - entry.0);
    }

    /// Changes a hole where it stands: its ends, not its place in the order.
    fn set(&mut self, (chunk, index): Place, start: u64, hole: Hole) {
        let Some(chunk) = self.chunks.get_mut(chunk) else { return };
        let Some(entry) = chunk.holes.get_mut(index) else { return };
        *entry = (start, hole);
        chunk.most = chunk.most.max(hole.end - start);
        if index == 0 {
            chunk.first = start;
        }
    }

    /// Puts in, at its place, a hole that touches nothing it could be one with.
    fn insert(&mut self, (number, index): Place, start: u64, hole: Hole) {
        self.count += 1;
        let Some(chunk) = self.chunks.get_mut(number) else {
            self.chunks.push(Chunk::new(vec![(start, hole)]));
            return;
        };
        chunk.holes.insert(index.min(chunk.holes.len()), (start, hole));
        chunk.most = chunk.most.max(hole.end - start);
        if index == 0 {
            chunk.first = start;
        }
        if chunk.holes.len() > CHUNK {
            let upper = chunk.holes.split_off(CHUNK / 2);
            self.chunks.insert(number + 1, Chunk::new(upper));
        }
    }

    fn remove(&mut self, (number, index): Place) {
        let Some(chunk) = self.chunks.get_mut(number) else { return };
        if index >= chunk.holes.len() {
            return;
        }
        let (_, hole) = chunk.holes.remove(index);
        self.count -= 1;
        self.doubtful |= hole.streams != self.common;
        let length = chunk.holes.len();
        if length == 0 {
            self.chunks.remove(number);
            return;
        }
        if let Some(first) = chunk.holes.first().filter(|_| index == 0) {
            chunk.first = first.0;
        }
        if length <= CHUNK / 4 {
            self.unite(number);
        }
    }

    /// Makes one chunk of two that have become short, so that their number follows the holes'.
    fn unite(&mut self, number: usize) {
        let length = |number: usize| self.chunks.get(number).map_or(CHUNK, |it| it.holes.len());
        if length(number) + length(number + 1) <= CHUNK / 2 {
            let next = self.chunks.remove(number + 1);
            if let Some(chunk) = self.chunks.get_mut(number) {
                chunk.most = chunk.most.max(next.most);
                chunk.holes.extend(next.holes);
            }
        }
    }
}

/// What a new hole becomes between the ones below and above it.
struct Joined {
    /// The hole, up to the end of the one above where they are one.
    hole: Hole,
    /// Whether it is one with the one below, and with the one above.
    below: bool,
    above: bool,
}

impl Joined {
    /// First with the one below, then with the one above; `None` where one of them shares a byte with it.
    #[inline(always)]
    fn new(
        start: u64,
        mut hole: Hole,
        below: Option<(u64, Hole)>,
        above: Option<(u64, Hole)>,
    ) -> Option<Self> {
        if below.is_some_and(|(_, other)| other.end > start)
            || above.is_some_and(|(from, _)| from < hole.end)
        {
            return None;
        }
        let below = below.filter(|&(_, other)| other.end == start && joins(other, hole));
        if let Some((_, other)) = below {
            hole.streams = hole.streams.and(other.streams);
        }
        let above = above.filter(|&(from, other)| from == hole.end && joins(other, hole));
        if let Some((_, other)) = above {
            hole = Hole { end: other.end, streams: hole.streams.and(other.streams) };
        }
        Some(Self { hole, below: below.is_some(), above: above.is_some() })
    }
}

/// Whether two neighbours are one: where both are free in the order of some stream, or both are
/// nobody's.
fn joins(one: Hole, two: Hole) -> bool {
    one.streams == two.streams || !one.streams.and(two.streams).is_empty()
}
