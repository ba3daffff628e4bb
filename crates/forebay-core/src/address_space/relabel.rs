//! Streams that wait, end, or are known to be idle: the sets of groups change, and holes that touch
//! become one where that gives them a stream in common.
//!
//! ```text
//!   before   [  {A}  ][  {B}  ]     [ {B} ]          A waits for B: the set of one group changes
//!   after    [      {A}       ]     [{A,B}]          and the holes at one seam become one
//! ```
//!
//! What this costs grows with the groups that change and the seams that go. Where the new set is that of
//! another group, the holes of the smaller of the two move to the larger: each hole does so a logarithm of
//! times at the most.

use std::collections::BTreeSet;

use super::gaps::Spans;
use super::groups::{GroupId, Order};
use super::hole::{Holes, Seams, joins};
use super::lengths::FEW;
use super::streams::Streams;
use super::tree::Hole;

impl Holes {
    /// In whose order the smallest hole for `size` is free, where it may not go to `taker` and all
    /// that may are larger, by more than `slack` larger than `size`; the lowest of equals. What is
    /// nobody's is left out.
    #[inline]
    pub(super) fn better_elsewhere(
        &mut self,
        size: u64,
        slack: u64,
        taker: Order<'_>,
    ) -> Option<Streams> {
        if self.groups.all_serve(taker) { None } else { self.better_among(size, slack, taker) }
    }

    #[inline(never)]
    fn better_among(&mut self, size: u64, slack: u64, taker: Order<'_>) -> Option<Streams> {
        if self.groups.serving_set(taker).has_all() {
            return None;
        }
        if self.len() <= FEW && self.lengths.is_none() {
            return self.better_by_scan(size, slack, taker);
        }
        if self.lengths.is_none() {
            self.lengths = Some(self.somebodys_lengths());
        }
        let (lengths, groups) = (self.lengths.as_mut()?, &self.groups);
        let serving = groups.serving_set(taker);
        let (length, start) = lengths.shortest(size)?;
        let owner = self.all.find(start)?.1.group;
        if serving.has(owner) {
            return None;
        }
        // Everything shorter than the own ones is of others.
        let enough = length.max(size.saturating_add(slack));
        let mut own = groups.serving(taker).filter_map(|id| lengths.shortest_of(id, size));
        if own.any(|own| own <= enough) { None } else { Some(*groups.set(owner)) }
    }

    /// The same by looking at every hole that is large enough.
    fn better_by_scan(&self, size: u64, slack: u64, taker: Order<'_>) -> Option<Streams> {
        let (serving, nobodys) = (self.groups.serving_set(taker), self.groups.nobodys());
        let (mut own, mut best) = (u64::MAX, (u64::MAX, GroupId::NONE));
        let mut has_snug = false;
        self.all.each_of_size(size, |hole| {
            let length = hole.size();
            if serving.has(hole.group) {
                own = own.min(length);
                has_snug = length - size <= slack;
            } else if length < best.0 && hole.group != nobodys {
                best = (length, hole.group);
            }
            has_snug
        });
        (best.0 < own && !has_snug).then(|| *self.groups.set(best.1))
    }

    /// Every stream in whose order something is free.
    pub(super) fn owners(&self) -> Streams {
        let live = self.groups.each().filter(|&(id, _)| self.has_holes(id));
        live.fold(Streams::NONE, |all, (_, &set)| all.or(set))
    }

    /// Whether no hole, but those that are free for all, is free in the order of `stream`.
    pub(super) fn has_none_of(&self, stream: &Streams) -> bool {
        !self.groups.having(stream).any(|id| self.has_holes(id))
    }

    fn has_holes(&self, id: GroupId) -> bool {
        self.groups.get(id).is_some_and(|group| group.count > 0)
    }

    /// What is free in the order of all of `owner` becomes free in the order of `taker` too.
    pub(super) fn waited(&mut self, taker: &Streams, owner: &Streams, runs: &Spans) {
        let grow = |id: GroupId| {
            let set = self.groups.set(id);
            (!set.has(taker)).then(|| (id, set.or(*taker)))
        };
        let changes: Vec<_> = self.groups.having(owner).filter_map(grow).collect();
        self.relabel(changes, taker, runs);
    }

    /// What is free in the order of any of `owners` becomes free in the order of `taker` too.
    pub(super) fn waited_for_any(&mut self, taker: &Streams, owners: &Streams, runs: &Spans) {
        let grow = |(id, set): (GroupId, &Streams)| {
            (set.meets(owners) && !set.has(taker)).then(|| (id, set.or(*taker)))
        };
        let changes: Vec<_> = self.groups.each().filter_map(grow).collect();
        self.relabel(changes, taker, runs);
    }

