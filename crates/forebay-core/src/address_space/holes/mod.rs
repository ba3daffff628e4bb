//! Holes: free memory, and the streams in whose order it is free.
//!
//! ```text
//!   runs     [             run             ]     [      run      ]      adjacent pages, or each page
//!   blocks   ####  ########                        ######       ##
//!   holes        ..        .........             ..      .......
//!                {A}       {A, B}                {B}     {B}            a group for each set of streams
//! ```
//!
//! A hole lies within one run. Two holes of a run that touch have no stream in common: otherwise they are one, free in
//! the order of the streams that both had. A hole is allocated from its start, the lowest that is large enough first.
//!
//! | file | subject |
//! |---|---|
//! | `index` | every hole, in each of the indexes below |
//! | `tree` | holes by address, and the lowest hole of a size |
//! | `groups`, `group_bits` | holes that are free in the order of the same streams |
//! | `seams` | where holes touch that no stream may use both of |
//! | `lengths` | holes by length |
//! | `relabel` | what happens when a stream waits, ends or is idle |

mod group_bits;
mod groups;
mod index;
mod lengths;
mod relabel;
mod seams;
#[cfg(test)]
pub(super) mod tests;
mod tree;

use super::Offset;
use super::spans::Spans;
use super::streams::{Streams, StreamsRef};
use crate::Bytes;
use groups::GroupId;
use index::HoleIndex;
use relabel::Relabel;
pub(super) use tree::visit;
use tree::{FastAdd, Hole};

/// A hole is a good fit if at most this fraction of the block is left over: 8 means an eighth.
const GOOD_FIT: u64 = 8;

/// How many recent runs are cached, a power of two.
const RECENT: usize = 64;

/// A cache of runs that were looked up recently, indexed by some bits of the address: frees hit few runs.
type Recent = [(Offset, Offset); RECENT];

/// An empty cache: no address lies in these runs.
const NO_RUNS: Recent = [(Offset::MAX, 0); RECENT];

/// The address bits below the cache index: 32 MiB, so that most pages have an entry of their own.
const RECENT_SHIFT: u32 = 25;

/// Which neighbours a new hole may merge with: not those in another island of pages.
#[derive(Clone, Copy, Debug)]
struct MayMerge {
    below: bool,
    above: bool,
}

/// All holes of an address space. See the module.
#[derive(Clone, Debug)]
pub struct Holes {
    pub(super) index: HoleIndex,
    bytes: u64,
    /// The ranges within which a block may lie: runs of adjacent pages, or each page.
    runs: Spans,
    recent: Recent,
}

impl Default for Holes {
    fn default() -> Self {
        Self { index: HoleIndex::default(), bytes: 0, runs: Spans::default(), recent: NO_RUNS }
    }
}

impl Holes {
    /// The bytes of all holes.
    #[inline]
    pub fn bytes(&self) -> Bytes {
        Bytes::new(self.bytes)
    }

    /// The number of holes.
    pub fn count(&self) -> usize {
        self.index.groups.holes()
    }

    /// The size of the largest, whatever its streams.
    pub fn largest(&self) -> Bytes {
        Bytes::new(self.index.all.largest())
    }

    /// Every hole, as address and size, lowest first. Neighbours that are free in different orders are apart.
    pub fn iter(&self) -> impl Iterator<Item = (Offset, Bytes)> {
        self.index.all.each().map(|hole| (hole.start, Bytes::new(hole.size)))
    }

    /// Where the hole around `at` begins and ends; `None` if `at` is not free.
    pub fn around(&self, at: Offset) -> Option<(Offset, Offset)> {
        let below = self.index.all.beside(at).0;
        below.filter(|hole| at < hole.end()).map(|hole| (hole.start, hole.end()))
    }

    /// Whether a block may lie in `at..end`: pages are there throughout, and one island of them.
    pub fn is_backed(&self, at: Offset, end: Offset) -> bool {
        self.runs.around(at, end).is_some()
    }

    /// Whether no hole is free in the order of `stream`, except those that are free for all streams.
    pub fn owns_nothing(&self, stream: Streams) -> bool {
        let groups = &self.index.groups;
        !groups.containing(&stream).any(|id| groups.count(id) > 0)
    }

    /// Every stream that owns a hole `taker` may not use.
    pub fn other_owners(&self, taker: Streams) -> Streams {
        let groups = &self.index.groups;
        let others = groups.each().filter(|(id, set)| groups.count(*id) > 0 && !set.serve(&taker));
        others.fold(Streams::NONE, |all, (_, set)| all.or(*set))
    }

