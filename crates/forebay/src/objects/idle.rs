//! The idle objects shared by all threads, in eviction order. Guarded by the pool's mutex.

use core::time::Duration;
use std::collections::BTreeMap;

use super::cache::ObjectCache;
use super::object::{Eviction, Object, Rank};

/// Idle objects and the reservations of thread caches. On its own cache lines, like the lock before it.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct IdleObjects<T> {
    policy: Eviction,
    /// The most idle objects, including those in thread caches.
    most: usize,
    /// The most to reserve for one thread.
    per_thread: usize,
    /// Evicted from the front, handed out from the back. The arrival number makes keys unique, and orders objects that
    /// one thread returned during one tick.
    ordered: BTreeMap<(Rank, u64), Box<Object<T>>>,
    arrivals: u64,
    /// Total capacity of all thread caches. Together with the objects here, at most `most`.
    reserved: usize,
    /// The lowest number of objects here since the last maintenance.
    low_water: usize,
    /// The pool was dropped: nothing more is kept.
    closed: bool,
}

impl<T> IdleObjects<T> {
    pub(super) fn new(policy: Eviction, most: usize, per_thread: usize) -> Self {
        Self {
            policy,
            most,
            per_thread,
            ordered: BTreeMap::new(),
            arrivals: 0,
            reserved: 0,
            low_water: 0,
            closed: false,
        }
    }

    /// The number of objects here, excluding those in thread caches.
    pub(super) fn len(&self) -> usize {
        self.ordered.len()
    }

    /// Whether the pool was dropped.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// The number of further objects that fit here.
    fn room(&self) -> usize {
        self.most.saturating_sub(self.reserved).saturating_sub(self.ordered.len())
    }

    fn insert(&mut self, object: Box<Object<T>>) {
        self.arrivals = self.arrivals.wrapping_add(1);
        self.ordered.insert((self.policy.rank(&object), self.arrivals), object);
    }

    fn evict_first(&mut self) -> Option<Box<Object<T>>> {
        let (_, object) = self.ordered.pop_first()?;
        self.low_water = self.low_water.min(self.ordered.len());
        Some(object)
    }

    /// Takes the object that would be evicted last.
    pub(super) fn take(&mut self) -> Option<Box<Object<T>>> {
        let (_, object) = self.ordered.pop_last()?;
        self.low_water = self.low_water.min(self.ordered.len());
        Some(object)
    }

    /// Fills half of a cache that ran empty.
    pub(super) fn refill(&mut self, cache: &mut ObjectCache<T>) {
        self.reserve_for(cache);
        let count = (cache.reserved() / 2).saturating_sub(cache.len());
        let mut moved: Vec<_> = core::iter::from_fn(|| self.take()).take(count).collect();
        // The best object must come off the stack first.
        moved.reverse();
        cache.fill(moved);
    }

    /// Tops up a cache's reservation as far as there is room. Half of the maximum stays shared, so that objects find
    /// room while caches are empty.
    fn reserve_for(&mut self, cache: &mut ObjectCache<T>) {
        if self.closed {
            return;
        }
        let more = self.per_thread.saturating_sub(cache.reserved());
        let more = more.min((self.most / 2).saturating_sub(self.reserved)).min(self.room());
        if more > 0 {
            self.reserved += more;
            cache.reserve(more);
        }
    }

    /// Keeps a returned object, and returns the object evicted for it, which may be the same. `cache` is the calling
    /// thread's, if it has one.
    pub(super) fn put(
        &mut self,
        cache: Option<&mut ObjectCache<T>>,
        object: Box<Object<T>>,
    ) -> Option<Box<Object<T>>> {
        if self.closed {
            return Some(object);
        }
        let cache = cache.and_then(|cache| {
            self.reserve_for(cache);
            (cache.reserved() > 0).then_some(cache)
        });
        let Some(cache) = cache else {
            let is_full = self.room() == 0;
            self.insert(object);
            return if is_full { self.evict_first() } else { None };
        };
        cache.push(object);
        if cache.len() <= cache.reserved() {
            return None;
        }
        let half = (cache.reserved() / 2).max(1).min(self.room());
        if half > 0 {
            cache.take_oldest(half).for_each(|object| self.insert(object));
            return None;
        }
        self.evict_here_or_in(cache)
    }

    /// Evicts the lowest-ranked object of this list and a cache that holds one too many.
    fn evict_here_or_in(&mut self, cache: &mut ObjectCache<T>) -> Option<Box<Object<T>>> {
        let (position, cached) = cache.lowest(self.policy)?;
        let shared = self.ordered.first_key_value().map(|(&(rank, _), _)| rank);
        if shared.is_none_or(|shared| cached < shared) {
            return cache.take_at(position);
        }
        let evicted = self.evict_first();
        cache.take_oldest(1).for_each(|object| self.insert(object));
        evicted
    }

    /// Keeps a new object if there is room for it.
    pub(super) fn add(&mut self, object: Box<Object<T>>) -> Result<(), Box<Object<T>>> {
        if self.closed || self.room() == 0 {
            return Err(object);
        }
        self.insert(object);
        Ok(())
    }

    /// Takes over all objects and the reservation of a thread cache.
    pub(super) fn absorb(&mut self, cache: &mut ObjectCache<T>) {
        let (objects, reserved) = cache.clear();
        self.reserved = self.reserved.saturating_sub(reserved);
        objects.into_iter().for_each(|object| self.insert(object));
    }

    /// Evicts every object that is too old at `now`.
    pub(super) fn expire(&mut self, now: Duration) -> Vec<Box<Object<T>>> {
        let policy = self.policy;
        if !policy.reads_clock() {
            return Vec::new();
        }
        let expired = self.ordered.extract_if(.., |_, object| policy.is_expired(object, now));
        expired.map(|(_, object)| object).collect()
    }

    /// Evicts until `keep` objects are left.
    pub(super) fn shrink_to(&mut self, keep: usize) -> Vec<Box<Object<T>>> {
        let count = self.ordered.len().saturating_sub(keep);
        core::iter::from_fn(|| self.evict_first()).take(count).collect()
    }

    /// Evicts half of the objects that stayed here since the last call, but leaves at least `least`.
    pub(super) fn evict_unused(&mut self, least: usize) -> Vec<Box<Object<T>>> {
        let unused = self.low_water.min(self.ordered.len()).div_ceil(2);
        let keep = self.ordered.len().saturating_sub(unused).max(least);
        let evicted = self.shrink_to(keep);
        self.low_water = self.ordered.len();
        evicted
    }

    /// Closes the pool: keeps nothing from now on.
    pub(super) fn close(&mut self) -> Vec<Box<Object<T>>> {
        self.closed = true;
        self.shrink_to(0)
    }
}
