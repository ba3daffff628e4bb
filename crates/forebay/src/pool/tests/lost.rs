//! Other streams that cannot be waited for: what they have is left where it is, and requests that
//! have nothing to do with them are served.

use forebay_sim::HandleReuse;

use super::*;

fn stream(device: &SimDevice) -> StreamHandle {
    device.create_stream(Priority::Normal).unwrap()
}

/// Has `stream` free so much.
fn leave(pool: &Pool, size: Bytes, stream: StreamHandle) {
    let block = pool.allocate(size, stream).unwrap();
    pool.free(block.address(), stream).unwrap();
}

/// The best hole belongs to a stream that was destroyed unannounced.
#[test]
fn a_request_is_served_where_another_stream_is_gone() {
    let (machine, device, shared) = open(SimMachine::builder().memory(MemoryModel::Phantom));
    let pool = PoolOptions::new().max_bytes(Bytes::mib(100)).build(&shared).unwrap();
    let gone = stream(&device);
    leave(&pool, Bytes::mib(40), gone);
    device.destroy_stream(gone).unwrap();
    let block = pool.allocate(Bytes::mib(40), DEFAULT).unwrap();
    // If nothing else is left, the pool waits for the device, and wholly free pages come back.
    let second = pool.allocate(Bytes::mib(50), DEFAULT).unwrap();
    let error = pool.allocate(Bytes::mib(50), DEFAULT).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "its own error: {error}");
    for block in [block, second] {
        pool.free(block.address(), DEFAULT).unwrap();
    }
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!((pool.held(), machine.finding_count()), (Bytes::ZERO, 0));
}

/// If one of several streams with holes fails, the holes of the others still serve.
#[test]
fn a_stream_that_fails_keeps_nobody_from_the_others() {
    for failing in 0..3 {
        let (machine, device, shared) = open(SimMachine::builder().memory(MemoryModel::Phantom));
        let pool = PoolOptions::new().max_bytes(Bytes::mib(12)).build(&shared).unwrap();
        let streams = [(); 3].map(|()| stream(&device));
        let blocks = streams.map(|stream| pool.allocate(Bytes::mib(4), stream).unwrap());
        for (block, &stream) in blocks.iter().zip(&streams) {
            pool.free(block.address(), stream).unwrap();
        }
        let recorded = machine.calls().of(Call::RecordEvent);
        let when = When::Kind(Call::RecordEvent, recorded + 1 + failing);
        machine.plan(Fault::new(when, FaultKind::Transient));
        let block = pool.allocate(Bytes::mib(4), DEFAULT);
        assert!(block.is_ok(), "{failing}: {block:?}");
    }
}

/// Every slot is taken, and the streams that were not used for the longest are gone: new streams get their
/// slots, and nothing of theirs is lost.
#[test]
fn a_number_is_had_where_the_oldest_stream_is_gone() {
    let (machine, device, shared) = open(SimMachine::builder().memory(MemoryModel::Phantom));
    let pool = Pool::new(&shared).unwrap();
    // Two numbers are marks for what ended without an event.
    let slots = forebay_core::address_space::Streams::MAX as usize - 2;
    let streams: Vec<StreamHandle> = (0..slots).map(|_| stream(&device)).collect();
    for &stream in &streams {
        leave(&pool, Bytes::new(4096), stream);
    }
    // Cached blocks do not count: a stream that owns nothing in the heap loses its slot first.
    pool.defragment().unwrap();
    let taken = || pool.shared.heap().slots.count();
    let knows = |stream| pool.shared.heap().slots.knows(stream);
    assert_eq!(taken(), slots as u64, "every slot is taken");
    for &gone in &streams[..10] {
        device.destroy_stream(gone).unwrap();
    }
    for (number, &old) in streams.iter().take(20).enumerate() {
        let new = stream(&device);
        let block = pool.allocate(Bytes::mib(1), new).unwrap();
        assert!(knows(new) && !knows(old), "{number}");
        assert_eq!(taken(), slots as u64);
        pool.free(block.address(), new).unwrap();
    }
    // Nor does a request fail because nothing can be told of the others.
    machine.plan(Fault::new(When::Every(Call::RecordEvent), FaultKind::Transient));
    let last = stream(&device);
    let block = pool.allocate(Bytes::mib(1), last).unwrap();
    assert!(knows(last));
    machine.clear_faults();
    pool.free(block.address(), last).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!((pool.held(), machine.finding_count()), (Bytes::ZERO, 0));
}

