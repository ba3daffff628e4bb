//! Holes in the order of their addresses, in a tree that knows the largest of every part.
//!
//! ```text
//!   branches            first of each child, largest hole of each child
//!                  ┌──────────────────┬──────────────────┐
//!   leaves      [ .. ... . ]  <->  [ . .... ]  <->  [ .. . ..... ]
//! ```
//!
//! The lowest hole of a size is found by going down to the first child whose largest is large enough; the neighbours of
//! an address by going down to the last child that begins below it. Either visits one node per level, and a pool of a
//! thousand holes has two levels.
//!
//! A request that may use the holes of some groups only scans the subtrees whose largest hole is large
//! enough, from the lowest address up.

mod branches;
mod fast_path;
mod leaves;
mod node;
#[cfg(test)]
pub(super) mod tests;

use super::groups::GroupId;
use branches::Branches;
pub(super) use branches::Cursor;
pub(super) use fast_path::FastAdd;
use fast_path::LeafPath;
use leaves::Leaves;
use node::{LEAF_CAPACITY, Leaf, find_index};

/// Free memory that one block may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hole {
    pub(super) start: u64,
    /// Kept instead of the end: a search compares it with one instruction.
    pub(super) size: u64,
    /// The group whose set has the streams in whose order it is free.
    pub(super) group: GroupId,
}

impl Hole {
    #[inline]
    pub(super) fn between(start: u64, end: u64, group: GroupId) -> Self {
        Self { start, size: end - start, group }
    }

    #[inline]
    pub(super) fn end(&self) -> u64 {
        self.start + self.size
    }

    /// Without its first `size` bytes; `None` if it has no more.
    #[inline]
    pub(super) fn without_first(self, size: u64) -> Option<Self> {
        let rest = Self { start: self.start + size, size: self.size - size, ..self };
        Some(rest).filter(|rest| rest.size > 0)
    }
}

/// See the module. An empty tree takes no memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    leaves: Leaves,
    branches: Branches,
}

impl Tree {
    /// How large the largest hole is.
    pub(super) fn largest(&self) -> u64 {
        let Branches { inners, root, height, .. } = &self.branches;
        match inners.get(*root).filter(|_| *height > 0) {
            Some(inner) => inner.largest(),
            None => self.leaves.largest(*root),
        }
    }

    /// The cursor right behind the last hole that begins at or below `at`.
    fn locate(&self, at: u64) -> Option<Cursor> {
        let mut cursor = self.branches.leaf(|inner| Some(inner.child_at(at)))?;
        visit();
        cursor.index = self.leaves.list.get(cursor.leaf)?.count_up_to(at);
        Some(cursor)
    }

    /// The last hole that begins at or below `at`, and the one after it.
    pub(super) fn beside(&self, at: u64) -> (Option<Hole>, Option<Hole>) {
        self.locate(at).map_or((None, None), |cursor| self.leaves.beside(cursor))
    }

    /// The holes before and after the one at a cursor.
    pub(super) fn neighbours(&self, cursor: Cursor) -> (Option<Hole>, Option<Hole>) {
        let above = Cursor { index: cursor.index + 1, ..cursor };
        (self.leaves.beside(cursor).0, self.leaves.beside(above).1)
    }

    /// The hole that begins at `start`.
    #[inline]
    pub(super) fn find(&self, start: u64) -> Option<(Cursor, Hole)> {
        let mut cursor = self.locate(start)?;
        cursor.index = cursor.index.checked_sub(1)?;
        let hole = *self.leaves.holes(cursor.leaf).get(cursor.index)?;
        (hole.start == start).then_some((cursor, hole))
    }

    /// The hole that ends at `at` and the one that begins there, if there are both.
    pub(super) fn touching(&self, at: u64) -> Option<(Hole, Hole)> {
        let (below, above) = self.beside(at.checked_sub(1)?);
        below.zip(above).filter(|(below, above)| below.end() == at && above.start == at)
    }

    /// Every hole that ends above `at`.
    pub(super) fn each_from(&self, at: u64) -> impl Iterator<Item = Hole> {
        let cursor = self.locate(at);
        let below = cursor.and_then(|cursor| self.leaves.beside(cursor).0);
        let above = cursor.into_iter().flat_map(|cursor| self.leaves.each_from(cursor));
        below.filter(|below| below.end() > at).into_iter().chain(above)
    }

    /// Every hole.
    pub(super) fn each(&self) -> impl Iterator<Item = Hole> {
        self.each_from(0)
    }

    /// The lowest hole that has `size` bytes.
    pub(super) fn lowest(&self, size: u64) -> Option<(Cursor, Hole)> {
        let lowest = |largest: &[u64]| find_index(largest, |&largest| largest >= size);
        let mut cursor = self.branches.leaf(|inner| lowest(inner.largest_each()))?;
        visit();
        let holes = self.leaves.holes(cursor.leaf);
        cursor.index = find_index(holes, |hole| hole.size >= size)?;
        Some((cursor, *holes.get(cursor.index)?))
    }

