//! Statistics: exact to the last call, whichever thread made it; by tag; and as a summary.

use std::sync::mpsc::sync_channel;

use super::*;
use crate::Tag;
use crate::pool::calls::report;
use crate::report::EventAction;

fn phantom() -> Arc<dyn Device> {
    open(SimMachine::builder().memory(MemoryModel::Phantom)).2
}

/// The figures of a pool without live blocks, after so many pairs of which one missed.
#[track_caller]
fn one_miss(pool: &Pool, pairs: u64) -> Statistics {
    let figures = pool.statistics();
    assert_eq!((figures.allocations, figures.frees), (pairs, pairs));
    assert_eq!((figures.misses, figures.hits), (1, pairs - 1));
    assert_eq!(figures.hit_rate(), Some((pairs - 1) as f64 / pairs as f64));
    assert_eq!((figures.live, figures.requested), (Bytes::ZERO, Bytes::ZERO));
    assert_eq!((figures.blocks, figures.tags.len()), (0, 0));
    assert_eq!(figures.free, figures.held);
    figures
}

/// Of both sides, and one beyond what a magazine is to hold.
const SIZES: [Bytes; 3] = [Bytes::new(1000), Bytes::new(1_500_000), Bytes::mib(48)];

#[test]
fn a_block_had_a_thousand_times_misses_once() {
    for size in SIZES {
        let pool = Pool::new(&phantom()).unwrap();
        for _ in 0..1000 {
            let block = pool.allocate(size, DEFAULT).unwrap();
            pool.free(block.address(), DEFAULT).unwrap();
        }
        let figures = one_miss(&pool, 1000);
        // A large block is had from a magazine once the heap is seen to give the same.
        assert!((998..=999).contains(&figures.magazine_hits), "{size}: {}", figures.magazine_hits);
        let [class] = figures.classes[..] else { panic!("{:?}", figures.classes) };
        assert_eq!((class.allocations, class.frees, class.live), (1000, 1000, Bytes::ZERO));
        let rounded = size.checked_align_up(Alignment::BLOCK).unwrap();
        assert!(class.from <= rounded && rounded < Bytes::new(class.from.get() * 2));
        assert_eq!(figures.streams.len(), 1);
    }
}

#[test]
fn two_threads_miss_once_between_them() {
    let machine = SimMachine::builder().memory(MemoryModel::Phantom).build().unwrap();
    let device = machine.device(0).unwrap();
    let other = device.create_stream(Priority::Normal).unwrap();
    let shared: Arc<dyn Device> = device;
    for streams in [[DEFAULT; 2], [DEFAULT, other]] {
        let pool = Pool::new(&shared).unwrap();
        std::thread::scope(|scope| {
            for stream in streams {
                let pool = &pool;
                scope.spawn(move || {
                    for _ in 0..1000 {
                        let block = pool.allocate(Bytes::new(1000), stream).unwrap();
                        pool.free(block.address(), stream).unwrap();
                    }
                });
            }
        });
        // The second takes of the page the first had, in its order or after an event.
        let figures = one_miss(&pool, 2000);
        let expected = if streams[0] == streams[1] { 1 } else { 2 };
        assert_eq!(figures.streams.len(), expected);
    }
}

#[test]
fn blocks_freed_by_another_thread_are_counted_once() {
    for size in SIZES {
        let pool = Pool::new(&phantom()).unwrap();
        let (give, take) = sync_channel::<Address>(0);
        let (done, next) = sync_channel::<()>(0);
        std::thread::scope(|scope| {
            let freeing = &pool;
            scope.spawn(move || {
                for address in take {
                    freeing.free(address, DEFAULT).unwrap();
                    done.send(()).unwrap();
                }
            });
            for _ in 0..1000 {
                let block = pool.allocate(size, DEFAULT).unwrap();
                give.send(block.address()).unwrap();
                next.recv().unwrap();
            }
            drop(give);
        });
        one_miss(&pool, 1000);
    }
}

