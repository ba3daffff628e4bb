//! Releasing idle memory: on demand and by the upkeep thread.

use core::time::Duration;
use std::time::Instant;

use super::*;

/// Waits until `done`, for longer than any machine needs.
#[track_caller]
pub(super) fn eventually(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what} did not happen in a minute");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn open_phantom() -> (SimMachine, Arc<SimDevice>, Arc<dyn Device>) {
    open(SimMachine::builder().memory(MemoryModel::Phantom))
}

/// Takes so much and gives it back: it is held, and idle.
fn idle(pool: &Pool, size: Bytes) {
    let block = pool.allocate(size, DEFAULT).unwrap();
    pool.free(block.address(), DEFAULT).unwrap();
    assert!(pool.held() >= size);
}

#[test]
fn what_was_not_needed_for_long_enough_is_collected() {
    let (machine, device, shared) = open_phantom();
    let pool = Pool::new(&shared).unwrap();
    let kept = pool.allocate(Bytes::mib(32), DEFAULT).unwrap();
    idle(&pool, Bytes::mib(64));
    let held = pool.held();
    let age = Duration::from_millis(20);
    assert_eq!(pool.collect(age).unwrap(), Bytes::ZERO, "nobody has watched yet");
    std::thread::sleep(age);
    assert_eq!(pool.collect(Duration::from_secs(3600)).unwrap(), Bytes::ZERO, "not for an hour");
    let gone = pool.collect(age).unwrap();
    assert!(gone >= Bytes::mib(64), "{gone}");
    device.synchronize_device().unwrap();
    pool.process_deferred().unwrap();
    assert_eq!(pool.held(), held.saturating_sub(gone));
    assert!(pool.held() >= Bytes::mib(32));
    assert_eq!(machine.census().held, pool.held());
    assert!(pool.block_at(kept.address()).is_some());
}

#[test]
fn what_is_needed_now_and_then_is_kept() {
    let (_, _, shared) = open_phantom();
    let pool = Pool::new(&shared).unwrap();
    let age = Duration::from_millis(200);
    assert_eq!(pool.collect(age).unwrap(), Bytes::ZERO);
    let begun = Instant::now();
    // Longer than the age in all, and never that long without the block.
    while begun.elapsed() < 2 * age {
        idle(&pool, Bytes::mib(64));
        std::thread::sleep(age / 8);
        assert_eq!(pool.collect(age).unwrap(), Bytes::ZERO);
    }
    assert!(pool.held() >= Bytes::mib(64));
}

/// Memory that work may still use is released when the work is done, not before, and no call waits for it.
#[test]
fn collecting_does_not_wait_for_the_device() {
    let (machine, device, shared) = open(SimMachine::builder());
    let pool = Pool::new(&shared).unwrap();
    let block = pool.allocate(Bytes::mib(40), DEFAULT).unwrap();
    write(&device, block, 3, DEFAULT);
    pool.free(block.address(), DEFAULT).unwrap();
    let synchronised = machine.calls().of(Call::SynchronizeDevice);
    let going = pool.collect(Duration::ZERO).unwrap();
    assert!(going >= Bytes::mib(32));
    assert_eq!(machine.calls().of(Call::SynchronizeDevice), synchronised);
    device.synchronize_device().unwrap();
    pool.process_deferred().unwrap();
    assert!(machine.census().held <= Bytes::mib(8), "{}", machine.census().held);
    assert_eq!(machine.findings(), []);
}

#[test]
fn what_is_to_be_kept_is_kept_by_trimming_and_by_collecting() {
    let (_, device, shared) = open_phantom();
    let min = Bytes::mib(40);
    let pool = PoolOptions::new().set(|set| set.min_bytes(min)).build(&shared).unwrap();
    let largest_page = Growth::default().largest_page;
    let kept = |by: &str| {
        device.synchronize_device().unwrap();
        pool.process_deferred().unwrap();
        let held = pool.held();
        let most = min.saturating_add(largest_page);
        assert!(held >= min && held < most, "{by}: {held} is held");
    };
    idle(&pool, Bytes::mib(200));
    pool.trim(Bytes::ZERO).unwrap();
    kept("trim");
    idle(&pool, Bytes::mib(200));
    pool.collect(Duration::ZERO).unwrap();
    std::thread::sleep(Duration::from_millis(1));
    pool.collect(Duration::ZERO).unwrap();
    kept("collect");
    idle(&pool, Bytes::mib(200));
    pool.trim(Bytes::mib(120)).unwrap();
    assert!(pool.held() >= Bytes::mib(120));
}

/// There is one thread for the process: tests that look whether it runs take turns.
fn turn() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    crate::sync::lock(&TURN)
}