    /// Whether `size` bytes in one piece would be free with `returned` free as well, which are ranges sorted by address.
    pub fn would_fit(&self, size: Bytes, returned: &[(Offset, Offset)]) -> bool {
        if self.largest() >= size {
            return true;
        }
        let mut returned = returned.iter().copied().peekable();
        let mut holes = self.index.all.each().map(|hole| (hole.start, hole.end())).peekable();
        let mut run: (Offset, Offset) = (0, 0);
        loop {
            let next = match (holes.peek(), returned.peek()) {
                (Some(hole), Some(other)) if other < hole => returned.next(),
                (Some(_), _) => holes.next(),
                (None, _) => returned.next(),
            };
            let Some((start, end)) = next else { return false };
            // Islands may touch, and no block crosses from one to the next.
            let goes_on = start <= run.1 && self.is_backed(run.0, start + 1);
            run = if goes_on { (run.0, run.1.max(end)) } else { (start, end) };
            if run.1 - run.0 >= size.get() {
                return true;
            }
        }
    }

    /// Records that `taker` has waited for `owner`: what is free in the order of `owner` is now
    /// free in the order of `taker` too. With an empty `owner` nothing changes.
    pub fn record_wait(&mut self, taker: Streams, owner: Streams) {
        let groups = &self.index.groups;
        let ids = groups.containing(&owner).filter(|&id| !groups.set(id).has(&taker)).collect();
        Relabel::new(self, &taker).run(ids, |set| set.or(taker));
    }

    /// Records that `taker` has waited for each of `owners`: what is free in the order of any of them is now
    /// free in the order of `taker` too. Like one [`record_wait`](Self::record_wait) for each, in one pass.
    pub fn record_wait_any(&mut self, taker: Streams, owners: Streams) {
        let groups = self.index.groups.each();
        let ids = groups.filter(|(_, set)| set.meets(&owners) && !set.has(&taker));
        let ids = ids.map(|(id, _)| id).collect();
        Relabel::new(self, &taker).run(ids, |set| set.or(taker));
    }

    /// Records that all work on `streams` has completed: memory freed on any of them is free for all.
    /// With [`Streams::ALL`] that is every hole, including those that no stream could use yet.
    pub fn record_idle(&mut self, streams: Streams) {
        let ids = if streams.is_single() {
            self.index.groups.containing(&streams).collect()
        } else {
            let over = |set: &Streams| streams == Streams::ALL || set.meets(&streams);
            let groups = self.index.groups.each().filter(|&(_, set)| !set.is_all() && over(set));
            groups.map(|(id, _)| id).collect()
        };
        Relabel::new(self, &Streams::ALL).run(ids, |_| Streams::ALL);
    }

    /// Records that stream `from` has ended and that `to` are ordered after it: memory that was free in
    /// the order of `from` is free in the order of `to` instead, or of no stream if `to` is empty. The
    /// number may then be reused. Memory that is free for all streams stays so.
    pub fn hand_over(&mut self, from: Streams, to: Streams) {
        let after = |set: &Streams| set.without(from).or(to);
        let groups = &self.index.groups;
        let is_other = |&id: &GroupId| after(groups.set(id)) != *groups.set(id);
        let ids = groups.containing(&from).filter(is_other).collect();
        Relabel::new(self, &to).run(ids, after);
    }

    /// See [`AddressSpace::better_owner_for`](super::AddressSpace::better_owner_for).
    #[inline]
    pub(super) fn better_owner(&mut self, size: u64, taker: u32) -> Option<Streams> {
        self.index.better_owner(size, size / GOOD_FIT, taker)
    }

    /// The holes in `start..end`, cut off at its ends, and the streams in whose order each is free.
    pub(super) fn within(
        &self,
        start: Offset,
        end: Offset,
    ) -> impl Iterator<Item = (Offset, Offset, &Streams)> {
        self.overlapping(start, end)
            .map(move |hole| (hole.start.max(start), hole.end().min(end), self.index.set(&hole)))
    }

    /// Every hole that overlaps `start..end`.
    fn overlapping(&self, start: Offset, end: Offset) -> impl Iterator<Item = Hole> {
        self.index.all.each_from(start).take_while(move |hole| hole.start < end)
    }

    /// Whether all of `start..end` is free, whatever its streams.
    pub(super) fn covers(&self, start: Offset, end: Offset) -> bool {
        let mut inside = self.overlapping(start, end);
        let reached = inside.try_fold(start, |at, hole| (hole.start <= at).then_some(hole.end()));
        reached.is_some_and(|reached| reached >= end)
    }

