//! Holes: free memory, and the streams in whose order it is free.
//!
//! ```text
//!   the tree of all holes     by address, and the largest of every part
//!   ----------------------    only with many holes in several groups:
//!   a tree for each group     its own holes
//!   seams                     where two holes touch that no stream may use both of
//!   ----------------------    only after a request asked for the smallest of many holes:
//!   lengths                   holes by length
//! ```
//!
//! With few holes, scanning those that are large enough costs less than maintaining several trees.

use std::collections::BTreeSet;

use super::gaps::Spans;
use super::groups::{GroupId, Groups, StreamsRef};
use super::lengths::{Lengths, are_few, scan_limit};
use super::streams::Streams;
use super::tree::{Cursor, FastAdd, Hole, Tree};

/// All holes.
#[derive(Clone, Debug)]
pub(super) struct Holes {
    pub(super) all: Tree,
    pub(super) groups: Groups,
    /// Present while the groups have trees of their own: from when there are many holes in several
    /// groups until there are few.
    pub(super) seams: Option<Seams>,
    pub(super) lengths: Option<Lengths>,
    count: usize,
    pub(super) bytes: u64,
}

impl Default for Holes {
    fn default() -> Self {
        Self {
            all: Tree::new(),
            groups: Groups::default(),
            seams: None,
            lengths: None,
            count: 0,
            bytes: 0,
        }
    }
}

/// The addresses where two unmerged holes touch, by their groups, in both orders.
///
/// When a stream waits, only holes whose groups change can merge, so only their seams are examined.
#[derive(Clone, Debug, Default)]
pub(super) struct Seams(BTreeSet<(GroupId, GroupId, u64)>);

impl Seams {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn insert(&mut self, one: GroupId, two: GroupId, at: u64) {
        self.0.insert((one, two, at));
        self.0.insert((two, one, at));
    }

    pub(super) fn remove(&mut self, one: GroupId, two: GroupId, at: u64) -> bool {
        let was_there = self.0.remove(&(one, two, at));
        self.0.remove(&(two, one, at));
        was_there
    }

    /// Gives the seams of one group to another.
    pub(super) fn rename(&mut self, old: GroupId, new: GroupId) {
        let renamed = |id: GroupId| if id == old { new } else { id };
        let seams = core::mem::take(&mut self.0).into_iter();
        self.0 = seams.map(|(one, two, at)| (renamed(one), renamed(two), at)).collect();
    }

    /// Where holes of these two groups touch.
    pub(super) fn between(&self, one: GroupId, two: GroupId) -> impl Iterator<Item = u64> {
        self.0.range((one, two, 0)..=(one, two, u64::MAX)).map(|seam| seam.2)
    }

    /// The lowest group from `from` on that has a hole which touches one of group `id`.
    pub(super) fn neighbour(&self, id: GroupId, from: GroupId) -> Option<GroupId> {
        let mut seams = self.0.range((id, from, 0)..=(id, GroupId::NONE, u64::MAX));
        seams.next().map(|seam| seam.1)
    }

    #[cfg(test)]
    pub(super) fn each(&self) -> impl Iterator<Item = (GroupId, GroupId, u64)> {
        self.0.iter().copied()
    }
}

/// Which neighbours a new hole may merge with: not those in another island of pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct MayMerge {
    pub(super) below: bool,
    pub(super) above: bool,
}

impl Holes {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The size of the largest, in whatever order it is free.
    pub(super) fn largest(&self) -> u64 {
        self.all.largest()
    }

    /// Each hole, the lowest first. Neighbours that are free in different orders are apart.
    pub(super) fn each(&self) -> impl Iterator<Item = Hole> {
        self.all.each()
    }

    /// The streams in whose order a hole is free.
    #[inline]
    pub(super) fn set(&self, hole: &Hole) -> &Streams {
        self.groups.set(hole.group)
    }

    /// Every stream in whose order something is free that `taker` may not have.
    pub(super) fn other_owners(&self, taker: &Streams) -> Streams {
        let some = |id: GroupId| self.groups.get(id).is_some_and(|group| group.count > 0);
        let beyond = self.groups.each().filter(|(id, set)| some(*id) && !set.serve(taker));
        beyond.fold(Streams::NONE, |all, (_, set)| all.or(*set))
    }

