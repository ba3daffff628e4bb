//! An object as its pool knows it, and the policies that rank objects.

use core::time::Duration;

/// Which idle object a pool evicts when it has one too many. Ties are broken by use: the least recently returned goes
/// first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Eviction {
    /// The object that was returned longest ago. Returns of different threads are ordered as far as one of the threads
    /// exchanged objects with the shared list in between.
    #[default]
    LeastRecentlyUsed,
    /// The object that was handed out least often.
    LeastFrequentlyUsed,
    /// The object that was created first, however often it was used.
    FirstInFirstOut,
    /// The object that was created first. In addition, an object that was created `max_age` ago or earlier is neither
    /// handed out nor kept. Every get and every return reads the clock.
    Age {
        /// How long an object may live.
        max_age: Duration,
    },
}

impl Eviction {
    /// The first part of an object's rank. The object with the lowest rank is evicted first.
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

/// An object and its history. Boxed, so that an object of any size moves by its pointer and stays where it is.
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