    /// The lowest hole that has `size` bytes and whose group is right.
    #[inline]
    pub(super) fn lowest_of(
        &self,
        size: u64,
        is_right: impl Fn(GroupId) -> bool,
    ) -> Option<(Cursor, Hole)> {
        let mut found = None;
        self.branches.each_leaf_with(size, |mut cursor| {
            let holes = self.leaves.holes(cursor.leaf);
            let index = holes.iter().position(|hole| hole.size >= size && is_right(hole.group));
            let Some(index) = index else { return false };
            cursor.index = index;
            found = holes.get(index).map(|&hole| (cursor, hole));
            true
        });
        found
    }

    /// Calls `is_enough` for each hole that has `size` bytes, lowest first, until it returns `true`. Returns whether
    /// it did.
    #[inline]
    pub(super) fn each_of_size(&self, size: u64, mut is_enough: impl FnMut(&Hole) -> bool) -> bool {
        self.branches.each_leaf_with(size, |cursor| {
            let mut holes = self.leaves.holes(cursor.leaf).iter();
            holes.any(|hole| hole.size >= size && is_enough(hole))
        })
    }

    /// Moves every hole to the group that `group` returns for its own.
    pub(super) fn regroup(&mut self, group: impl Fn(GroupId) -> GroupId) {
        let holes = self.leaves.list.iter_mut().flat_map(|leaf| leaf.holes.as_mut_slice());
        holes.for_each(|hole| hole.group = group(hole.group));
    }

    /// Inserts a hole that overlaps none.
    pub(super) fn put(&mut self, hole: Hole) {
        if self.leaves.list.is_empty() {
            self.leaves.list.push(Leaf::default());
        }
        let Some(cursor) = self.locate(hole.start) else { return };
        let Some(leaf) = self.leaves.list.get_mut(cursor.leaf) else { return };
        if leaf.holes.is_full() {
            self.split_leaf(cursor, hole);
        } else {
            leaf.holes.insert(cursor.index, hole);
            self.resized(cursor, 0, hole.size);
        }
    }

    /// Removes the hole at a cursor.
    pub(super) fn remove(&mut self, cursor: Cursor) {
        let Some(leaf) = self.leaves.list.get_mut(cursor.leaf) else { return };
        let Some(hole) = leaf.holes.get(cursor.index) else { return };
        leaf.holes.remove(cursor.index);
        let left = leaf.holes.len();
        self.resized(cursor, hole.size, 0);
        if left <= LEAF_CAPACITY / 4 && self.branches.height > 0 {
            self.merge_short_leaves(cursor, left);
        }
    }

    /// Removes the hole that begins at `start`.
    pub(super) fn drop_at(&mut self, start: u64) {
        if let Some((cursor, _)) = self.find(start) {
            self.remove(cursor);
        }
    }

    /// Changes the ends and the group of the hole at a cursor. It keeps its rank among the holes.
    #[inline]
    pub(super) fn change(&mut self, cursor: Cursor, old: Hole, new: Hole) {
        if new.start < cursor.floor || new.start >= cursor.limit {
            self.remove(cursor);
            self.put(new);
            return;
        }
        let Some(leaf) = self.leaves.list.get_mut(cursor.leaf) else { return };
        leaf.holes.set(cursor.index, new);
        self.resized(cursor, old.size, new.size);
    }

    /// Updates the largest sizes after a hole in the cursor's leaf went from `old` to `new` bytes.
    fn resized(&mut self, cursor: Cursor, old: u64, new: u64) {
        let Some(leaf) = self.leaves.list.get_mut(cursor.leaf) else { return };
        let inner = self.branches.inners.get_mut(cursor.last.node);
        let above = inner.map(|inner| (inner, cursor.last.child));
        let mut target = LeafPath { leaf, above, limit: cursor.limit };
        if if new > old { target.grew(new) } else { target.shrank(old, new) } {
            self.branches.propagate_largest(cursor);
        }
    }

    #[cold]
    fn split_leaf(&mut self, cursor: Cursor, hole: Hole) {
        let Some((number, first)) = self.leaves.split(cursor, hole) else { return };
        let (low, high) = (self.leaves.largest(cursor.leaf), self.leaves.largest(number));
        let path = self.branches.path(cursor);
        self.branches.add_child(&path, low, (first, high, number));
    }

    /// Frees a leaf that is empty, or merges it with a neighbour if both are short, so that the number of
    /// leaves follows the number of holes.
    fn merge_short_leaves(&mut self, cursor: Cursor, left: usize) {
        let step = cursor.last;
        if left == 0 {
            let path = self.branches.path(cursor);
            self.leaves.remove(cursor.leaf);
            self.branches.remove_child(&path, step.child);
            return;
        }
        let mut pairs = self.branches.pairs(step);
        let merged = pairs.find(|&(_, low, high)| self.leaves.merge(low, high));
        if let Some((lower, low, _)) = merged {
            let path = self.branches.path(cursor);
            if let Some(inner) = self.branches.inners.get_mut(step.node) {
                inner.set_largest(lower, self.leaves.largest(low));
            }
            self.branches.remove_child(&path, lower + 1);
        }
    }
}

/// Counts a node that was visited, for tests.
#[inline]
pub(in crate::address_space) fn visit() {
    #[cfg(test)]
    tests::count();
}