    /// Whether a hole of `size` bytes may go to `taker`.
    pub(super) fn can_take(&self, size: u64, taker: &Streams) -> bool {
        let taker = StreamsRef::of(taker);
        if self.seams.is_none() {
            let usable = self.groups.usable_set(taker);
            return self.all.lowest_of(size, |id| usable.has(id)).is_some();
        }
        let holds = |id| self.groups.get(id).is_some_and(|group| group.tree.largest() >= size);
        self.groups.usable_by(taker).any(holds)
    }

    /// The holes that may go to `taker` and have at least `least` bytes, which are more than none.
    pub(super) fn holes_for(&self, taker: &Streams, least: u64) -> Vec<Hole> {
        let (taker, mut holes) = (StreamsRef::of(taker), Vec::new());
        if self.seams.is_some() {
            for group in self.groups.usable_by(taker).filter_map(|id| self.groups.get(id)) {
                group.tree.each_of_size(least, |hole| {
                    holes.push(*hole);
                    false
                });
            }
            return holes;
        }
        let usable = self.groups.usable_set(taker);
        self.all.each_of_size(least, |hole| {
            holes.extend(Some(*hole).filter(|hole| usable.has(hole.group)));
            false
        });
        holes
    }

    /// Takes `size` bytes off the start of the lowest hole that has them in the order of `taker`;
    /// gives where they begin.
    #[inline]
    pub(super) fn take(&mut self, size: u64, taker: StreamsRef<'_>) -> Option<u64> {
        if self.seams.is_some() {
            return self.take_from_groups(size, taker);
        }
        let hole = if self.groups.all_usable_by(taker) && self.all.is_low() {
            self.all.take_fast(size)?
        } else {
            self.take_filtered(size, taker)?
        };
        self.bytes -= size;
        let rest = Hole { start: hole.start + size, ..hole };
        if rest.start == rest.end {
            self.hole_removed(hole.group);
        }
        if self.lengths.is_some() {
            self.note_length(Some(hole), Some(rest).filter(|rest| rest.start < rest.end));
        }
        Some(hole.start)
    }

    /// Takes from the lowest hole that is free in the order of `taker` and returns the hole as it was.
    /// Does not update the counts.
    #[inline(never)]
    fn take_filtered(&mut self, size: u64, taker: StreamsRef<'_>) -> Option<Hole> {
        let usable = self.groups.usable_set(taker);
        if usable.has_all() {
            return self.all.take_slow(size);
        }
        if usable.has_none() {
            return None;
        }
        let (cursor, hole) = self.all.lowest_of(size, |id| usable.has(id))?;
        self.all.take_at(cursor, hole, size);
        Some(hole)
    }

    /// The same where groups have trees of their own.
    fn take_from_groups(&mut self, size: u64, taker: StreamsRef<'_>) -> Option<u64> {
        let found = |id| self.groups.get(id)?.tree.lowest(size).map(|found| found.1);
        let lowest = self.groups.usable_by(taker).filter_map(found).min_by_key(|hole| hole.start);
        let hole = lowest?;
        let (cursor, _) = self.all.find(hole.start)?;
        let (below, above) = self.all.neighbours(cursor);
        if let Some(below) = below.filter(|below| below.end == hole.start) {
            self.remove_seam(below.group, hole.group, hole.start);
        }
        self.bytes -= size;
        let rest = Hole { start: hole.start + size, ..hole };
        let rest = Some(rest).filter(|rest| rest.start < rest.end);
        if let Some(above) = above.filter(|above| rest.is_none() && above.start == hole.end) {
            self.remove_seam(hole.group, above.group, hole.end);
        }
        self.cut_at(cursor, hole, rest);
        Some(hole.start)
    }

    /// Adds a hole free in the order of `owner` and merges it with neighbours that share a stream with
    /// it: first the one below, then the one above. Returns `false` and changes nothing if it overlaps
    /// another hole.
    #[inline]
    pub(super) fn add(
        &mut self,
        start: u64,
        end: u64,
        owner: StreamsRef<'_>,
        may_merge: MayMerge,
    ) -> bool {
        let StreamsRef::One(number) = owner else {
            return self.add_slow(start, end, owner, may_merge);
        };
        let group = self.groups.single(number);
        let is_plain = self.all.is_low() && self.seams.is_none() && self.lengths.is_none();
        if group == GroupId::NONE || !is_plain {
            return self.add_slow(start, end, owner, may_merge);
        }
        // A set of one stream can share only that stream.
        let groups = &self.groups;
        let joins = |id: GroupId| groups.set(id).has_number(number);
        match self.all.add_fast(Hole { start, end, group }, may_merge, joins) {
            FastAdd::Added => self.hole_added(group),
            FastAdd::Joined(old) => self.replaced(old, group),
            FastAdd::Bridged(below, above) => {
                self.replaced(below, group);
                self.hole_removed(above);
            }
            FastAdd::Refused => return false,
            FastAdd::Elsewhere => return self.add_slow(start, end, owner, may_merge),
        }
        self.bytes += end - start;
        true
    }

