//! Every setting that can change while a pool lives does what it says from then on.

use core::time::Duration;

use forebay_core::pressure::Level;

use super::*;
use crate::config::{Key, SettingsBuilder, Source};

fn pool() -> Pool {
    let device = open(SimMachine::builder().memory(MemoryModel::Phantom)).2;
    PoolOptions::new().build(&device).unwrap()
}

fn pair(pool: &Pool, size: Bytes) -> Bytes {
    let block = pool.allocate(size, DEFAULT).unwrap();
    pool.free(block.address(), DEFAULT).unwrap();
    pool.statistics().cached
}

#[test]
fn a_change_may_call_the_pool() {
    let pool = pool();
    pool.change(|settings| {
        let history = pool.settings().history();
        pool.set("max_wait", "1s").unwrap();
        settings.history(history + 7)
    })
    .unwrap();
    let settings = pool.settings();
    assert_eq!((settings.history(), settings.max_wait()), (7, Duration::from_secs(1)));
}

/// Making another key changeable means writing a test here.
#[test]
fn these_can_change() {
    let changeable = Key::ALL.iter().filter(|key| key.is_changeable()).map(|key| key.name());
    assert_eq!(
        changeable.collect::<Vec<_>>(),
        [
            "max_bytes",
            "max_fraction",
            "min_bytes",
            "magazine_bytes",
            "history",         // in scope.rs
            "stacks",          // there too
            "upkeep",          // in upkeep.rs
            "upkeep_interval", // there too
            "grow_ahead",      // there too
            "collect_after",   // there too
            "max_wait",        // in stress.rs
            "pressure_low",
            "pressure_moderate",
            "pressure_high",
            "pressure_critical",
            "largest_page",
            "quarantine", // in the tests of the debug checks
            "oom_report", // in post_mortem.rs
        ]
    );
}

#[test]
fn the_limit_can_be_lowered_and_raised() {
    let pool = pool();
    pool.set("max_bytes", "64MiB").unwrap();
    assert_eq!(pool.limit(), Bytes::mib(64));
    let block = pool.allocate(Bytes::mib(60), DEFAULT).unwrap();
    assert!(pool.allocate(Bytes::mib(60), DEFAULT).is_err());
    pool.set("max_bytes", "none").unwrap();
    assert!(pool.allocate(Bytes::mib(60), DEFAULT).is_ok());
    // A limit below the bytes held takes nothing away, and allows no more.
    pool.set("max_bytes", "8MiB").unwrap();
    assert!(pool.block_at(block.address()).is_some());
    let before = pool.held();
    assert!(pool.allocate(Bytes::mib(200), DEFAULT).is_err());
    assert!(pool.held() <= before);
    pool.set("max_bytes", "none").unwrap();
    let total = pool.device().memory_info().unwrap().total;
    pool.set("max_fraction", "0.5").unwrap();
    assert_eq!(pool.limit(), Bytes::new(total.get() / 2));
    let entry = pool.settings().get("max_fraction").unwrap();
    assert_eq!(entry.source, Source::RunTime);
}

#[test]
fn what_is_kept_can_change() {
    let pool = pool();
    pair(&pool, Bytes::mib(128));
    pool.set("min_bytes", "64MiB").unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert!(pool.held() >= Bytes::mib(64));
    pool.set("min_bytes", "0").unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.held(), Bytes::ZERO);
}

#[test]
fn magazines_can_be_made_smaller_and_larger() {
    let pool = pool();
    let full = fill_magazine(&pool);
    assert!(full > Bytes::mib(1), "{full}");
    pool.set("magazine_bytes", "256KiB").unwrap();
    let little = fill_magazine(&pool);
    assert!(little < Bytes::new(320 << 10), "{little}");
    pool.set("magazine_bytes", "0").unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(fill_magazine(&pool), Bytes::ZERO);
    pool.set("magazine_bytes", "16MiB").unwrap();
    assert_eq!(fill_magazine(&pool), full);
}

