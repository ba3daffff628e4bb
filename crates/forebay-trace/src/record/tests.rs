//! What is recorded is what happened: played again it asks for the same.

use forebay::{Block, Pool};
use forebay_core::{Bytes, Random};
use forebay_hal::{Device, Priority, StreamHandle, Streams};
use forebay_sim::{MemoryModel, SimDevice, SimMachine};

use super::*;
use crate::{Event, PoolPlayer, ReplayOptions, StreamIndex, replay};

fn device(capacity: Bytes) -> Arc<SimDevice> {
    let options = SimMachine::builder().memory(MemoryModel::Phantom).checked(false);
    options.capacity(capacity).build().unwrap().device(0).unwrap()
}

/// What a program of its own accord counts.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    operations: u64,
    live: u64,
    peak: u64,
    refused: u64,
    elsewhere: u64,
}

/// A random program on three streams that frees a quarter of its blocks on others.
fn random_program(pool: &Pool, device: &SimDevice, seed: u64, steps: usize) -> Tally {
    let mut random = Random::new(seed);
    let streams: Vec<StreamHandle> =
        (0..3).map(|_| device.create_stream(Priority::Normal).unwrap()).collect();
    let mut live: Vec<(Block, u64, StreamHandle)> = Vec::new();
    let mut tally = Tally::default();
    for _ in 0..steps {
        let stream = *random.pick(&streams).unwrap();
        if random.chance(11, 20) {
            let magnitude = random.between(4, 24);
            let size = 1 + random.below(1 << magnitude);
            match pool.allocate(Bytes::new(size), stream) {
                Ok(block) => {
                    live.push((block, size, stream));
                    tally.operations += 1;
                    tally.live += size;
                    tally.peak = tally.peak.max(tally.live);
                }
                Err(_) => tally.refused += 1,
            }
        } else if let Some(index) = random.index(live.len()) {
            let (block, size, own) = live.swap_remove(index);
            let on = if random.chance(1, 4) { stream } else { own };
            tally.elsewhere += u64::from(on != own);
            pool.free(block.address(), on).unwrap();
            tally.operations += 1;
            tally.live -= size;
        }
    }
    tally
}

#[test]
fn what_was_recorded_is_what_happened() {
    for seed in 0..8 {
        let device = device(Bytes::mib(256));
        let shared: Arc<dyn Device> = device.clone();
        let recorder = Recorder::new("random");
        let pool = recorder.watch(PoolOptions::new()).build(&shared).unwrap();
        let tally = random_program(&pool, &device, seed, 2000);
        let trace = recorder.finish();
        assert_eq!(trace.name(), "random");
        assert_eq!(trace.len() as u64, tally.operations);
        assert_eq!(trace.remarks().failed_allocations, tally.refused);
        let sums = trace.statistics();
        assert_eq!((sums.peak_requested.get(), sums.streams), (tally.peak, 3));
        assert_eq!((elsewhere(&trace), recorder.left_out()), (tally.elsewhere, 0));
        assert!(tally.elsewhere > 50);

        drop(pool);
        // With more memory: without the recorder, blocks lie elsewhere, and what just fitted might not.
        let shared: Arc<dyn Device> = self::device(Bytes::mib(512));
        let mut player = PoolPlayer::new(Arc::clone(&shared)).unwrap();
        let reports = replay(&trace, &mut player, ReplayOptions::new().passes(1)).unwrap();
        assert_eq!(reports[0].operations, tally.operations);
        assert_eq!(reports[0].peak_requested.get(), tally.peak);
        drop(player);
        // And the same again: what the replay does is what was recorded.
        let again = Recorder::new("random");
        let options = again.watch(PoolOptions::new());
        let mut player = PoolPlayer::with(shared, options).unwrap();
        let mut done = 0;
        let mut tell = |more| {
            done += more;
            if done == trace.len() as u64 {
                again.stop();
            }
        };
        replay(&trace, &mut player, ReplayOptions::new().passes(1).progress(&mut tell)).unwrap();
        let again = again.finish();
        assert_eq!(again.len(), trace.len());
        assert!(again.events().eq(trace.events()), "seed {seed}");
    }
}

