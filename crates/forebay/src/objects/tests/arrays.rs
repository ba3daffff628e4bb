//! Arrays: sizes, contents, and returns by id.

use core::sync::atomic::{AtomicU64, Ordering};

use forebay_core::Bytes;

use super::{ArrayError, ArrayId, ArrayPool, ArrayPoolOptions};

#[test]
fn sizes_are_powers_of_two_and_a_returned_array_serves_its_whole_size() {
    let pool = ArrayPool::<u32>::new();
    for (len, capacity) in [(0, 16), (1, 16), (16, 16), (17, 32), (1000, 1024), (1 << 20, 1 << 20)]
    {
        let array = pool.rent(len).unwrap();
        assert_eq!((array.len(), array.capacity()), (len, capacity));
        assert!(array.whole().iter().all(|&value| value == 0));
    }
    assert_eq!(pool.statistics().arrays.creations, 4);
    assert_eq!(pool.statistics().idle_elements, 16 + 32 + 1024 + (1 << 20));
    assert_eq!(pool.shrink_to(0), 4);
    assert_eq!(pool.statistics().idle_elements, 0);
}

#[test]
fn an_array_too_long_to_keep_is_made_to_measure_and_dropped() {
    let pool: ArrayPool<u8> = ArrayPoolOptions::default().longest(1000).build();
    drop(pool.rent(512).unwrap());
    let array = pool.rent(513).unwrap();
    assert_eq!((array.len(), array.capacity()), (513, 513));
    drop(array);
    assert_eq!((pool.statistics().too_long_to_keep, pool.statistics().arrays.idle), (1, 1));
}

#[test]
#[cfg_attr(miri, ignore = "Miri ends where memory ends")]
fn no_array_is_longer_than_memory() {
    let pool = ArrayPool::<u64>::new();
    let too_long = |len| ArrayError::TooLong { len, element: Bytes::new(8) };
    assert_eq!(pool.rent(usize::MAX).unwrap_err(), too_long(usize::MAX));
    assert_eq!(pool.rent(1 << 60).unwrap_err(), too_long(1 << 60));
    assert_eq!(pool.rent_by_id(1 << 61).unwrap_err(), too_long(1 << 61));
    let refused = pool.rent((1 << 60) - 1).unwrap_err();
    assert!(matches!(refused, ArrayError::OutOfMemory { .. }), "{refused}");
    assert_eq!(pool.statistics(), Default::default());
    // Elements without a size need no memory.
    assert_eq!(ArrayPool::<()>::new().rent(1 << 20).unwrap().len(), 1 << 20);
}

#[test]
fn contents_stay_unless_the_pool_clears() {
    for (clear, found) in [(false, "left behind"), (true, "")] {
        let pool: ArrayPool<String> = ArrayPoolOptions::default().clear(clear).build();
        pool.rent(20).unwrap()[19] = "left behind".to_owned();
        assert_eq!(pool.rent(32).unwrap()[19], found);
    }
}

#[test]
fn an_id_returns_once() {
    let (pool, other) = (ArrayPool::<u32>::new(), ArrayPool::<u32>::new());
    let array = pool.rent_by_id(100).unwrap();
    assert_eq!((array.len, pool.statistics().rented_by_id), (128, 1));
    // SAFETY: the array has 128 elements and is rented.
    unsafe { array.address.add(127).write(7) };
    let other_id = other.rent_by_id(1).unwrap().id.pool();
    let wrong = ArrayError::WrongPool { id: array.id, pool: other_id };
    assert_eq!(other.return_by_id(array.id), Err(wrong));
    assert_eq!(pool.return_by_id(array.id), Ok(()));
    let again = ArrayError::AlreadyReturned { id: array.id };
    assert_eq!(pool.return_by_id(array.id), Err(again.clone()));
    // Its memory is rented out again under another id, which the old id does not return.
    let next = pool.rent_by_id(100).unwrap();
    assert_eq!(next.address, array.address);
    assert_eq!(pool.return_by_id(array.id), Err(again));
    assert_eq!(pool.rent(128).unwrap()[127], 0, "another array: the first is rented");
    for serial in [0, 3, u64::MAX] {
        let id = ArrayId::from_parts(array.id.pool(), serial);
        assert_eq!(pool.return_by_id(id), Err(ArrayError::NeverRented { id }));
    }
    assert_eq!(pool.return_by_id(next.id), Ok(()));
}

#[test]
fn of_two_threads_that_return_an_id_one_succeeds() {
    let pool = ArrayPool::<u8>::new();
    let returned = AtomicU64::new(0);
    let rounds = if cfg!(miri) { 3 } else { 200 };
    for _ in 0..rounds {
        let id = pool.rent_by_id(50).unwrap().id;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let well = pool.return_by_id(id).is_ok();
                    returned.fetch_add(u64::from(well), Ordering::Relaxed);
                });
            }
        });
    }
    assert_eq!(returned.into_inner(), rounds);
    let figures = pool.statistics().arrays;
    assert_eq!((figures.gets, figures.returns, figures.in_use()), (rounds, rounds, 0));
}

#[test]
fn arrays_that_are_still_rented_by_id_go_with_the_pool() {
    let log = super::Log::new();
    thread_local! {
        static LOG: core::cell::RefCell<Option<std::sync::Arc<super::Log>>> =
            const { core::cell::RefCell::new(None) };
    }
    /// Values that are made on this thread tell the log of their end.
    #[derive(Clone)]
    struct Value(#[allow(dead_code, reason = "dropped")] std::sync::Arc<super::Witness>);
    impl Default for Value {
        fn default() -> Self {
            let log = LOG.with(|log| log.borrow().clone()).unwrap();
            Self(std::sync::Arc::new(log.make()))
        }
    }
    LOG.with(|slot| slot.replace(Some(std::sync::Arc::clone(&log))));
    let pool = ArrayPool::<Value>::new();
    let _rented = pool.rent_by_id(20).unwrap();
    drop(pool.rent(20).unwrap());
    drop(pool);
    log.assert_each_dropped_once();
    assert_eq!(log.made(), 2);
    LOG.with(core::cell::RefCell::take);
}