    /// The streams in whose order all of `start..end` is free; `None` unless all of it is.
    pub(super) fn covering(&self, start: Offset, end: Offset) -> Option<Streams> {
        let common = || self.within(start, end).fold(Streams::ALL, |all, part| all.and(*part.2));
        self.covers(start, end).then(common)
    }

    /// Takes `size` bytes off the start of the lowest hole that has them in the order of `taker`;
    /// gives where they begin.
    #[inline]
    pub(super) fn take(&mut self, size: u64, taker: u32) -> Option<Offset> {
        if self.index.seams.is_some() {
            return self.take_from_groups(size, taker);
        }
        let HoleIndex { all, groups, .. } = &mut self.index;
        let hole = if groups.all_usable_by(taker) && all.is_low() {
            all.take_fast(size)?
        } else {
            self.take_filtered(size, taker)?
        };
        self.bytes -= size;
        let rest = hole.without_first(size);
        if rest.is_none() {
            self.index.groups.hole_removed(hole.group);
        }
        if self.index.lengths.is_some() {
            self.index.note_length(Some(hole), rest);
        }
        Some(hole.start)
    }

    /// Takes from the lowest hole that is free in the order of `taker` and returns the hole as it was.
    /// Does not update the counts.
    #[inline(never)]
    fn take_filtered(&mut self, size: u64, taker: u32) -> Option<Hole> {
        let HoleIndex { all, groups, .. } = &mut self.index;
        let usable = groups.usable_set(taker);
        if usable.has_all() {
            return all.take_slow(size);
        }
        if usable.has_none() {
            return None;
        }
        let (cursor, hole) = all.lowest_of(size, |id| usable.has(id))?;
        all.take_at(cursor, hole, size);
        Some(hole)
    }

    /// The same where groups have trees of their own.
    fn take_from_groups(&mut self, size: u64, taker: u32) -> Option<Offset> {
        let HoleIndex { all, groups, .. } = &self.index;
        let found = |id| groups.get(id)?.tree.lowest(size).map(|found| found.1);
        let lowest = groups.usable_by(taker).filter_map(found).min_by_key(|hole| hole.start);
        let hole = lowest?;
        let (cursor, _) = all.find(hole.start)?;
        let (below, above) = all.neighbours(cursor);
        if let Some(below) = below.filter(|below| below.end() == hole.start) {
            self.index.remove_seam(below.group, hole.group, hole.start);
        }
        self.bytes -= size;
        let rest = hole.without_first(size);
        if let Some(above) = above.filter(|above| rest.is_none() && above.start == hole.end()) {
            self.index.remove_seam(hole.group, above.group, hole.end());
        }
        self.index.cut(cursor, hole, rest);
        Some(hole.start)
    }

    /// Adds a run of pages, free in the order of `owner`. If pages are `joined`, those that touch are one run.
    pub(super) fn add_run(&mut self, start: Offset, end: Offset, joined: bool, owner: &Streams) {
        self.runs.add_joined(start, end, joined, joined);
        self.recent = NO_RUNS;
        let freed = self.free(start, end, StreamsRef::of(owner));
        debug_assert!(freed, "a hole lies outside of pages, in {start:#x}..{end:#x}");
    }

    /// Removes a part of a run, all of which is free.
    pub(super) fn remove_run(&mut self, start: Offset, end: Offset) {
        self.remove(start, end);
        self.runs.cut(start, end);
        self.recent = NO_RUNS;
    }

    /// Frees `start..end` in the order of `owner`. Returns `false` and changes nothing unless all of it is in blocks.
    #[inline]
    pub(super) fn free(&mut self, start: Offset, end: Offset, owner: StreamsRef<'_>) -> bool {
        // Less than `RECENT`.
        let part = (start >> RECENT_SHIFT & (RECENT as u64 - 1)) as usize;
        let recent = self.recent.get(part).filter(|run| run.0 <= start && end <= run.1).copied();
        let Some(run) = recent.or_else(|| self.runs.around(start, end)) else { return false };
        // A hole that touches it from beyond the run lies on another island.
        let may_merge = MayMerge { below: start > run.0, above: end < run.1 };
        if !self.add(start, end, owner, may_merge) {
            return false;
        }
        self.bytes += end - start;
        self.index.adapt(&self.runs);
        if let Some(recent) = self.recent.get_mut(part) {
            *recent = run;
        }
        true
    }

