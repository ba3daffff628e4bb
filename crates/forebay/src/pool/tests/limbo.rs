//! Memory on its way back to the device is the pool's or the device's, and a request uses it until it is gone.

use core::time::Duration;

use super::*;
use crate::pool::backing::deferred::MAX_SLOW;

const BATCH: u64 = MAX_SLOW as u64;

fn span_of(block: Block) -> Span {
    Span::new(block.address(), block.size()).unwrap()
}

/// A device of 8 GiB, and a pool with `mib` MiB of free pages of 2 MiB.
fn idle_pool(mib: u64) -> (SimMachine, Arc<SimDevice>, Pool) {
    let simulated = SimMachine::builder().memory(MemoryModel::Phantom).capacity(Bytes::gib(8));
    let (machine, device, shared) = open(simulated);
    let mut growth = Growth::default();
    growth.largest_page = Bytes::mib(2);
    let options = PoolOptions::new().growth(growth).set(|set| set.magazines(false));
    let pool = options.build(&shared).unwrap();
    let block = pool.allocate(Bytes::mib(mib), DEFAULT).unwrap();
    pool.free_block(block, DEFAULT).unwrap();
    (machine, device, pool)
}

/// What `collect` says is back at the device, and another pool has it.
#[test]
fn what_is_collected_is_back_at_the_device() {
    let (machine, device, pool) = idle_pool(6 << 10);
    pool.shared.heap().ledger.window_peak = Bytes::ZERO;
    let gone = pool.collect(Duration::ZERO).unwrap();
    assert_eq!((gone, pool.held()), (Bytes::gib(6), Bytes::ZERO));
    assert_eq!(machine.census().held, Bytes::ZERO);
    let other = Pool::new(&device).unwrap();
    let block = other.allocate(Bytes::gib(7), DEFAULT).unwrap();
    other.free_block(block, DEFAULT).unwrap();
}

/// Memory that work still uses stays in the pool, but for one batch, and a request gets all of it without the driver.
#[test]
fn a_request_takes_back_what_waits_to_be_returned() {
    // One batch, as calls that do not wait, or all, as those that do.
    for most in [MAX_SLOW, usize::MAX] {
        let (machine, device, pool) = idle_pool(1 << 10);
        let stream = device.create_stream(Priority::Normal).unwrap();
        // All of it is free in the order of a stream that is busy for long.
        let block = pool.allocate(Bytes::gib(1), stream).unwrap();
        let busy = Kernel::new("busy").reads(span_of(block)).duration(Duration::from_secs(1 << 20));
        // SAFETY: the block lives until it is freed on this stream below.
        unsafe { device.launch(busy, stream).unwrap() };
        pool.free_block(block, stream).unwrap();
        {
            let mut backing = pool.shared.backing();
            let mut pages = backing.free_pages(pool.shared.context()).into_iter();
            backing.defer_release(pool.shared.context(), &mut pages, Bytes::ZERO, most);
        }
        assert_eq!(pool.page_count(), 512_u64.saturating_sub(most as u64));
        let calls = |call| machine.calls().of(call);
        let before = [Call::CreatePage, Call::Map, Call::Unmap].map(calls);
        let again = pool.allocate(Bytes::gib(1), stream).unwrap();
        assert_eq!([Call::CreatePage, Call::Map, Call::Unmap].map(calls), before);
        assert_eq!((again.address(), pool.held()), (block.address(), Bytes::gib(1)));
        pool.free_block(again, stream).unwrap();
        drop(pool);
        nothing_is_left(&machine);
    }
}

/// The rest of a collection goes when the work is done.
#[test]
fn what_work_used_is_collected_when_it_is_done() {
    let (machine, device, pool) = idle_pool(1 << 10);
    let stream = device.create_stream(Priority::Normal).unwrap();
    let block = pool.allocate(Bytes::gib(1), stream).unwrap();
    let busy = Kernel::new("busy").reads(span_of(block)).duration(Duration::from_secs(1));
    // SAFETY: as above.
    unsafe { device.launch(busy, stream).unwrap() };
    pool.free_block(block, stream).unwrap();
    pool.shared.heap().ledger.window_peak = Bytes::ZERO;
    pool.collect(Duration::ZERO).unwrap();
    device.synchronize_device().unwrap();
    pool.process_deferred().unwrap();
    assert_eq!((pool.held(), machine.census().held), (Bytes::ZERO, Bytes::ZERO));
}

/// No request pays for more than a few batches when the pressure becomes critical, and what was not released yet is used.
#[test]
fn critical_pressure_leaves_memory_in_the_pool_or_at_the_device() {
    let simulated = SimMachine::builder().memory(MemoryModel::Phantom).capacity(Bytes::gib(3));
    let (machine, _, shared) = open(simulated);
    let mut growth = Growth::default();
    growth.largest_page = Bytes::mib(2);
    let options = PoolOptions::new().growth(growth).set(|set| set.magazines(false));
    let pool = options.max_bytes(Bytes::gib(2)).build(&shared).unwrap();
    let small: Vec<Block> =
        (0..4096).map(|_| pool.allocate(Bytes::new(256 << 10), DEFAULT).unwrap()).collect();
    for block in small {
        pool.free_block(block, DEFAULT).unwrap();
    }
    let (released, pages) = loop {
        let (before, pages) = (machine.calls().of(Call::ReleasePage), pool.page_count());
        pool.allocate(Bytes::mib(64), DEFAULT).unwrap();
        let released = machine.calls().of(Call::ReleasePage) - before;
        if released > 0 {
            break (released, pages);
        }
    };
    assert!(released <= BATCH, "a request released {released} pages");
    assert_eq!(pool.page_count(), pages + 32 - released, "the rest is in the pool");
    // The small side has its memory still.
    let created = machine.calls().of(Call::CreatePage);
    pool.allocate(Bytes::new(256 << 10), DEFAULT).unwrap();
    assert_eq!(machine.calls().of(Call::CreatePage), created);
}

/// Other threads are served while a thread releases many pages.
#[test]
fn requests_go_on_while_memory_is_released() {
    let (machine, _, pool) = idle_pool(4 << 10);
    let other = pool.clone();
    std::thread::scope(|scope| {
        let releasing = scope.spawn(|| other.trim(Bytes::ZERO).unwrap());
        while !releasing.is_finished() {
            let block = pool.allocate(Bytes::mib(3), DEFAULT).unwrap();
            pool.free_block(block, DEFAULT).unwrap();
        }
    });
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!((pool.held(), machine.census().held), (Bytes::ZERO, Bytes::ZERO));
}
