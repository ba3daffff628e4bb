//! Stream handles that the device does not know: a request is refused, and what is freed or used on one waits
//! for the whole device, since nothing else tells when its work is over.

use super::*;
use crate::pool::calls::stream_end;

/// No stream of the device has this handle.
const STRANGER: StreamHandle = StreamHandle(0x7000_0000_0000);

/// A pool that one block of 5 MiB fills.
fn narrow(options: SimOptions) -> (SimMachine, Arc<SimDevice>, Pool) {
    let (machine, device, shared) = open(options.capacity(Bytes::mib(64)));
    let pool = PoolOptions::new().max_bytes(Bytes::mib(8)).build(&shared).unwrap();
    (machine, device, pool)
}

fn synchronized(pool: &Pool) -> u64 {
    pool.statistics().driver.of(Call::SynchronizeDevice)
}

fn all_comes_back(machine: &SimMachine, device: &SimDevice, pool: &Pool) {
    device.synchronize_device().unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!((pool.held(), machine.census().held), (Bytes::ZERO, Bytes::ZERO));
    assert_eq!(pool.statistics().live, Bytes::ZERO);
    assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
}

/// A request names the error, and takes nothing of the pool or the device.
#[test]
fn a_request_on_an_unknown_stream_is_refused() {
    for strict in [false, true] {
        let (machine, device, shared) = open(SimMachine::builder().capacity(Bytes::mib(64)));
        let options = PoolOptions::new().set(|settings| settings.strict_streams(strict));
        let pool = options.build(&shared).unwrap();
        let live = pool.allocate(Bytes::kib(64), DEFAULT).unwrap();
        fill_magazine(&pool);
        let figures = || {
            let told = pool.statistics();
            (told.live, told.held, told.cached, told.allocations, told.frees, told.waits)
        };
        let (before, census) = (figures(), machine.census());
        for size in [Bytes::new(512), Bytes::new(64 << 10), Bytes::mib(3), Bytes::mib(40)] {
            let error = pool.allocate(size, STRANGER).unwrap_err();
            let invalid = matches!(error, Error::Device(forebay_hal::Error::Invalid { .. }));
            assert!(invalid, "{size}: {error}");
            assert_eq!((figures(), machine.census()), (before, census), "{size}");
            assert!(!stream_end::knows_stream(&pool.shared, STRANGER));
        }
        pool.free_block(live, DEFAULT).unwrap();
        all_comes_back(&machine, &device, &pool);
    }
}

/// Uses most of the pool: memory that is free only after a wait for the device.
fn use_after_a_wait(device: &SimDevice, pool: &Pool, stream: StreamHandle) {
    let block = pool.allocate(Bytes::mib(5), stream).unwrap();
    assert!(synchronized(pool) > 0, "had without a wait");
    write(device, block, 201, stream);
    pool.free_block(block, stream).unwrap();
}

/// A block that is freed on such a handle is not lost, and nobody has its memory before the device was
/// waited for.
#[test]
fn a_free_on_an_unknown_stream_waits_for_the_device() {
    let (machine, device, pool) = narrow(SimMachine::builder());
    let own = device.create_stream(Priority::Normal).unwrap();
    let block = pool.allocate(Bytes::mib(5), own).unwrap();
    (0..200).for_each(|tag| write(&device, block, tag, own));
    pool.free_block(block, STRANGER).unwrap();
    assert_eq!(pool.statistics().live, Bytes::ZERO);
    assert!(matches!(pool.free_block(block, own), Err(Error::DoubleFree { .. })));
    assert_eq!(synchronized(&pool), 0);
    [own, DEFAULT].into_iter().for_each(|stream| use_after_a_wait(&device, &pool, stream));
    all_comes_back(&machine, &device, &pool);
}

/// Small blocks, which magazines keep.
#[test]
fn small_blocks_freed_on_an_unknown_stream_come_back() {
    let (machine, device, pool) = narrow(SimMachine::builder());
    let own = device.create_stream(Priority::Normal).unwrap();
    let blocks: Vec<Block> =
        (0..100).map(|_| pool.allocate(Bytes::kib(64), own).unwrap()).collect();
    for &block in &blocks {
        (0..4).for_each(|tag| write(&device, block, tag, own));
        pool.free_block(block, STRANGER).unwrap();
    }
    assert_eq!(synchronized(&pool), 0);
    let again: Vec<Block> =
        (0..100).map(|_| pool.allocate(Bytes::kib(64), DEFAULT).unwrap()).collect();
    assert!(synchronized(&pool) > 0, "had without a wait");
    for block in again {
        write(&device, block, 9, DEFAULT);
        pool.free_block(block, DEFAULT).unwrap();
    }
    all_comes_back(&machine, &device, &pool);
}

/// A use on such a handle counts: the block is freed, and its memory waits for the whole device.
#[test]
fn a_use_on_an_unknown_stream_is_not_lost() {
    let (machine, device, pool) = narrow(SimMachine::builder());
    let [own, user] = [(); 2].map(|()| device.create_stream(Priority::Normal).unwrap());
    let block = pool.allocate(Bytes::mib(5), own).unwrap();
    // The use that the program means, on a stream that it then names wrongly.
    (0..200).for_each(|tag| write(&device, block, tag, user));
    pool.record_use(block.address(), STRANGER).unwrap();
    pool.free_block(block, own).unwrap();
    assert_eq!(pool.statistics().live, Bytes::ZERO);
    assert_eq!(synchronized(&pool), 0);
    use_after_a_wait(&device, &pool, own);
    all_comes_back(&machine, &device, &pool);
}

/// With strict streams every call is refused that names one.
#[test]
fn strict_streams_refuse_every_call_on_an_unknown_stream() {
    let (machine, device, shared) = open(SimMachine::builder().capacity(Bytes::mib(64)));
    let options = PoolOptions::new().set(|settings| settings.strict_streams(true));
    let pool = options.build(&shared).unwrap();
    let block = pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
    let refused = |done: Result<()>| {
        let error = done.unwrap_err();
        assert!(matches!(error, Error::Device(forebay_hal::Error::Invalid { .. })), "{error}");
    };
    refused(pool.record_use(block.address(), STRANGER));
    refused(pool.free_block(block, STRANGER));
    refused(pool.free(block.address(), STRANGER));
    assert_eq!(pool.statistics().live, block.size(), "it is live all the same");
    pool.free_block(block, DEFAULT).unwrap();
    all_comes_back(&machine, &device, &pool);
}
