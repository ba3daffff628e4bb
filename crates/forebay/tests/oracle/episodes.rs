//! Stress episodes: streams that come, go and die, threads that come and go, faults and a second consumer of
//! the device, all at once and under the checker.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc;
use std::time::Duration;

use forebay::{Block, DeviceArray, Error, Pool, PoolOptions};
use forebay_core::address_space::{self, Growth};
use forebay_core::{Bytes, PageSize, Random, Span};
use forebay_hal::{Call, Device, Priority, Stream, StreamHandle, Streams};
use forebay_sim::{Fault, FaultKind, Kernel, SimMachine, When};

use crate::stress::{Episode, Figures};
use crate::trial::{Front, Script};

/// Runs episodes, and gives what they did together.
fn run(episodes: impl Iterator<Item = Episode>) -> Figures {
    let mut sum = Figures::default();
    for episode in episodes {
        let ended = episode.run(|_, device| device, &AtomicU64::new(0));
        sum.add(&ended.unwrap_or_else(|what| panic!("{episode:?}: {what}")));
    }
    sum
}

/// On one thread, so that the same seed does the same again.
#[test]
fn episodes_on_one_thread() {
    let figures = run((0..24).map(|seed| Episode::of_seed(seed, 1, 1500)));
    assert!(figures.streams_unannounced > 40, "{figures:?}");
    assert!(figures.streams_announced > 80, "{figures:?}");
    assert!(figures.freed_on_dead > 100, "{figures:?}");
    assert!(figures.refusals > 100, "{figures:?}");
    assert!(figures.failures > 6, "{figures:?}");
    assert!(figures.copies > 20 && figures.visitors > 40, "{figures:?}");
}

#[test]
fn episodes_on_several_threads() {
    let figures = run((0..8).map(|seed| Episode::of_seed(seed, 2 + (seed % 4) as usize, 4000)));
    assert!(figures.streams_unannounced > 40 && figures.freed_on_dead > 100, "{figures:?}");
    assert!(figures.refusals > 100 && figures.handed > 400, "{figures:?}");
    assert!(figures.chores > 100 && figures.failures > 6, "{figures:?}");
}

/// More threads than a pool has slots for: some hundred at once, and some hundred one after the other.
#[test]
fn episodes_in_a_crowd() {
    let crowd = |seed| Episode {
        crowd: 150,
        capacity: Bytes::mib(64),
        faults: 0,
        ..Episode::of_seed(seed, 2, 800)
    };
    let figures = run([1, 2].into_iter().map(crowd));
    assert!(figures.visitors >= 600, "{figures:?}");
}

/// A small pool on a device whose memory keeps what is written.
fn small_pool(seed: u64) -> (SimMachine, Arc<dyn Device>, Pool) {
    let options = SimMachine::builder().seed(seed).granularity(PageSize::HOST);
    let machine = options.capacity(Bytes::mib(8)).build().unwrap();
    let device: Arc<dyn Device> = machine.device(0).unwrap();
    let mut growth = Growth::default();
    growth.largest_page = Bytes::kib(64);
    // By what the program holds alone: these devices are tiny.
    growth.reach_part = 1;
    let pool = PoolOptions::new().growth(growth).build(&device).unwrap();
    (machine, device, pool)
}

fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..length).map(|_| u8::try_from(random.below(256)).unwrap()).collect()
}

