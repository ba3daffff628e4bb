//! Read-only views of a pool: statistics, snapshots, the memory map and scopes. They read under the heap lock and
//! change nothing, except that a scope registers its peak.

pub(in crate::pool) mod memory_map;
pub(in crate::pool) mod scope;
pub(in crate::pool) mod snapshot;
pub(in crate::pool) mod statistics;
