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
    let Error::OutOfMemory(shortage) = error else { panic!("{error}") };
    assert_eq!(shortage.live, Bytes::ZERO);
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

/// A trim to more than is held releases nothing itself, but the pressure that it reads does.
#[test]
fn what_pressure_releases_after_a_trim_is_counted() {
    let records: Vec<Record> = vec![
        [0, 0, 0, 0, 0, 0, 0, 0],
        [118, 0, 0, 0, 0, 0, 0, 0],
        [0, 2, 0, 64, 0, 0, 0, 0],
        [0, 47, 0, 128, 0, 0, 0, 0],
        [0, 1, 27, 147, 72, 65, 95, 41],
        [98, 223, 13, 149, 27, 140, 72, 189],
        [97, 243, 14, 49, 102, 116, 41, 185],
        [53, 150, 224, 210, 21, 248, 169, 91],
        [182, 178, 46, 247, 4, 250, 219, 130],
        [209, 41, 2, 203, 17, 39, 128, 138],
        [12, 179, 0, 36, 169, 19, 91, 195],
        [159, 41, 68, 130, 151, 18, 174, 236],
        [197, 8, 122, 1, 32, 198, 212, 17],
        [41, 229, 105, 182, 152, 73, 198, 67],
        [190, 223, 86, 235, 140, 37, 90, 123],
        [68, 25, 42, 88, 202, 27, 160, 169],
        [110, 170, 209, 178, 216, 174, 126, 129],
        [22, 129, 196, 206, 59, 220, 74, 168],
        [20, 70, 174, 154, 106, 34, 202, 116],
        [95, 153, 117, 120, 1, 70, 136, 41],
        [48, 12, 104, 235, 194, 82, 88, 200],
        [193, 208, 238, 209, 248, 125, 155, 90],
        [117, 101, 151, 246, 117, 187, 79, 253],
        [175, 3, 156, 253, 244, 223, 27, 237],
        [178, 179, 103, 255, 248, 13, 71, 113],
        [193, 213, 214, 188, 65, 19, 247, 209],
        [180, 247, 7, 16, 78, 222, 249, 245],
        [146, 229, 129, 183, 58, 89, 160, 133],
        [48, 33, 88, 219, 61, 74, 221, 96],
        [241, 78, 203, 150, 104, 136, 203, 199],
        [46, 64, 77, 140, 101, 209, 127, 183],
        [0, 95, 202, 96, 32, 221, 9, 143],
        [27, 205, 155, 92, 72, 6, 12, 248],
        [0, 37, 41, 197, 115, 222, 167, 174],
        [52, 249, 72, 240, 125, 207, 216, 206],
        [54, 253, 7, 124, 117, 215, 215, 251],
        [144, 155, 171, 158, 33, 176, 33, 101],
        [95, 249, 11, 71, 136, 214, 195, 217],
        [71, 22, 79, 10, 113, 154, 158, 86],
        [71, 18, 2, 142, 234, 164, 146, 96],
        [241, 45, 239, 208, 104, 57, 98, 165],
    ];
    let phantom = Setting { memory: MemoryModel::Phantom, ..Setting::tight(158) };
    let setting = phantom.limited_to(Bytes::mib(3));
    let program = Program::of_records(&records, 2 << 20);
    if let Err(failure) = try_on_sim(setting, &program) {
        panic!("{failure}");
    }
}
