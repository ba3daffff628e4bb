//! A pool is set back to the blocks it had, each where it was.

use super::*;

fn on_default(_: Address) -> StreamHandle {
    DEFAULT
}

fn options() -> PoolOptions {
    PoolOptions::new().growth(small_pages()).class(MemoryClass::STABLE)
}

/// What has to be the same when the blocks are.
fn figures(pool: &Pool) -> (Bytes, Bytes, u64, Vec<TagStatistics>) {
    let now = pool.statistics();
    assert_eq!(now.allocations - now.frees, now.blocks);
    (now.live, now.requested, now.blocks, now.tags)
}

#[test]
fn a_pool_gets_the_blocks_back_that_it_had() {
    let tag = Tag::named("kept");
    for (seed, class) in (0..40)
        .flat_map(|seed| [MemoryClass::STABLE, MemoryClass::PLAIN].map(|class| (seed, class)))
    {
        let (machine, device, shared) = open(SimMachine::builder().seed(seed));
        let pool = options().class(class).build(&shared).unwrap();
        let _capture = (seed % 2 == 0).then(|| pool.capture().unwrap());
        let mut random = Random::new(seed);
        let streams: Vec<StreamHandle> =
            (0..3).map(|_| device.create_stream(Priority::Normal).unwrap()).collect();
        let mut live: Vec<Block> = Vec::new();
        let mut checkpoints: Vec<(Vec<KeptBlock>, _)> = Vec::new();
        for step in 0..300 {
            let stream = *random.pick(&streams).unwrap();
            match random.below(12) {
                0..=6 => {
                    let _scope = random.chance(1, 3).then(|| tag.enter());
                    let size = Bytes::new(size_up_to(&mut random, 4, 22));
                    live.push(pool.allocate(size, stream).unwrap());
                }
                7..=10 => {
                    let Some(index) = random.index(live.len()) else { continue };
                    pool.free_block(live.swap_remove(index), stream).unwrap();
                }
                _ if step % 2 == 0 => {
                    let kept = pool.kept_blocks(&|_| stream);
                    assert_eq!(kept.len(), live.len());
                    checkpoints.push((kept, figures(&pool)));
                }
                _ => {
                    let Some((kept, then)) = random.pick(&checkpoints) else { continue };
                    let held = pool.held();
                    let before = pool.kept_blocks(&|_| DEFAULT);
                    pool.restore(kept, &|_| stream).unwrap();
                    // A block that was there with its size stays as it is, with its own request and tag.
                    let mut due = kept.clone();
                    for block in &mut due {
                        let same = |other: &&KeptBlock| {
                            (other.address, other.size) == (block.address, block.size)
                        };
                        if let Some(before) = before.iter().find(same) {
                            (block.requested, block.tag) = (before.requested, before.tag);
                        }
                    }
                    let again = pool.kept_blocks(&|_| kept.first().map_or(DEFAULT, |k| k.stream));
                    assert_eq!(again, due);
                    assert_eq!((figures(&pool).0, figures(&pool).2), (then.0, then.2));
                    let requested: u64 = due.iter().map(|block| block.requested.get()).sum();
                    assert_eq!(figures(&pool).1.get(), requested);
                    assert_eq!(pool.held(), held);
                    // A block that was there all along is the same block.
                    live.retain(|block| {
                        let stays = |kept: &KeptBlock| {
                            kept.address == block.address() && kept.size == block.size()
                        };
                        let stayed = before.iter().any(stays) && kept.iter().any(stays);
                        assert_eq!(pool.block_at(block.address()) == Some(*block), stayed);
                        stayed
                    });
                    live = kept.iter().filter_map(|kept| pool.block_at(kept.address)).collect();
                }
            }
        }
        for block in live {
            pool.free_block(block, DEFAULT).unwrap();
        }
        assert_eq!(figures(&pool).0, Bytes::ZERO);
        assert_eq!(machine.finding_count(), 0);
    }
}

