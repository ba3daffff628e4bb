//! Devices that refuse to take something back: it is kept, counted and tried again, and keeps nothing
//! else from going.

use forebay_hal::Capabilities;

use super::*;
use crate::config::Zeroing;

/// The next call of a kind fails.
fn refuse_next(machine: &SimMachine, call: Call) {
    let next = machine.calls().of(call) + 1;
    machine.plan(Fault::new(When::Kind(call, next), FaultKind::Transient));
}

/// Four free pages of 64 KiB.
fn four_pages(device: &Arc<dyn Device>) -> Pool {
    let pool = PoolOptions::new().growth(small_pages()).build(device).unwrap();
    let block = pool.allocate(Bytes::new(1 << 20), DEFAULT).unwrap();
    pool.free_block(block, DEFAULT).unwrap();
    pool
}

fn page_machine() -> SimOptions {
    SimMachine::builder().granularity(PageSize::HOST)
}

#[test]
fn a_page_that_cannot_be_unmapped_keeps_no_other_from_going() {
    let (machine, _, device) = open(page_machine());
    let pool = four_pages(&device);
    let held = pool.held();
    refuse_next(&machine, Call::Unmap);
    pool.trim(Bytes::ZERO).unwrap_err();
    assert!(!pool.held().is_zero());
    assert!(pool.held() <= Bytes::new(64 << 10), "{} of {held} is still held", pool.held());
    assert_eq!(pool.trim(Bytes::ZERO).unwrap(), Bytes::new(64 << 10));
    assert_eq!(machine.census().held, Bytes::ZERO);
}

#[test]
fn a_page_that_is_not_taken_back_keeps_no_other_from_going() {
    let (machine, _, device) = open(page_machine());
    let pool = four_pages(&device);
    let next = machine.calls().of(Call::ReleasePage);
    for number in 1..=3 {
        let when = When::Kind(Call::ReleasePage, next + number);
        machine.plan(Fault::new(when, FaultKind::Transient));
    }
    let _ = pool.trim(Bytes::ZERO);
    assert_eq!(pool.held(), machine.census().held, "what the device has not is counted");
    pool.process_deferred().unwrap();
    assert_eq!((pool.held(), machine.census().held), (Bytes::ZERO, Bytes::ZERO));
}

/// A stranded mapping does not keep the pages of others.
#[test]
fn an_old_mapping_that_stands_keeps_no_page_from_going() {
    let (machine, device, shared) = open(page_machine());
    let pool = PoolOptions::new().growth(small_pages()).build(&shared).unwrap();
    let blocks: Vec<Block> =
        (0..8).map(|_| pool.allocate(Bytes::mib(1), DEFAULT).unwrap()).collect();
    for block in blocks.iter().step_by(2) {
        pool.free_block(*block, DEFAULT).unwrap();
    }
    // Of the pages between the others: their old mappings are to go.
    let large = pool.allocate(Bytes::mib(4), DEFAULT).unwrap();
    pool.free_block(large, DEFAULT).unwrap();
    device.synchronize_device().unwrap();
    pool.collect(Duration::ZERO).unwrap();
    let large = pool.allocate(Bytes::mib(5), DEFAULT).unwrap();
    pool.free_block(large, DEFAULT).unwrap();
    device.synchronize_device().unwrap();
    pool.collect(Duration::ZERO).unwrap();
    let large = pool.allocate(Bytes::mib(5), DEFAULT).unwrap();
    pool.free_block(large, DEFAULT).unwrap();
    pool.shared.heap().ledger.window_peak = Bytes::ZERO;
    device.synchronize_device().unwrap();
    refuse_next(&machine, Call::Unmap);
    let _ = pool.collect(Duration::ZERO);
    device.synchronize_device().unwrap();
    // Some at a time.
    for _ in 0..10 {
        pool.process_deferred().unwrap();
    }
    let left = pool.held().saturating_sub(Bytes::mib(4));
    assert!(left <= Bytes::new(64 << 10), "{left} beside what is in blocks");
    for block in blocks.iter().skip(1).step_by(2) {
        pool.free_block(*block, DEFAULT).unwrap();
    }
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(machine.census().held, Bytes::ZERO);
}

#[test]
fn a_segment_that_the_device_would_not_take_back_is_counted_and_goes_later() {
    let (machine, _, device) = open(SimMachine::builder().without(Capabilities::VIRTUAL_MEMORY));
    let pool = PoolOptions::new().set(|set| set.zero(Zeroing::Pages)).build(&device).unwrap();
    refuse_next(&machine, Call::Fill);
    refuse_next(&machine, Call::Free);
    pool.allocate(Bytes::mib(3), DEFAULT).unwrap_err();
    assert!(!pool.held().is_zero());
    assert_eq!(pool.held(), machine.census().held);
    pool.process_deferred().unwrap();
    assert_eq!((pool.held(), machine.census().held), (Bytes::ZERO, Bytes::ZERO));
    let block = pool.allocate(Bytes::mib(3), DEFAULT).unwrap();
    refuse_next(&machine, Call::Fill);
    refuse_next(&machine, Call::Free);
    pool.allocate(Bytes::mib(30), DEFAULT).unwrap_err();
    pool.free_block(block, DEFAULT).unwrap();
    drop(pool);
    nothing_is_left(&machine);
}