#[test]
fn levels_of_pressure_can_be_moved() {
    let pool = pool();
    pool.set("max_bytes", "100MiB").unwrap();
    let _block = pool.allocate(Bytes::mib(64), DEFAULT).unwrap();
    assert_eq!((pool.held(), pool.pressure()), (Bytes::mib(64), Level::Normal));
    for (key, value, level) in [
        ("pressure_low", "0.7", Level::Low),
        ("pressure_low", "0.1", Level::Normal),
        ("pressure_moderate", "0.6", Level::Moderate),
        ("pressure_high", "0.61", Level::High),
        ("pressure_critical", "0.62", Level::Critical),
        ("pressure_critical", "0.99", Level::High),
    ] {
        pool.set(key, value).unwrap();
        assert_eq!(pool.pressure(), level, "{key}={value}");
    }
}

#[test]
fn the_largest_page_can_change() {
    let pool = pool();
    let largest = |pool: &Pool| {
        let log = pool.statistics().driver;
        let pages = log.entries().filter(|&(call, ..)| call == Call::CreatePage);
        pages.map(|(_, size, _)| size).max().unwrap()
    };
    pool.set("largest_page", "4MiB").unwrap();
    let _small = pool.allocate(Bytes::mib(64), DEFAULT).unwrap();
    assert_eq!(largest(&pool), Bytes::mib(4));
    pool.set("largest_page", "16MiB").unwrap();
    let _large = pool.allocate(Bytes::mib(64), DEFAULT).unwrap();
    assert!(largest(&pool) > Bytes::mib(4) && largest(&pool) <= Bytes::mib(16));
}

/// What is refused changes nothing, and says why.
#[test]
fn what_cannot_change_is_refused() {
    let pool = pool();
    let before = pool.settings();
    for (key, value) in [
        ("magazines", "off"),
        ("poison", "on"),
        ("max_byte", "1GiB"),
        ("max_bytes", "much"),
        ("max_bytes", "0"),
        ("pressure_low", "0.9"),
        ("upkeep_interval", "0s"),
    ] {
        let error = pool.set(key, value).unwrap_err();
        assert!(matches!(error, Error::Config(_)), "{error}");
    }
    pool.set("min_bytes", "1GiB").unwrap();
    assert!(pool.set("max_bytes", "512MiB").is_err(), "less than is to be kept");
    pool.set("min_bytes", "0").unwrap();
    let mut same = pool.settings();
    same.change("min_bytes", "0").unwrap();
    assert_eq!(pool.settings().collect_after(), Some(Duration::from_secs(60)));
    assert_eq!((pool.settings().max_bytes(), before.max_bytes()), (None, None));
}

#[test]
fn settings_change_by_typed_calls() {
    let pool = pool();
    let larger =
        |settings: SettingsBuilder| settings.min_bytes(Bytes::mib(4)).max_bytes(Bytes::mib(64));
    pool.change(larger).unwrap();
    let after = pool.settings();
    assert_eq!((after.min_bytes(), after.max_bytes()), (Bytes::mib(4), Some(Bytes::mib(64))));
    assert_eq!(after.get("max_bytes").unwrap().source, Source::RunTime);
    let error = pool.change(|settings| settings.history(10_u64).poison(true)).unwrap_err();
    assert!(error.to_string().contains("poison"), "{error}");
    assert!(
        pool.change(|settings| settings.max_bytes(Bytes::mib(2))).is_err(),
        "less than is to be kept"
    );
    assert_eq!(pool.settings(), after, "all or nothing");
    pool.change(|settings| settings).unwrap();
    assert_eq!(pool.settings(), after);
}

