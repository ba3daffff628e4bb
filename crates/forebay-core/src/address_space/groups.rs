//! Groups: holes that are free in the order of the same streams.
//!
//! ```text
//!   group   set       holes                         a hole names its group, and the group has the set
//!     0     {A}       .. ...    . ....
//!     1     {A, B}      .    ..       .
//!     2     {B}                     .    ...
//! ```
//!
//! No two groups have the same set. A stream that waits for another changes the sets of a few groups
//! instead of those of all their holes, and a request looks only at the groups whose set has its
//! stream.
//!
//! Requests and blocks that come back name one stream by its number. Which groups that stream may
//! have is kept by number, as a word of bits for the first groups, so that neither builds a set nor
//! compares two.

use std::collections::BTreeMap;

use super::streams::Streams;
use super::tree::Tree;

/// The number of a group. It is given to another once the group has no holes.
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

/// How many groups have a bit in a word: the numbers of groups are given again, so a program needs
/// more only where it has holes in as many orders at once.
const FIRST: usize = 64;

/// How many groups without holes are kept: they are likely to get one again.
const MOST_SPARE: usize = 16;

/// In whose order something is done: that of one stream as a rule.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order<'a> {
    /// The stream with this number, or nobody where no set has such a number.
    One(u32),
    /// All of these. What is one stream is [`Order::One`].
    Many(&'a Streams),
}

impl<'a> Order<'a> {
    /// The order of a set.
    #[inline]
    pub(super) fn of(streams: &'a Streams) -> Self {
        match streams.lowest().filter(|_| streams.is_single()) {
            Some(number) => Self::One(number),
            None => Self::Many(streams),
        }
    }

    /// Whether memory that is free in the order of `set` may go to it.
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
    /// Whether it is among the spare groups, which it is until those are looked through.
    is_spare: bool,
    /// Its holes, where there are many and the groups have trees of their own.
    pub(super) tree: Tree,
}

impl Group {
    fn empty() -> Self {
        Self { set: Streams::NONE, count: 0, is_spare: false, tree: Tree::unused() }
    }
}

/// The groups that one stream may have, but for the group of what is free for all.
#[derive(Clone, Debug)]
struct Having {
    ids: Vec<GroupId>,
    /// The bits of those that have one.
    first: u64,
    /// The group of this stream alone, or none.
    single: GroupId,
}

impl Having {
    fn nothing() -> Self {
        Self { ids: Vec::new(), first: 0, single: GroupId::NONE }
    }
}

/// All groups.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    slots: Vec<Group>,
    unused: Vec<GroupId>,
    by_set: BTreeMap<Streams, GroupId>,
    by_stream: Vec<Having>,
    /// The group of what is free for all, and that of what is nobody's, or none.
    everybodys: GroupId,
    everybodys_bit: u64,
    nobodys: GroupId,
    /// How many groups have holes, and the bits of those that have one.
    live: usize,
    live_first: u64,
    /// How many that have none have holes.
    live_rest: usize,
    /// Groups that had no holes when they were put here.
    spare: Vec<GroupId>,
    /// The group that was looked for last.
    recent: GroupId,
}

impl Default for Groups {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            unused: Vec::new(),
            by_set: BTreeMap::new(),
            by_stream: Vec::new(),
            everybodys: GroupId::NONE,
            everybodys_bit: 0,
            nobodys: GroupId::NONE,
            live: 0,
            live_first: 0,
            live_rest: 0,
            spare: Vec::new(),
            recent: GroupId::NONE,
        }
    }
}

/// Which groups may go to somebody.
#[derive(Clone, Copy, Debug)]
pub(super) struct Serving<'a> {
    groups: &'a Groups,
    taker: Order<'a>,
    first: u64,
}

