//! Every policy against a model that knows all objects: which one is evicted, and when.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::{Eviction, Log, ObjectPool, Pooled, Witness, options};

/// An object as the model knows it.
#[derive(Clone, Copy, Debug)]
struct Known {
    id: u64,
    created_at: u64,
    uses: u64,
    /// The step at which it was returned last.
    returned: u64,
}

/// What the names of the policies mean, without a cache or a tree.
struct Model {
    policy: Eviction,
    max_idle: usize,
    idle: Vec<Known>,
    step: u64,
}

impl Model {
    fn rank(&self, object: &Known) -> (u64, u64) {
        match self.policy {
            Eviction::LeastRecentlyUsed => (0, object.returned),
            Eviction::LeastFrequentlyUsed => (object.uses, object.returned),
            Eviction::FirstInFirstOut | Eviction::Age { .. } => (object.id, 0),
        }
    }

    fn is_expired(&self, object: &Known, now: u64) -> bool {
        match self.policy {
            Eviction::Age { max_age } => u128::from(now - object.created_at) >= max_age.as_nanos(),
            _ => false,
        }
    }

    /// Removes the object that has to go first.
    fn evict(&mut self) -> u64 {
        let lowest = (0..self.idle.len()).min_by_key(|&at| self.rank(&self.idle[at])).unwrap();
        self.idle.remove(lowest).id
    }

    fn put(&mut self, mut object: Known, now: u64) -> Vec<u64> {
        self.step += 1;
        object.returned = self.step;
        if self.is_expired(&object, now) {
            return vec![object.id];
        }
        self.idle.push(object);
        if self.idle.len() > self.max_idle { vec![self.evict()] } else { Vec::new() }
    }

    fn shrink(&mut self, keep: usize) -> Vec<u64> {
        let count = self.idle.len().saturating_sub(keep);
        (0..count).map(|_| self.evict()).collect()
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Gets so many objects.
    Get(usize),
    /// Returns so many of the objects in use, from the one at a position on.
    Return(usize, usize),
    Shrink(usize),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1..12_usize).prop_map(Step::Get),
        6 => (1..12_usize, any::<usize>()).prop_map(|(count, at)| Step::Return(count, at)),
        1 => (0..8_usize).prop_map(Step::Shrink),
        1 => (0..30_u64).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 0..60)
}

fn policy() -> impl Strategy<Value = Eviction> {
    prop_oneof![
        Just(Eviction::LeastRecentlyUsed),
        Just(Eviction::LeastFrequentlyUsed),
        Just(Eviction::FirstInFirstOut),
        Just(Eviction::Age { max_age: Duration::from_nanos(40) }),
    ]
}

/// A pool, its model, and the objects in use.
struct Trial<'p> {
    pool: &'p ObjectPool<Witness>,
    model: Model,
    log: Arc<Log>,
    in_use: Vec<(Pooled<'p, Witness>, Known)>,
    known: BTreeMap<u64, Known>,
    caches: bool,
}

impl Trial<'_> {
    fn get(&mut self, now: u64) {
        let handle = self.pool.get().unwrap();
        let expired: Vec<u64> = self.log.take_dropped();
        for id in expired {
            let at = self.model.idle.iter().position(|known| known.id == id).unwrap();
            let gone = self.model.idle.remove(at);
            assert!(self.model.is_expired(&gone, now), "{gone:?} was dropped by a get");
        }
        let at = self.model.idle.iter().position(|known| known.id == handle.id);
        let mut known = match at {
            Some(at) => {
                if let Some(best) = self.best() {
                    assert_eq!(handle.id, best, "the best idle object is handed out");
                }
                self.model.idle.remove(at)
            }
            None => {
                assert!(self.model.idle.is_empty(), "created while objects were idle");
                assert!(!self.known.contains_key(&handle.id), "handed out twice");
                Known { id: handle.id, created_at: now, uses: 0, returned: 0 }
            }
        };
        assert!(!self.model.is_expired(&known, now), "{known:?} is too old");
        known.uses += 1;
        self.known.insert(known.id, known);
        self.in_use.push((handle, known));
    }

    fn put(&mut self, at: usize, now: u64) {
        if self.in_use.is_empty() {
            return;
        }
        let (handle, known) = self.in_use.swap_remove(at % self.in_use.len());
        drop(handle);
        assert_eq!(self.log.take_dropped(), self.model.put(known, now), "after {known:?}");
    }

    /// The object that a get takes. With caches, only one policy tells: the last that returned is cached.
    fn best(&self) -> Option<u64> {
        let tells = !self.caches || self.model.policy == Eviction::LeastRecentlyUsed;
        let idle = self.model.idle.iter();
        let best = idle.max_by_key(|known| self.model.rank(known));
        best.map(|best| best.id).filter(|_| tells)
    }

    fn step(&mut self, step: Step, clock: &AtomicU64) {
        let now = clock.load(Ordering::Relaxed);
        match step {
            Step::Get(count) => (0..count).for_each(|_| self.get(now)),
            Step::Return(count, at) => (0..count).for_each(|_| self.put(at, now)),
            Step::Shrink(keep) => {
                let expected = self.model.shrink(keep);
                assert_eq!(self.pool.shrink_to(keep), expected.len());
                assert_eq!(self.log.take_dropped(), expected);
            }
            Step::Pass(time) => {
                clock.fetch_add(time, Ordering::Relaxed);
            }
        }
        let statistics = self.pool.statistics();
        assert_eq!(statistics.idle, self.model.idle.len() as u64);
        assert_eq!(statistics.in_use(), self.in_use.len() as u64);
        assert!(self.model.idle.len() <= self.model.max_idle);
    }
}

