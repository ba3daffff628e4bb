//! Holes: free memory, and in whose order.
//!
//! ```text
//!   the tree of all holes     by address, and the largest of every part
//!   ----------------------    only where there are many holes, of several groups:
//!   a tree for each group     its own holes
//!   seams                     where two holes touch that no stream may have both of
//!   ----------------------    only where somebody asked who has the smallest of many:
//!   lengths                   holes by length
//! ```
//!
//! With few holes, looking at those that are large enough costs less than keeping more than one tree.

use std::collections::BTreeSet;

use super::gaps::Spans;
use super::groups::{GroupId, Groups, Order};
use super::lengths::{FEW, Lengths};
use super::streams::Streams;
use super::tree::{Hole, Place, Quick, Tree};

/// All holes.
#[derive(Clone, Debug)]
pub(super) struct Holes {
    pub(super) all: Tree,
    pub(super) groups: Groups,
    /// Where the groups have trees of their own. Many holes are of several groups then, or were and
    /// have not become few since.
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

/// Where two holes touch that are not one, by their groups.
///
/// A stream that waits can make one hole of two only where their groups change, so these are looked
/// at and no others.
#[derive(Clone, Debug, Default)]
pub(super) struct Seams(BTreeSet<(GroupId, GroupId, u64)>);

impl Seams {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn key(one: GroupId, two: GroupId, at: u64) -> (GroupId, GroupId, u64) {
        (one.min(two), one.max(two), at)
    }

    pub(super) fn insert(&mut self, one: GroupId, two: GroupId, at: u64) {
        self.0.insert(Self::key(one, two, at));
    }

    pub(super) fn remove(&mut self, one: GroupId, two: GroupId, at: u64) -> bool {
        self.0.remove(&Self::key(one, two, at))
    }

    /// Gives the seams of one group to another.
    pub(super) fn rename(&mut self, old: GroupId, new: GroupId) {
        let renamed = |id: GroupId| if id == old { new } else { id };
        let seams = core::mem::take(&mut self.0).into_iter();
        let seams = seams.map(|(one, two, at)| Self::key(renamed(one), renamed(two), at));
        self.0 = seams.collect();
    }

    /// Where holes of these two groups touch.
    pub(super) fn between(&self, one: GroupId, two: GroupId) -> impl Iterator<Item = u64> {
        let range = Self::key(one, two, 0)..=Self::key(one, two, u64::MAX);
        self.0.range(range).map(|seam| seam.2)
    }

