//! Hooks that fail and hooks that panic: nothing is leaked, nothing is locked, and the pool goes on.

use core::sync::atomic::{AtomicU64, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};

use forebay_core::Bytes;

use super::{Eviction, Log, ObjectError, ObjectPool, ObjectPoolOptions, Witness, options};

/// Where a hook panics.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    Create,
    Reset,
    Validate,
    Size,
    Clock,
    Drop,
}

/// An object whose drop may panic.
struct Trap {
    witness: Witness,
    drop_panics: bool,
}

impl Drop for Trap {
    fn drop(&mut self) {
        if self.drop_panics {
            panic!("on purpose, when object {} is dropped", self.witness.id);
        }
    }
}

/// A pool in which the call number `nth` of one hook panics.
fn trapped(at: At, nth: u64, log: &Arc<Log>) -> ObjectPoolOptions<Trap> {
    let calls = Arc::new(AtomicU64::new(0));
    let spring = move |here: At| {
        at == here && calls.fetch_add(1, Ordering::Relaxed) == nth && at != At::Drop
    };
    let panic_at = move |here: At| {
        if spring(here) {
            panic!("on purpose, in {here:?}");
        }
    };
    let panic_at = Arc::new(panic_at);
    let hook = |here: At| {
        let panic_at = Arc::clone(&panic_at);
        move || panic_at(here)
    };
    let (create, reset, validate) = (hook(At::Create), hook(At::Reset), hook(At::Validate));
    let (size, clock) = (hook(At::Size), hook(At::Clock));
    let log = Arc::clone(log);
    let options = ObjectPoolOptions::new(move || {
        create();
        let witness = log.make();
        let drop_panics = at == At::Drop && witness.id == nth;
        Trap { witness, drop_panics }
    });
    options
        .reset(move |_| reset())
        .validate(move |_| {
            validate();
            true
        })
        .largest(Bytes::new(100), move |_| {
            size();
            Bytes::new(1)
        })
        .clock(move || {
            clock();
            core::time::Duration::ZERO
        })
        .eviction(Eviction::Age { max_age: core::time::Duration::from_secs(1) })
}

/// Every hook panics once, at its first call and at later ones, with and without thread caches. The pool then serves
/// all requests, its figures add up, and every object was dropped once.
#[test]
fn a_panic_of_any_hook_leaks_nothing_and_stops_nothing() {
    for at in [At::Create, At::Reset, At::Validate, At::Size, At::Clock, At::Drop] {
        // The rounds below need six objects at once, so every hook is called at least six times.
        for nth in 0..6 {
            for thread_cache in [0, 2] {
                let log = Log::new();
                let pool = trapped(at, nth, &log).max_idle(4).thread_cache(thread_cache).build();
                let mut panics = 0;
                for round in 0..6 {
                    let some: Vec<_> = (0..=round)
                        .filter_map(|_| {
                            let got = catch_unwind(AssertUnwindSafe(|| pool.get().unwrap()));
                            panics += u64::from(got.is_err());
                            got.ok()
                        })
                        .collect();
                    drop(some);
                    pool.maintain().unwrap();
                }
                assert_eq!(panics, u64::from(at == At::Create), "only a creation is the caller's");
                assert_eq!(pool.get().unwrap().witness.size, 0);
                let figures = pool.statistics();
                assert_eq!(figures.in_use(), 0, "{at:?} {nth}: {figures:?}");
                assert_eq!(figures.creations, log.made());
                drop(pool);
                log.assert_each_dropped_once();
            }
        }
    }
}

#[test]
fn an_object_whose_drop_panics_is_dropped_with_the_pool() {
    let log = Log::new();
    let pool = trapped(At::Drop, 1, &log).build();
    let three = [pool.get().unwrap(), pool.get().unwrap(), pool.get().unwrap()];
    drop(three);
    drop(pool);
    log.assert_each_dropped_once();
}

#[test]
fn a_handle_returns_while_its_thread_unwinds() {
    let log = Log::new();
    let reset = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&reset);
    let pool = options(&log)
        .reset(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            panic!("on purpose, in a reset");
        })
        .build();
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _handle = pool.get().unwrap();
        panic!("on purpose, with an object in use");
    }));
    assert!(unwound.is_err());
    let figures = pool.statistics();
    assert_eq!((figures.returns, figures.discards, figures.panics, figures.idle), (1, 1, 1, 0));
    assert_eq!(log.take_dropped(), [0]);
}

#[test]
fn a_creation_that_fails_changes_nothing() {
    let fails = Arc::new(core::sync::atomic::AtomicBool::new(true));
    let (log, failing) = (Log::new(), Arc::clone(&fails));
    let maker = Arc::clone(&log);
    let pool = ObjectPoolOptions::fallible(move || match failing.load(Ordering::Relaxed) {
        true => Err("no connection"),
        false => Ok(maker.make()),
    })
    .min_idle(2)
    .build();
    let error = pool.get().unwrap_err();
    assert!(matches!(error, ObjectError::Create(_)));
    assert!(error.to_string().contains("no connection"), "{error}");
    assert!(pool.maintain().is_err());
    assert_eq!(pool.statistics(), Default::default());
    fails.store(false, Ordering::Relaxed);
    assert_eq!(pool.maintain().unwrap().created, 2);
    assert_eq!(pool.get().unwrap().id, 1);
}

#[test]
fn an_object_that_fails_the_test_is_dropped_and_the_next_is_tried() {
    let log = Log::new();
    let pool = options(&log).validate(|object| object.id != 1).build();
    let three = [pool.get().unwrap(), pool.get().unwrap(), pool.get().unwrap()];
    let [zero, one, two] = three;
    // The refused object is on top of the stack.
    drop((zero, two));
    drop(one);
    assert_eq!(pool.get().unwrap().id, 2);
    assert_eq!(log.take_dropped(), [1]);
    let figures = pool.statistics();
    assert_eq!((figures.gets, figures.hits, figures.discards, figures.idle), (4, 1, 1, 2));
}

#[test]
fn an_object_that_grew_too_large_is_not_kept() {
    let log = Log::new();
    let pool = options(&log).largest(Bytes::new(10), |object| Bytes::new(object.size)).build();
    for (size, kept) in [(10, 1), (11, 0)] {
        pool.get().unwrap().size = size;
        assert_eq!(pool.statistics().idle, kept, "{size}");
    }
    assert_eq!(log.take_dropped(), [0]);
    assert_eq!(pool.statistics().discards, 1);
}

#[test]
fn a_hook_may_use_the_pool() {
    let slot: Arc<OnceLock<Weak<ObjectPool<Witness>>>> = Arc::default();
    let (log, inner) = (Log::new(), Arc::clone(&slot));
    let pool = options(&log)
        .reset(move |object| {
            // Not for ever: an object from inside is not reset by getting another.
            if object.id < 3
                && let Some(pool) = inner.get().and_then(Weak::upgrade)
            {
                drop(pool.get().unwrap());
                pool.maintain().unwrap();
                assert!(pool.statistics().gets > 0);
            }
        })
        .build();
    let pool = Arc::new(pool);
    slot.set(Arc::downgrade(&pool)).unwrap();
    let four: Vec<_> = (0..4).map(|_| pool.get().unwrap()).collect();
    drop(four);
    assert_eq!(pool.statistics().panics, 0);
    assert_eq!(pool.statistics().in_use(), 0);
}
