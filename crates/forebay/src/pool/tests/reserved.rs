//! What is made for a request is that request's, before any other can see it. The test is the other one, at a moment that
//! is named.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_hal::Capabilities;

use super::*;
use crate::pool::common::step::{Step, stepping};
use crate::pool::heap::Piece;

/// A device, and a pool whose pages are 2 MiB.
fn pool_of(max_bytes: Bytes, moves: bool) -> (SimMachine, Arc<SimDevice>, Pool) {
    let (machine, device, shared) = open(SimMachine::builder().capacity(Bytes::gib(1)));
    let mut growth = small_pages();
    growth.moves = moves;
    let options = PoolOptions::new().growth(growth).max_bytes(max_bytes);
    let pool = options.set(|set| set.magazines(false)).build(&shared).unwrap();
    (machine, device, pool)
}

/// Allocates from a hole of the large side as another request does, and frees it again. Returns whether there was one.
fn could_take(pool: &Pool, size: Bytes) -> bool {
    let piece = Piece::new(size, Alignment::BLOCK).unwrap();
    let mut heap = pool.shared.heap();
    let slot = heap.slot_for(DEFAULT);
    let found = heap.allocate(piece, slot);
    found.into_iter().for_each(|address| heap.free(address, size, slot));
    found.is_some()
}

/// A request grows beside a hole that it needs a part of, with new pages or with moved ones: no other request gets that part
/// while the driver works, and none of the pages.
#[test]
fn a_growth_keeps_the_hole_that_it_extends() {
    for moves in [false, true] {
        let (machine, device, pool) = pool_of(Bytes::mib(64), moves);
        let [first, second, third] =
            [2, 3, 3].map(|mib| pool.allocate(Bytes::mib(mib), DEFAULT).unwrap());
        assert_eq!(pool.held(), Bytes::mib(8));
        // Two holes: the first page, and 3 MiB at the end.
        pool.free_block(first, DEFAULT).unwrap();
        pool.free_block(third, DEFAULT).unwrap();
        let (other, could) = (pool.clone(), Rc::new(Cell::new(None)));
        let seen = Rc::clone(&could);
        let hook = move |step| {
            if step == Step::Claimed {
                assert!(!could_take(&other, Bytes::mib(3)), "the hole that the request needs");
                seen.set(Some([2, 1].map(|mib| could_take(&other, Bytes::mib(mib)))));
            }
        };
        let block = stepping(hook, || pool.allocate(Bytes::mib(4), DEFAULT).unwrap());
        let could = could.take().expect("the pool did not grow");
        // If it moves to the end, nothing is left of the first page.
        assert_eq!(could, [!moves, !moves]);
        assert_eq!(block.address().offset_from(second.address()), Some(Bytes::mib(3)));
        pool.free_block(block, DEFAULT).unwrap();
        pool.free_block(second, DEFAULT).unwrap();
        device.synchronize_device().unwrap();
        assert_eq!(machine.finding_count(), 0);
    }
}

/// The driver fails half way: the hole and the pages are where they were.
#[test]
fn a_growth_that_fails_gives_back_what_it_claimed() {
    for call in [Call::CreatePage, Call::Map, Call::SetAccess] {
        let (machine, _device, pool) = pool_of(Bytes::mib(64), true);
        let [first, second] = [2, 3].map(|mib| pool.allocate(Bytes::mib(mib), DEFAULT).unwrap());
        pool.free_block(first, DEFAULT).unwrap();
        let before = (pool.statistics().free, pool.held(), pool.page_count());
        let at = machine.calls().of(call) + 2;
        machine.plan(Fault::new(When::Kind(call, at), FaultKind::Transient));
        pool.allocate(Bytes::mib(8), DEFAULT).unwrap_err();
        machine.clear_faults();
        pool.process_deferred().unwrap();
        assert_eq!((pool.statistics().free, pool.held(), pool.page_count()), before, "{call:?}");
        assert!(could_take(&pool, Bytes::mib(2)) && could_take(&pool, Bytes::mib(1)));
        let block = pool.allocate(Bytes::mib(8), DEFAULT).unwrap();
        pool.free_block(block, DEFAULT).unwrap();
        pool.free_block(second, DEFAULT).unwrap();
        pool.trim(Bytes::ZERO).unwrap();
        assert_eq!(machine.census().held, Bytes::ZERO, "{call:?}");
    }
}

