//! The pool on the simulated device: data that must stay what it is, orders that must hold, calls
//! that fail.

mod align;
mod capture;
mod change;
mod class;
mod end;
mod figures;
mod fits;
mod group;
mod limbo;
mod lost;
mod many;
mod numbers;
mod own_streams;
mod post_mortem;
mod pressure;
mod process;
mod refusals;
mod refused;
mod reserved;
mod restore;
mod reuse;
mod scope;
mod segments;
mod sides;
mod snapshot;
mod steps;
mod strangers;
mod stress;
mod threads;
mod upkeep;
mod uses;

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::address_space::Growth;
use forebay_core::{Address, Alignment, Bytes, PageSize, Random, Span};
use forebay_hal::{Call, Device, Priority, StreamHandle, Streams};
use forebay_sim::{Fault, FaultKind, Kernel, MemoryModel, SimDevice, SimMachine, SimOptions, When};

use super::*;
use crate::{Error, MemoryClass};

const DEFAULT: StreamHandle = StreamHandle::DEFAULT;

fn open(options: SimOptions) -> (SimMachine, Arc<SimDevice>, Arc<dyn Device>) {
    let machine = options.build().unwrap();
    let device = machine.device(0).unwrap();
    let shared: Arc<dyn Device> = device.clone();
    (machine, device, shared)
}

/// Pages small enough that programs of a few megabytes have many.
fn small_pages() -> Growth {
    let mut growth = Growth::default();
    growth.largest_page = Bytes::new(64 << 10);
    // By what the program holds alone: these devices are tiny.
    growth.reach_part = 1;
    growth
}

/// Writes `tag` over a block, in the order of its stream.
fn write(device: &SimDevice, block: Block, tag: u8, stream: StreamHandle) {
    let span = Span::new(block.address(), block.size()).unwrap();
    let size = usize::try_from(block.size().get()).unwrap();
    let kernel = Kernel::new(format!("write {tag}")).writes(span).body(move |memory| {
        assert!(memory.write(span, &vec![tag; size]));
    });
    // SAFETY: the block is live, and the pool keeps what it is made of.
    unsafe { device.launch(kernel, stream) }.unwrap();
}

/// Counts the bytes of a block that are not `tag`, in the order of its stream.
fn check(device: &SimDevice, block: Block, tag: u8, stream: StreamHandle, wrong: &Arc<AtomicU64>) {
    let span = Span::new(block.address(), block.size()).unwrap();
    let wrong = Arc::clone(wrong);
    let kernel = Kernel::new(format!("check {tag}")).reads(span).body(move |memory| {
        let bytes = memory.read(span).unwrap();
        let bad = bytes.iter().filter(|&&byte| byte != tag).count();
        wrong.fetch_add(bad as u64, Ordering::Relaxed);
    });
    // SAFETY: as for writing.
    unsafe { device.launch(kernel, stream) }.unwrap();
}

/// A size of any magnitude between two powers of two.
fn size_up_to(random: &mut Random, least: u64, most: u64) -> u64 {
    let magnitude = random.between(least, most);
    1 + random.below(1 << magnitude)
}