/// An observer may call everything, also while it is attached.
#[test]
fn an_observer_may_use_the_pool() {
    use std::sync::mpsc;
    let calls: [fn(&Pool, Block); 12] = [
        |pool, _| drop(pool.statistics()),
        |pool, _| _ = pool.held(),
        |pool, _| drop(pool.settings()),
        |pool, _| pool.set("history", "10").unwrap(),
        |pool, _| drop(pool.on(DEFAULT).owned(Bytes::new(300 << 10)).unwrap()),
        |pool, _| drop(pool.snapshot()),
        |pool, _| drop(pool.history()),
        |pool, block| drop(pool.free_block(block, DEFAULT)),
        |pool, _| _ = pool.trim(Bytes::ZERO).unwrap(),
        |pool, block| _ = pool.block_at(block.address()),
        |pool, _| drop(pool.capture().unwrap()),
        |pool, _| drop(pool.observe(|_| ()).unwrap()),
    ];
    for (number, call) in calls.into_iter().enumerate() {
        let (done, is_done) = mpsc::channel();
        std::thread::spawn(move || {
            let pool = pool();
            let block = pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
            let (within, events) = (pool.clone(), Arc::new(AtomicU64::new(0)));
            let count = Arc::clone(&events);
            let observation = pool.observe(move |_| {
                count.fetch_add(1, Ordering::Relaxed);
                call(&within, block);
            });
            let observation = observation.unwrap();
            drop(pool.on(DEFAULT).owned(Bytes::mib(2)).unwrap());
            drop(observation);
            let panics = pool.statistics().callback_panics;
            done.send((events.load(Ordering::Relaxed), panics)).unwrap();
        });
        let seen = is_done.recv_timeout(Duration::from_secs(20));
        assert_eq!(seen, Ok((3, 0)), "call {number}");
    }
}

/// What other threads do while an observer hears of the live blocks comes after those, and is not lost.
#[test]
fn events_of_other_threads_come_after_the_live_blocks() {
    let pool = pool();
    let kept: Vec<_> = (0..50).map(|_| pool.on(DEFAULT).owned(Bytes::new(4096)).unwrap()).collect();
    let told: Arc<std::sync::Mutex<Vec<crate::report::PoolEvent>>> = Arc::default();
    let note = Arc::clone(&told);
    let (begin, begun) = std::sync::mpsc::sync_channel(0);
    std::thread::scope(|scope| {
        let other = pool.clone();
        scope.spawn(move || {
            begun.recv().unwrap();
            for _ in 0..20 {
                drop(other.on(DEFAULT).owned(Bytes::new(8192)).unwrap());
            }
        });
        let observation = pool.observe(move |event| {
            if note.lock().unwrap().is_empty() {
                begin.send(()).unwrap();
            }
            std::thread::sleep(Duration::from_micros(200));
            note.lock().unwrap().push(*event);
        });
        std::thread::sleep(Duration::from_millis(30));
        drop(observation.unwrap());
    });
    let told = told.lock().unwrap();
    let sizes: Vec<u64> = told.iter().map(|event| event.requested.get()).collect();
    assert_eq!(sizes[..50], [4096; 50]);
    assert!(sizes[50..].iter().all(|&size| size == 8192) && sizes.len() == 90, "{sizes:?}");
    drop(kept);
}

/// Threads that are faster than an observer do not keep it from catching up, be they two or many.
#[test]
fn an_observer_catches_up_with_faster_threads() {
    for (threads, took) in [(2, Duration::from_micros(30)), (24, Duration::from_micros(200))] {
        observe_beside(threads, took);
    }
}

fn observe_beside(threads: usize, took: Duration) {
    /// An observer that has heard this many has not caught up. Counted, not timed: a busy machine takes longer.
    const MAX: u64 = 200_000;
    let pool = pool();
    let kept: Vec<_> =
        (0..2000).map(|_| pool.on(DEFAULT).owned(Bytes::new(512)).unwrap()).collect();
    let (is_over, heard) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while is_over.load(Ordering::Relaxed) == 0 {
                    drop(pool.on(DEFAULT).owned(Bytes::new(4096)).unwrap());
                }
            });
        }
        let (end, count) = (Arc::clone(&is_over), Arc::clone(&heard));
        let observation = pool.observe(move |_| {
            std::thread::sleep(took);
            if count.fetch_add(1, Ordering::Relaxed) == MAX {
                end.store(1, Ordering::Relaxed);
            }
        });
        is_over.store(1, Ordering::Relaxed);
        drop(observation.unwrap());
    });
    let heard = heard.load(Ordering::Relaxed);
    assert!(heard < MAX, "{threads} threads: {heard} events");
    drop(kept);
}