/// Between the parts of a large claim, another request takes a page that was to move. The claim is made anew, as a whole.
#[test]
fn a_page_that_is_taken_during_a_claim_does_not_move() {
    let limit = Bytes::mib(32);
    let (machine, device, pool) = pool_of(limit, true);
    let page = Bytes::mib(2);
    let blocks: Vec<_> = (0..16).map(|_| pool.allocate(page, DEFAULT).unwrap()).collect();
    blocks.iter().step_by(2).for_each(|&block| pool.free_block(block, DEFAULT).unwrap());
    let (other, parts) = (pool.clone(), Rc::new(RefCell::new(Vec::new())));
    let seen = Rc::clone(&parts);
    let hook = move |step| {
        if step == Step::ClaimedPart {
            seen.borrow_mut().push(other.allocate(page, DEFAULT).unwrap());
        }
    };
    let block = stepping(hook, || pool.allocate(Bytes::mib(10), DEFAULT).unwrap());
    let parts = parts.take();
    let addresses: Vec<_> = parts.iter().map(|part| part.address()).collect();
    assert_eq!(addresses, [blocks[4].address()], "the lowest that was left, and the next to move");
    assert_eq!((pool.held(), pool.statistics().live), (limit, Bytes::mib(16 + 2 + 10)));
    let rest = blocks.iter().copied().skip(1).step_by(2);
    rest.chain(parts).chain([block]).for_each(|block| pool.free_block(block, DEFAULT).unwrap());
    device.synchronize_device().unwrap();
    assert_eq!(machine.finding_count(), 0);
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(machine.census().held, Bytes::ZERO);
}

/// A request releases segments to get one that is large enough: another pool under the same limit does not get the room
/// that came of it.
#[test]
fn what_a_request_releases_is_room_for_it_alone() {
    let segments = SimMachine::builder().capacity(Bytes::gib(1));
    let (machine, _, shared) = open(segments.without(Capabilities::VIRTUAL_MEMORY));
    let limit = Bytes::mib(64);
    let pool = PoolOptions::new().max_bytes(limit).build(&shared).unwrap();
    let other = PoolOptions::new().sharing_limit_with(&pool).build(&shared).unwrap();
    let held = [(); 2].map(|()| pool.allocate(Bytes::mib(32), DEFAULT).unwrap());
    held.iter().for_each(|&block| pool.free_block(block, DEFAULT).unwrap());
    assert_eq!(pool.held(), limit);
    let looks = Rc::new(Cell::new(0));
    let (seen, thief) = (Rc::clone(&looks), other.clone());
    let hook = move |step| {
        if step == Step::Looking {
            seen.set(seen.get() + 1);
            thief.allocate(Bytes::mib(16), DEFAULT).unwrap_err();
        }
    };
    let block = stepping(hook, || pool.allocate(Bytes::mib(48), DEFAULT).unwrap());
    assert!(looks.get() >= 2, "it was served before it released anything");
    // What is left over is for everyone.
    let rest = other.allocate(Bytes::mib(16), DEFAULT).unwrap();
    other.free_block(rest, DEFAULT).unwrap();
    pool.free_block(block, DEFAULT).unwrap();
    drop((pool, other));
    assert_eq!(machine.census().held, Bytes::ZERO);
}

/// Another request of the same pool gets neither that room nor what is still on its way to the device.
#[test]
fn what_a_request_releases_no_other_of_its_pool_gets() {
    let segments = SimMachine::builder().capacity(Bytes::gib(1));
    let (machine, _, shared) = open(segments.without(Capabilities::VIRTUAL_MEMORY));
    let pool = PoolOptions::new().max_bytes(Bytes::mib(64)).build(&shared).unwrap();
    let held = [(); 2].map(|()| pool.allocate(Bytes::mib(32), DEFAULT).unwrap());
    held.iter().for_each(|&block| pool.free_block(block, DEFAULT).unwrap());
    let refused = Rc::new(Cell::new(0));
    let (seen, thief) = (Rc::clone(&refused), pool.clone());
    let hook = move |step| {
        let size = Bytes::mib(16);
        // Before the request has begun to release, the holes are there for all.
        if !matches!(step, Step::Looking | Step::Settling) || could_take(&thief, size) {
            return;
        }
        thief.set("max_wait", "0s").unwrap();
        thief.allocate(size, DEFAULT).unwrap_err();
        thief.set("max_wait", "30s").unwrap();
        seen.set(seen.get() + 1);
    };
    let block = stepping(hook, || pool.allocate(Bytes::mib(48), DEFAULT).unwrap());
    assert!(refused.get() >= 2, "once the memory is on its way, and once it is room");
    pool.free_block(block, DEFAULT).unwrap();
    drop(pool);
    assert_eq!(machine.census().held, Bytes::ZERO);
}
