//! Threads that come and go, each with a default stream of its own: what a pool keeps of them is bounded, and
//! what they freed stays in their order.

use std::thread;

use super::*;

const OWN: StreamHandle = StreamHandle::PER_THREAD;

fn slots_taken(pool: &Pool) -> usize {
    pool.shared.heap().slots.taken()
}

fn host_waits(machine: &SimMachine) -> u64 {
    let calls = machine.calls();
    let waits = [Call::SynchronizeEvent, Call::SynchronizeStream, Call::SynchronizeDevice];
    waits.map(|wait| calls.of(wait)).iter().sum()
}

/// Has a block pass through the heap on this thread's own stream, so that its event is published.
fn pass_through_heap(pool: &Pool, device: &SimDevice, tag: u8) {
    let blocks = [(); 2].map(|()| pool.allocate(Bytes::new(600 << 10), OWN).unwrap());
    for block in blocks {
        write(device, block, tag, OWN);
        pool.free_block(block, OWN).unwrap();
    }
}

#[test]
fn a_forgotten_thread_stream_takes_its_event_along() {
    let (machine, device, shared) = open(SimMachine::builder().capacity(Bytes::gib(1)));
    let pool = PoolOptions::new().build(&shared).unwrap();
    for round in 0..10_000_u32 {
        pass_through_heap(&pool, &device, u8::try_from(round % 251).unwrap());
        pool.forget_stream(OWN).unwrap();
        if round % 100 == 0 {
            device.synchronize_device().unwrap();
        }
    }
    device.synchronize_device().unwrap();
    pool.process_deferred().unwrap();
    let (taken, events) = (slots_taken(&pool), machine.census().events);
    assert!(taken < 8 && events < 8, "{taken} slots and {events} events");
    drop(pool);
    assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
    assert_eq!(machine.census().events, 0);
}

/// Threads that end without a word leave a bounded number of slots and events. What they freed, in the heap or in
/// their caches, is used again without a wait for the device, so the pool stays small.
#[test]
fn short_lived_threads_leave_nothing_behind() {
    for magazines in [false, true] {
        let (machine, device, shared) = open(SimMachine::builder().capacity(Bytes::gib(4)));
        let pool = PoolOptions::new().set(|set| set.magazines(magazines)).build(&shared).unwrap();
        for number in 0..2500_u32 {
            let tag = u8::try_from(number % 251).unwrap();
            let run = || {
                if !magazines {
                    pass_through_heap(&pool, &device, tag);
                    return;
                }
                let block = pool.allocate(Bytes::new(2048), OWN).unwrap();
                write(&device, block, tag, OWN);
                pool.free_block(block, OWN).unwrap();
            };
            thread::scope(|scope| scope.spawn(run).join().unwrap());
            if number % 50 == 0 {
                device.synchronize_device().unwrap();
            }
            let taken = slots_taken(&pool);
            assert!(taken < 200, "{taken} slots after {number} threads");
        }
        assert_eq!(host_waits(&machine), 50, "those of this test alone");
        assert!(pool.held() < Bytes::mib(256), "{} for two blocks at a time", pool.held());
        device.synchronize_device().unwrap();
        pool.process_deferred().unwrap();
        let (taken, events) = (slots_taken(&pool), machine.census().events);
        assert!(taken < 8 && events < 8, "{taken} slots and {events} events");
        pool.trim(Bytes::ZERO).unwrap();
        assert_eq!(pool.held(), Bytes::ZERO);
        drop(pool);
        assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
        assert_eq!(machine.census().events, 0);
    }
}

/// Threads end while others flush, trim, forget and collect, and while pools that they knew are dropped.
#[test]
fn threads_that_end_race_everyone() {
    let (machine, device, shared) = open(SimMachine::builder().capacity(Bytes::gib(1)));
    let pool = PoolOptions::new().max_bytes(Bytes::mib(64)).build(&shared).unwrap();
    let over = core::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        let others = scope.spawn(|| {
            let mut round = 0_u32;
            while !over.load(Ordering::Relaxed) {
                round += 1;
                let block = pool.allocate(Bytes::new(600 << 10), DEFAULT).unwrap();
                write(&device, block, 7, DEFAULT);
                pool.free_block(block, DEFAULT).unwrap();
                match round % 4 {
                    0 => drop(pool.trim(Bytes::ZERO).unwrap()),
                    1 => pool.forget_stream(DEFAULT).unwrap(),
                    2 => pool.process_deferred().unwrap(),
                    _ => drop(pool.collect(Duration::ZERO).unwrap()),
                }
            }
        });
        for number in 0..400_u32 {
            let short = PoolOptions::new().build(&shared).unwrap();
            let run = |tag: u8| {
                let (pool, device, short) = (pool.clone(), &device, short.clone());
                move || {
                    pass_through_heap(&pool, device, tag);
                    let kept = pool.allocate(Bytes::new(4096), OWN).unwrap();
                    write(device, kept, tag, OWN);
                    pool.free_block(kept, OWN).unwrap();
                    pass_through_heap(&short, device, tag);
                }
            };
            let tag = u8::try_from(number % 250).unwrap();
            let both = [scope.spawn(run(tag)), scope.spawn(run(tag + 1))];
            drop(short);
            both.into_iter().for_each(|thread| thread.join().unwrap());
        }
        over.store(true, Ordering::Relaxed);
        others.join().unwrap();
    });
    device.synchronize_device().unwrap();
    pool.process_deferred().unwrap();
    let taken = slots_taken(&pool);
    assert!(taken < 16, "{taken} slots");
    drop(pool);
    // A pool whose last user was an ending thread ends on a thread of its own.
    let begun = std::time::Instant::now();
    while machine.census().regions > 0 && begun.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
    nothing_is_left(&machine);
}

