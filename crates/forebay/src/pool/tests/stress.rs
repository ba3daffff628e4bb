//! The rim of the pool: streams that come, go and die, failures half way, refusals, and waits of other
//! threads. Each test states what a program may rely on where things go wrong.

use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::Instant;

use forebay_hal::Stream;
use forebay_host::HostDevice;

use super::*;
use crate::pool::calls::waits;

fn phantom(capacity: Bytes) -> (SimMachine, Arc<dyn Device>) {
    let options = SimMachine::builder().capacity(capacity).memory(MemoryModel::Phantom);
    let (machine, _, device) = open(options);
    (machine, device)
}

/// A request that is refused leaves the device as it was: no page is kept that was made on the way, and the
/// driver is not asked for pages that it cannot have.
#[test]
fn a_refused_request_leaves_the_device_as_it_was() {
    for class in [MemoryClass::STITCHED, MemoryClass::STABLE] {
        let (machine, device) = phantom(Bytes::gib(140));
        // Another library of the process, or another process.
        let other = device.allocate(Bytes::gib(80), Alignment::DEVICE_PAGE).unwrap();
        let pool = PoolOptions::new().class(class).build(&device).unwrap();
        let small = pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
        let (held, free) = (pool.held(), device.memory_info().unwrap().free);
        let calls = machine.calls().total();
        let error = pool.allocate(Bytes::gib(100), DEFAULT).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
        let calls = machine.calls().total() - calls;
        assert!(calls <= 8, "{calls} calls of the driver to know that it has not that much");
        assert_eq!((pool.held(), device.memory_info().unwrap().free), (held, free), "{class}");
        // What is left is there for others.
        let theirs = device.allocate(Bytes::gib(1), Alignment::DEVICE_PAGE).unwrap();
        pool.free_block(small, DEFAULT).unwrap();
        // SAFETY: nothing was ever enqueued on it.
        unsafe { device.free(theirs).unwrap() };
        // SAFETY: likewise.
        unsafe { device.free(other).unwrap() };
    }
}

/// The device refuses half way, because another consumer was faster: pages made by then are released.
#[test]
fn a_request_that_fails_half_way_takes_nothing() {
    for class in [MemoryClass::STITCHED, MemoryClass::STABLE] {
        let (machine, device) = phantom(Bytes::gib(4));
        let pool = PoolOptions::new().class(class).build(&device).unwrap();
        let _live = pool.allocate(Bytes::mib(300), DEFAULT).unwrap();
        let freed = pool.allocate(Bytes::mib(300), DEFAULT).unwrap();
        pool.free_block(freed, DEFAULT).unwrap();
        let before = machine.census();
        let created = machine.calls().of(Call::CreatePage);
        for number in 9..200 {
            let when = When::Kind(Call::CreatePage, created + number);
            machine.plan(Fault::new(when, FaultKind::OutOfMemory));
        }
        pool.allocate(Bytes::gib(2), DEFAULT).unwrap_err();
        machine.clear_faults();
        let after = machine.census();
        assert!(after.held <= before.held, "{} before, {} after", before.held, after.held);
        assert_eq!(pool.held(), after.held, "{class}");
        pool.allocate(Bytes::gib(2), DEFAULT).unwrap();
    }
}

/// What is beyond the limit or the device is refused at once: nothing is waited for and caches stay.
#[test]
fn what_can_never_be_had_is_refused_at_once() {
    let device: Arc<dyn Device> = HostDevice::open().unwrap();
    let pool = PoolOptions::new().max_bytes(Bytes::gib(1)).build(&device).unwrap();
    let busy = Stream::new(&device, Priority::Normal).unwrap();
    let block = pool.allocate(Bytes::mib(64), busy.handle()).unwrap();
    let (release, wait) = mpsc::channel::<()>();
    device.enqueue_host(Box::new(move || _ = wait.recv()), busy.handle()).unwrap();
    pool.free_block(block, busy.handle()).unwrap();
    let cached = fill_magazine(&pool);
    assert!(cached >= Bytes::mib(1), "only {cached} is cached");
    let held = pool.held();
    let waits = || {
        let driver = pool.statistics().driver;
        [Call::SynchronizeEvent, Call::SynchronizeStream, Call::SynchronizeDevice]
            .map(|wait| driver.of(wait))
    };
    let refused = |size, cached| {
        let begun = Instant::now();
        let error = pool.allocate(size, DEFAULT).unwrap_err();
        let took = begun.elapsed();
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
        assert_eq!((waits(), pool.statistics().cached), ([0; 3], cached), "{size}");
        // The stream is busy until the end of the test: a wait for it would take ten seconds.
        assert!(took < core::time::Duration::from_millis(500), "{size} was refused in {took:?}");
    };
    refused(Bytes::gib(2), cached);
    refused(Bytes::gib(1024), cached);
    assert_eq!(pool.held(), held);
    // Bytes that are in blocks cannot be had either.
    let _most = pool.allocate(Bytes::mib(600), DEFAULT).unwrap();
    let (after_growth, cached) = (pool.held(), fill_magazine(&pool));
    refused(Bytes::mib(900), cached);
    assert_eq!(pool.held(), after_growth);
    drop(release);
}

