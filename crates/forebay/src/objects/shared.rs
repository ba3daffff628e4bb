//! The state of one object pool, and the implementation of its calls.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Mutex;

use super::cache::ObjectCache;
use super::error::ObjectError;
use super::hooks::Hooks;
use super::idle::IdleObjects;
use super::object::{Eviction, Object};
use super::statistics::{Maintenance, ObjectStatistics};
use crate::callback::Callbacks;
use crate::sync::fork::ForkGeneration;
use crate::sync::gates::Gates;
use crate::sync::thread_slot;
use crate::sync::tracked::{Guard, lock};

/// How many objects a pool keeps, and by which policy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) max_idle: usize,
    pub(super) min_idle: usize,
    /// The most that one thread may cache.
    pub(super) per_thread: usize,
    pub(super) eviction: Eviction,
}

/// Why an object is dropped.
#[derive(Clone, Copy, Debug)]
enum Because {
    /// It cannot be reused.
    Unusable,
    /// The policy chose it.
    Evicted,
}

/// Counters of calls that bypass the thread caches, which have their own. On separate cache lines, so that these calls
/// do not slow down others.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counts {
    /// Advanced under the lock whenever a thread takes from or adds to the shared list: this orders returns of
    /// different threads.
    tick: AtomicU64,
    creations: AtomicU64,
    /// Objects created for a get.
    misses: AtomicU64,
    /// Objects taken from the shared list.
    taken: AtomicU64,
    /// Objects taken but unfit to be handed out.
    refused: AtomicU64,
    /// Returns that bypassed the thread cache.
    returns: AtomicU64,
    discards: AtomicU64,
    evictions: AtomicU64,
    detached: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// One object pool.
pub(super) struct Shared<T> {
    /// A thread that visits another's cache must hold the lock of `idle`.
    caches: Gates<ObjectCache<T>>,
    idle: Mutex<IdleObjects<T>>,
    hooks: Hooks<T>,
    limits: Limits,
    counts: Counts,
    callbacks: Callbacks,
    pub(super) fork_generation: ForkGeneration,
}