    #[cfg(test)]
    pub(super) fn each(&self) -> impl Iterator<Item = (GroupId, GroupId, u64)> {
        self.0.iter().copied()
    }
}

/// Which neighbours a new hole may be one with: not those in another island of pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
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
        self.all.most()
    }

    /// Each hole. Neighbours that are free in different orders are apart.
    #[cfg(test)]
    pub(super) fn each(&self) -> impl Iterator<Item = Hole> {
        self.all.each()
    }

    /// The streams in whose order a hole is free.
    #[inline]
    pub(super) fn set(&self, hole: &Hole) -> &Streams {
        self.groups.set(hole.group)
    }

    /// Every stream in whose order something is free that `taker` may not have.
    pub(super) fn owners_beyond(&self, taker: &Streams) -> Streams {
        let some = |id: GroupId| self.groups.get(id).is_some_and(|group| group.count > 0);
        let beyond = self.groups.each().filter(|(id, set)| some(*id) && !set.serve(taker));
        beyond.fold(Streams::NONE, |all, (_, set)| all.or(*set))
    }

    /// Whether a hole of `size` bytes may go to `taker`.
    pub(super) fn can_take(&self, size: u64, taker: &Streams) -> bool {
        let taker = Order::of(taker);
        if self.seams.is_none() {
            let serving = self.groups.serving_set(taker);
            return self.all.lowest_of(size, |id| serving.has(id)).is_some();
        }
        let holds = |id| self.groups.get(id).is_some_and(|group| group.tree.most() >= size);
        self.groups.serving(taker).any(holds)
    }

    /// The holes that may go to `taker` and have at least `least` bytes, which are more than none.
    pub(super) fn holes_for(&self, taker: &Streams, least: u64) -> Vec<Hole> {
        let taker = Order::of(taker);
        if self.seams.is_some() {
            return self.groups.serving(taker).flat_map(|id| self.holes_of(id, least)).collect();
        }
        let (serving, mut holes) = (self.groups.serving_set(taker), Vec::new());
        self.all.each_of_size(least, |hole| {
            holes.extend(Some(*hole).filter(|hole| serving.has(hole.group)));
            false
        });
        holes
    }

    /// Takes `size` bytes off the start of the lowest hole that has them in the order of `taker`;
    /// gives where they begin.
    #[inline]
    pub(super) fn take(&mut self, size: u64, taker: Order<'_>) -> Option<u64> {
        if self.seams.is_some() {
            return self.take_among(size, taker);
        }
        let hole = if self.groups.all_serve(taker) && self.all.is_low() {
            self.all.take_quick(size)?
        } else {
            self.take_of_some(size, taker)?
        };
        self.bytes -= size;
        let rest = Hole { start: hole.start + size, ..hole };
        if rest.start == rest.end {
            self.lost(hole.group);
        }
        if self.lengths.is_some() {
            self.note_length(Some(hole), Some(rest).filter(|rest| rest.start < rest.end));
        }
        Some(hole.start)
    }

    /// Takes off the lowest hole of those that are free in the order of `taker`: gives it as it was. Counts
    /// nothing.
    #[inline(never)]
    fn take_of_some(&mut self, size: u64, taker: Order<'_>) -> Option<Hole> {
        let serving = self.groups.serving_set(taker);
        if serving.has_all() {
            return self.all.take_slowly(size);
        }
        if serving.has_none() {
            return None;
        }
        let (place, hole) = self.all.lowest_of(size, |id| serving.has(id))?;
        self.all.take_at(place, hole, size);
        Some(hole)
    }

    /// The same where groups have trees of their own.
    fn take_among(&mut self, size: u64, taker: Order<'_>) -> Option<u64> {
        let found = |id| self.groups.get(id)?.tree.lowest(size).map(|found| found.1);
        let lowest = self.groups.serving(taker).filter_map(found).min_by_key(|hole| hole.start);
        let hole = lowest?;
        let (place, _) = self.all.find(hole.start)?;
        if let Some(below) = self.all.below(place).filter(|below| below.end == hole.start) {
            self.seam_out(below.group, hole.group, hole.start);
        }
        self.bytes -= size;
        let rest = Hole { start: hole.start + size, ..hole };
        let rest = Some(rest).filter(|rest| rest.start < rest.end);
        if rest.is_none() {
            let above = self.all.after(place).filter(|above| above.start == hole.end);
            if let Some(above) = above {
                self.seam_out(hole.group, above.group, hole.end);
            }
        }
        self.cut_at(place, hole, rest);
        Some(hole.start)
    }

    /// Adds a hole free in the order of `owner` and makes it one with neighbours that have a stream in
    /// common with it: first the one below, then the one above. `false`, and nothing changed, where
    /// another shares a byte with it.
    #[inline]
    pub(super) fn add(&mut self, start: u64, end: u64, owner: Order<'_>, open: Open) -> bool {
        let Order::One(number) = owner else { return self.add_between(start, end, owner, open) };
        let group = self.groups.single(number);
        let is_plain = self.all.is_low() && self.seams.is_none() && self.lengths.is_none();
        if group == GroupId::NONE || !is_plain {
            return self.add_between(start, end, owner, open);
        }
        // What a set of one stream has in common with another is that stream.
        let groups = &self.groups;
        let joins = |id: GroupId| groups.set(id).has_number(number);
        match self.all.add_quick(Hole { start, end, group }, open, joins) {
            Quick::Added => self.gained(group),
            Quick::Joined(old) => self.replaced(old, group),
            Quick::Bridged(below, above) => {
                self.replaced(below, group);
                self.lost(above);
            }
            Quick::Refused => return false,
            Quick::Elsewhere => return self.add_between(start, end, owner, open),
        }
        self.bytes += end - start;
        true
    }

    /// Notes that a hole has another group.
    #[inline]
    fn replaced(&mut self, old: GroupId, new: GroupId) {
        if old != new {
            self.gained(new);
            self.lost(old);
        }
    }

    /// The same wherever its neighbours are, and in whatever order they are free.
    #[inline(never)]
    fn add_between(&mut self, start: u64, end: u64, owner: Order<'_>, open: Open) -> bool {
        let place = self.all.locate(start);
        let (below, above) = (self.all.below(place), self.all.above(place));
        if below.is_some_and(|below| below.end > start)
            || above.is_some_and(|above| above.start < end)
        {
            return false;
        }
        let touched_below = below.filter(|below| below.end == start && open.below);
        let touched_above = above.filter(|above| above.start == end && open.above);
        let (below, above, group) = match owner {
            Order::One(number) if number < Streams::MOST => {
                let joins = |other: &Hole| self.groups.set(other.group).has_number(number);
                let (below, above) = (touched_below.filter(joins), touched_above.filter(joins));
                (below, above, self.groups.intern_order(owner))
            }
            Order::One(_) | Order::Many(_) => {
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
        self.gained(group);
        if let Some(other) = touched_below.filter(|_| below.is_none()) {
            self.seam_in(other.group, group, start);
        }
        if let Some(other) = touched_above.filter(|_| above.is_none()) {
            self.seam_in(other.group, group, end);
        }
        self.bytes += end - start;
        let start = below.map_or(start, |below| below.start);
        let end = above.map_or(end, |above| above.end);
        self.unite(Hole { start, end, group }, [below, above]);
        true
    }

    /// Puts `hole`, which is counted already, in the place of `parts`: all of them holes within it.
    pub(super) fn unite(&mut self, hole: Hole, parts: [Option<Hole>; 2]) {
        // The outer ends of its parts may touch others.
        for part in parts.into_iter().flatten() {
            for at in [part.start, part.end] {
                let outer = at == hole.start || at == hole.end;
                if let Some((low, high)) = self.touching(at).filter(|_| outer)
                    && self.seam_out(low.group, high.group, at)
                {
                    let other = if at == hole.start { low.group } else { high.group };
                    self.seam_in(other, hole.group, at);
                }
            }
        }
        let mut parts = parts.into_iter().flatten();
        let Some(first) = parts.next() else {
            self.all.put(hole);
            if let Some(group) = self.own_tree(hole.group) {
                group.put(hole);
            }
            self.note_length(None, Some(hole));
            return;
        };
        for part in parts {
            self.all.drop_at(part.start);
            self.forget(part);
        }
        if let Some((place, _)) = self.all.find(first.start) {
            self.all.change(place, first, hole);
        }
        self.move_between_groups(first, hole);
        self.lost(first.group);
    }

    /// Changes a hole in the indices of its group, or moves it to another. The tree of all holes has
    /// the new one already.
    pub(super) fn move_between_groups(&mut self, old: Hole, new: Hole) {
        if old.group == new.group {
            if let Some(tree) = self.own_tree(old.group)
                && let Some((place, _)) = tree.find(old.start)
            {
                tree.change(place, old, new);
            }
        } else {
            if let Some(tree) = self.own_tree(old.group) {
                tree.drop_at(old.start);
            }
            if let Some(tree) = self.own_tree(new.group) {
                tree.put(new);
            }
        }
        self.note_length(Some(old), Some(new));
    }

    /// Leaves `rest` of a hole.
    pub(super) fn cut(&mut self, hole: Hole, rest: Option<Hole>) {
        if let Some((place, _)) = self.all.find(hole.start) {
            self.cut_at(place, hole, rest);
        }
    }

    fn cut_at(&mut self, place: Place, hole: Hole, rest: Option<Hole>) {
        match rest {
            Some(rest) => {
                self.all.change(place, hole, rest);
                self.move_between_groups(hole, rest);
            }
            None => {
                self.all.remove(place);
                self.forget(hole);
            }
        }
    }

    /// Takes a hole that the tree of all holes has no longer out of everything else.
    fn forget(&mut self, hole: Hole) {
        if let Some(tree) = self.own_tree(hole.group) {
            tree.drop_at(hole.start);
        }
        self.note_length(Some(hole), None);
        self.lost(hole.group);
    }

    /// The tree of a group, where groups have trees.
    pub(super) fn own_tree(&mut self, id: GroupId) -> Option<&mut Tree> {
        self.seams.as_ref()?;
        self.groups.get_mut(id).map(|group| &mut group.tree)
    }

    /// Notes that a group has one hole more.
    #[inline]
    pub(super) fn gained(&mut self, id: GroupId) {
        self.count += 1;
        self.groups.gained(id, 1);
    }

    /// Notes that a group has one hole less.
    #[inline]
    fn lost(&mut self, id: GroupId) {
        self.count -= 1;
        self.groups.lost(id);
    }

    pub(super) fn seam_in(&mut self, one: GroupId, two: GroupId, at: u64) {
        if let Some(seams) = &mut self.seams {
            seams.insert(one, two, at);
        }
    }

    pub(super) fn seam_out(&mut self, one: GroupId, two: GroupId, at: u64) -> bool {
        self.seams.as_mut().is_some_and(|seams| seams.remove(one, two, at))
    }

    /// Gives the groups trees of their own where there are many holes of several groups, and takes
    /// them away where there are few. In between they stay as they are, so that what this costs is
    /// paid for by the holes that came or went. `runs` is what holes may lie across.
    #[inline]
    pub(super) fn adapt(&mut self, runs: &Spans) {
        if self.seams.is_none() {
            if self.count > FEW && self.groups.live() > 1 {
                self.split(runs);
            }
        } else if self.count < FEW / 2 {
            self.seams = None;
            self.groups.drop_trees();
        }
    }

    #[cold]
    fn split(&mut self, runs: &Spans) {
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
            self.lengths = Some(self.somebodys_lengths());
        }
    }

    /// The lengths of all holes that are somebody's.
    pub(super) fn somebodys_lengths(&self) -> Lengths {
        let nobodys = self.groups.nobodys();
        Lengths::new(self.all.each().filter(|hole| hole.group != nobodys))
    }

    /// Keeps the lengths, where there are any.
    #[inline]
    pub(super) fn note_length(&mut self, old: Option<Hole>, new: Option<Hole>) {
        let Some(lengths) = &mut self.lengths else { return };
        let nobodys = self.groups.nobodys();
        let is_somebodys = |hole: &Hole| hole.group != nobodys;
        if let Some(old) = old.filter(is_somebodys) {
            lengths.remove(old);
        }
        if let Some(new) = new.filter(is_somebodys) {
            lengths.insert(new);
        }
        if lengths.is_stale() {
            self.lengths = None;
        }
    }
}

/// Whether two neighbours are one: where both are free in the order of some stream, or both are
/// nobody's.
pub(super) fn joins(one: &Streams, two: &Streams) -> bool {
    one == two || one.meets(two)
}