/// A server has a pool for each of a thousand graphs, and all of them find room among the addresses of the
/// process: a pool does not reserve in proportion to the device.
#[test]
fn a_thousand_pools_live_at_once() {
    let device: Arc<dyn Device> = HostDevice::open().unwrap();
    let mut pools = Vec::new();
    for number in 0..1000 {
        let class = if number % 2 == 0 { MemoryClass::STABLE } else { MemoryClass::STITCHED };
        let pool = PoolOptions::new().class(class).build(&device);
        let pool = pool.unwrap_or_else(|error| panic!("pool {number}: {error}"));
        let block = pool.allocate(Bytes::new(512), DEFAULT);
        let block = block.unwrap_or_else(|error| panic!("the block of pool {number}: {error}"));
        pools.push((pool, block));
    }
    none_overlap(pools.iter().map(|&(_, block)| block));
    for (pool, block) in pools {
        pool.free_block(block, DEFAULT).unwrap();
        assert_eq!(pool.statistics().live, Bytes::ZERO);
    }
}

/// A program that tries something large each step and falls back pays the driver nothing for it.
#[test]
fn trying_large_and_falling_back_costs_no_driver_calls() {
    let (machine, device) = phantom(Bytes::gib(80));
    let pool = PoolOptions::new().max_bytes(Bytes::gib(40)).build(&device).unwrap();
    let _weights: Vec<Block> =
        (0..20).map(|_| pool.allocate(Bytes::gib(1), DEFAULT).unwrap()).collect();
    let mut calls = 0;
    for step in 0..6 {
        let sizes = (0..150).map(|index| Bytes::mib(100 + index % 7));
        let step_blocks: Vec<Block> =
            sizes.map(|size| pool.allocate(size, DEFAULT).unwrap()).collect();
        step_blocks.into_iter().for_each(|block| pool.free_block(block, DEFAULT).unwrap());
        pool.allocate(Bytes::gib(24), DEFAULT).unwrap_err();
        let now = machine.calls();
        let now = now.total() - now.of(Call::MemoryInfo);
        if step > 1 {
            assert_eq!(now, calls, "in step {step}");
        }
        calls = now;
    }
}

/// A thread that waits in `trim` holds nobody up: work of the device may wait for a thread that allocates,
/// frees or grows.
#[test]
fn trim_waits_without_holding_anyone_up() {
    let device: Arc<dyn Device> = HostDevice::open().unwrap();
    let pool = Pool::new(&device).unwrap();
    let [busy, other] = [(); 2].map(|()| Stream::new(&device, Priority::Normal).unwrap());
    let used = pool.allocate(Bytes::mib(2), other.handle()).unwrap();
    pool.record_use(used.address(), busy.handle()).unwrap();
    let block = pool.allocate(Bytes::mib(8), busy.handle()).unwrap();
    let (go, flag) = mpsc::channel::<()>();
    device.enqueue_host(Box::new(move || _ = flag.recv()), busy.handle()).unwrap();
    pool.free_block(block, busy.handle()).unwrap();
    std::thread::scope(|scope| {
        let trim = scope.spawn(|| pool.trim(Bytes::ZERO).unwrap());
        std::thread::sleep(core::time::Duration::from_millis(50));
        let begun = Instant::now();
        // It grows, frees what was used elsewhere, and only then lets the device go on.
        let large = pool.allocate(Bytes::mib(64), other.handle()).unwrap();
        pool.free_block(used, other.handle()).unwrap();
        pool.free_block(large, other.handle()).unwrap();
        assert!(begun.elapsed() < core::time::Duration::from_secs(5));
        assert!(!trim.is_finished(), "it waits for the device");
        drop(go);
        trim.join().unwrap();
    });
}