/// A random program on several streams: every block is written when it is had and looked at before
/// it is freed, all in the order of its stream and late.
fn random_program(options: SimOptions, seed: u64, steps: usize) -> (Vec<Address>, Statistics) {
    let (machine, device, shared) = open(options.seed(seed));
    let pool = PoolOptions::new().growth(small_pages()).build(&shared).unwrap();
    let mut random = Random::new(seed);
    let streams: Vec<StreamHandle> =
        (0..4).map(|_| device.create_stream(Priority::Normal).unwrap()).collect();
    let wrong = Arc::new(AtomicU64::new(0));
    let mut live: Vec<(Block, u8, StreamHandle)> = Vec::new();
    let mut addresses = Vec::new();
    for step in 0..steps {
        let tag = u8::try_from(step % 251).unwrap();
        let stream = *random.pick(&streams).unwrap();
        if live.len() < 40 && random.chance(11, 20) {
            let size = size_up_to(&mut random, 4, 18);
            match pool.allocate(Bytes::new(size), stream) {
                Ok(block) => {
                    addresses.push(block.address());
                    write(&device, block, tag, stream);
                    live.push((block, tag, stream));
                }
                Err(Error::OutOfMemory(shortage)) => assert_eq!(shortage.requested.get(), size),
                Err(error) => panic!("{error}"),
            }
        } else if let Some(index) = random.index(live.len()) {
            let (block, tag, stream) = live.swap_remove(index);
            check(&device, block, tag, stream, &wrong);
            pool.free(block.address(), stream).unwrap();
        }
        if random.chance(1, 50) {
            device.synchronize_stream(stream).unwrap();
        }
    }
    for (block, tag, stream) in live {
        check(&device, block, tag, stream, &wrong);
        pool.free(block.address(), stream).unwrap();
    }
    device.synchronize_device().unwrap();
    let statistics = pool.statistics();
    drop(pool);
    assert_eq!(machine.finding_count(), 0, "seed {seed}: {}", machine.findings()[0]);
    assert_eq!(wrong.load(Ordering::Relaxed), 0, "seed {seed}: bytes of blocks were overwritten");
    nothing_is_left(&machine);
    let start = addresses.iter().min().copied().unwrap_or_default();
    let offsets = addresses
        .iter()
        .map(|address| Address::new(address.offset_from(start).unwrap_or_default().get()))
        .collect();
    (offsets, statistics)
}

/// A device so small that programs of a few megabytes fill it.
fn small_device() -> SimOptions {
    SimMachine::builder().granularity(PageSize::HOST).capacity(Bytes::mib(4))
}

/// Nothing of the device is in anybody's hands.
fn nothing_is_left(machine: &SimMachine) {
    let left = machine.census();
    let counts = (left.pages, left.mappings, left.regions, left.blocks, left.events);
    assert_eq!(counts, (0, 0, 0, 0, 0), "{left}");
    assert_eq!(left.held, Bytes::ZERO);
}

#[test]
fn data_stays_and_order_holds_in_random_programs() {
    let (mut waits, mut moved) = (0, 0);
    for seed in 0..60 {
        let (_, statistics) = random_program(small_device(), seed, 400);
        waits += statistics.waits;
        moved += statistics.driver.of(Call::Map) - statistics.driver.of(Call::CreatePage);
        assert_eq!(statistics.live, Bytes::ZERO);
        assert_eq!(statistics.allocations, statistics.frees);
    }
    assert!(waits > 100, "streams took from each other only {waits} times");
    assert!(moved > 20, "pages moved only {moved} times");
}

/// Many threads, each on a stream of its own, that take from each other when there is nothing else.
#[test]
fn threads_share_a_pool() {
    let options = SimMachine::builder().seed(8).granularity(PageSize::HOST);
    let (machine, device, shared) = open(options.capacity(Bytes::mib(8)));
    let pool = PoolOptions::new().growth(small_pages()).build(&shared).unwrap();
    let wrong = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..6_u8 {
            let (device, pool, wrong) = (&device, &pool, &wrong);
            scope.spawn(move || {
                let mut random = Random::new(u64::from(thread));
                let stream = device.create_stream(Priority::Normal).unwrap();
                let mut live: Vec<(Block, u8)> = Vec::new();
                for step in 0..200_u8 {
                    if live.len() < 10 && random.chance(3, 5) {
                        let size = Bytes::new(size_up_to(&mut random, 9, 17));
                        let block = pool.allocate(size, stream).unwrap();
                        write(device, block, step ^ thread, stream);
                        live.push((block, step ^ thread));
                    } else if let Some(index) = random.index(live.len()) {
                        let (block, tag) = live.swap_remove(index);
                        check(device, block, tag, stream, wrong);
                        pool.free(block.address(), stream).unwrap();
                    }
                }
                for (block, tag) in live {
                    check(device, block, tag, stream, wrong);
                    pool.free(block.address(), stream).unwrap();
                }
            });
        }
    });
    device.synchronize_device().unwrap();
    assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
    assert_eq!(wrong.load(Ordering::Relaxed), 0);
    assert_eq!(pool.statistics().live, Bytes::ZERO);
    assert!(pool.statistics().waits > 0, "no thread ever took from another");
}

