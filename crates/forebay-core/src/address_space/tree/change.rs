//! Changes to a tree of holes: insert, remove, and update in place.

use super::node::{FANOUT, Inner, LEAF_CAPACITY, Leaf, NO_NODE};
use super::{Cursor, Hole, PathStep, Tree, visit};

impl Tree {
    /// Inserts a hole at a cursor. It must lie between the holes before and after the cursor.
    #[inline]
    pub(in crate::address_space) fn insert(&mut self, cursor: Cursor, hole: Hole) {
        let Some(leaf) = self.leaves.get_mut(cursor.leaf) else { return };
        if leaf.holes.is_full() {
            self.split_leaf(cursor, hole);
            return;
        }
        leaf.holes.insert(cursor.index, hole);
        self.grew(cursor, hole.size());
    }

    /// Inserts a hole.
    pub(in crate::address_space) fn put(&mut self, hole: Hole) {
        if self.leaves.is_empty() {
            *self = Self::new();
        }
        let cursor = self.locate(hole.start);
        self.insert(cursor, hole);
    }

    /// Removes the hole at a cursor.
    pub(in crate::address_space) fn remove(&mut self, cursor: Cursor) {
        let Some(leaf) = self.leaves.get_mut(cursor.leaf) else { return };
        let Some(hole) = leaf.holes.get(cursor.index) else { return };
        leaf.holes.remove(cursor.index);
        let left = leaf.holes.len();
        self.shrank(cursor, hole.size(), 0);
        if left <= LEAF_CAPACITY / 4 && self.height > 0 {
            self.merge_short_leaves(cursor, left);
        }
    }

    /// Removes the hole that begins at `start`.
    pub(in crate::address_space) fn drop_at(&mut self, start: u64) {
        if let Some((cursor, _)) = self.find(start) {
            self.remove(cursor);
        }
    }

    /// Changes the ends and the group of the hole at a cursor. It keeps its rank among the holes.
    #[inline]
    pub(in crate::address_space) fn change(&mut self, cursor: Cursor, old: Hole, new: Hole) {
        if new.start < cursor.floor || new.start >= cursor.limit {
            self.remove(cursor);
            self.put(new);
            return;
        }
        let Some(leaf) = self.leaves.get_mut(cursor.leaf) else { return };
        leaf.holes.set(cursor.index, new);
        let (before, now) = (old.size(), new.size());
        if now > before {
            self.grew(cursor, now);
        } else {
            self.shrank(cursor, before, now);
        }
    }

    /// Updates the largest sizes after a hole in the cursor's leaf grew to `size` bytes.
    fn grew(&mut self, cursor: Cursor, size: u64) {
        if self.leaf_of(cursor).is_some_and(|mut target| target.grew(size)) {
            self.propagate_largest(cursor);
        }
    }

    /// Updates the largest sizes after a hole in the cursor's leaf shrank from `old` to `new` bytes.
    fn shrank(&mut self, cursor: Cursor, old: u64, new: u64) {
        if self.leaf_of(cursor).is_some_and(|mut target| target.shrank(old, new)) {
            self.propagate_largest(cursor);
        }
    }

    /// Propagates a changed largest size from the cursor's last inner node to the root.
    #[inline]
    fn propagate_largest(&mut self, cursor: Cursor) {
        if self.height > 1 {
            let path = self.path(cursor);
            let largest = self.inners.get(cursor.last.node).map_or(0, Inner::largest);
            self.set_largest(path.get(..self.height - 1).unwrap_or(&[]), largest);
        }
    }

    /// Sets the largest size of the node at the end of a path, and updates its ancestors.
    fn set_largest(&mut self, path: &[PathStep], mut largest: u64) {
        for step in path.iter().rev() {
            visit();
            let Some(inner) = self.inners.get_mut(step.node) else { return };
            if !inner.set_largest(step.child, largest) {
                return;
            }
            largest = inner.largest();
        }
    }

    #[cold]
    fn split_leaf(&mut self, cursor: Cursor, hole: Hole) {
        let number = self.new_leaf();
        let Some(lower) = self.leaves.get_mut(cursor.leaf) else { return };
        let holes = lower.holes.split();
        let middle = lower.holes.len();
        let next = core::mem::replace(&mut lower.above, number);
        if cursor.index <= middle {
            lower.holes.insert(cursor.index, hole);
        }
        lower.second = u64::MAX;
        let mut upper = Leaf { holes, below: cursor.leaf, above: next, ..Leaf::default() };
        if cursor.index > middle {
            upper.holes.insert(cursor.index - middle, hole);
        }
        let first = upper.holes.get(0).map_or(0, |hole| hole.start);
        if let Some(leaf) = self.leaves.get_mut(number) {
            *leaf = upper;
        }
        if let Some(leaf) = self.leaves.get_mut(next) {
            leaf.below = number;
        }
        let (low, high) = (self.largest_in_leaf(cursor.leaf), self.largest_in_leaf(number));
        let path = self.path(cursor);
        self.add_child(&path, low, (first, high, number));
    }

