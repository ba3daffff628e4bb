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

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::streams::{Streams, ones};
use super::tree::Tree;

/// The number of a group. It is reused once the group has no holes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupId(u32);

impl GroupId {
    /// No group.
    pub(super) const NONE: Self = Self(u32::MAX);

    #[inline]
    pub(super) fn slot(self) -> usize {
        self.0 as usize
    }

    /// Its bit in a word, where it is one of the first groups.
    #[inline]
    fn bit(self) -> u64 {
        1_u64.checked_shl(self.0).unwrap_or(0)
    }
}

/// How many groups have their bits in the first word. Numbers are reused, so a program needs more only while its
/// holes have more than this many different sets.
const FIRST: usize = u64::BITS as usize;

/// Groups, a bit each.
#[derive(Clone, Debug, Default)]
struct GroupBits {
    /// The bits of the first groups.
    first: u64,
    /// Those of the others, a word for 64.
    rest: Vec<u64>,
}

/// None of the groups.
static NO_GROUPS: GroupBits = GroupBits { first: 0, rest: Vec::new() };

impl GroupBits {
    #[inline]
    fn change(&mut self, id: GroupId, is_in: bool) {
        let word = match (id.slot() / FIRST).checked_sub(1) {
            None => &mut self.first,
            Some(word) => {
                if is_in && self.rest.len() <= word {
                    self.rest.resize(word.saturating_add(1), 0);
                }
                let Some(word) = self.rest.get_mut(word) else { return };
                word
            }
        };
        let bit = 1 << (id.slot() % FIRST);
        *word = if is_in { *word | bit } else { *word & !bit };
    }

    /// Whether a group is in it.
    #[inline]
    fn has(&self, id: GroupId) -> bool {
        let word = match (id.slot() / FIRST).checked_sub(1) {
            None => self.first,
            Some(word) => self.rest.get(word).copied().unwrap_or(0),
        };
        word >> (id.slot() % FIRST) & 1 != 0
    }

    /// The words of those beyond the first, each with that of `other`.
    #[inline]
    fn rest_with<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (u64, u64)> + 'a {
        let others = other.rest.iter().copied().chain(core::iter::repeat(0));
        self.rest.iter().copied().zip(others)
    }

    /// The groups, the lowest number first.
    fn each(&self) -> impl Iterator<Item = GroupId> {
        Self::each_of(0, self.first).chain(self.each_of_rest())
    }

    /// Those beyond the first.
    fn each_of_rest(&self) -> impl Iterator<Item = GroupId> {
        let words = (1..).zip(&self.rest);
        words.flat_map(|(number, &word)| Self::each_of(number, word))
    }

    fn each_of(number: u32, word: u64) -> impl Iterator<Item = GroupId> {
        ones(word).map(move |bit| GroupId(number * u64::BITS + bit))
    }
}

/// How many empty groups are kept: they are likely to be used again.
const MOST_SPARE: usize = 16;

/// A set of streams by reference, or one stream by its number, which is the common case.
#[derive(Clone, Copy, Debug)]
pub(super) enum StreamsRef<'a> {
    /// The stream with this number. Numbers from [`Streams::MOST`] on are in no set.
    One(u32),
    /// All of these streams. A set of one stream is [`StreamsRef::One`] instead.
    Many(&'a Streams),
}

impl<'a> StreamsRef<'a> {
    /// A reference to a set.
    #[inline]
    pub(super) fn of(streams: &'a Streams) -> Self {
        match streams.lowest().filter(|_| streams.is_single()) {
            Some(number) => Self::One(number),
            None => Self::Many(streams),
        }
    }

    /// Whether it may use memory that is free in the order of `set`.
    fn may_have(&self, set: &Streams) -> bool {
        match *self {
            Self::One(number) if number < Streams::MOST => set.has_number(number),
            Self::One(_) => set.is_all(),
            Self::Many(streams) => set.serve(streams),
        }
    }

    /// Its set.
    pub(super) fn set(&self) -> Streams {
        match *self {
            Self::One(number) => Streams::only(number),
            Self::Many(streams) => *streams,
        }
    }
}

/// The holes of one set.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) set: Streams,
    /// How many holes it has.
    pub(super) count: usize,
    /// Whether it is in [`Groups::spare`]. A group that gets holes again stays there until the next sweep.
    is_spare: bool,
    /// Its holes, while the groups have trees of their own.
    pub(super) tree: Tree,
}

impl Group {
    fn empty() -> Self {
        Self { set: Streams::NONE, count: 0, is_spare: false, tree: Tree::unused() }
    }
}

/// The groups that one stream may use, except the one that every stream may use.
#[derive(Clone, Debug)]
struct StreamGroups {
    all: GroupBits,
    /// The group of this stream alone, or none.
    single: GroupId,
}

impl StreamGroups {
    fn empty() -> Self {
        Self { all: GroupBits::default(), single: GroupId::NONE }
    }
}

/// All groups.
#[derive(Clone, Debug)]
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