/// Copies through handles while the pool grows, with the `number`th call failing, counted from here on.
/// Gives how many calls there were.
fn copies_with_a_fault(number: u64, kind: FaultKind) -> u64 {
    let (machine, device, pool) = small_pool(number);
    let stream = Stream::new(&device, Priority::Normal).unwrap();
    let streams = [StreamHandle::DEFAULT, stream.handle(), StreamHandle::PER_THREAD];
    let mut kept: Vec<(DeviceArray<u8>, Vec<u8>)> = Vec::new();
    let first = machine.calls().total();
    machine.plan(Fault::new(When::Call(first + number), kind));
    for (round, length) in
        [70_000, 700, 300_000, 5000, 900_000, 40, 150_000].into_iter().enumerate()
    {
        let on = streams[round % streams.len()];
        let array = match DeviceArray::<u8>::new(&pool, length, on) {
            Ok(array) => Ok(array),
            // The fault is over: it struck this call.
            Err(Error::Device(_) | Error::OutOfMemory(_)) => DeviceArray::new(&pool, length, on),
            Err(error) => panic!("call {number}: {error}"),
        };
        let mut array = array.unwrap_or_else(|error| panic!("call {number}, once more: {error}"));
        let data = bytes(length, round as u64);
        if array.copy_from_slice(&data).is_err() {
            array.copy_from_slice(&data).unwrap();
        }
        kept.push((array, data));
        if round % 3 == 2 {
            let (array, data) = kept.remove(0);
            is_as_written(&array, &data, number);
            array.free().unwrap_or_else(|refused| panic!("call {number}: {}", refused.error()));
        }
    }
    for (array, data) in kept {
        is_as_written(&array, &data, number);
    }
    let calls = machine.calls().total() - first;
    machine.clear_faults();
    let statistics = pool.statistics();
    assert_eq!((statistics.live, statistics.allocations), (Bytes::ZERO, statistics.frees));
    assert_eq!(pool.held(), machine.census().held, "call {number}");
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!((pool.held(), machine.census().held), (Bytes::ZERO, Bytes::ZERO), "call {number}");
    drop(pool);
    assert_eq!(machine.findings(), [], "call {number}");
    let left = machine.census();
    assert_eq!(
        (left.pages, left.mappings, left.regions, left.events),
        (0, 0, 0, 0),
        "call {number}"
    );
    calls
}

fn is_as_written(array: &DeviceArray<u8>, data: &[u8], number: u64) {
    let mut back = vec![0; data.len()];
    if array.copy_to_slice(&mut back).is_err() {
        array.copy_to_slice(&mut back).unwrap();
    }
    assert!(back == data, "call {number}: {} bytes came back otherwise", data.len());
}

#[test]
fn any_call_may_fail_while_arrays_are_copied_and_the_pool_grows() {
    let calls = copies_with_a_fault(u64::MAX >> 1, FaultKind::Transient);
    assert!(calls > 60, "{calls} calls");
    for kind in [FaultKind::Transient, FaultKind::OutOfMemory] {
        for number in 1..=calls {
            copies_with_a_fault(number, kind);
        }
    }
}

/// What a thread freed on its own default stream before it ended is had by others, without a trim.
#[test]
fn what_a_thread_that_ended_freed_is_had() {
    let (machine, _, pool) = small_pool(1);
    for _ in 0..20 {
        let other = pool.clone();
        let visit = move || {
            let block = |size| other.allocate(size, StreamHandle::PER_THREAD).unwrap();
            let small: Vec<_> = (0..200).map(|_| block(Bytes::new(4096))).collect();
            let large: Vec<_> = (0..9).map(|_| block(Bytes::kib(600))).collect();
            for block in small.into_iter().chain(large) {
                other.free_block(block, StreamHandle::PER_THREAD).unwrap();
            }
        };
        std::thread::spawn(visit).join().unwrap();
    }
    let all = pool.allocate(Bytes::mib(7), StreamHandle::DEFAULT);
    let all = all.unwrap_or_else(|error| panic!("{error}"));
    pool.free_block(all, StreamHandle::DEFAULT).unwrap();
    assert_eq!(machine.findings(), []);
}

/// A use that is recorded while another thread grows the pool counts, also where the pool has no number left
/// for the stream: more streams are in use than it tells apart.
#[test]
fn a_use_recorded_while_the_pool_grows_is_not_lost() {
    let machine = SimMachine::builder().capacity(Bytes::gib(1)).build().unwrap();
    let sim = machine.device(0).unwrap();
    let front = Front::new(sim.clone(), Box::new(|| ()), Script::NONE);
    let device: Arc<dyn Device> = front.clone();
    let pool = PoolOptions::new().build(&device).unwrap();
    let write = |block: Block, stream: StreamHandle| {
        let kernel = Kernel::new("write").writes(Span::new(block.address(), block.size()).unwrap());
        // SAFETY: the block is live, and is freed after this in the order of its stream, or the use is
        // recorded.
        unsafe { sim.launch(kernel, stream).unwrap() };
    };
    let own = sim.create_stream(Priority::Normal).unwrap();
    let used = pool.allocate(Bytes::kib(64), own).unwrap();
    // With these every slot is taken: two numbers are marks for what ended without an event, and one is the
    // number of `own`. Each of them has something free.
    let many: Vec<StreamHandle> = (3..address_space::Streams::MAX)
        .map(|_| sim.create_stream(Priority::Normal).unwrap())
        .collect();
    for &stream in &many {
        let block = pool.allocate(Bytes::kib(4), stream).unwrap();
        write(block, stream);
        pool.free_block(block, stream).unwrap();
    }
    pool.defragment().unwrap();
    let user = sim.create_stream(Priority::Normal).unwrap();
    write(used, user);
    let other = pool.clone();
    front.within(Call::CreatePage, move || {
        let record = move || other.record_use(used.address(), user).unwrap();
        std::thread::spawn(record).join().unwrap();
    });
    let grown = pool.allocate(Bytes::mib(100), own).unwrap();
    pool.free_block(used, own).unwrap();
    let again = pool.allocate(Bytes::kib(64), own).unwrap();
    write(again, own);
    assert_eq!(machine.findings(), []);
    // Its work is over, and no event tells so: there was no slot for its stream. After a wait for the whole
    // device the memory is there again.
    sim.synchronize_device().unwrap();
    pool.process_deferred().unwrap();
    let later = pool.allocate(Bytes::kib(64), own).unwrap();
    assert_ne!(later.address(), used.address(), "there was a slot left");
    pool.free_block(again, own).unwrap();
    pool.free_block(later, own).unwrap();
    pool.free_block(grown, own).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!((pool.held(), machine.findings()), (Bytes::ZERO, Vec::new()));
}