/// A request that nothing but running work could serve is refused when its time is up, and does not hang.
#[test]
fn a_request_waits_for_the_device_no_longer_than_it_may() {
    let device: Arc<dyn Device> = HostDevice::open().unwrap();
    let options = PoolOptions::new().max_bytes(Bytes::mib(64));
    let wait = core::time::Duration::from_millis(50);
    let pool = options.set(|settings| settings.max_wait(wait)).build(&device).unwrap();
    let [own, busy] = [(); 2].map(|()| Stream::new(&device, Priority::Normal).unwrap());
    let block = pool.allocate(Bytes::mib(40), own.handle()).unwrap();
    pool.record_use(block.address(), busy.handle()).unwrap();
    let (go, flag) = mpsc::channel::<()>();
    // A kernel that never ends by itself.
    device.enqueue_host(Box::new(move || _ = flag.recv()), busy.handle()).unwrap();
    pool.free_block(block, own.handle()).unwrap();
    let begun = Instant::now();
    let error = pool.allocate(Bytes::mib(40), own.handle()).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    assert!(begun.elapsed() >= wait && begun.elapsed() < core::time::Duration::from_secs(5));
    drop(go);
    pool.set("max_wait", "10s").unwrap();
    pool.allocate(Bytes::mib(40), own.handle()).unwrap();
}

/// Frees on a stream race `forget_stream`. What was freed must not be taken by another stream before the
/// work that was enqueued before the free is done.
#[test]
fn a_free_that_races_forget_stream_is_in_order() {
    for rounds in 0..8 {
        let (machine, device, shared) =
            open(SimMachine::builder().capacity(Bytes::mib(64)).seed(rounds));
        let pool = PoolOptions::new().max_bytes(Bytes::mib(64)).build(&shared).unwrap();
        let [one, two] = [(); 2].map(|()| device.create_stream(Priority::Normal).unwrap());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for stream in [one, two] {
                let (pool, device, stop) = (&pool, &device, &stop);
                scope.spawn(move || {
                    for _ in 0..60 {
                        let Ok(block) = pool.allocate(Bytes::mib(20), stream) else { continue };
                        write(device, block, 1, stream);
                        pool.free_block(block, stream).unwrap();
                    }
                    stop.store(true, Ordering::Relaxed);
                });
            }
            while !stop.load(Ordering::Relaxed) {
                pool.forget_stream(one).unwrap();
            }
        });
        device.synchronize_device().unwrap();
        assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
    }
}

/// Streams that are destroyed without a word, far more than a pool tells apart, break nothing: requests are
/// served, and all memory comes back.
#[test]
fn streams_that_die_without_a_word_break_nothing() {
    let (machine, device, shared) = open(SimMachine::builder().capacity(Bytes::gib(1)));
    let pool = PoolOptions::new().max_bytes(Bytes::mib(64)).build(&shared).unwrap();
    for number in 0..3000 {
        let stream = device.create_stream(Priority::Normal).unwrap();
        let block = pool.allocate(Bytes::new(4096 + 512 * (number % 700)), stream).unwrap();
        write(&device, block, 1, stream);
        pool.free_block(block, stream).unwrap();
        device.destroy_stream(stream).unwrap();
    }
    // Freed on one that is gone already.
    let gone = device.create_stream(Priority::Normal).unwrap();
    let late = pool.allocate(Bytes::mib(3), DEFAULT).unwrap();
    device.destroy_stream(gone).unwrap();
    pool.free_block(late, gone).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!((pool.held(), machine.census().held), (Bytes::ZERO, Bytes::ZERO));
    assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
}

/// Dropping a [`Stream`] makes the pools of its device forget it: no call by hand is needed.
#[test]
fn an_owned_stream_tells_the_pools_that_it_goes() {
    let (machine, _, device) = open(SimMachine::builder().capacity(Bytes::gib(1)));
    let pool = PoolOptions::new().build(&device).unwrap();
    for _ in 0..200 {
        let stream = Stream::new(&device, Priority::Normal).unwrap();
        let block = pool.allocate(Bytes::mib(1), stream.handle()).unwrap();
        pool.free_block(block, stream.handle()).unwrap();
        let handle = stream.handle();
        drop(stream);
        assert!(!pool.shared.heap().slots.knows(handle));
    }
    assert!(pool.held() < Bytes::mib(10), "{} held for one block at a time", pool.held());
    assert_eq!(pool.statistics().driver.of(Call::SynchronizeDevice), 0);
    drop(pool);
    assert_eq!(machine.census().events, 0);
}

