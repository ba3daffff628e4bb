//! Forks while other threads use the library: no child hangs, whatever lock another thread held at the fork.
//! Everything that a child inherited is refused or answers neutrally; what it makes itself works.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay::handle::{
    Allocation, DeviceArray, OwnedBlock, SharedBlock, allocate_async, lost_frees,
};
use forebay::objects::{
    ArrayError, ArrayId, ArrayPool, ObjectError, ObjectPool, ObjectStatistics, Pooled,
};
use forebay::report::Stack;
use forebay::{
    Address, Alignment, Bytes, Device, Error, HostDevice, Pool, PoolOptions, Priority, Request,
    Stream, StreamHandle, Tag,
};
use forebay_hal::{Event, EventKind};

const DEFAULT: StreamHandle = StreamHandle::DEFAULT;

/// How many children there are, unless time runs out before.
const FORKS: usize = 300;
const TIME: Duration = Duration::from_secs(8);
/// A child that takes longer hangs: they need some milliseconds each.
const PATIENCE: u32 = 4;
/// After so many that hang the test has seen enough.
const MAX_HANGS: usize = 8;

/// What a child inherits.
struct Inherited {
    device: Arc<dyn Device>,
    pool: Pool,
    careful: Pool,
    block: Address,
    scopes: Vec<forebay::statistics::Scope>,
    owned: OwnedBlock,
    shared: SharedBlock,
    array: DeviceArray<u32>,
    rented: OwnedBlock,
    future: Allocation,
    stream: Stream,
    event: Event,
    objects: ObjectPool<Object>,
    object: Pooled<'static, Object>,
    arrays: ArrayPool<u64>,
    array_id: ArrayId,
}

/// An object of a pool. A child that drops one of its parent's has gone wrong.
struct Object {
    parent: u32,
}

impl Object {
    fn new() -> Self {
        Self { parent: std::process::id() }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        if self.parent != std::process::id() {
            DROPPED_IN_CHILD.store(true, Ordering::Relaxed);
        }
    }
}

static DROPPED_IN_CHILD: AtomicBool = AtomicBool::new(false);

impl Inherited {
    fn new() -> Self {
        let device: Arc<dyn Device> = HostDevice::open().unwrap();
        let pool = Pool::new(&device).unwrap();
        let careful = PoolOptions::new()
            .set(|set| set.history(100_u64).canaries(true).quarantine(Bytes::mib(1)));
        let careful = careful.build(&device).unwrap();
        let (objects, arrays) = (ObjectPool::new(Object::new), ArrayPool::new());
        drop((objects.get().unwrap(), objects.get().unwrap()));
        Self {
            block: pool.allocate(Bytes::mib(1), DEFAULT).unwrap().address(),
            scopes: vec![pool.scope(), pool.scope()],
            owned: pool.on(DEFAULT).owned(Bytes::mib(1)).unwrap(),
            shared: pool.on(DEFAULT).owned(Bytes::mib(1)).unwrap().into(),
            array: pool.on(DEFAULT).uninit(1000).unwrap(),
            rented: pool.on(DEFAULT).rent(Bytes::mib(1)).unwrap(),
            future: allocate_async(&pool, request(), core::time::Duration::ZERO),
            stream: Stream::new(&device, Priority::Normal).unwrap(),
            event: Event::new(&device, EventKind::Order).unwrap(),
            object: objects.get_owned().unwrap(),
            array_id: arrays.rent_by_id(100).unwrap().id,
            device,
            pool,
            careful,
            objects,
            arrays,
        }
    }
}

fn request() -> Request {
    Request::new(Bytes::mib(1), DEFAULT)
}