impl Serving<'_> {
    /// Whether the holes of a group may.
    #[inline]
    pub(super) fn has(&self, id: GroupId) -> bool {
        if id.slot() < FIRST {
            return self.first & id.bit() != 0;
        }
        self.taker.may_have(self.groups.set(id))
    }

    /// Whether all holes there are may.
    #[inline]
    pub(super) fn has_all(&self) -> bool {
        self.groups.live_first & !self.first == 0 && self.all_of_rest(|has| has)
    }

    /// Whether no hole may.
    #[inline]
    pub(super) fn has_none(&self) -> bool {
        self.groups.live_first & self.first == 0 && self.all_of_rest(|has| !has)
    }

    /// Whether something is true of all groups that have holes and no bit.
    #[inline]
    fn all_of_rest(&self, is_so: impl Fn(bool) -> bool) -> bool {
        let rest = self.groups.slots.get(FIRST..).unwrap_or(&[]);
        rest.iter()
            .filter(|group| group.count > 0)
            .all(|group| is_so(self.taker.may_have(&group.set)))
    }
}

impl Groups {
    /// How many groups there are, those without holes too.
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

    /// Every group and its set, those without holes too.
    pub(super) fn each(&self) -> impl Iterator<Item = (GroupId, &Streams)> {
        self.by_set.iter().map(|(set, &id)| (id, set))
    }

    /// Takes the trees of all groups away.
    pub(super) fn drop_trees(&mut self) {
        self.slots.iter_mut().for_each(|group| group.tree = Tree::unused());
    }

    /// The group of a set.
    pub(super) fn find(&self, set: &Streams) -> Option<GroupId> {
        self.by_set.get(set).copied()
    }

    /// The group of what is nobody's, or none.
    #[inline]
    pub(super) fn nobodys(&self) -> GroupId {
        self.nobodys
    }

    #[inline]
    fn of_stream(&self, number: u32) -> Option<&Having> {
        self.by_stream.get(number as usize)
    }

    /// The group of one stream alone, or none.
    #[inline]
    pub(super) fn single(&self, number: u32) -> GroupId {
        self.of_stream(number).map_or(GroupId::NONE, |having| having.single)
    }

    /// The groups that have all of `some`, but for the one of what is free for all.
    pub(super) fn having(&self, some: &Streams) -> impl Iterator<Item = GroupId> {
        let groups = some.lowest().and_then(|lowest| self.of_stream(lowest));
        let groups = groups.map_or(&[][..], |having| &having.ids);
        groups.iter().copied().filter(move |&id| self.set(id).has(some))
    }

    /// The groups whose holes may go to `taker`.
    pub(super) fn serving(&self, taker: Order<'_>) -> impl Iterator<Item = GroupId> {
        let number = match taker {
            Order::One(number) => Some(number),
            Order::Many(streams) => streams.lowest(),
        };
        let groups = number.and_then(|number| self.of_stream(number));
        let groups = groups.map_or(&[][..], |having| &having.ids);
        let is_one = matches!(taker, Order::One(_));
        let groups = groups.iter().filter(move |&&id| is_one || taker.may_have(self.set(id)));
        let all = Some(self.everybodys).filter(|&id| id != GroupId::NONE);
        groups.copied().chain(all)
    }

    /// The same to be asked of one group after another.
    #[inline]
    pub(super) fn serving_set<'a>(&'a self, taker: Order<'a>) -> Serving<'a> {
        let first = match taker {
            Order::One(number) => self.of_stream(number).map_or(0, |having| having.first),
            Order::Many(_) => self.serving(taker).fold(0, |bits, id| bits | id.bit()),
        };
        Serving { groups: self, taker, first: first | self.everybodys_bit }
    }

    /// Whether all holes there are may go to `taker`, as far as that is seen at a glance.
    #[inline(always)]
    pub(super) fn all_serve(&self, taker: Order<'_>) -> bool {
        let Order::One(number) = taker else { return false };
        let first = self.of_stream(number).map_or(0, |having| having.first);
        self.live_first & !(first | self.everybodys_bit) == 0 && self.live_rest == 0
    }

    /// The group of an order, made where there is none.
    #[inline]
    pub(super) fn intern_order(&mut self, order: Order<'_>) -> GroupId {
        if let Order::One(number) = order {
            let single = self.single(number);
            if single != GroupId::NONE {
                return single;
            }
        }
        self.intern(&order.set())
    }