    /// What is free in the order of any of `streams` becomes free for all; with [`Streams::ALL`] that
    /// is everything.
    pub(super) fn idle(&mut self, streams: &Streams, runs: &Spans) {
        let changes: Vec<_> = if streams.is_single() {
            self.groups.having(streams).map(|id| (id, Streams::ALL)).collect()
        } else {
            let over = |set: &Streams| *streams == Streams::ALL || set.meets(streams);
            let groups = self.groups.each().filter(|&(_, set)| *set != Streams::ALL && over(set));
            groups.map(|(id, _)| (id, Streams::ALL)).collect()
        };
        self.relabel(changes, &Streams::ALL, runs);
    }

    /// What is free in the order of all of `from` is free in the order of `to` instead. What is free
    /// for all stays so.
    pub(super) fn hand_over(&mut self, from: &Streams, to: &Streams, runs: &Spans) {
        let hand = |id: GroupId| {
            let set = self.groups.set(id);
            let after = set.without(*from).or(*to);
            (after != *set).then_some((id, after))
        };
        let changes: Vec<_> = self.groups.having(from).filter_map(hand).collect();
        self.relabel(changes, to, runs);
    }

    /// Gives groups other sets, each of which has all of `more`, and joins what touches.
    fn relabel(&mut self, mut changes: Vec<(GroupId, Streams)>, more: &Streams, runs: &Spans) {
        if changes.is_empty() {
            return;
        }
        self.groups.let_spare_go();
        changes.retain(|&(id, _)| self.has_holes(id));
        let is_nobodys = |id: GroupId| self.groups.set(id).is_empty();
        if changes.iter().any(|&(id, ref set)| is_nobodys(id) != set.is_empty()) {
            // The lengths have only what is somebody's.
            self.lengths = None;
        }
        changes.iter().for_each(|&(id, _)| self.groups.leave(id));
        let mut changed = BTreeSet::new();
        // Where groups have no trees, all holes are given to other groups in one go.
        let mut renamed: Vec<(GroupId, GroupId)> = Vec::new();
        for (id, set) in changes {
            let Some(other) = self.groups.find(&set) else {
                self.groups.enter(id, &set);
                changed.insert(id);
                continue;
            };
            if self.seams.is_none() {
                let count = self.groups.get(id).map_or(0, |group| group.count);
                self.groups.gained(other, count);
                self.groups.discard(id);
                renamed.push((id, other));
                changed.insert(other);
                continue;
            }
            let count = |id: GroupId| self.groups.get(id).map_or(0, |group| group.count);
            let (loser, winner) = if count(id) > count(other) { (other, id) } else { (id, other) };
            self.merge(loser, winner);
            if loser == other {
                self.groups.leave(other);
                self.groups.enter(id, &set);
            }
            self.groups.discard(loser);
            changed.remove(&loser);
            changed.insert(winner);
        }
        self.rename(renamed);
        let seams = match &self.seams {
            Some(seams) => self.seams_to_join(seams, &changed, more),
            None => self.seams_by_scan(&changed, runs),
        };
        for seam in seams {
            self.join_at(seam);
        }
    }

    /// Gives the holes of groups that have gone to others, where groups have no trees.
    fn rename(&mut self, mut renamed: Vec<(GroupId, GroupId)>) {
        if renamed.is_empty() {
            return;
        }
        self.lengths = None;
        renamed.sort_unstable();
        self.all.regroup(|id| match renamed.binary_search_by_key(&id, |pair| pair.0) {
            Ok(index) => renamed.get(index).map_or(id, |pair| pair.1),
            Err(_) => id,
        });
    }

    /// Gives all holes of one group, which has a tree, to another.
    fn merge(&mut self, loser: GroupId, winner: GroupId) {
        let holes: Vec<Hole> = match self.groups.get(loser) {
            Some(group) => group.tree.each().collect(),
            None => return,
        };
        // Looking for each costs more than going through all where they are a good part of all.
        let many = holes.len() > self.len() / 16;
        if many {
            self.all.regroup(|id| if id == loser { winner } else { id });
            if let Some(seams) = &mut self.seams {
                seams.rename(loser, winner);
            }
        }
        for &hole in &holes {
            let new = Hole { group: winner, ..hole };
            if !many {
                for at in [hole.start, hole.end] {
                    let Some((low, high)) = self.touching(at) else { continue };
                    if self.seam_out(low.group, high.group, at) {
                        let other = if at == hole.start { low.group } else { high.group };
                        self.seam_in(other, winner, at);
                    }
                }
                if let Some((place, _)) = self.all.find(hole.start) {
                    self.all.change(place, hole, new);
                }
            }
            if let Some(tree) = self.own_tree(winner) {
                tree.put(new);
            }
        }
        if let Some(lengths) = &mut self.lengths {
            lengths.merge(loser, winner);
        }
        self.groups.gained(winner, holes.len());
    }

