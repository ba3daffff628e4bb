//! The nodes of a tree of holes: short arrays that are searched from their start.

use super::Hole;

/// The most holes in a leaf. Most programs have fewer holes than this at a time, and a tree that is one leaf
/// need not record its largest hole.
pub(super) const LEAF_CAPACITY: usize = 64;

/// The most children of an inner node. A pool of two thousand holes has one inner node.
pub(super) const FANOUT: usize = 64;

/// No node.
pub(super) const NO_NODE: usize = usize::MAX;

/// An inline vector of at most `N` items.
#[derive(Clone, Debug)]
pub(super) struct FixedVec<T, const N: usize> {
    len: usize,
    items: [T; N],
}

impl<T: Copy + Default, const N: usize> Default for FixedVec<T, N> {
    fn default() -> Self {
        Self { len: 0, items: [T::default(); N] }
    }
}

impl<T: Copy + Default, const N: usize> FixedVec<T, N> {
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

    /// Inserts an item. The caller has checked that there is room.
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

    /// Splits off the upper half.
    pub(super) fn split(&mut self) -> Self {
        let middle = self.len / 2;
        let mut upper = Self { len: self.len - middle, items: self.items };
        upper.items.rotate_left(middle.min(N));
        self.len = middle;
        upper
    }

    /// Appends all items of `other`. The caller has checked that there is room.
    pub(super) fn append(&mut self, other: &Self) {
        debug_assert!(self.len + other.len <= N);
        let into = self.items.get_mut(self.len..).unwrap_or_default();
        into.iter_mut().zip(other.as_slice()).for_each(|(into, item)| *into = *item);
        self.len = (self.len + other.len).min(N);
    }
}

/// The index of the first item that `is_right` accepts. Searches four at a time, which the compiler unrolls.
#[inline(always)]
pub(super) fn find_index<T>(items: &[T], is_right: impl Fn(&T) -> bool) -> Option<usize> {
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
    pub(super) holes: FixedVec<Hole, LEAF_CAPACITY>,
    /// The leaf below and the leaf above, or [`NO_NODE`].
    pub(super) below: usize,
    pub(super) above: usize,
    /// Upper bound on the size of every hole but the largest. Most requests shrink the largest hole, and
    /// this tells without a scan whether it is still the largest.
    pub(super) second: u64,
}

impl Default for Leaf {
    fn default() -> Self {
        Self { holes: FixedVec::default(), below: NO_NODE, above: NO_NODE, second: u64::MAX }
    }
}

impl Leaf {
    /// How many holes begin at or below `at`.
    #[inline]
    pub(super) fn count_up_to(&self, at: u64) -> usize {
        self.holes.as_slice().partition_point(|hole| hole.start <= at)
    }

    /// Recomputes the size of the largest hole and returns it.
    pub(super) fn recompute_largest(&mut self) -> u64 {
        let sizes = self.holes.as_slice().iter().map(|hole| hole.size);
        let (largest, second) = sizes.fold((0, 0), |(largest, second), size| {
            (size.max(largest), size.min(largest).max(second))
        });
        self.second = second;
        largest
    }
}

/// Nodes that lie side by side, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Inner {
    /// Every hole of a child begins at its separator or above, and every hole of the child before it below.
    /// The separator of the first child is ignored.
    pub(super) separators: FixedVec<u64, FANOUT>,
    /// How large the largest hole of each child is.
    largest_each: FixedVec<u64, FANOUT>,
    pub(super) children: FixedVec<usize, FANOUT>,
    /// The largest of `largest_each`.
    largest: u64,
}

impl Inner {
    pub(super) fn insert(&mut self, index: usize, first: u64, largest: u64, child: usize) {
        self.separators.insert(index, first);
        self.largest_each.insert(index, largest);
        self.children.insert(index, child);
        self.largest = self.largest.max(largest);
    }

    pub(super) fn remove(&mut self, index: usize) {
        self.separators.remove(index);
        self.largest_each.remove(index);
        self.children.remove(index);
        self.recompute_largest();
    }

    pub(super) fn split(&mut self) -> Self {
        let mut upper = Self {
            separators: self.separators.split(),
            largest_each: self.largest_each.split(),
            children: self.children.split(),
            largest: 0,
        };
        self.recompute_largest();
        upper.recompute_largest();
        upper
    }

    /// Appends the children of the next node, whose holes begin at `first` or above.
    pub(super) fn append(&mut self, first: u64, next: &Self) {
        let joint = self.separators.len();
        self.separators.append(&next.separators);
        self.separators.set(joint, first);
        self.largest_each.append(&next.largest_each);
        self.children.append(&next.children);
        self.largest = self.largest.max(next.largest);
    }

    /// The child in which a hole that begins at `at` is.
    #[inline]
    pub(super) fn child_at(&self, at: u64) -> usize {
        let others = self.separators.as_slice().get(1..).unwrap_or(&[]);
        others.partition_point(|&first| first <= at)
    }

    /// How large the largest hole under it is.
    #[inline]
    pub(super) fn largest(&self) -> u64 {
        self.largest
    }

    #[inline]
    pub(super) fn largest_each(&self) -> &[u64] {
        self.largest_each.as_slice()
    }

    /// Sets the largest size of a child. Returns whether that changes the largest of this node.
    #[inline]
    pub(super) fn set_largest(&mut self, child: usize, largest: u64) -> bool {
        let before = self.largest;
        let old = self.largest_each.get(child).unwrap_or(0);
        self.largest_each.set(child, largest);
        if largest >= before {
            self.largest = largest;
        } else if old == before {
            self.recompute_largest();
        }
        self.largest != before
    }

    fn recompute_largest(&mut self) {
        self.largest = self.largest_each.as_slice().iter().copied().max().unwrap_or(0);
    }
}