    /// The group of a set, made where there is none.
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
        self.enter(id, set);
        id
    }

    /// Notes that a group has some holes more.
    #[inline]
    pub(super) fn gained(&mut self, id: GroupId, holes: usize) {
        let Some(group) = self.get_mut(id) else { return };
        let was_empty = group.count == 0;
        group.count += holes;
        if was_empty && group.count > 0 {
            self.set_live(id, true);
        }
    }

    /// Notes whether a group has holes, which has changed.
    fn set_live(&mut self, id: GroupId, is_live: bool) {
        let (bit, rest) = (id.bit(), usize::from(id.slot() >= FIRST));
        if is_live {
            self.live += 1;
            self.live_first |= bit;
            self.live_rest += rest;
        } else {
            self.live -= 1;
            self.live_first &= !bit;
            self.live_rest -= rest;
        }
    }

    /// Notes that a group has one hole less.
    #[inline]
    pub(super) fn lost(&mut self, id: GroupId) {
        let Some(group) = self.get_mut(id) else { return };
        group.count = group.count.saturating_sub(1);
        if group.count == 0 {
            self.emptied(id);
        }
    }

    fn emptied(&mut self, id: GroupId) {
        self.set_live(id, false);
        let Some(group) = self.get_mut(id) else { return };
        if core::mem::replace(&mut group.is_spare, true) {
            return;
        }
        if self.spare.len() >= MOST_SPARE {
            self.let_spare_go();
        }
        self.spare.push(id);
    }

    /// Lets all spare groups go that are still without holes.
    pub(super) fn let_spare_go(&mut self) {
        for id in core::mem::take(&mut self.spare) {
            let Some(group) = self.get_mut(id) else { continue };
            group.is_spare = false;
            if group.count == 0 {
                self.leave(id);
                self.discard(id);
            }
        }
    }

    /// Lets a group go that has left the indices. Its holes are another's.
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

    /// Takes the set of a group out of the indices, before it changes.
    pub(super) fn leave(&mut self, id: GroupId) {
        let set = *self.set(id);
        self.by_set.remove(&set);
        if set.is_all() {
            (self.everybodys, self.everybodys_bit) = (GroupId::NONE, 0);
            return;
        }
        if set.is_empty() {
            self.nobodys = GroupId::NONE;
        }
        for number in set.numbers() {
            let Some(having) = self.by_stream.get_mut(number as usize) else { continue };
            if let Some(index) = having.ids.iter().position(|&other| other == id) {
                having.ids.swap_remove(index);
            }
            having.first &= !id.bit();
            if having.single == id {
                having.single = GroupId::NONE;
            }
        }
    }

    /// Gives a group that has left the indices a set that no other has.
    pub(super) fn enter(&mut self, id: GroupId, set: &Streams) {
        self.by_set.insert(*set, id);
        if let Some(group) = self.get_mut(id) {
            group.set = *set;
        }
        if set.is_all() {
            (self.everybodys, self.everybodys_bit) = (id, id.bit());
            return;
        }
        if set.is_empty() {
            self.nobodys = id;
        }
        let is_single = set.is_single();
        for number in set.numbers() {
            let number = number as usize;
            if self.by_stream.len() <= number {
                self.by_stream.resize_with(number.saturating_add(1), Having::nothing);
            }
            if let Some(having) = self.by_stream.get_mut(number) {
                having.ids.push(id);
                having.first |= id.bit();
                if is_single {
                    having.single = id;
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn check_live(&self) {
        let live = |id: &GroupId| self.get(*id).is_some_and(|group| group.count > 0);
        let ids: Vec<GroupId> = self.each().map(|(id, _)| id).filter(live).collect();
        assert_eq!(self.live, ids.len());
        assert_eq!(self.live_rest, ids.iter().filter(|id| id.slot() >= FIRST).count());
        assert_eq!(self.live_first, ids.iter().fold(0, |bits, id| bits | id.bit()));
    }
}
