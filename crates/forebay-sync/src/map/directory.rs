//! The directory: which pools of the process have slots in a leaf, so that the owner of an address is found without
//! asking every pool. Pools that allocate segments may share a leaf. A leaf stays listed until its map is dropped.

use std::collections::BTreeSet;

use forebay_core::Address;

use super::LEAF;
use crate::fork::ForkSafeMutex;

/// Leaves, each with the number of a pool that has slots there.
static LEAVES: ForkSafeMutex<BTreeSet<(u64, u64)>> = ForkSafeMutex::new(BTreeSet::new());

/// Lists a leaf, before its slots can be found.
pub(super) fn add(leaf: u64, owner: u64) {
    LEAVES.lock().insert((leaf, owner));
}

/// Removes the leaves of a map that is being dropped.
pub(super) fn remove(leaves: impl Iterator<Item = u64>, owner: u64) {
    let mut listed = LEAVES.lock();
    leaves.for_each(|leaf| _ = listed.remove(&(leaf, owner)));
}

/// The numbers of the pools that have, or had, memory in the leaf of `address`, lowest first.
pub fn owners_near(address: Address) -> Vec<u64> {
    let leaf = address.get() >> LEAF.log2();
    LEAVES.lock().range((leaf, 0)..=(leaf, u64::MAX)).map(|listed| listed.1).collect()
}
