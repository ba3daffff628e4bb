//! Holes by length, to find the smallest one for a size.
//!
//! ```text
//!   all       [4 at 90][6 at 10][6 at 50][30 at 200]      every hole that some stream may use, once
//!   grouped   {A}: [6 at 10]   {B}: [4 at 90][30 at 200]   {A, B}: [6 at 50]
//! ```
//!
//! Only a request that could wait for another stream needs the index. So it is built when groups get trees of their
//! own, or for the first such request after that, and dropped once it went unused for as many changes as building it
//! cost. A program with few holes never has it: scanning them costs less.

use std::collections::BTreeSet;

use super::groups::GroupId;
use super::tree::Hole;

/// Up to this many holes are scanned. Scanning a thousand takes about a microsecond, which is what the index
/// costs for one allocation and its free. Smaller in tests, so that they reach the index with few holes.
pub(super) const SCAN_LIMIT: usize = if cfg!(test) { 16 } else { 1024 };

/// With more groups than this, only an eighth as many holes are scanned: most of them are of other streams, and each
/// stream of very many would look at the holes of all.
const MANY_GROUPS: usize = if cfg!(test) { 4 } else { 64 };

/// How many holes of so many groups are scanned.
#[inline]
pub(super) fn scan_limit(groups: usize) -> usize {
    if groups > MANY_GROUPS { SCAN_LIMIT / 8 } else { SCAN_LIMIT }
}

/// Whether so many holes of so many groups are too few for an index. Both bounds are half of those for building one, so
/// that a program around them does not build it again and again.
#[inline]
pub(super) fn are_few(holes: usize, groups: usize) -> bool {
    let limit = if groups > MANY_GROUPS / 2 { SCAN_LIMIT / 8 } else { SCAN_LIMIT };
    holes < limit / 2
}

/// Holes by length, and by where they begin.
type ByLength = BTreeSet<(u64, u64)>;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Lengths {
    /// All holes that some stream may use, shortest first and the lowest of equals. Without their
    /// groups, so that a changed group changes nothing here.
    all: ByLength,
    /// The same by group.
    grouped: Vec<ByLength>,
    /// How many holes have changed since the last lookup.
    changes: usize,
}

impl Lengths {
    /// An index of `holes`, each of which some stream may use.
    pub(super) fn new(holes: impl Iterator<Item = Hole>) -> Self {
        let mut index = Self::default();
        let mut grouped: Vec<Vec<(u64, u64)>> = Vec::new();
        for hole in holes {
            let slot = hole.group.slot();
            if grouped.len() <= slot {
                grouped.resize_with(slot.saturating_add(1), Vec::new);
            }
            if let Some(group) = grouped.get_mut(slot) {
                group.push(key(hole));
            }
        }
        // Collecting sorts first, which is faster than one at a time.
        index.all = grouped.iter().flatten().copied().collect();
        index.grouped = grouped.into_iter().map(|group| group.into_iter().collect()).collect();
        index
    }

    fn group(&mut self, id: GroupId) -> Option<&mut ByLength> {
        let slot = id.slot();
        if self.grouped.len() <= slot {
            self.grouped.resize_with(slot.saturating_add(1), ByLength::new);
        }
        self.grouped.get_mut(slot)
    }

    pub(super) fn insert(&mut self, hole: Hole) {
        self.all.insert(key(hole));
        if let Some(group) = self.group(hole.group) {
            group.insert(key(hole));
        }
        self.changes += 1;
    }

    pub(super) fn remove(&mut self, hole: Hole) {
        self.all.remove(&key(hole));
        if let Some(group) = self.group(hole.group) {
            group.remove(&key(hole));
        }
        self.changes += 1;
    }

    /// Gives all holes of one group to another.
    pub(super) fn merge(&mut self, loser: GroupId, winner: GroupId) {
        let mut holes = self.group(loser).map(core::mem::take).unwrap_or_default();
        let Some(group) = self.group(winner) else { return };
        if holes.len() > group.len() {
            core::mem::swap(group, &mut holes);
        }
        // Appending goes through both.
        if holes.len() > group.len() / 16 {
            group.append(&mut holes);
        } else {
            group.extend(holes);
        }
    }

    /// Whether maintaining it since the last lookup has cost as much as rebuilding it would, or there are
    /// few holes for so many groups.
    pub(super) fn is_stale(&self, groups: usize) -> bool {
        self.changes > 64 + 4 * self.all.len() || are_few(self.all.len(), groups)
    }

    /// The shortest hole of at least `size` bytes, the lowest of equals: its length, and where it begins.
    pub(super) fn shortest(&mut self, size: u64) -> Option<(u64, u64)> {
        self.changes = 0;
        self.all.range((size, 0)..).next().copied()
    }

    /// The next hole of a group from a length and start on: its length, and where it begins.
    pub(super) fn next_of(&self, id: GroupId, from: (u64, u64)) -> Option<(u64, u64)> {
        self.grouped.get(id.slot())?.range(from..).next().copied()
    }

    #[cfg(test)]
    pub(super) fn check(&self, holes: &[Hole]) {
        let due = Self::new(holes.iter().copied());
        assert_eq!(self.all, due.all);
        for (slot, group) in self.grouped.iter().enumerate() {
            let none = ByLength::new();
            assert_eq!(group, due.grouped.get(slot).unwrap_or(&none), "group {slot}");
        }
    }
}

fn key(hole: Hole) -> (u64, u64) {
    (hole.size, hole.start)
}
