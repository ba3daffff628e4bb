//! Mistakes planted one by one.

use forebay_core::{Address, Bytes};
use forebay_hal::{Call, Capabilities, Priority, Streams};
use forebay_sim::SimMachine;

use super::{DEFAULT, Stage, part, span, span_of};
use crate::config::{Counting, Zeroing};
use crate::sync::map::UNIT_SHIFT;
use crate::{Error, PoolOptions, Tag};

const CANARY: u64 = 1 << UNIT_SHIFT;

#[test]
fn a_write_past_the_end_is_found_when_the_block_is_freed() {
    for offset in [0, 3, 511] {
        let stage = Stage::with(|settings| settings.canaries(true));
        let block = stage.pool.allocate(Bytes::new(1000), DEFAULT).unwrap();
        assert_eq!(block.size(), Bytes::new(1024), "the canary is not the program's");
        stage.write(span_of(block), 1, DEFAULT);
        let at = block.address().checked_add(Bytes::new(1024 + offset)).unwrap();
        // Not what the canary has there.
        let byte = if stage.count_other(span(at, 1), 7, DEFAULT) == 1 { 7 } else { 8 };
        stage.write(span(at, 1), byte, DEFAULT);
        let error = stage.pool.free(block.address(), DEFAULT).unwrap_err();
        let Error::Overrun { address, size, written, expected, found } = error else {
            panic!("{error}")
        };
        assert_eq!((address, size, written), (block.address(), block.size(), at));
        assert!(found == byte && expected != byte, "{expected} {found}");
        // It is free, and is never allocated again.
        let again = stage.pool.free(block.address(), DEFAULT).unwrap_err();
        assert!(matches!(again, Error::DoubleFree { .. }), "{again}");
        let figures = stage.pool.statistics();
        assert_eq!((figures.blocks, figures.live), (0, Bytes::ZERO));
        assert_eq!(figures.retired, Bytes::new(1024 + CANARY));
        let next = stage.pool.allocate(Bytes::new(1000), DEFAULT).unwrap();
        assert!(!span_of(next).overlaps(span(block.address(), 1024 + CANARY)));
        stage.pool.free(next.address(), DEFAULT).unwrap();
        assert_eq!(stage.pool.findings(), [error]);
    }
}

#[test]
fn an_overrun_into_the_neighbour_is_told_by_name() {
    let stage = Stage::with(|settings| settings.canaries(true));
    let block = stage.pool.allocate(Bytes::new(512), DEFAULT).unwrap();
    stage.write(part(block, 0, 520), 9, DEFAULT);
    let error = stage.pool.free(block.address(), DEFAULT).unwrap_err();
    assert!(error.is_finding());
    let text = error.to_string();
    assert!(text.contains("past the end of the block of 512 B at"), "{text}");
    assert!(text.contains("found 0x09"), "{text}");
}

#[test]
fn live_blocks_can_be_looked_at_any_time() {
    let stage = Stage::with(|settings| settings.canaries(true));
    let other = stage.device.create_stream(Priority::Normal).unwrap();
    let blocks = [DEFAULT, other, DEFAULT].map(|stream| {
        let block = stage.pool.allocate(Bytes::new(3000), stream).unwrap();
        stage.write(span_of(block), 1, stream);
        (block, stream)
    });
    stage.pool.check().unwrap();
    let (wrong, stream) = blocks[1];
    stage.write(part(wrong, 3072, 8), 9, stream);
    for _ in 0..2 {
        let error = stage.pool.check().unwrap_err();
        assert!(matches!(error, Error::Overrun { address, .. } if address == wrong.address()));
    }
    assert_eq!(stage.pool.findings().len(), 1);
    assert_eq!(stage.pool.statistics().blocks, 3);
    for (block, stream) in blocks {
        let freed = stage.pool.free(block.address(), stream);
        assert_eq!(freed.is_err(), block == wrong);
    }
    assert_eq!(stage.machine.findings(), []);
}

