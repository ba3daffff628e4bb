//! What a pool does when memory runs short, and whom it tells.

use std::sync::{Mutex, OnceLock};

use forebay_core::pressure::Level;

use super::*;
use crate::report::Shortage;

/// What was told, in order.
type Told<T> = Arc<Mutex<Vec<T>>>;

fn device() -> Arc<dyn Device> {
    open(SimMachine::builder().memory(MemoryModel::Phantom)).2
}

/// A pool of at most 100 MiB with pages of 2 MiB: MiB held are percent.
fn hundred(options: PoolOptions) -> Pool {
    let mut growth = Growth::default();
    growth.largest_page = Bytes::mib(2);
    options.max_bytes(Bytes::mib(100)).growth(growth).build(&device()).unwrap()
}

/// How many pages 640 MiB of blocks take on a device of `capacity`, of which others have `taken`.
fn pages_of_640_mib(capacity: Bytes, taken: Bytes, limit: Option<Bytes>) -> u64 {
    let simulated = SimMachine::builder().memory(MemoryModel::Phantom).capacity(capacity);
    let (machine, _, device) = open(simulated);
    if !taken.is_zero() {
        device.allocate(taken, Alignment::DEVICE_PAGE).unwrap();
    }
    let options = PoolOptions::new();
    let options = limit.into_iter().fold(options, PoolOptions::max_bytes);
    let pool = options.build(&device).unwrap();
    let blocks: Vec<Block> =
        (0..64).map(|_| pool.allocate(Bytes::mib(10), DEFAULT).unwrap()).collect();
    let pages = machine.calls().of(Call::CreatePage);
    drop(blocks);
    pages
}

/// Pages are large while memory is plentiful and small where it is scarce: by the size of the device, by the limit, or
/// because others have it.
#[test]
fn pages_follow_scarcity() {
    let large = pages_of_640_mib(Bytes::gib(64), Bytes::ZERO, None);
    assert!(large < 100, "{large} pages");
    for (capacity, taken, limit) in [
        (Bytes::gib(1), Bytes::ZERO, None),
        (Bytes::gib(64), Bytes::ZERO, Some(Bytes::gib(1))),
        (Bytes::gib(64), Bytes::gib(63), None),
    ] {
        let small = pages_of_640_mib(capacity, taken, limit);
        assert_eq!(small, 320, "of {capacity}, {taken} taken, limit {limit:?}");
    }
}

/// A program at its limit that needs the same pages now here and now there: two short blocks beside each other, or one
/// at the end of the addresses as long as both.
fn round_at_the_limit(pool: &Pool) {
    let allocate = |bytes| pool.allocate(bytes, DEFAULT).unwrap().address;
    let free = |block| pool.free(block, DEFAULT).unwrap();
    let blocks: Vec<Address> = (0..5).map(|_| allocate(Bytes::mib(20))).collect();
    free(blocks[0]);
    free(blocks[2]);
    let long = allocate(Bytes::mib(40));
    [long, blocks[1], blocks[3], blocks[4]].into_iter().for_each(free);
}

/// Pages that go to and fro between the same places stay mapped at both, until they are released.
#[test]
fn a_program_that_repeats_itself_at_the_limit_comes_to_map_nothing() {
    let pool = hundred(PoolOptions::new());
    (0..8).for_each(|_| round_at_the_limit(&pool));
    let calls = |call| pool.statistics().driver.of(call);
    let (maps, unmaps) = (calls(Call::Map), calls(Call::Unmap));
    assert!(maps > 50, "nothing was moved: {maps} maps");
    (0..20).for_each(|_| round_at_the_limit(&pool));
    assert_eq!((calls(Call::Map), calls(Call::Unmap)), (maps, unmaps));
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(calls(Call::Map), calls(Call::Unmap), "every mapping ends with its page");
    assert_eq!(calls(Call::CreatePage), calls(Call::ReleasePage));
}

