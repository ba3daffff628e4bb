//! The nodes above the leaves: by address, and by the largest hole under each.
//!
//! ```text
//!   root               [ first of each child | largest hole of each child ]
//!                          /                  |                  \
//!   inner nodes        [ ... ]             [ ... ]             [ ... ]        up to 64 children each
//!   leaves           leaf  leaf  leaf    leaf  leaf          leaf  leaf       numbers, owned by `Leaves`
//! ```
//!
//! All leaves are equally deep. Every hole under a child begins at the child's separator or above, and below the next
//! separator; the recorded largest is the size of the largest hole under the child.

use super::node::{FANOUT, Inner, NO_NODE};
use super::visit;

/// One step on the path from the root to a leaf: an inner node and the index of the child taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathStep {
    pub(super) node: usize,
    pub(super) child: usize,
}

/// A position among the holes: a leaf and an index into it.
#[derive(Clone, Copy, Debug)]
pub(in crate::address_space) struct Cursor {
    /// The last step on the path to its leaf. The earlier steps are recomputed in the rare case that
    /// they are needed.
    pub(super) last: PathStep,
    pub(super) leaf: usize,
    pub(super) index: usize,
    /// Holes of this leaf begin at `floor` or above, and below `limit`.
    pub(super) floor: u64,
    pub(super) limit: u64,
}

impl Cursor {
    /// Descends from the node that it is at to a child.
    #[inline]
    fn step_into(&mut self, child: usize, inner: &Inner) {
        self.last = PathStep { node: self.leaf, child };
        let separators = inner.separators.as_slice();
        if let Some(&first) = separators.get(child).filter(|_| child > 0) {
            self.floor = first;
        }
        if let Some(&next) = separators.get(child + 1) {
            self.limit = next;
        }
        self.leaf = inner.children.get(child).unwrap_or(NO_NODE);
    }
}

/// A leaf in a tree of at most two levels: its number, its parent and place there, and below what its holes begin.
pub(super) type LowLeaf<'a> = (usize, Option<(&'a mut Inner, usize)>, u64);

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Branches {
    pub(super) inners: Vec<Inner>,
    /// Those that are not in use.
    pub(super) free: Vec<usize>,
    /// The root node: a leaf if `height` is 0.
    pub(super) root: usize,
    pub(super) height: usize,
}

impl Branches {
    #[inline]
    fn at_root(&self) -> Cursor {
        let last = PathStep { node: NO_NODE, child: 0 };
        Cursor { last, leaf: self.root, index: 0, floor: 0, limit: u64::MAX }
    }

    /// The start of the leaf that `choose` leads to, from each node to one of its children.
    #[inline]
    pub(super) fn leaf(&self, choose: impl Fn(&Inner) -> Option<usize>) -> Option<Cursor> {
        let mut cursor = self.at_root();
        for _ in 0..self.height {
            visit();
            let inner = self.inners.get(cursor.leaf)?;
            cursor.step_into(choose(inner)?, inner);
        }
        Some(cursor)
    }

