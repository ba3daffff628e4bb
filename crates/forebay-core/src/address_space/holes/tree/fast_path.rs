//! The fast paths, for a tree of at most two levels while no group has a tree of its own: allocating from the
//! start of the lowest hole, and freeing between two holes of one leaf. Each descends once and updates the
//! leaf in place.

use super::branches::Cursor;
use super::node::{Inner, LEAF_CAPACITY, Leaf, find_index};
use super::{GroupId, Hole, Tree, visit};
use crate::address_space::holes::MayMerge;

/// The outcome of adding a hole on the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::address_space) enum FastAdd {
    /// It was inserted as a separate hole.
    Added,
    /// It merged with a neighbour of this group.
    Joined(GroupId),
    /// It merged with both neighbours, of these groups.
    Bridged(GroupId, GroupId),
    /// It overlaps another hole; nothing changed.
    Refused,
    /// It may touch holes in another leaf, or its leaf is full; nothing changed. Use the slow path.
    SlowPath,
}

/// A leaf to change, and its parent node, if it has one.
pub(super) struct LeafPath<'a> {
    pub(super) leaf: &'a mut Leaf,
    pub(super) above: Option<(&'a mut Inner, usize)>,
    /// Holes of this leaf begin below this.
    pub(super) limit: u64,
}

impl LeafPath<'_> {
    /// Whether the leaf is so short that removing a hole might merge it with another leaf.
    #[inline(always)]
    fn is_short(&self) -> bool {
        self.above.is_some() && self.leaf.holes.len() <= LEAF_CAPACITY / 4 + 1
    }

    /// Updates the largest sizes after a hole of the leaf shrank from `old` to `new` bytes. Returns whether
    /// that changed the largest of the parent node.
    #[inline(always)]
    pub(super) fn shrank(&mut self, old: u64, new: u64) -> bool {
        let Some((inner, child)) = &mut self.above else { return false };
        if inner.largest_each().get(*child) != Some(&old) {
            return false;
        }
        let largest = if new >= self.leaf.second { new } else { self.leaf.recompute_largest() };
        inner.set_largest(*child, largest)
    }

    /// Updates the largest sizes after a hole of the leaf grew to `size` bytes. Returns whether that changed
    /// the largest of the parent node.
    #[inline(always)]
    pub(super) fn grew(&mut self, size: u64) -> bool {
        let Some((inner, child)) = &mut self.above else { return false };
        let Some(&largest) = inner.largest_each().get(*child) else { return false };
        self.leaf.second = self.leaf.second.max(size.min(largest));
        size > largest && inner.set_largest(*child, size)
    }
}

impl Tree {
    /// Whether it has at most two levels: leaves, and one inner node above them.
    #[inline(always)]
    pub(in crate::address_space) fn is_low(&self) -> bool {
        self.branches.height <= 1
    }

    /// The leaf that `choose` picks among the children of a low tree.
    #[inline(always)]
    fn descend_to_leaf(
        &mut self,
        choose: impl FnOnce(&Inner) -> Option<usize>,
    ) -> Option<LeafPath<'_>> {
        let (leaf, above, limit) = self.branches.low_leaf(choose)?;
        Some(LeafPath { leaf: self.leaves.list.get_mut(leaf)?, above, limit })
    }

    /// Takes `size` bytes off the start of the lowest hole that has them, in a low tree. Returns the hole
    /// as it was.
    #[inline(always)]
    pub(in crate::address_space) fn take_fast(&mut self, size: u64) -> Option<Hole> {
        let mut target = self.descend_to_leaf(|inner| {
            find_index(inner.largest_each(), |&largest| largest >= size)
        })?;
        visit();
        let holes = target.leaf.holes.as_slice();
        let index = find_index(holes, |hole| hole.size >= size)?;
        let hole = *holes.get(index)?;
        match hole.without_first(size) {
            Some(rest) if rest.start < target.limit => target.leaf.holes.set(index, rest),
            None if !target.is_short() => target.leaf.holes.remove(index),
            _ => {
                self.take_slow(size);
                return Some(hole);
            }
        }
        target.shrank(hole.size, hole.size - size);
        Some(hole)
    }

    /// The same in any tree.
    #[inline(never)]
    pub(in crate::address_space) fn take_slow(&mut self, size: u64) -> Option<Hole> {
        let (cursor, hole) = self.lowest(size)?;
        self.take_at(cursor, hole, size);
        Some(hole)
    }

    /// Takes `size` bytes off the start of the hole at a cursor.
    pub(in crate::address_space) fn take_at(&mut self, cursor: Cursor, hole: Hole, size: u64) {
        match hole.without_first(size) {
            Some(rest) => self.change(cursor, hole, rest),
            None => self.remove(cursor),
        }
    }

    /// Adds a hole to a low tree and merges it with neighbours of its own group or of a group it `joins`.
    #[inline(always)]
    pub(in crate::address_space) fn add_fast(
        &mut self,
        hole: Hole,
        may_merge: MayMerge,
        joins: impl Fn(GroupId) -> bool,
    ) -> FastAdd {
        let Hole { start, mut size, group } = hole;
        let end = hole.end();
        let Some(mut target) = self.descend_to_leaf(|inner| Some(inner.child_at(start))) else {
            return FastAdd::SlowPath;
        };
        visit();
        let index = target.leaf.count_up_to(start);
        let few = target.is_short();
        let leaf = &mut *target.leaf;
        // Only holes that begin in this leaf are changed here, and the leaf is neither split nor merged.
        let is_first = index == 0 && target.above.as_ref().is_some_and(|(_, child)| *child > 0);
        if end >= target.limit || is_first || leaf.holes.is_full() {
            return FastAdd::SlowPath;
        }
        let holes = leaf.holes.as_mut_slice();
        let is_one = |other: GroupId| other == group || joins(other);
        let above = holes.get(index).copied();
        let mut is_one_above = false;
        if let Some(above) = above {
            if above.start < end {
                return FastAdd::Refused;
            }
            is_one_above = above.start == end && may_merge.above && is_one(above.group);
        }
        let below = index.checked_sub(1).and_then(|index| holes.get_mut(index));
        if let Some(below) = below {
            if below.end() > start {
                return FastAdd::Refused;
            }
            if below.end() == start && may_merge.below && is_one(below.group) {
                size += below.size;
                let old = below.group;
                match above.filter(|_| is_one_above) {
                    None => {
                        (below.size, below.group) = (size, group);
                        target.grew(size);
                        return FastAdd::Joined(old);
                    }
                    Some(_) if few => return FastAdd::SlowPath,
                    Some(above) => {
                        size += above.size;
                        (below.size, below.group) = (size, group);
                        leaf.holes.remove(index);
                        target.grew(size);
                        return FastAdd::Bridged(old, above.group);
                    }
                }
            }
        }
        if let Some(above) = holes.get_mut(index).filter(|_| is_one_above) {
            size += above.size;
            let old = above.group;
            *above = Hole { start, size, group };
            target.grew(size);
            return FastAdd::Joined(old);
        }
        leaf.holes.insert(index, hole);
        target.grew(size);
        FastAdd::Added
    }
}