/// A kept mapping that the device will not remove, to make way for another page, fails no request: the next plan avoids
/// it.
#[test]
fn a_kept_mapping_that_stays_fails_no_request() {
    for number in 1..60 {
        let (machine, _, device) = open(SimMachine::builder().memory(MemoryModel::Phantom));
        let mut growth = Growth::default();
        growth.largest_page = Bytes::mib(2);
        let options = PoolOptions::new().max_bytes(Bytes::mib(100)).growth(growth);
        let pool = options.build(&device).unwrap();
        machine.plan(Fault::new(When::Kind(Call::Unmap, number), FaultKind::Transient));
        for round in 0..6 {
            round_at_the_limit(&pool);
            // Other sizes want other places.
            let allocate = |mib| pool.allocate(Bytes::mib(mib), DEFAULT).unwrap().address;
            let free = |block| pool.free(block, DEFAULT).unwrap();
            let blocks: Vec<(usize, Address)> = (0..7).map(|_| allocate(14)).enumerate().collect();
            let (freed, kept): (Vec<_>, Vec<_>) =
                blocks.into_iter().partition(|(count, _)| (count + round) % 3 == 0);
            freed.into_iter().for_each(|(_, block)| free(block));
            free(allocate(28));
            kept.into_iter().for_each(|(_, block)| free(block));
        }
        drop(pool);
        assert_eq!(machine.census().held, Bytes::ZERO, "fault at unmap {number}");
    }
}

#[test]
fn levels_are_told_once_each_on_the_way_up_and_on_the_way_down() {
    let told: Told<(Level, Bytes)> = Arc::default();
    let note = Arc::clone(&told);
    let options = PoolOptions::new();
    let pool = hundred(options.on_pressure(move |level, held| {
        note.lock().unwrap().push((level, held));
    }));
    let mut blocks = Vec::new();
    let mut levels = vec![pool.pressure()];
    for _ in 0..50 {
        blocks.push(pool.allocate(Bytes::mib(2), DEFAULT).unwrap());
        levels.push(pool.pressure());
    }
    assert_eq!(pool.held(), Bytes::mib(100));
    levels.dedup();
    use Level::*;
    assert_eq!(levels, [Low, Normal, Moderate, High, Critical]);
    let up = [(Moderate, 80), (High, 90), (Critical, 96)].map(|(l, mib)| (l, Bytes::mib(mib)));
    assert_eq!(*told.lock().unwrap(), up);
    for block in blocks {
        pool.free(block.address(), DEFAULT).unwrap();
    }
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.pressure(), Low);
    pool.allocate(Bytes::mib(2), DEFAULT).unwrap();
    assert_eq!(told.lock().unwrap()[3..], [(Low, Bytes::ZERO)]);
}

/// From moderate on magazines hold little; from low on they hold as much as before.
#[test]
fn magazines_are_small_under_pressure() {
    let pool = hundred(PoolOptions::new());
    let full = fill_magazine(&pool);
    assert!(full > Bytes::mib(1), "{full}");
    let large = pool.allocate(Bytes::mib(82), DEFAULT).unwrap();
    assert_eq!(pool.pressure(), Level::Moderate);
    assert_eq!(pool.statistics().cached, Bytes::ZERO, "and what they held is folded");
    let little = fill_magazine(&pool);
    assert!(little < Bytes::new(320 << 10), "{little}");
    pool.free(large.address(), DEFAULT).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.pressure(), Level::Low);
    assert_eq!(fill_magazine(&pool), full);
}

/// That holds for threads that come while it lasts.
#[test]
fn magazines_of_threads_that_come_under_pressure_are_small() {
    let pool = hundred(PoolOptions::new());
    pool.allocate(Bytes::mib(82), DEFAULT).unwrap();
    assert_eq!(pool.pressure(), Level::Moderate);
    let held = std::thread::scope(|scope| scope.spawn(|| fill_magazine(&pool)).join().unwrap());
    assert!(held < Bytes::new(320 << 10), "{held}");
}

