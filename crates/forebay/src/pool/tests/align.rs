//! Blocks at multiples of more than 512 B.

use super::*;

fn aligned(pool: &Pool, size: u64, log2: u8) -> Result<Block> {
    let alignment = Alignment::of_log2(log2).unwrap();
    let block =
        pool.allocate_request(Request::new(Bytes::new(size), DEFAULT).aligned_to(alignment))?;
    assert!(block.address().is_aligned_to(alignment), "{} for {alignment}", block.address());
    assert!(block.size() >= Bytes::new(size));
    Ok(block)
}

/// Every alignment up to a device page, with sizes of both sides, in and out at random among plain
/// ones; data stays, and all of it comes back.
fn random_alignments(options: SimOptions, seed: u64) {
    let (machine, device, shared) = open(options.seed(seed));
    let pool = Pool::new(&shared).unwrap();
    let mut random = Random::new(seed);
    let wrong = Arc::new(AtomicU64::new(0));
    let mut live: Vec<(Block, u8)> = Vec::new();
    for step in 0..300_u32 {
        if live.len() < 30 && random.chance(11, 20) {
            let size = size_up_to(&mut random, 4, 20);
            let log2 = u8::try_from(random.between(0, 21)).unwrap();
            let block = aligned(&pool, size, log2).unwrap();
            assert_eq!(pool.requested_at(block.address()), Some(Bytes::new(size)));
            let tag = u8::try_from(step % 251).unwrap();
            write(&device, block, tag, DEFAULT);
            live.push((block, tag));
            none_overlap(live.iter().map(|&(block, _)| block));
        } else if let Some(index) = random.index(live.len()) {
            let (block, tag) = live.swap_remove(index);
            check(&device, block, tag, DEFAULT, &wrong);
            pool.free_block(block, DEFAULT).unwrap();
        }
    }
    for (block, tag) in live {
        check(&device, block, tag, DEFAULT, &wrong);
        pool.free(block.address(), DEFAULT).unwrap();
    }
    device.synchronize_device().unwrap();
    assert_eq!(wrong.load(Ordering::Relaxed), 0, "seed {seed}");
    assert_eq!(machine.finding_count(), 0, "seed {seed}");
    let statistics = pool.statistics();
    assert_eq!((statistics.live, statistics.requested), (Bytes::ZERO, Bytes::ZERO));
    // The callback allocates once when there is room again.
    pool.trim(Bytes::ZERO).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.held(), Bytes::ZERO, "what was cut off is lost");
}

#[test]
fn any_alignment_up_to_a_device_page_is_served() {
    for seed in 0..10 {
        random_alignments(SimMachine::builder().capacity(Bytes::gib(1)), seed);
        let segments = SimMachine::builder().capacity(Bytes::gib(1));
        random_alignments(segments.without(forebay_hal::Capabilities::VIRTUAL_MEMORY), seed);
    }
}

#[test]
fn an_aligned_block_that_came_back_serves_again() {
    let (_, _, shared) = open(SimMachine::builder().memory(MemoryModel::Phantom));
    let pool = Pool::new(&shared).unwrap();
    let once = |size| {
        let block = aligned(&pool, size, 21).unwrap();
        pool.free_block(block, DEFAULT).unwrap();
        block.address()
    };
    for size in [1000, 3 << 20] {
        once(size);
        let held = pool.held();
        let misses = pool.statistics().misses;
        for _ in 0..100 {
            once(size);
        }
        assert_eq!((pool.held(), pool.statistics().misses), (held, misses), "{size} B");
    }
    // And a plain one of that size may have the very block.
    let address = once(3 << 20);
    assert_eq!(pool.allocate(Bytes::mib(3), DEFAULT).unwrap().address(), address);
}

/// A pressure callback between allocating and trimming a piece may use so many streams that the request's own loses its
/// slot. The trimmed rest is not lost.
#[test]
fn what_is_cut_off_comes_back_where_streams_take_turns() {
    let (_, device, shared) = open(SimMachine::builder().memory(MemoryModel::Phantom));
    let streams: Vec<StreamHandle> =
        (0..70).map(|_| device.create_stream(Priority::Normal).unwrap()).collect();
    let number: Arc<std::sync::OnceLock<crate::PoolId>> = Arc::default();
    let options = {
        let (number, streams) = (Arc::clone(&number), streams.clone());
        PoolOptions::new().max_bytes(Bytes::mib(100)).on_pressure(move |_, _| {
            let pool = Pool::find(*number.get().unwrap()).unwrap();
            for &stream in &streams {
                let block = pool.allocate(Bytes::new(512), stream).unwrap();
                pool.free(block.address(), stream).unwrap();
            }
        })
    };
    let pool = options.build(&shared).unwrap();
    number.set(pool.id()).unwrap();
    let block = aligned(&pool, 80 << 20, 21).unwrap();
    assert!(pool.statistics().streams.len() > 64, "nobody was told of pressure");
    pool.free(block.address(), DEFAULT).unwrap();
    // The callback allocates once when there is room again.
    pool.trim(Bytes::ZERO).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.held(), Bytes::ZERO, "what was cut off is lost");
}
