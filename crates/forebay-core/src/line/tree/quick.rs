//! What happens most, where all holes are of one group: a block off the start of the lowest hole, and
//! a block back between two holes of one leaf. Each goes down once and changes what it finds there.

use super::node::LEAF;
use super::{Hole, Tree};
use crate::line::hole::Open;

/// What became of a hole that was to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::line) enum Quick {
    /// It is a hole of its own.
    Added,
    /// It is one with a neighbour.
    Joined,
    /// It is one with both its neighbours.
    Bridged,
    /// Another shares a byte with it; nothing changed.
    Refused,
    /// It may touch holes of another leaf, or its leaf is full; nothing changed.
    Elsewhere,
}

impl Tree {
    /// Takes `size` bytes off the lowest hole that has them; gives the hole as it was.
    #[inline]
    pub(in crate::line) fn take_quick(&mut self, size: u64) -> Option<Hole> {
        let (place, hole) = self.lowest(size)?;
        let start = hole.start + size;
        if start == hole.end {
            self.remove(&place);
            return Some(hole);
        }
        let leaf = self.leaves.get_mut(place.leaf)?;
        if start >= place.limit {
            self.change(&place, hole, Hole { start, ..hole });
            return Some(hole);
        }
        if let Some(entry) = leaf.holes.as_mut_slice().get_mut(place.index) {
            entry.start = start;
        }
        self.shrank(&place, hole.size());
        Some(hole)
    }

    /// Adds a hole of the group that counts, where all holes are of that group.
    #[inline]
    pub(in crate::line) fn add_quick(&mut self, start: u64, end: u64, open: Open) -> Quick {
        let (place, group) = (self.locate(start), self.group);
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
        let below = below.filter(|below| below.end == start && open.below);
        let above = above.filter(|above| above.start == end && open.above);
        let (what, size) = match (below, above) {
            (None, None) => {
                leaf.holes.insert(place.index, Hole { start, end, group });
                (Quick::Added, end - start)
            }
            (Some(below), None) => {
                below.end = end;
                (Quick::Joined, below.size())
            }
            (None, Some(above)) => {
                above.start = start;
                (Quick::Joined, above.size())
            }
            (Some(below), Some(above)) => {
                below.end = above.end;
                let size = below.size();
                leaf.holes.remove(place.index);
                (Quick::Bridged, size)
            }
        };
        let left = leaf.holes.len();
        self.grew(&place, size);
        if what == Quick::Bridged && left <= LEAF / 4 && self.height > 0 {
            self.tend_leaf(&place, left);
        }
        what
    }
}