/// How many blocks were freed on another stream than they were allocated on.
fn elsewhere(trace: &Trace) -> u64 {
    let mut own: Vec<StreamIndex> = Vec::new();
    let mut count = 0;
    for event in trace.events() {
        match event {
            Event::Allocate { stream, .. } => own.push(stream),
            Event::Free { block, stream } => {
                count += u64::from(own[block.0 as usize] != stream);
            }
        }
    }
    count
}

#[test]
fn of_too_much_the_first_is_recorded_and_the_rest_counted() {
    let device = device(Bytes::gib(1));
    let shared: Arc<dyn Device> = device.clone();
    let recorder = Recorder::at_most("bounded", 100);
    let pool = recorder.watch(PoolOptions::new()).build(&shared).unwrap();
    let tally = random_program(&pool, &device, 1, 500);
    let left_out = recorder.left_out();
    let trace = recorder.finish();
    assert_eq!((trace.len(), left_out), (100, tally.operations - 100));
    // And after the end nothing.
    pool.allocate(Bytes::mib(1), StreamHandle::DEFAULT).unwrap();
    assert_eq!((recorder.left_out(), recorder.finish().len()), (left_out, 0));
}

#[test]
fn threads_are_recorded_in_one_order() {
    let shared: Arc<dyn Device> = device(Bytes::gib(1));
    let recorder = Recorder::new("threads");
    let pool = recorder.watch(PoolOptions::new()).build(&shared).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let pool = &pool;
            scope.spawn(move || {
                let mut random = Random::new(seed);
                for _ in 0..500 {
                    let size = Bytes::new(1 + random.below(8192));
                    let block = pool.allocate(size, StreamHandle::DEFAULT).unwrap();
                    pool.free(block.address(), StreamHandle::DEFAULT).unwrap();
                }
            });
        }
    });
    let (left_out, sums) = (recorder.left_out(), recorder.finish().statistics());
    assert_eq!((sums.allocations, sums.frees, left_out), (1500, 1500, 0));
}

#[test]
fn a_history_that_begins_in_the_middle_is_a_recording() {
    const DEFAULT: StreamHandle = StreamHandle::DEFAULT;
    let device: Arc<dyn Device> = device(Bytes::gib(1));
    let options = PoolOptions::new().set(|settings| settings.history(6_u64));
    let pool = options.build(&device).unwrap();
    let of = |kib: u64| pool.allocate(Bytes::new(kib << 10), DEFAULT).unwrap();
    let free = |block: Block| pool.free(block.address(), DEFAULT).unwrap();
    let [one, two, kept] = [10, 20, 40].map(of);
    assert!(pool.allocate(Bytes::gib(4), DEFAULT).is_err());
    free(two);
    let again = of(20);
    assert_eq!(again.address(), two.address(), "its name comes back");
    free(one);
    let last = of(30);
    free(last);
    // Of nine events six are left: the refusal is the first of them.
    let trace = trace_of_history("history", &pool.history());
    assert_eq!((trace.remarks().live_at_start, trace.remarks().failed_allocations), (2, 1));
    let told: Vec<(bool, u64)> = trace
        .events()
        .map(|event| match event {
            Event::Allocate { size, .. } => (true, size.get() >> 10),
            Event::Free { block, .. } => (false, trace.size(block).get() >> 10),
        })
        .collect();
    let before = [(true, 20), (true, 10)];
    let history = [(false, 20), (true, 20), (false, 10), (true, 30), (false, 30)];
    assert_eq!(told, [&before[..], &history[..]].concat());
    free(kept);
    free(again);
    assert_eq!(trace_of_history("nothing", &[]).len(), 0);
}

#[test]
fn a_recorder_attached_to_a_living_pool_knows_its_blocks() {
    let pool = Pool::new(&device(Bytes::gib(1))).unwrap();
    let stream = StreamHandle::DEFAULT;
    let before = pool.allocate(Bytes::mib(5), stream).unwrap();
    let kept = pool.allocate(Bytes::new(700), stream).unwrap();
    let recorder = Recorder::new("attached");
    let recording = recorder.attach(&pool).unwrap();
    pool.free_block(before, stream).unwrap();
    let during = pool.allocate(Bytes::mib(2), stream).unwrap();
    pool.free_block(during, stream).unwrap();
    drop(recording);
    pool.free_block(kept, stream).unwrap();
    assert!(pool.allocate(Bytes::mib(3), stream).is_ok(), "seen by nobody");
    assert_eq!(recorder.left_out(), 0);
    let trace = recorder.finish();
    assert_eq!((trace.len(), trace.remarks().live_at_start), (5, 2));
    let age = trace.remarks().began.unwrap().elapsed().unwrap();
    assert!(trace.remarks().of_forebay && age < Duration::from_secs(600), "{age:?}");
    assert_eq!(trace.statistics().peak_requested, Bytes::new((5 << 20) + 700));
}