/// Another thread enqueues work and frees its block on a stream while `forget_stream` is at a call of the
/// driver: before the last event of the stream is made or recorded, when it was recorded and the stream still
/// has its slot, or when the slot is gone and the event is asked for. Nobody has the memory before that work
/// is done.
#[test]
fn a_free_within_forget_stream_is_in_order() {
    let moments = [
        (Call::CreateEvent, false),
        (Call::RecordEvent, false),
        (Call::RecordEvent, true),
        (Call::QueryEvent, false),
    ];
    let sizes = [Bytes::new(4096), Bytes::mib(2)];
    for (moment, size) in moments.into_iter().flat_map(|moment| sizes.map(|size| (moment, size))) {
        let (call, is_made) = moment;
        let machine = SimMachine::builder().capacity(Bytes::mib(64)).build().unwrap();
        let sim = machine.device(0).unwrap();
        let front = Front::new(sim.clone(), Box::new(|| ()), Script::NONE);
        let device: Arc<dyn Device> = front.clone();
        let pool = PoolOptions::new().max_bytes(Bytes::mib(8)).build(&device).unwrap();
        let writer = sim.clone();
        let write = move |block: Block, stream: StreamHandle| {
            let span = Span::new(block.address(), block.size()).unwrap();
            // SAFETY: the block is live, and is freed after this in the order of its stream.
            unsafe { writer.launch(Kernel::new("write").writes(span), stream).unwrap() };
        };
        let [one, two] = [(); 2].map(|()| sim.create_stream(Priority::Normal).unwrap());
        let [first, second] = [(); 2].map(|()| pool.allocate(size, one).unwrap());
        (0..100).for_each(|_| write(first, one));
        pool.free_block(first, one).unwrap();
        let (tell, told) = mpsc::channel();
        let (other, work) = (pool.clone(), write.clone());
        let free_there = move || {
            let (enqueued, is_enqueued) = mpsc::channel();
            let (freed, is_freed) = mpsc::channel();
            let thread = std::thread::spawn(move || {
                (0..100).for_each(|_| work(second, one));
                enqueued.send(()).unwrap();
                other.free_block(second, one).unwrap();
                // Nobody waits any more where it had to wait for a lock that the call holds.
                let _ = freed.send(());
            });
            is_enqueued.recv().unwrap();
            let _ = is_freed.recv_timeout(Duration::from_millis(50));
            tell.send(thread).unwrap();
        };
        if is_made {
            front.after(call, free_there);
        } else {
            front.within(call, free_there);
        }
        pool.forget_stream(one).unwrap();
        let thread = told.try_recv().unwrap_or_else(|_| panic!("forget_stream made no {call:?}"));
        thread.join().unwrap();
        // All the pool may have, so that both blocks are in it.
        let mut had = Vec::new();
        while let Ok(block) = pool.allocate(size, two) {
            write(block, two);
            had.push(block.address());
        }
        assert!([first, second].iter().all(|block| had.contains(&block.address())), "{moment:?}");
        sim.synchronize_device().unwrap();
        assert_eq!(machine.findings(), [], "{moment:?} {size}");
    }
}
