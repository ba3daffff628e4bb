//! The default streams of threads: one handle for all of them, and a stream for each.

use std::sync::mpsc;

use forebay_hal::Progress;

use super::*;
use crate::pool::common::step::{Step, step_to_the_end};

const OWN: StreamHandle = StreamHandle::PER_THREAD;

/// Much work on a block, so that it is not over when another thread asks for the memory.
fn keep_busy(device: &SimDevice, block: Block) {
    (0..50).for_each(|tag| write(device, block, tag, OWN));
}

/// The checker tells the streams of two threads apart: the same handle is no order.
#[test]
fn work_of_two_threads_on_their_own_streams_is_a_race() {
    let (machine, device, shared) = open(SimMachine::builder().capacity(Bytes::mib(64)));
    let pool = Pool::new(&shared).unwrap();
    let block = pool.allocate(Bytes::new(4096), OWN).unwrap();
    write(&device, block, 1, OWN);
    std::thread::scope(|scope| {
        scope.spawn(|| write(&device, block, 2, OWN));
    });
    assert!(machine.finding_count() > 0);
}

/// A thread frees a block in the order of its own default stream while work there uses it. Another thread
/// asks for as much on its own: it gets other memory, or waits for that work.
#[test]
fn a_block_freed_on_a_threads_own_stream_is_not_had_by_another_too_early() {
    let sizes = [Bytes::new(4096), Bytes::kib(600), Bytes::mib(2)];
    // With room for a second block, and where the first is all there is.
    let limits = [Bytes::mib(64), Bytes::mib(4)];
    for (size, limit) in sizes.into_iter().flat_map(|size| limits.map(|limit| (size, limit))) {
        for first_lives in [true, false] {
            let (machine, device, shared) = open(SimMachine::builder().capacity(Bytes::mib(64)));
            let pool = PoolOptions::new().max_bytes(limit).build(&shared).unwrap();
            let (freed, was_freed) = mpsc::channel();
            let (end, ends) = mpsc::channel::<()>();
            std::thread::scope(|scope| {
                let (pool, device) = (&pool, &device);
                let first = scope.spawn(move || {
                    // As much as the pool may hold, so that the second thread has no other memory.
                    let mut blocks = vec![pool.allocate(size, OWN).unwrap()];
                    if limit < Bytes::mib(64) {
                        blocks.extend(std::iter::from_fn(|| pool.allocate(size, OWN).ok()));
                    }
                    blocks.iter().for_each(|&block| keep_busy(device, block));
                    blocks.iter().for_each(|&block| pool.free_block(block, OWN).unwrap());
                    assert_eq!(device.query_stream(OWN).unwrap(), Progress::Pending);
                    freed.send(blocks).unwrap();
                    if first_lives {
                        _ = ends.recv();
                    }
                });
                let theirs: Vec<Block> = was_freed.recv().unwrap();
                if !first_lives {
                    first.join().unwrap();
                }
                let case = format!("{size} of {limit}, first lives: {first_lives}");
                scope
                    .spawn(move || {
                        let waits = || {
                            let driver = pool.statistics().driver;
                            let waits =
                                [Call::WaitEvent, Call::SynchronizeEvent, Call::SynchronizeDevice];
                            waits.map(|wait| driver.of(wait)).iter().sum::<u64>()
                        };
                        let before = waits();
                        let block = pool.allocate(size, OWN).unwrap();
                        let is_theirs = theirs.iter().any(|one| one.address() == block.address());
                        assert!(!is_theirs || waits() > before, "{case}: had without a wait");
                        assert!(
                            is_theirs || limit == Bytes::mib(64),
                            "{case}: there was nothing else"
                        );
                        write(device, block, 201, OWN);
                        pool.free_block(block, OWN).unwrap();
                    })
                    .join()
                    .unwrap();
                drop(end);
            });
            device.synchronize_device().unwrap();
            assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
        }
    }
}