#[test]
fn the_same_requests_get_the_same_places() {
    let phantom = || {
        let (_, _, device) = open(SimMachine::builder().memory(MemoryModel::Phantom));
        let pool = Pool::new(&device).unwrap();
        let mut random = Random::new(3);
        let mut live = Vec::new();
        let mut seen = Vec::new();
        for _ in 0..2000 {
            if random.chance(1, 2) || live.is_empty() {
                let size = Bytes::new(size_up_to(&mut random, 9, 24));
                let block = pool.allocate(size, DEFAULT).unwrap();
                seen.push(block.address());
                live.push(block);
            } else {
                let index = random.index(live.len()).unwrap();
                pool.free(live.swap_remove(index).address(), DEFAULT).unwrap();
            }
        }
        seen
    };
    assert_eq!(phantom(), phantom());
}

#[test]
fn wrong_frees_are_refused_and_change_nothing() {
    // Real memory: phantom addresses are those of other tests' devices too, whose pools are asked.
    let (_, _, device) = open(SimMachine::builder());
    let pool = Pool::new(&device).unwrap();
    let other = Pool::new(&device).unwrap();
    let block = pool.allocate(Bytes::new(1000), DEFAULT).unwrap();
    let before = pool.statistics();
    let inside = Address::new(block.address().get() + 512);
    for wrong in [inside, Address::new(4096), Address::new(u64::MAX)] {
        let error = pool.free(wrong, DEFAULT).unwrap_err();
        assert_eq!(error, Error::NotABlock { address: wrong });
    }
    assert!(matches!(other.free(block.address(), DEFAULT), Err(Error::WrongPool { .. })));
    assert!(matches!(other.free_block(block, DEFAULT), Err(Error::WrongPool { .. })));
    for wrong in [0, 1, 999, 1025] {
        let error = pool.free_sized(block.address(), Bytes::new(wrong), DEFAULT).unwrap_err();
        assert!(matches!(error, Error::WrongSize { .. }), "{error}");
    }
    assert_eq!(pool.statistics(), before);
    pool.free_sized(block.address(), Bytes::new(1000), DEFAULT).unwrap();
    assert!(matches!(pool.free(block.address(), DEFAULT), Err(Error::DoubleFree { .. })));
    assert!(matches!(pool.free_block(block, DEFAULT), Err(Error::DoubleFree { .. })));
    let again = pool.allocate(Bytes::new(1000), DEFAULT).unwrap();
    assert_eq!(again.address(), block.address());
    assert!(matches!(pool.free_block(block, DEFAULT), Err(Error::StaleBlock { .. })));
    pool.free_block(again, DEFAULT).unwrap();
    pool.free(Address::NULL, DEFAULT).unwrap();
    assert_eq!(pool.allocate(Bytes::ZERO, DEFAULT).unwrap().address(), Address::NULL);
    for absurd in [u64::MAX, u64::MAX - 511, 1 << 60] {
        let error = pool.allocate(Bytes::new(absurd), DEFAULT).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    }
}

#[test]
fn a_limit_is_kept_and_told() {
    let (_, _, device) = open(SimMachine::builder().memory(MemoryModel::Phantom));
    let pool = PoolOptions::new().max_bytes(Bytes::mib(64)).build(&device).unwrap();
    let block = pool.allocate(Bytes::mib(40), DEFAULT).unwrap();
    let error = pool.allocate(Bytes::mib(40), DEFAULT).unwrap_err();
    let Error::OutOfMemory(shortage) = error else { panic!("{error}") };
    assert_eq!((shortage.limit, shortage.live), (Bytes::mib(64), Bytes::mib(40)));
    assert!(pool.statistics().held <= Bytes::mib(64));
    pool.free(block.address(), DEFAULT).unwrap();
    assert!(pool.allocate(Bytes::mib(60), DEFAULT).is_ok());
}