/// More live streams than a pool has numbers: no request waits on the host.
#[test]
fn no_number_of_streams_makes_a_request_wait() {
    let (machine, device) = phantom(Bytes::gib(64));
    let pool = PoolOptions::new().build(&device).unwrap();
    let count = forebay_core::address_space::Streams::MAX as usize + 100;
    let streams: Vec<Stream> =
        (0..count).map(|_| Stream::new(&device, Priority::Normal).unwrap()).collect();
    for _ in 0..3 {
        for stream in &streams {
            let block = pool.allocate(Bytes::mib(1), stream.handle()).unwrap();
            pool.free_block(block, stream.handle()).unwrap();
        }
    }
    let calls = machine.calls();
    let waits = [Call::SynchronizeEvent, Call::SynchronizeStream, Call::SynchronizeDevice];
    assert_eq!(waits.map(|wait| calls.of(wait)), [0; 3]);
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.held(), Bytes::ZERO);
}

/// Events do not pile up: neither on blocks that were used on streams which went, nor for blocks that wait.
#[test]
fn events_do_not_pile_up() {
    let (machine, _, device) = open(SimMachine::builder().capacity(Bytes::gib(1)));
    let pool = PoolOptions::new().build(&device).unwrap();
    let weights: Vec<Block> =
        (0..20).map(|_| pool.allocate(Bytes::new(4096), DEFAULT).unwrap()).collect();
    for _ in 0..2000 {
        let stream = Stream::new(&device, Priority::Normal).unwrap();
        for block in &weights {
            pool.record_use(block.address(), stream.handle()).unwrap();
        }
        stream.synchronize().unwrap();
    }
    pool.process_deferred().unwrap();
    assert!(machine.census().events < 10, "{} events", machine.census().events);
    for block in &weights {
        let uses = pool.shared.heap().uses.get(&block.address()).cloned().unwrap_or_default();
        assert!(uses.streams.len() <= 64, "{} uses noted", uses.streams.len());
    }
}

/// However many blocks wait for one stream, a request that grows asks for one event.
#[test]
fn one_query_answers_for_all_blocks_that_wait_for_a_stream() {
    let (machine, device, shared) = open(SimMachine::builder().capacity(Bytes::gib(1)));
    let pool = PoolOptions::new().build(&shared).unwrap();
    let [own, user] = [(); 2].map(|()| device.create_stream(Priority::Normal).unwrap());
    let blocks: Vec<Block> =
        (0..1000).map(|_| pool.allocate(Bytes::new(512), own).unwrap()).collect();
    let work = pool.allocate(Bytes::new(512), user).unwrap();
    for _ in 0..2000 {
        write(&device, work, 1, user);
    }
    for block in &blocks {
        pool.record_use(block.address(), user).unwrap();
        pool.free_block(*block, own).unwrap();
    }
    let before = machine.calls().of(Call::QueryEvent);
    for number in 0..10 {
        pool.allocate(Bytes::mib(40 + number), own).unwrap();
    }
    let queries = machine.calls().of(Call::QueryEvent) - before;
    assert!(queries <= 40, "{queries} queries for ten requests");
    assert!(machine.census().events <= 6, "{} events", machine.census().events);
    device.synchronize_device().unwrap();
    pool.process_deferred().unwrap();
    // All of them came back.
    let again: Vec<Block> =
        (0..1000).map(|_| pool.allocate(Bytes::new(512), own).unwrap()).collect();
    none_overlap(again);
}

/// Two requests whose time is limited need the whole device: the second waits for the first, and then for
/// the device itself, as long as it may.
#[test]
fn two_requests_wait_for_the_device_one_after_the_other() {
    use core::time::Duration;

    use crate::pool::common::wait::Deadline;

    let device: Arc<dyn Device> = HostDevice::open().unwrap();
    let pool = PoolOptions::new().build(&device).unwrap();
    let busy = Stream::new(&device, Priority::Normal).unwrap();
    let (go, flag) = mpsc::channel::<()>();
    device.enqueue_host(Box::new(move || _ = flag.recv()), busy.handle()).unwrap();
    let until = |millis| Deadline::At(Instant::now() + Duration::from_millis(millis));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| waits::wait_for_device(&pool.shared, until(20_000)).unwrap());
        while !pool.shared.waiter.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let begun = Instant::now();
        assert!(!waits::wait_for_device(&pool.shared, until(60)).unwrap());
        assert!(begun.elapsed() >= Duration::from_millis(60), "refused at once");
        let second = scope.spawn(|| waits::wait_for_device(&pool.shared, until(20_000)).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!second.is_finished() && !first.is_finished());
        drop(go);
        assert!(first.join().unwrap() && second.join().unwrap());
    });
}

