use forebay_core::{Address, Bytes, Span};

use crate::map::{AddressMap, Side, owners_near, tagged};

fn span(start: u64, size: u64) -> Span {
    Span::new(Address::new(start), Bytes::new(size)).unwrap()
}

#[test]
fn a_block_is_found_by_its_first_address_alone() {
    let map = AddressMap::new(1);
    let base = 3 << 30;
    assert!(map.make(span(base, 1 << 20), Side::Small));
    assert!(map.make(span(base + (64 << 20), 130 << 20), Side::Large));
    for (at, size) in [(base + 512, 512), (base + (64 << 20) + 1536, 300 << 10)] {
        let address = Address::new(at);
        let slot = map.slot(address).unwrap();
        assert_eq!(slot.state_at(address), None);
        let more = tagged(Bytes::new(size - 7), 9);
        let generation = slot.mark_live(address, Bytes::new(size), more);
        let known = slot.state_at(address).unwrap();
        assert!(known.live() && !known.used_elsewhere());
        let figures = (known.size().get(), known.requested(), known.tag());
        assert_eq!(figures, (size, size - 7, 9));
        assert_eq!(known.generation(), generation);
        for inside in [1, 511] {
            assert!(map.slot(Address::new(at + inside)).is_none());
        }
        let inside = Address::new(at + 512);
        assert!(map.slot(inside).unwrap().state_at(inside).is_none());
        assert!(slot.plain(inside).is_none(), "begins elsewhere");
        assert_eq!(slot.plain(address), Some(known));
        assert!(slot.claim_plain(known), "can be freed");
        assert!(slot.plain(address).is_none() && !slot.claim_plain(known), "and only once");
        assert!(!slot.claim(known), "whichever way");
        assert!(!slot.state_at(address).unwrap().live());
        for _ in 0..if cfg!(miri) { 20 } else { 5000 } {
            let again = slot.mark_live_again(Bytes::new(size), tagged(Bytes::new(size), 0));
            let known = slot.state_at(address).unwrap();
            assert_eq!((known.size().get(), known.generation()), (size, again));
            assert!(known.live() && slot.mark_used(known), "can be used elsewhere");
            assert!(slot.plain(address).is_none(), "is not plain now");
            assert!(slot.claim(slot.state_at(address).unwrap()));
        }
        assert_ne!(
            slot.mark_live(address, Bytes::new(size), tagged(Bytes::new(size), 0)),
            generation
        );
    }
    for beyond in [0, 512, base - 512, !511] {
        let found = map.slot(Address::new(beyond)).and_then(|s| s.state_at(Address::new(beyond)));
        assert!(found.is_none(), "{beyond:#x}");
    }
    assert!(!map.make(span(base, 512), Side::Large), "the small side has it");
    assert!(!map.make(span(base + (1 << 50), 512), Side::Small), "not told from the first");
    assert!(map.make(span((1 << 60) + (1 << 40), 512), Side::Small), "high, but apart");
    let twin = Address::new(base + (1 << 50) + 512);
    assert!(map.slot(twin).is_none(), "told apart by the upper bits");
}

