//! Seams: where two holes touch that have no stream in common.
//!
//! ```text
//!   [ {A} ][ {B} ][ {A} ]  [ {B} ][ {C} ]      the seams between {A} and {B}: two; between {B} and {C}: one
//! ```
//!
//! When a stream waits, only holes whose groups change can merge, so only their seams are examined. There is a seam for
//! each two holes of one run that touch, under both orders of their groups.

use std::collections::BTreeSet;

use super::groups::GroupId;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Seams(pub(super) BTreeSet<(GroupId, GroupId, u64)>);

impl Seams {
    pub(super) fn insert(&mut self, one: GroupId, two: GroupId, at: u64) {
        self.0.insert((one, two, at));
        self.0.insert((two, one, at));
    }

    pub(super) fn remove(&mut self, one: GroupId, two: GroupId, at: u64) -> bool {
        let was_there = self.0.remove(&(one, two, at));
        self.0.remove(&(two, one, at));
        was_there
    }

    /// Gives the seams of one group to another.
    pub(super) fn rename(&mut self, old: GroupId, new: GroupId) {
        let renamed = |id: GroupId| if id == old { new } else { id };
        let seams = core::mem::take(&mut self.0).into_iter();
        self.0 = seams.map(|(one, two, at)| (renamed(one), renamed(two), at)).collect();
    }

    /// Where holes of these two groups touch.
    pub(super) fn between(&self, one: GroupId, two: GroupId) -> impl Iterator<Item = u64> {
        self.0.range((one, two, 0)..=(one, two, u64::MAX)).map(|seam| seam.2)
    }

    /// The lowest group from `from` on that has a hole which touches one of group `id`.
    pub(super) fn neighbour(&self, id: GroupId, from: GroupId) -> Option<GroupId> {
        let mut seams = self.0.range((id, from, 0)..=(id, GroupId::NONE, u64::MAX));
        seams.next().map(|seam| seam.1)
    }
}
