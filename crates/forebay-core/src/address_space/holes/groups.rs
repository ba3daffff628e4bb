//! Groups: holes that are free in the order of the same streams.
//!
//! ```text
//!   group   set       holes                         a hole has the id of its group; the group has the set
//!     0     {A}       .. ...    . ....
//!     1     {A, B}      .    ..       .
//!     2     {B}                     .    ...
//! ```
//!
//! No two groups have the same set. When a stream waits for another, the sets of a few groups change
//! instead of every hole, and a request examines only the groups whose set contains its stream.
//!
//! Allocations and frees name one stream by its number. The groups that a stream may use are indexed by
//! that number, as bits, so that neither builds nor compares sets.

use std::collections::BTreeSet;

pub(super) use super::group_bits::GroupId;
use super::group_bits::{FIRST, GroupBits, NO_GROUPS};
use super::tree::Tree;
use crate::address_space::streams::Streams;

/// How many empty groups are kept: they are likely to be used again.
const MAX_SPARE: usize = 16;

/// The holes of one set.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    pub(super) set: Streams,
    /// How many holes it has.
    pub(super) count: usize,
    /// Whether it is in [`Groups::spare`]. A group that gets holes again stays there until the next sweep.
    is_spare: bool,
    /// Its holes, while the groups have trees of their own.
    pub(super) tree: Tree,
}

/// The groups that one stream may use, except the one that every stream may use.
#[derive(Clone, Debug, Default)]
struct StreamGroups {
    all: GroupBits,
    /// The group of this stream alone, or none.
    single: GroupId,
}

/// All groups.
#[derive(Clone, Debug, Default)]
pub(super) struct Groups {
    slots: Vec<Group>,
    unused: Vec<GroupId>,
    /// The groups by the [fingerprints](Streams::fingerprint) of their sets: a set itself is too large to be moved about.
    by_set: BTreeSet<(u64, GroupId)>,
    by_stream: Vec<StreamGroups>,
    /// The group of memory that every stream may use, its bit, and the group of memory that no stream may
    /// use yet. [`GroupId::NONE`] if absent.
    any_stream: GroupId,
    any_stream_bit: u64,
    no_stream: GroupId,
    /// How many holes there are.
    holes: usize,
    /// How many groups have holes, and which.
    live: usize,
    live_bits: GroupBits,
    /// How many of them are not among the first.
    live_rest: usize,
    /// Groups that were empty when they were pushed here.
    spare: Vec<GroupId>,
    /// The group that was looked up last.
    recent: GroupId,
}

/// The groups that a taker may use.
#[derive(Clone, Debug)]
pub(super) struct UsableGroups<'a> {
    groups: &'a Groups,
    /// The first of them, with the one that every stream may use.
    first: u64,
    /// All of them but that one.
    bits: &'a GroupBits,
}

impl UsableGroups<'_> {
    /// Whether it contains a group.
    #[inline]
    pub(super) fn has(&self, id: GroupId) -> bool {
        if id.slot() < FIRST {
            return self.first & id.bit() != 0;
        }
        id == self.groups.any_stream || self.bits.has(id)
    }

    /// Whether it contains every group that has holes.
    #[inline]
    pub(super) fn has_all(&self) -> bool {
        self.groups.live_bits.first & !self.first == 0
            && self.all_of_rest(|live, usable| live & !usable == 0)
    }

    /// Whether it contains no group that has holes.
    #[inline]
    pub(super) fn has_none(&self) -> bool {
        self.groups.live_bits.first & self.first == 0
            && self.all_of_rest(|live, usable| live & usable == 0)
    }

    /// Whether `is_so` holds for every word of the groups that have holes and are not among the first. Words, not sets: the
    /// sets of a thousand streams are a thousand cache misses.
    #[inline]
    fn all_of_rest(&self, is_so: impl Fn(u64, u64) -> bool) -> bool {
        if self.groups.live_rest == 0 {
            return true;
        }
        let Groups { live_bits, any_stream, .. } = self.groups;
        let (word, bit) = (any_stream.slot() / FIRST, 1 << (any_stream.slot() % FIRST));
        let mut words = (1..).zip(live_bits.rest_with(self.bits));
        words.all(|(number, (live, usable))| {
            is_so(live, if number == word { usable | bit } else { usable })
        })
    }
}

impl Groups {
    /// How many groups have holes.
    #[inline]
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// How many holes all of them have.
    #[inline]
    pub(super) fn holes(&self) -> usize {
        self.holes
    }

    /// How many holes a group has.
    pub(super) fn count(&self, id: GroupId) -> usize {
        self.get(id).map_or(0, |group| group.count)
    }

