//! Read-only views of a pool: statistics, snapshots, the memory map and scopes. They read under the heap lock and
//! change nothing that a request sees: counts move from the thread caches to the heap, and a scope registers its peak.

pub(in crate::pool) mod memory_map;
pub(in crate::pool) mod scope;
pub(in crate::pool) mod snapshot;
pub(in crate::pool) mod statistics;
