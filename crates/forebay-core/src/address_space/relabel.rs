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

use super::gaps::Spans;
use super::groups::{GroupId, StreamsRef};
use super::hole::{Holes, Seams, joins};
use super::lengths::scan_limit;
use super::streams::Streams;
use super::tree::Hole;

impl Holes {
    /// The streams that own the smallest hole of at least `size` bytes, if `taker` may not use it and every
    /// hole `taker` may use is larger and exceeds `size` by more than `slack`. Of equals, the lowest. Holes
    /// that no stream may use are ignored.
    #[inline]
    pub(super) fn better_owner(
        &mut self,
        size: u64,
        slack: u64,
        taker: StreamsRef<'_>,
    ) -> Option<Streams> {
        if self.groups.all_usable_by(taker) {
            None
        } else {
            self.better_owner_slow(size, slack, taker)
        }
    }

    #[inline(never)]
    fn better_owner_slow(
        &mut self,
        size: u64,
        slack: u64,
        taker: StreamsRef<'_>,
    ) -> Option<Streams> {
        if self.groups.usable_set(taker).has_all() {
            return None;
        }
        if self.len() <= scan_limit(self.groups.live()) && self.lengths.is_none() {
            return self.better_owner_by_scan(size, slack, taker);
        }
        if self.lengths.is_none() {
            self.lengths = Some(self.owned_lengths());
        }
        let (lengths, groups) = (self.lengths.as_mut()?, &self.groups);
        let usable = groups.usable_set(taker);
        let (length, start) = lengths.shortest(size)?;
        let owner = self.all.find(start)?.1.group;
        if usable.has(owner) {
            return None;
        }
        // The shortest hole belongs to others; does the taker have one that is as good or fits well?
        let enough = length.max(size.saturating_add(slack));
        let mut own = groups.usable_by(taker).filter_map(|id| lengths.shortest_of(id, size));
        if own.any(|own| own <= enough) { None } else { Some(*groups.set(owner)) }
    }

    /// [`better_owner`](Self::better_owner) by scanning every hole that is large enough.
    fn better_owner_by_scan(
        &self,
        size: u64,
        slack: u64,
        taker: StreamsRef<'_>,
    ) -> Option<Streams> {
        let (usable, no_stream) = (self.groups.usable_set(taker), self.groups.no_stream());
        let (mut own, mut best) = (u64::MAX, (u64::MAX, GroupId::NONE));
        let mut has_good_fit = false;
        self.all.each_of_size(size, |hole| {
            let length = hole.size();
            if usable.has(hole.group) {
                own = own.min(length);
                has_good_fit = length - size <= slack;
            } else if length < best.0 && hole.group != no_stream {
                best = (length, hole.group);
            }
            has_good_fit
        });
        (best.0 < own && !has_good_fit).then(|| *self.groups.set(best.1))
    }

    /// Every stream in whose order something is free.
    pub(super) fn owners(&self) -> Streams {
        let live = self.groups.each().filter(|&(id, _)| self.has_holes(id));
        live.fold(Streams::NONE, |all, (_, &set)| all.or(set))
    }

    /// Whether no hole is free in the order of `stream`, except those that are free for all streams.
    pub(super) fn has_none_of(&self, stream: &Streams) -> bool {
        !self.groups.containing(stream).any(|id| self.has_holes(id))
    }

    fn has_holes(&self, id: GroupId) -> bool {
        self.groups.get(id).is_some_and(|group| group.count > 0)
    }

    /// Makes memory that is free in the order of all of `owner` free in the order of `taker` too.
    pub(super) fn waited(&mut self, taker: &Streams, owner: &Streams, runs: &Spans) {
        let ids = self.groups.containing(owner).filter(|&id| !self.groups.set(id).has(taker));
        self.relabel(ids.collect(), taker, runs, |set| set.or(*taker));
    }

