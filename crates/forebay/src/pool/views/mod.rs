//! What can be seen of a pool: figures, snapshots, the memory map. Reads under the heap's lock, and changes nothing.

pub(in crate::pool) mod memory_map;
pub(in crate::pool) mod scope;
pub(in crate::pool) mod snapshot;
pub(in crate::pool) mod statistics;
