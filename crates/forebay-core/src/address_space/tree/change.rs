//! Changes of a tree of holes: one in, one out, one changed where it stands.

use super::node::{FAN, Inner, LEAF, Leaf, NO_NODE};
use super::{Hole, Place, Step, Tree, visit};

impl Tree {
    /// Puts in a hole that begins above the one before `place` and below the one after it.
    #[inline]
    pub(in crate::address_space) fn insert(&mut self, place: Place, hole: Hole) {
        let Some(leaf) = self.leaves.get_mut(place.leaf) else { return };
        if leaf.holes.is_full() {
            self.split_leaf(place, hole);
            return;
        }
        leaf.holes.insert(place.index, hole);
        self.grew(place, hole.size());
    }

    /// Puts in a hole.
    pub(in crate::address_space) fn put(&mut self, hole: Hole) {
        if self.leaves.is_empty() {
            *self = Self::new();
        }
        let place = self.locate(hole.start);
        self.insert(place, hole);
    }

    /// Takes out the hole at a place.
    pub(in crate::address_space) fn remove(&mut self, place: Place) {
        let Some(leaf) = self.leaves.get_mut(place.leaf) else { return };
        let Some(hole) = leaf.holes.get(place.index) else { return };
        leaf.holes.remove(place.index);
        let left = leaf.holes.len();
        self.shrank(place, hole.size(), 0);
        if left <= LEAF / 4 && self.height > 0 {
            self.tend_leaf(place, left);
        }
    }

    /// Takes out the hole that begins at `start`.
    pub(in crate::address_space) fn drop_at(&mut self, start: u64) {
        if let Some((place, _)) = self.find(start) {
            self.remove(place);
        }
    }

    /// Changes the hole at a place: its ends and its group, not its place in the order.
    #[inline]
    pub(in crate::address_space) fn change(&mut self, place: Place, old: Hole, new: Hole) {
        if new.start < place.floor || new.start >= place.limit {
            self.remove(place);
            self.put(new);
            return;
        }
        let Some(leaf) = self.leaves.get_mut(place.leaf) else { return };
        leaf.holes.set(place.index, new);
        let (before, now) = (old.size(), new.size());
        if now > before {
            self.grew(place, now);
        } else {
            self.shrank(place, before, now);
        }
    }

    /// Notes that the leaf of a place has a hole of `size` bytes.
    fn grew(&mut self, place: Place, size: u64) {
        if self.near_place(place).is_some_and(|mut near| near.grew(size)) {
            self.measure_above(place);
        }
    }

    /// Notes that a hole of the leaf of a place had `old` bytes and has `new`, which are not more.
    fn shrank(&mut self, place: Place, old: u64, new: u64) {
        if self.near_place(place).is_some_and(|mut near| near.shrank(old, new)) {
            self.measure_above(place);
        }
    }

    /// Notes in the nodes above that the largest of the last node on the way to a place has changed.
    #[inline]
    fn measure_above(&mut self, place: Place) {
        if self.height > 1 {
            let way = self.way(place);
            let most = self.inners.get(place.last.node).map_or(0, Inner::most);
            self.set_most(way.get(..self.height - 1).unwrap_or(&[]), most);
        }
    }

    /// Notes the largest of the node that a way leads to, and of those above.
    fn set_most(&mut self, way: &[Step], mut most: u64) {
        for step in way.iter().rev() {
            visit();
            let Some(inner) = self.inners.get_mut(step.node) else { return };
            if !inner.set_most(step.child, most) {
                return;
            }
            most = inner.most();
        }
    }

    #[cold]
    fn split_leaf(&mut self, place: Place, hole: Hole) {
        let number = self.new_leaf();
        let Some(lower) = self.leaves.get_mut(place.leaf) else { return };
        let holes = lower.holes.split();
        let middle = lower.holes.len();
        let next = core::mem::replace(&mut lower.above, number);
        if place.index <= middle {
            lower.holes.insert(place.index, hole);
        }
        lower.second = u64::MAX;
        let mut upper = Leaf { holes, below: place.leaf, above: next, ..Leaf::default() };
        if place.index > middle {
            upper.holes.insert(place.index - middle, hole);
        }
        let first = upper.holes.get(0).map_or(0, |hole| hole.start);
        if let Some(leaf) = self.leaves.get_mut(number) {
            *leaf = upper;
        }
        if let Some(leaf) = self.leaves.get_mut(next) {
            leaf.below = number;
        }
        let (low, high) = (self.most_of_leaf(place.leaf), self.most_of_leaf(number));
        let way = self.way(place);
        self.add_child(&way, low, (first, high, number));
    }