    /// Makes memory that is free in the order of any of `owners` free in the order of `taker` too.
    pub(super) fn record_wait_any(&mut self, taker: &Streams, owners: &Streams, runs: &Spans) {
        let groups = self.groups.each();
        let ids = groups.filter(|(_, set)| set.meets(owners) && !set.has(taker)).map(|(id, _)| id);
        self.relabel(ids.collect(), taker, runs, |set| set.or(*taker));
    }

    /// Makes memory that is free in the order of any of `streams` free for all; with [`Streams::ALL`] that
    /// is every hole.
    pub(super) fn idle(&mut self, streams: &Streams, runs: &Spans) {
        let ids = if streams.is_single() {
            self.groups.containing(streams).collect()
        } else {
            let over = |set: &Streams| *streams == Streams::ALL || set.meets(streams);
            let groups = self.groups.each().filter(|&(_, set)| !set.is_all() && over(set));
            groups.map(|(id, _)| id).collect()
        };
        self.relabel(ids, &Streams::ALL, runs, |_| Streams::ALL);
    }

    /// Makes memory that is free in the order of all of `from` free in the order of `to` instead. Memory
    /// that is free for all stays so.
    pub(super) fn hand_over(&mut self, from: &Streams, to: &Streams, runs: &Spans) {
        let after = |set: &Streams| set.without(*from).or(*to);
        let is_other = |&id: &GroupId| after(self.groups.set(id)) != *self.groups.set(id);
        let ids = self.groups.containing(from).filter(is_other).collect();
        self.relabel(ids, to, runs, after);
    }

    /// Changes the set of each group to what `after` says, which contains all of `more`, and merges holes that touch.
    fn relabel(
        &mut self,
        mut ids: Vec<GroupId>,
        more: &Streams,
        runs: &Spans,
        after: impl Fn(&Streams) -> Streams,
    ) {
        if ids.is_empty() {
            return;
        }
        self.groups.drop_spare();
        ids.retain(|&id| self.has_holes(id));
        let changes_owned = |set: &Streams| set.is_empty() != after(set).is_empty();
        if ids.iter().any(|&id| changes_owned(self.groups.set(id))) {
            // The lengths index only holes that some stream may use.
            self.lengths = None;
        }
        ids.iter().for_each(|&id| self.groups.unlist_set(id));
        let mut changed = BTreeSet::new();
        // While groups have no trees, one pass at the end moves all holes to their new groups.
        let mut regrouped: Vec<(GroupId, GroupId)> = Vec::new();
        for id in ids {
            let set = after(self.groups.set(id));
            let Some(other) = self.groups.find(&set) else {
                self.groups.index_set(id, &set);
                changed.insert(id);
                continue;
            };
            if self.seams.is_none() {
                let count = self.groups.get(id).map_or(0, |group| group.count);
                self.groups.hole_added(other, count);
                self.groups.index_streams(id, &Streams::NONE);
                self.groups.discard(id);
                regrouped.push((id, other));
                changed.insert(other);
                continue;
            }
            let count = |id: GroupId| self.groups.get(id).map_or(0, |group| group.count);
            let (loser, winner) = if count(id) > count(other) { (other, id) } else { (id, other) };
            self.merge_groups(loser, winner);
            if loser == other {
                self.groups.unindex_set(other);
                self.groups.index_set(id, &set);
            } else {
                self.groups.index_streams(id, &Streams::NONE);
            }
            self.groups.discard(loser);
            changed.remove(&loser);
            changed.insert(winner);
        }
        self.regroup_all(regrouped);
        let seams = match &self.seams {
            Some(seams) => self.seams_to_join(seams, &changed, more),
            None => self.seams_by_scan(&changed, runs),
        };
        for seam in seams {
            self.join_at(seam);
        }
    }