    /// The holes that touch at an address, where there may be any that are not one.
    pub(super) fn touching(&self, at: u64) -> Option<(Hole, Hole)> {
        self.seams.as_ref().filter(|seams| !seams.is_empty())?;
        self.all.touching(at)
    }

    /// The holes of a group that has a tree, of at least `least` bytes, which are more than none.
    pub(super) fn holes_of(&self, id: GroupId, least: u64) -> impl Iterator<Item = Hole> {
        let tree = self.groups.get(id).map(|group| &group.tree);
        let mut reached = 0;
        core::iter::from_fn(move || {
            let hole = tree?.lowest_from(reached, least)?;
            reached = hole.end;
            Some(hole)
        })
    }

    /// Where holes touch of which one is in a group that has changed and which may now be one.
    fn seams_to_join(
        &self,
        seams: &Seams,
        changed: &BTreeSet<GroupId>,
        more: &Streams,
    ) -> Vec<u64> {
        if seams.is_empty() {
            return Vec::new();
        }
        let groups = &self.groups;
        // Only what has one of the streams that came in can be one with what they came into, and
        // what is nobody's with what has become nobody's.
        let partners: Vec<GroupId> = if more.is_single() {
            let others = [groups.find(&Streams::ALL), groups.find(&Streams::NONE)];
            groups.having(more).chain(others.into_iter().flatten()).collect()
        } else {
            groups.each().map(|(id, _)| id).collect()
        };
        let mut found = Vec::new();
        for &id in changed {
            let joins = |other: &&GroupId| joins(groups.set(id), groups.set(**other));
            for &other in partners.iter().filter(joins) {
                found.extend(seams.between(id, other));
            }
        }
        // From the low end, as holes are joined wherever several touch.
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The same by looking at all holes.
    fn seams_by_scan(&self, changed: &BTreeSet<GroupId>, runs: &Spans) -> Vec<u64> {
        let (mut found, mut low) = (Vec::new(), Hole::default());
        for high in self.all.each() {
            let touch = low.end == high.start && low.start < low.end;
            if touch
                && (changed.contains(&low.group) || changed.contains(&high.group))
                && joins(self.set(&low), self.set(&high))
                && !runs.begins_at(high.start)
            {
                found.push(high.start);
            }
            low = high;
        }
        found
    }

    /// Makes one of the two holes that touch at an address, if they still have a stream in common.
    fn join_at(&mut self, at: u64) {
        let Some((low, high)) = self.all.touching(at) else { return };
        let (one, two) = (self.set(&low), self.set(&high));
        if !joins(one, two) {
            return;
        }
        let union = if one == two { *one } else { one.and(*two) };
        if self.seams.is_some() && !self.seam_out(low.group, high.group, at) {
            return;
        }
        let group = self.groups.intern(&union);
        self.gained(group);
        self.unite(Hole { start: low.start, end: high.end, group }, [Some(low), Some(high)]);
    }

    /// The streams in whose order all of `start..end` is free; `None` where not all of it is.
    pub(super) fn covering(&self, start: u64, end: u64) -> Option<Streams> {
        let (mut reached, mut streams) = (start, Streams::ALL);
        for hole in self.within(start) {
            if reached >= end {
                break;
            }
            if hole.start > reached {
                return None;
            }
            reached = hole.end;
            streams = streams.and(*self.set(&hole));
        }
        (reached >= end).then_some(streams)
    }

    /// Whether all of `start..end` is free, in whatever order.
    pub(super) fn covers(&self, start: u64, end: u64) -> bool {
        let mut reached = start;
        for hole in self.within(start).take_while(|hole| hole.start < end) {
            if hole.start > reached {
                return false;
            }
            reached = hole.end;
        }
        reached >= end
    }

    /// Every hole that has a byte at `start` or above.
    fn within(&self, start: u64) -> impl Iterator<Item = Hole> {
        let place = self.all.locate(start);
        let below = self.all.below(place).filter(|below| below.end > start);
        below.into_iter().chain(self.all.each_from(place))
    }

    /// Takes `start..end`, all of it free, out.
    pub(super) fn remove_range(&mut self, start: u64, end: u64) {
        let touched: Vec<Hole> = self.within(start).take_while(|hole| hole.start < end).collect();
        for hole in touched {
            for at in [hole.start, hole.end] {
                if (start..=end).contains(&at)
                    && let Some((low, high)) = self.touching(at)
                {
                    self.seam_out(low.group, high.group, at);
                }
            }
            let low = Hole { end: start, ..hole };
            let high = Hole { start: end, ..hole };
            if high.start < high.end {
                self.gained(high.group);
            }
            self.cut(hole, Some(low).filter(|low| low.start < low.end));
            if high.start < high.end {
                self.unite(high, [None, None]);
            }
            self.bytes -= hole.end.min(end) - hole.start.max(start);
        }
    }
}
