use super::*;

#[test]
fn living_threads_have_different_slots_and_the_next_takes_a_free_one() {
    let _alone = alone();
    let barrier = std::sync::Barrier::new(4);
    let slots: Vec<usize> = std::thread::scope(|scope| {
        let spawn = || {
            scope.spawn(|| {
                let slot = current().unwrap();
                barrier.wait();
                assert_eq!(current(), Some(slot));
                slot
            })
        };
        let threads = [spawn(), spawn(), spawn(), spawn()];
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let different: BTreeSet<usize> = slots.iter().copied().collect();
    assert_eq!(different.len(), 4, "{slots:?}");
}

#[test]
fn hundreds_of_living_threads_each_have_a_slot() {
    let _alone = alone();
    const THREADS: usize = if cfg!(miri) { 10 } else { 600 };
    let barrier = std::sync::Barrier::new(THREADS);
    std::thread::scope(|scope| {
        let spawn = |_| {
            let slot = || {
                let slot = current();
                barrier.wait();
                assert!(slot.is_some());
            };
            let small = std::thread::Builder::new().stack_size(64 << 10);
            small.spawn_scoped(scope, slot).unwrap()
        };
        let threads: Vec<_> = (0..THREADS).map(spawn).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Every thread slot is taken, then one is given back: a thread that found none goes without for so long, and
/// then has that one.
#[test]
fn a_thread_without_a_slot_gets_one_when_it_is_free() {
    let mut slots = ThreadSlots { free: BTreeSet::new(), taken: 0 };
    assert_eq!([slots.take(2), slots.take(2), slots.take(2)], [Some(0), Some(1), None]);
    slots.free.insert(0);
    assert_eq!([slots.take(2), slots.take(2)], [Some(0), None]);

    let _alone = alone();
    let (taken, free) = {
        let mut slots = SLOTS.lock();
        (core::mem::replace(&mut slots.taken, MAX_SLOTS), core::mem::take(&mut slots.free))
    };
    let late = std::thread::spawn(move || {
        // It asks at the first call and at every `REQUEST_AGAIN`th, and finds none.
        let calls = (1..=3 * REQUEST_AGAIN).find(|_| current().is_some());
        assert_eq!(calls, None);
        cache_pool(u64::MAX, NonNull::dangling());
        assert_eq!(cached_pool(u64::MAX), None, "it has no pool_data in a pool");
        let last = MAX_SLOTS - 1;
        SLOTS.lock().free.insert(last);
        let calls = (1..=2 * REQUEST_AGAIN).find(|_| current().is_some());
        assert!(calls.is_some_and(|calls| calls <= REQUEST_AGAIN), "{calls:?}");
        assert_eq!([current(), LEASE.with(|lease| lease.0.get())], [Some(last); 2]);
        cache_pool(u64::MAX, NonNull::dangling());
        assert_eq!(cached_pool(u64::MAX), Some(NonNull::dangling()));
        cache_pool(8, NonNull::<u64>::dangling().cast());
        assert_eq!(cached_pool(u64::MAX), Some(NonNull::dangling()), "the last two are cached");
        assert_eq!(cached_pool(8), Some(NonNull::<u64>::dangling().cast()));
        cache_pool(9, NonNull::dangling());
        assert_eq!(cached_pool(u64::MAX), None);
    })
    .join();
    let mut slots = SLOTS.lock();
    let given_back = slots.free.remove(&(MAX_SLOTS - 1));
    slots.taken = taken;
    slots.free.extend(free);
    drop(slots);
    late.unwrap();
    assert!(given_back, "it gives its slot back when it ends");
}

/// Has the tests that take thread slots come one after the other: one of them takes all. Each joins its threads,
/// so that their thread slots are back when the next test comes, and takes none on its own thread.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    crate::lock(&ALONE)
}