    /// Updates the counts after a hole moved from one group to another.
    #[inline]
    fn replaced(&mut self, old: GroupId, new: GroupId) {
        if old != new {
            self.hole_added(new);
            self.hole_removed(old);
        }
    }

    /// [`add`](Self::add) without the restrictions of the fast path.
    #[inline(never)]
    fn add_slow(
        &mut self,
        start: u64,
        end: u64,
        owner: StreamsRef<'_>,
        may_merge: MayMerge,
    ) -> bool {
        let (below, above) = self.all.beside(start);
        if below.is_some_and(|below| below.end > start)
            || above.is_some_and(|above| above.start < end)
        {
            return false;
        }
        let touched_below = below.filter(|below| below.end == start && may_merge.below);
        let touched_above = above.filter(|above| above.start == end && may_merge.above);
        let (below, above, group) = match owner {
            StreamsRef::One(number) if number < Streams::MOST => {
                let joins = |other: &Hole| self.groups.set(other.group).has_number(number);
                let (below, above) = (touched_below.filter(joins), touched_above.filter(joins));
                (below, above, self.groups.intern_ref(owner))
            }
            StreamsRef::One(_) | StreamsRef::Many(_) => {
                let mut union = owner.set();
                let mut join = |other: &Hole| {
                    let other = self.groups.set(other.group);
                    let joins = joins(&union, other);
                    if joins && union != *other {
                        union = union.and(*other);
                    }
                    joins
                };
                let below = touched_below.filter(&mut join);
                let above = touched_above.filter(&mut join);
                (below, above, self.groups.intern(&union))
            }
        };
        // Counted at once: the group may have no other hole, and must stay.
        self.hole_added(group);
        if let Some(other) = touched_below.filter(|_| below.is_none()) {
            self.add_seam(other.group, group, start);
        }
        if let Some(other) = touched_above.filter(|_| above.is_none()) {
            self.add_seam(other.group, group, end);
        }
        self.bytes += end - start;
        let start = below.map_or(start, |below| below.start);
        let end = above.map_or(end, |above| above.end);
        self.replace_parts(Hole { start, end, group }, [below, above]);
        true
    }

    /// Replaces `parts`, all of them holes within `hole`, with `hole`, which is counted already.
    pub(super) fn replace_parts(&mut self, hole: Hole, parts: [Option<Hole>; 2]) {
        // The outer ends of its parts may touch others.
        for part in parts.into_iter().flatten() {
            for at in [part.start, part.end] {
                let outer = at == hole.start || at == hole.end;
                if let Some((low, high)) = self.touching(at).filter(|_| outer)
                    && self.remove_seam(low.group, high.group, at)
                {
                    let other = if at == hole.start { low.group } else { high.group };
                    self.add_seam(other, hole.group, at);
                }
            }
        }
        let mut parts = parts.into_iter().flatten();
        let Some(first) = parts.next() else {
            self.all.put(hole);
            if let Some(group) = self.group_tree(hole.group) {
                group.put(hole);
            }
            self.note_length(None, Some(hole));
            return;
        };
        for part in parts {
            self.all.drop_at(part.start);
            self.forget(part);
        }
        if let Some((cursor, _)) = self.all.find(first.start) {
            self.all.change(cursor, first, hole);
        }
        self.move_between_groups(first, hole);
        self.hole_removed(first.group);
    }

    /// Changes a hole in the indices of its group, or moves it to another. The tree of all holes has
    /// the new one already.
    pub(super) fn move_between_groups(&mut self, old: Hole, new: Hole) {
        if old.group == new.group {
            if let Some(tree) = self.group_tree(old.group)
                && let Some((cursor, _)) = tree.find(old.start)
            {
                tree.change(cursor, old, new);
            }
        } else {
            if let Some(tree) = self.group_tree(old.group) {
                tree.drop_at(old.start);
            }
            if let Some(tree) = self.group_tree(new.group) {
                tree.put(new);
            }
        }
        self.note_length(Some(old), Some(new));
    }