    /// The leaf that `choose` picks, in a tree of at most two levels.
    #[inline(always)]
    pub(super) fn low_leaf(
        &mut self,
        choose: impl FnOnce(&Inner) -> Option<usize>,
    ) -> Option<LowLeaf<'_>> {
        if self.height == 0 {
            return Some((self.root, None, u64::MAX));
        }
        visit();
        let inner = self.inners.get_mut(self.root)?;
        let child = choose(inner)?;
        let limit = inner.separators.as_slice().get(child + 1).map_or(u64::MAX, |first| *first);
        Some((inner.children.get(child)?, Some((inner, child)), limit))
    }

    /// Calls `is_enough` with the start of each leaf that has a hole of `size` bytes, lowest first, until it returns
    /// `true`. Returns whether it did.
    #[inline]
    pub(super) fn each_leaf_with(
        &self,
        size: u64,
        mut is_enough: impl FnMut(Cursor) -> bool,
    ) -> bool {
        self.scan(self.at_root(), 0, size, &mut is_enough)
    }

    /// The same for the leaves under the node that `cursor` is at, which is on `level`.
    fn scan(
        &self,
        cursor: Cursor,
        level: usize,
        size: u64,
        is_enough: &mut impl FnMut(Cursor) -> bool,
    ) -> bool {
        visit();
        if level == self.height {
            return is_enough(cursor);
        }
        let Some(inner) = self.inners.get(cursor.leaf) else { return false };
        let children = inner.largest_each().iter().enumerate();
        children.filter(|&(_, &largest)| largest >= size).any(|(child, _)| {
            let mut below = cursor;
            below.step_into(child, inner);
            self.scan(below, level + 1, size, is_enough)
        })
    }

    /// The path down to the leaf of a cursor.
    pub(super) fn path(&self, cursor: Cursor) -> Vec<PathStep> {
        let mut node = self.root;
        let steps = (0..self.height).map_while(|_| {
            visit();
            let inner = self.inners.get(node)?;
            let child = inner.child_at(cursor.floor);
            let step = PathStep { node, child };
            node = inner.children.get(child)?;
            Some(step)
        });
        steps.collect()
    }

    /// Passes a changed largest size on from the cursor's last inner node to the root.
    #[inline]
    pub(super) fn propagate_largest(&mut self, cursor: Cursor) {
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

    /// Inserts a node beside the one at the end of a path, whose largest hole is now `largest`.
    pub(super) fn add_child(
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
            self.root = self.store(root);
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
        let number = self.store(upper);
        self.add_child(above, low, (first, high, number));
    }

    /// Removes a child from the last inner node on a path, and merges the node with a neighbour if both are short.
    pub(super) fn remove_child(&mut self, path: &[PathStep], child: usize) {
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
            self.free.push(step.node);
            self.remove_child(above, parent.child);
            return;
        }
        for (lower, low, high) in self.pairs(parent) {
            let length = |node: usize| self.inners.get(node).map_or(FANOUT, |it| it.children.len());
            if length(low) + length(high) > FANOUT / 2 {
                continue;
            }
            let Some(upper) = self.inners.get(high).cloned() else { return };
            let outer = self.inners.get(parent.node);
            let first = outer.and_then(|outer| outer.separators.get(lower + 1)).unwrap_or(0);
            let Some(inner) = self.inners.get_mut(low) else { return };
            inner.append(first, &upper);
            let largest = inner.largest();
            if let Some(outer) = self.inners.get_mut(parent.node) {
                outer.set_largest(lower, largest);
            }
            self.free.push(high);
            self.remove_child(above, lower + 1);
            return;
        }
    }

    /// A child and its neighbours: the place of the lower of two, and both.
    pub(super) fn pairs(
        &self,
        step: PathStep,
    ) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let children = self.inners.get(step.node).map(|inner| &inner.children);
        let pair = |lower: usize| Some((lower, children?.get(lower)?, children?.get(lower + 1)?));
        let pairs = [pair(step.child), step.child.checked_sub(1).and_then(pair)];
        pairs.into_iter().flatten()
    }

    /// Removes root nodes that have a single child.
    fn collapse_root(&mut self) {
        while self.height > 0 {
            let Some(inner) = self.inners.get(self.root) else { return };
            let Some(only) = inner.children.get(0).filter(|_| inner.children.len() == 1) else {
                return;
            };
            self.free.push(self.root);
            self.root = only;
            self.height -= 1;
        }
    }

    fn store(&mut self, inner: Inner) -> usize {
        let number = self.free.pop().unwrap_or_else(|| {
            self.inners.push(Inner::default());
            self.inners.len() - 1
        });
        if let Some(slot) = self.inners.get_mut(number) {
            *slot = inner;
        }
        number
    }
}
