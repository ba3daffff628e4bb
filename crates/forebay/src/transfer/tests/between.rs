//! Copies between devices of two kinds, or two devices of one.

use forebay_hal::Call;
use forebay_host::HostDevice;
use forebay_sim::{Fault, FaultKind, When};

use super::*;

/// The host as the other device, with an engine of small pieces.
fn host() -> (Pool, TransferEngine) {
    let device = HostDevice::open().unwrap();
    (Pool::new(&device).unwrap(), small().build(&device).unwrap())
}

#[test]
fn data_of_every_length_goes_to_another_kind_and_back() {
    let (sim, (pool, engine)) = (Bench::new(), host());
    // Half the stage has 32 KiB here: none, less than one, one, and several with a rest.
    for length in [0, 1, 1000, 32 << 10, (32 << 10) + 1, 100_003, 131_072] {
        let right = data(length, 7 + length as u64);
        let mut from = pool.on(DEFAULT).uninit::<u8>(length).unwrap();
        from.copy_from_slice(&right).unwrap();
        let mut there = sim.array(length);
        engine.copy_between(&from, &sim.engine, &mut there).unwrap();
        assert_eq!(there.to_vec().unwrap(), right, "{length} B to the simulated device");
        let mut back = pool.on(DEFAULT).zeros::<u8>(length).unwrap();
        sim.engine.copy_between(&there, &engine, &mut back).unwrap();
        assert_eq!(back.to_vec().unwrap(), right, "{length} B back");
    }
    sim.nothing_was_found();
}

#[test]
fn a_copy_comes_after_the_work_on_both_streams() {
    let (one, other) = (Bench::new(), Bench::new());
    let (mut from, mut to) = (one.array(200_000), other.array(200_000));
    for value in 1..5 {
        // Neither fill is waited for.
        from.fill(value).unwrap();
        to.fill(0).unwrap();
        one.engine.copy_between(&from, &other.engine, &mut to).unwrap();
        assert!(to.to_vec().unwrap().iter().all(|&byte| byte == value));
    }
    one.nothing_was_found();
    other.nothing_was_found();
}

#[test]
fn an_engine_copies_within_its_device_too() {
    let bench = Bench::new();
    let (mut from, mut to) = (bench.array(100_000), bench.array(100_000));
    from.fill(9).unwrap();
    bench.engine.copy_between(&from, &bench.engine, &mut to).unwrap();
    assert!(to.to_vec().unwrap().iter().all(|&byte| byte == 9));
    bench.nothing_was_found();
}

#[test]
fn elements_without_bytes_and_large_ones_are_copied() {
    let (sim, (pool, engine)) = (Bench::new(), host());
    let from = pool.on(DEFAULT).uninit::<()>(1_000_000).unwrap();
    let mut to = sim.pool.on(DEFAULT).uninit::<()>(1_000_000).unwrap();
    engine.copy_between(&from, &sim.engine, &mut to).unwrap();
    // Larger than half the stage.
    let mut from = pool.on(DEFAULT).uninit::<[u64; 1024]>(40).unwrap();
    let right: Vec<_> = (0..40).map(|number| [number; 1024]).collect();
    from.copy_from_slice(&right).unwrap();
    let mut to = sim.pool.on(DEFAULT).uninit::<[u64; 1024]>(40).unwrap();
    engine.copy_between(&from, &sim.engine, &mut to).unwrap();
    assert_eq!(to.to_vec().unwrap(), right);
}

#[test]
fn what_is_refused_writes_nothing() {
    let (sim, (pool, engine)) = (Bench::new(), host());
    let mut from = pool.on(DEFAULT).uninit::<u8>(1000).unwrap();
    from.fill(1).unwrap();
    let mut to = sim.array(1000);
    to.fill(2).unwrap();
    let mut short = sim.array(999);
    let refused = engine.copy_between(&from, &sim.engine, &mut short).unwrap_err().to_string();
    assert!(refused.contains("1000 elements") && refused.contains("999 elements"), "{refused}");
    // The engines are the wrong way round.
    assert!(sim.engine.copy_between(&from, &engine, &mut to).is_err());
    assert!(engine.copy_between(&from, &engine, &mut to).is_err());
    assert!(to.to_vec().unwrap().iter().all(|&byte| byte == 2), "nothing was written");
}

#[test]
fn a_failure_on_either_side_ends_the_copy_and_leaves_both_usable() {
    let (one, other) = (Bench::new(), Bench::new());
    let (mut from, mut to) = (one.array(200_000), other.array(200_000));
    for machine in [&one.machine, &other.machine] {
        from.fill(3).unwrap();
        to.fill(0).unwrap();
        machine.plan(Fault::new(When::Every(Call::Copy), FaultKind::Transient));
        assert!(one.engine.copy_between(&from, &other.engine, &mut to).is_err());
        machine.clear_faults();
        one.engine.copy_between(&from, &other.engine, &mut to).unwrap();
        assert!(to.to_vec().unwrap().iter().all(|&byte| byte == 3));
    }
    one.nothing_was_found();
    other.nothing_was_found();
}
