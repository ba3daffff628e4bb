//! Statistics of object pools and array pools.

use core::ops::AddAssign;

/// Statistics of an object pool. While other threads use the pool, the values of one call may differ by what those
/// threads did meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectStatistics {
    /// Objects handed out.
    pub gets: u64,
    /// Of these, objects that had been used before.
    pub hits: u64,
    /// Objects made by the create hook, for a get or by maintenance.
    pub creations: u64,
    /// Handles dropped, whether the pool kept the object or not.
    pub returns: u64,
    /// Objects dropped as unusable: the validate hook rejected them, they were too large, a hook panicked, or the pool
    /// was dropped.
    pub discards: u64,
    /// Objects dropped by the policy, by maintenance or by a shrink.
    pub evictions: u64,
    /// Objects that [`Pooled::detach`](super::Pooled::detach) took out of the pool.
    pub detached: u64,
    /// Panics of hooks and of objects' destructors that the pool caught.
    pub panics: u64,
    /// Currently idle objects.
    pub idle: u64,
}

impl ObjectStatistics {
    /// The fraction of gets that an idle object served, from 0 to 1; 0 before the first get.
    pub fn hit_rate(&self) -> f64 {
        share(self.hits, self.gets)
    }

    /// The fraction of creations saved, from 0 to 1: 0.9 if ten gets cost one creation.
    pub fn allocation_reduction(&self) -> f64 {
        share(self.gets.saturating_sub(self.creations), self.gets)
    }

    /// Objects currently owned by handles.
    pub fn in_use(&self) -> u64 {
        let gone = [self.discards, self.evictions, self.detached, self.idle];
        gone.iter().fold(self.creations, |left, &gone| left.saturating_sub(gone))
    }
}

#[allow(clippy::cast_precision_loss, reason = "a share of counts needs few digits")]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl AddAssign for ObjectStatistics {
    fn add_assign(&mut self, other: Self) {
        self.gets += other.gets;
        self.hits += other.hits;
        self.creations += other.creations;
        self.returns += other.returns;
        self.discards += other.discards;
        self.evictions += other.evictions;
        self.detached += other.detached;
        self.panics += other.panics;
        self.idle += other.idle;
    }
}

/// The results of [`ObjectPool::maintain`](super::ObjectPool::maintain).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Maintenance {
    /// Objects evicted because they were too old.
    pub expired: usize,
    /// Objects evicted because they went unused since the last call.
    pub unused: usize,
    /// Objects made to reach the minimum.
    pub created: usize,
}

/// Statistics of an array pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArrayStatistics {
    /// Arrays of all pooled sizes.
    pub arrays: ObjectStatistics,
    /// Total elements of all idle arrays.
    pub idle_elements: u64,
    /// Arrays made for one rental because they exceed the longest length that the pool keeps.
    pub too_long_to_keep: u64,
    /// Arrays currently rented by id.
    pub rented_by_id: usize,
}