/// At the critical level idle memory is released at once, down to `min_bytes`.
#[test]
fn at_the_critical_level_what_is_idle_goes_back() {
    for (min, left) in [(0, 54..=58), (72, 72..=74)] {
        let pool = hundred(PoolOptions::new().set(|set| set.min_bytes(Bytes::mib(min))));
        let of = |size| pool.allocate(size, DEFAULT).unwrap();
        let blocks: Vec<Block> = (0..44).map(|_| of(Bytes::mib(2))).collect();
        for block in &blocks[..20] {
            pool.free(block.address(), DEFAULT).unwrap();
        }
        assert_eq!((pool.held(), pool.pressure()), (Bytes::mib(88), Level::Moderate));
        // Small blocks have pages of their own: they bring the level up with large pages idle.
        let before = pool.statistics().driver.of(Call::CreatePage);
        while pool.statistics().driver.of(Call::CreatePage) < before + 4 {
            of(Bytes::new(256 << 10));
        }
        pool.device().synchronize_device().unwrap();
        pool.process_deferred().unwrap();
        let held = pool.held().get() >> 20;
        assert!(left.contains(&held), "{held} MiB are held with {min} to be kept");
        assert_eq!(pool.statistics().peak_held, Bytes::mib(96));
    }
}

#[test]
fn who_is_asked_lets_go_and_the_request_is_served() {
    let cache: Told<Block> = Arc::default();
    let asked: Told<Shortage> = Arc::default();
    let number: Arc<OnceLock<PoolId>> = Arc::default();
    let options = {
        let (cache, asked, number) = (Arc::clone(&cache), Arc::clone(&asked), Arc::clone(&number));
        PoolOptions::new().on_shortage(move |shortage| {
            asked.lock().unwrap().push(shortage.clone());
            let Some(block) = cache.lock().unwrap().pop() else { return false };
            let pool = Pool::find(*number.get().unwrap()).unwrap();
            pool.free_block(block, DEFAULT).unwrap();
            true
        })
    };
    let pool = hundred(options);
    number.set(pool.id()).unwrap();
    for _ in 0..10 {
        let block = pool.allocate(Bytes::mib(10), DEFAULT).unwrap();
        cache.lock().unwrap().push(block);
    }
    // Three blocks have to go, one each time it is asked.
    let large = pool.allocate(Bytes::mib(30), DEFAULT).unwrap();
    let told = asked.lock().unwrap().clone();
    assert_eq!((told.len(), cache.lock().unwrap().len()), (3, 7));
    assert_eq!((told[0].requested, told[0].limit), (Bytes::mib(30), Bytes::mib(100)));
    assert_eq!((told[0].live, told[2].live), (Bytes::mib(100), Bytes::mib(80)));
    // When no callback has anything left, the request is refused, with the figures.
    cache.lock().unwrap().clear();
    let error = pool.allocate(Bytes::mib(30), DEFAULT).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    assert_eq!(asked.lock().unwrap().len(), 4);
    pool.free(large.address(), DEFAULT).unwrap();
    assert!(pool.allocate(Bytes::mib(30), DEFAULT).is_ok());
}

#[test]
fn who_says_yes_and_frees_nothing_is_not_asked_for_ever() {
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let pool = hundred(PoolOptions::new().on_shortage(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        true
    }));
    let block = pool.allocate(Bytes::mib(20), DEFAULT).unwrap();
    let error = pool.allocate(Bytes::mib(90), DEFAULT).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    assert!((2..=100).contains(&asked.load(Ordering::Relaxed)));
    // Nothing they free would help a request beyond the limit: it takes a callback that raises the limit.
    asked.store(0, Ordering::Relaxed);
    pool.allocate(Bytes::mib(101), DEFAULT).unwrap_err();
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    pool.free_block(block, DEFAULT).unwrap();
    assert!(pool.allocate(Bytes::mib(90), DEFAULT).is_ok());
}

