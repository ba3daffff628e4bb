//! The life of objects: handles, detaching, the end of the pool, and the figures.

use super::{Log, ObjectPool, options};

#[test]
fn objects_of_owned_handles_outlive_the_pool_and_are_dropped_with_the_handle() {
    let log = Log::new();
    let pool = options(&log).build();
    let (out, idle) = (pool.get_owned().unwrap(), pool.get_owned().unwrap());
    drop(idle);
    drop(pool);
    assert_eq!(log.take_dropped(), [1], "the idle object goes with the pool");
    assert_eq!(out.id, 0);
    drop(out);
    assert_eq!(log.take_dropped(), [0]);
}

#[test]
fn a_pool_may_be_dropped_on_one_thread_while_others_return() {
    for _ in 0..if cfg!(miri) { 3 } else { 200 } {
        let log = Log::new();
        let pool = options(&log).max_idle(8).build();
        let handles: Vec<_> = (0..12).map(|_| pool.get_owned().unwrap()).collect();
        std::thread::scope(|scope| {
            let mut handles = handles.into_iter();
            for _ in 0..3 {
                let some: Vec<_> = handles.by_ref().take(4).collect();
                scope.spawn(move || drop(some));
            }
            scope.spawn(move || drop(pool));
        });
        log.assert_each_dropped_once();
    }
}

#[test]
fn a_detached_object_is_the_programs_own() {
    let log = Log::new();
    let pool = options(&log).build();
    let object = pool.get().unwrap().detach();
    let owned = pool.get_owned().unwrap().detach();
    assert_eq!((pool.statistics().detached, pool.statistics().in_use()), (2, 0));
    drop(pool);
    assert!(log.take_dropped().is_empty());
    assert_eq!((object.id, owned.id), (0, 1));
    drop((object, owned));
    log.assert_each_dropped_once();
}

#[test]
fn figures_add_up() {
    let log = Log::new();
    let pool = options(&log).max_idle(4).build();
    assert_eq!(
        (pool.statistics().hit_rate(), pool.statistics().allocation_reduction()),
        (0.0, 0.0)
    );
    for _ in 0..18 {
        drop(pool.get().unwrap());
    }
    let six: Vec<_> = (0..6).map(|_| pool.get().unwrap()).collect();
    assert_eq!(pool.statistics().in_use(), 6);
    drop(six);
    let figures = pool.statistics();
    assert_eq!((figures.gets, figures.hits, figures.creations), (24, 18, 6));
    assert_eq!((figures.returns, figures.evictions, figures.discards), (24, 2, 0));
    assert_eq!((figures.idle, figures.in_use()), (4, 0));
    assert_eq!((figures.hit_rate(), figures.allocation_reduction()), (0.75, 0.75));
    assert_eq!(pool.shrink_to(1), 3);
    assert_eq!((pool.statistics().evictions, pool.statistics().idle), (5, 1));
}

#[test]
fn handles_and_pools_are_sent_and_shared_as_their_objects_are() {
    fn sent<T: Send>() {}
    fn shared<T: Sync>() {}
    sent::<super::Pooled<'static, std::cell::Cell<u32>>>();
    shared::<super::Pooled<'static, u32>>();
    sent::<ObjectPool<std::cell::Cell<u32>>>();
    shared::<ObjectPool<std::cell::Cell<u32>>>();
    shared::<super::ArrayPool<std::cell::Cell<u32>>>();
}
