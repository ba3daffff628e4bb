//! Holes by length, to find the smallest one for a size.
//!
//! Only a request that could wait for another stream needs them, so the index is made for the first
//! such request, and dropped once as many holes have changed as it took to make it without anybody
//! asking again. A program with one stream never has it, and neither has one with few holes: looking
//! at all of them costs less than keeping it.

use std::collections::BTreeSet;

use super::groups::GroupId;
use super::tree::Hole;

/// Up to this many holes are looked at one by one. A thousand take about a microsecond, which is what
/// the index costs a block that is taken and freed. Tests have few holes and are to have the index.
pub(super) const FEW: usize = if cfg!(test) { 16 } else { 1024 };

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Lengths {
    /// All holes that are somebody's, the shortest first and the lowest of equals.
    all: BTreeSet<(u64, u64, GroupId)>,
    /// The same by group.
    grouped: BTreeSet<(GroupId, u64, u64)>,
    /// How many holes have changed since somebody asked.
    changes: usize,
}

impl Lengths {
    /// An index of `holes`, none of which is nobody's.
    pub(super) fn new(holes: impl Iterator<Item = Hole>) -> Self {
        let holes: Vec<Hole> = holes.collect();
        // Collecting sorts first, which is faster than one at a time.
        Self {
            all: holes.iter().map(|hole| (hole.size(), hole.start, hole.group)).collect(),
            grouped: holes.iter().map(|hole| (hole.group, hole.size(), hole.start)).collect(),
            changes: 0,
        }
    }

    pub(super) fn insert(&mut self, hole: Hole) {
        self.all.insert((hole.size(), hole.start, hole.group));
        self.grouped.insert((hole.group, hole.size(), hole.start));
        self.changes += 1;
    }

    pub(super) fn remove(&mut self, hole: Hole) {
        self.all.remove(&(hole.size(), hole.start, hole.group));
        self.grouped.remove(&(hole.group, hole.size(), hole.start));
        self.changes += 1;
    }

    /// Whether nobody has asked for so long that making it anew costs no more than what was spent on
    /// keeping it; or whether there are few holes.
    pub(super) fn is_stale(&self) -> bool {
        self.changes > 64 + 4 * self.all.len() || self.all.len() < FEW / 2
    }

    /// The shortest hole of at least `size` bytes, the lowest of equals: its length and group.
    pub(super) fn shortest(&mut self, size: u64) -> Option<(u64, GroupId)> {
        self.changes = 0;
        self.all.range((size, 0, GroupId::default())..).next().map(|&(length, _, id)| (length, id))
    }

    /// How long the shortest hole of a group is that has at least `size` bytes.
    pub(super) fn shortest_of(&self, id: GroupId, size: u64) -> Option<u64> {
        let first = self.grouped.range((id, size, 0)..).next();
        first.filter(|hole| hole.0 == id).map(|hole| hole.1)
    }

    #[cfg(test)]
    pub(super) fn check(&self, holes: &[Hole]) {
        let due = Self::new(holes.iter().copied());
        assert_eq!((&self.all, &self.grouped), (&due.all, &due.grouped));
    }
}
