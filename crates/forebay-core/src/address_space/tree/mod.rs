//! Holes in the order of their addresses, in a tree that knows the largest of every part.
//!
//! ```text
//!   inner               first of each child, largest hole of each child
//!                  ┌──────────────────┬──────────────────┐
//!   leaves      [ .. ... . ]  <->  [ . .... ]  <->  [ .. . ..... ]      up to 32 holes each
//! ```
//!
//! The lowest hole of a size is found by going down to the first child whose largest is large
//! enough; the neighbours of an address by going down to the last child that begins below it. Either
//! looks at one node of each level, and a pool of a thousand holes has two levels.
//!
//! Where a request may have the holes of some groups only, parts are looked through one after another
//! as long as their largest is large enough.

mod change;
#[cfg(test)]
pub(super) mod check;
mod node;
mod quick;

use super::groups::GroupId;
use node::{Inner, Leaf, NO_NODE, first};
pub(super) use quick::Quick;

/// Free memory that one block may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hole {
    pub(super) start: u64,
    pub(super) end: u64,
    /// The group whose set has the streams in whose order it is free.
    pub(super) group: GroupId,
}

impl Hole {
    #[inline]
    pub(super) fn size(&self) -> u64 {
        self.end - self.start
    }
}

/// One step on the way down: an inner node, and which child of it.
#[derive(Clone, Copy, Debug)]
struct Step {
    node: usize,
    child: usize,
}

/// A place among the holes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The last step on the way to its leaf. The others are looked for where they are needed, which
    /// is seldom.
    last: Step,
    leaf: usize,
    index: usize,
    /// Holes of this leaf begin at `floor` or above, and below `limit`.
    floor: u64,
    limit: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    leaves: Vec<Leaf>,
    inners: Vec<Inner>,
    free_leaves: Vec<usize>,
    free_inners: Vec<usize>,
    /// The node on top: a leaf where `height` is none.
    root: usize,
    height: usize,
}

impl Tree {
    /// A tree without holes.
    pub(super) fn new() -> Self {
        Self {
            leaves: vec![Leaf::default()],
            inners: Vec::new(),
            free_leaves: Vec::new(),
            free_inners: Vec::new(),
            root: 0,
            height: 0,
        }
    }

    /// A tree that takes no memory, for a group whose holes are elsewhere.
    pub(super) fn unused() -> Self {
        Self { leaves: Vec::new(), ..Self::new() }
    }

    /// How large the largest hole is.
    pub(super) fn most(&self) -> u64 {
        match self.inners.get(self.root).filter(|_| self.height > 0) {
            Some(inner) => inner.most(),
            None => self.most_of_leaf(self.root),
        }
    }

    fn most_of_leaf(&self, leaf: usize) -> u64 {
        let holes = self.leaves.get(leaf).map_or(&[][..], |leaf| leaf.holes.as_slice());
        holes.iter().map(Hole::size).max().unwrap_or(0)
    }

    /// The place right behind the last hole that begins at or below `at`.
    pub(super) fn locate(&self, at: u64) -> Place {
        let mut place = self.leaf_at(at);
        visit();
        place.index = self.leaves.get(place.leaf).map_or(0, |leaf| leaf.count_up_to(at));
        place
    }

    /// The start of the leaf in which a hole that begins at `at` is.
    fn leaf_at(&self, at: u64) -> Place {
        let mut place = Place { leaf: self.root, ..Place::root() };
        for _ in 0..self.height {
            visit();
            let Some(inner) = self.inners.get(place.leaf) else { break };
            place.leaf = place.enter(place.leaf, inner.child_at(at), inner);
        }
        place
    }

    /// The lowest hole that has `size` bytes.
    pub(super) fn lowest(&self, size: u64) -> Option<(Place, Hole)> {
        self.descend(0, self.root, size)
    }

    /// Goes down from a node on `level` to the lowest hole of `size` bytes under it. The bounds of the
    /// place are those of the whole tree where that is not the top.
    fn descend(&self, level: usize, mut node: usize, size: u64) -> Option<(Place, Hole)> {
        let mut place = Place::root();
        for _ in level..self.height {
            visit();
            let inner = self.inners.get(node)?;
            let child = first(inner.mosts(), |&most| most >= size)?;
            node = place.enter(node, child, inner);
        }
        visit();
        place.leaf = node;
        let holes = self.leaves.get(node)?.holes.as_slice();
        place.index = first(holes, |hole| hole.size() >= size)?;
        Some((place, *holes.get(place.index)?))
    }

    /// The lowest hole that has `size` bytes and whose group is right.
    #[inline]
    pub(super) fn lowest_of(
        &self,
        size: u64,
        is_right: impl Fn(GroupId) -> bool,
    ) -> Option<(Place, Hole)> {
        let mut found = None;
        self.look(Place::root(), (0, self.root), size, &mut |place, hole| {
            let is_right = is_right(hole.group);
            if is_right {
                found = Some((place, *hole));
            }
            is_right
        });
        found
    }

    /// Shows the holes that have `size` bytes, the lowest first, until `is_enough` of one.
    #[inline]
    pub(super) fn each_of_size(&self, size: u64, mut is_enough: impl FnMut(&Hole) -> bool) {
        self.look(Place::root(), (0, self.root), size, &mut |_, hole| is_enough(hole));
    }