#[test]
fn trimming_gives_back_what_is_free_and_nothing_else() {
    let (machine, device, shared) = open(SimMachine::builder());
    let pool = Pool::new(&shared).unwrap();
    let kept = pool.allocate(Bytes::mib(3), DEFAULT).unwrap();
    write(&device, kept, 7, DEFAULT);
    let gone = pool.allocate(Bytes::mib(100), DEFAULT).unwrap();
    pool.free(gone.address(), DEFAULT).unwrap();
    assert!(pool.trim(Bytes::ZERO).unwrap() >= Bytes::mib(64));
    assert!(pool.statistics().held < Bytes::mib(40));
    assert_eq!(machine.census().held, pool.statistics().held);
    let wrong = Arc::new(AtomicU64::new(0));
    check(&device, kept, 7, DEFAULT, &wrong);
    device.synchronize_device().unwrap();
    assert_eq!(wrong.load(Ordering::Relaxed), 0);
    assert_eq!(machine.findings(), []);
}

#[test]
fn a_forgotten_stream_leaves_its_memory_to_all() {
    let (machine, device, shared) = open(SimMachine::builder());
    let pool = PoolOptions::new().max_bytes(Bytes::mib(64)).build(&shared).unwrap();
    for _ in 0..100 {
        let stream = device.create_stream(Priority::Normal).unwrap();
        let block = pool.allocate(Bytes::mib(20), stream).unwrap();
        write(&device, block, 1, stream);
        pool.free(block.address(), stream).unwrap();
        pool.forget_stream(stream).unwrap();
        device.destroy_stream(stream).unwrap();
    }
    assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
    assert!(pool.statistics().held <= Bytes::mib(64));
}

/// More streams than can be told apart take turns: the one not used for the longest is waited for,
/// and data and order stay right.
#[test]
fn more_streams_than_can_be_told_apart_take_turns() {
    let options = SimMachine::builder().seed(4).granularity(PageSize::HOST);
    let (machine, device, shared) = open(options.capacity(Bytes::mib(16)));
    let pool = PoolOptions::new().growth(small_pages()).build(&shared).unwrap();
    let streams: Vec<StreamHandle> =
        (0..150).map(|_| device.create_stream(Priority::Normal).unwrap()).collect();
    let wrong = Arc::new(AtomicU64::new(0));
    for round in 0..3_u8 {
        for (index, &stream) in streams.iter().enumerate() {
            let tag = round ^ u8::try_from(index).unwrap();
            let block = pool.allocate(Bytes::new(60 << 10), stream).unwrap();
            write(&device, block, tag, stream);
            check(&device, block, tag, stream, &wrong);
            pool.free(block.address(), stream).unwrap();
        }
    }
    assert!(pool.statistics().held < Bytes::mib(10), "every stream has memory of its own");
    device.synchronize_device().unwrap();
    assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
    assert_eq!(wrong.load(Ordering::Relaxed), 0);
}

/// Runs a program in which calls of the driver fail: the pool says so, stays whole, and goes on. What
/// the device gave is then the pool's to the byte, and comes back. Gives how many calls there were.
fn run_with_faults(options: SimOptions, faults: &[Fault]) -> u64 {
    let (machine, device, shared) = open(options.seed(2));
    let other = device.create_stream(Priority::Normal).unwrap();
    let pool = PoolOptions::new().growth(small_pages()).build(&shared).unwrap();
    for &fault in faults {
        machine.plan(fault);
    }
    let mut random = Random::new(5);
    let mut live: Vec<(Block, StreamHandle)> = Vec::new();
    for step in 0..120 {
        let stream = if step % 3 == 0 { other } else { DEFAULT };
        if live.len() < 12 || random.chance(1, 2) {
            let size = Bytes::new(size_up_to(&mut random, 9, 19));
            // After a failure the program goes on without.
            live.extend(pool.allocate(size, stream).ok().map(|block| (block, stream)));
        } else {
            let (block, stream) = live.swap_remove(random.index(live.len()).unwrap());
            pool.free(block.address(), stream).unwrap();
        }
        none_overlap(live.iter().map(|&(block, _)| block));
    }
    let calls = machine.calls().total();
    machine.clear_faults();
    for (block, stream) in live {
        pool.free(block.address(), stream).unwrap();
    }
    assert_eq!(pool.statistics().live, Bytes::ZERO);
    device.synchronize_device().unwrap();
    pool.process_deferred().unwrap();
    assert_eq!(machine.census().held, pool.held(), "memory is nobody's: {faults:?}");
    pool.trim(Bytes::ZERO).unwrap();
    let left = machine.census();
    assert_eq!((pool.held(), left.held), (Bytes::ZERO, Bytes::ZERO), "{faults:?}");
    assert_eq!((left.pages, left.mappings), (0, 0), "{left}: {faults:?}");
    drop(pool);
    let left = machine.census();
    assert_eq!((left.regions, left.blocks, left.held), (0, 0, Bytes::ZERO), "{left}: {faults:?}");
    // Events are destroyed by a drop, which retries once and cannot report an error.
    assert!(left.events == 0 || faults.len() > 1, "{left}: {faults:?}");
    assert_eq!(machine.findings(), []);
    calls
}