#[test]
fn a_list_that_the_pool_cannot_have_changes_nothing() {
    let (_machine, _, device) = open(SimMachine::builder());
    let pool = options().build(&device).unwrap();
    let other = options().build(&device).unwrap();
    let block = pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
    let small = pool.allocate(Bytes::new(1000), DEFAULT).unwrap();
    let foreign = other.allocate(Bytes::mib(1), DEFAULT).unwrap();
    let kept = pool.kept_blocks(&on_default);
    let [one, two] = [small, block]
        .map(|block| *kept.iter().find(|kept| kept.address == block.address()).unwrap());
    pool.free_block(block, DEFAULT).unwrap();
    let before = (pool.kept_blocks(&on_default), pool.statistics());
    let beyond = Address::new(two.address.get() + (1 << 30));
    let refused = [
        vec![one, two, two],
        vec![one, KeptBlock { address: Address::new(one.address.get() + 512), ..one }],
        vec![KeptBlock { address: Address::new(two.address.get() + 8), ..two }],
        vec![KeptBlock { size: Bytes::new(two.size.get() + 8), ..two }],
        vec![KeptBlock { size: Bytes::ZERO, requested: Bytes::ZERO, ..two }],
        vec![KeptBlock { requested: two.size.saturating_add(Bytes::new(1)), ..two }],
        vec![KeptBlock { address: beyond, ..two }],
        vec![KeptBlock { address: foreign.address(), ..two }],
        vec![KeptBlock { size: Bytes::mib(900), requested: Bytes::mib(900), ..two }],
        // A small block has no place among large ones.
        vec![KeptBlock { size: Bytes::kib(1), requested: Bytes::kib(1), ..two }],
        vec![KeptBlock { address: Address::new(u64::MAX - 511), ..two }],
    ];
    for list in refused {
        let error = pool.restore(&list, &on_default).unwrap_err();
        assert!(matches!(error, Error::NotRestorable { .. }), "{error}");
        let mut after = (pool.kept_blocks(&on_default), pool.statistics());
        // Flushing the caches and looking at blocks is allowed.
        after.1.cached = before.1.cached;
        after.1.pieces = before.1.pieces;
        after.1.largest_free = before.1.largest_free;
        assert_eq!(after, before, "{error}");
    }
    let owned = pool.on(DEFAULT).owned(Bytes::mib(1)).unwrap();
    let error = pool.restore(&[one], &on_default).unwrap_err();
    assert_eq!(error, Error::Owned { address: owned.address() });
    drop(owned);
    pool.restore(&[one, two], &on_default).unwrap();
    assert_eq!(pool.kept_blocks(&on_default), kept);
    assert_eq!(pool.block_at(small.address()), Some(small));
    assert!(pool.block_at(block.address()).is_some_and(|again| again != block), "a new block");
}

#[test]
fn memory_that_other_work_uses_is_not_restored_over() {
    let (_machine, device, shared) = open(SimMachine::builder());
    let pool = options().build(&shared).unwrap();
    let stream = device.create_stream(Priority::Normal).unwrap();
    let block = pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
    let kept = pool.kept_blocks(&on_default);
    pool.record_use(block.address(), stream).unwrap();
    write(&device, block, 1, stream);
    pool.free_block(block, DEFAULT).unwrap();
    assert!(matches!(pool.restore(&kept, &on_default), Err(Error::NotRestorable { .. })));
    device.synchronize_device().unwrap();
    pool.process_deferred().unwrap();
    pool.restore(&kept, &on_default).unwrap();
    assert_eq!(pool.kept_blocks(&on_default), kept);
    // Emptied, by an empty list, though another stream has used the block.
    pool.record_use(block.address(), stream).unwrap();
    pool.restore(&[], &|_| stream).unwrap();
    assert_eq!((pool.statistics().blocks, pool.statistics().live), (0, Bytes::ZERO));
    let again = pool.allocate(Bytes::mib(1), stream).unwrap();
    assert_eq!(again.address(), block.address(), "free in the order of the stream that was said");
    // A block that is removed while another stream uses it waits for that stream, like one that is freed.
    let before = pool.kept_blocks(&on_default);
    pool.record_use(again.address(), stream).unwrap();
    write(&device, again, 2, stream);
    let halves: Vec<KeptBlock> = before
        .iter()
        .map(|kept| KeptBlock { size: Bytes::kib(512), requested: Bytes::kib(512), ..*kept })
        .collect();
    assert!(matches!(pool.restore(&halves, &on_default), Err(Error::NotRestorable { .. })));
    assert_eq!(pool.kept_blocks(&on_default), before);
    pool.restore(&[], &on_default).unwrap();
    assert_eq!(pool.statistics().blocks, 0);
    assert!(matches!(pool.restore(&before, &on_default), Err(Error::NotRestorable { .. })));
    device.synchronize_device().unwrap();
    pool.process_deferred().unwrap();
    pool.restore(&before, &on_default).unwrap();
}

#[test]
fn what_is_restored_is_recorded() {
    let (_machine, _, device) = open(SimMachine::builder());
    let pool = options().set(|settings| settings.history(100_u64)).build(&device).unwrap();
    let block = pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
    let kept = pool.kept_blocks(&on_default);
    pool.restore(&[], &on_default).unwrap();
    pool.restore(&kept, &on_default).unwrap();
    let actions: Vec<_> = pool.history().iter().map(|event| event.action).collect();
    use crate::report::EventAction::{Allocate, Free};
    assert_eq!(actions, [Allocate, Free, Allocate]);
    assert!(pool.history().iter().all(|event| event.address == block.address()));
    let checked = options().set(|settings| settings.canaries(true)).build(&device).unwrap();
    let error = checked.restore(&[], &on_default).unwrap_err();
    assert_eq!(error, Error::CaptureRefused { setting: "canaries" });
}
