use core::future::Future;
use core::pin::{Pin, pin};
use core::sync::atomic::AtomicBool;
use core::task::{Context, Poll, Waker};
use std::sync::Condvar;
use std::task::Wake;
use std::time::Duration;

use super::*;
use crate::{Pool, Request, Result};

/// Runs one future to its end on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park_timeout(Duration::from_secs(60)),
        }
    }
}

fn request(size: Bytes) -> Request {
    Request::new(size, DEFAULT)
}

/// An allocator that waits at a gate before it allocates, and may panic there.
#[derive(Clone)]
struct Gated {
    pool: Pool,
    gate: Arc<(Mutex<bool>, Condvar)>,
    arrived: Arc<AtomicU64>,
    panics: Arc<AtomicBool>,
}

impl Gated {
    fn new(pool: &Pool) -> Self {
        Self {
            pool: pool.clone(),
            gate: Arc::default(),
            arrived: Arc::default(),
            panics: Arc::default(),
        }
    }

    fn open(&self) {
        *self.gate.0.lock().unwrap() = true;
        self.gate.1.notify_all();
    }

    fn wait_for_arrivals(&self, count: u64) {
        while self.arrived.load(Ordering::Acquire) < count {
            std::thread::yield_now();
        }
    }
}

// SAFETY: for tests, which touch no memory that is not theirs.
unsafe impl Allocate for Gated {
    fn allocate_request(&self, request: Request) -> Result<Block> {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        let shut = self.gate.0.lock().unwrap();
        drop(self.gate.1.wait_while(shut, |open| !*open).unwrap());
        assert!(!self.panics.load(Ordering::Relaxed), "told to panic");
        Allocate::allocate_request(&self.pool, request)
    }

    fn free(&self, address: Address, stream: StreamHandle) -> Result<()> {
        Allocate::free(&self.pool, address, stream)
    }

    fn block_at(&self, address: Address) -> Option<Block> {
        Allocate::block_at(&self.pool, address)
    }

    fn device(&self) -> &Arc<dyn Device> {
        Allocate::device(&self.pool)
    }

    fn pool_id(&self) -> Option<PoolId> {
        Some(self.pool.id())
    }
}

/// Waits until everything queued before was served: the queue keeps its order.
fn drain(pool: &Pool) {
    drop(block_on(allocate_async(pool, request(Bytes::ZERO), Duration::ZERO)).unwrap());
}

#[test]
fn the_future_gives_a_block() {
    let bench = Bench::new();
    let block =
        block_on(allocate_async(&bench.pool, request(Bytes::mib(3)), Duration::ZERO)).unwrap();
    assert_eq!((block.requested(), block.stream()), (Bytes::mib(3), DEFAULT));
    assert_eq!(bench.live(), block.size());
    drop(block);
    assert_eq!(bench.live(), Bytes::ZERO);
}

#[test]
fn the_future_gives_the_error() {
    let bench = Bench::limited(Bytes::mib(16));
    let error =
        block_on(allocate_async(&bench.pool, request(Bytes::gib(1)), Duration::ZERO)).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
}

/// The caller goes on while the allocator is busy, and is woken when it is done.
#[test]
fn the_caller_is_not_stalled() {
    struct Flag(AtomicBool);
    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Release);
        }
    }
    let bench = Bench::new();
    let gated = Gated::new(&bench.pool);
    let mut growth = allocate_async(&gated, request(Bytes::mib(1)), Duration::ZERO);
    let woken = Arc::new(Flag(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&woken));
    gated.wait_for_arrivals(1);
    assert!(Pin::new(&mut growth).poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(!woken.0.load(Ordering::Acquire));
    gated.open();
    while !woken.0.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    let Poll::Ready(block) = Pin::new(&mut growth).poll(&mut Context::from_waker(Waker::noop()))
    else {
        panic!("woken, and not ready")
    };
    assert_eq!(bench.live(), block.unwrap().size());
    // Polled once more than there is anything to give.
    let Poll::Ready(Err(error)) =
        Pin::new(&mut growth).poll(&mut Context::from_waker(Waker::noop()))
    else {
        panic!("gave something twice")
    };
    assert!(error.to_string().contains("polled after it was ready"), "{error}");
}

/// Dropped while the allocator is at it: the block that comes late goes back.
#[test]
fn dropped_while_it_is_served_nothing_is_lost() {
    let bench = Bench::new();
    let gated = Gated::new(&bench.pool);
    let growth = allocate_async(&gated, request(Bytes::mib(1)), Duration::ZERO);
    gated.wait_for_arrivals(1);
    drop(growth);
    gated.open();
    drain(&bench.pool);
    let statistics = bench.pool.statistics();
    assert_eq!((statistics.live, statistics.frees), (Bytes::ZERO, 1));
}