/// Allocates and frees two blocks of each of many small sizes, 3 MiB in all. Returns the bytes that are cached.
fn fill_magazine(pool: &Pool) -> Bytes {
    let sizes = (0..32_u64).map(|index| Bytes::new((64 << 10) - 512 * index));
    let blocks: Vec<Block> = sizes
        .flat_map(|size| [size, size])
        .map(|size| pool.allocate(size, DEFAULT).unwrap())
        .collect();
    for block in blocks {
        pool.free(block.address(), DEFAULT).unwrap();
    }
    pool.statistics().cached
}

/// No two blocks have a byte in common.
fn none_overlap(blocks: impl IntoIterator<Item = Block>) {
    let span = |block: Block| Span::new(block.address(), block.size()).unwrap();
    let mut spans: Vec<Span> = blocks.into_iter().map(span).collect();
    spans.sort_unstable();
    assert!(spans.windows(2).all(|pair| !pair[0].overlaps(pair[1])), "blocks overlap");
}

/// Every driver call of a run failed in turn.
fn fail_every_call(options: &SimOptions) {
    let calls = run_with_faults(options.clone(), &[]);
    for kind in [FaultKind::Transient, FaultKind::OutOfMemory] {
        for number in 1..=calls {
            run_with_faults(options.clone(), &[Fault::new(When::Call(number), kind)]);
        }
    }
}

/// Every second call fails, every third, and so on: what undoes a step that failed fails as well.
#[test]
fn every_so_many_th_call_may_fail_and_nothing_is_lost() {
    let options = small_device().capacity(Bytes::mib(2));
    let calls = run_with_faults(options.clone(), &[]);
    let failing = |number| Fault::new(When::Call(number), FaultKind::Transient);
    for step in 2..=12_usize {
        for first in 1..=step as u64 {
            // Beyond what a run without faults makes: it tries again.
            let faults: Vec<Fault> = (first..3 * calls).step_by(step).map(failing).collect();
            run_with_faults(options.clone(), &faults);
        }
    }
}

/// Whatever calls fail one after the other.
#[test]
fn calls_may_fail_one_after_the_other_and_nothing_is_lost() {
    let options = small_device().capacity(Bytes::mib(2));
    let calls = run_with_faults(options.clone(), &[]);
    let failing = |number| Fault::new(When::Call(number), FaultKind::Transient);
    for first in 1..=calls {
        for count in [2, 3] {
            let faults: Vec<Fault> = (first..first + count).map(failing).collect();
            run_with_faults(options.clone(), &faults);
        }
    }
}

#[test]
fn any_call_may_fail_and_nothing_is_lost() {
    fail_every_call(&small_device().capacity(Bytes::mib(2)));
}

/// Dropping a pool waits for the work that uses it; blocks that are still live lose their memory.
#[test]
fn a_pool_dropped_with_work_under_way_waits_for_it() {
    let (machine, device, shared) = open(SimMachine::builder());
    let pool = Pool::new(&shared).unwrap();
    let [freed, live] = [(); 2].map(|()| pool.allocate(Bytes::mib(4), DEFAULT).unwrap());
    write(&device, freed, 1, DEFAULT);
    write(&device, live, 2, DEFAULT);
    pool.free(freed.address(), DEFAULT).unwrap();
    drop(pool);
    assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
    assert_eq!(machine.census().queued, 0);
    assert_eq!(device.classify(live.address()).unwrap(), None);
}
