//! Snapshots: their fields and names.

use super::*;
use crate::Tag;
use crate::sync::map::Side;

fn busy_pool() -> (Pool, Block) {
    let (_, _, shared) = open(SimMachine::builder().memory(MemoryModel::Phantom));
    let options = PoolOptions::new().max_bytes(Bytes::mib(64));
    let pool = options.set(|set| set.min_bytes(Bytes::mib(1))).build(&shared).unwrap();
    let block = {
        let _tag = Tag::named("tag of the snapshot").enter();
        pool.allocate(Bytes::new(5_000_000), DEFAULT).unwrap()
    };
    pool.allocate(Bytes::new(100), DEFAULT).unwrap();
    (pool, block)
}

#[test]
fn a_snapshot_has_all_there_is() {
    let (pool, block) = busy_pool();
    let snapshot = pool.snapshot();
    assert_eq!((&*snapshot.schema, snapshot.pool), ("forebay.pool.v1", pool.id().0));
    assert_eq!(pool.id().to_string(), format!("pool {}", snapshot.pool));
    assert_eq!((&*snapshot.device.kind, snapshot.device.ordinal), ("sim", 0));
    assert_eq!(snapshot.device.total_bytes, Some(8 << 30));
    assert_eq!(snapshot.device.free_bytes, Some((8 << 30) - pool.held().get()));
    assert_eq!((snapshot.limit_bytes, snapshot.pressure.as_str()), (64 << 20, "low"));
    assert!(snapshot.taken_unix_ms > 1_700_000_000_000);
    // Settings: all of them, with their sources.
    let named = |name| snapshot.settings.iter().find(|setting| setting.name == name).unwrap();
    assert_eq!((named("max_bytes").value.as_str(), &*named("max_bytes").source), ("64MiB", "code"));
    assert_eq!((named("history").value.as_str(), &*named("history").source), ("0", "default"));
    assert_eq!(named("max_bytes").whence, "set by the program");
    assert!(named("max_bytes").changeable && !named("magazines").changeable);
    assert_eq!(snapshot.settings.len(), crate::config::Key::ALL.len());
    // Blocks: the largest first.
    let [large, small] = &snapshot.blocks[..] else { panic!("{:?}", snapshot.blocks) };
    assert_eq!((large.address, large.size_bytes), (block.address().get(), block.size().get()));
    assert_eq!((large.requested_bytes, large.tag.as_str()), (5_000_000, "tag of the snapshot"));
    assert_eq!(
        (small.size_bytes, small.requested_bytes, small.tag.as_str()),
        (512, 100, "untagged")
    );
    assert_eq!(snapshot.blocks_left_out, 0);
    // Figures: the same as the pool says.
    assert_eq!(snapshot.statistics, pool.statistics());
    let figures = &snapshot.statistics;
    let live = block.size().checked_add(Bytes::new(512)).unwrap();
    assert_eq!((figures.live, figures.requested), (live, Bytes::new(5_000_100)));
    assert_eq!((figures.allocations, figures.misses, figures.blocks), (2, 2, 2));
    assert_eq!(figures.held, pool.held());
    assert_eq!((figures.classes.len(), figures.streams.len(), figures.tags.len()), (2, 1, 2));
    assert!(figures.driver.of(Call::CreatePage) > 0);
    // Another process reads the same, but for the driver calls.
    let mut read: crate::Snapshot = serde_json::from_str(&snapshot.to_json()).unwrap();
    read.statistics.driver = figures.driver.clone();
    assert_eq!(read, snapshot);
}

/// What only pools with aids, or of a class, have to show.
#[test]
fn a_snapshot_tells_the_class_and_what_aids_keep() {
    use crate::MemoryClass;
    use crate::config::Counting;
    use forebay_core::DeviceOrdinal;
    let (_, _, shared) = open(SimMachine::builder().devices(3));
    let options = PoolOptions::new().visible_to([DeviceOrdinal(1), DeviceOrdinal(2)]);
    let pool = options
        .class(MemoryClass::STABLE)
        .set(|set| set.quarantine(Bytes::mib(1)).statistics(Counting::Exact))
        .build(&shared)
        .unwrap();
    let block = pool.allocate(Bytes::new(5000), DEFAULT).unwrap();
    pool.free_block(block, DEFAULT).unwrap();
    let snapshot = pool.snapshot();
    assert_eq!(
        (snapshot.class.as_str(), &snapshot.peers[..]),
        ("visible to peers and stable", &[1, 2][..])
    );
    let figures = snapshot.statistics;
    let kept = Bytes::new(5120);
    assert_eq!((figures.peak_live, figures.quarantined), (Some(kept), kept));
    assert_eq!(figures.retired, Bytes::ZERO);
}

#[test]
fn of_very_many_blocks_the_largest_are_named_and_the_rest_counted() {
    let (pool, block) = busy_pool();
    let most = Snapshot::MAX_BLOCKS;
    for _ in 0..most {
        pool.allocate(Bytes::new(100), DEFAULT).unwrap();
    }
    let snapshot = pool.snapshot();
    assert_eq!((snapshot.blocks.len(), snapshot.blocks_left_out), (most, 2));
    assert_eq!(snapshot.blocks[0].address, block.address().get());
}

