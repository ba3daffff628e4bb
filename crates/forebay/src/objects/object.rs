//! An object with its bookkeeping, and the policies that rank objects.

use core::time::Duration;

/// Which idle object a pool evicts when it has one too many. Ties go to the least recently returned object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Eviction {
    /// The object returned longest ago. Returns of different threads are ordered only if one of the threads exchanged
    /// objects with the shared list in between.
    #[default]
    LeastRecentlyUsed,
    /// The object handed out least often.
    LeastFrequentlyUsed,
    /// The object created first, however often it was used.
    FirstInFirstOut,
    /// The object created first. In addition, objects of age `max_age` or more are neither handed out nor kept. Every
    /// get and every return reads the clock.
    Age {
        /// The longest lifetime of an object.
        max_age: Duration,
    },
}

impl Eviction {
    /// The rank of an object. The object with the lowest rank is evicted first.
    pub(super) fn rank<T>(self, object: &Object<T>) -> Rank {
        let first = match self {
            Self::LeastRecentlyUsed => 0,
            Self::LeastFrequentlyUsed => object.uses,
            Self::FirstInFirstOut | Self::Age { .. } => object.serial,
        };
        Rank { first, returned: object.returned }
    }

    /// Whether an object is too old to be handed out or kept.
    pub(super) fn is_expired<T>(self, object: &Object<T>, now: Duration) -> bool {
        match self {
            Self::Age { max_age } => now.saturating_sub(object.created_at) >= max_age,
            _ => false,
        }
    }

    /// Whether the policy needs the time.
    pub(super) const fn reads_clock(self) -> bool {
        matches!(self, Self::Age { .. })
    }
}

/// The order of eviction, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    first: u64,
    returned: u64,
}

/// An object and its history. Boxed, so that moving it moves only a pointer, and its address stays the same.
#[derive(Debug)]
pub(super) struct Object<T> {
    pub(super) value: T,
    /// The order of creation.
    pub(super) serial: u64,
    /// The time of creation; zero for policies that do not need it.
    pub(super) created_at: Duration,
    /// How often it was handed out.
    pub(super) uses: u64,
    /// The pool's tick at its last return.
    pub(super) returned: u64,
}