    #[inline]
    pub(super) fn get(&self, id: GroupId) -> Option<&Group> {
        self.slots.get(id.slot())
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: GroupId) -> Option<&mut Group> {
        self.slots.get_mut(id.slot())
    }

    /// The streams in whose order the holes of a group are free.
    #[inline]
    pub(super) fn set(&self, id: GroupId) -> &Streams {
        self.slots.get(id.slot()).map_or(&Streams::NONE, |group| &group.set)
    }

    /// Every group and its set, including empty ones.
    pub(super) fn each(&self) -> impl Iterator<Item = (GroupId, &Streams)> {
        self.by_set.iter().map(|&(_, id)| (id, self.set(id)))
    }

    /// Drops the trees of all groups.
    pub(super) fn drop_trees(&mut self) {
        self.slots.iter_mut().for_each(|group| group.tree = Tree::default());
    }

    /// The group of a set.
    pub(super) fn find(&self, set: &Streams) -> Option<GroupId> {
        let print = set.fingerprint();
        let alike = self.by_set.range((print, GroupId(0))..=(print, GroupId::NONE));
        alike.map(|&(_, id)| id).find(|&id| self.set(id) == set)
    }

    /// The group of memory that no stream may use yet, or [`GroupId::NONE`].
    #[inline]
    pub(super) fn no_stream(&self) -> GroupId {
        self.no_stream
    }

    #[inline]
    fn of_stream(&self, number: u32) -> Option<&StreamGroups> {
        self.by_stream.get(number as usize)
    }

    /// The group whose set is this stream alone, or [`GroupId::NONE`].
    #[inline]
    pub(super) fn single(&self, number: u32) -> GroupId {
        self.of_stream(number).map_or(GroupId::NONE, |entry| entry.single)
    }

    /// The groups whose set contains all of `some`, except the one that every stream may use.
    pub(super) fn containing(&self, some: &Streams) -> impl Iterator<Item = GroupId> {
        let groups = some.lowest().and_then(|lowest| self.of_stream(lowest));
        let groups = groups.into_iter().flat_map(|entry| entry.all.each());
        let is_one = some.is_single();
        groups.filter(move |&id| is_one || self.set(id).has(some))
    }

    /// The groups that the stream with number `taker` may use.
    pub(super) fn usable_by(&self, taker: u32) -> impl Iterator<Item = GroupId> {
        let groups = self.of_stream(taker).into_iter().flat_map(|entry| entry.all.each());
        groups.chain(Some(self.any_stream).filter(|&id| id != GroupId::NONE))
    }

