//! What a call may not cost where there is much that it does not concern: counted, not timed.

use core::cell::Cell;
use std::sync::mpsc;

use forebay_core::address_space::Streams;
use forebay_hal::Stream;

use super::*;
use crate::pool::calls::stream_end;
use crate::pool::heap::stream_slots::StreamSlots;

/// The end of a stream asks nothing of a pool that has not seen it: it does not even wait for its locks.
#[test]
fn a_stream_ends_beside_a_pool_that_never_saw_it() {
    let (_, _, device) = open(SimMachine::builder().capacity(Bytes::mib(64)));
    let (busy, used) = (Pool::new(&device).unwrap(), Pool::new(&device).unwrap());
    let stream = Stream::new(&device, Priority::Normal).unwrap();
    let handle = stream.handle();
    let block = used.allocate(Bytes::new(512), handle).unwrap();
    used.free_block(block, handle).unwrap();
    assert!(
        stream_end::knows_stream(&used.shared, handle)
            && !stream_end::knows_stream(&busy.shared, handle)
    );
    let (over, is_over) = mpsc::channel();
    let heap = busy.shared.heap();
    std::thread::spawn(move || {
        drop(stream);
        over.send(()).unwrap();
    });
    is_over.recv_timeout(Duration::from_secs(20)).unwrap();
    drop(heap);
    assert!(
        !stream_end::knows_stream(&used.shared, handle),
        "the one that saw it has forgotten it"
    );
}

/// A stream that a pool knows by a cache alone, from a free, is forgotten too.
#[test]
fn a_stream_on_which_blocks_were_only_freed_is_forgotten() {
    let (_, _, device) = open(SimMachine::builder().capacity(Bytes::mib(64)));
    let pool = Pool::new(&device).unwrap();
    let stream = Stream::new(&device, Priority::Normal).unwrap();
    let handle = stream.handle();
    let block = pool.allocate(Bytes::new(512), DEFAULT).unwrap();
    pool.free_block(block, handle).unwrap();
    assert!(stream_end::knows_stream(&pool.shared, handle));
    drop(stream);
    assert!(!stream_end::knows_stream(&pool.shared, handle));
}

/// With more streams than slots, each new one takes over another's slot. It does not look at all of them for that.
#[test]
fn a_takeover_of_a_slot_looks_at_few_slots() {
    let mut slots = StreamSlots::default();
    let stream = |number: u64| StreamHandle(0x7f00_0000_0000 + 64 * number);
    let most = u64::from(Streams::MAX) - 2;
    (0..most).for_each(|number| assert!(slots.assign_slot(stream(number)).is_some()));
    let (asked, takeovers) = (Cell::new(0), 5_000);
    for number in most..most + takeovers {
        assert_eq!(slots.assign_slot(stream(number)), None);
        let victim = slots.victim(|_| {
            asked.set(asked.get() + 1);
            false
        });
        let _ = slots.end_without_event(victim.unwrap());
        slots.assign_slot(stream(number)).unwrap();
        assert!(!slots.knows(stream(number - most)), "the least recently used one goes");
    }
    assert!(asked.get() < 4 * takeovers, "{} looks for {takeovers} takeovers", asked.get());
}

/// Statistics count every call once, whether a thread did something since the last ones or not.
#[test]
fn statistics_again_and_again_count_every_call_once() {
    let (_, _, device) = open(SimMachine::builder().capacity(Bytes::mib(64)));
    let pool = Pool::new(&device).unwrap();
    let allocate = |kib| pool.allocate(Bytes::kib(kib), DEFAULT).unwrap();
    let others: Vec<Block> = std::thread::scope(|scope| {
        let thread = scope.spawn(|| (1..=20).map(allocate).collect());
        thread.join().unwrap()
    });
    for (freed, block) in (0_u64..).zip(others) {
        let figures = pool.statistics();
        let counts = (figures.allocations, figures.frees, figures.blocks);
        assert_eq!(counts, (20 + freed, 2 * freed, 20 - freed));
        assert_eq!(figures, pool.statistics(), "nothing happened in between");
        assert_eq!(figures.live.saturating_add(figures.free), figures.held);
        pool.free_block(block, DEFAULT).unwrap();
        // From the magazine, and back into it.
        let again = pool.allocate(block.size(), DEFAULT).unwrap();
        pool.free_block(again, DEFAULT).unwrap();
        let cached = pool.statistics().cached;
        assert!(cached >= block.size(), "{cached}");
    }
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.statistics().cached, Bytes::ZERO);
}

/// The pages of a large growth enter the address space in batches, and are one growth all the same.
#[test]
fn a_growth_in_several_batches_is_one() {
    let simulated = SimMachine::builder().memory(MemoryModel::Phantom).capacity(Bytes::gib(16));
    let (machine, _, shared) = open(simulated);
    let pool = Pool::new(&shared).unwrap();
    pool.set("largest_page", "2MiB").unwrap();
    let block = pool.allocate(Bytes::gib(5), DEFAULT).unwrap();
    let figures = pool.statistics();
    assert_eq!((figures.large.pages, figures.live), (2560, Bytes::gib(5)));
    assert_eq!(
        pool.shared.heap().spaces.of(crate::sync::map::Side::Large).page_table().segments().len(),
        1
    );
    pool.free_block(block, DEFAULT).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    // What was reserved of the limit for the growth is given up.
    let again = pool.allocate(Bytes::gib(15), DEFAULT).unwrap();
    pool.free_block(again, DEFAULT).unwrap();
    drop(pool);
    assert_eq!(machine.census().held, Bytes::ZERO);
}