impl Default for Groups {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            unused: Vec::new(),
            by_set: BTreeSet::new(),
            by_stream: Vec::new(),
            any_stream: GroupId::NONE,
            any_stream_bit: 0,
            no_stream: GroupId::NONE,
            live: 0,
            live_bits: GroupBits::default(),
            live_rest: 0,
            spare: Vec::new(),
            recent: GroupId::NONE,
        }
    }
}

/// The groups that a taker may use.
#[derive(Clone, Debug)]
pub(super) struct UsableGroups<'a> {
    groups: &'a Groups,
    /// The first of them, with the one that every stream may use.
    first: u64,
    /// All of them but that one.
    bits: Cow<'a, GroupBits>,
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
        let mut words = (1..).zip(live_bits.rest_with(&self.bits));
        words.all(|(number, (live, usable))| {
            is_so(live, if number == word { usable | bit } else { usable })
        })
    }
}

impl Groups {
    /// How many groups there are, including empty ones.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_set.len()
    }

    /// How many groups have holes.
    #[inline]
    pub(super) fn live(&self) -> usize {
        self.live
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
        self.slots.iter_mut().for_each(|group| group.tree = Tree::unused());
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

    /// The groups that `taker` may use.
    pub(super) fn usable_by(&self, taker: StreamsRef<'_>) -> impl Iterator<Item = GroupId> {
        let number = match taker {
            StreamsRef::One(number) => Some(number),
            StreamsRef::Many(streams) => streams.lowest(),
        };
        let groups = number.and_then(|number| self.of_stream(number));
        let groups = groups.into_iter().flat_map(|entry| entry.all.each());
        let is_one = matches!(taker, StreamsRef::One(_));
        let groups = groups.filter(move |&id| is_one || taker.may_have(self.set(id)));
        groups.chain(Some(self.any_stream).filter(|&id| id != GroupId::NONE))
    }

    /// The same as a set, to test one group after another.
    #[inline]
    pub(super) fn usable_set<'a>(&'a self, taker: StreamsRef<'a>) -> UsableGroups<'a> {
        let bits = match taker {
            StreamsRef::One(number) => {
                Cow::Borrowed(self.of_stream(number).map_or(&NO_GROUPS, |entry| &entry.all))
            }
            StreamsRef::Many(_) => {
                let mut bits = GroupBits::default();
                self.usable_by(taker).for_each(|id| bits.change(id, true));
                Cow::Owned(bits)
            }
        };
        UsableGroups { groups: self, first: bits.first | self.any_stream_bit, bits }
    }

    /// Whether `taker` may use all holes, as far as the masks tell; `false` means unknown.
    #[inline(always)]
    pub(super) fn all_usable_by(&self, taker: StreamsRef<'_>) -> bool {
        let StreamsRef::One(number) = taker else { return false };
        let first = self.of_stream(number).map_or(0, |entry| entry.all.first);
        self.live_bits.first & !(first | self.any_stream_bit) == 0 && self.live_rest == 0
    }

    /// The group of a referenced set, created if there is none.
    #[inline]
    pub(super) fn intern_ref(&mut self, order: StreamsRef<'_>) -> GroupId {
        if let StreamsRef::One(number) = order {
            let single = self.single(number);
            if single != GroupId::NONE {
                return single;
            }
        }
        self.intern(&order.set())
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
            self.slots.push(Group::empty());
            GroupId(number)
        });
        self.index_set(id, set);
        id
    }

    /// Counts holes added to a group.
    #[inline]
    pub(super) fn hole_added(&mut self, id: GroupId, holes: usize) {
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

    /// Counts a hole removed from a group.
    #[inline]
    pub(super) fn hole_removed(&mut self, id: GroupId) {
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
        if self.spare.len() >= MOST_SPARE {
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
                self.unindex_set(id);
                self.discard(id);
            }
        }
    }

    /// Discards a group that is no longer indexed. Its holes have moved to another group.
    pub(super) fn discard(&mut self, id: GroupId) {
        let Some(group) = self.get_mut(id) else { return };
        let old = core::mem::replace(group, Group::empty());
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

    /// Removes a group from the indexes, before it is discarded.
    pub(super) fn unindex_set(&mut self, id: GroupId) {
        self.unlist_set(id);
        self.index_streams(id, &Streams::NONE);
    }

    /// Removes a group from the index of sets, before its set [changes](Self::index_set).
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
    pub(super) fn index_streams(&mut self, id: GroupId, set: &Streams) {
        let Some(group) = self.slots.get_mut(id.slot()) else { return };
        let before = core::mem::replace(&mut group.set, *set);
        for (number, is_in) in before.changes_to(set) {
            let number = number as usize;
            if is_in && self.by_stream.len() <= number {
                self.by_stream.resize_with(number.saturating_add(1), StreamGroups::empty);
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

    #[cfg(test)]
    pub(super) fn check_live(&self) {
        let live = |id: &GroupId| self.get(*id).is_some_and(|group| group.count > 0);
        let ids: Vec<GroupId> = self.each().map(|(id, _)| id).filter(live).collect();
        assert_eq!(self.live, ids.len());
        assert_eq!(self.live_rest, ids.iter().filter(|id| id.slot() >= FIRST).count());
        assert!(self.live_bits.each().eq(ids.into_iter().collect::<BTreeSet<_>>()));
    }
}
