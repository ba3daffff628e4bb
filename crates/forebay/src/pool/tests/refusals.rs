//! Devices that refuse to take something back: it is kept, counted and tried again, and keeps nothing
//! else from going.

use forebay_hal::Capabilities;

use super::*;
use crate::config::Zeroing;

/// The next call of a kind fails.
fn refuse_next(machine: &SimMachine, call: Call) {
    let next = machine.calls().of(call) + 1;
    machine.plan(Fault::new(When::Kind(call, next), FaultKind::Transient));
}

/// Four free pages of 64 KiB.
fn four_pages(device: &Arc<dyn Device>) -> Pool {
    let pool = PoolOptions::new().growth(small_pages()).build(device).unwrap();
    let block = pool.allocate(Bytes::new(1 << 20), DEFAULT).unwrap();
    pool.free_block(block, DEFAULT).unwrap();
    pool
}

fn page_machine() -> SimOptions {
    SimMachine::builder().granularity(PageSize::HOST)
}

#[test]
fn a_page_that_cannot_be_unmapped_keeps_no_other_from_going() {
    let (machine, _, device) = open(page_machine());
    let pool = four_pages(&device);
    let held = pool.held();
    refuse_next(&machine, Call::Unmap);
    pool.trim(Bytes::ZERO).unwrap_err();
    assert!(!pool.held().is_zero());
    assert!(pool.held() <= Bytes::new(64 << 10), "{} of {held} is still held", pool.held());
    assert_eq!(pool.trim(Bytes::ZERO).unwrap(), Bytes::new(64 << 10));
    assert_eq!(machine.census().held, Bytes::ZERO);
}

#[test]
fn a_page_that_is_not_taken_back_keeps_no_other_from_going() {
    let (machine, _, device) = open(page_machine());
    let pool = four_pages(&device);
    let next = machine.calls().of(Call::ReleasePage);
    for number in 1..=3 {
        let when = When::Kind(Call::ReleasePage, next + number);
        machine.plan(Fault::new(when, FaultKind::Transient));
    }
    let _ = pool.trim(Bytes::ZERO);
    assert_eq!(pool.held(), machine.census().held, "what the device has not is counted");
    pool.process_deferred().unwrap();
    assert_eq!((pool.held(), machine.census().held), (Bytes::ZERO, Bytes::ZERO));
}

/// A stranded mapping does not keep the pages of others.
#[test]
fn an_old_mapping_that_stands_keeps_no_page_from_going() {
    let (machine, device, shared) = open(page_machine());
    let pool = PoolOptions::new().growth(small_pages()).build(&shared).unwrap();
    let blocks: Vec<Block> =
        (0..8).map(|_| pool.allocate(Bytes::mib(1), DEFAULT).unwrap()).collect();
    for block in blocks.iter().step_by(2) {
        pool.free_block(*block, DEFAULT).unwrap();
    }
    // Of the pages between the others: their old mappings are to go.
    let large = pool.allocate(Bytes::mib(4), DEFAULT).unwrap();
    pool.free_block(large, DEFAULT).unwrap();
    device.synchronize_device().unwrap();
    pool.collect(Duration::ZERO).unwrap();
    let large = pool.allocate(Bytes::mib(5), DEFAULT).unwrap();
    pool.free_block(large, DEFAULT).unwrap();
    device.synchronize_device().unwrap();
    pool.collect(Duration::ZERO).unwrap();
    let large = pool.allocate(Bytes::mib(5), DEFAULT).unwrap();
    pool.free_block(large, DEFAULT).unwrap();
    pool.shared.heap().window_peak = Bytes::ZERO;
    device.synchronize_device().unwrap();
    refuse_next(&machine, Call::Unmap);
    let _ = pool.collect(Duration::ZERO);
    device.synchronize_device().unwrap();
    // Some at a time.
    for _ in 0..10 {
        pool.process_deferred().unwrap();
    }
    let left = pool.held().saturating_sub(Bytes::mib(4));
    assert!(left <= Bytes::new(64 << 10), "{left} beside what is in blocks");
    for block in blocks.iter().skip(1).step_by(2) {
        pool.free_block(*block, DEFAULT).unwrap();
    }
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(machine.census().held, Bytes::ZERO);
}

#[test]
fn a_segment_that_the_device_would_not_take_back_is_counted_and_goes_later() {
    let (machine, _, device) = open(SimMachine::builder().without(Capabilities::VIRTUAL_MEMORY));
    let pool = PoolOptions::new().set(|set| set.zero(Zeroing::Pages)).build(&device).unwrap();
    refuse_next(&machine, Call::Fill);
    refuse_next(&machine, Call::Free);
    pool.allocate(Bytes::mib(3), DEFAULT).unwrap_err();
    assert!(!pool.held().is_zero());
    assert_eq!(pool.held(), machine.census().held);
    pool.process_deferred().unwrap();
    assert_eq!((pool.held(), machine.census().held), (Bytes::ZERO, Bytes::ZERO));
    let block = pool.allocate(Bytes::mib(3), DEFAULT).unwrap();
    refuse_next(&machine, Call::Fill);
    refuse_next(&machine, Call::Free);
    pool.allocate(Bytes::mib(30), DEFAULT).unwrap_err();
    pool.free_block(block, DEFAULT).unwrap();
    drop(pool);
    nothing_is_left(&machine);
}

/// A device that waits for all its work before it takes memory back: what is said not to wait gives it
/// nothing, and what may wait does so as long as it may, before it gives.
#[test]
fn a_device_that_waits_gets_segments_only_from_who_may_wait() {
    let without = Capabilities::VIRTUAL_MEMORY | Capabilities::PROMPT_FREE;
    let (machine, _, device) = open(SimMachine::builder().without(without));
    let pool = PoolOptions::new().build(&device).unwrap();
    let block = pool.allocate(Bytes::mib(30), DEFAULT).unwrap();
    pool.free_block(block, DEFAULT).unwrap();
    pool.collect(core::time::Duration::ZERO).unwrap();
    device.synchronize_device().unwrap();
    pool.collect(core::time::Duration::ZERO).unwrap();
    pool.process_deferred().unwrap();
    let frees = |machine: &SimMachine| machine.calls().of(Call::Free);
    assert_eq!(frees(&machine), 0, "nothing that does not wait gives memory back");
    assert_eq!(pool.held(), machine.census().held);
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!((pool.held(), machine.census().held), (Bytes::ZERO, Bytes::ZERO));
    assert!(frees(&machine) > 0);
}