/// A cache that frees one entry each time it is asked is asked until the request fits.
#[test]
fn who_frees_one_entry_at_a_time_is_asked_until_it_fits() {
    let cache: Told<crate::OwnedBlock> = Arc::default();
    let asked = Arc::new(AtomicU64::new(0));
    let (entries, count) = (Arc::clone(&cache), Arc::clone(&asked));
    let pool = hundred(PoolOptions::new().on_shortage(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        let entry = entries.lock().unwrap().pop();
        entry.is_some()
    }));
    for _ in 0..100 {
        let entry = pool.on(DEFAULT).owned(Bytes::mib(1)).unwrap();
        cache.lock().unwrap().push(entry);
    }
    let large = pool.allocate(Bytes::mib(60), DEFAULT).unwrap();
    assert_eq!((asked.load(Ordering::Relaxed), cache.lock().unwrap().len()), (60, 40));
    // Without enough in the cache it is refused once nothing is left.
    assert!(pool.allocate(Bytes::mib(50), DEFAULT).is_err());
    assert_eq!((asked.load(Ordering::Relaxed), cache.lock().unwrap().len()), (101, 0));
    pool.free_block(large, DEFAULT).unwrap();
    cache.lock().unwrap().clear();
}

/// A callback may raise the limit, for a request that is larger than it was.
#[test]
fn who_raises_the_limit_is_asked_by_a_request_beyond_it() {
    let number: Arc<OnceLock<PoolId>> = Arc::default();
    let of_callback = Arc::clone(&number);
    let told: Told<(Bytes, Bytes)> = Arc::default();
    let note = Arc::clone(&told);
    let pool = hundred(PoolOptions::new().on_shortage(move |shortage| {
        note.lock().unwrap().push((shortage.needed, shortage.limit));
        let pool = Pool::find(*of_callback.get().unwrap()).unwrap();
        let more = (shortage.limit.get() >> 20) + 60;
        pool.set("max_bytes", &format!("{more}MiB")).unwrap();
        true
    }));
    number.set(pool.id()).unwrap();
    let block = pool.allocate(Bytes::mib(200), DEFAULT).unwrap();
    assert_eq!(pool.limit(), Bytes::mib(220));
    let mib = |(needed, limit)| (Bytes::mib(needed), Bytes::mib(limit));
    assert_eq!(*told.lock().unwrap(), [(200, 100), (200, 160)].map(mib));
    pool.free_block(block, DEFAULT).unwrap();
    // What the device does not have at all, no limit helps.
    assert!(pool.allocate(Bytes::gib(1 << 20), DEFAULT).is_err());
    assert_eq!(told.lock().unwrap().len(), 2);
}

/// A pressure callback that changes the level each time is not called from within itself.
#[test]
fn who_is_told_of_pressure_may_trim_and_allocate() {
    let number: Arc<OnceLock<PoolId>> = Arc::default();
    let (depth, deepest) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let calls = Arc::new(AtomicU64::new(0));
    let options = {
        let (number, depth, deepest, calls) =
            (Arc::clone(&number), Arc::clone(&depth), Arc::clone(&deepest), Arc::clone(&calls));
        PoolOptions::new().on_pressure(move |level, _| {
            let now = depth.fetch_add(1, Ordering::Relaxed) + 1;
            deepest.fetch_max(now, Ordering::Relaxed);
            calls.fetch_add(1, Ordering::Relaxed);
            let pool = Pool::find(*number.get().unwrap()).unwrap();
            if level == Level::Low {
                drop(pool.on(DEFAULT).owned(Bytes::mib(97)));
            } else {
                pool.trim(Bytes::ZERO).unwrap();
            }
            depth.fetch_sub(1, Ordering::Relaxed);
        })
    };
    let pool = hundred(options);
    number.set(pool.id()).unwrap();
    let block = pool.on(DEFAULT).owned(Bytes::mib(97)).unwrap();
    drop(block);
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(deepest.load(Ordering::Relaxed), 1, "from within itself");
    let calls = calls.load(Ordering::Relaxed);
    assert!((2..=12).contains(&calls), "{calls} calls");
    assert_eq!(pool.statistics().callback_panics, 0);
}

