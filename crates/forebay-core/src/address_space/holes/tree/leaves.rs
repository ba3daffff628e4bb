//! The leaves of a tree: holes in the order of their addresses.
//!
//! ```text
//!   [ .. ... . ]  <->  [ . .... ]  <->  [ .. . ..... ]      up to 64 holes each
//! ```
//!
//! A leaf knows its neighbours, so that the holes beside an address are found without the branches. Holes do not overlap,
//! and go up within a leaf and from one leaf to the next.

use super::Hole;
use super::branches::Cursor;
use super::node::{LEAF_CAPACITY, Leaf};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaves {
    pub(super) list: Vec<Leaf>,
    /// Those that are not in use.
    pub(super) free: Vec<usize>,
}

impl Leaves {
    /// The holes of a leaf.
    #[inline]
    pub(super) fn holes(&self, leaf: usize) -> &[Hole] {
        self.list.get(leaf).map_or(&[], |leaf| leaf.holes.as_slice())
    }

    /// How large the largest hole of a leaf is.
    pub(super) fn largest(&self, leaf: usize) -> u64 {
        self.holes(leaf).iter().map(|hole| hole.size).max().unwrap_or(0)
    }

    /// The hole before a cursor, and the one at it, or the next if it is at the end of its leaf.
    #[inline]
    pub(super) fn beside(&self, cursor: Cursor) -> (Option<Hole>, Option<Hole>) {
        let Some(leaf) = self.list.get(cursor.leaf) else { return (None, None) };
        let below = match cursor.index.checked_sub(1) {
            Some(index) => leaf.holes.get(index),
            None => self.holes(leaf.below).last().copied(),
        };
        let here = leaf.holes.get(cursor.index);
        (below, here.or_else(|| self.holes(leaf.above).first().copied()))
    }

    /// Every hole from a cursor on.
    pub(super) fn each_from(&self, cursor: Cursor) -> impl Iterator<Item = Hole> {
        let mut next = (cursor.leaf, cursor.index);
        core::iter::from_fn(move || {
            loop {
                let leaf = self.list.get(next.0)?;
                if let Some(hole) = leaf.holes.get(next.1) {
                    next.1 += 1;
                    return Some(hole);
                }
                next = (leaf.above, 0);
            }
        })
    }

    /// Splits a full leaf and inserts a hole at the cursor. Returns the number of the upper half and its first address.
    pub(super) fn split(&mut self, cursor: Cursor, hole: Hole) -> Option<(usize, u64)> {
        let number = self.free.pop().unwrap_or_else(|| {
            self.list.push(Leaf::default());
            self.list.len() - 1
        });
        let lower = self.list.get_mut(cursor.leaf)?;
        let holes = lower.holes.split();
        let next = core::mem::replace(&mut lower.above, number);
        lower.second = u64::MAX;
        let mut upper = Leaf { holes, below: cursor.leaf, above: next, ..Leaf::default() };
        match cursor.index.checked_sub(lower.holes.len()).filter(|&index| index > 0) {
            Some(index) => upper.holes.insert(index, hole),
            None => lower.holes.insert(cursor.index, hole),
        }
        let first = upper.holes.get(0).map_or(0, |hole| hole.start);
        *self.list.get_mut(number)? = upper;
        if let Some(leaf) = self.list.get_mut(next) {
            leaf.below = number;
        }
        Some((number, first))
    }

    /// Moves the holes of `high` to `low`, the leaf below it, if both are short. Returns whether it did.
    pub(super) fn merge(&mut self, low: usize, high: usize) -> bool {
        if self.holes(low).len() + self.holes(high).len() > LEAF_CAPACITY / 2 {
            return false;
        }
        let Some(holes) = self.list.get(high).map(|leaf| leaf.holes.clone()) else { return false };
        if let Some(leaf) = self.list.get_mut(low) {
            leaf.holes.append(&holes);
            leaf.second = u64::MAX;
        }
        self.remove(high);
        true
    }

    /// Takes a leaf out of the chain.
    pub(super) fn remove(&mut self, number: usize) {
        let Some(leaf) = self.list.get_mut(number) else { return };
        let Leaf { below, above, .. } = core::mem::take(leaf);
        if let Some(leaf) = self.list.get_mut(below) {
            leaf.above = above;
        }
        if let Some(leaf) = self.list.get_mut(above) {
            leaf.below = below;
        }
        self.free.push(number);
    }
}