/// Threads that allocate, pass on and free at random: in the end every sum is right.
#[test]
fn sums_are_right_after_any_traffic() {
    let pool = Pool::new(&phantom()).unwrap();
    let cache: std::sync::Mutex<Vec<Address>> = std::sync::Mutex::new(Vec::new());
    let counted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (pool, cache, counted) = (&pool, &cache, &counted);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                for _ in 0..3000 {
                    if random.chance(1, 2) {
                        let size = Bytes::new(size_up_to(&mut random, 4, 22));
                        let block = pool.allocate(size, DEFAULT).unwrap();
                        cache.lock().unwrap().push(block.address());
                        counted.fetch_add(1, Ordering::Relaxed);
                    } else {
                        let found = {
                            let mut cache = cache.lock().unwrap();
                            let index = random.index(cache.len());
                            index.map(|index| cache.swap_remove(index))
                        };
                        if let Some(address) = found {
                            pool.free(address, DEFAULT).unwrap();
                        }
                    }
                }
            });
        }
    });
    let left = cache.into_inner().unwrap();
    let figures = pool.statistics();
    assert_eq!(figures.allocations, counted.into_inner());
    assert_eq!(figures.blocks, left.len() as u64);
    let sizes: Vec<(u64, u64)> = left
        .iter()
        .map(|&at| (pool.block_at(at).unwrap().size().get(), pool.requested_at(at).unwrap().get()))
        .collect();
    assert_eq!(figures.live.get(), sizes.iter().map(|(size, _)| size).sum::<u64>());
    assert_eq!(figures.requested.get(), sizes.iter().map(|(_, asked)| asked).sum::<u64>());
    let of_classes = |of: fn(&ClassStatistics) -> u64| figures.classes.iter().map(of).sum::<u64>();
    assert_eq!(of_classes(|class| class.allocations), figures.allocations);
    assert_eq!(of_classes(|class| class.live.get()), figures.live.get());
    assert_eq!(figures.hits + figures.misses, figures.allocations);
}

/// What each tag has, by name.
fn by_tag(pool: &Pool) -> Vec<(String, u64)> {
    let figures = pool.statistics();
    figures.tags.iter().map(|figures| (figures.tag.clone(), figures.live.get())).collect()
}

#[test]
fn bytes_are_told_by_tag() {
    let pool = Pool::new(&phantom()).unwrap();
    let weights = Tag::named("weights of the test");
    let steps = Tag::named("steps of the test");
    let of = |bytes: u64| pool.allocate(Bytes::new(bytes), DEFAULT).unwrap();
    let free = |block: Block| pool.free(block.address(), DEFAULT).unwrap();
    let untagged = of(512);
    let (large, small, step) = {
        let _weights = weights.enter();
        let large = of(1 << 20);
        let step = {
            let _steps = steps.enter();
            of(2 << 20)
        };
        (large, of(100), step)
    };
    let weighs = (1 << 20) + 512;
    let named = |name: &str, bytes| (name.to_owned(), bytes);
    let all = [
        named("untagged", 512),
        named("weights of the test", weighs),
        named("steps of the test", 2 << 20),
    ];
    assert_eq!(by_tag(&pool), all);
    // A free on any thread and under any tag is counted for the block's own tag.
    std::thread::scope(|scope| {
        let (steps, free) = (steps, &free);
        scope.spawn(move || {
            let _steps = steps.enter();
            free(large);
        });
    });
    assert_eq!(by_tag(&pool)[1], named("weights of the test", 512));
    // The same memory, from the magazine, under another tag.
    free(small);
    let _steps = steps.enter();
    let again = of(100);
    assert_eq!(again.address(), small.address());
    let now = [named("untagged", 512), named("steps of the test", (2 << 20) + 512)];
    assert_eq!(by_tag(&pool), now);
    for block in [untagged, step, again] {
        free(block);
    }
    assert_eq!(by_tag(&pool), []);
}