    /// Adds a hole free in the order of `owner` and merges it with neighbours that share a stream with
    /// it: first the one below, then the one above. Returns `false` and changes nothing if it overlaps
    /// another hole.
    #[inline]
    fn add(
        &mut self,
        start: Offset,
        end: Offset,
        owner: StreamsRef<'_>,
        may_merge: MayMerge,
    ) -> bool {
        let HoleIndex { all, groups, seams, lengths } = &mut self.index;
        let StreamsRef::One(number) = owner else {
            return self.add_slow(start, end, owner, may_merge);
        };
        let group = groups.single(number);
        let is_plain = all.is_low() && seams.is_none() && lengths.is_none();
        if group == GroupId::NONE || !is_plain {
            return self.add_slow(start, end, owner, may_merge);
        }
        // A set of one stream can share only that stream.
        let joins = |id: GroupId| groups.set(id).has_number(number);
        match all.add_fast(Hole::between(start, end, group), may_merge, joins) {
            FastAdd::Added => groups.hole_added(group, 1),
            FastAdd::Joined(old) => groups.hole_moved(old, group),
            FastAdd::Bridged(below, above) => {
                groups.hole_moved(below, group);
                groups.hole_removed(above);
            }
            FastAdd::Refused => return false,
            FastAdd::SlowPath => return self.add_slow(start, end, owner, may_merge),
        }
        true
    }

    /// [`add`](Self::add) without the restrictions of the fast path.
    #[inline(never)]
    fn add_slow(
        &mut self,
        start: Offset,
        end: Offset,
        owner: StreamsRef<'_>,
        may_merge: MayMerge,
    ) -> bool {
        let HoleIndex { all, groups, .. } = &mut self.index;
        let (below, above) = all.beside(start);
        if below.is_some_and(|below| below.end() > start)
            || above.is_some_and(|above| above.start < end)
        {
            return false;
        }
        let touched_below = below.filter(|below| below.end() == start && may_merge.below);
        let touched_above = above.filter(|above| above.start == end && may_merge.above);
        let (below, above, group) = match owner {
            StreamsRef::One(number) if number < Streams::MAX => {
                let joins = |other: &Hole| groups.set(other.group).has_number(number);
                let (below, above) = (touched_below.filter(joins), touched_above.filter(joins));
                let group = match groups.single(number) {
                    GroupId::NONE => groups.intern(&Streams::only(number)),
                    group => group,
                };
                (below, above, group)
            }
            StreamsRef::One(_) | StreamsRef::Many(_) => {
                let mut common = owner.set();
                let mut join = |other: &Hole| {
                    let other = groups.set(other.group);
                    let joins = joins(&common, other);
                    if joins && common != *other {
                        common = common.and(*other);
                    }
                    joins
                };
                let below = touched_below.filter(&mut join);
                let above = touched_above.filter(&mut join);
                (below, above, groups.intern(&common))
            }
        };
        // Counted at once: the group may have no other hole, and must stay.
        groups.hole_added(group, 1);
        if let Some(other) = touched_below.filter(|_| below.is_none()) {
            self.index.add_seam(other.group, group, start);
        }
        if let Some(other) = touched_above.filter(|_| above.is_none()) {
            self.index.add_seam(other.group, group, end);
        }
        let start = below.map_or(start, |below| below.start);
        let end = above.map_or(end, |above| above.end());
        self.index.replace(Hole::between(start, end, group), [below, above]);
        true
    }

    /// Removes `start..end`, all of which is free, from the holes.
    pub(super) fn remove(&mut self, start: Offset, end: Offset) {
        let touched: Vec<Hole> = self.overlapping(start, end).collect();
        for hole in touched {
            for at in [hole.start, hole.end()] {
                if (start..=end).contains(&at)
                    && let Some((low, high)) = self.index.touching(at)
                {
                    self.index.remove_seam(low.group, high.group, at);
                }
            }
            let part = |start, end| (start < end).then(|| Hole::between(start, end, hole.group));
            let (low, high) = (part(hole.start, start), part(end, hole.end()));
            if high.is_some() {
                self.index.groups.hole_added(hole.group, 1);
            }
            if let Some((cursor, _)) = self.index.all.find(hole.start) {
                self.index.cut(cursor, hole, low);
            }
            if let Some(high) = high {
                self.index.replace(high, [None, None]);
            }
        }
        self.bytes -= end - start;
        self.index.adapt(&self.runs);
    }
}

/// Whether two neighbours merge: they share a stream, or neither has any.
fn joins(one: &Streams, two: &Streams) -> bool {
    one == two || one.meets(two)
}
