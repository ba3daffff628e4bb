//! A capture is left alone: nothing is recorded, asked for, waited for or enqueued while it lasts.

use super::*;

/// Every call that a capture would see or be spoilt by.
pub(super) fn seen(machine: &SimMachine) -> Vec<u64> {
    let calls = machine.calls();
    [
        Call::RecordEvent,
        Call::WaitEvent,
        Call::QueryEvent,
        Call::SynchronizeEvent,
        Call::SynchronizeStream,
        Call::SynchronizeDevice,
        Call::QueryStream,
        Call::StreamId,
        Call::Fill,
        Call::Copy,
    ]
    .map(|call| calls.of(call))
    .to_vec()
}

/// A stream is forgotten while a capture lasts: its end is not known by an event, and what depends on
/// it waits for the device.
#[test]
fn forgetting_a_stream_records_nothing() {
    let (machine, device, shared) = open(SimMachine::builder());
    let pool = PoolOptions::new().growth(small_pages()).build(&shared).unwrap();
    let [one, two] = [(); 2].map(|()| device.create_stream(Priority::Normal).unwrap());
    let freed = pool.allocate(Bytes::mib(1), one).unwrap();
    let used = pool.allocate(Bytes::mib(1), two).unwrap();
    let kept = pool.allocate(Bytes::mib(1), one).unwrap();
    pool.record_use(used.address(), one).unwrap();
    pool.record_use(kept.address(), two).unwrap();
    pool.free_block(kept, one).unwrap();
    pool.free_block(freed, one).unwrap();
    let (before, held) = (seen(&machine), pool.held());
    let capture = pool.capture().unwrap();
    pool.forget_stream(one).unwrap();
    pool.free_block(used, two).unwrap();
    assert_eq!(seen(&machine), before);
    drop(capture);
    pool.process_deferred().unwrap();
    assert_eq!(pool.held(), held);
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!((pool.held(), machine.finding_count()), (Bytes::ZERO, 0));
}

/// A block outlives the capture, and the stream it was used on does not.
#[test]
fn a_block_used_on_a_stream_that_was_forgotten_meanwhile_comes_back_by_a_trim() {
    let (machine, device, shared) = open(SimMachine::builder());
    let pool = PoolOptions::new().growth(small_pages()).build(&shared).unwrap();
    let other = device.create_stream(Priority::Normal).unwrap();
    let block = pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
    write(&device, block, 1, other);
    pool.record_use(block.address(), other).unwrap();
    let capture = pool.capture().unwrap();
    pool.forget_stream(other).unwrap();
    drop(capture);
    pool.free_block(block, DEFAULT).unwrap();
    pool.process_deferred().unwrap();
    let next = pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
    assert_ne!(next.address(), block.address(), "its work may not be over");
    write(&device, next, 2, DEFAULT);
    pool.free_block(next, DEFAULT).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!((pool.held(), machine.finding_count()), (Bytes::ZERO, 0));
}

#[test]
fn trimming_gives_nothing_however_many_streams_there_are() {
    let (machine, device, shared) = open(SimMachine::builder().memory(MemoryModel::Phantom));
    let pool = PoolOptions::new().build(&shared).unwrap();
    let streams: Vec<StreamHandle> =
        (0..70).map(|_| device.create_stream(Priority::Normal).unwrap()).collect();
    let block = pool.allocate(Bytes::new(4096), streams[0]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for &stream in &streams[1..] {
                let block = pool.allocate(Bytes::mib(1), stream).unwrap();
                pool.free_block(block, stream).unwrap();
            }
        });
    });
    pool.free_block(block, streams[0]).unwrap();
    let before = seen(&machine);
    let capture = pool.capture().unwrap();
    assert_eq!(pool.trim(Bytes::ZERO).unwrap(), Bytes::ZERO);
    assert_eq!(pool.collect(Duration::ZERO).unwrap(), Bytes::ZERO);
    assert_eq!(seen(&machine), before);
    drop(capture);
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.held(), Bytes::ZERO);
}

/// Where the pool itself enqueues or waits, there is no capture; nor can that be turned on in one.
#[test]
fn a_pool_that_looks_after_its_blocks_is_not_captured_from() {
    use crate::config::{Counting, SettingsBuilder, Zeroing};
    type Change = fn(SettingsBuilder) -> SettingsBuilder;
    let aids: [(&str, Change); 7] = [
        ("zero", |set| set.zero(Zeroing::Pages)),
        ("zero", |set| set.zero(Zeroing::Blocks)),
        ("poison", |set| set.poison(true)),
        ("canaries", |set| set.canaries(true)),
        ("guard_pages", |set| set.guard_pages(true)),
        ("strict_streams", |set| set.strict_streams(true)),
        ("quarantine", |set| set.quarantine(Bytes::mib(1))),
    ];
    let (machine, device, shared) = open(SimMachine::builder());
    for (setting, change) in aids {
        let pool = PoolOptions::new().set(change).build(&shared).unwrap();
        let refused = pool.capture().unwrap_err();
        assert_eq!(refused, Error::CaptureRefused { setting });
        assert!(refused.to_string().starts_with(setting), "{refused}");
    }
    let counted: Change = |set| set.statistics(Counting::Exact).history(100_u64);
    let pool = PoolOptions::new().set(counted).build(&shared).unwrap();
    let [one, two] = [(); 2].map(|()| device.create_stream(Priority::Normal).unwrap());
    let block = pool.allocate(Bytes::mib(1), one).unwrap();
    pool.record_use(block.address(), two).unwrap();
    let before = seen(&machine);
    let capture = pool.capture().unwrap();
    let refused = pool.set("quarantine", "1MiB").unwrap_err();
    assert_eq!(refused, Error::CaptureRefused { setting: "quarantine" });
    assert_eq!(pool.settings().quarantine(), Bytes::ZERO, "nothing was changed");
    pool.free_block(block, one).unwrap();
    let block = pool.allocate(Bytes::mib(3), two).unwrap();
    pool.free_block(block, two).unwrap();
    assert_eq!(seen(&machine), before);
    drop(capture);
    pool.set("quarantine", "1MiB").unwrap();
}
