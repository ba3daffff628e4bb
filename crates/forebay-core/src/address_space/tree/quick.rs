//! What happens most, in a tree of few nodes and where no group has one of its own: a block off the start of
//! the lowest hole, and a block back between two holes of one leaf. Each goes down once and changes what it
//! finds there.

use super::node::{Inner, LEAF, Leaf, first};
use super::{GroupId, Hole, Place, Tree, visit};
use crate::address_space::hole::Open;

/// What became of a hole that was to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::address_space) enum Quick {
    /// It is a hole of its own.
    Added,
    /// It is one with a neighbour, which was of this group.
    Joined(GroupId),
    /// It is one with both its neighbours, which were of these groups.
    Bridged(GroupId, GroupId),
    /// Another shares a byte with it; nothing changed.
    Refused,
    /// It may touch holes of another leaf, or its leaf is full; nothing changed.
    Elsewhere,
}

/// The leaf in which something is done, and the node above it, where there is one.
pub(super) struct Near<'a> {
    leaf: &'a mut Leaf,
    above: Option<(&'a mut Inner, usize)>,
    /// Holes of this leaf begin below this.
    limit: u64,
}

impl Near<'_> {
    /// Whether the leaf must not lose a hole here, as it would be so short that others may be joined to it.
    #[inline(always)]
    fn is_short(&self) -> bool {
        self.above.is_some() && self.leaf.holes.len() <= LEAF / 4 + 1
    }

    /// Notes that a hole of the leaf had `old` bytes and has `new`, which are not more. Whether that changes
    /// the largest of the node above.
    #[inline(always)]
    pub(super) fn shrank(&mut self, old: u64, new: u64) -> bool {
        let Some((inner, child)) = &mut self.above else { return false };
        if inner.mosts().get(*child) != Some(&old) {
            return false;
        }
        let most = if new >= self.leaf.second { new } else { self.leaf.measure() };
        inner.set_most(*child, most)
    }

    /// Notes that the leaf has a hole of `size` bytes. Whether that changes the largest of the node above.
    #[inline(always)]
    pub(super) fn grew(&mut self, size: u64) -> bool {
        let Some((inner, child)) = &mut self.above else { return false };
        let Some(&most) = inner.mosts().get(*child) else { return false };
        self.leaf.second = self.leaf.second.max(size.min(most));
        size > most && inner.set_most(*child, size)
    }
}

impl Tree {
    /// Whether it has few nodes: leaves, and one above them at most.
    #[inline(always)]
    pub(in crate::address_space) fn is_low(&self) -> bool {
        self.height <= 1
    }

    /// The leaf of a place.
    pub(super) fn near_place(&mut self, place: Place) -> Option<Near<'_>> {
        let leaf = self.leaves.get_mut(place.leaf)?;
        let above = self.inners.get_mut(place.last.node).map(|inner| (inner, place.last.child));
        Some(Near { leaf, above, limit: place.limit })
    }

    /// The leaf that `choose` says of the children of a low tree.
    #[inline(always)]
    fn near(&mut self, choose: impl FnOnce(&Inner) -> Option<usize>) -> Option<Near<'_>> {
        if self.height == 0 {
            let leaf = self.leaves.get_mut(self.root)?;
            return Some(Near { leaf, above: None, limit: u64::MAX });
        }
        visit();
        let inner = self.inners.get_mut(self.root)?;
        let child = choose(inner)?;
        let limit = inner.firsts.as_slice().get(child + 1).map_or(u64::MAX, |first| *first);
        let leaf = self.leaves.get_mut(inner.children.get(child)?)?;
        Some(Near { leaf, above: Some((inner, child)), limit })
    }

    /// Takes `size` bytes off the start of the lowest hole that has them, in a low tree: gives the hole
    /// as it was.
    #[inline(always)]
    pub(in crate::address_space) fn take_quick(&mut self, size: u64) -> Option<Hole> {
        let mut near = self.near(|inner| first(inner.mosts(), |&most| most >= size))?;
        visit();
        let holes = near.leaf.holes.as_slice();
        let index = first(holes, |hole| hole.size() >= size)?;
        let hole = *holes.get(index)?;
        let start = hole.start + size;
        if start < hole.end.min(near.limit) {
            near.leaf.holes.set(index, Hole { start, ..hole });
        } else if start == hole.end && !near.is_short() {
            near.leaf.holes.remove(index);
        } else {
            self.take_slowly(size);
            return Some(hole);
        }
        near.shrank(hole.size(), hole.end - start);
        Some(hole)
    }

    /// The same in any tree.
    #[inline(never)]
    pub(in crate::address_space) fn take_slowly(&mut self, size: u64) -> Option<Hole> {
        let (place, hole) = self.lowest(size)?;
        self.take_at(place, hole, size);
        Some(hole)
    }

    /// Takes `size` bytes off the start of the hole at a place.
    pub(in crate::address_space) fn take_at(&mut self, place: Place, hole: Hole, size: u64) {
        let start = hole.start + size;
        if start == hole.end {
            self.remove(place);
        } else {
            self.change(place, hole, Hole { start, ..hole });
        }
    }

    /// Adds a hole to a low tree and makes it one with neighbours of its group, and of those it joins.
    #[inline(always)]
    pub(in crate::address_space) fn add_quick(
        &mut self,
        hole: Hole,
        open: Open,
        joins: impl Fn(GroupId) -> bool,
    ) -> Quick {
        let Hole { start, end, group } = hole;
        let Some(mut near) = self.near(|inner| Some(inner.child_at(start))) else {
            return Quick::Elsewhere;
        };
        visit();
        let index = near.leaf.count_up_to(start);
        let few = near.is_short();
        let leaf = &mut *near.leaf;
        // Only what begins in this leaf is changed here, and it stays a leaf as it should be.
        let is_first = index == 0 && near.above.as_ref().is_some_and(|(_, child)| *child > 0);
        if end >= near.limit || is_first || leaf.holes.is_full() {
            return Quick::Elsewhere;
        }
        let holes = leaf.holes.as_mut_slice();
        let is_one = |other: GroupId| other == group || joins(other);
        let above = holes.get(index).copied();
        let (mut is_one_above, mut size) = (false, end - start);
        if let Some(above) = above {
            if above.start < end {
                return Quick::Refused;
            }
            is_one_above = above.start == end && open.above && is_one(above.group);
        }
        let below = index.checked_sub(1).and_then(|index| holes.get_mut(index));
        if let Some(below) = below {
            if below.end > start {
                return Quick::Refused;
            }
            if below.end == start && open.below && is_one(below.group) {
                size += below.size();
                let old = below.group;
                match above.filter(|_| is_one_above) {
                    None => {
                        (below.end, below.group) = (end, group);
                        near.grew(size);
                        return Quick::Joined(old);
                    }
                    Some(_) if few => return Quick::Elsewhere,
                    Some(above) => {
                        (below.end, below.group) = (above.end, group);
                        leaf.holes.remove(index);
                        near.grew(size + above.size());
                        return Quick::Bridged(old, above.group);
                    }
                }
            }
        }
        if let Some(above) = holes.get_mut(index).filter(|_| is_one_above) {
            size += above.size();
            let old = above.group;
            (above.start, above.group) = (start, group);
            near.grew(size);
            return Quick::Joined(old);
        }
        leaf.holes.insert(index, hole);
        near.grew(size);
        Quick::Added
    }
}
