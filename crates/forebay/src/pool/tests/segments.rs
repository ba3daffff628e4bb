//! Devices without virtual memory calls: the same pool on segments.

use forebay_hal::Capabilities;

use super::*;

/// Segments are whole device pages, so that the device is larger than the one with pages.
fn plain_device() -> SimOptions {
    let options = SimMachine::builder().without(Capabilities::VIRTUAL_MEMORY);
    options.capacity(Bytes::mib(16))
}

#[test]
fn random_programs_run_on_segments() {
    let (mut waits, mut refused) = (0, 0);
    for seed in 0..40 {
        let (addresses, statistics) = random_program(plain_device(), seed, 400);
        waits += statistics.waits;
        refused += u64::from(addresses.is_empty());
        assert!(statistics.driver.of(Call::Allocate) > 0);
        assert_eq!(statistics.driver.of(Call::CreatePage), 0);
        assert_eq!((statistics.live, statistics.allocations), (Bytes::ZERO, statistics.frees));
    }
    assert!(waits > 100, "streams took from each other only {waits} times");
    assert_eq!(refused, 0);
}

#[test]
fn trimming_gives_segments_back_and_keeps_what_is_live() {
    let (machine, device, shared) = open(plain_device().capacity(Bytes::mib(256)));
    let pool = Pool::new(&shared).unwrap();
    let kept = pool.allocate(Bytes::mib(3), DEFAULT).unwrap();
    write(&device, kept, 7, DEFAULT);
    let gone: Vec<Block> =
        (0..4).map(|_| pool.allocate(Bytes::mib(24), DEFAULT).unwrap()).collect();
    let before = pool.held();
    for block in gone {
        pool.free(block.address(), DEFAULT).unwrap();
    }
    let given = pool.trim(Bytes::ZERO).unwrap();
    assert!(given >= Bytes::mib(64), "only {given} went back");
    assert_eq!(pool.held(), before.saturating_sub(given));
    assert_eq!(machine.census().held, pool.held());
    let wrong = Arc::new(AtomicU64::new(0));
    check(&device, kept, 7, DEFAULT, &wrong);
    device.synchronize_device().unwrap();
    assert_eq!(wrong.load(Ordering::Relaxed), 0);
    pool.free(kept.address(), DEFAULT).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!((pool.held(), machine.census().held), (Bytes::ZERO, Bytes::ZERO));
    drop(pool);
    nothing_is_left(&machine);
    assert_eq!(machine.findings(), []);
}

#[test]
fn any_call_may_fail_on_segments_and_nothing_is_lost() {
    fail_every_call(&plain_device().capacity(Bytes::mib(8)));
}

/// A program that runs for months takes and gives back far more than the 128 TiB of addresses that a pool
/// tells apart: what was given back takes none. The memory is real and never touched, since phantom
/// addresses only rise, which those of a device do not.
#[test]
fn segments_come_and_go_without_end() {
    let (machine, _, shared) = open(plain_device().capacity(Bytes::gib(128)));
    let pool = Pool::new(&shared).unwrap();
    let kept = pool.allocate(Bytes::mib(3), DEFAULT).unwrap();
    let sizes = [Bytes::gib(64), Bytes::gib(100), Bytes::gib(1), Bytes::gib(96)];
    let mut total = Bytes::ZERO;
    for size in sizes.into_iter().cycle().take(4800) {
        let block = pool.allocate(size, DEFAULT);
        let block = block.unwrap_or_else(|error| panic!("{size} after {total}: {error}"));
        pool.free_block(block, DEFAULT).unwrap();
        pool.trim(Bytes::ZERO).unwrap();
        assert!(pool.held() < Bytes::gib(1), "{} held after {total}", pool.held());
        total = total.saturating_add(size);
    }
    assert!(total > Bytes::gib(300 << 10), "only {total}");
    pool.free_block(kept, DEFAULT).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!((pool.held(), machine.census().held), (Bytes::ZERO, Bytes::ZERO));
    assert_eq!(machine.finding_count(), 0);
}

/// Segments are whole granules, whatever fraction of the device's free memory a page may be.
#[test]
fn an_odd_amount_of_free_memory_makes_no_odd_segment() {
    let capacity = Bytes::gib(12);
    let (_, _, device) =
        open(SimMachine::builder().memory(MemoryModel::Phantom).capacity(capacity));
    let pool = PoolOptions::new().class(MemoryClass::PLAIN).build(&device).unwrap();
    pool.allocate(Bytes::gib(6), DEFAULT).unwrap();
    for _ in 0..8 {
        pool.allocate(Bytes::mib(2), DEFAULT).unwrap();
    }
    assert!(pool.held().is_aligned_to(Alignment::DEVICE_PAGE));
}