#[test]
fn the_thread_gives_idle_memory_back_and_ends() {
    let _turn = turn();
    let (machine, _, shared) = open_phantom();
    let slow = PoolOptions::new().set(|set| set.upkeep(true).upkeep_interval(HOUR));
    let slow = slow.build(&shared).unwrap();
    // While the thread pauses for an hour, another comes that is in more of a hurry.
    let quick = PoolOptions::new().set(|set| {
        let set = set.upkeep(true).upkeep_interval(Duration::from_millis(1));
        set.collect_after(Duration::from_millis(10))
    });
    let quick = quick.build(&shared).unwrap();
    let kept = quick.allocate(Bytes::mib(2), DEFAULT).unwrap();
    idle(&quick, Bytes::mib(64));
    eventually("collection", || quick.held() <= Bytes::mib(34));
    assert!(quick.block_at(kept.address()).is_some());
    assert!(crate::pool::calls::upkeep::runs());
    drop(quick);
    // The thread may have it in hand for a moment.
    eventually("the end of the pool", || machine.census().held == slow.held());

    // Told to hurry while it pauses, it does; told to stop, it ends.
    idle(&slow, Bytes::mib(64));
    slow.set("collect_after", "10ms").unwrap();
    slow.set("upkeep_interval", "1ms").unwrap();
    eventually("collection after a change", || slow.held().is_zero());
    slow.set("upkeep", "off").unwrap();
    eventually("the end of the thread", || !crate::pool::calls::upkeep::runs());
    idle(&slow, Bytes::mib(64));
    std::thread::sleep(Duration::from_millis(50));
    assert!(slow.held() >= Bytes::mib(64), "nobody is there to give it back");
    slow.set("upkeep", "on").unwrap();
    eventually("collection again", || slow.held().is_zero());
    drop(slow);
    eventually("the end of the thread", || !crate::pool::calls::upkeep::runs());
    nothing_is_left(&machine);
}

const HOUR: Duration = Duration::from_secs(3600);

/// A pressure callback may panic: the upkeep thread goes on, and the panic is counted.
#[test]
fn the_thread_outlives_a_callback_that_panics() {
    let _turn = turn();
    let (_, _, shared) = open_phantom();
    let options = PoolOptions::new().max_bytes(Bytes::mib(100)).set(|set| {
        let set = set.upkeep(true).upkeep_interval(Duration::from_millis(1));
        set.collect_after(Duration::from_millis(10))
    });
    let here = std::thread::current().id();
    let pool = options
        .on_pressure(move |_, _| {
            assert_eq!(std::thread::current().id(), here, "on purpose, as it is told");
        })
        .build(&shared)
        .unwrap();
    let block = pool.allocate(Bytes::mib(90), DEFAULT).unwrap();
    pool.free(block.address(), DEFAULT).unwrap();
    eventually("collection", || pool.held().is_zero());
    eventually("a panic, told", || pool.statistics().callback_panics > 0);
    assert!(crate::pool::calls::upkeep::runs());
    idle(&pool, Bytes::mib(20));
    eventually("collection after a panic", || pool.held().is_zero());
}

/// Two streams have freed what lies side by side, and are done: it is one hole for both.
#[test]
fn defragmenting_makes_one_hole_of_what_idle_streams_freed() {
    let (machine, device, shared) = open(SimMachine::builder());
    let pool = PoolOptions::new().max_bytes(Bytes::mib(8)).build(&shared).unwrap();
    let streams = [(); 2].map(|()| device.create_stream(Priority::Normal).unwrap());
    let blocks: Vec<(Block, StreamHandle)> = (0..4)
        .map(|index| streams[index % 2])
        .map(|stream| (pool.allocate(Bytes::mib(1), stream).unwrap(), stream))
        .collect();
    let busy = blocks[3].0;
    for &(block, stream) in &blocks {
        write(&device, block, 1, stream);
    }
    (0..200).for_each(|_| write(&device, busy, 1, streams[1]));
    for &(block, stream) in &blocks {
        pool.free_block(block, stream).unwrap();
    }
    let scattered = pool.statistics();
    device.synchronize_stream(streams[0]).unwrap();
    let waited = |machine: &SimMachine| {
        let calls = machine.calls();
        calls.of(Call::SynchronizeEvent) + calls.of(Call::SynchronizeDevice)
    };
    let before = waited(&machine);
    pool.defragment().unwrap();
    assert_eq!(waited(&machine), before);
    device.synchronize_device().unwrap();
    pool.defragment().unwrap();
    let figures = pool.statistics();
    assert!(scattered.pieces > figures.pieces, "{} {}", scattered.pieces, figures.pieces);
    assert_eq!((figures.pieces, figures.largest_free), (1, figures.held));
    let waits = figures.waits;
    pool.allocate(figures.held, streams[0]).unwrap();
    assert_eq!((pool.held(), pool.statistics().waits), (figures.held, waits));
    assert_eq!(machine.finding_count(), 0);
}

