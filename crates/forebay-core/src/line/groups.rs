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
    fn slot(self) -> usize {
        self.0 as usize
    }
}

/// The holes of one set.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) set: Streams,
    /// How many holes it has.
    pub(super) count: usize,
    /// Its holes. The main group has them in the tree of all holes.
    pub(super) tree: Tree,
}

/// All groups.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    slots: Vec<Group>,
    unused: Vec<GroupId>,
    by_set: BTreeMap<Streams, GroupId>,
    /// For each number of a stream the groups that have it, but for the group of what is free for all.
    by_stream: Vec<Vec<GroupId>>,
    /// The group whose holes the tree of all holes counts, or none.
    main: GroupId,
    /// A group without holes that is kept because it is likely to get one again, or none.
    spare: GroupId,
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
            main: GroupId::NONE,
            spare: GroupId::NONE,
            recent: GroupId::NONE,
        }
    }
}

impl Groups {
    /// How many groups there are, the spare one too.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.by_set.len()
    }

    #[inline]
    pub(super) fn main(&self) -> GroupId {
        self.main
    }

    /// The main group, where there is no other.
    #[inline]
    pub(super) fn alone(&mut self) -> Option<&mut Group> {
        if self.by_set.len() != 1 {
            return None;
        }
        self.slots.get_mut(self.main.slot())
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

    /// Every group and its set, the spare one too.
    pub(super) fn each(&self) -> impl Iterator<Item = (GroupId, &Streams)> {
        self.by_set.iter().map(|(set, &id)| (id, set))
    }

    /// The group of a set.
    pub(super) fn find(&self, set: &Streams) -> Option<GroupId> {
        self.by_set.get(set).copied()
    }

    /// The groups that have all of `some`, but for the one of what is free for all.
    pub(super) fn having(&self, some: &Streams) -> impl Iterator<Item = GroupId> {
        let number = some.lowest().and_then(|lowest| usize::try_from(lowest).ok());
        let groups = number.and_then(|number| self.by_stream.get(number));
        groups.into_iter().flatten().copied().filter(move |&id| self.set(id).has(some))
    }

    /// The groups whose holes may go to `taker`.
    pub(super) fn serving(&self, taker: &Streams) -> impl Iterator<Item = GroupId> {
        let all = self.by_set.get(&Streams::ALL).copied();
        self.having(taker).chain(all)
    }

    /// Whether all holes there are may go to `taker`.
    pub(super) fn all_serve(&self, taker: &Streams) -> bool {
        let without = |id: GroupId| self.get(id).is_none_or(|group| group.count == 0);
        self.serving(taker).count() == self.len()
            || self.each().all(|(id, set)| set.serve(taker) || without(id))
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
            self.slots.push(Group { set: Streams::NONE, count: 0, tree: Tree::unused() });
            GroupId(number)
        });
        let is_main = self.main == GroupId::NONE;
        if is_main {
            self.main = id;
        }
        if let Some(group) = self.get_mut(id) {
            let tree = if is_main { Tree::unused() } else { Tree::new(id) };
            *group = Group { set: *set, count: 0, tree };
        }
        self.enter(id, set);
        id
    }

    /// Notes that a group has one hole more.
    #[inline]
    pub(super) fn gained(&mut self, id: GroupId) {
        if let Some(group) = self.get_mut(id) {
            group.count += 1;
        }
    }

    /// Notes that a group has one hole less. Gives a group that was let go for it, if any.
    #[inline]
    pub(super) fn lost(&mut self, id: GroupId) -> Option<GroupId> {
        let group = self.get_mut(id)?;
        group.count = group.count.saturating_sub(1);
        if group.count > 0 {
            return None;
        }
        if self.spare == id {
            return None;
        }
        let let_go = self.let_spare_go();
        self.spare = id;
        let_go
    }

    /// Lets the spare group go, if it is still without holes; gives which it was.
    pub(super) fn let_spare_go(&mut self) -> Option<GroupId> {
        let spare = core::mem::replace(&mut self.spare, GroupId::NONE);
        self.get(spare).filter(|group| group.count == 0)?;
        self.leave(spare);
        self.discard(spare);
        Some(spare)
    }

    /// Lets a group go that has no holes and has left the indices.
    pub(super) fn discard(&mut self, id: GroupId) {
        if let Some(group) = self.get_mut(id) {
            *group = Group { set: Streams::NONE, count: 0, tree: Tree::unused() };
        }
        if self.main == id {
            self.main = GroupId::NONE;
        }
        if self.spare == id {
            self.spare = GroupId::NONE;
        }
        // A slot without a set is not the group of the empty set.
        self.recent = GroupId::NONE;
        self.unused.push(id);
    }

    /// Makes a group the main one; gives the tree it had. Whoever calls this makes that the tree of
    /// all holes.
    pub(super) fn make_main(&mut self, id: GroupId) -> Option<Tree> {
        let tree = core::mem::replace(&mut self.get_mut(id)?.tree, Tree::unused());
        self.main = id;
        Some(tree)
    }

    /// Takes the set of a group out of the indices, before it changes.
    pub(super) fn leave(&mut self, id: GroupId) {
        let set = *self.set(id);
        self.by_set.remove(&set);
        if set == Streams::ALL {
            return;
        }
        for number in set.numbers() {
            let number = usize::try_from(number).unwrap_or(usize::MAX);
            let Some(groups) = self.by_stream.get_mut(number) else { continue };
            if let Some(index) = groups.iter().position(|&other| other == id) {
                groups.swap_remove(index);
            }
        }
    }

    /// Gives a group that has left the indices a set that no other has.
    pub(super) fn enter(&mut self, id: GroupId, set: &Streams) {
        self.by_set.insert(*set, id);
        if let Some(group) = self.get_mut(id) {
            group.set = *set;
        }
        if *set == Streams::ALL {
            return;
        }
        for number in set.numbers() {
            let number = usize::try_from(number).unwrap_or(usize::MAX);
            if self.by_stream.len() <= number {
                self.by_stream.resize_with(number.saturating_add(1), Vec::new);
            }
            if let Some(groups) = self.by_stream.get_mut(number) {
                groups.push(id);
            }
        }
    }
}