/// What a thread of the parent does all the time: every kind holds other locks.
fn storm(kind: usize, inherited: &Inherited) {
    let Inherited { device, pool, careful, shared, stream, .. } = inherited;
    match kind {
        0 => {
            let block = pool.allocate(Bytes::mib(3), DEFAULT).unwrap();
            pool.record_use(block.address(), stream.handle()).unwrap();
            pool.free(block.address(), DEFAULT).unwrap();
            pool.process_deferred().unwrap();
        }
        1 => {
            drop((pool.statistics(), format!("{pool:?}"), pool.settings(), pool.snapshot()));
            drop((
                careful.statistics(),
                careful.history(),
                careful.findings(),
                careful.memory_map(),
            ));
            pool.scope().end();
            pool.set("history", "0").unwrap();
        }
        2 => {
            let block = careful.allocate(Bytes::new(4000), DEFAULT).unwrap();
            careful.free(block.address(), DEFAULT).unwrap();
            let tag = Tag::named("storm");
            drop((tag.name(), lost_frees(), pool.on(DEFAULT).rent(Bytes::mib(2)).unwrap()));
            shared.used_on(stream.handle());
        }
        3 => {
            let device: Arc<dyn Device> = HostDevice::open().unwrap();
            let pool = Pool::of(&device).unwrap();
            drop((pool.on(DEFAULT).owned(Bytes::mib(1)).unwrap(), Pool::process_pools()));
            Pool::forget(&device);
            drop(Pool::new(&device).unwrap());
        }
        4 => {
            let stream = Stream::new(device, Priority::Normal).unwrap();
            let mut array = pool.on(stream.handle()).uninit::<u32>(5000).unwrap();
            array.copy_from_slice(&[7; 5000]).unwrap();
            array.hand_over_to(DEFAULT).unwrap();
            drop(allocate_async(pool, request(), core::time::Duration::ZERO));
        }
        5 => {
            let Inherited { objects, arrays, .. } = inherited;
            drop([objects.get().unwrap(), objects.get().unwrap(), objects.get().unwrap()]);
            objects.maintain().unwrap();
            let _ = (objects.statistics(), objects.shrink_to(1), arrays.statistics());
            arrays.return_by_id(arrays.rent_by_id(70).unwrap().id).unwrap();
        }
        6 => {
            drop(Stack::capture().to_string());
            // It is slow where nothing is optimised, and others have locks too.
            thread::sleep(Duration::from_millis(5));
        }
        _ => {
            // A thread that ends gives back its thread slot.
            thread::scope(|scope| {
                scope.spawn(|| drop(pool.on(DEFAULT).owned(Bytes::new(100)).unwrap()));
            });
        }
    }
}

/// Gives the number of the line where something is not as it should be.
macro_rules! ensure {
    ($holds:expr) => {
        if !$holds {
            return line!();
        }
    };
}

