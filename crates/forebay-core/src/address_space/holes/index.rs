//! The indexes of holes: each hole is in every index that exists.
//!
//! ```text
//!   the tree of all holes     by address, and the largest of every part
//!   groups                    how many holes each has, and in the order of which streams they are free
//!   ----------------------    only with many holes in several groups:
//!   a tree for each group     its own holes
//!   seams                     where two holes touch that no stream may use both of
//!   ----------------------    only after a request asked for the smallest of many holes:
//!   lengths                   holes that some stream may use, by length
//! ```
//!
//! With few holes, scanning those that are large enough costs less than maintaining several trees. The index does not
//! decide which holes merge: it replaces holes by others in every part, and answers who may use what.

use super::groups::{GroupId, Groups};
use super::lengths::{Lengths, are_few, scan_limit};
use super::seams::Seams;
use super::tree::{Cursor, Hole, Tree};
use crate::address_space::spans::Spans;
use crate::address_space::streams::Streams;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(in crate::address_space) struct HoleIndex {
    pub(super) all: Tree,
    pub(super) groups: Groups,
    /// Present while the groups have their own trees: from when there are many holes in several groups until there are
    /// few.
    pub(super) seams: Option<Seams>,
    pub(super) lengths: Option<Lengths>,
}

impl HoleIndex {
    /// The streams in whose order a hole is free.
    #[inline]
    pub(super) fn set(&self, hole: &Hole) -> &Streams {
        self.groups.set(hole.group)
    }

    /// Whether a hole of `size` bytes may go to `taker`.
    pub(in crate::address_space) fn can_take(&self, size: u64, taker: u32) -> bool {
        if self.seams.is_none() {
            let usable = self.groups.usable_set(taker);
            return !usable.has_none() && self.all.lowest_of(size, |id| usable.has(id)).is_some();
        }
        let holds = |id| self.groups.get(id).is_some_and(|group| group.tree.largest() >= size);
        self.groups.usable_by(taker).any(holds)
    }

    /// Where the hole around `at` begins and ends, if `taker` may use it.
    pub(in crate::address_space) fn usable_around(
        &self,
        at: u64,
        taker: u32,
    ) -> Option<(u64, u64)> {
        let hole = self.all.beside(at).0.filter(|hole| at < hole.end())?;
        self.groups.usable_set(taker).has(hole.group).then_some((hole.start, hole.end()))
    }

    /// Calls `is_enough` with the start and the end of each hole that may go to `taker` and has at least `least` bytes,
    /// until it returns `true`.
    pub(in crate::address_space) fn each_for(
        &self,
        taker: u32,
        least: u64,
        mut is_enough: impl FnMut(u64, u64) -> bool,
    ) {
        if self.seams.is_some() {
            let mut trees = self.groups.usable_by(taker).filter_map(|id| self.groups.get(id));
            let mut is_enough = |hole: &Hole| is_enough(hole.start, hole.end());
            trees.any(|group| group.tree.each_of_size(least, &mut is_enough));
        } else {
            let usable = self.groups.usable_set(taker);
            self.all.each_of_size(least, |hole| {
                usable.has(hole.group) && is_enough(hole.start, hole.end())
            });
        }
    }

    /// The streams that own the smallest hole of at least `size` bytes, if `taker` may not use it and every
    /// hole `taker` may use is larger and exceeds `size` by more than `slack`. Of equals, the lowest. Holes
    /// that no stream may use are ignored.
    #[inline]
    pub(super) fn better_owner(&mut self, size: u64, slack: u64, taker: u32) -> Option<Streams> {
        if self.groups.all_usable_by(taker) {
            None
        } else {
            self.better_owner_slow(size, slack, taker)
        }
    }

    #[inline(never)]
    fn better_owner_slow(&mut self, size: u64, slack: u64, taker: u32) -> Option<Streams> {
        if self.groups.usable_set(taker).has_all() {
            return None;
        }
        if self.lengths.is_none() {
            if self.groups.holes() <= scan_limit(self.groups.live()) {
                return self.better_owner_by_scan(size, slack, taker);
            }
            self.index_lengths();
        }
        let (lengths, groups) = (self.lengths.as_mut()?, &self.groups);
        let usable = groups.usable_set(taker);
        let (length, start) = lengths.shortest(size)?;
        let owner = self.all.find(start)?.1.group;
        if usable.has(owner) {
            return None;
        }
        // The shortest hole belongs to others; does the taker have one that is as good or fits well?
        let enough = length.max(size.saturating_add(slack));
        let mut own = groups.usable_by(taker).filter_map(|id| lengths.next_of(id, (size, 0)));
        if own.any(|own| own.0 <= enough) { None } else { Some(*groups.set(owner)) }
    }

