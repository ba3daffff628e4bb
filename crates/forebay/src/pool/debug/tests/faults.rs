//! Every call of the driver failed in turn, with aids on: nothing is lost, and nothing is taken for a
//! mistake of the program.

use forebay_core::{Bytes, Random, Span};
use forebay_hal::{Call, Priority, StreamHandle, Streams};
use forebay_sim::{Fault, FaultKind, When};

use super::{COMBINATIONS, Change, DEFAULT, Stage, small_machine, small_pages, span_of};
use crate::Block;

/// Runs a program with one fault; gives how many calls it made, and how many operations failed.
fn run(name: &str, change: Change, fault: Option<(u64, FaultKind)>) -> (u64, u64) {
    let machine = small_machine(2).capacity(Bytes::new(512 << 10));
    let stage = Stage::new(machine, small_pages().set(change));
    let Stage { machine, device, pool } = &stage;
    let other = device.create_stream(Priority::Normal).unwrap();
    let before = machine.calls().total();
    if let Some((number, kind)) = fault {
        machine.plan(Fault::new(When::Call(before + number), kind));
    }
    let mut random = Random::new(5);
    let (mut live, mut failed): (Vec<(Block, StreamHandle)>, u64) = (Vec::new(), 0);
    for step in 0..24 {
        let stream = if step % 3 == 0 { other } else { DEFAULT };
        if live.len() < 4 || (live.len() < 8 && random.chance(1, 2)) {
            let size = Bytes::new(1 + random.below(40 << 10));
            match pool.allocate(size, stream) {
                Ok(block) => live.push((block, stream)),
                Err(error) => {
                    assert!(!error.is_finding(), "{error}");
                    failed += 1;
                }
            }
        } else {
            let index = random.index(live.len()).unwrap();
            let (block, stream) = live[index];
            if step % 5 == 0 {
                let user = if stream == DEFAULT { other } else { DEFAULT };
                failed += u64::from(pool.record_use(block.address(), user).is_err());
            }
            match pool.free(block.address(), stream) {
                Ok(()) => drop(live.swap_remove(index)),
                Err(error) => {
                    // Nothing was changed: it is live still.
                    assert!(!error.is_finding(), "{error}");
                    assert_eq!(pool.block_at(block.address()), Some(block));
                    failed += 1;
                }
            }
        }
        if step == 15 {
            failed += u64::from(pool.check().is_err_and(|error| {
                assert!(!error.is_finding(), "{error}");
                true
            }));
        }
        if step == 19 {
            failed += u64::from(pool.trim(Bytes::ZERO).is_err());
        }
        let mut spans: Vec<Span> = live.iter().map(|&(block, _)| span_of(block)).collect();
        spans.sort_unstable();
        assert!(spans.windows(2).all(|pair| !pair[0].overlaps(pair[1])), "blocks overlap");
    }
    let calls = machine.calls().total() - before;
    machine.clear_faults();
    for (block, stream) in live {
        pool.free(block.address(), stream).unwrap();
    }
    pool.check().unwrap();
    device.synchronize_device().unwrap();
    pool.process_deferred().unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    let figures = pool.statistics();
    assert_eq!(
        (figures.live, figures.held),
        (Bytes::ZERO, Bytes::ZERO),
        "{name}: memory is lost: {fault:?}"
    );
    assert_eq!((figures.retired, figures.quarantined), (Bytes::ZERO, Bytes::ZERO));
    assert_eq!(pool.findings(), []);
    let Stage { machine, pool, .. } = stage;
    drop(pool);
    let left = machine.census();
    assert_eq!((left.pages, left.mappings, left.regions, left.events), (0, 0, 0, 0), "{left}");
    assert_eq!(machine.findings(), []);
    (calls, failed)
}

#[test]
fn any_call_may_fail_and_nothing_is_lost() {
    for &(name, change) in COMBINATIONS {
        let (calls, failed) = run(name, change, None);
        assert_eq!(failed, 0, "{name}: enough memory for all");
        let mut told = 0;
        for number in 1..=calls {
            // Each call fails in one of both ways: every third finds no memory.
            let kinds = [FaultKind::Transient, FaultKind::OutOfMemory];
            let kind = kinds[usize::from(number % 3 == 0)];
            told += run(name, change, Some((number, kind))).1;
        }
        assert!(told > 0, "{name}: no fault ever showed");
    }
}

/// What the device refuses to unmap or take back counts as held, and is released by a later call.
#[test]
fn pages_of_their_own_that_are_refused_are_counted_and_go_later() {
    let stage = Stage::with(|settings| settings.guard_pages(true));
    let Stage { machine, device, pool } = &stage;
    let refuse = |call| {
        let next = machine.calls().of(call) + 1;
        machine.plan(Fault::new(When::Kind(call, next), FaultKind::Transient));
    };
    // A mapping without access, that cannot be taken away.
    refuse(Call::SetAccess);
    refuse(Call::Unmap);
    pool.allocate(Bytes::new(5000), DEFAULT).unwrap_err();
    assert!(!pool.held().is_zero());
    assert_eq!((pool.held(), machine.census().mappings), (machine.census().held, 1));
    pool.process_deferred().unwrap();
    assert_eq!((pool.held(), machine.census().held), (Bytes::ZERO, Bytes::ZERO));
    assert_eq!(machine.census().mappings, 0);
    // A page of a freed block that the device refuses to take back.
    let block = pool.allocate(Bytes::new(5000), DEFAULT).unwrap();
    refuse(Call::ReleasePage);
    pool.free(block.address(), DEFAULT).unwrap();
    device.synchronize_device().unwrap();
    let _ = pool.process_deferred();
    assert_eq!(pool.held(), machine.census().held);
    pool.process_deferred().unwrap();
    assert_eq!((pool.held(), machine.census().held), (Bytes::ZERO, Bytes::ZERO));
    // A page that could not be mapped, nor released.
    refuse(Call::Map);
    refuse(Call::ReleasePage);
    pool.allocate(Bytes::new(5000), DEFAULT).unwrap_err();
    assert!(!pool.held().is_zero());
    assert_eq!(pool.held(), machine.census().held);
    pool.process_deferred().unwrap();
    assert_eq!((pool.held(), machine.census().held), (Bytes::ZERO, Bytes::ZERO));
}

/// Memory that the device would not fill comes back when its stream is gone, announced or not.
#[test]
fn memory_that_was_not_filled_outlives_its_stream() {
    let plain: Change = |set| set.poison(true);
    let strict: Change = |set| set.poison(true).strict_streams(true);
    for (name, change) in [("plain", plain), ("strict", strict)] {
        let stage = Stage::with(change);
        let Stage { machine, device, pool } = &stage;
        let stream = device.create_stream(Priority::Normal).unwrap();
        machine.plan(Fault::new(When::Kind(Call::Fill, 2), FaultKind::Transient));
        pool.allocate(Bytes::new(5000), stream).unwrap_err();
        device.destroy_stream(stream).unwrap();
        pool.trim(Bytes::ZERO).unwrap();
        assert_eq!(pool.held(), Bytes::ZERO, "{name}");
    }
}
