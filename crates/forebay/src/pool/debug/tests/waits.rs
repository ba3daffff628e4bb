//! Beside a kernel that never ends, a request is refused when its time is up: no aid has it wait longer.

use core::time::Duration;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use forebay_core::Bytes;
use forebay_hal::{Device, Priority, Stream, StreamHandle};
use forebay_host::HostDevice;

use super::Change;
use crate::{Block, Error, Pool, PoolOptions, Result};

const WAIT: Duration = Duration::from_millis(50);

/// How long a request may take that is to be refused after [`WAIT`].
const LONG: Duration = Duration::from_secs(5);

/// Work that ends when this is dropped.
struct Endless(#[expect(dead_code, reason = "dropped")] mpsc::Sender<()>);

impl Endless {
    fn on(device: &dyn Device, stream: StreamHandle) -> Self {
        let (go, flag) = mpsc::channel();
        device.enqueue_host(Box::new(move || _ = flag.recv()), stream).unwrap();
        Self(go)
    }
}

/// A pool of 256 MiB and two streams.
fn open(change: Change) -> (Arc<dyn Device>, Pool, [Stream; 2]) {
    let device: Arc<dyn Device> = HostDevice::open().unwrap();
    let options = PoolOptions::new().max_bytes(Bytes::mib(256)).set(change);
    let pool = options.build(&device).unwrap();
    let streams = [(); 2].map(|()| Stream::new(&device, Priority::Normal).unwrap());
    (device, pool, streams)
}

/// Makes a call beside endless work, which ends when the call is over or has taken far too long; gives how
/// long it took.
fn beside<T: Send>(work: Endless, call: impl FnOnce() -> T + Send) -> (T, Duration) {
    thread::scope(|scope| {
        let begun = Instant::now();
        let call = scope.spawn(call);
        while !call.is_finished() && begun.elapsed() < LONG {
            thread::sleep(Duration::from_millis(1));
        }
        let took = begun.elapsed();
        drop(work);
        (call.join().unwrap(), took)
    })
}

/// A request that may wait for [`WAIT`].
fn request_beside(work: Endless, pool: &Pool, size: Bytes, on: StreamHandle) -> Result<Block> {
    pool.set("max_wait", "50ms").unwrap();
    let (got, took) = beside(work, || pool.allocate(size, on));
    assert!(took >= WAIT && took < LONG, "it took {took:?}");
    pool.set("max_wait", "10s").unwrap();
    got
}

/// A request of `size` that needs what was freed on a stream with endless work is refused, and leaves
/// everything as it was. When the work has ended the same request is served, and everything comes back.
fn refused_then_served(change: Change, freed: Bytes, size: Bytes) {
    let (device, pool, [own, busy]) = open(change);
    let block = pool.allocate(freed, busy.handle()).unwrap();
    let work = Endless::on(&*device, busy.handle());
    pool.free_block(block, busy.handle()).unwrap();
    let before = pool.statistics();
    let error = request_beside(work, &pool, size, own.handle()).unwrap_err();
    let Error::OutOfMemory(shortage) = error else { panic!("{error}") };
    assert_eq!(
        (shortage.requested, shortage.held, shortage.live),
        (size, before.held, Bytes::ZERO)
    );
    assert_eq!(pool.statistics().quarantined, before.quarantined);
    let block = pool.allocate(size, own.handle()).unwrap();
    pool.free_block(block, own.handle()).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!((pool.held(), pool.findings()), (Bytes::ZERO, vec![]));
}

#[test]
fn guard_pages_at_the_limit() {
    refused_then_served(|settings| settings.guard_pages(true), Bytes::mib(40), Bytes::mib(240));
}

/// More is on its way out than may be: the request waits though there is room.
#[test]
fn guard_pages_on_their_way_out() {
    refused_then_served(|settings| settings.guard_pages(true), Bytes::mib(80), Bytes::mib(1));
}

#[test]
fn blocks_in_quarantine() {
    let change: Change = |settings| settings.poison(true).quarantine(Bytes::gib(1));
    refused_then_served(change, Bytes::mib(200), Bytes::mib(200));
}

/// Free memory is looked at in the order of the request's stream, which has endless work itself.
#[test]
fn poison_in_the_order_of_the_request() {
    let (device, pool, [own, _]) = open(|settings| settings.poison(true));
    let block = pool.allocate(Bytes::mib(1), own.handle()).unwrap();
    pool.free_block(block, own.handle()).unwrap();
    let work = Endless::on(&*device, own.handle());
    let held = pool.held();
    let error = request_beside(work, &pool, Bytes::mib(1), own.handle()).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
    let again = pool.allocate(Bytes::mib(1), own.handle()).unwrap();
    assert_eq!((again.address(), pool.held()), (block.address(), held));
    pool.free_block(again, own.handle()).unwrap();
    pool.check().unwrap();
    assert_eq!(pool.findings(), []);
}

/// Only blocks in quarantine are looked at, and have a stream waited for, when it is forgotten.
#[test]
fn a_stream_with_nothing_in_quarantine_is_forgotten_at_once() {
    let change: Change = |settings| settings.poison(true).quarantine(Bytes::gib(1));
    let (device, pool, [own, busy]) = open(change);
    let blocks = [&own, &busy].map(|stream| pool.allocate(Bytes::kib(4), stream.handle()).unwrap());
    pool.free_block(blocks[0], own.handle()).unwrap();
    let work = Endless::on(&*device, busy.handle());
    let (forgotten, took) = beside(work, || pool.forget_stream(busy.handle()));
    forgotten.unwrap();
    assert!(took < LONG, "it took {took:?}");
}

/// A stream that has nothing to do is not made to wait for another while the pool may grow: the host looks at
/// poisoned memory before it is given out, and would wait for both.
#[test]
fn with_poison_a_request_grows_the_pool_before_it_waits_for_another_stream() {
    let (device, pool, [busy, idle]) = open(|set| set.poison(true));
    let freed = pool.allocate(Bytes::mib(4), busy.handle()).unwrap();
    let work = Endless::on(&*device, busy.handle());
    pool.free_block(freed, busy.handle()).unwrap();
    pool.set("max_wait", "10s").unwrap();
    let (got, took) = beside(work, || pool.allocate(Bytes::mib(3), idle.handle()));
    assert!(got.is_ok() && took < LONG, "{got:?} after {took:?}");
    pool.free_block(got.unwrap(), idle.handle()).unwrap();
    device.synchronize_device().unwrap();
}
