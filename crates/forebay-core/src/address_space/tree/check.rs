//! What tests ask of a tree: whether it is whole, and how many nodes were visited.

use core::cell::Cell;

use super::Tree;

thread_local! {
    static VISITS: Cell<u64> = const { Cell::new(0) };
}

/// Counts a node that was visited.
pub(super) fn count() {
    VISITS.with(|visits| visits.set(visits.get() + 1));
}

/// How many nodes this thread has visited so far.
pub(in crate::address_space) fn visits() -> u64 {
    VISITS.with(Cell::get)
}

impl Tree {
    /// That every node is where its parent says, and its largest as large.
    pub(in crate::address_space) fn check(&self) {
        if self.leaves.is_empty() {
            // It is not in use.
            return;
        }
        self.check_node(self.root, self.height, (0, u64::MAX));
        let free = self.free_leaves.len() + self.free_inners.len();
        assert!(
            self.count_nodes(self.root, self.height) + free
                <= self.leaves.len() + self.inners.len()
        );
    }

    fn check_node(&self, node: usize, height: usize, (floor, limit): (u64, u64)) -> u64 {
        if height == 0 {
            let Some(leaf) = self.leaves.get(node) else { return 0 };
            let holes = leaf.holes.as_slice();
            assert!(self.height == 0 || !holes.is_empty());
            assert!(holes.iter().all(|hole| (floor..limit).contains(&hole.start)));
            let largest = self.largest_in_leaf(node);
            let mut others: Vec<u64> = holes.iter().map(super::Hole::size).collect();
            others.sort_unstable();
            others.pop();
            assert!(self.height == 0 || others.iter().all(|&size| size <= leaf.second));
            return largest;
        }
        let inner = &self.inners[node];
        let separators = inner.separators.as_slice();
        for (index, &child) in inner.children.as_slice().iter().enumerate() {
            let low = if index == 0 { floor } else { separators[index] };
            let high = separators.get(index + 1).copied().unwrap_or(limit);
            assert_eq!(
                inner.largest_each()[index],
                self.check_node(child, height - 1, (low, high))
            );
        }
        assert_eq!(inner.largest(), inner.largest_each().iter().copied().max().unwrap_or(0));
        inner.largest()
    }

    fn count_nodes(&self, node: usize, height: usize) -> usize {
        let children = self.inners.get(node).filter(|_| height > 0);
        let children = children.map_or(&[][..], |inner| inner.children.as_slice());
        1 + children.iter().map(|&child| self.count_nodes(child, height - 1)).sum::<usize>()
    }
}