#[test]
fn who_has_the_most_is_named_where_there_is_no_more() {
    let pool = PoolOptions::new().max_bytes(Bytes::mib(64)).build(&phantom()).unwrap();
    let hog = Tag::named("hog of the test");
    let other = Tag::named("other of the test");
    let _other = other.enter();
    pool.allocate(Bytes::mib(4), DEFAULT).unwrap();
    let _hog = hog.enter();
    pool.allocate(Bytes::mib(40), DEFAULT).unwrap();
    let error = pool.allocate(Bytes::mib(40), DEFAULT).unwrap_err();
    let Error::OutOfMemory(shortage) = &error else { panic!("{error}") };
    let named = |name: &str, size| (name.to_owned(), size);
    assert_eq!(
        shortage.owners[..],
        [named("hog of the test", Bytes::mib(40)), named("other of the test", Bytes::mib(4))]
    );
    assert!(error.to_string().contains("hog of the test (40"), "{error}");
}

#[test]
fn a_summary_says_what_there_is() {
    let (_, device, shared) = open(SimMachine::builder().memory(MemoryModel::Phantom));
    let pool = Pool::new(&shared).unwrap();
    let empty = pool.statistics().to_string();
    assert!(empty.starts_with("live      0 B in 0 blocks; 0 B requested, 0 B of rounding\n"));
    assert!(empty.contains("0 allocations, 0 frees; - without the driver"), "{empty}");
    let block = pool.allocate(Bytes::new(1000), DEFAULT).unwrap();
    for _ in 0..3 {
        let other = pool.allocate(Bytes::new(4096), DEFAULT).unwrap();
        pool.free(other.address(), DEFAULT).unwrap();
    }
    let said = pool.statistics().to_string();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "live      1.00 KiB in 1 block; 1000 B requested, 24 B of rounding");
    let starts: Vec<&str> = lines.iter().map(|line| line[..10].trim_end()).collect();
    assert_eq!(starts, ["live", "held", "free", "requests", "driver"], "{said}");
    let requests = "requests  4 allocations, 3 frees; 75.00 % without the driver, 50.00 % from \
                    thread caches; 1 miss";
    assert_eq!(lines[3], requests);
    assert!(lines[2].contains("4.00 KiB in thread caches"), "{said}");
    // Streams and tags where there is something to tell.
    let stream = device.create_stream(Priority::Normal).unwrap();
    let _tag = Tag::named("tag of the summary").enter();
    let tagged = pool.allocate(Bytes::new(512), stream).unwrap();
    let said = pool.statistics().to_string();
    assert!(said.contains("\nstream    0x0: 4 allocations, 3 frees\n"), "{said}");
    assert!(said.ends_with("\ntag       tag of the summary: 512 B"), "{said}");
    pool.free(tagged.address(), stream).unwrap();
    pool.free(block.address(), DEFAULT).unwrap();
}

/// An evicted cache hands its counts to the heap. A sum taken while that waits for the heap counts them once.
#[test]
fn counts_on_the_move_are_seen_once() {
    let pool = PoolOptions::new().build(&phantom()).unwrap();
    let device = Arc::clone(pool.device());
    let streams: Vec<StreamHandle> =
        (0..9).map(|_| device.create_stream(Priority::Normal).unwrap()).collect();
    let (blocked, heap_is_locked) = sync_channel::<()>(0);
    std::thread::scope(|scope| {
        let pool = &pool;
        let streams = &streams;
        let (ready, allocated) = sync_channel::<()>(0);
        scope.spawn(move || {
            let blocks: Vec<Block> = streams
                .iter()
                .map(|&stream| pool.allocate(Bytes::new(512), stream).unwrap())
                .collect();
            ready.send(()).unwrap();
            heap_is_locked.recv().unwrap();
            // The ninth stream: the cache of the first has to go, and that needs the heap.
            pool.free_block(blocks[8], streams[8]).unwrap();
        });
        allocated.recv().unwrap();
        let mut heap = pool.shared.heap();
        blocked.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let counted = pool.shared.census(&mut heap).0.sum();
        assert_eq!(counted.classes[0].taken, 9);
    });
    assert_eq!((pool.statistics().allocations, pool.statistics().frees), (9, 1));
}

