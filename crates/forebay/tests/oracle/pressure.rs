//! Short memory: what fits in what is free or idle is given.

use std::sync::Arc;

use forebay::{Block, Error, Pool, PoolOptions};
use forebay_core::address_space::Growth;
use forebay_core::{Bytes, PageSize, Random};
use forebay_hal::{Device, StreamHandle};
use forebay_sim::{MemoryModel, SimMachine};
use proptest::prelude::*;

use crate::trial::{Program, Record, Setting, try_on_sim};

const DEFAULT: StreamHandle = StreamHandle::DEFAULT;

/// A device of phantom memory in pages of 2 MiB.
fn device(capacity: Bytes) -> Arc<dyn Device> {
    let options = SimMachine::builder().memory(MemoryModel::Phantom).capacity(capacity);
    options.build().unwrap().device(0).unwrap()
}

fn pages_of_one_granule() -> Growth {
    let mut growth = Growth::default();
    growth.largest_page = PageSize::DEVICE.bytes();
    growth
}

/// Four fifths of what there is in blocks of 64 MiB, every other one freed, then pairs of sizes that
/// no two of the holes have in common: nothing fails.
fn pressure(pool: &Pool, capacity: Bytes) {
    let count = capacity.get() / 5 * 4 / (64 << 20);
    let blocks: Vec<Block> =
        (0..count).map(|_| pool.allocate(Bytes::mib(64), DEFAULT).unwrap()).collect();
    for block in blocks.iter().step_by(2) {
        pool.free(block.address(), DEFAULT).unwrap();
    }
    let mut random = Random::new(9);
    for pair in 0..500 {
        let size = Bytes::mib(random.between(1, 32));
        let block = pool.allocate(size, DEFAULT);
        let block = block.unwrap_or_else(|error| panic!("pair {pair}, {size}: {error}"));
        pool.free(block.address(), DEFAULT).unwrap();
    }
    // All that was freed and all that was never taken, at once: no hole is nearly that large.
    let live = pool.statistics().live;
    let rest = capacity.saturating_sub(live);
    let block = pool.allocate(rest, DEFAULT).unwrap_or_else(|error| panic!("the rest: {error}"));
    pool.free(block.address(), DEFAULT).unwrap();
    for block in blocks.iter().skip(1).step_by(2) {
        pool.free(block.address(), DEFAULT).unwrap();
    }
    assert_eq!(pool.statistics().live, Bytes::ZERO);
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.held(), Bytes::ZERO);
}

#[test]
fn under_pressure_nothing_fails_within_a_limit() {
    let capacity = Bytes::gib(8);
    for growth in [Growth::default(), pages_of_one_granule()] {
        let options = PoolOptions::new().growth(growth).max_bytes(capacity);
        pressure(&options.build(&device(Bytes::gib(80))).unwrap(), capacity);
    }
}

#[test]
fn under_pressure_nothing_fails_on_a_device_of_that_size() {
    let capacity = Bytes::gib(8);
    for growth in [Growth::default(), pages_of_one_granule()] {
        let pool = PoolOptions::new().growth(growth).build(&device(capacity)).unwrap();
        pressure(&pool, capacity);
    }
}

/// The last of a device is had too, though it is less than the page the pool would like.
#[test]
fn a_request_for_all_there_is_is_met() {
    for mib in [2, 30, 62, 1022, 1026, 1030, 4094] {
        let capacity = Bytes::mib(mib);
        let pool = Pool::new(&device(capacity)).unwrap();
        let block = pool.allocate(capacity, DEFAULT);
        let block = block.unwrap_or_else(|error| panic!("{mib} MiB: {error}"));
        pool.free(block.address(), DEFAULT).unwrap();
        let pool = PoolOptions::new().max_bytes(capacity).build(&device(Bytes::gib(8))).unwrap();
        pool.allocate(capacity, DEFAULT).unwrap_or_else(|error| panic!("{mib} MiB: {error}"));
    }
}

/// And so is the last of a device that others use as well.
#[test]
fn what_others_left_is_had() {
    let device = device(Bytes::gib(1));
    let first = PoolOptions::new().growth(pages_of_one_granule()).build(&device).unwrap();
    let second = Pool::new(&device).unwrap();
    first.allocate(Bytes::mib(10), DEFAULT).unwrap();
    second.allocate(Bytes::mib(1014), DEFAULT).unwrap();
    let error = second.allocate(Bytes::mib(2), DEFAULT).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
}

/// A refusal says what is in blocks: what a magazine keeps at hand is not.
#[test]
fn a_refusal_tells_what_is_live() {
    let pool = Pool::new(&device(Bytes::gib(1))).unwrap();
    let block = pool.allocate(Bytes::new(1), DEFAULT).unwrap();
    pool.free(block.address(), DEFAULT).unwrap();
    let error = pool.allocate(Bytes::new(1 << 60), DEFAULT).unwrap_err();
    let Error::OutOfMemory(told) = error else { panic!("{error}") };
    assert_eq!(told.live, Bytes::ZERO);
}

/// On a device that another pool has a page of.
#[test]
fn at_the_edge_of_a_device_what_fits_is_given() {
    for seed in 0..10 {
        let setting = Setting::large(seed);
        let program = Program::of_seed(seed, 800, setting.most);
        if let Err(failure) = try_on_sim(setting, &program) {
            panic!("{setting:?}: {failure}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    /// With pages of one granule, a request fails only where the granules that live blocks lie in
    /// leave too little.
    #[test]
    fn within_a_limit_what_fits_is_given(
        records in proptest::collection::vec(any::<Record>(), 0..300),
        seed in 0_u64..1000,
    ) {
        let phantom = Setting { memory: MemoryModel::Phantom, ..Setting::tight(seed) };
        let setting = phantom.limited_to(Bytes::mib(3));
        // Half of what there is and more: what does not lie well does not fit.
        let program = Program::of_records(&records, 2 << 20);
        if let Err(failure) = try_on_sim(setting, &program) {
            prop_assert!(false, "{}\n{:#?}", failure, program.operations);
        }
    }
}