/// Strict streams ask the device which stream a handle is. Of another thread's own stream it does not tell, which
/// does not mean that the stream is gone: what it was said to use is waited for.
#[test]
fn strict_streams_leave_the_own_streams_of_other_threads_alone() {
    let (machine, device, shared) = open(SimMachine::builder().capacity(Bytes::gib(1)));
    let options = PoolOptions::new().max_bytes(Bytes::mib(64));
    let pool = options.set(|set| set.strict_streams(true)).build(&shared).unwrap();
    let used = pool.allocate(Bytes::mib(20), DEFAULT).unwrap();
    let (turn, turns) = mpsc::channel::<()>();
    let (did, done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let (pool, device) = (&pool, &device);
        scope.spawn(move || {
            let block = pool.allocate(Bytes::new(4096), OWN).unwrap();
            pool.free_block(block, OWN).unwrap();
            pool.record_use(used.address(), OWN).unwrap();
            did.send(()).unwrap();
            turns.recv().unwrap();
            keep_busy(device, used);
            did.send(()).unwrap();
            let _ = turns.recv();
        });
        done.recv().unwrap();
        // Grows, and asks for the streams before.
        let grown = pool.allocate(Bytes::mib(40), DEFAULT).unwrap();
        turn.send(()).unwrap();
        done.recv().unwrap();
        pool.free_block(used, DEFAULT).unwrap();
        let again = pool.allocate(Bytes::mib(20), DEFAULT).unwrap();
        write(device, again, 7, DEFAULT);
        pool.free_block(again, DEFAULT).unwrap();
        pool.free_block(grown, DEFAULT).unwrap();
        drop(turn);
    });
    device.synchronize_device().unwrap();
    assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
}

/// A block that its thread frees last of all, when the pool's and the device's own thread-local data are gone.
struct FreedLate {
    pool: Pool,
    device: Arc<SimDevice>,
    block: Block,
    ending: mpsc::Sender<()>,
    go_on: mpsc::Receiver<()>,
}

impl Drop for FreedLate {
    fn drop(&mut self) {
        self.ending.send(()).unwrap();
        let _ = self.go_on.recv();
        self.pool.free_block(self.block, OWN).unwrap();
        // It asks once more, and each call of the device may find another stream.
        let again = self.pool.allocate(Bytes::kib(4), OWN).unwrap();
        write(&self.device, again, 9, OWN);
        self.pool.free_block(again, OWN).unwrap();
    }
}

thread_local! {
    static FREED_LATE: std::cell::RefCell<Option<FreedLate>> =
        const { std::cell::RefCell::new(None) };
}

/// By then the thread's stream may be another one, whose events tell nothing of the work before.
#[test]
fn what_a_thread_frees_when_its_stream_is_gone_waits_for_the_device() {
    let (machine, device, shared) = open(SimMachine::builder().capacity(Bytes::gib(1)));
    let pool = PoolOptions::new().max_bytes(Bytes::mib(2)).build(&shared).unwrap();
    let (ending, is_ending) = mpsc::channel();
    let (wake, go_on) = mpsc::channel();
    std::thread::scope(|scope| {
        let (pool, device) = (&pool, &device);
        let first = scope.spawn(move || {
            // Destroyed last, since it is the first to be made.
            FREED_LATE.with(|late| late.replace(None));
            let block = pool.allocate(Bytes::mib(2), OWN).unwrap();
            keep_busy(device, block);
            let (pool, device) = (pool.clone(), Arc::clone(device));
            let late = FreedLate { pool, device, block, ending, go_on };
            FREED_LATE.with(|cell| cell.replace(Some(late)));
        });
        is_ending.recv().unwrap();
        // The simulator closes the streams of threads that are gone when another thread first names its own.
        scope.spawn(|| device.stream_id(OWN).map(drop).unwrap()).join().unwrap();
        wake.send(()).unwrap();
        first.join().unwrap();
        let block = pool.allocate(Bytes::mib(2), DEFAULT).unwrap();
        write(device, block, 7, DEFAULT);
        pool.free_block(block, DEFAULT).unwrap();
    });
    device.synchronize_device().unwrap();
    assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
}