/// What the history tells of is what happened, whatever the device refuses meanwhile.
#[test]
fn the_history_tells_of_what_happened() {
    let (machine, device, shared) = open(SimMachine::builder().memory(MemoryModel::Phantom));
    let options = PoolOptions::new().set(|set| set.history(100_000_u64).magazines(false));
    let pool = options.build(&shared).unwrap();
    let streams: Vec<StreamHandle> =
        (0..70).map(|_| device.create_stream(Priority::Normal).unwrap()).collect();
    let mut live = Vec::new();
    for &stream in &streams {
        live.push(pool.allocate(Bytes::new(4096), stream).unwrap());
    }
    // Now no stream can be waited for, and a free on one that has no number has to do without.
    let fault = FaultKind::Transient;
    machine.plan(Fault::new(When::Every(Call::RecordEvent), fault));
    for (block, &stream) in live.iter().zip(&streams) {
        let freed = pool.free(block.address(), stream);
        let shortage = pool
            .history()
            .iter()
            .any(|event| event.action == EventAction::Free && event.address == block.address());
        assert_eq!(shortage, freed.is_ok(), "{freed:?}");
        assert_eq!(shortage, pool.block_at(block.address()).is_none());
    }
    let refused = pool.allocate(Bytes::mib(1), device.create_stream(Priority::Normal).unwrap());
    let last = *pool.history().last().unwrap();
    assert_eq!(
        last.action,
        if refused.is_ok() { EventAction::Allocate } else { EventAction::Refuse }
    );
    machine.clear_faults();
    let count =
        |action| pool.history().iter().filter(|event| event.action == action).count() as u64;
    let figures = pool.statistics();
    let shortage = (count(EventAction::Allocate), count(EventAction::Free));
    assert_eq!(shortage, (figures.allocations, figures.frees));
}

/// A program that makes and forgets streams for ever is shortage of them in one sum, and one that only
/// makes them is so too in the end.
#[test]
fn counts_of_streams_that_come_and_go_are_bounded() {
    for forgets in [true, false] {
        let (_, device, shared) = open(SimMachine::builder().memory(MemoryModel::Phantom));
        let pool = Pool::new(&shared).unwrap();
        let kept = pool.allocate(Bytes::new(700), DEFAULT).unwrap();
        for _ in 0..6000 {
            let stream = device.create_stream(Priority::Normal).unwrap();
            let block = pool.allocate(Bytes::new(700), stream).unwrap();
            pool.free(block.address(), stream).unwrap();
            if forgets {
                pool.forget_stream(stream).unwrap();
                device.destroy_stream(stream).unwrap();
            }
        }
        let figures = pool.statistics();
        assert_eq!((figures.allocations, figures.frees, figures.blocks), (6001, 6000, 1));
        assert_eq!(figures.live, kept.size());
        // Those a thread has caches for, and those that have slots.
        let most = if forgets { 1 } else { 2048 + 2046 };
        assert!(figures.streams.len() <= most, "{} streams are shortage of", figures.streams.len());
        let named: u64 = figures.streams.iter().map(|stream| stream.allocations).sum();
        assert_eq!(named + figures.forgotten_allocations, 6001);
        assert!(figures.forgotten_frees >= 1900, "{}", figures.forgotten_frees);
        let snapshot = pool.snapshot().statistics;
        assert_eq!(snapshot.forgotten_allocations, figures.forgotten_allocations);
        assert_eq!(snapshot.forgotten_frees, figures.forgotten_frees);
        assert!(pool.shared.heap().counts.streams.len() <= most);
    }
}