    /// The same of those under a node on a level.
    fn look(
        &self,
        mut place: Place,
        (level, node): (usize, usize),
        size: u64,
        is_enough: &mut impl FnMut(Place, &Hole) -> bool,
    ) -> bool {
        visit();
        if level == self.height {
            place.leaf = node;
            let holes = self.leaves.get(node).map_or(&[][..], |leaf| leaf.holes.as_slice());
            return holes.iter().enumerate().any(|(index, hole)| {
                place.index = index;
                hole.size() >= size && is_enough(place, hole)
            });
        }
        let Some(inner) = self.inners.get(node) else { return false };
        let children = inner.mosts().iter().enumerate().filter(|&(_, &most)| most >= size);
        for (child, _) in children {
            let mut place = place;
            let below = place.enter(node, child, inner);
            if self.look(place, (level + 1, below), size, is_enough) {
                return true;
            }
        }
        false
    }

    /// The way down to the leaf of a place.
    fn way(&self, place: Place) -> Vec<Step> {
        let mut node = self.root;
        let steps = (0..self.height).map_while(|_| {
            visit();
            let inner = self.inners.get(node)?;
            let child = inner.child_at(place.floor);
            let step = Step { node, child };
            node = inner.children.get(child)?;
            Some(step)
        });
        steps.collect()
    }

    /// The lowest hole that begins at or above `at` and has `size` bytes, which are more than none.
    pub(super) fn lowest_from(&self, at: u64, size: u64) -> Option<Hole> {
        let place = self.locate(at.saturating_sub(1));
        let holes = self.leaves.get(place.leaf)?.holes.as_slice();
        let fits = |hole: &&Hole| hole.start >= at && hole.size() >= size;
        // Where `at` is nothing, a hole that begins there is right before the place.
        let index = place.index.saturating_sub(usize::from(at == 0));
        if let Some(hole) = holes.get(index..)?.iter().find(fits) {
            return Some(*hole);
        }
        for (level, step) in self.way(place).into_iter().enumerate().rev() {
            visit();
            let inner = self.inners.get(step.node)?;
            let rest = inner.mosts().get(step.child + 1..)?;
            let Some(next) = rest.iter().position(|&most| most >= size) else { continue };
            let node = inner.children.get(step.child + 1 + next)?;
            return self.descend(level + 1, node, size).map(|found| found.1);
        }
        None
    }

    /// The hole before a place.
    #[inline]
    pub(super) fn below(&self, place: Place) -> Option<Hole> {
        let leaf = self.leaves.get(place.leaf)?;
        match place.index.checked_sub(1) {
            Some(index) => leaf.holes.get(index),
            None => self.leaves.get(leaf.below)?.holes.as_slice().last().copied(),
        }
    }

    /// The hole at a place, or the next where it is the end of its leaf.
    #[inline]
    pub(super) fn above(&self, place: Place) -> Option<Hole> {
        let leaf = self.leaves.get(place.leaf)?;
        let here = leaf.holes.get(place.index);
        here.or_else(|| self.leaves.get(leaf.above)?.holes.get(0))
    }

    /// The hole after the one at a place.
    pub(super) fn after(&self, place: Place) -> Option<Hole> {
        self.above(Place { index: place.index + 1, ..place })
    }

    /// The hole that begins at `start`.
    #[inline]
    pub(super) fn find(&self, start: u64) -> Option<(Place, Hole)> {
        let mut place = self.locate(start);
        place.index = place.index.checked_sub(1)?;
        let hole = self.leaves.get(place.leaf)?.holes.get(place.index)?;
        (hole.start == start).then_some((place, hole))
    }

    /// The hole that ends at `at`.
    pub(super) fn ending_at(&self, at: u64) -> Option<Hole> {
        let place = self.locate(at.checked_sub(1)?);
        self.below(place).filter(|below| below.end == at)
    }

    /// The hole that ends at `at` and the one that begins there, where there are both.
    pub(super) fn touching(&self, at: u64) -> Option<(Hole, Hole)> {
        let place = self.locate(at.checked_sub(1)?);
        let (below, above) = (self.below(place)?, self.above(place)?);
        (below.end == at && above.start == at).then_some((below, above))
    }

    /// Every hole from a place on.
    pub(super) fn each_from(&self, place: Place) -> impl Iterator<Item = Hole> {
        let mut next = (place.leaf, place.index);
        core::iter::from_fn(move || {
            loop {
                let leaf = self.leaves.get(next.0)?;
                if let Some(hole) = leaf.holes.get(next.1) {
                    next.1 += 1;
                    return Some(hole);
                }
                next = (leaf.above, 0);
            }
        })
    }

    /// Every hole.
    pub(super) fn each(&self) -> impl Iterator<Item = Hole> {
        let mut first = self.locate(0);
        first.index = 0;
        self.each_from(first)
    }
}

impl Tree {
    /// Gives holes to other groups.
    pub(super) fn regroup(&mut self, group: impl Fn(GroupId) -> GroupId) {
        let holes = self.leaves.iter_mut().flat_map(|leaf| leaf.holes.as_mut_slice());
        holes.for_each(|hole| hole.group = group(hole.group));
    }
}

impl Place {
    #[inline]
    fn root() -> Self {
        let last = Step { node: NO_NODE, child: 0 };
        Self { last, leaf: NO_NODE, index: 0, floor: 0, limit: u64::MAX }
    }

    /// Goes down to a child; gives which node it is.
    #[inline]
    fn enter(&mut self, node: usize, child: usize, inner: &Inner) -> usize {
        self.last = Step { node, child };
        let firsts = inner.firsts.as_slice();
        if let Some(&first) = firsts.get(child).filter(|_| child > 0) {
            self.floor = first;
        }
        if let Some(&next) = firsts.get(child + 1) {
            self.limit = next;
        }
        inner.children.get(child).unwrap_or(NO_NODE)
    }
}

#[inline]
fn visit() {
    #[cfg(test)]
    check::count();
}