#[test]
fn a_write_after_a_free_is_found_when_the_memory_is_given_out() {
    // The second is read back in several chunks.
    for (size, offset) in [(1000, 100), (9 << 20, 5 << 20)] {
        let stage = Stage::with(|settings| settings.poison(true));
        let stream = stage.device.create_stream(Priority::Normal).unwrap();
        let tag = Tag::named("written after");
        let block = {
            let _scope = tag.enter();
            stage.pool.allocate(Bytes::new(size), stream).unwrap()
        };
        stage.write(span_of(block), 1, stream);
        stage.pool.free(block.address(), stream).unwrap();
        stage.write(part(block, offset, 1), 2, stream);
        let error = stage.pool.allocate(Bytes::new(size), stream).unwrap_err();
        let Error::WrittenAfterFree { written, expected, found, block: Some(former) } = error
        else {
            panic!("{error}")
        };
        assert_eq!((written, expected, found), (part(block, offset, 1).start(), 0xDB, 2));
        assert_eq!((former.address, former.size), (block.address(), block.size()));
        assert_eq!((former.requested, former.tag), (Bytes::new(size), tag));
        assert_eq!(former.stream, stream);
        assert!(error.to_string().contains("tag written after, that was freed on"), "{error}");
        // The program goes on, elsewhere.
        let next = stage.pool.allocate(Bytes::new(size), stream).unwrap();
        assert!(!span_of(next).overlaps(span_of(block)));
        stage.pool.free(next.address(), stream).unwrap();
        assert_eq!(stage.pool.statistics().retired, block.size());
        assert_eq!(stage.machine.findings(), []);
    }
}

#[test]
fn what_was_never_written_shows() {
    let fresh = |zero, poison| {
        let options = PoolOptions::new().set(|settings| settings.zero(zero).poison(poison));
        let stage = Stage::new(SimMachine::builder(), options);
        // Twice: from new pages, and after someone else.
        [(); 2].map(|()| {
            let block = stage.pool.allocate(Bytes::new(5000), DEFAULT).unwrap();
            let [zero, pattern] =
                [0, 0xCB].map(|byte| stage.count_other(span_of(block), byte, DEFAULT) == 0);
            stage.write(span_of(block), 9, DEFAULT);
            stage.pool.free(block.address(), DEFAULT).unwrap();
            (zero, pattern)
        })
    };
    assert_eq!(fresh(Zeroing::Never, true), [(false, true); 2]);
    assert_eq!(fresh(Zeroing::Blocks, false), [(true, false); 2]);
    assert_eq!(fresh(Zeroing::Blocks, true), [(true, false); 2]);
    assert_eq!(fresh(Zeroing::Pages, true), [(true, false); 2]);
    let [first, second] = fresh(Zeroing::Pages, false);
    assert_eq!((first, second), ((true, false), (false, false)), "a used page is as it was left");
}

/// Simulated pages are zero when they come, so that they were zeroed shows in the calls alone; that it
/// happened in the right order is for the checker to say.
#[test]
fn every_new_page_is_zeroed_once_before_its_first_use() {
    for without in [Capabilities::empty(), Capabilities::VIRTUAL_MEMORY] {
        let options = PoolOptions::new().set(|settings| settings.zero(Zeroing::Pages));
        let stage = Stage::new(SimMachine::builder().without(without), options);
        let other = stage.device.create_stream(Priority::Normal).unwrap();
        for stream in [DEFAULT, other] {
            for size in [700, 300 << 10, 5 << 20] {
                let block = stage.pool.allocate(Bytes::new(size), stream).unwrap();
                stage.write(span_of(block), 1, stream);
            }
        }
        let figures = stage.pool.statistics();
        let fills = figures.driver.entries().filter(|&(call, ..)| call == Call::Fill);
        let filled: u64 = fills.map(|(_, size, count)| size.get() * count).sum();
        assert_eq!(filled, figures.held.get());
        stage.assert_no_findings();
    }
}

