//! Ids of pools and arenas.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;

use crate::config::PoolName;
use crate::sync::fork::ForkSafeMutex;

/// The names of the pools that have one.
static NAMES: ForkSafeMutex<BTreeMap<PoolId, PoolName>> = ForkSafeMutex::new(BTreeMap::new());

/// The number of a pool, unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub(crate) u64);

impl PoolId {
    /// A number not used before in this process.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The number itself.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Shows `name` with the number until [`forget_name`](Self::forget_name).
    pub(crate) fn remember_name(self, name: &PoolName) {
        if name.get().is_some() {
            NAMES.lock().insert(self, name.clone());
        }
    }

    pub(crate) fn forget_name(self) {
        NAMES.lock().remove(&self);
    }
}

/// With the name, while the pool lives: "pool 3 (kv cache)".
impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool {}", self.0)?;
        let name = NAMES.lock().get(self).cloned().unwrap_or_default();
        name.get().map_or(Ok(()), |name| write!(f, " ({name})"))
    }
}

/// The number of an arena. No two arenas of a process ever have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArenaId(pub u64);

impl ArenaId {
    /// A number that no arena has had.
    pub(crate) fn fresh() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        // Only the number matters; no other memory is ordered by it.
        Self(LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
    }
}

impl fmt::Display for ArenaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "arena {}", self.0)
    }
}