/// Dropped before its turn: the allocator is never asked. Dropped after: what came goes back.
#[test]
fn dropped_before_and_after_nothing_is_lost() {
    let bench = Bench::new();
    let gated = Gated::new(&bench.pool);
    let first = allocate_async(&gated, request(Bytes::mib(1)), Duration::ZERO);
    gated.wait_for_arrivals(1);
    drop(allocate_async(&gated, request(Bytes::mib(2)), Duration::ZERO));
    gated.open();
    drain(&bench.pool);
    assert_eq!(gated.arrived.load(Ordering::Acquire), 1);
    assert_eq!(bench.live(), Bytes::mib(1));
    assert_eq!(format!("{first:?}"), "Allocation { stage: \"ready\" }");
    drop(first);
    assert_eq!(bench.live(), Bytes::ZERO);
}

/// An allocator that panics ends neither the waiting caller nor the thread.
#[test]
fn a_panic_is_an_error() {
    let bench = Bench::new();
    let gated = Gated::new(&bench.pool);
    gated.panics.store(true, Ordering::Relaxed);
    gated.open();
    let error =
        block_on(allocate_async(&gated, request(Bytes::mib(1)), Duration::ZERO)).unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");
    drain(&bench.pool);
}

/// Blocked in one pool, while another on the same device and one on another device are served.
#[test]
fn a_request_that_waits_holds_up_no_other_pool() {
    let (bench, elsewhere) = (Bench::new(), Bench::new());
    let shared: Arc<dyn Device> = bench.device.clone();
    let beside = PoolOptions::new().build(&shared).unwrap();
    let gated = Gated::new(&bench.pool);
    let waiting = allocate_async(&gated, request(Bytes::mib(1)), Duration::ZERO);
    gated.wait_for_arrivals(1);
    for pool in [&beside, &elsewhere.pool] {
        let mut growth = allocate_async(pool, request(Bytes::mib(1)), Duration::ZERO);
        let mut polled = || Pin::new(&mut growth).poll(&mut Context::from_waker(Waker::noop()));
        let begun = std::time::Instant::now();
        let block = loop {
            match polled() {
                Poll::Ready(block) => break block.unwrap(),
                Poll::Pending => assert!(begun.elapsed() < Duration::from_secs(20), "held up"),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        drop(block);
    }
    assert_eq!(format!("{waiting:?}"), "Allocation { stage: \"pending\" }");
    gated.open();
    drop(block_on(waiting).unwrap());
}

/// However many threads there are, the requests of a pool are served in the order they came.
#[test]
fn requests_of_one_pool_keep_their_order() {
    let benches = [Bench::new(), Bench::new(), Bench::new()];
    let recorders = benches.each_ref().map(|bench| Recorder::new(&bench.pool));
    let futures: Vec<_> = (1..=90_u64)
        .map(|number| {
            let recorder = &recorders[usize::try_from(number % 3).unwrap()];
            allocate_async(recorder, request(Bytes::new(number)), Duration::ZERO)
        })
        .collect();
    futures.into_iter().for_each(|future| drop(block_on(future).unwrap()));
    for recorder in &recorders {
        let sizes: Vec<u64> =
            recorder.requests.lock().unwrap().iter().map(|request| request.size().get()).collect();
        assert!(sizes.len() == 30 && sizes.is_sorted(), "{sizes:?}");
    }
}

/// In a forked child the threads are not there: an error, and not a wait for ever.
#[cfg(unix)]
#[test]
fn a_forked_child_is_told() {
    let bench = Bench::new();
    drain(&bench.pool);
    // SAFETY: the child calls what takes no lock of a thread that it does not have, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let mut growth = allocate_async(&bench.pool, request(Bytes::mib(1)), Duration::ZERO);
        let polled = Pin::new(&mut growth).poll(&mut Context::from_waker(Waker::noop()));
        let told = matches!(polled, Poll::Ready(Err(Error::Forked)));
        // SAFETY: as above.
        unsafe { libc::_exit(if told { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: the child is this test's own, and the status can be written.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child went on, or hung");
    drain(&bench.pool);
}

/// The thread ends when it was idle, and the next request starts another.
#[test]
fn requests_after_a_pause_are_served() {
    let bench = Bench::new();
    for pause in [0, 90, 100, 110, 250] {
        std::thread::sleep(Duration::from_millis(pause));
        drop(
            block_on(allocate_async(&bench.pool, request(Bytes::mib(1)), Duration::ZERO)).unwrap(),
        );
    }
    assert_eq!(bench.pool.statistics().frees, 5);
}

#[test]
fn many_threads_many_futures() {
    let bench = Bench::new();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let pool = &bench.pool;
            scope.spawn(move || {
                for round in 0..200_u64 {
                    let growth = allocate_async(
                        pool,
                        request(Bytes::new(1 + round * 4096 + thread)),
                        Duration::ZERO,
                    );
                    if round % 3 == 0 {
                        drop(growth);
                    } else {
                        drop(block_on(growth).unwrap());
                    }
                }
            });
        }
    });
    drain(&bench.pool);
    let statistics = bench.pool.statistics();
    assert_eq!((statistics.live, statistics.allocations), (Bytes::ZERO, statistics.frees));
}

/// The block is counted for whoever asked, not for the thread that served it.
#[test]
fn a_block_to_come_has_the_tag_of_who_asked() {
    let bench = Bench::new();
    let tag = crate::Tag::named("of a future");
    let future = {
        let _scope = tag.enter();
        allocate_async(&bench.pool, request(Bytes::mib(1)), Duration::ZERO)
    };
    let block = block_on(future).unwrap();
    let tags = bench.pool.statistics().tags;
    assert_eq!(tags.iter().map(|tag| &*tag.tag).collect::<Vec<_>>(), [tag.name()]);
    drop(block);
}

fn owned_async(pool: &Pool, size: Bytes, patience: Duration) -> Allocation {
    pool.on(DEFAULT).owned_async(size, patience)
}

const LONG: Duration = Duration::from_secs(600);

#[test]
fn it_waits_until_another_frees_in_order_of_arrival() {
    let bench = Bench::limited(Bytes::mib(16));
    let taken = bench.pool.on(DEFAULT).owned(Bytes::mib(16)).unwrap();
    let first = owned_async(&bench.pool, Bytes::mib(16), LONG);
    let second = owned_async(&bench.pool, Bytes::mib(1), LONG);
    std::thread::sleep(Duration::from_millis(60));
    assert_eq!(format!("{first:?}{second:?}").matches("pending").count(), 2);
    taken.free().unwrap();
    let block = block_on(first).unwrap();
    assert!(format!("{second:?}").contains("pending"), "served although there is no memory");
    drop(block);
    drop(block_on(second).unwrap());
    assert!(bench.live().is_zero());
}

#[test]
fn behind_another_the_deadline_holds() {
    let bench = Bench::limited(Bytes::mib(16));
    let taken = bench.pool.on(DEFAULT).owned(Bytes::mib(12)).unwrap();
    let first = owned_async(&bench.pool, Bytes::mib(16), LONG);
    let refused = owned_async(&bench.pool, Bytes::mib(8), Duration::from_millis(30));
    let served = owned_async(&bench.pool, Bytes::mib(1), Duration::from_millis(40));
    assert!(matches!(block_on(refused).unwrap_err(), Error::OutOfMemory(_)));
    drop(block_on(served).unwrap());
    assert!(format!("{first:?}").contains("pending"));
    drop(taken);
    drop(block_on(first).unwrap());
}

#[test]
fn the_deadline_refuses_with_one_report() {
    let bench = Bench::limited(Bytes::mib(16));
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.txt");
    bench.pool.set("oom_report", report.to_str().unwrap()).unwrap();
    let _taken = bench.pool.on(DEFAULT).owned(Bytes::mib(16)).unwrap();
    let begun = std::time::Instant::now();
    let patience = Duration::from_millis(70);
    let waiting = owned_async(&bench.pool, Bytes::mib(4), patience);
    // Attempts that are made again are not reported.
    std::thread::sleep(Duration::from_millis(20));
    assert!(begun.elapsed() >= patience || !report.exists());
    let error = block_on(waiting).unwrap_err();
    assert!(begun.elapsed() >= patience && report.exists());
    let Error::OutOfMemory(shortage) = error else { panic!("{error}") };
    assert!(shortage.report.is_some());
}

#[test]
fn more_than_the_limit_is_refused_at_once() {
    let bench = Bench::limited(Bytes::mib(16));
    let error = block_on(owned_async(&bench.pool, Bytes::mib(17), LONG)).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    let error =
        block_on(owned_async(&bench.pool, Bytes::new(u64::MAX), Duration::MAX)).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
}

#[test]
fn cancelled_or_dropped_it_lets_the_next_one_through() {
    let bench = Bench::limited(Bytes::mib(16));
    let taken = bench.pool.on(DEFAULT).owned(Bytes::mib(12)).unwrap();
    let cancelled = owned_async(&bench.pool, Bytes::mib(16), LONG);
    let dropped = owned_async(&bench.pool, Bytes::mib(16), LONG);
    let served = owned_async(&bench.pool, Bytes::mib(2), LONG);
    assert!(cancelled.cancel() && !cancelled.cancel());
    let error = block_on(cancelled).unwrap_err();
    assert_eq!(error.to_string(), "cancelled after 0 B of 16.00 MiB");
    drop(dropped);
    let block = block_on(served).unwrap();
    assert_eq!(block.requested(), Bytes::mib(2));
    drop((block, taken));
    let ready = owned_async(&bench.pool, Bytes::mib(1), LONG);
    drain(&bench.pool);
    assert!(!ready.cancel(), "a block that is there stays");
    drop(block_on(ready).unwrap());
    assert!(bench.live().is_zero());
}
