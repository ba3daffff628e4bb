//! Threads that return each other's objects, while others count, shrink and maintain.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;

use super::{Eviction, Log, Pooled, Witness, options};

const ROUNDS: usize = if cfg!(miri) { 50 } else { 20_000 };

/// Marks an object as used by this thread alone.
fn enter<'p>(handle: Pooled<'p, Witness>) -> Pooled<'p, Witness> {
    assert!(!handle.busy.swap(true, Ordering::Relaxed), "object {} has two users", handle.id);
    handle
}

fn leave(handle: Pooled<'_, Witness>) {
    assert!(handle.busy.swap(false, Ordering::Relaxed));
    drop(handle);
}

#[test]
fn objects_that_other_threads_return_are_used_again_and_dropped_once() {
    for eviction in [Eviction::LeastRecentlyUsed, Eviction::LeastFrequentlyUsed] {
        let log = Log::new();
        let pool = options(&log).max_idle(40).thread_cache(8).eviction(eviction).build();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..2)
                .map(|_| {
                    let (send, receive) = sync_channel(32);
                    let pool = &pool;
                    let getter = scope.spawn(move || {
                        for _ in 0..ROUNDS {
                            send.send(enter(pool.get().unwrap())).unwrap();
                            leave(enter(pool.get().unwrap()));
                        }
                    });
                    [getter, scope.spawn(move || receive.into_iter().for_each(leave))]
                })
                .collect();
            let watcher = scope.spawn(|| {
                let mut turn = 0_usize;
                while !done.load(Ordering::Relaxed) {
                    let figures = pool.statistics();
                    assert!(figures.idle <= 40, "{figures:?}");
                    turn += 1;
                    match turn % 16 {
                        0 => drop(pool.shrink_to(5)),
                        8 => drop(pool.maintain().unwrap()),
                        _ => std::thread::yield_now(),
                    }
                }
            });
            workers.into_iter().flatten().for_each(|worker| worker.join().unwrap());
            done.store(true, Ordering::Relaxed);
            watcher.join().unwrap();
        });
        let figures = pool.statistics();
        assert_eq!((figures.gets, figures.returns), (4 * ROUNDS as u64, 4 * ROUNDS as u64));
        assert_eq!((figures.creations, figures.in_use()), (log.made(), 0));
        drop(pool);
        log.assert_each_dropped_once();
    }
}

#[test]
fn threads_that_end_leave_their_objects_and_their_room_to_others() {
    let log = Log::new();
    let pool = options(&log).max_idle(64).thread_cache(8).build();
    let all: Vec<_> = (0..8).map(|_| pool.get_owned().unwrap()).collect();
    std::thread::scope(|scope| {
        for handle in all {
            scope.spawn(move || drop(handle));
        }
    });
    pool.maintain().unwrap();
    let again: Vec<_> = (0..8).map(|_| pool.get().unwrap()).collect();
    assert_eq!(log.made(), 8, "all {} were found", again.len());
    // With nothing reserved for others, this thread reaches the maximum exactly.
    let more: Vec<_> = (0..70).map(|_| pool.get().unwrap()).collect();
    drop((again, more));
    assert_eq!(pool.statistics().idle, 64);
}

#[test]
fn the_maximum_holds_over_all_threads() {
    let log = Log::new();
    let pool = options(&log).max_idle(10).thread_cache(4).build();
    let barrier = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let some: Vec<_> = (0..10).map(|_| pool.get().unwrap()).collect();
                barrier.wait();
                drop(some);
                barrier.wait();
            });
        }
    });
    assert!(pool.statistics().idle <= 10, "{:?}", pool.statistics());
    assert_eq!(log.take_dropped().len(), 80 - usize::try_from(pool.statistics().idle).unwrap());
}

#[test]
fn an_object_that_waits_in_an_idle_threads_cache_is_the_least_recently_used() {
    let log = Log::new();
    let pool = options(&log).thread_cache(4).build();
    let barrier = std::sync::Barrier::new(2);
    let first = pool.get_owned().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(first);
            barrier.wait();
            barrier.wait();
        });
        barrier.wait();
        // More than this thread's cache holds, so that some are in the shared list.
        let others: Vec<_> = (0..10).map(|_| pool.get().unwrap()).collect();
        drop(others);
        assert_eq!(pool.shrink_to(9), 2);
        barrier.wait();
    });
    assert_eq!(log.take_dropped(), [0, 1]);
}