/// Pages that live blocks lie in bring a large request nothing: where it needs them it is refused at once,
/// whatever of them is free.
#[test]
fn bytes_in_pages_that_are_in_use_are_not_hoped_for() {
    let (_, device, shared) = open(SimMachine::builder().capacity(Bytes::gib(1)));
    let pool = PoolOptions::new().max_bytes(Bytes::mib(64)).build(&shared).unwrap();
    let used = Stream::new(&shared, Priority::Normal).unwrap();
    let mut blocks: Vec<Block> =
        (0..64).map(|_| pool.allocate(Bytes::kib(512), DEFAULT).unwrap()).collect();
    blocks.sort_by_key(Block::address);
    let (mut live, mut freed) = (Vec::new(), Vec::new());
    for (number, block) in blocks.into_iter().enumerate() {
        if number % 2 == 0 { live.push(block) } else { freed.push(block) }
    }
    // Something to wait for.
    let late = freed.pop().unwrap();
    pool.record_use(late.address(), used.handle()).unwrap();
    (0..300).for_each(|_| write(&device, late, 1, used.handle()));
    pool.free_block(late, DEFAULT).unwrap();
    freed.into_iter().for_each(|block| pool.free_block(block, DEFAULT).unwrap());
    let put_off = || pool.shared.backing().deferred.returns().count();
    let room = Bytes::mib(64).saturating_sub(pool.held());
    let error = pool.allocate(room.saturating_add(Bytes::mib(2)), DEFAULT).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    assert_eq!(put_off(), 1, "the work of another stream was waited for");
    // What there is can be had, and with a page that comes free more.
    let all = pool.allocate(room, DEFAULT).unwrap();
    pool.free_block(all, DEFAULT).unwrap();
    live.into_iter().for_each(|block| pool.free_block(block, DEFAULT).unwrap());
    pool.allocate(room.saturating_add(Bytes::mib(2)), DEFAULT).unwrap();
}

/// A page does not go back to the device while an old mapping of it waits for work: the device would keep the memory,
/// and the pool would take more than its limit.
#[test]
fn a_page_stays_held_while_an_old_mapping_waits() {
    let options = SimMachine::builder().memory(MemoryModel::Phantom).capacity(Bytes::gib(1));
    let (machine, device, shared) = open(options);
    let limit = Bytes::mib(40);
    let pool = PoolOptions::new().max_bytes(limit).build(&shared).unwrap();
    let [s, t] = [(); 2].map(|()| device.create_stream(Priority::Normal).unwrap());
    let launch = |block: Block, stream| {
        let span = Span::new(block.address(), block.size()).unwrap();
        // SAFETY: the block is live.
        unsafe { device.launch(Kernel::new("use").writes(span), stream) }.unwrap();
    };
    let blocks: Vec<Block> = (0..10).map(|_| pool.allocate(Bytes::mib(4), s).unwrap()).collect();
    blocks.iter().for_each(|block| launch(*block, s));
    // Two moves: the old mappings of the second wait for an event that is recorded again.
    let long = [(0, 2), (4, 6)].map(|(one, two)| {
        pool.free_block(blocks[one], s).unwrap();
        pool.free_block(blocks[two], s).unwrap();
        let long = pool.allocate(Bytes::mib(8), s).unwrap();
        launch(long, s);
        long
    });
    // Freed on `t`, after all work of `s` so far.
    let event = device.create_event(forebay_hal::EventKind::Order).unwrap();
    device.record_event(event, s).unwrap();
    device.wait_event(t, event).unwrap();
    pool.free_block(long[1], t).unwrap();
    (0..500).for_each(|_| launch(blocks[1], s));
    pool.record_use(blocks[8].address(), s).unwrap();
    pool.free_block(blocks[8], t).unwrap();
    device.synchronize_stream(t).unwrap();
    pool.collect(Duration::ZERO).unwrap();
    assert_eq!(machine.census().held, pool.held(), "released pages are still mapped");
    while pool.allocate(Bytes::mib(2), t).is_ok() {
        assert!(machine.census().held <= limit, "{} of {limit}", machine.census().held);
    }
    [s, t].into_iter().for_each(|stream| device.synchronize_stream(stream).unwrap());
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(machine.census().held, pool.held());
}