/// Streams that are destroyed without a word, in a pool that never waits for the device, are remembered by no
/// more than a bounded number of entries.
#[test]
fn streams_that_die_without_a_word_are_not_remembered_for_ever() {
    let (machine, device, shared) = open(SimMachine::builder().capacity(Bytes::gib(16)));
    let pool = PoolOptions::new().build(&shared).unwrap();
    for number in 0..12_000_u32 {
        let stream = device.create_stream(Priority::Normal).unwrap();
        let block = pool.allocate(Bytes::new(1024), stream).unwrap();
        pool.free_block(block, stream).unwrap();
        device.destroy_stream(stream).unwrap();
        let remembered = pool.shared.heap().slots.serials.remembered();
        assert!(remembered < 12_000, "{remembered} remembered after {number}");
    }
    let remembered = pool.shared.heap().slots.serials.remembered();
    assert!(remembered <= 4096 + 2048, "{remembered} remembered");
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!((pool.held(), machine.finding_count()), (Bytes::ZERO, 0));
    let remembered = pool.shared.heap().slots.serials.remembered();
    assert!(remembered <= 2048, "{remembered} remembered after a wait");
}

/// A live stream loses its slot and goes on to use a block, past a wait for the device: the block is not given
/// out before that use is over.
#[test]
fn an_evicted_stream_keeps_the_blocks_it_uses() {
    let (machine, device, shared) = open(SimMachine::builder().capacity(Bytes::gib(4)));
    let pool = PoolOptions::new().build(&shared).unwrap();
    let [own, user] = [(); 2].map(|()| device.create_stream(Priority::Normal).unwrap());
    let blocks: Vec<Block> =
        (0..1000).map(|_| pool.allocate(Bytes::new(600 << 10), own).unwrap()).collect();
    for block in &blocks {
        pool.record_use(block.address(), user).unwrap();
    }
    for _ in 0..forebay_core::address_space::Streams::MAX + 10 {
        let stream = device.create_stream(Priority::Normal).unwrap();
        let block = pool.allocate(Bytes::new(1024), stream).unwrap();
        pool.free_block(block, stream).unwrap();
    }
    assert!(!pool.shared.heap().slots.knows(user), "it has lost its slot");
    pool.trim(Bytes::ZERO).unwrap();
    for block in blocks {
        write(&device, block, 1, user);
        pool.free_block(block, own).unwrap();
        let again = pool.allocate(block.size(), own).unwrap();
        write(&device, again, 2, own);
        pool.free_block(again, own).unwrap();
    }
    drop(pool);
    assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
}

/// A thread that ends records the last event of its stream, and who needs the memory waits for that event. Where
/// the stream is not the one that the pool knows, its events would say nothing: then the whole device is
/// waited for.
#[test]
fn the_last_event_of_a_thread_is_of_the_stream_it_used() {
    for is_same in [true, false] {
        let (machine, device, shared) = open(SimMachine::builder().capacity(Bytes::gib(1)));
        let pool = PoolOptions::new().max_bytes(Bytes::mib(8)).build(&shared).unwrap();
        let use_some = |most, stream| {
            let some = (0..most).map_while(|_| pool.allocate(Bytes::kib(4), stream).ok());
            let blocks: Vec<Block> = some.collect();
            blocks.iter().for_each(|&block| write(&device, block, 1, stream));
            blocks.iter().for_each(|&block| pool.free_block(block, stream).unwrap());
            blocks.len()
        };
        let run = || {
            if !is_same {
                let ends = Arc::clone(&pool.shared.heap().slots.thread_ends);
                ends.watch_this_thread(Some(forebay_core::StreamId(u64::MAX)));
            }
            use_some(u32::MAX, OWN)
        };
        let count = thread::scope(|scope| scope.spawn(run).join().unwrap());
        let before = machine.calls().of(Call::SynchronizeDevice);
        assert_eq!(use_some(u32::try_from(count).unwrap(), DEFAULT), count);
        let waits = machine.calls().of(Call::SynchronizeDevice) - before;
        assert_eq!(waits == 0, is_same, "{waits} waits for the device");
        drop(pool);
        assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
    }
}

/// A thread that only frees, on its own stream, leaves as little behind as one that allocates.
#[test]
fn a_thread_that_only_frees_records_its_last_event() {
    let (machine, device, shared) = open(SimMachine::builder().capacity(Bytes::gib(1)));
    let pool = PoolOptions::new().max_bytes(Bytes::mib(8)).build(&shared).unwrap();
    let all = || (0..).map_while(|_| pool.allocate(Bytes::kib(4), DEFAULT).ok());
    let blocks: Vec<Block> = all().collect();
    let count = blocks.len();
    // The last request, which was refused, has waited for the device.
    let before = machine.calls().of(Call::SynchronizeDevice);
    let run = || {
        blocks.iter().for_each(|&block| write(&device, block, 1, OWN));
        blocks.iter().for_each(|&block| pool.free_block(block, OWN).unwrap());
    };
    // Joined, a thread has ended, with its thread-local data.
    thread::scope(|scope| scope.spawn(run).join().unwrap());
    let again: Vec<Block> = all().take(count).collect();
    assert_eq!(again.len(), count);
    again.iter().for_each(|&block| write(&device, block, 2, DEFAULT));
    assert_eq!(machine.calls().of(Call::SynchronizeDevice), before, "nobody waits for the device");
    again.into_iter().for_each(|block| pool.free_block(block, DEFAULT).unwrap());
    drop(pool);
    assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
}