/// A device that waits for all its work before it takes memory back: what is said not to wait gives it
/// nothing, and what may wait does so as long as it may, before it gives.
#[test]
fn a_device_that_waits_gets_segments_only_from_who_may_wait() {
    let without = Capabilities::VIRTUAL_MEMORY | Capabilities::PROMPT_FREE;
    let (machine, _, device) = open(SimMachine::builder().without(without));
    let pool = PoolOptions::new().build(&device).unwrap();
    let block = pool.allocate(Bytes::mib(30), DEFAULT).unwrap();
    pool.free_block(block, DEFAULT).unwrap();
    pool.collect(core::time::Duration::ZERO).unwrap();
    device.synchronize_device().unwrap();
    pool.collect(core::time::Duration::ZERO).unwrap();
    pool.process_deferred().unwrap();
    let frees = |machine: &SimMachine| machine.calls().of(Call::Free);
    assert_eq!(frees(&machine), 0, "nothing that does not wait gives memory back");
    assert_eq!(pool.held(), machine.census().held);
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!((pool.held(), machine.census().held), (Bytes::ZERO, Bytes::ZERO));
    assert!(frees(&machine) > 0);
}

/// The feature `tracing`: growth, releases and refusals are told, and the listener may use the pool.
#[cfg(feature = "tracing")]
#[test]
fn slow_calls_are_told_and_the_listener_may_use_the_pool() {
    use std::sync::Mutex;
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    struct Listener(Pool, Arc<Mutex<Vec<String>>>);
    struct Message<'a>(&'a Mutex<Vec<String>>);

    impl Visit for Message<'_> {
        fn record_debug(&mut self, field: &Field, value: &dyn core::fmt::Debug) {
            if field.name() == "message" {
                self.0.lock().unwrap().push(format!("{value:?}"));
            }
        }
    }

    impl Subscriber for Listener {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "forebay"
        }
        fn event(&self, event: &Event<'_>) {
            event.record(&mut Message(&self.1));
            // With any lock held, this would never return.
            self.0.statistics();
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    let machine = SimMachine::builder().capacity(Bytes::mib(64)).build().unwrap();
    let pool = Pool::new(&machine.device(0).unwrap()).unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    tracing::subscriber::with_default(Listener(pool.clone(), Arc::clone(&told)), || {
        drop(pool.on(DEFAULT).owned(Bytes::mib(40)).unwrap());
        let hit = pool.allocate(Bytes::mib(40), DEFAULT).unwrap();
        pool.free_block(hit, DEFAULT).unwrap();
        assert!(pool.allocate(Bytes::mib(100), DEFAULT).is_err());
        pool.trim(Bytes::ZERO).unwrap();
    });
    assert_eq!(*told.lock().unwrap(), ["held memory changed", "refused", "released"]);
}

/// The feature `metrics`: what a pool holds, refuses and releases, for whatever exporter the program has.
#[cfg(feature = "metrics")]
#[test]
fn slow_calls_are_counted_for_exporters() {
    use metrics::{
        Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata,
        Recorder, SharedString, Unit,
    };
    use std::sync::Mutex;

    type Told = Arc<Mutex<Vec<String>>>;
    struct Exporter(Told);
    struct Figure(Told, String);

    impl Figure {
        fn tell(&self, value: impl core::fmt::Display) {
            self.0.lock().unwrap().push(format!("{} {value}", self.1));
        }
    }
    impl CounterFn for Figure {
        fn increment(&self, value: u64) {
            self.tell(value);
        }
        fn absolute(&self, _: u64) {}
    }
    impl GaugeFn for Figure {
        fn increment(&self, _: f64) {}
        fn decrement(&self, _: f64) {}
        fn set(&self, value: f64) {
            self.tell(value);
        }
    }
    impl HistogramFn for Figure {
        fn record(&self, value: f64) {
            self.tell(value >= 0.0);
        }
    }
    impl Exporter {
        fn figure(&self, key: &Key) -> Arc<Figure> {
            assert_eq!(key.labels().map(|label| label.key()).collect::<Vec<_>>(), ["pool"]);
            Arc::new(Figure(Arc::clone(&self.0), key.name().to_owned()))
        }
    }
    impl Recorder for Exporter {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.figure(key))
        }
        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.figure(key))
        }
        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::from_arc(self.figure(key))
        }
    }

    let machine = SimMachine::builder().capacity(Bytes::mib(64)).build().unwrap();
    let pool = Pool::new(&machine.device(0).unwrap()).unwrap();
    let told = Told::default();
    metrics::with_local_recorder(&Exporter(Arc::clone(&told)), || {
        drop(pool.on(DEFAULT).owned(Bytes::mib(40)).unwrap());
        drop(pool.on(DEFAULT).owned(Bytes::mib(40)).unwrap());
        assert!(pool.allocate(Bytes::mib(100), DEFAULT).is_err());
        pool.trim(Bytes::ZERO).unwrap();
    });
    let held = Bytes::mib(40).get();
    let expected = [
        "forebay_pool_growth_seconds true".to_owned(),
        format!("forebay_pool_held_bytes {held}"),
        "forebay_pool_refusals_total 1".to_owned(),
        format!("forebay_pool_held_bytes {held}"),
        format!("forebay_pool_released_bytes_total {held}"),
        "forebay_pool_held_bytes 0".to_owned(),
    ];
    assert_eq!(*told.lock().unwrap(), expected);
}