#[test]
fn of_many_frees_one_succeeds() {
    let map = AddressMap::new(1);
    let address = Address::new(1 << 30);
    assert!(map.make(span(1 << 30, 4096), Side::Small));
    let slot = map.slot(address).unwrap();
    for _ in 0..if cfg!(miri) { 5 } else { 500 } {
        slot.mark_live(address, Bytes::new(512), tagged(Bytes::new(512), 0));
        let freed = core::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let known = slot.state_at(address).unwrap();
                    if slot.claim(known) {
                        freed.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(freed.into_inner(), 1);
    }
}

const MIB: u64 = 1 << 20;

/// Where the slots of a map are for, and how many: what it takes.
fn slots(map: &AddressMap) -> Vec<(u64, usize)> {
    let made = map.all.made.lock().unwrap();
    made.iter().filter(|table| !table.slots.is_empty()).map(|t| (t.start, t.slots.len())).collect()
}

fn mark_live(map: &AddressMap, at: u64, size: u64) -> u64 {
    let size = Bytes::new(size);
    map.slot(Address::new(at)).unwrap().mark_live(Address::new(at), size, tagged(size, 0))
}

fn live(map: &AddressMap) -> Vec<(u64, u64)> {
    let mut live: Vec<_> =
        map.live_blocks().iter().map(|b| (b.address.get(), b.size.get())).collect();
    live.sort_unstable();
    live
}

#[test]
fn segments_of_both_sides_share_a_leaf_each_with_its_slots() {
    let map = AddressMap::new(1);
    let base = (1 << 56) + (5 << 30);
    // 40 MiB, 2 MiB, and what is left of the leaf and 20 MiB of the next.
    assert!(map.make_segment(span(base, 40 * MIB), Side::Large));
    assert!(map.make_segment(span(base + 40 * MIB, 2 * MIB), Side::Small));
    assert!(map.make_segment(span(base + 42 * MIB, 42 * MIB), Side::Large));
    let made = slots(&map);
    let expected = [(0, 160), (40 * MIB, 4096), (42 * MIB, 88), (64 * MIB, 80)];
    assert_eq!(made, expected.map(|(at, count)| (base + at, count)));
    let blocks = [
        (base + 512, 40 * MIB - 512),
        (base + 40 * MIB, 512),
        (base + 40 * MIB + 512, 1024),
        (base + 42 * MIB, 30 * MIB + 512),
        (base + 72 * MIB + 512, MIB),
    ];
    for (at, size) in blocks {
        mark_live(&map, at, size);
    }
    assert_eq!(live(&map), blocks);
    for (at, _) in blocks {
        let inside = Address::new(at + 7 * 512);
        assert!(!map.has(inside) && map.has(Address::new(at)));
        assert!(map.slot(Address::new(at + 1)).is_none());
        assert!(!map.has(Address::new(at + (1 << 50))), "told apart by the upper bits");
    }
    assert!(map.slot(Address::new(base + 84 * MIB)).is_none(), "no slots beyond the segment");
    assert!(!map.make_segment(span(base + (1 << 50), 2 * MIB), Side::Small), "not told apart");
}

#[test]
fn small_slots_continue_the_generations_of_large_ones() {
    let map = AddressMap::new(1);
    let base = 7 << 30;
    assert!(map.make_segment(span(base, 8 * MIB), Side::Large));
    let (at, size) = (Address::new(base + 2 * MIB), Bytes::mib(4));
    let stale: Vec<_> = (0..3)
        .map(|_| {
            let generation = mark_live(&map, at.get(), size.get());
            let slot = map.slot(at).unwrap();
            assert!(slot.claim(slot.state_at(at).unwrap()));
            generation
        })
        .collect();
    let old = map.slot(at).unwrap();
    // The segment is gone, and a small one lies there, of one chunk.
    assert!(map.make_segment(span(at.get(), 2 * MIB), Side::Small));
    let new = map.slot(at).unwrap();
    assert!(!core::ptr::eq(old, new), "the same slot");
    assert!(!map.knows(at), "nothing was handed out there yet");
    for at in [at.get(), at.get() + 512] {
        assert!(!stale.contains(&mark_live(&map, at, 512)), "a generation given twice");
    }
    assert_eq!(mark_live(&map, at.get() + MIB, 512), 1, "none was given there");
    assert_eq!(slots(&map), [(base, 32), (base + 2 * MIB, 4096)]);
    // And back: small slots do for large blocks.
    assert!(map.make_segment(span(base, 8 * MIB), Side::Large));
    assert_eq!(slots(&map).len(), 2);
}

#[test]
fn segments_that_are_no_multiples_of_a_chunk_share_one() {
    let map = AddressMap::new(1);
    let base = (9 << 30) + 63 * MIB;
    // From the middle of the last chunk of a leaf.
    assert!(map.make_segment(span(base, 6 * MIB + 512), Side::Large));
    let block = (base, 3 * MIB + 512);
    mark_live(&map, block.0, block.1);
    let other = (base + 6 * MIB + 512, 512);
    assert!(map.make_segment(span(other.0, 4096), Side::Small));
    mark_live(&map, other.0, other.1);
    let third = (base - MIB, MIB);
    assert!(map.make_segment(span(third.0, MIB), Side::Large));
    mark_live(&map, third.0, third.1);
    assert_eq!(live(&map), [third, block, other]);
    let coarse: usize = slots(&map).iter().filter(|(_, count)| *count < 4096).count();
    assert_eq!(coarse, 1, "the chunks that are whole: {:?}", slots(&map));
}

/// Leaves of their own, and one that two pools share, in numbers that no other test uses.
#[test]
fn the_pools_near_an_address_are_found_without_asking_the_others() {
    let base = 77 << 40;
    let (one, two) = (AddressMap::new(4_001), AddressMap::new(4_002));
    assert!(one.make(span(base, 130 << 20), Side::Large));
    assert!(two.make_segment(span(base + (200 << 20), 2 << 20), Side::Small));
    assert!(one.make_segment(span(base + (202 << 20), 2 << 20), Side::Small));
    let near = |mib: u64| owners_near(Address::new(base + (mib << 20)));
    assert_eq!((near(0), near(129)), (vec![4_001], vec![4_001]));
    assert_eq!((near(200), near(203)), (vec![4_001, 4_002], vec![4_001, 4_002]));
    assert_eq!(near(1_000), []);
    let clone = one.clone();
    drop(one);
    assert_eq!(near(0), [4_001], "a clone keeps the slots");
    drop(clone);
    assert_eq!((near(0), near(200)), (vec![], vec![4_002]));
}
