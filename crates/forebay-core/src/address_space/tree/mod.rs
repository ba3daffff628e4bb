//! Holes in the order of their addresses, in a tree that knows the largest of every part.
//!
//! ```text
//!   inner               first of each child, largest hole of each child
//!                  ┌──────────────────┬──────────────────┐
//!   leaves      [ .. ... . ]  <->  [ . .... ]  <->  [ .. . ..... ]      up to 64 holes each
//! ```
//!
//! The lowest hole of a size is found by going down to the first child whose largest is large
//! enough; the neighbours of an address by going down to the last child that begins below it. Either
//! looks at one node of each level, and a pool of a thousand holes has two levels.
//!
//! A request that may use the holes of some groups only scans the subtrees whose largest hole is large
//! enough, from the lowest address up.

mod change;
#[cfg(test)]
pub(super) mod check;
mod fast_path;
mod node;

use super::groups::GroupId;
pub(super) use fast_path::FastAdd;
use node::{Inner, Leaf, NO_NODE, find_index};

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

/// One step on the path from the root to a leaf: an inner node and the index of the child taken.
#[derive(Clone, Copy, Debug)]
struct PathStep {
    node: usize,
    child: usize,
}

/// A position among the holes: a leaf and an index into it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    /// The last step on the path to its leaf. The earlier steps are recomputed in the rare case that
    /// they are needed.
    last: PathStep,
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
    /// The root node: a leaf if `height` is 0.
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
    pub(super) fn largest(&self) -> u64 {
        match self.inners.get(self.root).filter(|_| self.height > 0) {
            Some(inner) => inner.largest(),
            None => self.largest_in_leaf(self.root),
        }
    }

    fn largest_in_leaf(&self, leaf: usize) -> u64 {
        let holes = self.leaves.get(leaf).map_or(&[][..], |leaf| leaf.holes.as_slice());
        holes.iter().map(Hole::size).max().unwrap_or(0)
    }

    /// The cursor right behind the last hole that begins at or below `at`.
    pub(super) fn locate(&self, at: u64) -> Cursor {
        let mut cursor = self.leaf_at(at);
        visit();
        cursor.index = self.leaves.get(cursor.leaf).map_or(0, |leaf| leaf.count_up_to(at));
        cursor
    }

    /// The start of the leaf in which a hole that begins at `at` is.
    fn leaf_at(&self, at: u64) -> Cursor {
        let mut cursor = Cursor { leaf: self.root, ..Cursor::root() };
        for _ in 0..self.height {
            visit();
            let Some(inner) = self.inners.get(cursor.leaf) else { break };
            cursor.leaf = cursor.step_into(cursor.leaf, inner.child_at(at), inner);
        }
        cursor
    }

    /// The lowest hole that has `size` bytes.
    pub(super) fn lowest(&self, size: u64) -> Option<(Cursor, Hole)> {
        self.descend(0, self.root, size)
    }

    /// Descends from a node on `level` to the lowest hole of `size` bytes under it. Unless the node is the
    /// root, the bounds of the cursor are those of the whole tree.
    fn descend(&self, level: usize, mut node: usize, size: u64) -> Option<(Cursor, Hole)> {
        let mut cursor = Cursor::root();
        for _ in level..self.height {
            visit();
            let inner = self.inners.get(node)?;
            let child = find_index(inner.largest_each(), |&largest| largest >= size)?;
            node = cursor.step_into(node, child, inner);
        }
        visit();
        cursor.leaf = node;
        let holes = self.leaves.get(node)?.holes.as_slice();
        cursor.index = find_index(holes, |hole| hole.size() >= size)?;
        Some((cursor, *holes.get(cursor.index)?))
    }

    /// The lowest hole that has `size` bytes and whose group is right.
    #[inline]
    pub(super) fn lowest_of(
        &self,
        size: u64,
        is_right: impl Fn(GroupId) -> bool,
    ) -> Option<(Cursor, Hole)> {
        let mut found = None;
        self.scan(Cursor::root(), (0, self.root), size, &mut |cursor, hole| {
            let is_right = is_right(hole.group);
            if is_right {
                found = Some((cursor, *hole));
            }
            is_right
        });
        found
    }

    /// Calls `is_enough` for each hole that has `size` bytes, the lowest first, until it returns `true`.
    #[inline]
    pub(super) fn each_of_size(&self, size: u64, mut is_enough: impl FnMut(&Hole) -> bool) {
        self.scan(Cursor::root(), (0, self.root), size, &mut |_, hole| is_enough(hole));
    }

    /// The same for the holes under a node on a level.
    fn scan(
        &self,
        mut cursor: Cursor,
        (level, node): (usize, usize),
        size: u64,
        is_enough: &mut impl FnMut(Cursor, &Hole) -> bool,
    ) -> bool {
        visit();
        if level == self.height {
            cursor.leaf = node;
            let holes = self.leaves.get(node).map_or(&[][..], |leaf| leaf.holes.as_slice());
            return holes.iter().enumerate().any(|(index, hole)| {
                cursor.index = index;
                hole.size() >= size && is_enough(cursor, hole)
            });
        }
        let Some(inner) = self.inners.get(node) else { return false };
        let children =
            inner.largest_each().iter().enumerate().filter(|&(_, &largest)| largest >= size);
        for (child, _) in children {
            let mut cursor = cursor;
            let below = cursor.step_into(node, child, inner);
            if self.scan(cursor, (level + 1, below), size, is_enough) {
                return true;
            }
        }
        false
    }

    /// The path down to the leaf of a cursor.
    fn path(&self, cursor: Cursor) -> Vec<PathStep> {
        let mut node = self.root;
        let steps = (0..self.height).map_while(|_| {
            visit();
            let inner = self.inners.get(node)?;
            let child = inner.child_at(cursor.floor);
            let step = PathStep { node, child };
            node = inner.children.get(child)?;
            Some(step)
        });
        steps.collect()
    }

    /// The lowest hole that begins at or above `at` and has `size` bytes, which are more than none.
    pub(super) fn lowest_from(&self, at: u64, size: u64) -> Option<Hole> {
        let cursor = self.locate(at.saturating_sub(1));
        let holes = self.leaves.get(cursor.leaf)?.holes.as_slice();
        let fits = |hole: &&Hole| hole.start >= at && hole.size() >= size;
        // If `at` is 0, a hole that begins there lies right before the cursor.
        let index = cursor.index.saturating_sub(usize::from(at == 0));
        if let Some(hole) = holes.get(index..)?.iter().find(fits) {
            return Some(*hole);
        }
        for (level, step) in self.path(cursor).into_iter().enumerate().rev() {
            visit();
            let inner = self.inners.get(step.node)?;
            let rest = inner.largest_each().get(step.child + 1..)?;
            let Some(next) = rest.iter().position(|&largest| largest >= size) else { continue };
            let node = inner.children.get(step.child + 1 + next)?;
            return self.descend(level + 1, node, size).map(|found| found.1);
        }
        None
    }

    /// The hole before a cursor.
    #[inline]
    pub(super) fn below(&self, cursor: Cursor) -> Option<Hole> {
        let leaf = self.leaves.get(cursor.leaf)?;
        match cursor.index.checked_sub(1) {
            Some(index) => leaf.holes.get(index),
            None => self.leaves.get(leaf.below)?.holes.as_slice().last().copied(),
        }
    }

    /// The hole at a cursor, or the next where it is the end of its leaf.
    #[inline]
    pub(super) fn above(&self, cursor: Cursor) -> Option<Hole> {
        let leaf = self.leaves.get(cursor.leaf)?;
        let here = leaf.holes.get(cursor.index);
        here.or_else(|| self.leaves.get(leaf.above)?.holes.get(0))
    }

    /// The hole after the one at a cursor.
    pub(super) fn after(&self, cursor: Cursor) -> Option<Hole> {
        self.above(Cursor { index: cursor.index + 1, ..cursor })
    }

    /// The hole that begins at `start`.
    #[inline]
    pub(super) fn find(&self, start: u64) -> Option<(Cursor, Hole)> {
        let mut cursor = self.locate(start);
        cursor.index = cursor.index.checked_sub(1)?;
        let hole = self.leaves.get(cursor.leaf)?.holes.get(cursor.index)?;
        (hole.start == start).then_some((cursor, hole))
    }

    /// The hole that ends at `at`.
    pub(super) fn ending_at(&self, at: u64) -> Option<Hole> {
        let cursor = self.locate(at.checked_sub(1)?);
        self.below(cursor).filter(|below| below.end == at)
    }

    /// The hole that ends at `at` and the one that begins there, where there are both.
    pub(super) fn touching(&self, at: u64) -> Option<(Hole, Hole)> {
        let cursor = self.locate(at.checked_sub(1)?);
        let (below, above) = (self.below(cursor)?, self.above(cursor)?);
        (below.end == at && above.start == at).then_some((below, above))
    }

    /// Every hole from a cursor on.
    pub(super) fn each_from(&self, cursor: Cursor) -> impl Iterator<Item = Hole> {
        let mut next = (cursor.leaf, cursor.index);
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
    /// Moves every hole to the group that `group` returns for its own.
    pub(super) fn regroup(&mut self, group: impl Fn(GroupId) -> GroupId) {
        let holes = self.leaves.iter_mut().flat_map(|leaf| leaf.holes.as_mut_slice());
        holes.for_each(|hole| hole.group = group(hole.group));
    }
}

impl Cursor {
    #[inline]
    fn root() -> Self {
        let last = PathStep { node: NO_NODE, child: 0 };
        Self { last, leaf: NO_NODE, index: 0, floor: 0, limit: u64::MAX }
    }

    /// Descends to a child and returns its node.
    #[inline]
    fn step_into(&mut self, node: usize, child: usize, inner: &Inner) -> usize {
        self.last = PathStep { node, child };
        let separators = inner.separators.as_slice();
        if let Some(&first) = separators.get(child).filter(|_| child > 0) {
            self.floor = first;
        }
        if let Some(&next) = separators.get(child + 1) {
            self.limit = next;
        }
        inner.children.get(child).unwrap_or(NO_NODE)
    }
}

#[inline]
pub(super) fn visit() {
    #[cfg(test)]
    check::count();
}
