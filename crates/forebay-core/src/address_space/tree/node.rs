//! The nodes of a tree of holes: short arrays that are searched from their start.

use super::Hole;

/// The most holes a leaf has. Most programs have fewer holes than this at a time, and a leaf alone needs no
/// note of its largest.
pub(super) const LEAF: usize = 64;

/// The most children an inner node has. A pool of two thousand holes has one inner node.
pub(super) const FAN: usize = 64;

/// No node.
pub(super) const NO_NODE: usize = usize::MAX;

/// At most `N` items in order, in place.
#[derive(Clone, Debug)]
pub(super) struct Row<T, const N: usize> {
    len: usize,
    items: [T; N],
}

impl<T: Copy + Default, const N: usize> Default for Row<T, N> {
    fn default() -> Self {
        Self { len: 0, items: [T::default(); N] }
    }
}

impl<T: Copy + Default, const N: usize> Row<T, N> {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.len >= N
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[T] {
        // Never more than `N`; said here, it costs one comparison less.
        self.items.get(..self.len.min(N)).unwrap_or(&[])
    }

    #[inline]
    pub(super) fn as_mut_slice(&mut self) -> &mut [T] {
        self.items.get_mut(..self.len.min(N)).unwrap_or_default()
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<T> {
        self.as_slice().get(index).copied()
    }

    #[inline]
    pub(super) fn set(&mut self, index: usize, item: T) {
        if let Some(old) = self.as_mut_slice().get_mut(index) {
            *old = item;
        }
    }

    /// Puts an item in. Whoever calls this has seen that there is room.
    #[inline]
    pub(super) fn insert(&mut self, index: usize, item: T) {
        debug_assert!(index <= self.len && !self.is_full());
        let Some(tail) = self.items.get_mut(index..self.len + 1) else { return };
        let behind = tail.len() - 1;
        tail.copy_within(..behind, 1);
        if let Some(first) = tail.first_mut() {
            *first = item;
        }
        self.len += 1;
    }

    #[inline]
    pub(super) fn remove(&mut self, index: usize) {
        let Some(tail) = self.items.get_mut(index..self.len).filter(|tail| !tail.is_empty()) else {
            return;
        };
        tail.copy_within(1.., 0);
        self.len -= 1;
    }

    /// Takes the upper half out.
    pub(super) fn split(&mut self) -> Self {
        let mut upper = Self::default();
        let middle = self.len / 2;
        upper.append(&Self { len: self.len - middle, items: rotated(&self.items, middle) });
        self.len = middle;
        upper
    }

    /// Puts all of another behind. Whoever calls this has seen that there is room.
    pub(super) fn append(&mut self, other: &Self) {
        debug_assert!(self.len + other.len <= N);
        let into = self.items.get_mut(self.len..).unwrap_or_default();
        into.iter_mut().zip(other.as_slice()).for_each(|(into, item)| *into = *item);
        self.len = (self.len + other.len).min(N);
    }
}

fn rotated<T: Copy, const N: usize>(items: &[T; N], by: usize) -> [T; N] {
    let mut items = *items;
    items.rotate_left(by.min(N));
    items
}

/// The first item that is right. Looked for in fours, which the compiler writes out without a loop.
#[inline(always)]
pub(super) fn first<T>(items: &[T], is_right: impl Fn(&T) -> bool) -> Option<usize> {
    let (fours, rest) = items.as_chunks::<4>();
    for (number, four) in fours.iter().enumerate() {
        if let Some(index) = four.iter().position(&is_right) {
            return Some(number * 4 + index);
        }
    }
    rest.iter().position(is_right).map(|index| fours.len() * 4 + index)
}

/// Holes that lie side by side, in order.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub(super) holes: Row<Hole, LEAF>,
    /// The leaf below and the leaf above, or [`NO_NODE`].
    pub(super) below: usize,
    pub(super) above: usize,
    /// No hole but the largest has more than this many bytes. Where the largest gets shorter, which is
    /// what a request does as a rule, it tells whether it is still the largest.
    pub(super) second: u64,
}

impl Default for Leaf {
    fn default() -> Self {
        Self { holes: Row::default(), below: NO_NODE, above: NO_NODE, second: u64::MAX }
    }
}

impl Leaf {
    /// How many holes begin at or below `at`.
    #[inline]
    pub(super) fn count_up_to(&self, at: u64) -> usize {
        self.holes.as_slice().partition_point(|hole| hole.start <= at)
    }

    /// Finds out how large the largest is.
    pub(super) fn measure(&mut self) -> u64 {
        let sizes = self.holes.as_slice().iter().map(Hole::size);
        let (most, second) =
            sizes.fold((0, 0), |(most, second), size| (size.max(most), size.min(most).max(second)));
        self.second = second;
        most
    }
}

/// Nodes that lie side by side, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Inner {
    /// No hole of a child begins below this, and none of the child before it begins at or above.
    /// What the first child has here is not looked at.
    pub(super) firsts: Row<u64, FAN>,
    /// How large the largest hole of each child is.
    mosts: Row<u64, FAN>,
    pub(super) children: Row<usize, FAN>,
    /// The largest of `mosts`.
    most: u64,
}

impl Inner {
    pub(super) fn insert(&mut self, index: usize, first: u64, most: u64, child: usize) {
        self.firsts.insert(index, first);
        self.mosts.insert(index, most);
        self.children.insert(index, child);
        self.most = self.most.max(most);
    }

    pub(super) fn remove(&mut self, index: usize) {
        self.firsts.remove(index);
        self.mosts.remove(index);
        self.children.remove(index);
        self.measure();
    }

    pub(super) fn split(&mut self) -> Self {
        let mut upper = Self {
            firsts: self.firsts.split(),
            mosts: self.mosts.split(),
            children: self.children.split(),
            most: 0,
        };
        self.measure();
        upper.measure();
        upper
    }

    /// Puts the children of the next node, whose holes begin at `first` or above, behind its own.
    pub(super) fn append(&mut self, first: u64, next: &Self) {
        let joint = self.firsts.len();
        self.firsts.append(&next.firsts);
        self.firsts.set(joint, first);
        self.mosts.append(&next.mosts);
        self.children.append(&next.children);
        self.most = self.most.max(next.most);
    }

    /// The child in which a hole that begins at `at` is.
    #[inline]
    pub(super) fn child_at(&self, at: u64) -> usize {
        let others = self.firsts.as_slice().get(1..).unwrap_or(&[]);
        others.partition_point(|&first| first <= at)
    }

    /// How large the largest hole under it is.
    #[inline]
    pub(super) fn most(&self) -> u64 {
        self.most
    }

    #[inline]
    pub(super) fn mosts(&self) -> &[u64] {
        self.mosts.as_slice()
    }

    /// Notes how large the largest of a child is. Whether that changes the largest of all.
    #[inline]
    pub(super) fn set_most(&mut self, child: usize, most: u64) -> bool {
        let before = self.most;
        let old = self.mosts.get(child).unwrap_or(0);
        self.mosts.set(child, most);
        if most >= before {
            self.most = most;
        } else if old == before {
            self.measure();
        }
        self.most != before
    }

    fn measure(&mut self) {
        self.most = self.mosts.as_slice().iter().copied().max().unwrap_or(0);
    }
}