/// Reading the statistics does not wait for a thread that waits for the device.
#[test]
fn figures_wait_for_nobody_at_the_driver() {
    let pool = Pool::new(&phantom()).unwrap();
    pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
    let backing = pool.shared.backing();
    let (tell, shortage) = sync_channel(1);
    let asking = pool.clone();
    std::thread::spawn(move || {
        let scope = asking.scope();
        let _ = tell.send((asking.statistics().allocations, scope.end().allocations));
    });
    let figures = shortage.recv_timeout(Duration::from_secs(20));
    drop(backing);
    assert_eq!(figures.unwrap(), (1, 0));
}

/// A request that fails after its memory was found is neither a hit nor a miss.
#[test]
fn what_was_not_given_out_is_not_counted() {
    let (machine, _, device) = open(SimMachine::builder());
    let pool = PoolOptions::new().set(|set| set.canaries(true)).build(&device).unwrap();
    let next = machine.calls().of(Call::Fill) + 1;
    machine.plan(Fault::new(When::Kind(Call::Fill, next), FaultKind::Transient));
    pool.allocate(Bytes::mib(1), DEFAULT).unwrap_err();
    let figures = pool.statistics();
    assert_eq!((figures.allocations, figures.hits, figures.misses), (0, 0, 0));
    pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
    let figures = pool.statistics();
    assert_eq!((figures.allocations, figures.hits, figures.misses), (1, 1, 0));
}

/// Every call that the pool makes is in its log.
#[test]
fn the_log_has_every_call() {
    for careful in [false, true] {
        let (machine, device, shared) = open(SimMachine::builder());
        let streams: Vec<StreamHandle> =
            (0..80).map(|_| device.create_stream(Priority::Normal).unwrap()).collect();
        let before = machine.calls();
        let options = PoolOptions::new().growth(small_pages());
        let pool = options.set(|set| set.guard_pages(careful)).build(&shared).unwrap();
        for (index, &stream) in streams.iter().enumerate() {
            let block = pool.allocate(Bytes::new(300 << 10), stream).unwrap();
            let other = streams[(index + 40) % 80];
            pool.record_use(block.address(), other).unwrap();
            pool.free_block(block, stream).unwrap();
            if index % 7 == 0 {
                pool.forget_stream(stream).unwrap();
            }
            if index % 20 == 0 {
                pool.trim(Bytes::ZERO).unwrap();
            }
        }
        pool.trim(Bytes::ZERO).unwrap();
        let (log, after) = (pool.statistics().driver, machine.calls());
        for &call in Call::ALL.iter().filter(|&&call| call != Call::MemoryInfo) {
            let made = after.of(call) - before.of(call);
            assert_eq!(log.of(call), made, "{call}, guard pages {careful}");
        }
    }
}

/// A refusal reports the requested size and the contiguous size that it needs.
#[test]
fn a_shortage_tells_what_was_asked_for() {
    use crate::Request;
    let (_, _, device) = open(SimMachine::builder());
    let pool = PoolOptions::new().max_bytes(Bytes::mib(8)).build(&device).unwrap();
    let request = Request::new(Bytes::mib(7), DEFAULT).aligned_to(Alignment::of_log2(23).unwrap());
    let error = pool.allocate_request(request).unwrap_err();
    let Error::OutOfMemory(shortage) = &error else { panic!("{error}") };
    assert_eq!(shortage.requested, Bytes::mib(7));
    assert_eq!(shortage.needed, Bytes::new((15 << 20) - 512), "wherever a hole begins");
    let said = error.to_string();
    assert!(said.contains("7.00 MiB (7340032 B) requested, which need 15.00 MiB"), "{said}");
}