/// Everything that takes a lock in the parent, on what the child inherited.
fn use_inherited(inherited: Inherited) -> u32 {
    let Inherited { device, pool, careful, block, mut scopes, mut owned, shared, .. } = inherited;
    let Inherited { mut array, rented, mut future, stream, event, .. } = inherited;
    let forked = |result: Result<(), Error>| result == Err(Error::Forked);
    let side = StreamHandle(77);
    let aligned = Request::new(Bytes::mib(1), DEFAULT).aligned_to(Alignment::new(4096).unwrap());
    for pool in [&pool, &careful] {
        ensure!(forked(pool.allocate(Bytes::mib(100), DEFAULT).map(drop)));
        ensure!(forked(pool.allocate_request(aligned).map(drop)));
        ensure!(forked(pool.record_use(block, side)));
        ensure!(forked(pool.free(block, side)) && forked(forebay::process::free(block, side)));
        ensure!(forked(pool.forget_stream(side)) && forked(pool.process_deferred()));
        ensure!(forked(pool.defragment()) && forked(pool.trim(Bytes::ZERO).map(drop)));
        ensure!(forked(pool.collect(Duration::ZERO).map(drop)) && forked(pool.check()));
        ensure!(forked(pool.set("history", "0")) && forked(pool.capture().map(drop)));
        ensure!(forked(pool.pages_of(block).map(drop)));
        ensure!(pool.statistics() == forebay::Statistics::default());
        ensure!(pool.history().is_empty() && pool.findings().is_empty());
        ensure!(pool.memory_map().spans.is_empty() && pool.page_count() == 0);
        ensure!(pool.snapshot().statistics.allocations == 0);
        ensure!(pool.scope().end().allocations == 0);
        ensure!(format!("{pool:?}").starts_with("Pool("));
        drop((pool.settings(), pool.limit(), pool.held(), pool.pressure(), pool.block_at(block)));
    }
    ensure!(forked(Pool::new(&device).map(drop)));
    ensure!(forked(Pool::of(&device).map(drop)));
    ensure!(!Pool::forget(&device) && Pool::process_pools().is_empty());
    ensure!(Pool::all_of(&device).is_empty());
    ensure!(scopes.pop().is_some_and(|scope| scope.end().allocations == 0));
    ensure!(forked(owned.settle()) || !format!("{owned:?}").is_empty());
    ensure!(forked(owned.hand_over_to(side)));
    ensure!(matches!(owned.free(), Err(refused) if *refused.error() == Error::Forked));
    shared.used_on(side);
    ensure!(!format!("{shared:?}").is_empty());
    ensure!(forked(array.copy_from_slice(&[1; 1000])));
    ensure!(forked(array.copy_to_slice(&mut [1; 1000])));
    ensure!(forked(pool.on(DEFAULT).rent(Bytes::mib(1)).map(drop)));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let polled = Future::poll(std::pin::Pin::new(&mut future), &mut context);
    ensure!(matches!(polled, std::task::Poll::Ready(Err(Error::Forked))));
    ensure!(!format!("{future:?}").is_empty());
    ensure!(stream.synchronize().is_err() && stream.query().is_err());
    ensure!(stream.wait(&event).is_err() && event.record(&stream).is_err());
    ensure!(event.query().is_err() && event.synchronize().is_err());
    ensure!(Event::new(&device, EventKind::Order).is_err());
    ensure!(Stream::new(&device, Priority::Normal).is_err());
    ensure!(device.synchronize_device().is_err());
    let Inherited { objects, object, arrays, array_id, .. } = inherited;
    ensure!(matches!(objects.get(), Err(ObjectError::Forked)));
    ensure!(matches!(objects.get_owned(), Err(ObjectError::Forked)));
    ensure!(matches!(objects.maintain(), Err(ObjectError::Forked)));
    ensure!(objects.shrink_to(0) == 0 && objects.statistics() == ObjectStatistics::default());
    ensure!(matches!(arrays.rent(1), Err(ArrayError::Forked)));
    ensure!(arrays.return_by_id(array_id) == Err(ArrayError::Forked));
    ensure!(arrays.statistics() == Default::default() && !format!("{arrays:?}").is_empty());
    drop((object, objects, arrays));
    ensure!(!DROPPED_IN_CHILD.load(Ordering::Relaxed));
    let lost = lost_frees().count;
    drop((scopes, shared, array, rented, future, stream, event, pool, careful));
    ensure!(Arc::strong_count(&device) > 1);
    drop(device);
    ensure!(lost_frees().count == lost);
    0
}

/// Objects of the child's own.
fn use_own_objects() -> u32 {
    let (objects, arrays) = (ObjectPool::new(Object::new), ArrayPool::<u64>::new());
    ensure!(objects.get().is_ok() && objects.get_owned().is_ok());
    ensure!(objects.maintain().is_ok() && objects.statistics().creations == 1);
    ensure!(arrays.rent(100).is_ok() && arrays.statistics().arrays.creations == 1);
    0
}

/// A device and a pool of the child's own, and what belongs to them. No thread of the standard library's: it
/// takes a lock of its own when a thread starts or ends, which a fork may leave locked.
fn use_own() -> Result<(), Error> {
    let device: Arc<dyn Device> = HostDevice::open()?;
    let pool = Pool::of(&device)?;
    let stream = Stream::new(&device, Priority::Normal)?;
    let mut array = pool.on(stream.handle()).uninit::<u32>(5000)?;
    let (values, mut back) = ([7; 5000], [0; 5000]);
    array.copy_from_slice(&values)?;
    array.copy_to_slice(&mut back)?;
    ensure_ok(values == back)?;
    array.hand_over_to(DEFAULT)?;
    drop((array, stream));
    let _tag = Tag::named("child").enter();
    drop(pool.on(DEFAULT).owned(Bytes::mib(5))?);
    let mut future = allocate_async(&pool, request(), core::time::Duration::ZERO);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    while Future::poll(std::pin::Pin::new(&mut future), &mut context).is_pending() {
        thread::yield_now();
    }
    ensure_ok(Pool::process_pools().len() == 1 && pool.statistics().live == Bytes::ZERO)?;
    ensure_ok(Pool::forget(&device))?;
    drop(pool);
    // The thread that allocated has the pool for a moment longer.
    while !device.memory_info()?.held.is_zero() {
        thread::yield_now();
    }
    Ok(())
}

