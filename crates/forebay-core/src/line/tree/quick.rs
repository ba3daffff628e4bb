//! What happens most, where no group has a tree of its own: a block off the start of the lowest hole,
//! and a block back between two holes of one leaf. Each goes down once and changes what it finds there.

use super::node::LEAF;
use super::{GroupId, Hole, Place, Tree};
use crate::line::hole::Open;

/// What became of a hole that was to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::line) enum Quick {
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

impl Tree {
    /// Takes `size` bytes off the start of the hole at a place.
    #[inline]
    pub(in crate::line) fn take_at(&mut self, place: &Place, hole: Hole, size: u64) {
        let start = hole.start + size;
        if start == hole.end {
            self.remove(place);
            return;
        }
        if start >= place.limit {
            self.change(place, hole, Hole { start, ..hole });
            return;
        }
        let Some(leaf) = self.leaves.get_mut(place.leaf) else { return };
        if let Some(entry) = leaf.holes.as_mut_slice().get_mut(place.index) {
            entry.start = start;
        }
        self.shrank(place, hole.size(), hole.end - start);
    }

    /// Adds a hole and makes it one with neighbours whose group it joins.
    #[inline]
    pub(in crate::line) fn add_quick(
        &mut self,
        hole: Hole,
        open: Open,
        joins: impl Fn(GroupId) -> bool,
    ) -> Quick {
        let Hole { start, end, group } = hole;
        let place = self.locate(start);
        // Only what begins in this leaf is changed here.
        if end >= place.limit
            || place.index == 0 && self.below(&place).is_some_and(|below| below.end >= start)
        {
            return Quick::Elsewhere;
        }
        let Some(leaf) = self.leaves.get_mut(place.leaf).filter(|leaf| !leaf.holes.is_full())
        else {
            return Quick::Elsewhere;
        };
        let holes = leaf.holes.as_mut_slice();
        let Some((lower, upper)) = holes.split_at_mut_checked(place.index) else {
            return Quick::Elsewhere;
        };
        let (below, above) = (lower.last_mut(), upper.first_mut());
        if below.as_ref().is_some_and(|below| below.end > start)
            || above.as_ref().is_some_and(|above| above.start < end)
        {
            return Quick::Refused;
        }
        let below = below.filter(|below| below.end == start && open.below && joins(below.group));
        let above = above.filter(|above| above.start == end && open.above && joins(above.group));
        let (what, size) = match (below, above) {
            (None, None) => {
                leaf.holes.insert(place.index, hole);
                (Quick::Added, end - start)
            }
            (Some(below), None) => {
                below.end = end;
                (Quick::Joined(core::mem::replace(&mut below.group, group)), below.size())
            }
            (None, Some(above)) => {
                above.start = start;
                (Quick::Joined(core::mem::replace(&mut above.group, group)), above.size())
            }
            (Some(below), Some(above)) => {
                below.end = above.end;
                let groups = (core::mem::replace(&mut below.group, group), above.group);
                let size = below.size();
                leaf.holes.remove(place.index);
                (Quick::Bridged(groups.0, groups.1), size)
            }
        };
        let left = leaf.holes.len();
        self.grew(&place, size);
        if left <= LEAF / 4 && self.height > 0 && matches!(what, Quick::Bridged(..)) {
            self.tend_leaf(&place, left);
        }
        what
    }
}