/// All callbacks are called, even if the first freed something; and a callback may allocate.
#[test]
fn who_is_asked_may_allocate() {
    let number: Arc<OnceLock<PoolId>> = Arc::default();
    let second = Arc::new(AtomicU64::new(0));
    let options = {
        let (number, second) = (Arc::clone(&number), Arc::clone(&second));
        PoolOptions::new()
            .on_shortage(move |_| {
                let pool = Pool::find(*number.get().unwrap()).unwrap();
                let block = pool.allocate(Bytes::new(4096), DEFAULT).unwrap();
                pool.statistics();
                pool.free(block.address(), DEFAULT).unwrap();
                true
            })
            .on_shortage(move |_| {
                second.fetch_add(1, Ordering::Relaxed);
                false
            })
    };
    let pool = hundred(options);
    number.set(pool.id()).unwrap();
    let kept = pool.allocate(Bytes::mib(60), DEFAULT).unwrap();
    let error = pool.allocate(Bytes::mib(60), DEFAULT).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    assert!(second.load(Ordering::Relaxed) > 1);
    assert_eq!(pool.statistics().callback_panics, 0);
    pool.free(kept.address(), DEFAULT).unwrap();
}

/// A callback whose own request fails is refused, and is not called again for it.
#[test]
fn who_is_asked_is_not_asked_while_he_answers() {
    let number: Arc<OnceLock<PoolId>> = Arc::default();
    let depth = Arc::new(AtomicU64::new(0));
    let deepest = Arc::new(AtomicU64::new(0));
    let options = {
        let (number, depth, deepest) =
            (Arc::clone(&number), Arc::clone(&depth), Arc::clone(&deepest));
        PoolOptions::new().on_shortage(move |_| {
            let now = depth.fetch_add(1, Ordering::Relaxed) + 1;
            deepest.fetch_max(now, Ordering::Relaxed);
            if now < 8 {
                let pool = Pool::find(*number.get().unwrap()).unwrap();
                assert!(pool.allocate(Bytes::mib(60), DEFAULT).is_err());
            }
            depth.fetch_sub(1, Ordering::Relaxed);
            false
        })
    };
    let pool = hundred(options);
    number.set(pool.id()).unwrap();
    pool.allocate(Bytes::mib(60), DEFAULT).unwrap();
    assert!(pool.allocate(Bytes::mib(60), DEFAULT).is_err());
    assert_eq!(deepest.load(Ordering::Relaxed), 1);
    assert_eq!(pool.statistics().callback_panics, 0);
}

/// A pressure callback may use the pool.
#[test]
fn who_is_told_of_pressure_may_use_the_pool() {
    let number: Arc<OnceLock<PoolId>> = Arc::default();
    let seen: Told<(Bytes, Bytes)> = Arc::default();
    let options = {
        let (number, seen) = (Arc::clone(&number), Arc::clone(&seen));
        PoolOptions::new().on_pressure(move |_, held| {
            let pool = Pool::find(*number.get().unwrap()).unwrap();
            let block = pool.allocate(Bytes::new(4096), DEFAULT).unwrap();
            pool.free(block.address(), DEFAULT).unwrap();
            seen.lock().unwrap().push((held, pool.statistics().held));
        })
    };
    let pool = hundred(options);
    number.set(pool.id()).unwrap();
    pool.allocate(Bytes::mib(82), DEFAULT).unwrap();
    assert_eq!(pool.statistics().callback_panics, 0);
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0].0, Bytes::mib(82));
    assert!(seen[0].1 >= Bytes::mib(82));
}

/// A shortage callback of one pool that allocates from another has the callbacks of the other called.
#[test]
fn who_is_asked_by_one_pool_may_have_another_ask() {
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let other = hundred(PoolOptions::new().on_shortage(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        false
    }));
    let within = other.clone();
    let pool = hundred(PoolOptions::new().on_shortage(move |_| {
        let _half = within.allocate(Bytes::mib(60), DEFAULT).unwrap();
        let error = within.allocate(Bytes::mib(60), DEFAULT).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
        false
    }));
    let _half = pool.allocate(Bytes::mib(60), DEFAULT).unwrap();
    assert!(pool.allocate(Bytes::mib(60), DEFAULT).is_err());
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    assert_eq!(pool.statistics().callback_panics, 0);
}