    /// Moves the holes of discarded groups to their successors, while groups have no trees.
    fn regroup_all(&mut self, mut regrouped: Vec<(GroupId, GroupId)>) {
        if regrouped.is_empty() {
            return;
        }
        self.lengths = None;
        regrouped.sort_unstable();
        self.all.regroup(|id| match regrouped.binary_search_by_key(&id, |pair| pair.0) {
            Ok(index) => regrouped.get(index).map_or(id, |pair| pair.1),
            Err(_) => id,
        });
    }

    /// Moves all holes of one group, which has a tree, to another.
    fn merge_groups(&mut self, loser: GroupId, winner: GroupId) {
        let holes: Vec<Hole> = match self.groups.get(loser) {
            Some(group) => group.tree.each().collect(),
            None => return,
        };
        // If they are a large part of all holes, one pass over all costs less than looking up each.
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
                    if self.remove_seam(low.group, high.group, at) {
                        let other = if at == hole.start { low.group } else { high.group };
                        self.add_seam(other, winner, at);
                    }
                }
                if let Some((cursor, _)) = self.all.find(hole.start) {
                    self.all.change(cursor, hole, new);
                }
            }
            if let Some(tree) = self.group_tree(winner) {
                tree.put(new);
            }
        }
        if let Some(lengths) = &mut self.lengths {
            lengths.merge(loser, winner);
        }
        self.groups.hole_added(winner, holes.len());
    }

    /// The two unmerged holes that touch at an address; `None` at once if there are no seams.
    pub(super) fn touching(&self, at: u64) -> Option<(Hole, Hole)> {
        self.seams.as_ref().filter(|seams| !seams.is_empty())?;
        self.all.touching(at)
    }

    /// The seams at which a hole of a changed group touches a hole that it may now merge with.
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
        for &id in changed {
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

    /// Merges the two holes that touch at an address, if they still have a stream in common.
    fn join_at(&mut self, at: u64) {
        let Some((low, high)) = self.all.touching(at) else { return };
        let (one, two) = (self.set(&low), self.set(&high));
        if !joins(one, two) {
            return;
        }
        let union = if one == two { *one } else { one.and(*two) };
        if self.seams.is_some() && !self.remove_seam(low.group, high.group, at) {
            return;
        }
        let group = self.groups.intern(&union);
        self.hole_added(group);
        self.replace_parts(
            Hole { start: low.start, end: high.end, group },
            [Some(low), Some(high)],
        );
    }

    /// The streams in whose order all of `start..end` is free; `None` where not all of it is.
    pub(super) fn covering(&self, start: u64, end: u64) -> Option<Streams> {
        let (mut reached, mut streams) = (start, Streams::ALL);
        for hole in self.all.each_from(start) {
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

    /// Whether all of `start..end` is free, whatever its streams.
    pub(super) fn covers(&self, start: u64, end: u64) -> bool {
        let mut reached = start;
        for hole in self.all.each_from(start).take_while(|hole| hole.start < end) {
            if hole.start > reached {
                return false;
            }
            reached = hole.end;
        }
        reached >= end
    }

    /// The hole around `at`.
    pub(super) fn around(&self, at: u64) -> Option<Hole> {
        self.all.each_from(at).next().filter(|hole| hole.start <= at)
    }

    /// Removes `start..end`, all of which is free.
    pub(super) fn remove_range(&mut self, start: u64, end: u64) {
        let touched: Vec<Hole> =
            self.all.each_from(start).take_while(|hole| hole.start < end).collect();
        for hole in touched {
            for at in [hole.start, hole.end] {
                if (start..=end).contains(&at)
                    && let Some((low, high)) = self.touching(at)
                {
                    self.remove_seam(low.group, high.group, at);
                }
            }
            let low = Hole { end: start, ..hole };
            let high = Hole { start: end, ..hole };
            if high.start < high.end {
                self.hole_added(high.group);
            }
            self.cut(hole, Some(low).filter(|low| low.start < low.end));
            if high.start < high.end {
                self.replace_parts(high, [None, None]);
            }
            self.bytes -= hole.end.min(end) - hole.start.max(start);
        }
    }
}
