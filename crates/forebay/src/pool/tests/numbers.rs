//! More streams than a pool tells apart: what says that it does not wait does not, and nobody is
//! refused for another's want of a number.

use super::*;

/// The calls that wait on the host.
fn host_waits(machine: &SimMachine) -> u64 {
    let calls = machine.calls();
    calls.of(Call::SynchronizeEvent) + calls.of(Call::SynchronizeDevice)
}

fn streams(device: &SimDevice, count: usize) -> Vec<StreamHandle> {
    (0..count).map(|_| device.create_stream(Priority::Normal).unwrap()).collect()
}

/// Has all of them take a number, from a thread of their own.
fn crowd(pool: &Pool, streams: &[StreamHandle]) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for &stream in streams {
                let block = pool.allocate(Bytes::mib(1), stream).unwrap();
                pool.free_block(block, stream).unwrap();
            }
        });
    });
}

fn phantom() -> (SimMachine, Arc<SimDevice>, Arc<dyn Device>) {
    open(SimMachine::builder().memory(MemoryModel::Phantom))
}

/// A block comes back after its stream lost its slot: no other stream is waited for.
#[test]
fn taking_back_what_others_used_does_not_wait() {
    let (machine, device, shared) = phantom();
    let pool = PoolOptions::new().build(&shared).unwrap();
    let all = streams(&device, 66);
    let (first, second) = (all[0], all[1]);
    let block = pool.allocate(Bytes::mib(3), first).unwrap();
    pool.record_use(block.address(), second).unwrap();
    crowd(&pool, &all[2..]);
    pool.free_block(block, first).unwrap();
    device.synchronize_device().unwrap();
    let before = host_waits(&machine);
    pool.process_deferred().unwrap();
    pool.collect(Duration::ZERO).unwrap();
    assert_eq!(host_waits(&machine), before);
    // It comes back to its stream.
    let again = pool.allocate(Bytes::mib(3), first).unwrap();
    let held = pool.held();
    pool.free_block(again, first).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.held(), Bytes::ZERO, "of {held}");
}

/// Cached blocks of a stream that lost its slot can be flushed once it has one again.
#[test]
fn collecting_does_not_wait_for_a_number() {
    let (machine, device, shared) = phantom();
    let pool = PoolOptions::new().build(&shared).unwrap();
    let all = streams(&device, 65);
    let block = pool.allocate(Bytes::new(4096), all[0]).unwrap();
    crowd(&pool, &all[1..]);
    pool.free_block(block, all[0]).unwrap();
    assert!(!pool.statistics().cached.is_zero(), "at hand, with no number");
    let before = host_waits(&machine);
    pool.collect(Duration::ZERO).unwrap();
    assert_eq!(host_waits(&machine), before);
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.held(), Bytes::ZERO);
}

/// No number is to be had, because no stream can be waited for: what has nothing to do with that goes
/// on all the same.
#[test]
fn nobody_fails_because_another_stream_can_have_no_number() {
    let (machine, device, shared) = phantom();
    let pool = PoolOptions::new().build(&shared).unwrap();
    let all = streams(&device, 66);
    let blocks =
        [all[0], all[1]].map(|stream| (pool.allocate(Bytes::new(4096), stream).unwrap(), stream));
    crowd(&pool, &all[2..]);
    for (block, stream) in blocks {
        pool.free_block(block, stream).unwrap();
    }
    machine.plan(Fault::new(When::Every(Call::SynchronizeEvent), FaultKind::Transient));
    pool.collect(Duration::ZERO).unwrap();
    let waited = host_waits(&machine);
    pool.forget_stream(all[0]).unwrap();
    assert_eq!(host_waits(&machine), waited, "nor does forgetting wait");
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.held(), Bytes::ZERO);
    machine.clear_faults();
    drop(pool);
    assert_eq!(machine.finding_count(), 0);
}