#[test]
fn a_recorder_records_once() {
    let pool = Pool::new(&device(Bytes::gib(1))).unwrap();
    let _live = pool.default_stream().owned(Bytes::mib(1)).unwrap();
    let used = |recorder: &Recorder| recorder.attach(&pool).err() == Some(AttachError::Used);
    let recorder = Recorder::new("once");
    let recording = recorder.attach(&pool).unwrap();
    assert!(used(&recorder) && used(&recorder.clone()), "while it records");
    drop(recording);
    assert!(used(&recorder), "it would enter the live block twice");
    let trace = recorder.finish();
    assert_eq!((trace.len(), trace.remarks().live_at_start), (1, 1));
    assert!(used(&recorder), "its recording was handed out");

    let [stopped, finished, watching] = ["stopped", "finished", "watching"].map(Recorder::new);
    stopped.stop();
    finished.finish();
    drop(watching.watch(PoolOptions::new()));
    assert!(used(&stopped) && used(&finished) && used(&watching));
    let said = AttachError::Used.to_string();
    assert!(said.contains("make a new one for each recording"), "{said}");
}

/// Threads allocate and free on the fast path while a recorder comes and goes: nothing hangs, and a recording that was
/// attached while they ran has their blocks.
#[test]
fn recorders_come_and_go_while_threads_allocate() {
    let device = device(Bytes::gib(1));
    let pool = Pool::new(&device).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let stream = device.create_stream(Priority::Normal).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let block = pool.allocate(Bytes::kib(64), stream).unwrap();
                    pool.free_block(block, stream).unwrap();
                }
            });
        }
        for _ in 0..50 {
            let recorder = Recorder::new("comes and goes");
            let recording = recorder.attach(&pool).unwrap();
            drop(pool.default_stream().owned(Bytes::mib(1)).unwrap());
            drop(recording);
            assert!(recorder.finish().len() >= 2);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(pool.statistics().live, Bytes::ZERO);
}

#[inline(never)]
fn allocate_for_the_optimizer(pool: &Pool) -> Block {
    let _tag = forebay::tag("optimizer");
    pool.allocate(Bytes::mib(1), StreamHandle::DEFAULT).unwrap()
}

#[test]
fn a_recording_has_owners_times_and_threads() {
    let pool = Pool::new(&device(Bytes::gib(1))).unwrap();
    let recorder = Recorder::new("owners").with_stacks();
    let recording = recorder.attach(&pool).unwrap();
    let block = allocate_for_the_optimizer(&pool);
    let other = thread::scope(|scope| scope.spawn(|| allocate_for_the_optimizer(&pool)).join());
    pool.free_block(block, StreamHandle::DEFAULT).unwrap();
    pool.free_block(other.unwrap(), StreamHandle::DEFAULT).unwrap();
    drop(recording);
    let trace = recorder.finish();
    for block in [0, 1].map(BlockIndex) {
        assert_eq!(trace.tag(block), Some("optimizer"));
        let stack = trace.stack(block).unwrap();
        assert!(stack.contains("allocate_for_the_optimizer"), "{stack}");
        assert!(!stack.contains("forebay_trace::record::stacks"), "{stack}");
    }
    let times: Vec<_> = (0..4).map(|event| trace.time(event).unwrap()).collect();
    assert!(times.is_sorted() && times[0].is_zero(), "{times:?}");
    assert_ne!(trace.thread(0), trace.thread(1));
    assert_eq!(trace.thread(0), trace.thread(3));
}

#[inline(never)]
fn allocate_for_the_model(pool: &Pool) -> Block {
    pool.allocate(Bytes::mib(2), StreamHandle::DEFAULT).unwrap()
}

