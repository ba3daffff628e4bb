//! Streams that end before the handles that name them.

use crate::Request;
use forebay_hal::{Priority, Stream};
use forebay_sim::HandleReuse;

use super::*;

fn stream(bench: &Bench) -> Stream {
    Stream::new(&bench.device, Priority::Normal).unwrap()
}

/// The block is freed, and its memory comes back without a wait for the device.
#[test]
fn a_stream_that_ends_first_costs_no_block() {
    let turn = counting_lost();
    let lost = lost_frees().count;
    for is_own in [true, false] {
        let bench = Bench::new();
        let (going, staying) = (stream(&bench), stream(&bench));
        let block = match is_own {
            true => bench.pool.on(going.handle()).owned(Bytes::kib(64)).unwrap(),
            false => bench.pool.on(staying.handle()).owned(Bytes::kib(64)).unwrap(),
        };
        block.used_on(going.handle());
        bench.write("late", block.block(), going.handle());
        let address = block.address();
        drop(going);
        drop(block);
        assert_eq!((bench.live(), lost_frees().count), (Bytes::ZERO, lost));
        let next = bench.pool.on(staying.handle()).owned(Bytes::kib(64)).unwrap();
        bench.write("next", next.block(), staying.handle());
        bench.assert_no_race();
        let waits = bench.machine.calls().of(Call::SynchronizeDevice);
        bench.pool.process_deferred().unwrap();
        let more = (0..40).map(|_| bench.pool.on(staying.handle()).owned(Bytes::kib(64)).unwrap());
        let all: Vec<OwnedBlock> = more.chain([next]).collect();
        assert!(all.iter().any(|block| block.address() == address), "own: {is_own}");
        assert_eq!(bench.machine.calls().of(Call::SynchronizeDevice), waits);
    }
    drop(turn);
}

/// A driver that gives the handle of an ended stream to the next one, and work that takes long.
#[test]
fn a_stream_with_the_handle_of_another_gets_no_memory_early() {
    type Use = fn(&Bench, StreamHandle, StreamHandle) -> OwnedBlock;
    let uses: [(&str, Use); 3] = [
        ("own", |bench, going, _| bench.pool.on(going).owned(Bytes::mib(1)).unwrap()),
        ("used_on", |bench, going, staying| {
            let block = bench.pool.on(staying).owned(Bytes::mib(1)).unwrap();
            block.used_on(going);
            block
        }),
        ("record_use", |bench, going, staying| {
            let block = bench.pool.on(staying).owned(Bytes::mib(1)).unwrap();
            bench.pool.record_use(block.address(), going).unwrap();
            block
        }),
    ];
    for (name, make) in uses {
        for seed in 0..40 {
            let machine = SimMachine::builder().seed(seed).handles(HandleReuse::AtOnce);
            let bench = Bench::with(machine, PoolOptions::new());
            let (going, staying) = (stream(&bench), stream(&bench));
            let handle = going.handle();
            let block = make(&bench, handle, staying.handle());
            let span = Span::new(block.address(), block.size()).unwrap();
            let kernel = Kernel::new("late").writes(span);
            let kernel = kernel.duration(core::time::Duration::from_secs(10));
            // SAFETY: the block is live, and is freed by a drop after this.
            unsafe { bench.device.launch(kernel, handle) }.unwrap();
            drop(going);
            let new = stream(&bench);
            assert_eq!(new.handle(), handle);
            drop(block);
            for stream in [new.handle(), staying.handle()] {
                let next = bench.pool.on(stream).owned(Bytes::mib(1)).unwrap();
                bench.write("next", next.block(), stream);
            }
            assert_eq!(bench.races(), 0, "{name}, seed {seed}");
        }
    }
}

/// A handle that outlives many streams keeps few of them.
#[test]
fn streams_that_ended_do_not_pile_up_in_a_handle() {
    let bench = Bench::new();
    let block = bench.pool.on(DEFAULT).owned(Bytes::mib(1)).unwrap();
    for _ in 0..2000 {
        let going = stream(&bench);
        block.used_on(going.handle());
        bench.device.synchronize_stream(going.handle()).unwrap();
    }
    assert!(block.recorded_uses() < 20, "{}", block.recorded_uses());
    drop(block);
    bench.pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(bench.pool.held(), Bytes::ZERO);
    bench.assert_no_race();
}

/// A stream that the program forgets and goes on to use: both what came before and what came after is kept in order.
#[test]
fn a_stream_that_is_forgotten_and_used_on_keeps_its_order() {
    for seed in 0..20 {
        let bench = Bench::with(SimMachine::builder().seed(seed), PoolOptions::new());
        let (forgotten, other) = (bench.stream(), bench.stream());
        let mut array = bench.pool.on(forgotten).zeros::<u8>(1 << 20).unwrap();
        bench.pool.forget_stream(forgotten).unwrap();
        array.fill(3).unwrap();
        drop(array);
        let next = bench.pool.on(other).zeros::<u8>(1 << 20).unwrap();
        assert_eq!(bench.races(), 0, "seed {seed}");
        drop(next);
    }
}

/// An allocator that records no uses: a block whose stream has ended is freed after a wait for the device.
#[test]
fn an_allocator_without_records_waits_for_an_ended_stream() {
    let turn = counting_lost();
    let lost = lost_frees().count;
    let bench = Bench::new();
    let recorder = Recorder::new(&bench.pool);
    let (going, staying) = (stream(&bench), stream(&bench));
    let request = Request::new(Bytes::mib(1), staying.handle());
    let block = OwnedBlock::new(&recorder, request).unwrap();
    block.used_on(going.handle());
    bench.write("late", block.block(), going.handle());
    drop(going);
    drop(block);
    assert_eq!((bench.live(), lost_frees().count), (Bytes::ZERO, lost));
    let next = bench.pool.on(staying.handle()).owned(Bytes::mib(1)).unwrap();
    bench.write("next", next.block(), staying.handle());
    bench.assert_no_race();
    drop(turn);
}

/// The default stream of a thread is that thread's, wherever the handle goes.
#[test]
fn a_handle_of_a_threads_own_stream_is_freed_in_that_order() {
    let bench = Bench::new();
    let array = std::thread::scope(|scope| {
        let make = || bench.pool.on(StreamHandle::PER_THREAD).zeros::<u8>(1 << 20).unwrap();
        scope.spawn(make).join().unwrap()
    });
    drop(array);
    let next = bench.pool.on(StreamHandle::PER_THREAD).zeros::<u8>(1 << 20).unwrap();
    bench.assert_no_race();
    drop(next);
}