    /// The same as a set, to test one group after another.
    #[inline]
    pub(super) fn usable_set(&self, taker: u32) -> UsableGroups<'_> {
        let bits = self.of_stream(taker).map_or(&NO_GROUPS, |entry| &entry.all);
        UsableGroups { groups: self, first: bits.first | self.any_stream_bit, bits }
    }

    /// Whether `taker` may use all holes, as far as the masks tell; `false` means unknown.
    #[inline(always)]
    pub(super) fn all_usable_by(&self, taker: u32) -> bool {
        let first = self.of_stream(taker).map_or(0, |entry| entry.all.first);
        self.live_bits.first & !(first | self.any_stream_bit) == 0 && self.live_rest == 0
    }

    /// The group of a set, created if there is none.
    #[inline]
    pub(super) fn intern(&mut self, set: &Streams) -> GroupId {
        if self.get(self.recent).is_some_and(|group| group.set == *set) {
            return self.recent;
        }
        self.recent = self.find(set).unwrap_or_else(|| self.make(set));
        self.recent
    }

    #[cold]
    fn make(&mut self, set: &Streams) -> GroupId {
        let id = self.unused.pop().unwrap_or_else(|| {
            let number = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
            self.slots.push(Group::default());
            GroupId(number)
        });
        self.index_set(id, set);
        id
    }

    /// Counts holes added to a group.
    #[inline]
    pub(super) fn hole_added(&mut self, id: GroupId, holes: usize) {
        self.holes += holes;
        let Some(group) = self.get_mut(id) else { return };
        let was_empty = group.count == 0;
        group.count += holes;
        if was_empty && group.count > 0 {
            self.set_live(id, true);
        }
    }

    /// Records that a group has become empty or has ceased to be.
    fn set_live(&mut self, id: GroupId, is_live: bool) {
        let rest = usize::from(id.slot() >= FIRST);
        self.live_bits.change(id, is_live);
        if is_live {
            self.live += 1;
            self.live_rest += rest;
        } else {
            self.live -= 1;
            self.live_rest -= rest;
        }
    }

    /// Counts a hole that went from one group to another, or stayed.
    #[inline]
    pub(super) fn hole_moved(&mut self, old: GroupId, new: GroupId) {
        if old != new {
            self.hole_added(new, 1);
            self.hole_removed(old);
        }
    }

    /// Counts a hole removed from a group.
    #[inline]
    pub(super) fn hole_removed(&mut self, id: GroupId) {
        self.holes -= 1;
        let Some(group) = self.get_mut(id) else { return };
        group.count = group.count.saturating_sub(1);
        if group.count == 0 {
            self.park_empty(id);
        }
    }

    fn park_empty(&mut self, id: GroupId) {
        self.set_live(id, false);
        let Some(group) = self.get_mut(id) else { return };
        if core::mem::replace(&mut group.is_spare, true) {
            return;
        }
        if self.spare.len() >= MAX_SPARE {
            self.drop_spare();
        }
        self.spare.push(id);
    }

    /// Discards all spare groups that are still empty.
    pub(super) fn drop_spare(&mut self) {
        for id in core::mem::take(&mut self.spare) {
            let Some(group) = self.get_mut(id) else { continue };
            group.is_spare = false;
            if group.count == 0 {
                self.unlist_set(id);
                self.discard(id);
            }
        }
    }

    /// Discards a group that is not in the index of sets. Its holes have moved to another group.
    pub(super) fn discard(&mut self, id: GroupId) {
        self.index_streams(id, &Streams::NONE);
        let Some(group) = self.get_mut(id) else { return };
        let old = core::mem::take(group);
        self.holes -= old.count;
        if old.count > 0 {
            self.set_live(id, false);
        }
        if old.is_spare {
            self.spare.retain(|&spare| spare != id);
        }
        // A slot without a set is not the group of the empty set.
        self.recent = GroupId::NONE;
        self.unused.push(id);
    }

    /// Removes a group from the index of sets, before its set [changes](Self::index_set) or it is
    /// [discarded](Self::discard).
    pub(super) fn unlist_set(&mut self, id: GroupId) {
        let set = self.set(id);
        let (print, is_all, is_empty) = (set.fingerprint(), set.is_all(), set.is_empty());
        self.by_set.remove(&(print, id));
        if is_all {
            (self.any_stream, self.any_stream_bit) = (GroupId::NONE, 0);
        } else if is_empty {
            self.no_stream = GroupId::NONE;
        }
    }

    /// Gives a group that is not in the index of sets a set that no other group has, and indexes it.
    pub(super) fn index_set(&mut self, id: GroupId, set: &Streams) {
        self.by_set.insert((set.fingerprint(), id));
        if set.is_all() {
            (self.any_stream, self.any_stream_bit) = (id, id.bit());
        } else if set.is_empty() {
            self.no_stream = id;
        }
        self.index_streams(id, set);
    }

    /// Sets the streams of a group and indexes it by them. Costs what has changed: the set of a group may have very many
    /// streams, and a wait adds one.
    fn index_streams(&mut self, id: GroupId, set: &Streams) {
        let Some(group) = self.slots.get_mut(id.slot()) else { return };
        let before = core::mem::replace(&mut group.set, *set);
        for (number, is_in) in before.changes_to(set) {
            let number = number as usize;
            if is_in && self.by_stream.len() <= number {
                self.by_stream.resize_with(number.saturating_add(1), StreamGroups::default);
            }
            if let Some(entry) = self.by_stream.get_mut(number) {
                entry.all.change(id, is_in);
            }
        }
        for (set, single) in [(&before, GroupId::NONE), (set, id)] {
            let only = set.lowest().filter(|_| set.is_single());
            let entry = only.and_then(|number| self.by_stream.get_mut(number as usize));
            if let Some(entry) = entry.filter(|entry| single == id || entry.single == id) {
                entry.single = single;
            }
        }
    }
}

/// That the counts are those of the groups, and no group has two sets.
#[cfg(test)]
pub(super) fn check_counts(groups: &Groups) {
    let all: BTreeSet<GroupId> = groups.each().map(|(id, _)| id).collect();
    assert_eq!(all.len(), groups.by_set.len(), "a group has two sets");
    let live: Vec<GroupId> = all.into_iter().filter(|&id| groups.count(id) > 0).collect();
    assert_eq!(groups.holes, live.iter().map(|&id| groups.count(id)).sum::<usize>());
    assert_eq!(groups.live, live.len());
    assert_eq!(groups.live_rest, live.iter().filter(|id| id.slot() >= FIRST).count());
    assert!(groups.live_bits.each().eq(live));
}