/// A refusal reports where the free memory is: cached, and the largest hole.
#[test]
fn a_shortage_tells_what_is_free() {
    let (_, _, device) = open(SimMachine::builder());
    let pool = PoolOptions::new().max_bytes(Bytes::mib(8)).build(&device).unwrap();
    let large = pool.allocate(Bytes::mib(3), DEFAULT).unwrap();
    let small = pool.allocate(Bytes::new(4096), DEFAULT).unwrap();
    pool.free_block(small, DEFAULT).unwrap();
    let shortage =
        report::shortage(&pool.shared, crate::Request::new(Bytes::mib(7), DEFAULT), Bytes::mib(7));
    assert_eq!((shortage.live, shortage.cached), (large.size(), Bytes::new(4096)));
    assert_eq!(shortage.free, shortage.held.saturating_sub(shortage.live));
    assert_eq!(shortage.held, pool.held());
    // The refusal reports the cache as it is: cached small blocks do not help a large request, and stay cached.
    let error = pool.allocate(Bytes::mib(7), DEFAULT).unwrap_err();
    let Error::OutOfMemory(shortage) = &error else { panic!("{error}") };
    assert_eq!((shortage.cached, shortage.live), (Bytes::new(4096), large.size()));
}

/// A step of training has hundreds of small blocks of one size at once, and then none: all but those
/// of the first step come from the magazine's bins and its reserve.
#[test]
fn a_burst_of_small_blocks_is_had_from_the_magazine_the_next_time() {
    let pool = Pool::new(&phantom()).unwrap();
    for step in 0..4_u64 {
        let before = pool.statistics().magazine_hits;
        let sizes = [Bytes::new(4096), Bytes::new(9000)];
        let blocks: Vec<Block> =
            (0..150).map(|index| pool.allocate(sizes[index % 2], DEFAULT).unwrap()).collect();
        blocks.iter().for_each(|block| pool.free(block.address(), DEFAULT).unwrap());
        let hits = pool.statistics().magazine_hits - before;
        assert_eq!(hits, if step == 0 { 0 } else { 150 }, "step {step}");
    }
}

/// If thread caches hold next to nothing, a new size does not flush them: the pool grows by one small page. If they
/// hold more, they are flushed and nothing is mapped.
#[test]
fn a_little_is_left_at_hand_and_more_is_folded() {
    for (held, expected) in [(Bytes::gib(4), 1), (Bytes::mib(64), 0)] {
        let pool = Pool::new(&phantom()).unwrap();
        let _weights = pool.allocate(held, DEFAULT).unwrap();
        // All of the small pages, in blocks of one size.
        let mut blocks = vec![pool.allocate(Bytes::new(64 << 10), DEFAULT).unwrap()];
        let small = pool.statistics().held.checked_sub(held).unwrap();
        while blocks.len() as u64 * (64 << 10) < small.get() {
            blocks.push(pool.allocate(Bytes::new(64 << 10), DEFAULT).unwrap());
        }
        blocks.iter().for_each(|block| pool.free(block.address(), DEFAULT).unwrap());
        let before = pool.statistics();
        let _other = pool.allocate(Bytes::new(100_000), DEFAULT).unwrap();
        let after = pool.statistics();
        assert_eq!(after.misses - before.misses, expected, "{held}");
        pool.allocate(Bytes::new(64 << 10), DEFAULT).unwrap();
        assert_eq!(pool.statistics().magazine_hits - after.magazine_hits, expected, "{held}");
    }
}

/// A refusal caused by other users of the device reports how much they hold.
#[test]
fn a_shortage_tells_what_others_hold() {
    let device = open(SimMachine::builder().memory(MemoryModel::Phantom).capacity(Bytes::gib(1))).2;
    let other = Pool::new(&device).unwrap();
    let theirs = other.allocate(Bytes::mib(600), DEFAULT).unwrap();
    let pool = Pool::new(&device).unwrap();
    let Err(Error::OutOfMemory(shortage)) = pool.allocate(Bytes::mib(500), DEFAULT) else {
        panic!("there are 424 MiB");
    };
    assert_eq!(shortage.held_elsewhere, other.held());
    assert!(shortage.held_elsewhere >= Bytes::mib(600));
    let said = shortage.to_string();
    assert!(said.contains(&format!("others hold {}", other.held())), "{said}");
    assert!(said.contains("which other program uses the device"), "{said}");
    other.free(theirs.address(), DEFAULT).unwrap();
    other.trim(Bytes::ZERO).unwrap();
    pool.allocate(Bytes::mib(500), DEFAULT).unwrap();
}