/// Where it cannot be told whether another stream is still the one it was, it is not waited for.
#[test]
fn a_stream_that_cannot_be_told_is_not_waited_for() {
    for failing in 0..3 {
        let (machine, device, shared) = open(SimMachine::builder().memory(MemoryModel::Phantom));
        let options = PoolOptions::new().max_bytes(Bytes::mib(100));
        let pool = options.set(|set| set.strict_streams(true)).build(&shared).unwrap();
        let streams = [(); 2].map(|()| stream(&device));
        for stream in streams {
            leave(&pool, Bytes::mib(20), stream);
        }
        // The first call asks for the request's own stream.
        let asked = machine.calls().of(Call::StreamId);
        let when = When::Kind(Call::StreamId, asked + 2 + failing);
        machine.plan(Fault::new(when, FaultKind::Transient));
        let block = pool.allocate(Bytes::mib(20), DEFAULT);
        assert!(block.is_ok(), "{failing}: {block:?}");
        // A free that has to make its stream known asks for the others too.
        let other = stream(&device);
        let asked = machine.calls().of(Call::StreamId);
        let when = When::Kind(Call::StreamId, asked + 2 + failing);
        machine.plan(Fault::new(when, FaultKind::Transient));
        pool.free(block.unwrap().address(), other).unwrap();
        assert_eq!(machine.finding_count(), 0);
    }
}

/// A stream that was destroyed unannounced has the best hole: the device is asked once, not by every request.
#[test]
fn a_stream_that_is_gone_is_asked_once() {
    let (machine, device, shared) = open(SimMachine::builder().memory(MemoryModel::Phantom));
    let pool = PoolOptions::new().build(&shared).unwrap();
    let gone = stream(&device);
    let small = pool.allocate(Bytes::mib(2), gone).unwrap();
    let large = pool.allocate(Bytes::gib(1), DEFAULT).unwrap();
    pool.free_block(small, gone).unwrap();
    pool.free_block(large, DEFAULT).unwrap();
    device.destroy_stream(gone).unwrap();
    let before = machine.calls().of(Call::RecordEvent);
    for _ in 0..100 {
        pool.allocate(Bytes::mib(2), DEFAULT).unwrap();
    }
    let asked = machine.calls().of(Call::RecordEvent) - before;
    assert!(asked <= 2, "{asked} times");
}

/// A handle that came back to life can be waited for again.
#[test]
fn a_stream_that_came_back_is_asked_again() {
    let options = SimMachine::builder().memory(MemoryModel::Phantom).handles(HandleReuse::AtOnce);
    let (_machine, device, shared) = open(options);
    let pool = PoolOptions::new().max_bytes(Bytes::mib(60)).build(&shared).unwrap();
    let gone = stream(&device);
    leave(&pool, Bytes::mib(20), gone);
    device.destroy_stream(gone).unwrap();
    pool.allocate(Bytes::mib(20), DEFAULT).unwrap();
    let back = stream(&device);
    assert_eq!(back, gone);
    // It takes new memory, and leaves it.
    leave(&pool, Bytes::mib(40), back);
    let waits = pool.statistics().waits;
    pool.allocate(Bytes::mib(40), DEFAULT).unwrap();
    assert_eq!(pool.statistics().waits, waits + 1);
}

/// What a forgotten stream has freed serves others at once, after a wait on the device for its last event;
/// and when that is reached it is everybody's.
#[test]
fn the_holes_of_a_forgotten_stream_are_used() {
    let (machine, device, shared) = open(SimMachine::builder());
    let pool = PoolOptions::new().build(&shared).unwrap();
    let [one, two] = [(); 2].map(|()| stream(&device));
    let first = pool.allocate(Bytes::mib(2), one).unwrap();
    leave(&pool, Bytes::mib(16), two);
    // Each question lets the device do a little: there is more to do than questions will be asked.
    (0..200).for_each(|_| write(&device, first, 1, one));
    pool.free_block(first, one).unwrap();
    pool.forget_stream(one).unwrap();
    let before = machine.calls();
    let next = pool.allocate(Bytes::mib(2), two).unwrap();
    assert_eq!(next.address(), first.address(), "the hole that fits best");
    let waits = machine.calls().of(Call::WaitEvent) - before.of(Call::WaitEvent);
    assert_eq!((waits, pool.statistics().driver.of(Call::SynchronizeEvent)), (1, 0));
    write(&device, next, 2, two);
    pool.free_block(next, two).unwrap();
    device.synchronize_device().unwrap();
    assert_eq!(machine.findings(), []);
    pool.process_deferred().unwrap();
    let next = pool.allocate(Bytes::mib(2), two).unwrap();
    assert_eq!(next.address(), first.address());
    // And where it is over when the stream is forgotten, at once.
    pool.free_block(next, DEFAULT).unwrap();
    device.synchronize_device().unwrap();
    pool.forget_stream(DEFAULT).unwrap();
    assert_eq!(pool.allocate(Bytes::mib(2), two).unwrap().address(), first.address());
}