#[test]
fn a_quarantined_block_is_not_given_out_and_is_looked_at_when_it_leaves() {
    let stage = Stage::with(|settings| settings.poison(true).quarantine(Bytes::new(4096)));
    let pool = &stage.pool;
    let size = Bytes::new(1024);
    let take = || pool.allocate(size, DEFAULT).unwrap();
    let blocks = [(); 6].map(|()| take());
    for block in &blocks[..4] {
        pool.free(block.address(), DEFAULT).unwrap();
    }
    assert_eq!(pool.statistics().quarantined, Bytes::new(4096));
    let next = take();
    assert!(blocks.iter().all(|block| block.address() != next.address()));
    stage.write(part(blocks[0], 17, 2), 3, DEFAULT);
    stage.write(part(blocks[1], 1023, 1), 4, DEFAULT);
    // The fifth drives the first out, and is freed all the same.
    let error = pool.free(blocks[4].address(), DEFAULT).unwrap_err();
    let Error::WrittenAfterFree { written, found: 3, block: Some(former), .. } = error else {
        panic!("{error}")
    };
    assert_eq!(written.offset_from(former.address), Some(Bytes::new(17)));
    assert_eq!(former.address, blocks[0].address());
    assert!(matches!(pool.free(blocks[4].address(), DEFAULT), Err(Error::DoubleFree { .. })));
    // The second is found by looking; then all is well.
    let error = pool.check().unwrap_err();
    assert!(matches!(error, Error::WrittenAfterFree { found: 4, .. }), "{error}");
    pool.check().unwrap();
    assert_eq!(pool.statistics().retired, Bytes::new(2048));
    pool.free(blocks[5].address(), DEFAULT).unwrap();
    pool.free(next.address(), DEFAULT).unwrap();
    assert_eq!(pool.findings().len(), 2);
    assert_eq!(stage.machine.findings(), []);
}

#[test]
fn a_quarantine_is_bounded_and_can_change() {
    let stage = Stage::with(|settings| settings.quarantine(Bytes::mib(1)));
    let pool = &stage.pool;
    let block = pool.allocate(Bytes::mib(2), DEFAULT).unwrap();
    pool.free(block.address(), DEFAULT).unwrap();
    assert_eq!(pool.statistics().quarantined, Bytes::ZERO, "larger than all of it");
    for _ in 0..100 {
        let block = pool.allocate(Bytes::new(100 << 10), DEFAULT).unwrap();
        pool.free(block.address(), DEFAULT).unwrap();
        assert!(pool.statistics().quarantined <= Bytes::mib(1));
    }
    assert_eq!(pool.statistics().quarantined, Bytes::new(1000 << 10));
    pool.set("quarantine", "300KiB").unwrap();
    assert_eq!(pool.statistics().quarantined, Bytes::new(300 << 10));
    pool.set("quarantine", "0").unwrap();
    assert_eq!(pool.statistics().quarantined, Bytes::ZERO);
    let block = pool.allocate(Bytes::new(512), DEFAULT).unwrap();
    pool.free(block.address(), DEFAULT).unwrap();
    assert_eq!(pool.allocate(Bytes::new(512), DEFAULT).unwrap().address(), block.address());
}

/// A smaller quarantine is in force whatever is found in the blocks that leave it.
#[test]
fn a_finding_does_not_fail_a_change_of_the_quarantine() {
    let stage = Stage::with(|settings| settings.poison(true).quarantine(Bytes::mib(1)));
    let pool = &stage.pool;
    let blocks = [(); 3].map(|()| pool.allocate(Bytes::new(4096), DEFAULT).unwrap());
    blocks.iter().for_each(|block| pool.free(block.address(), DEFAULT).unwrap());
    for &block in &blocks[..2] {
        stage.write(part(block, 10, 1), 5, DEFAULT);
    }
    pool.set("quarantine", "0").unwrap();
    assert_eq!(pool.settings().quarantine(), Bytes::ZERO);
    assert_eq!(pool.statistics().quarantined, Bytes::ZERO);
    assert_eq!(pool.statistics().retired, Bytes::new(8192));
    assert_eq!(pool.findings().len(), 2);
}

