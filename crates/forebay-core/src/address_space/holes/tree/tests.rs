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

/// That every node is where its parent says, and its largest as large.
pub(in crate::address_space) fn check(tree: &Tree) {
    let Tree { leaves, branches } = tree;
    if leaves.list.is_empty() {
        // It is not in use.
        return;
    }
    check_node(tree, branches.root, branches.height, (0, u64::MAX));
    let free = leaves.free.len() + branches.free.len();
    let nodes = count_nodes(tree, branches.root, branches.height) + free;
    assert!(nodes <= leaves.list.len() + branches.inners.len());
}

fn check_node(tree: &Tree, node: usize, height: usize, (floor, limit): (u64, u64)) -> u64 {
    let Tree { leaves, branches } = tree;
    if height == 0 {
        let holes = leaves.holes(node);
        assert!(branches.height == 0 || !holes.is_empty());
        assert!(holes.iter().all(|hole| (floor..limit).contains(&hole.start)));
        let mut others: Vec<u64> = holes.iter().map(|hole| hole.size).collect();
        others.sort_unstable();
        let largest = others.pop().unwrap_or(0);
        let second = leaves.list[node].second;
        assert!(branches.height == 0 || others.iter().all(|&size| size <= second));
        return largest;
    }
    let inner = &branches.inners[node];
    let separators = inner.separators.as_slice();
    for (index, &child) in inner.children.as_slice().iter().enumerate() {
        let low = if index == 0 { floor } else { separators[index] };
        let high = separators.get(index + 1).copied().unwrap_or(limit);
        assert_eq!(inner.largest_each()[index], check_node(tree, child, height - 1, (low, high)));
    }
    assert_eq!(inner.largest(), inner.largest_each().iter().copied().max().unwrap_or(0));
    inner.largest()
}

fn count_nodes(tree: &Tree, node: usize, height: usize) -> usize {
    let children = tree.branches.inners.get(node).filter(|_| height > 0);
    let children = children.map_or(&[][..], |inner| inner.children.as_slice());
    1 + children.iter().map(|&child| count_nodes(tree, child, height - 1)).sum::<usize>()
}
