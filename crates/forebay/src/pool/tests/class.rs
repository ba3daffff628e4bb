//! Classes of memory keep what they promise, and a capture is left alone.

use forebay_core::DeviceOrdinal;
use forebay_hal::{PageHandle, PointerKind};

use super::*;
use crate::{Class, Request};

fn options() -> PoolOptions {
    PoolOptions::new().growth(small_pages())
}

fn calls(pool: &Pool, call: Call) -> u64 {
    pool.statistics().driver.of(call)
}

#[test]
fn a_plain_block_lies_in_one_allocation_of_the_driver() {
    let (_machine, _, device) = open(SimMachine::builder());
    let pool = options().class(Class::PLAIN).build(&device).unwrap();
    let mut random = Random::new(7);
    let mut live: Vec<Block> = Vec::new();
    for _ in 0..500 {
        if random.chance(1, 3) && !live.is_empty() {
            let block = live.swap_remove(usize::try_from(random.below(live.len() as u64)).unwrap());
            pool.free_block(block, DEFAULT).unwrap();
            continue;
        }
        let size = Bytes::new(size_up_to(&mut random, 9, 22));
        let block = pool.allocate_as(Request::new(size, DEFAULT).of_class(Class::PLAIN)).unwrap();
        let found = device.classify(block.address()).unwrap().unwrap();
        let span = Span::new(block.address(), block.size()).unwrap();
        assert_eq!(found.kind, PointerKind::Device);
        assert!(found.span.contains_span(span), "{span:?} in {:?}", found.span);
        live.push(block);
    }
    assert_eq!(calls(&pool, Call::CreatePage), 0);
}

#[test]
fn a_shareable_page_can_leave_the_process_and_another_cannot() {
    let (_machine, device, shared) = open(SimMachine::builder());
    let sharing = device.sharing().unwrap();
    for (class, leaves) in [(Class::SHAREABLE, true), (Class::STITCHED, false)] {
        let pool = options().class(class).build(&shared).unwrap();
        pool.allocate(Bytes::mib(3), DEFAULT).unwrap();
        let pages: Vec<u64> =
            pool.shared.heap().large.line.pages().map(|(_, page, _)| page).collect();
        assert!(!pages.is_empty());
        for page in pages {
            assert_eq!(sharing.export_page(PageHandle(page)).is_ok(), leaves, "{class}");
        }
    }
}

#[test]
fn who_it_is_visible_to_has_access_to_every_page() {
    let (_machine, _, device) = open(SimMachine::builder().devices(3));
    let peers = [DeviceOrdinal(1), DeviceOrdinal(2)];
    let pool = options().visible_to(peers).build(&device).unwrap();
    assert_eq!(pool.class(), Class::PEERS);
    pool.allocate(Bytes::mib(3), DEFAULT).unwrap();
    let mapped = calls(&pool, Call::Map);
    assert!(mapped > 0);
    assert_eq!(calls(&pool, Call::SetAccess), 3 * mapped);
    let beyond = options().visible_to([DeviceOrdinal(7)]).build(&device);
    assert!(matches!(beyond, Err(Error::Device(_))), "{beyond:?}");
}

/// Two holes of which a larger block could be made by moving pages: in memory that is stable it is
/// not, and nothing ever goes back.
#[test]
fn what_is_behind_a_stable_address_stays_there() {
    for (class, stays) in [(Class::STABLE, true), (Class::STITCHED, false)] {
        let (_machine, _, device) = open(SimMachine::builder());
        let pool = options().class(class).build(&device).unwrap();
        let blocks: Vec<Block> =
            (0..8).map(|_| pool.allocate(Bytes::mib(4), DEFAULT).unwrap()).collect();
        for block in blocks.iter().step_by(2) {
            pool.free_block(*block, DEFAULT).unwrap();
        }
        let made = calls(&pool, Call::CreatePage);
        let large = pool.allocate(Bytes::mib(16), DEFAULT).unwrap();
        let grew = calls(&pool, Call::CreatePage) > made;
        assert_eq!(grew, stays, "{class}: by new pages, or by those that were free");
        pool.free_block(large, DEFAULT).unwrap();
        let given = pool.trim(Bytes::ZERO).unwrap();
        assert_eq!(given.is_zero(), stays, "{class}: {given} went back");
        let undone = calls(&pool, Call::Unmap) + calls(&pool, Call::ReleasePage);
        assert_eq!(undone == 0, stays, "{class}");
    }
}

#[test]
fn a_request_of_another_class_is_refused_and_so_is_a_class_that_is_not_there() {
    let (_machine, _, device) = open(SimMachine::builder());
    let pool = options().class(Class::STABLE).build(&device).unwrap();
    let request = Request::new(Bytes::mib(1), DEFAULT);
    pool.allocate_as(request.of_class(Class::STABLE)).unwrap();
    pool.allocate_as(request).unwrap();
    let wanted = Class::PLAIN | Class::STABLE;
    let refused = pool.allocate_as(request.of_class(wanted)).unwrap_err();
    assert_eq!(refused, Error::WrongClass { wanted, offered: Class::STABLE });
    assert!(refused.to_string().contains("plain and stable"), "{refused}");
    for class in [Class::PLAIN | Class::SHAREABLE, Class::PEERS] {
        let refused = options().class(class).build(&device).unwrap_err();
        assert!(matches!(refused, Error::ClassUnavailable { .. }), "{refused}");
    }
    let (_machine, _, device) =
        open(SimMachine::builder().without(forebay_hal::Capabilities::VIRTUAL_MEMORY));
    let refused = options().class(Class::SHAREABLE).build(&device).unwrap_err();
    assert!(refused.to_string().contains("maps no pages"), "{refused}");
    options().class(Class::PLAIN).build(&device).unwrap();
}

#[test]
fn a_capture_sees_no_event_and_no_waiting() {
    let (_machine, device, shared) = open(SimMachine::builder());
    let pool = options().build(&shared).unwrap();
    let [one, two] = [(); 2].map(|()| device.create_stream(Priority::Normal).unwrap());
    let big = pool.allocate(Bytes::mib(8), one).unwrap();
    let used = pool.allocate(Bytes::mib(2), one).unwrap();
    pool.record_use(used.address(), two).unwrap();
    pool.free_block(big, one).unwrap();
    let waiting = |pool: &Pool| {
        [Call::RecordEvent, Call::WaitEvent, Call::QueryEvent, Call::SynchronizeDevice]
            .map(|call| calls(pool, call))
    };
    let (before, held) = (waiting(&pool), pool.held());
    let capture = pool.capture();
    // What one has freed would serve two after an event; now the pool grows.
    let other = pool.allocate(Bytes::mib(8), two).unwrap();
    assert!(pool.held() > held);
    pool.free_block(used, one).unwrap();
    pool.process_deferred().unwrap();
    pool.collect(Duration::ZERO).unwrap();
    assert_eq!(pool.trim(Bytes::ZERO).unwrap(), Bytes::ZERO);
    assert_eq!(waiting(&pool), before);
    drop(capture);
    pool.free_block(other, two).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.held(), Bytes::ZERO, "what was put off is done");
}
