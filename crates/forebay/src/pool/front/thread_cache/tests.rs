use forebay_core::{Address, Random, Span};

use super::*;
use crate::sync::map::{AddressMap, SMALL_UNITS, SlotRef};

fn handle(number: u64) -> StreamHandle {
    StreamHandle(0x7f00_0000_0000 + number * 0x40)
}

/// What the thread has after a cache left: as the pool does, which gives it to the heap at once.
fn add_cache(caches: &mut ThreadCaches, stream: StreamHandle) -> Option<StreamHandle> {
    caches.add_cache(stream, 1024);
    caches.take_evicted().map(|cache| cache.stream)
}

/// The same calls on caches and on a list in the order of last use: the same are found, and the same
/// are evicted.
#[test]
fn caches_are_a_list_in_the_order_of_last_use() {
    // A block for all magazines: they do not look at it.
    let (map, address) = (AddressMap::new(0), Address::new(1 << 40));
    assert!(map.make(Span::new(address, Bytes::mib(2)).unwrap(), Side::Small));
    let slot = map.slot(address).unwrap();
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let (mut caches, mut list) = (ThreadCaches::default(), Vec::new());
        let streams = *random.pick(&[3, 900, 1024, 1025, 1100, 4000]).unwrap();
        for step in 0..6000 {
            let stream = handle(random.below(streams));
            let known = list.iter().position(|&other| other == stream);
            if random.chance(1, 8) {
                let removed = caches.remove(stream).map(|cache| cache.stream);
                assert_eq!(removed, known.map(|at| list.remove(at)), "seed {seed}, step {step}");
                continue;
            }
            let found = caches.of(stream).map(|cache| cache.stream);
            assert_eq!(found, known.map(|at| list.remove(at)), "seed {seed}, step {step}");
            list.push(stream);
            if found.is_none() {
                let evicted = (list.len() > MAX_CACHES).then(|| list.remove(0));
                assert_eq!(add_cache(&mut caches, stream), evicted, "seed {seed}, step {step}");
            }
            assert!(caches.front(stream).is_some());
            if let Some(cache) = caches.of(stream) {
                let sizes = [8, 2 * SMALL_UNITS].map(|size| (size, random.chance(1, 2)));
                for (size, _) in sizes.into_iter().filter(|size| size.1) {
                    let block = CachedBlock { address, slot: SlotRef::new(slot) };
                    _ = cache.magazine.take(size).is_some() || cache.magazine.keep(size, block);
                }
            }
            let held = |caches: &mut ThreadCaches, of: fn(&ThreadCache) -> u64| -> u64 {
                caches.all().map(|cache| of(cache)).sum()
            };
            let small = held(&mut caches, |cache| cache.magazine.small_held());
            assert_eq!(caches.small_held(), small, "seed {seed}, step {step}");
            if random.chance(1, 200) {
                let mut out = Vec::new();
                caches.drain_large(&mut out);
                assert!(out.iter().all(|block| Side::of(block.size) == Side::Large));
                assert_eq!(held(&mut caches, |cache| cache.magazine.held()), small);
            }
            if random.chance(1, 500) {
                caches.drain(&mut Vec::new());
                assert_eq!(held(&mut caches, |cache| cache.magazine.held()), 0);
                assert_eq!(caches.small_held(), 0);
            }
        }
        let mut all: Vec<StreamHandle> = caches.all().map(|cache| cache.stream).collect();
        all.sort_unstable();
        list.sort_unstable();
        assert_eq!(all, list, "seed {seed}");
    }
}

/// Caches that an earlier thread left on streams of its own are evicted first.
#[test]
fn caches_that_nobody_uses_are_evicted_first() {
    let mut caches = ThreadCaches::default();
    let (dead, living) = (MAX_CACHES as u64 / 2, MAX_CACHES as u64);
    (0..dead).for_each(|number| assert_eq!(add_cache(&mut caches, handle(number)), None));
    for number in dead..dead + living {
        let evicted = add_cache(&mut caches, handle(number));
        let expected = number.checked_sub(living).map(handle);
        assert_eq!(evicted, expected);
    }
}

/// A thread slot that a thread has not used costs two cache lines in each pool, and a stream that it uses some
/// kilobytes.
#[test]
fn what_is_idle_is_small() {
    assert!(size_of::<ThreadCaches>() <= 120, "{}", size_of::<ThreadCaches>());
    assert!(size_of::<ThreadCache>() <= 12_800, "{}", size_of::<ThreadCache>());
}

/// A thread that uses many streams in turn finds its blocks in magazines. This holds for as many as have slots:
/// a request on a stream without one flushes all magazines.
#[test]
fn many_streams_in_turn_are_served_from_magazines() {
    use std::sync::Arc;

    use forebay_hal::{Device, Priority, Stream};
    use forebay_sim::SimMachine;

    for count in [8_u64, 9, 64] {
        let machine = SimMachine::builder().build().unwrap();
        let device: Arc<dyn Device> = machine.device(0).unwrap();
        let pool = crate::Pool::new(&device).unwrap();
        let new = || Stream::new(&device, Priority::Normal).unwrap();
        let streams: Vec<Stream> = (0..count).map(|_| new()).collect();
        let pairs = |rounds: u64| {
            for stream in (0..rounds).flat_map(|_| &streams) {
                let block = pool.allocate(Bytes::kib(4), stream.handle()).unwrap();
                pool.free(block.address(), stream.handle()).unwrap();
            }
            pool.statistics()
        };
        // In the first rounds a stream may take memory from the magazines of earlier ones.
        let before = pairs(3);
        let after = pairs(5);
        assert_eq!(after.magazine_hits - before.magazine_hits, 5 * count, "{count} streams");
        assert_eq!((after.allocations, after.frees), (8 * count, 8 * count));
    }
}

/// More streams than caches: those that are evicted leave their counts behind.
#[test]
fn evicted_caches_are_counted() {
    use std::sync::Arc;

    use forebay_hal::{Device, Priority, Stream};
    use forebay_sim::SimMachine;

    let count = MAX_CACHES as u64 + 100;
    let machine = SimMachine::builder().build().unwrap();
    let device: Arc<dyn Device> = machine.device(0).unwrap();
    let pool = crate::Pool::new(&device).unwrap();
    let new = || Stream::new(&device, Priority::Normal).unwrap();
    let streams: Vec<Stream> = (0..count).map(|_| new()).collect();
    for round in 1..=3 {
        for stream in &streams {
            let block = pool.allocate(Bytes::kib(4), stream.handle()).unwrap();
            pool.free(block.address(), stream.handle()).unwrap();
        }
        let figures = pool.statistics();
        assert_eq!((figures.allocations, figures.frees), (round * count, round * count));
        assert_eq!((figures.live, figures.requested), (Bytes::ZERO, Bytes::ZERO));
    }
}