/// A panic of a callback ends there: the request goes on, and the panic is counted.
#[test]
fn a_callback_that_panics_is_as_one_that_lets_nothing_go() {
    let pool = hundred(
        PoolOptions::new()
            .on_shortage(|_| panic!("on purpose"))
            .on_shortage(|_| false)
            .on_pressure(|_, _| panic!("on purpose"))
            .on_event(|_| panic!("on purpose"))
            .on_drop(|_| panic!("on purpose")),
    );
    let block = pool.allocate(Bytes::mib(82), DEFAULT).unwrap();
    assert_eq!(pool.statistics().callback_panics, 2, "one of pressure, one of the event");
    let error = pool.allocate(Bytes::mib(60), DEFAULT).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    let statistics = pool.statistics();
    assert_eq!(statistics.callback_panics, 4);
    assert!(statistics.to_string().contains("4 panics"), "{statistics}");
    assert_eq!(pool.snapshot().statistics.callback_panics, 4);
    pool.free(block.address(), DEFAULT).unwrap();
    pool.allocate(Bytes::mib(60), DEFAULT).unwrap();
    // Its drop is told of a live block, and ends all the same.
    drop(pool);
}

/// Both can be asked while the driver works, or while someone looks at the heap for long.
#[test]
fn the_limit_and_the_pressure_are_told_without_waiting() {
    let pool = hundred(PoolOptions::new());
    let block = pool.allocate(Bytes::mib(82), DEFAULT).unwrap();
    let (backing, heap, settings) =
        (pool.shared.backing(), pool.shared.heap(), pool.shared.settings());
    let asking = pool.clone();
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        tell.send((asking.limit(), asking.pressure(), asking.held())).unwrap();
    });
    let answer = told.recv_timeout(std::time::Duration::from_secs(20));
    drop((backing, heap, settings));
    thread.join().unwrap();
    assert_eq!(answer, Ok((Bytes::mib(100), Level::Moderate, Bytes::mib(82))));
    pool.set("max_bytes", "200MiB").unwrap();
    assert_eq!((pool.limit(), pool.pressure()), (Bytes::mib(200), Level::Normal));
    pool.set("pressure_low", "50%").unwrap();
    assert_eq!(pool.pressure(), Level::Low);
    pool.free(block.address(), DEFAULT).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.held(), Bytes::ZERO);
}

/// Every change of the bytes held or of the limit reads the pressure.
#[test]
fn the_pressure_is_read_after_trimming_collecting_and_changing() {
    let told: Told<Level> = Arc::default();
    let note = Arc::clone(&told);
    let pool = hundred(PoolOptions::new().on_pressure(move |level, _| {
        note.lock().unwrap().push(level);
    }));
    let block = pool.allocate(Bytes::mib(50), DEFAULT).unwrap();
    pool.set("max_bytes", "60MiB").unwrap();
    assert_eq!(*told.lock().unwrap(), [Level::Moderate]);
    // A change of magazines does not make them large while it lasts.
    pool.set("magazine_bytes", "3MiB").unwrap();
    let little = fill_magazine(&pool);
    assert!(little < Bytes::new(320 << 10), "{little}");
    pool.free_block(block, DEFAULT).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(told.lock().unwrap().last(), Some(&Level::Low));
    let large = fill_magazine(&pool);
    assert!(large > Bytes::new(400 << 10), "{large}");
    let block = pool.allocate(Bytes::mib(50), DEFAULT).unwrap();
    pool.free_block(block, DEFAULT).unwrap();
    pool.device().synchronize_device().unwrap();
    told.lock().unwrap().clear();
    pool.collect(Duration::ZERO).unwrap();
    pool.collect(Duration::ZERO).unwrap();
    assert_eq!(*told.lock().unwrap(), [Level::Low]);
}