/// And work that is not over is not taken for it.
#[test]
fn defragmenting_leaves_what_is_in_use() {
    for seed in 0..20 {
        let (machine, device, shared) = open(SimMachine::builder().seed(seed));
        let pool = PoolOptions::new().max_bytes(Bytes::mib(8)).build(&shared).unwrap();
        let streams = [(); 3].map(|()| device.create_stream(Priority::Normal).unwrap());
        let mut random = Random::new(seed);
        let wrong = Arc::new(AtomicU64::new(0));
        for step in 0..60_u8 {
            let stream = *random.pick(&streams).unwrap();
            let size = Bytes::new(size_up_to(&mut random, 10, 20));
            let block = pool.allocate(size, stream).unwrap();
            write(&device, block, step, stream);
            check(&device, block, step, stream, &wrong);
            pool.free_block(block, stream).unwrap();
            if step % 3 == 0 {
                pool.defragment().unwrap();
            }
        }
        device.synchronize_device().unwrap();
        assert_eq!((machine.finding_count(), wrong.load(Ordering::Relaxed)), (0, 0), "seed {seed}");
    }
}

/// Asking whether a stream has anything left to do lets the device work: a host function that uses the
/// pool then waits for the heap a moment, and nobody for ever.
#[test]
fn a_host_function_may_use_the_pool_while_it_is_defragmented() {
    let (machine, device, shared) = open(SimMachine::builder());
    let pool = PoolOptions::new().build(&shared).unwrap();
    let stream = device.create_stream(Priority::Normal).unwrap();
    let block = pool.allocate(Bytes::mib(1), stream).unwrap();
    let held = pool.allocate(Bytes::mib(2), stream).unwrap();
    pool.free_block(block, stream).unwrap();
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    let inner = pool.clone();
    let task = move || {
        let freed = inner.free_block(held, DEFAULT);
        let _ = tell.send(freed.map(|()| inner.statistics().frees));
    };
    device.enqueue_host(Box::new(task), stream).unwrap();
    pool.defragment().unwrap();
    device.synchronize_device().unwrap();
    assert_eq!(told.recv_timeout(Duration::from_secs(20)).unwrap().unwrap(), 2);
    pool.defragment().unwrap();
    assert_eq!((pool.statistics().live, machine.finding_count()), (Bytes::ZERO, 0));
}

/// A pool that grows ahead has the pages for the next request before it comes, unless memory is scarce.
#[test]
fn the_thread_grows_the_pool_ahead() {
    let pool_of = |limit: Bytes| {
        let device = open(SimMachine::builder().memory(MemoryModel::Phantom)).2;
        let options = PoolOptions::new()
            .max_bytes(limit)
            .set(|settings| settings.upkeep(true).upkeep_interval(Duration::from_secs(60)));
        let pool = options.build(&device).unwrap();
        pool.set("grow_ahead", "64MiB").unwrap();
        pool
    };
    let pool = pool_of(Bytes::gib(4));
    pool.allocate(Bytes::mib(10), DEFAULT).unwrap();
    let made = |pool: &Pool| pool.statistics().driver.of(Call::CreatePage);
    let begun = std::time::Instant::now();
    while pool.held() < Bytes::mib(74) {
        assert!(begun.elapsed() < Duration::from_secs(20), "the pool holds {}", pool.held());
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = made(&pool);
    pool.allocate(Bytes::mib(60), DEFAULT).unwrap();
    assert_eq!(made(&pool), before, "the pages were there");
    // Less than eight times as much remains, which is for requests.
    let scarce = pool_of(Bytes::mib(400));
    scarce.allocate(Bytes::mib(10), DEFAULT).unwrap();
    let asked = |pool: &Pool| pool.statistics().driver.of(Call::MemoryInfo);
    let (before, begun) = (asked(&scarce), std::time::Instant::now());
    scarce.allocate(Bytes::mib(10), DEFAULT).unwrap();
    while asked(&scarce) == before && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(asked(&scarce) > before, "the thread has not looked");
    assert!(scarce.held() < Bytes::mib(40), "the pool holds {}", scarce.held());
}

/// A panic in a round ends neither the thread nor later rounds.
#[test]
fn the_thread_survives_a_panic() {
    use crate::pool::calls::upkeep::{PANIC, runs};
    let _turn = turn();
    let (_, _, shared) = open_phantom();
    let options = PoolOptions::new().set(|set| {
        let set = set.upkeep(true).upkeep_interval(Duration::from_millis(1));
        set.collect_after(Duration::from_millis(1))
    });
    let pool = options.build(&shared).unwrap();
    PANIC.store(true, Ordering::Relaxed);
    eventually("a round that panics", || !PANIC.load(Ordering::Relaxed));
    idle(&pool, Bytes::mib(64));
    eventually("the next rounds", || pool.held().is_zero());
    assert!(runs());
}
