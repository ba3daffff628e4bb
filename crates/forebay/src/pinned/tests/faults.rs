//! Calls of the device that fail.

use forebay_hal::Call;
use forebay_sim::{Fault, FaultKind, When};

use super::*;

const LENGTH: usize = 100_000;

/// A short program. Calls may fail; what it sees must be true all the same. Returns the calls that the device got.
/// What the library gives back it tries twice, so that only further failures leave anything behind.
fn program(machine: SimOptions, faults: &[Fault]) -> u64 {
    let machine = machine.seed(1).build().unwrap();
    let device = machine.device(0).unwrap();
    let pool = PoolOptions::new().build(&device).unwrap();
    let mut array = pool.on(DEFAULT).uninit::<u8>(LENGTH).unwrap();
    array.copy_from_slice(&[0; LENGTH]).unwrap();
    let before = machine.calls().total();
    for fault in faults {
        machine.plan(*fault);
    }
    let mut held = 0;
    if let Ok(pinned) = PinnedOptions::new().max_bytes(Bytes::mib(4)).build(&device) {
        for value in 1..8 {
            let Ok(mut batch) = pinned.array::<u8>(LENGTH) else { continue };
            if let Ok(slice) = batch.host_mut() {
                slice.fill(value);
            }
            let copied = batch.copy_to(&mut array).is_ok();
            let Ok(mut back) = pinned.array::<u8>(LENGTH) else { continue };
            drop(batch);
            let came = back.copy_from(&array).is_ok();
            if let (true, true, Ok(back)) = (copied, came, back.host()) {
                assert_eq!(back, [value; LENGTH]);
            }
        }
        held = pinned.held().get();
    }
    machine.clear_faults();
    drop((array, pool));
    assert_eq!(machine.finding_count(), 0, "{:?}", machine.findings().first());
    assert!(held <= Bytes::mib(4).get());
    let left = machine.census();
    if faults.len() < 2 {
        assert_eq!((left.blocks, left.events, left.streams), (0, 0, 1), "{left}");
        assert_eq!((left.pages, left.mappings, left.regions), (0, 0, 0), "{left}");
    }
    machine.calls().total() - before
}

#[test]
fn any_call_may_fail_and_nothing_is_lost_or_read_early() {
    for machine in both_kinds() {
        let calls = program(machine.clone(), &[]);
        assert!(calls > 50);
        for (kind, count) in [FaultKind::Transient, FaultKind::OutOfMemory]
            .into_iter()
            .flat_map(|kind| [(kind, 1), (kind, 3)])
        {
            for first in 1..=calls {
                let failing = |number| Fault::new(When::Call(number), kind);
                let faults: Vec<Fault> = (first..first + count).map(failing).collect();
                program(machine.clone(), &faults);
            }
        }
    }
}

#[test]
fn an_event_that_cannot_be_recorded_is_replaced_by_a_wait() {
    let bench = Bench::new();
    let mut array = bench.array(LENGTH, DEFAULT);
    let pinned = bench.filled(LENGTH, 3);
    bench.machine.plan(Fault::new(When::Every(Call::RecordEvent), FaultKind::Transient));
    pinned.copy_to(&mut array).unwrap();
    bench.machine.clear_faults();
    assert!(pinned.is_idle());
    assert_eq!(contents(&array), vec![3; LENGTH]);
}

#[test]
fn memory_of_a_lost_device_stays_where_it_is() {
    for machine in both_kinds() {
        let bench = Bench::with(machine, PinnedOptions::new());
        let array = bench.array(LENGTH, DEFAULT);
        let mut pinned = bench.filled(LENGTH, 3);
        pinned.copy_from(&array).unwrap();
        bench.machine.lose(0);
        let error = pinned.host().unwrap_err();
        assert!(matches!(error, Error::Device(forebay_hal::Error::Lost { .. })), "{error}");
        drop(pinned);
        let before = bench.machine.census();
        drop(bench.pinned);
        let after = bench.machine.census();
        assert_eq!((after.blocks, after.mappings), (before.blocks, before.mappings), "still used");
    }
}
