//! That every index of the holes says the same.

use std::collections::BTreeSet;

use super::groups::check_counts;
use super::tree::Hole;
use super::tree::tests::check as check_tree;
pub(in crate::address_space) use super::tree::tests::visits;
use super::{Holes, joins};
use crate::address_space::{Offset, Streams};

/// Every hole: where it begins and ends, and the streams in whose order it is free.
pub(in crate::address_space) fn listed(holes: &Holes) -> Vec<(Offset, Offset, Streams)> {
    holes.index.all.each().map(|hole| (hole.start, hole.end(), *holes.index.set(&hole))).collect()
}

/// Holds every index against a look at all holes.
pub(in crate::address_space) fn check(holes: &Holes) {
    let (Holes { index, runs, .. }, bytes) = (holes, holes.bytes);
    let holes: Vec<Hole> = index.all.each().collect();
    let mut seams = BTreeSet::new();
    for pair in holes.windows(2) {
        let (low, high) = (pair[0], pair[1]);
        assert!(low.start < low.end() && low.end() <= high.start, "{low:?} and {high:?}");
        let apart = runs.around(low.start, high.end()).is_none();
        if low.end() == high.start && !apart {
            assert!(!joins(index.set(&low), index.set(&high)), "{low:?} and {high:?} are one");
            seams.extend([(low.group, high.group, low.end()), (high.group, low.group, low.end())]);
        }
    }
    assert!(holes.iter().all(|hole| runs.around(hole.start, hole.end()).is_some()));
    if let Some(kept) = &index.seams {
        assert_eq!(kept.0, seams);
    }
    assert_eq!(bytes, holes.iter().map(|hole| hole.size).sum::<u64>());
    assert_eq!(index.groups.holes(), holes.len());
    check_tree(&index.all);
    if let Some(lengths) = &index.lengths {
        let owned = holes.iter().filter(|hole| !index.set(hole).is_empty());
        lengths.check(&owned.copied().collect::<Vec<_>>());
    }
    check_counts(&index.groups);
    for (id, set) in index.groups.each() {
        let own: Vec<Hole> = holes.iter().copied().filter(|hole| hole.group == id).collect();
        let group = index.groups.get(id).unwrap();
        assert_eq!(index.groups.find(set), Some(id));
        assert_eq!(group.count, own.len());
        if index.seams.is_some() {
            check_tree(&group.tree);
            assert!(group.tree.each().eq(own));
        }
        for number in set.numbers().take(3) {
            assert!(index.groups.usable_by(number).any(|other| other == id));
            assert!(index.groups.usable_set(number).has(id));
        }
    }
}