    /// Shrinks a hole to `rest`, or removes it.
    pub(super) fn cut(&mut self, hole: Hole, rest: Option<Hole>) {
        if let Some((cursor, _)) = self.all.find(hole.start) {
            self.cut_at(cursor, hole, rest);
        }
    }

    fn cut_at(&mut self, cursor: Cursor, hole: Hole, rest: Option<Hole>) {
        match rest {
            Some(rest) => {
                self.all.change(cursor, hole, rest);
                self.move_between_groups(hole, rest);
            }
            None => {
                self.all.remove(cursor);
                self.forget(hole);
            }
        }
    }

    /// Removes a hole that is no longer in the tree of all holes from the other indexes.
    fn forget(&mut self, hole: Hole) {
        if let Some(tree) = self.group_tree(hole.group) {
            tree.drop_at(hole.start);
        }
        self.note_length(Some(hole), None);
        self.hole_removed(hole.group);
    }

    /// The tree of a group, where groups have trees.
    pub(super) fn group_tree(&mut self, id: GroupId) -> Option<&mut Tree> {
        self.seams.as_ref()?;
        self.groups.get_mut(id).map(|group| &mut group.tree)
    }

    /// Notes that a group has one hole more.
    #[inline]
    pub(super) fn hole_added(&mut self, id: GroupId) {
        self.count += 1;
        self.groups.hole_added(id, 1);
    }

    /// Notes that a group has one hole less.
    #[inline]
    fn hole_removed(&mut self, id: GroupId) {
        self.count -= 1;
        self.groups.hole_removed(id);
    }

    pub(super) fn add_seam(&mut self, one: GroupId, two: GroupId, at: u64) {
        if let Some(seams) = &mut self.seams {
            seams.insert(one, two, at);
        }
    }

    pub(super) fn remove_seam(&mut self, one: GroupId, two: GroupId, at: u64) -> bool {
        self.seams.as_mut().is_some_and(|seams| seams.remove(one, two, at))
    }

    /// Builds a tree for each group when there are many holes in several groups, and drops the trees
    /// when there are few. The two thresholds differ, so the cost is amortised over the holes added
    /// or removed in between. Holes stay within one of `runs`.
    #[inline]
    pub(super) fn adapt(&mut self, runs: &Spans) {
        if self.seams.is_none() {
            let groups = self.groups.live();
            if groups > 1 && self.count > scan_limit(groups) {
                self.build_group_trees(runs);
            }
        } else if are_few(self.count, self.groups.live()) {
            self.seams = None;
            self.groups.drop_trees();
        }
    }

    #[cold]
    fn build_group_trees(&mut self, runs: &Spans) {
        let mut seams = Seams::default();
        let mut last = Hole::default();
        for hole in self.all.each() {
            if last.end == hole.start && last.end > 0 && !runs.begins_at(hole.start) {
                seams.insert(last.group, hole.group, hole.start);
            }
            if let Some(group) = self.groups.get_mut(hole.group) {
                group.tree.put(hole);
            }
            last = hole;
        }
        self.seams = Some(seams);
        if self.lengths.is_none() {
            self.lengths = Some(self.owned_lengths());
        }
    }

    /// An index by length of all holes that some stream may use.
    pub(super) fn owned_lengths(&self) -> Lengths {
        let no_stream = self.groups.no_stream();
        Lengths::new(self.all.each().filter(|hole| hole.group != no_stream))
    }

    /// Updates the index of lengths, if there is one.
    #[inline]
    pub(super) fn note_length(&mut self, old: Option<Hole>, new: Option<Hole>) {
        let groups = self.groups.live();
        let Some(lengths) = &mut self.lengths else { return };
        let no_stream = self.groups.no_stream();
        let is_owned = |hole: &Hole| hole.group != no_stream;
        if let Some(old) = old.filter(is_owned) {
            lengths.remove(old);
        }
        if let Some(new) = new.filter(is_owned) {
            lengths.insert(new);
        }
        if lengths.is_stale(groups) {
            self.lengths = None;
        }
    }
}

/// Whether two neighbours merge: they share a stream, or neither has any.
pub(super) fn joins(one: &Streams, two: &Streams) -> bool {
    one == two || one.meets(two)
}