    /// Inserts a node beside the one at the end of a path, whose largest hole is now `largest`.
    fn add_child(
        &mut self,
        path: &[PathStep],
        largest: u64,
        (first, high, number): (u64, u64, usize),
    ) {
        visit();
        let Some((&step, above)) = path.split_last() else {
            let mut root = Inner::default();
            root.insert(0, 0, largest, self.root);
            root.insert(1, first, high, number);
            self.root = self.new_inner(root);
            self.height += 1;
            return;
        };
        let Some(inner) = self.inners.get_mut(step.node) else { return };
        inner.set_largest(step.child, largest);
        if !inner.children.is_full() {
            inner.insert(step.child + 1, first, high, number);
            let largest = inner.largest();
            self.set_largest(above, largest);
            return;
        }
        let mut upper = inner.split();
        let middle = inner.children.len();
        match (step.child + 1).checked_sub(middle).filter(|&index| index > 0) {
            Some(index) => upper.insert(index, first, high, number),
            None => inner.insert(step.child + 1, first, high, number),
        }
        let (low, high) = (inner.largest(), upper.largest());
        let first = upper.separators.get(0).unwrap_or(0);
        let number = self.new_inner(upper);
        self.add_child(above, low, (first, high, number));
    }

    /// Frees a leaf that is empty, or merges it with a neighbour if both are short, so that the number of
    /// leaves follows the number of holes.
    pub(super) fn merge_short_leaves(&mut self, cursor: Cursor, left: usize) {
        let step = cursor.last;
        if left == 0 {
            let path = self.path(cursor);
            self.free_leaf(cursor.leaf);
            self.remove_child(&path, step.child);
            return;
        }
        let Some(inner) = self.inners.get(step.node) else { return };
        for lower in [Some(step.child), step.child.checked_sub(1)].into_iter().flatten() {
            let pair = (inner.children.get(lower), inner.children.get(lower + 1));
            let (Some(low), Some(high)) = pair else { continue };
            let length =
                |leaf: usize| self.leaves.get(leaf).map_or(LEAF_CAPACITY, |leaf| leaf.holes.len());
            if length(low) + length(high) > LEAF_CAPACITY / 2 {
                continue;
            }
            let path = self.path(cursor);
            let Some(holes) = self.leaves.get(high).map(|leaf| leaf.holes.clone()) else { return };
            if let Some(leaf) = self.leaves.get_mut(low) {
                leaf.holes.append(&holes);
                leaf.second = u64::MAX;
            }
            let largest = self.largest_in_leaf(low);
            if let Some(inner) = self.inners.get_mut(step.node) {
                inner.set_largest(lower, largest);
            }
            self.free_leaf(high);
            self.remove_child(&path, lower + 1);
            return;
        }
    }

    /// Removes a child from the last inner node on a path.
    fn remove_child(&mut self, path: &[PathStep], child: usize) {
        visit();
        let Some((&step, above)) = path.split_last() else { return };
        let Some(inner) = self.inners.get_mut(step.node) else { return };
        inner.remove(child);
        let (left, largest) = (inner.children.len(), inner.largest());
        let Some(&parent) = above.last() else {
            self.collapse_root();
            return;
        };
        self.set_largest(above, largest);
        if left > FANOUT / 4 {
            return;
        }
        if left == 0 {
            self.free_inners.push(step.node);
            self.remove_child(above, parent.child);
            return;
        }
        let Some(outer) = self.inners.get(parent.node) else { return };
        for lower in [Some(parent.child), parent.child.checked_sub(1)].into_iter().flatten() {
            let pair = (outer.children.get(lower), outer.children.get(lower + 1));
            let (Some(low), Some(high)) = pair else { continue };
            let length = |node: usize| self.inners.get(node).map_or(FANOUT, |it| it.children.len());
            if length(low) + length(high) > FANOUT / 2 {
                continue;
            }
            let first = outer.separators.get(lower + 1).unwrap_or(0);
            let Some(upper) = self.inners.get(high).cloned() else { return };
            let Some(inner) = self.inners.get_mut(low) else { return };
            inner.append(first, &upper);
            let largest = inner.largest();
            if let Some(outer) = self.inners.get_mut(parent.node) {
                outer.set_largest(lower, largest);
            }
            self.free_inners.push(high);
            self.remove_child(above, lower + 1);
            return;
        }
    }

    /// Removes root nodes that have a single child.
    fn collapse_root(&mut self) {
        while self.height > 0 {
            let Some(inner) = self.inners.get(self.root) else { return };
            let Some(only) = inner.children.get(0).filter(|_| inner.children.len() == 1) else {
                return;
            };
            self.free_inners.push(self.root);
            self.root = only;
            self.height -= 1;
        }
    }

    fn new_leaf(&mut self) -> usize {
        self.free_leaves.pop().unwrap_or_else(|| {
            self.leaves.push(Leaf::default());
            self.leaves.len() - 1
        })
    }

    fn new_inner(&mut self, inner: Inner) -> usize {
        match self.free_inners.pop() {
            Some(number) => {
                if let Some(old) = self.inners.get_mut(number) {
                    *old = inner;
                }
                number
            }
            None => {
                self.inners.push(inner);
                self.inners.len() - 1
            }
        }
    }

    fn free_leaf(&mut self, number: usize) {
        let Some(leaf) = self.leaves.get_mut(number) else { return };
        let Leaf { below, above, .. } = core::mem::take(leaf);
        if let Some(leaf) = self.leaves.get_mut(below) {
            leaf.above = above;
        }
        if let Some(leaf) = self.leaves.get_mut(above) {
            leaf.below = below;
        }
        self.free_leaves.push(number);
        debug_assert!(number != NO_NODE);
    }
}