/// More living threads than the pool has slots for their streams and their last events: each uses the memory of
/// the one before.
#[test]
fn more_living_threads_than_slots_share_their_memory() {
    const THREADS: usize = 1500;
    let (machine, device, shared) = open(SimMachine::builder().capacity(Bytes::gib(8)));
    let pool = Pool::new(&shared).unwrap();
    let turn = std::sync::Mutex::new(());
    let [first, last] = [(); 2].map(|()| std::sync::Barrier::new(THREADS + 1));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let (pool, device, turn, first, last) = (&pool, &device, &turn, &first, &last);
            let thread = std::thread::Builder::new().stack_size(256 << 10);
            let work = move || {
                for tag in 0..3 {
                    let _mine = turn.lock().unwrap();
                    let blocks = [(); 2].map(|()| pool.allocate(Bytes::kib(600), OWN).unwrap());
                    for block in blocks {
                        write(device, block, tag, OWN);
                        pool.free_block(block, OWN).unwrap();
                    }
                }
                first.wait();
                last.wait();
            };
            thread.spawn_scoped(scope, work).unwrap();
        }
        first.wait();
        let held = pool.held();
        last.wait();
        assert!(held <= Bytes::mib(32), "{held} for 1.2 MiB in use");
    });
    device.synchronize_device().unwrap();
    assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
}

/// Four threads at a time with one block each, in a pool that holds just four. Room that is made for one is
/// taken by another now and then, which is no reason to refuse.
#[test]
fn a_request_is_not_refused_because_another_took_its_room() {
    let (machine, device, shared) = open(SimMachine::builder().capacity(Bytes::gib(1)));
    let pool = PoolOptions::new().max_bytes(Bytes::mib(2)).build(&shared).unwrap();
    let begun = std::time::Instant::now();
    std::thread::scope(|scope| {
        let (pool, device) = (&pool, &device);
        let step = move || {
            let block = pool.allocate(Bytes::kib(512), OWN).unwrap();
            write(device, block, 1, OWN);
            pool.free_block(block, OWN).unwrap();
        };
        for _ in 0..4 {
            scope.spawn(move || {
                while begun.elapsed() < core::time::Duration::from_millis(1500) {
                    std::thread::scope(|short| _ = short.spawn(step));
                }
            });
        }
    });
    device.synchronize_device().unwrap();
    assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
}

/// The device takes the stream of an ending thread away and makes a new one for it just before its last event is
/// recorded. That event says nothing of the work on the stream before.
#[test]
fn a_stream_that_goes_while_its_thread_ends_is_noticed() {
    let (machine, device, shared) = open(SimMachine::builder().capacity(Bytes::gib(1)));
    let pool = PoolOptions::new().max_bytes(Bytes::mib(2)).build(&shared).unwrap();
    let capture = pool.capture().unwrap();
    std::thread::scope(|scope| {
        let (pool, device) = (&pool, &device);
        let first = move || {
            let others = Arc::clone(device);
            step_to_the_end(move |step| {
                if step == Step::Ending {
                    // The simulator closes the streams of threads that are gone when another names its own.
                    let others = Arc::clone(&others);
                    std::thread::spawn(move || _ = others.stream_id(OWN)).join().unwrap();
                }
            });
            // While work is captured the pool does not ask for the stream, so the device makes it later than the
            // pool its note of the thread, and takes it away earlier.
            let blocks = [(); 2].map(|()| pool.allocate(Bytes::mib(1), OWN).unwrap());
            drop(capture);
            blocks.iter().for_each(|&block| keep_busy(device, block));
            // The first is none that the cache takes, and so the pool asks which stream it is.
            blocks.into_iter().for_each(|block| pool.free_block(block, OWN).unwrap());
        };
        scope.spawn(first).join().unwrap();
        let block = pool.allocate(Bytes::mib(2), DEFAULT).unwrap();
        write(device, block, 7, DEFAULT);
        pool.free_block(block, DEFAULT).unwrap();
    });
    device.synchronize_device().unwrap();
    assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
}
