//! What happens when a stream waits, ends or is known to be idle: the sets of groups change, and holes
//! that touch merge if they now have a stream in common.
//!
//! ```text
//!   before   [  {A}  ][  {B}  ]     [ {B} ]          A waits for B: the set of one group changes
//!   after    [      {A}       ]     [{A,B}]          and the holes at one seam become one
//! ```
//!
//! The cost grows with the number of groups that change and seams that disappear. If the new set is that of
//! another group, the holes of the smaller group move to the larger, so each hole moves a logarithmic number
//! of times at most.

use std::collections::BTreeSet;

use super::groups::GroupId;
use super::index::HoleIndex;
use super::seams::Seams;
use super::tree::Hole;
use super::{Holes, joins};
use crate::address_space::spans::Spans;
use crate::address_space::streams::Streams;

/// A change of the sets of some groups.
pub(super) struct Relabel<'a> {
    index: &'a mut HoleIndex,
    runs: &'a Spans,
    /// Streams that are in every new set.
    more: &'a Streams,
    /// Groups with another set, or with the holes of others.
    changed: BTreeSet<GroupId>,
}

impl<'a> Relabel<'a> {
    pub(super) fn new(holes: &'a mut Holes, more: &'a Streams) -> Self {
        Self { index: &mut holes.index, runs: &holes.runs, more, changed: BTreeSet::new() }
    }

    /// Changes the set of each group to what `after` says, and merges holes that touch.
    pub(super) fn run(mut self, mut ids: Vec<GroupId>, after: impl Fn(&Streams) -> Streams) {
        if ids.is_empty() {
            return;
        }
        let groups = &mut self.index.groups;
        groups.drop_spare();
        ids.retain(|&id| groups.count(id) > 0);
        let changes_owned = |set: &Streams| set.is_empty() != after(set).is_empty();
        if ids.iter().any(|&id| changes_owned(groups.set(id))) {
            // The lengths index only holes that some stream may use.
            self.index.lengths = None;
        }
        ids.iter().for_each(|&id| groups.unlist_set(id));
        // While groups have no trees, one pass at the end moves all holes to their new groups.
        let mut regrouped: Vec<(GroupId, GroupId)> = Vec::new();
        for id in ids {
            let groups = &mut self.index.groups;
            let set = after(groups.set(id));
            let Some(other) = groups.find(&set) else {
                groups.index_set(id, &set);
                self.changed.insert(id);
                continue;
            };
            let has_trees = self.index.seams.is_some();
            let is_larger = has_trees && groups.count(id) > groups.count(other);
            let (loser, winner) = if is_larger { (other, id) } else { (id, other) };
            if has_trees {
                self.merge_groups(loser, winner);
            } else {
                regrouped.push((loser, winner));
            }
            let groups = &mut self.index.groups;
            groups.hole_added(winner, groups.count(loser));
            if is_larger {
                groups.unlist_set(other);
                groups.index_set(id, &set);
            }
            groups.discard(loser);
            self.changed.remove(&loser);
            self.changed.insert(winner);
        }
        self.regroup(regrouped);
        let seams = match &self.index.seams {
            Some(seams) => self.seams_to_join(seams),
            None => self.seams_by_scan(),
        };
        seams.into_iter().for_each(|seam| self.join_at(seam));
    }

    /// Moves the holes of discarded groups to their successors, while groups have no trees.
    fn regroup(&mut self, mut regrouped: Vec<(GroupId, GroupId)>) {
        if regrouped.is_empty() {
            return;
        }
        self.index.lengths = None;
        regrouped.sort_unstable();
        self.index.all.regroup(|id| match regrouped.binary_search_by_key(&id, |pair| pair.0) {
            Ok(index) => regrouped.get(index).map_or(id, |pair| pair.1),
            Err(_) => id,
        });
    }

    /// Moves all holes of one group, which has a tree, to another.
    fn merge_groups(&mut self, loser: GroupId, winner: GroupId) {
        let Self { index, .. } = self;
        let holes: Vec<Hole> = match index.groups.get(loser) {
            Some(group) => group.tree.each().collect(),
            None => return,
        };
        // If they are a large part of all holes, one pass over all costs less than looking up each.
        let many = holes.len() > index.groups.holes() / 16;
        if many {
            index.all.regroup(|id| if id == loser { winner } else { id });
            if let Some(seams) = &mut index.seams {
                seams.rename(loser, winner);
            }
        }
        for &hole in &holes {
            let new = Hole { group: winner, ..hole };
            if !many {
                index.move_seam(hole.start, |low, _| low, winner);
                index.move_seam(hole.end(), |_, high| high, winner);
                if let Some((cursor, _)) = index.all.find(hole.start) {
                    index.all.change(cursor, hole, new);
                }
            }
            if let Some(tree) = index.group_tree(winner) {
                tree.put(new);
            }
        }
        if let Some(lengths) = &mut index.lengths {
            lengths.merge(loser, winner);
        }
    }

    /// The seams at which a hole of a changed group touches a hole that it may now merge with.
    fn seams_to_join(&self, seams: &Seams) -> Vec<u64> {
        if seams.0.is_empty() {
            return Vec::new();
        }
        let (groups, more) = (&self.index.groups, self.more);
        // A changed group can only merge with groups that contain the added streams, and a group that
        // has become empty of streams only with the other such group.
        let mut partners: Vec<GroupId> = if more.is_single() {
            let others = [groups.find(&Streams::ALL), groups.find(&Streams::NONE)];
            groups.containing(more).chain(others.into_iter().flatten()).collect()
        } else {
            groups.each().map(|(id, _)| id).collect()
        };
        partners.sort_unstable();
        let mut found = Vec::new();
        for &id in &self.changed {
            // From partner to neighbour and back: as many steps as the fewer of them.
            let mut rest = partners.as_slice();
            while let Some(&partner) = rest.first()
                && let Some(neighbour) = seams.neighbour(id, partner)
            {
                let below = rest.partition_point(|&other| other < neighbour);
                rest = rest.get(below..).unwrap_or(&[]);
                if let Some((&other, others)) = rest.split_first()
                    && other == neighbour
                {
                    rest = others;
                    if joins(groups.set(id), groups.set(other)) {
                        found.extend(seams.between(id, other));
                    }
                }
            }
        }
        // From the low end, as where several holes touch each joins the one below.
        found.sort_unstable();
        found.dedup();
        found
    }

    /// [`seams_to_join`](Self::seams_to_join) by scanning all holes.
    fn seams_by_scan(&self) -> Vec<u64> {
        let (mut found, mut low) = (Vec::new(), Hole::default());
        for high in self.index.all.each() {
            let touch = low.end() == high.start && low.size > 0;
            if touch
                && (self.changed.contains(&low.group) || self.changed.contains(&high.group))
                && joins(self.index.set(&low), self.index.set(&high))
                && !self.runs.begins_at(high.start)
            {
                found.push(high.start);
            }
            low = high;
        }
        found
    }

    /// Merges the two holes that touch at an address, if they still have a stream in common.
    fn join_at(&mut self, at: u64) {
        let Self { index, .. } = self;
        let Some((low, high)) = index.all.touching(at) else { return };
        let (one, two) = (index.set(&low), index.set(&high));
        if !joins(one, two) {
            return;
        }
        let common = if one == two { *one } else { one.and(*two) };
        if index.seams.is_some() && !index.remove_seam(low.group, high.group, at) {
            return;
        }
        let group = index.groups.intern(&common);
        index.groups.hole_added(group, 1);
        index.replace(Hole::between(low.start, high.end(), group), [Some(low), Some(high)]);
    }
}