    /// [`better_owner`](Self::better_owner) by scanning every hole that is large enough.
    fn better_owner_by_scan(&self, size: u64, slack: u64, taker: u32) -> Option<Streams> {
        let (usable, no_stream) = (self.groups.usable_set(taker), self.groups.no_stream());
        let (mut own, mut best) = (u64::MAX, (u64::MAX, GroupId::NONE));
        let mut has_good_fit = false;
        self.all.each_of_size(size, |hole| {
            let length = hole.size;
            if usable.has(hole.group) {
                own = own.min(length);
                has_good_fit = length - size <= slack;
            } else if length < best.0 && hole.group != no_stream {
                best = (length, hole.group);
            }
            has_good_fit
        });
        (best.0 < own && !has_good_fit).then(|| *self.groups.set(best.1))
    }

    /// Replaces `parts`, all of them holes within `hole`, with `hole`, which is counted already.
    pub(super) fn replace(&mut self, hole: Hole, parts: [Option<Hole>; 2]) {
        // The outer ends of its parts may touch others.
        for part in parts.into_iter().flatten() {
            if part.start == hole.start {
                self.move_seam(hole.start, |low, _| low, hole.group);
            }
            if part.end() == hole.end() {
                self.move_seam(hole.end(), |_, high| high, hole.group);
            }
        }
        let mut parts = parts.into_iter().flatten();
        let Some(first) = parts.next() else {
            self.all.put(hole);
            if let Some(tree) = self.group_tree(hole.group) {
                tree.put(hole);
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
        self.groups.hole_removed(first.group);
    }

    /// Changes a hole in the indices of its group, or moves it to another. The tree of all holes has
    /// the new one already.
    fn move_between_groups(&mut self, old: Hole, new: Hole) {
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

    /// Shrinks the hole at a cursor to `rest`, or removes it.
    pub(super) fn cut(&mut self, cursor: Cursor, hole: Hole, rest: Option<Hole>) {
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
        self.groups.hole_removed(hole.group);
    }

    /// The tree of a group, where groups have trees.
    pub(super) fn group_tree(&mut self, id: GroupId) -> Option<&mut Tree> {
        self.seams.as_ref()?;
        self.groups.get_mut(id).map(|group| &mut group.tree)
    }

    /// The two unmerged holes that touch at an address; `None` at once if there are no seams.
    pub(super) fn touching(&self, at: u64) -> Option<(Hole, Hole)> {
        self.seams.as_ref().filter(|seams| !seams.0.is_empty())?;
        self.all.touching(at)
    }

    pub(super) fn add_seam(&mut self, one: GroupId, two: GroupId, at: u64) {
        if let Some(seams) = &mut self.seams {
            seams.insert(one, two, at);
        }
    }

    pub(super) fn remove_seam(&mut self, one: GroupId, two: GroupId, at: u64) -> bool {
        self.seams.as_mut().is_some_and(|seams| seams.remove(one, two, at))
    }

    /// Puts the seam at `at`, if there is one, between the group that stays and `group`.
    pub(super) fn move_seam(
        &mut self,
        at: u64,
        stays: impl Fn(GroupId, GroupId) -> GroupId,
        group: GroupId,
    ) {
        if let Some((low, high)) = self.touching(at)
            && self.remove_seam(low.group, high.group, at)
        {
            self.add_seam(stays(low.group, high.group), group, at);
        }
    }

    /// Builds a tree for each group when there are many holes in several groups, and drops the trees
    /// when there are few. The two thresholds differ, so the cost is amortised over the holes added
    /// or removed in between. Holes stay within one of `runs`.
    #[inline]
    pub(super) fn adapt(&mut self, runs: &Spans) {
        if self.seams.is_none() {
            let groups = self.groups.live();
            if groups > 1 && self.groups.holes() > scan_limit(groups) {
                self.build_group_trees(runs);
            }
        } else if are_few(self.groups.holes(), self.groups.live()) {
            self.seams = None;
            self.groups.drop_trees();
        }
    }

    #[cold]
    fn build_group_trees(&mut self, runs: &Spans) {
        let mut seams = Seams::default();
        let mut last = Hole::default();
        for hole in self.all.each() {
            if last.end() == hole.start && last.end() > 0 && !runs.begins_at(hole.start) {
                seams.insert(last.group, hole.group, hole.start);
            }
            if let Some(group) = self.groups.get_mut(hole.group) {
                group.tree.put(hole);
            }
            last = hole;
        }
        self.seams = Some(seams);
        if self.lengths.is_none() {
            self.index_lengths();
        }
    }

    fn index_lengths(&mut self) {
        let no_stream = self.groups.no_stream();
        let owned = self.all.each().filter(|hole| hole.group != no_stream);
        self.lengths = Some(Lengths::new(owned));
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