/// A call stack of the child's.
fn name_stack() -> u32 {
    ensure!(Stack::capture().to_string().contains("name_stack"));
    0
}

fn ensure_ok(holds: bool) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(Error::NotABlock { address: Address::NULL }) }
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Well,
    Hung,
    /// The line that found something wrong, or what `waitpid` said of a crash.
    Wrong(u32),
}

/// Forks, has the child do `work`, and waits for its end.
fn fork(work: impl FnOnce() -> u32) -> End {
    let mut pipe = [0; 2];
    // SAFETY: there is room for both ends.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // SAFETY: the child ends by `_exit`, or by an alarm where it waits for a lock that is nobody's.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: as above.
        unsafe { libc::alarm(PATIENCE) };
        let line = work();
        // SAFETY: the number can be read, and the child ends here.
        unsafe {
            libc::write(pipe[1], (&raw const line).cast(), 4);
            libc::_exit(i32::from(line != 0));
        }
    }
    let (mut status, mut line) = (0, 0_u32);
    // SAFETY: the child is this test's own, and what is written there can be.
    unsafe {
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        libc::close(pipe[1]);
        libc::read(pipe[0], (&raw mut line).cast(), 4);
        libc::close(pipe[0]);
    }
    if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGALRM {
        return End::Hung;
    }
    match (status, line) {
        (0, 0) => End::Well,
        (status, 0) => End::Wrong(u32::try_from(status).unwrap()),
        (_, line) => End::Wrong(line),
    }
}

#[test]
fn no_child_hangs_whatever_other_threads_hold() {
    let stop = AtomicBool::new(false);
    let inherited = Inherited::new();
    let begun = Instant::now();
    let mut ends = Vec::new();
    thread::scope(|scope| {
        for kind in 0..8 {
            let (stop, inherited) = (&stop, &inherited);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    storm(kind, inherited);
                }
            });
        }
        while ends.len() < FORKS && begun.elapsed() < TIME {
            // Half of them leave the inherited alone, so that what hangs there hides nothing of the other half.
            let (alone, is_named) = (ends.len() % 2 == 0, ends.len() % 8 == 0);
            ends.push(fork(|| {
                // SAFETY: a copy that is this child's alone: the parent's is never dropped here.
                let of_child = || unsafe { std::ptr::read(&raw const inherited) };
                let line = if alone { 0 } else { use_inherited(of_child()) };
                let line = if line == 0 { use_own_objects() } else { line };
                let line = if line == 0 { use_own().map_or(line!(), |()| 0) } else { line };
                if line == 0 && is_named { name_stack() } else { line }
            }));
            if ends.iter().filter(|&&end| end == End::Hung).count() >= MAX_HANGS {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let hung = ends.iter().filter(|&&end| end == End::Hung).count();
    let wrong: std::collections::BTreeSet<u32> = ends
        .iter()
        .filter_map(|end| if let End::Wrong(line) = end { Some(*line) } else { None })
        .collect();
    println!("{} children in {:?}: {hung} hung, wrong at {wrong:?}", ends.len(), begun.elapsed());
    assert!(hung == 0 && wrong.is_empty(), "{hung} of {} hung, wrong at {wrong:?}", ends.len());
    // What the children did harmed nothing here.
    inherited.pool.free(inherited.block, DEFAULT).unwrap();
    inherited.pool.process_deferred().unwrap();
}
