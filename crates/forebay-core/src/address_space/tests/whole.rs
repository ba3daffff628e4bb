//! That everything the holes keep says the same.

use std::collections::BTreeSet;

use crate::address_space::AddressSpace;
use crate::address_space::groups::{GroupId, StreamsRef};
use crate::address_space::hole::{Holes, joins};
use crate::address_space::tree::Hole;
use crate::address_space::tree::check::check;

impl Holes {
    /// Holds every index against a look at all holes.
    pub(super) fn check(&self, space: &AddressSpace) {
        let holes: Vec<Hole> = self.each().collect();
        let mut seams = BTreeSet::new();
        for pair in holes.windows(2) {
            let (low, high) = (pair[0], pair[1]);
            assert!(low.start < low.end && low.end <= high.start, "{low:?} and {high:?}");
            let apart = space.runs.around(low.start, high.end).is_none();
            if low.end == high.start && !apart {
                assert!(!joins(self.set(&low), self.set(&high)), "{low:?} and {high:?} are one");
                seams.extend([(low.group, high.group, low.end), (high.group, low.group, low.end)]);
            }
        }
        if let Some(kept) = &self.seams {
            assert!(kept.each().eq(seams));
        }
        assert_eq!(self.bytes(), holes.iter().map(Hole::size).sum::<u64>());
        assert_eq!(self.len(), holes.len());
        self.check_groups(&holes);
        check(&self.all);
        if let Some(lengths) = &self.lengths {
            let owned = holes.iter().filter(|hole| !self.set(hole).is_empty());
            lengths.check(&owned.copied().collect::<Vec<_>>());
        }
    }

    fn check_groups(&self, holes: &[Hole]) {
        let ids: BTreeSet<GroupId> = self.groups.each().map(|(id, _)| id).collect();
        assert_eq!(ids.len(), self.groups.len(), "a group has two sets");
        assert!(holes.iter().all(|hole| ids.contains(&hole.group)));
        for &id in &ids {
            let own: Vec<Hole> = holes.iter().copied().filter(|hole| hole.group == id).collect();
            let group = self.groups.get(id).unwrap();
            assert_eq!(self.groups.find(&group.set), Some(id));
            assert_eq!(group.count, own.len());
            if self.seams.is_some() {
                check(&group.tree);
                assert!(group.tree.each().eq(own));
            }
            if !group.set.is_empty() {
                let order = StreamsRef::of(&group.set);
                assert!(self.groups.usable_by(order).any(|other| other == id));
                assert!(self.groups.usable_set(order).has(id));
            }
        }
        self.groups.check_live();
    }
}
