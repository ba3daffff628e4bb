//! Figures by side: what small and what large blocks take.

use super::*;

/// The cumulative figures of a side as a program counts them.
#[derive(Clone, Copy, Default)]
struct Model {
    allocations: u64,
    frees: u64,
    allocated: u64,
    freed: u64,
    requested_allocated: u64,
    requested_freed: u64,
}

fn check_side(figures: &SideStatistics, model: Model) {
    let counts = (figures.allocations, figures.frees, figures.blocks);
    assert_eq!(counts, (model.allocations, model.frees, model.allocations - model.frees));
    let sizes = (figures.allocated.get(), figures.freed.get(), figures.live.get());
    assert_eq!(sizes, (model.allocated, model.freed, model.allocated - model.freed));
    let requested =
        [figures.requested_allocated, figures.requested_freed, figures.requested].map(Bytes::get);
    let live = model.requested_allocated - model.requested_freed;
    assert_eq!(requested, [model.requested_allocated, model.requested_freed, live]);
}

/// The two sides are what the program did, and together what the pool says of both.
fn check_sides(pool: &Pool, models: [Model; 2]) {
    let now = pool.statistics();
    let (small, large) = (now.small, now.large);
    check_side(&small, models[0]);
    check_side(&large, models[1]);
    let both = |of: fn(&SideStatistics) -> u64| of(&small) + of(&large);
    assert_eq!(both(|side| side.allocations), now.allocations);
    assert_eq!(both(|side| side.frees), now.frees);
    assert_eq!(both(|side| side.blocks), now.blocks);
    assert_eq!(both(|side| side.pieces), now.pieces);
    assert_eq!(both(|side| side.pages), pool.page_count());
    assert_eq!(both(|side| side.live.get()), now.live.get());
    assert_eq!(both(|side| side.requested.get()), now.requested.get());
    assert_eq!(both(|side| side.held.get()), now.held.get());
    let out = now.live.saturating_add(now.cached);
    assert_eq!(both(|side| side.held.get() - side.in_holes.get()), out.get());
    assert_eq!(
        pool.snapshot().statistics.large.requested_allocated.get(),
        models[1].requested_allocated
    );
}

/// By every way that blocks come and go: magazines, the heap, other threads, other streams, caches given up.
#[test]
fn figures_by_side_are_exact() {
    for seed in 0..12 {
        let (_machine, device, shared) = open(SimMachine::builder().seed(seed));
        let pool = PoolOptions::new().growth(small_pages()).build(&shared).unwrap();
        let mut random = Random::new(seed);
        let stream = device.create_stream(Priority::Normal).unwrap();
        let mut models = [Model::default(); 2];
        let mut live: Vec<(Block, u64)> = Vec::new();
        // The largest small block and the smallest large one among them: both are of one size range.
        let few = [700, 1000, 262_144, 262_145, 262_144 + 512, 1_500_000, 3_000_000];
        for step in 0..600 {
            let order = *random.pick(&[DEFAULT, DEFAULT, stream]).unwrap();
            let size = if random.chance(3, 4) {
                *random.pick(&few).unwrap()
            } else {
                size_up_to(&mut random, 9, 22)
            };
            match random.below(20) {
                0..=9 => {
                    let block = pool.allocate(Bytes::new(size), order).unwrap();
                    let side = &mut models[usize::from(block.size() > Bytes::kib(256))];
                    side.allocations += 1;
                    side.allocated += block.size().get();
                    side.requested_allocated += size;
                    live.push((block, size));
                }
                10..=18 => {
                    let Some(index) = random.index(live.len()) else { continue };
                    // Most often the last: large blocks come back by the magazine.
                    let index = if random.chance(2, 3) { live.len() - 1 } else { index };
                    let (block, size) = live.swap_remove(index);
                    let side = &mut models[usize::from(block.size() > Bytes::kib(256))];
                    side.frees += 1;
                    side.freed += block.size().get();
                    side.requested_freed += size;
                    if random.chance(1, 10) {
                        let free = || pool.free_block(block, order).unwrap();
                        std::thread::scope(|scope| scope.spawn(free).join().unwrap());
                    } else {
                        pool.free_block(block, order).unwrap();
                    }
                }
                _ if step % 3 == 0 => drop(pool.trim(Bytes::ZERO).unwrap()),
                _ => pool.forget_stream(order).unwrap(),
            }
            check_sides(&pool, models);
        }
        assert!(pool.statistics().magazine_hits > 0 && pool.statistics().forgotten_frees > 0);
        for (block, _) in live {
            pool.free_block(block, DEFAULT).unwrap();
        }
    }
}

#[test]
fn restored_blocks_count_on_their_side() {
    let (_machine, _, device) = open(SimMachine::builder());
    let pool = PoolOptions::new().growth(small_pages()).build(&device).unwrap();
    let sizes = [1000, 262_145].map(Bytes::new);
    for size in sizes {
        pool.allocate(size, DEFAULT).unwrap();
    }
    let kept = pool.kept_blocks(&|_| DEFAULT);
    pool.restore(&[], &|_| DEFAULT).unwrap();
    pool.restore(&kept, &|_| DEFAULT).unwrap();
    let model = |size: u64, requested: u64| Model {
        allocations: 2,
        frees: 1,
        allocated: 2 * size,
        freed: size,
        requested_allocated: 2 * requested,
        requested_freed: requested,
    };
    check_sides(&pool, [model(1024, 1000), model(262_656, 262_145)]);
}