impl<T: Send + 'static> Shared<T> {
    pub(super) fn new(hooks: Hooks<T>, limits: Limits) -> Self {
        let idle = IdleObjects::new(limits.eviction, limits.max_idle, limits.per_thread);
        Self {
            caches: Gates::of_threads(),
            idle: Mutex::new(idle),
            hooks,
            limits,
            counts: Counts::default(),
            callbacks: Callbacks::default(),
            fork_generation: ForkGeneration::here(),
        }
    }

    /// Locks the shared list. The caller has already checked for a forked child.
    fn idle(&self) -> Guard<'_, IdleObjects<T>> {
        lock(&self.idle)
    }

    /// Calls `work` with this thread's cache. Does nothing and returns `None` if a visitor is there, or if no thread
    /// slot is left. `work` must not call code of the program.
    #[inline(always)]
    fn with_own_cache<R>(&self, work: impl FnOnce(&mut ObjectCache<T>) -> R) -> Option<R> {
        let gate = self.caches.get_or_make(thread_slot::current()?, ObjectCache::default)?;
        // SAFETY: the gate belongs to this thread by its thread slot, and `work` enters no gate: all closures passed in
        // here are of this file, and call cache and list only.
        if let Some(mut passed) = unsafe { gate.pass() } {
            return Some(work(passed.data()));
        }
        // SAFETY: as above.
        unsafe { gate.enter(work) }
    }

    /// The time, if the policy needs it. If the clock fails, nothing is too old.
    fn now(&self) -> Duration {
        if !self.limits.eviction.reads_clock() {
            return Duration::ZERO;
        }
        self.callbacks.call(|| (self.hooks.clock)()).unwrap_or_default()
    }

    /// Advances the tick; the caller holds the lock.
    fn advance(&self) -> u64 {
        let tick = self.counts.tick.load(Ordering::Relaxed).wrapping_add(1);
        self.counts.tick.store(tick, Ordering::Relaxed);
        tick
    }

    /// Takes a usable idle object, or creates one.
    #[inline]
    pub(super) fn get(&self) -> Result<Box<Object<T>>, ObjectError> {
        while let Some(object) = self.take_idle() {
            if let Some(mut object) = self.check(object) {
                object.uses = object.uses.wrapping_add(1);
                return Ok(object);
            }
        }
        let mut object = self.create()?;
        object.uses = 1;
        count(&self.counts.misses);
        Ok(object)
    }

    #[inline(always)]
    fn take_idle(&self) -> Option<Box<Object<T>>> {
        match self.with_own_cache(ObjectCache::take) {
            Some(Some(object)) => Some(object),
            _ => self.take_shared(),
        }
    }

    #[cold]
    #[inline(never)]
    fn take_shared(&self) -> Option<Box<Object<T>>> {
        let mut idle = self.idle();
        // Not empty if a visitor kept us out of it before.
        if let Some(object) = self.with_own_cache(ObjectCache::take).flatten() {
            return Some(object);
        }
        let object = idle.take()?;
        self.advance();
        self.with_own_cache(|cache| idle.refill(cache));
        count(&self.counts.taken);
        Some(object)
    }

    /// Returns the object if it may be handed out, and drops it otherwise.
    #[inline(always)]
    fn check(&self, mut object: Box<Object<T>>) -> Option<Box<Object<T>>> {
        if self.limits.eviction.reads_clock() && self.is_expired(&object) {
            self.drop_object(object, Because::Evicted);
        } else if let Some(validate) = &self.hooks.validate
            && self.callbacks.call(|| validate(&mut object.value)) != Some(true)
        {
            self.drop_object(object, Because::Unusable);
        } else {
            return Some(object);
        }
        count(&self.counts.refused);
        None
    }

    fn is_expired(&self, object: &Object<T>) -> bool {
        self.limits.eviction.is_expired(object, self.now())
    }

    #[cold]
    #[inline(never)]
    fn create(&self) -> Result<Box<Object<T>>, ObjectError> {
        let value = (self.hooks.create)().map_err(ObjectError::Create)?;
        let serial = self.counts.creations.fetch_add(1, Ordering::Relaxed);
        let object = Object { value, serial, created_at: self.now(), uses: 0, returned: 0 };
        Ok(Box::new(object))
    }

    /// Takes an object back. Catches panics of hooks, since this runs in a drop.
    #[inline]
    pub(super) fn put_back(&self, mut object: Box<Object<T>>) {
        if !self.prepare(&mut object) {
            count(&self.counts.returns);
            return self.drop_object(object, Because::Unusable);
        }
        if self.limits.eviction.reads_clock() && self.is_expired(&object) {
            count(&self.counts.returns);
            return self.drop_object(object, Because::Evicted);
        }
        let tick = self.counts.tick.load(Ordering::Relaxed);
        let mut object = Some(object);
        self.with_own_cache(|cache| cache.keep(&mut object, tick));
        if let Some(object) = object {
            self.put_shared(object);
        }
    }

    /// Keeps an object that does not fit in the thread's cache.
    #[cold]
    #[inline(never)]
    fn put_shared(&self, mut object: Box<Object<T>>) {
        count(&self.counts.returns);
        let mut evicted = None;
        let because = {
            let mut idle = self.idle();
            object.returned = self.advance();
            let mut object = Some(object);
            self.with_own_cache(|cache| {
                evicted = object.take().and_then(|object| idle.put(Some(cache), object));
            });
            if let Some(object) = object {
                evicted = idle.put(None, object);
            }
            if idle.is_closed() { Because::Unusable } else { Because::Evicted }
        };
        if let Some(evicted) = evicted {
            self.drop_object(evicted, because);
        }
    }

    /// Resets an object. Returns whether it may be kept.
    #[inline(always)]
    fn prepare(&self, object: &mut Object<T>) -> bool {
        if let Some(reset) = &self.hooks.reset
            && self.callbacks.call(|| reset(&mut object.value)).is_none()
        {
            return false;
        }
        match &self.hooks.largest {
            Some(largest) => {
                let size = self.callbacks.call(|| (largest.size)(&object.value));
                size.is_some_and(|size| size <= largest.most)
            }
            None => true,
        }
    }

    /// Drops an object. Catches a panic of its destructor, since it is not the caller's object.
    #[cold]
    fn drop_object(&self, object: Box<Object<T>>, because: Because) {
        count(match because {
            Because::Unusable => &self.counts.discards,
            Because::Evicted => &self.counts.evictions,
        });
        self.callbacks.call(|| drop(object));
    }

    fn drop_all(&self, objects: Vec<Box<Object<T>>>, because: Because) -> usize {
        let count = objects.len();
        objects.into_iter().for_each(|object| self.drop_object(object, because));
        count
    }

    pub(super) fn count_detached(&self) {
        count(&self.counts.detached);
    }

    /// Locks the shared list and drains all thread caches into it.
    fn idle_of_all(&self) -> Guard<'_, IdleObjects<T>> {
        let mut idle = self.idle();
        self.advance();
        self.caches.drain_all(|cache| idle.absorb(cache));
        idle
    }

    /// Evicts by the policy until `keep` objects are idle. Returns the number evicted.
    pub(super) fn shrink_to(&self, keep: usize) -> usize {
        // A separate statement, so that objects are dropped without the lock.
        let evicted = self.idle_of_all().shrink_to(keep);
        self.drop_all(evicted, Because::Evicted)
    }

    /// Evicts old and unused objects, and creates missing ones up to the minimum.
    pub(super) fn maintain(&self) -> Result<Maintenance, ObjectError> {
        let now = self.now();
        let min_idle = self.limits.min_idle.min(self.limits.max_idle);
        let (expired, unused) = {
            let mut idle = self.idle_of_all();
            (idle.expire(now), idle.evict_unused(min_idle))
        };
        let expired = self.drop_all(expired, Because::Evicted);
        let unused = self.drop_all(unused, Because::Evicted);
        let mut created = 0;
        // Other threads may take the new objects meanwhile; still, create at most the minimum.
        while created < min_idle && self.idle().len() < min_idle {
            let object = self.create()?;
            let added = self.idle().add(object);
            if let Err(object) = added {
                self.drop_object(object, Because::Evicted);
                break;
            }
            created += 1;
        }
        Ok(Maintenance { expired, unused, created })
    }

    /// Drops all idle objects, and later those that return.
    pub(super) fn close(&self) {
        let idle = self.idle_of_all().close();
        self.drop_all(idle, Because::Unusable);
    }

    pub(super) fn statistics(&self) -> ObjectStatistics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counts { creations, misses, taken, refused, .. } = &self.counts;
        let Counts { returns, discards, evictions, detached, .. } = &self.counts;
        let list = self.idle();
        let (mut taken, mut returns, mut idle) = (read(taken), read(returns), list.len() as u64);
        self.caches.each(|cache| {
            taken = taken.wrapping_add(cache.taken);
            returns = returns.wrapping_add(cache.returned);
            idle += cache.len() as u64;
        });
        let hits = taken.saturating_sub(read(refused));
        ObjectStatistics {
            gets: hits + read(misses),
            hits,
            creations: read(creations),
            returns,
            discards: read(discards),
            evictions: read(evictions),
            detached: read(detached),
            panics: self.callbacks.panics(),
            idle,
        }
    }
}