/// The setting alone is enough, for a history and for a recorder.
#[test]
fn a_pool_with_stacks_tells_who_owns_its_blocks() {
    let device: Arc<dyn Device> = device(Bytes::gib(1));
    let recorder = Recorder::new("stacks");
    let options = PoolOptions::new().set(|settings| settings.history(100_u64).stacks(true));
    let pool = recorder.watch(options).build(&device).unwrap();
    for allocate in [allocate_for_the_optimizer, allocate_for_the_model] {
        let block = allocate(&pool);
        pool.free_block(block, StreamHandle::DEFAULT).unwrap();
    }
    let history = trace_of_history("history", &pool.history());
    for trace in [history, recorder.finish()] {
        let owner = |block| trace.stack(BlockIndex(block)).unwrap().lines().next().unwrap();
        assert!(owner(0).contains("allocate_for_the_optimizer"), "{}", owner(0));
        assert!(owner(1).contains("allocate_for_the_model"), "{}", owner(1));
        assert_eq!(trace.len(), 4);
    }
}

/// Threads hand blocks on while the pool records on the fast path: the history is one order in which all of it could
/// have happened.
#[test]
fn a_history_of_the_fast_path_is_a_whole_run() {
    let device: Arc<dyn Device> = device(Bytes::gib(1));
    let options = PoolOptions::new().set(|settings| settings.history(1_000_000_u64));
    let pool = options.build(&device).unwrap();
    let (send, receive) = std::sync::mpsc::channel::<Block>();
    let receive = Mutex::new(receive);
    thread::scope(|scope| {
        for seed in 0..2 {
            let (pool, send) = (&pool, send.clone());
            scope.spawn(move || {
                let mut random = Random::new(seed);
                let _tag = forebay::tag("maker");
                for _ in 0..20_000 {
                    let size = Bytes::new(512 << random.below(3));
                    let block = pool.allocate(size, StreamHandle::DEFAULT).unwrap();
                    match random.chance(1, 8) {
                        true => send.send(block).unwrap(),
                        false => pool.free_block(block, StreamHandle::DEFAULT).unwrap(),
                    }
                }
            });
        }
        scope.spawn(|| {
            let receive = receive.lock().unwrap();
            while let Ok(block) = receive.recv() {
                pool.free_block(block, StreamHandle::DEFAULT).unwrap();
            }
        });
        drop(send);
    });
    let figures = pool.statistics();
    assert!(figures.magazine_hits > 20_000, "{} hits", figures.magazine_hits);
    let history = pool.history();
    assert_eq!(history.len(), 80_000);
    assert!(history.is_sorted_by_key(|event| event.time));
    let trace = trace_of_history("threads", &history);
    let sums = trace.statistics();
    assert_eq!((sums.allocations, sums.frees), (40_000, 40_000));
    assert_eq!((trace.remarks().live_at_start, trace.len()), (0, 80_000));
    assert_eq!(trace.tag(BlockIndex(7)), Some("maker"));
    pool.set("history", "0").unwrap();
    pool.set("history", "10").unwrap();
    assert!(pool.history().is_empty(), "what was recorded before is gone");
    for _ in 0..10 {
        allocate_for_the_optimizer(&pool);
    }
    assert_eq!(pool.history().len(), 10);
}

#[test]
fn transfers_are_on_the_clock_of_the_events() {
    let device = device(Bytes::gib(1));
    let pool = Pool::new(&device).unwrap();
    let engine = forebay::transfer::TransferOptions::new().history(2).build(&device).unwrap();
    let recorder = Recorder::new("transfers");
    let recording = recorder.attach(&pool).unwrap();
    for length in [1000, 2000, 3000] {
        let array = pool.default_stream().uninit::<u8>(length).unwrap();
        let ticket = engine.upload(vec![7_u8; length], array).submit().unwrap();
        let (_, array) = ticket.wait().unwrap();
        drop(engine.download(array, vec![0; length]).submit().unwrap().wait().unwrap());
    }
    drop(recording);
    recorder.enter_transfers(&engine.history());
    let trace = recorder.finish();
    let [up, down] = trace.transfers() else { panic!("the last two: {:?}", trace.transfers()) };
    assert_eq!(
        (up.direction, down.direction),
        (TransferDirection::Upload, TransferDirection::Download)
    );
    assert_eq!((up.bytes, down.bytes), (Bytes::new(3000), Bytes::new(3000)));
    assert!(up.begin <= up.end && up.end <= down.begin && down.begin <= down.end);
    assert!(trace.time(4).unwrap() <= up.begin, "the third array was allocated before");
}