#[test]
fn what_is_in_quarantine_is_given_out_before_a_request_is_refused() {
    let options = PoolOptions::new().max_bytes(Bytes::mib(64));
    let options = options.set(|settings| settings.quarantine(Bytes::gib(1)).poison(true));
    let stage = Stage::new(SimMachine::builder(), options);
    for _ in 0..4 {
        let block = stage.pool.allocate(Bytes::mib(40), DEFAULT).unwrap();
        stage.write(span_of(block), 1, DEFAULT);
        stage.pool.free(block.address(), DEFAULT).unwrap();
        assert_eq!(stage.pool.statistics().quarantined, Bytes::mib(40));
    }
    // Trimming is asking for it too.
    assert!(stage.pool.trim(Bytes::ZERO).unwrap() >= Bytes::mib(40));
    assert_eq!(stage.pool.held(), Bytes::ZERO);
    stage.assert_no_findings();
}

#[test]
fn the_peak_of_live_bytes_is_exact_where_it_is_asked_for() {
    let stage = Stage::with(|settings| settings.statistics(Counting::Exact));
    let pool = &stage.pool;
    let take = |size| pool.allocate(Bytes::new(size), DEFAULT).unwrap();
    let (a, b) = (take(1024), take(2048));
    pool.free(a.address(), DEFAULT).unwrap();
    pool.free(b.address(), DEFAULT).unwrap();
    let c = take(2560);
    assert_eq!(pool.statistics().peak_live, Some(Bytes::new(3072)));
    let d = take(1024);
    assert_eq!(pool.statistics().peak_live, Some(Bytes::new(3584)));
    assert!(matches!(pool.free(Address::new(512), DEFAULT), Err(Error::NotABlock { .. })));
    pool.free(c.address(), DEFAULT).unwrap();
    pool.free(d.address(), DEFAULT).unwrap();
    let figures = pool.statistics();
    assert_eq!((figures.live, figures.peak_live), (Bytes::ZERO, Some(Bytes::new(3584))));
    assert!(figures.magazine_hits > 0, "counting keeps magazines");
    let plain = Stage::with(|settings| settings);
    plain.pool.allocate(Bytes::new(1), DEFAULT).unwrap();
    assert_eq!(plain.pool.statistics().peak_live, None);
}

/// A free on a stream that does not come after the one with the block is no write out of bounds.
#[test]
fn a_free_on_the_wrong_stream_is_told_as_such() {
    let stage = Stage::with(|settings| settings.canaries(true));
    let [one, two] = [(); 2].map(|()| stage.device.create_stream(Priority::Normal).unwrap());
    let first = stage.pool.allocate(Bytes::mib(1), one).unwrap();
    let long = core::time::Duration::from_secs(10);
    let work = forebay_sim::Kernel::new("long").reads(span_of(first)).duration(long);
    // SAFETY: the block lives on, and the device is waited for when the pool is dropped.
    unsafe { stage.device.launch(work, one).unwrap() };
    // Its canary is written after that work.
    let block = stage.pool.allocate(Bytes::mib(1), one).unwrap();
    let error = stage.pool.free(block.address(), two).unwrap_err();
    let expected = Error::UnorderedFree {
        address: block.address(),
        size: block.size(),
        freed_on: two,
        allocated_on: one,
    };
    assert_eq!(error, expected);
    assert!(error.is_finding() && error.to_string().contains("was freed on"), "{error}");
    // In order it is right, on whatever stream.
    stage.pool.free(first.address(), two).unwrap();
    assert_eq!(stage.pool.findings(), [expected]);
}
