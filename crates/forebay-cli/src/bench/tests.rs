//! Measuring an allocator that is broken, and one that is not.

use core::sync::atomic::{AtomicU64, Ordering};

use forebay_hal::{Call, StreamHandle};

use super::subject::Subject;
use super::*;

/// Counts what it is asked, and refuses from one allocation on.
struct Counter {
    allocated: AtomicU64,
    freed: AtomicU64,
    refuse_from: u64,
}

impl Counter {
    fn new(refuse_from: u64) -> Self {
        Self { allocated: AtomicU64::new(0), freed: AtomicU64::new(0), refuse_from }
    }

    fn counts(&self) -> (u64, u64) {
        (self.allocated.load(Ordering::Relaxed), self.freed.load(Ordering::Relaxed))
    }
}

impl Subject for Counter {
    type Held = ();

    fn allocate(&self, size: Bytes, _: StreamHandle) -> forebay::Result<()> {
        if self.allocated.fetch_add(1, Ordering::Relaxed) + 1 < self.refuse_from {
            return Ok(());
        }
        self.allocated.fetch_sub(1, Ordering::Relaxed);
        let (free, total) = (Bytes::ZERO, Bytes::gib(1));
        let call = Call::Allocate;
        Err(forebay_hal::Error::OutOfMemory { call, requested: size, free, total }.into())
    }

    fn free(&self, (): (), _: StreamHandle) -> forebay::Result<()> {
        self.freed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn setup(settings: &Settings) -> BenchSetup<'_> {
    BenchSetup { place: DeviceName::SIM, effort: Effort::Quick, settings, foreign: &[] }
}

#[test]
fn a_limit_that_was_set_stands_before_a_workloads_own() {
    let fresh = FreshDevice::open(DeviceName::SIM, None).unwrap();
    for (conf, limit) in [("", Bytes::gib(3)), ("max_bytes:2GiB", Bytes::gib(2))] {
        let settings = Settings::parse_conf(conf).unwrap();
        let pool = setup(&settings).pool(&fresh.device, Some(Bytes::gib(3))).unwrap();
        assert_eq!(pool.limit(), limit, "{conf}");
    }
}

fn played(subject: &Counter, sequence: &Sequence) -> Result<Vec<Measured>, Fault> {
    let fresh = FreshDevice::open(DeviceName::SIM, None).unwrap();
    play::play(subject, &fresh, fresh.host_clock(), sequence, &sequence.scripts())
}

#[test]
fn everything_is_played_once_and_what_is_timed_has_a_time() {
    for &workload in Workload::ALL {
        for sequence in workload.sequences(Bytes::gib(16)).unwrap() {
            let subject = Counter::new(u64::MAX);
            let measured = played(&subject, &sequence).unwrap();
            let blocks = sequence.trace().blocks() as u64;
            assert_eq!(subject.counts(), (blocks, blocks), "{workload}");
            for (measured, phase) in measured.iter().zip(sequence.phases()) {
                assert!(!measured.elapsed.is_zero(), "{workload} {}", phase.case);
                let each = if phase.timing == Timing::Each { phase.operations() } else { 0 };
                assert_eq!(measured.each.len() as u64, each, "{workload}");
            }
        }
    }
}

#[test]
fn an_allocator_that_refuses_fails_and_gets_everything_back() {
    // On one thread, and on four that wait for each other.
    for workload in [Workload::MpReuse, Workload::MpConc] {
        let sequence = workload.sequences(Bytes::gib(16)).unwrap().remove(0);
        let subject = Counter::new(700);
        let refused = played(&subject, &sequence).unwrap_err();
        assert!(refused.to_string().contains("out of memory"), "{refused}");
        let (allocated, freed) = subject.counts();
        assert!(allocated >= 699 && allocated == freed, "{workload}: {allocated} {freed}");
    }
}

#[test]
fn a_device_that_is_too_small_is_a_failed_row() {
    let sequence = Workload::MpReuse.sequences(Bytes::gib(16)).unwrap().remove(0);
    let fresh = FreshDevice::open(DeviceName::SIM, Some(Bytes::mib(512))).unwrap();
    let pool = forebay::Pool::new(&fresh.device).unwrap();
    let scripts = sequence.scripts();
    let clock = fresh.host_clock();
    let error = play::play(&Forebay(pool), &fresh, clock, &sequence, &scripts).unwrap_err();
    assert!(error.to_string().contains("out of memory: 1.00 MiB"), "{error}");
    let mut table = Table::new(Allocator::Forebay, &sequence);
    table.error = Some(error.to_string());
    let plain = Settings::default();
    let row = table.row(Workload::MpReuse, setup(&plain), 0, 0).unwrap();
    assert!(row.ns_per_op.is_none() && row.error.is_some());
}

#[test]
fn the_best_round_counts_and_every_pair_is_kept() {
    use core::time::Duration;
    let sequence = Workload::MpLat.sequences(Bytes::gib(16)).unwrap().remove(0);
    let mut table = Table::new(Allocator::Forebay, &sequence);
    let round = |nanos: u64, price: u64| {
        let one = Measured {
            elapsed: Duration::from_nanos(nanos),
            driver: Some(Duration::from_nanos(price)),
            each: vec![nanos],
        };
        vec![Measured::default(), one]
    };
    for (nanos, price) in [(900, 5), (300, 7), (600, 9)] {
        table.enter(round(nanos, price), "host");
    }
    let best = table.best[1].clone().unwrap();
    assert_eq!((best.elapsed.as_nanos(), best.driver.unwrap().as_nanos()), (300, 7));
    let plain = Settings::default();
    let row = table.row(Workload::MpLat, setup(&plain), 1, 20).unwrap();
    let each = row.each.unwrap();
    assert_eq!((row.rounds, each.min_ns, each.p50_ns, each.clock_ns), (3, 300, 600, 20));
    assert_eq!(row.ns_per_op, Some(600.0), "the mean of all that were timed");
    assert!(table.row(Workload::MpLat, setup(&plain), 0, 20).is_none(), "the warm-up has no row");
}

#[test]
fn the_driver_is_priced_by_the_table_on_the_simulated_device() {
    let sequence = Workload::MpT.sequences(Bytes::gib(16)).unwrap().remove(0);
    let scripts = sequence.scripts();
    let plain = Settings::default();
    let (measured, clock) =
        play_fresh(Allocator::Driver, setup(&plain), &sequence, &scripts).unwrap();
    let costs = forebay_sim::CostModel::H200;
    let pair = costs.call(Call::Allocate, Bytes::mib(1)) + costs.call(Call::Free, Bytes::mib(1));
    assert_eq!((clock, measured[1].elapsed), ("model", pair * 1000));
}