/// The names are a promise: a change of one changes this list and the schema version.
#[test]
fn the_names_in_json_are_these() {
    use serde_json::Value;

    let (pool, _) = busy_pool();
    let json = pool.snapshot().to_json();
    let value: Value = serde_json::from_str(&json).unwrap();
    let keys = |value: &Value| -> Vec<String> {
        value
            .as_object()
            .unwrap()
            .keys()
            .map(String::from)
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect()
    };
    for (path, names) in [
        (
            "",
            "blocks blocks_left_out class device holes holes_left_out limit_bytes peers pool pressure refusal schema \
             settings spans spans_left_out stacks statistics taken_unix_ms",
        ),
        ("/device", "free_bytes kind name ordinal total_bytes"),
        ("/settings/0", "changeable name source value whence"),
        ("/blocks/0", "address age_ms requested_bytes size_bytes stack stream tag"),
        ("/spans/0", "address side size_bytes"),
        ("/holes/0", "address side size_bytes"),
        (
            "/statistics",
            "allocations blocks cached_bytes callback_panics classes driver driver_ns \
             forgotten_allocations forgotten_frees free_bytes \
             frees held_bytes hits large largest_free_bytes live_bytes magazine_hits misses peak_held_bytes \
             peak_live_bytes peak_out_bytes pieces quarantined_bytes requested_bytes retired_bytes \
             small streams tags waits",
        ),
        (
            "/statistics/small",
            "allocated_bytes allocations blocks freed_bytes frees held_bytes in_holes_bytes live_bytes pages pieces \
             requested_allocated_bytes requested_bytes requested_freed_bytes",
        ),
        ("/statistics/classes/0", "allocations frees from_bytes live_bytes"),
        ("/statistics/streams/0", "allocations frees stream"),
        ("/statistics/tags/0", "live_bytes tag"),
        ("/statistics/driver/0", "call count size_bytes"),
    ] {
        let names: Vec<&str> = names.split(' ').collect();
        assert_eq!(keys(value.pointer(path).unwrap()), names, "at {path}");
    }
    assert_eq!(value["schema"], "forebay.pool.v1");
    assert_eq!(value["statistics"]["requested_bytes"], 5_000_100);
    assert_eq!(value["blocks"][0]["requested_bytes"], 5_000_000);
}

#[test]
fn a_layout_is_what_is_held_with_every_block_in_it() {
    for memory in [MemoryModel::Phantom, MemoryModel::Backed] {
        let (_, _, shared) = open(SimMachine::builder().memory(memory));
        let pool = PoolOptions::new().growth(small_pages()).build(&shared).unwrap();
        let sizes = (1..40_u64).map(|count| Bytes::new(count * 300_000 % 7_000_000 + 1));
        let blocks: Vec<Block> = sizes.map(|size| pool.allocate(size, DEFAULT).unwrap()).collect();
        for block in blocks.iter().step_by(3) {
            pool.free_block(*block, DEFAULT).unwrap();
        }
        let layout = pool.memory_map();
        let held = layout.spans.iter().map(|span| span.size().get()).sum::<u64>();
        assert_eq!(Bytes::new(held), pool.held());
        assert_eq!(pool.page_count(), pool.statistics().driver.of(Call::CreatePage));
        assert!(layout.spans.windows(2).all(|pair| pair[0].end() <= pair[1].start()));
        let live: u64 = layout.blocks.iter().map(|block| block.size_bytes).sum();
        assert_eq!(Bytes::new(live), pool.statistics().live);
        assert_eq!(layout.blocks.len() as u64, pool.statistics().blocks);
        for block in &layout.blocks {
            let at = Span::new(Address::new(block.address), Bytes::new(block.size_bytes)).unwrap();
            assert!(
                layout
                    .spans
                    .iter()
                    .any(|span| span.start() <= at.start() && at.end() <= span.end()),
                "{at:?} in {:?}",
                layout.spans
            );
        }
    }
}

/// The spans of a pool by side and size, the lowest first.
fn spans(pool: &Pool) -> Vec<(Side, Bytes)> {
    pool.memory_map().spans.iter().map(|span| (span.side, span.size())).collect()
}

#[test]
fn a_span_is_what_was_mapped_for_one_request() {
    for class in [MemoryClass::STABLE, MemoryClass::PLAIN] {
        let (_machine, _, device) = open(SimMachine::builder());
        let pool = PoolOptions::new().class(class).build(&device).unwrap();
        let small = pool.allocate(Bytes::kib(1), DEFAULT).unwrap();
        let large = [(); 3].map(|()| pool.allocate(Bytes::mib(20), DEFAULT).unwrap());
        let mut due = vec![(Side::Small, Bytes::mib(2))];
        due.extend([(Side::Large, Bytes::mib(20)); 3]);
        let mut found = spans(&pool);
        found.sort_unstable();
        assert_eq!(found, due, "{class}");
        for block in large {
            let map = pool.memory_map();
            let own = map.spans.iter().find(|span| span.start() == block.address()).unwrap();
            assert_eq!((own.size(), own.side), (block.size(), Side::Large));
        }
        for block in large.into_iter().chain([small]) {
            pool.free_block(block, DEFAULT).unwrap();
        }
        let mut found = spans(&pool);
        found.sort_unstable();
        assert_eq!(found, due, "{class}");
        if class == MemoryClass::PLAIN {
            continue;
        }
        // A block that lies in two of them makes them one, until it is freed.
        let across = pool.allocate(Bytes::mib(30), DEFAULT).unwrap();
        let mut found = spans(&pool);
        found.sort_unstable();
        let joined = [(Side::Large, Bytes::mib(20)), (Side::Large, Bytes::mib(40))];
        assert_eq!(found.get(1..), Some(&joined[..]));
        pool.free_block(across, DEFAULT).unwrap();
        assert_eq!(spans(&pool).len(), 4);
    }
}
