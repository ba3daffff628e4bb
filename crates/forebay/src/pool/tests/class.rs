//! Classes of memory keep what they promise, and a capture is left alone.

use std::os::fd::AsFd;

use forebay_core::DeviceOrdinal;
use forebay_hal::PointerKind;

use super::*;
use crate::{MemoryClass, Request};

fn options() -> PoolOptions {
    PoolOptions::new().growth(small_pages())
}

fn calls(pool: &Pool, call: Call) -> u64 {
    pool.statistics().driver.of(call)
}

#[test]
fn a_plain_block_lies_in_one_allocation_of_the_driver() {
    let (_machine, _, device) = open(SimMachine::builder());
    let pool = options().class(MemoryClass::PLAIN).build(&device).unwrap();
    let mut random = Random::new(7);
    let mut live: Vec<Block> = Vec::new();
    for _ in 0..500 {
        if random.chance(1, 3) && !live.is_empty() {
            let block = live.swap_remove(usize::try_from(random.below(live.len() as u64)).unwrap());
            pool.free_block(block, DEFAULT).unwrap();
            continue;
        }
        let size = Bytes::new(size_up_to(&mut random, 9, 22));
        let block = pool
            .allocate_request(Request::new(size, DEFAULT).of_class(MemoryClass::PLAIN))
            .unwrap();
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
    for (class, leaves) in [(MemoryClass::SHAREABLE, true), (MemoryClass::STITCHED, false)] {
        let pool = options().class(class).build(&shared).unwrap();
        let block = pool.allocate(Bytes::mib(3), DEFAULT).unwrap();
        let parts = pool.pages_of(block.address()).unwrap();
        assert!(!parts.is_empty());
        for part in parts {
            assert_eq!(sharing.export_page(part.page).is_ok(), leaves, "{class}");
        }
    }
}

/// Every byte of a block is in one of its pages, and what is written there is read through a mapping of
/// the page elsewhere.
#[test]
fn the_pages_of_a_block_are_those_behind_it() {
    let (_machine, device, shared) = open(SimMachine::builder());
    let memory = device.virtual_memory().unwrap();
    let pool = options().class(MemoryClass::SHAREABLE).build(&shared).unwrap();
    assert!(pool.class().contains(MemoryClass::STABLE));
    let before = pool.allocate(Bytes::new(300 << 10), DEFAULT).unwrap();
    for size in [Bytes::new(5000), Bytes::mib(5)] {
        let block = pool.allocate(size, DEFAULT).unwrap();
        write(&device, block, 7, DEFAULT);
        device.synchronize_device().unwrap();
        let parts = pool.pages_of(block.address()).unwrap();
        let mut at = block.address();
        for part in &parts {
            assert_eq!(part.span.start(), at, "without a gap");
            at = part.span.end();
            let sharing = device.sharing().unwrap();
            let left = sharing.export_page(part.page).unwrap();
            let page = sharing.import_page(left.as_fd(), part.page_size).unwrap();
            let granule = memory.granularity().minimum.alignment();
            let region = memory.reserve(part.page_size, granule).unwrap();
            memory.map(region.start(), page).unwrap();
            let own = device.descriptor().ordinal;
            // SAFETY: the mapping was made just now, and nothing else uses it.
            unsafe { memory.set_access(region, forebay_hal::Access::ReadWrite, own) }.unwrap();
            let start = region.start().checked_add(part.offset).unwrap();
            let span = Span::new(start, part.span.size()).unwrap();
            let wrong = Arc::new(AtomicU64::new(1));
            let count = Arc::clone(&wrong);
            let kernel = Kernel::new("look").reads(span).body(move |memory| {
                let bytes = memory.read(span).unwrap();
                let other = bytes.iter().filter(|&&byte| byte != 7).count();
                count.store(other as u64, Ordering::Relaxed);
            });
            // SAFETY: the mapping stands until the device was waited for.
            unsafe { device.launch(kernel, DEFAULT) }.unwrap();
            device.synchronize_device().unwrap();
            assert_eq!(wrong.load(Ordering::Relaxed), 0);
            // SAFETY: all work is over.
            unsafe { memory.unmap(region) }.unwrap();
            memory.release_page(page).unwrap();
            // SAFETY: nothing is mapped there any more.
            unsafe { memory.release_region(region.start()) }.unwrap();
        }
        assert_eq!(at.offset_from(block.address()), Some(block.size()));
        pool.free_block(block, DEFAULT).unwrap();
        let gone = pool.pages_of(block.address()).unwrap_err();
        assert!(matches!(gone, Error::DoubleFree { .. }), "{gone}");
    }
    pool.free_block(before, DEFAULT).unwrap();
    let plain = options().class(MemoryClass::PLAIN).build(&shared).unwrap();
    let block = plain.allocate(Bytes::mib(1), DEFAULT).unwrap();
    assert_eq!(plain.pages_of(block.address()).unwrap(), [], "no pages");
    let guarded = options().set(|set| set.guard_pages(true)).build(&shared).unwrap();
    let block = guarded.allocate(Bytes::new(5000), DEFAULT).unwrap();
    let [part] = guarded.pages_of(block.address()).unwrap()[..] else { panic!("pages of its own") };
    assert_eq!((part.span.start(), part.span.size()), (block.address(), block.size()));
}

/// A class said twice is the last one; who it is visible to stays.
#[test]
fn the_class_said_last_is_the_class() {
    let (_machine, _, device) = open(SimMachine::builder().devices(2));
    let options = options()
        .visible_to([DeviceOrdinal(1)])
        .class(MemoryClass::PLAIN)
        .class(MemoryClass::STABLE);
    let shown = format!("{options:?}");
    assert!(shown.contains("class") && shown.contains("peers: [DeviceOrdinal(1)]"), "{shown}");
    let pool = options.build(&device).unwrap();
    assert_eq!(pool.class(), MemoryClass::PEERS | MemoryClass::STABLE);
}

#[test]
fn who_it_is_visible_to_has_access_to_every_page() {
    let (_machine, _, device) = open(SimMachine::builder().devices(3));
    let peers = [DeviceOrdinal(1), DeviceOrdinal(2)];
    let pool = options().visible_to(peers).build(&device).unwrap();
    assert_eq!(pool.class(), MemoryClass::PEERS);
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
    for (class, stays) in [(MemoryClass::STABLE, true), (MemoryClass::STITCHED, false)] {
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
    let pool = options().class(MemoryClass::STABLE).build(&device).unwrap();
    let request = Request::new(Bytes::mib(1), DEFAULT);
    pool.allocate_request(request.of_class(MemoryClass::STABLE)).unwrap();
    pool.allocate_request(request).unwrap();
    let wanted = MemoryClass::PLAIN | MemoryClass::STABLE;
    let refused = pool.allocate_request(request.of_class(wanted)).unwrap_err();
    assert_eq!(refused, Error::WrongClass { wanted, offered: MemoryClass::STABLE });
    assert!(refused.to_string().contains("plain and stable"), "{refused}");
    for class in [MemoryClass::PLAIN | MemoryClass::SHAREABLE, MemoryClass::PEERS] {
        let refused = options().class(class).build(&device).unwrap_err();
        assert!(matches!(refused, Error::ClassUnavailable { .. }), "{refused}");
    }
    let (_machine, _, device) =
        open(SimMachine::builder().without(forebay_hal::Capabilities::VIRTUAL_MEMORY));
    let refused = options().class(MemoryClass::SHAREABLE).build(&device).unwrap_err();
    assert!(refused.to_string().contains("maps no pages"), "{refused}");
    options().class(MemoryClass::PLAIN).build(&device).unwrap();
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
    let capture = pool.capture().unwrap();
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
