//! Ids of pools and arenas.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

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
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool {}", self.0)
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