proptest! {
    /// On one thread, with and without a thread cache, an object is evicted exactly when there is one too many, and it
    /// is the one that the policy's name says.
    #[test]
    fn a_policy_evicts_what_its_name_says(
        policy in policy(),
        max_idle in 0..25_usize,
        thread_cache in prop_oneof![Just(0), Just(1), Just(3), Just(16)],
        steps in steps(),
    ) {
        let (log, clock) = (Log::new(), Arc::new(AtomicU64::new(0)));
        let time = Arc::clone(&clock);
        let pool = options(&log)
            .max_idle(max_idle)
            .thread_cache(thread_cache)
            .eviction(policy)
            .clock(move || Duration::from_nanos(time.load(Ordering::Relaxed)))
            .build();
        let model = Model { policy, max_idle, idle: Vec::new(), step: 0 };
        let mut trial = Trial {
            pool: &pool,
            model,
            log: Arc::clone(&log),
            in_use: Vec::new(),
            known: BTreeMap::new(),
            caches: thread_cache > 0 && max_idle > 1,
        };
        for step in steps {
            trial.step(step, &clock);
        }
    }
}

#[test]
fn maintenance_evicts_what_is_too_old_wherever_it_is() {
    let (log, clock) = (Log::new(), Arc::new(AtomicU64::new(0)));
    let time = Arc::clone(&clock);
    let pool = options(&log)
        .eviction(Eviction::Age { max_age: Duration::from_secs(10) })
        .clock(move || Duration::from_secs(time.load(Ordering::Relaxed)))
        .build();
    let old: Vec<_> = (0..3).map(|_| pool.get().unwrap()).collect();
    clock.store(9, Ordering::Relaxed);
    let young: Vec<_> = (0..2).map(|_| pool.get().unwrap()).collect();
    // In the cache of a thread that has ended, and in this thread's.
    std::thread::scope(|scope| {
        scope.spawn(|| drop(old));
    });
    drop(young);
    assert_eq!(pool.maintain().unwrap().expired, 0);
    clock.store(10, Ordering::Relaxed);
    let done = pool.maintain().unwrap();
    assert_eq!((done.expired, done.unused), (3, 1));
    assert_eq!(log.take_dropped(), [0, 1, 2, 3]);
    clock.store(1000, Ordering::Relaxed);
    assert_eq!(pool.get().unwrap().id, 5, "an object that is too old is not handed out");
    assert_eq!(pool.statistics().evictions, 5);
}

#[test]
fn maintenance_lets_an_unused_pool_shrink_to_its_minimum() {
    let log = Log::new();
    let pool = options(&log).min_idle(3).thread_cache(0).build();
    assert_eq!(pool.maintain().unwrap().created, 3);
    let all: Vec<_> = (0..19).map(|_| pool.get().unwrap()).collect();
    drop(all);
    // All were in use since the last call.
    assert_eq!(pool.maintain().unwrap().unused, 0);
    let unused: Vec<usize> = (0..6).map(|_| pool.maintain().unwrap().unused).collect();
    assert_eq!(unused, [10, 5, 1, 0, 0, 0]);
    assert_eq!((pool.statistics().idle, pool.statistics().creations), (3, 19));
    // What is needed in between stays.
    let all: Vec<_> = (0..9).map(|_| pool.get().unwrap()).collect();
    drop(all);
    assert_eq!(pool.maintain().unwrap().unused, 0);
    drop([pool.get().unwrap(), pool.get().unwrap()]);
    assert_eq!(pool.maintain().unwrap().unused, 4, "half of seven");
    drop(pool);
    log.assert_each_dropped_once();
}