    /// Puts a node in beside the one that a way leads to, whose largest is now `most`.
    fn add_child(&mut self, way: &[Step], most: u64, (first, high, number): (u64, u64, usize)) {
        visit();
        let Some((&step, above)) = way.split_last() else {
            let mut root = Inner::default();
            root.insert(0, 0, most, self.root);
            root.insert(1, first, high, number);
            self.root = self.new_inner(root);
            self.height += 1;
            return;
        };
        let Some(inner) = self.inners.get_mut(step.node) else { return };
        inner.set_most(step.child, most);
        if !inner.children.is_full() {
            inner.insert(step.child + 1, first, high, number);
            let most = inner.most();
            self.set_most(above, most);
            return;
        }
        let mut upper = inner.split();
        let middle = inner.children.len();
        match (step.child + 1).checked_sub(middle).filter(|&index| index > 0) {
            Some(index) => upper.insert(index, first, high, number),
            None => inner.insert(step.child + 1, first, high, number),
        }
        let (low, high) = (inner.most(), upper.most());
        let first = upper.firsts.get(0).unwrap_or(0);
        let number = self.new_inner(upper);
        self.add_child(above, low, (first, high, number));
    }

    /// Makes one leaf of two that have become short, and takes one that is empty away, so that their
    /// number follows the holes'.
    pub(super) fn tend_leaf(&mut self, place: Place, left: usize) {
        let step = place.last;
        if left == 0 {
            let way = self.way(place);
            self.free_leaf(place.leaf);
            self.remove_child(&way, step.child);
            return;
        }
        let Some(inner) = self.inners.get(step.node) else { return };
        for lower in [Some(step.child), step.child.checked_sub(1)].into_iter().flatten() {
            let pair = (inner.children.get(lower), inner.children.get(lower + 1));
            let (Some(low), Some(high)) = pair else { continue };
            let length = |leaf: usize| self.leaves.get(leaf).map_or(LEAF, |leaf| leaf.holes.len());
            if length(low) + length(high) > LEAF / 2 {
                continue;
            }
            let way = self.way(place);
            let Some(holes) = self.leaves.get(high).map(|leaf| leaf.holes.clone()) else { return };
            if let Some(leaf) = self.leaves.get_mut(low) {
                leaf.holes.append(&holes);
                leaf.second = u64::MAX;
            }
            let most = self.most_of_leaf(low);
            if let Some(inner) = self.inners.get_mut(step.node) {
                inner.set_most(lower, most);
            }
            self.free_leaf(high);
            self.remove_child(&way, lower + 1);
            return;
        }
    }

    /// Takes a child out of the last inner node on a way.
    fn remove_child(&mut self, way: &[Step], child: usize) {
        visit();
        let Some((&step, above)) = way.split_last() else { return };
        let Some(inner) = self.inners.get_mut(step.node) else { return };
        inner.remove(child);
        let (left, most) = (inner.children.len(), inner.most());
        let Some(&parent) = above.last() else {
            self.lower_root();
            return;
        };
        self.set_most(above, most);
        if left > FAN / 4 {
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
            let length = |node: usize| self.inners.get(node).map_or(FAN, |it| it.children.len());
            if length(low) + length(high) > FAN / 2 {
                continue;
            }
            let first = outer.firsts.get(lower + 1).unwrap_or(0);
            let Some(upper) = self.inners.get(high).cloned() else { return };
            let Some(inner) = self.inners.get_mut(low) else { return };
            inner.append(first, &upper);
            let most = inner.most();
            if let Some(outer) = self.inners.get_mut(parent.node) {
                outer.set_most(lower, most);
            }
            self.free_inners.push(high);
            self.remove_child(above, lower + 1);
            return;
        }
    }

    /// Takes inner nodes with one child away from the top.
    fn lower_root(&mut self) {
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
