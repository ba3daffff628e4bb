//! What fits in bytes fits in fact: while the pages that no live block touches add up to a request, within the limit and
//! in whole granules of the device, the request succeeds.

use std::collections::BTreeSet;

use super::*;

const GRANULE: Bytes = Bytes::mib(2);

/// A pool that holds at most `granules`, on a device that has more.
fn limited(granules: u64, odd: Bytes) -> Pool {
    let options = SimMachine::builder().memory(MemoryModel::Phantom);
    let limit = Bytes::new(granules * GRANULE.get()).saturating_sub(odd);
    PoolOptions::new().max_bytes(limit).build(&open(options).2).unwrap()
}

/// The granules that `blocks` touch.
fn touched(blocks: &[Block]) -> u64 {
    let granules = |block: &Block| {
        let (start, end) = (block.address.get(), block.address.get() + block.size.get());
        start / GRANULE.get()..end.div_ceil(GRANULE.get())
    };
    blocks.iter().flat_map(granules).collect::<BTreeSet<u64>>().len() as u64
}

/// Allocates and frees at random near the limit: sizes of all kinds, on two streams, with small blocks that are left
/// behind to pin pages.
fn play(seed: u64, limit: u64, odd: Bytes) {
    let mut random = forebay_core::Random::new(seed);
    let pool = limited(limit, odd);
    let streams = [DEFAULT, pool.device().create_stream(Priority::Normal).unwrap()];
    let mut live: Vec<Block> = Vec::new();
    let (mut refused, mut served) = (0, 0);
    for _ in 0..600 {
        let stream = streams[random.index(2).unwrap()];
        if random.chance(2, 5)
            && let Some(index) = random.index(live.len())
        {
            pool.free_block(live.swap_remove(index), stream).unwrap();
            continue;
        }
        let size = match random.below(4) {
            0 => Bytes::new(1 + random.below(4096)),
            1 => Bytes::new(1 + random.below(1 << 20)),
            2 => Bytes::new(1 + random.below(8 * GRANULE.get())),
            _ => Bytes::new((1 + random.below(limit)) * GRANULE.get()),
        };
        let free = limit - touched(&live);
        match pool.allocate(size, stream) {
            Ok(block) => live.push(block),
            Err(error) => {
                refused += 1;
                let whole = size.get().div_ceil(GRANULE.get());
                assert!(whole > free, "{size} with {free} granules free, seed {seed}: {error}");
                continue;
            }
        }
        served += 1;
        assert!(pool.held().get() <= limit * GRANULE.get());
    }
    assert!(refused > 20 && served > 100, "{refused} refused, {served} served");
}

#[test]
fn what_fits_into_free_granules_within_the_limit_succeeds() {
    for seed in 0..if cfg!(miri) { 1 } else { 40 } {
        // Limits that are whole granules, and limits that are not.
        let odd = if seed % 2 == 0 { Bytes::ZERO } else { Bytes::new(1 + seed * 52_001) };
        play(seed, 8 + seed * 3 % 50, odd);
    }
}

/// Another process takes and returns memory of the device at random. Whatever it leaves, and whatever the pool has in
/// pages that no live block touches, adds up to what the pool can have.
fn play_beside_another(seed: u64) {
    let mut random = forebay_core::Random::new(seed);
    let all = 40 + seed % 30;
    let capacity = Bytes::new(all * GRANULE.get());
    let (machine, _, device) =
        open(SimMachine::builder().capacity(capacity).memory(MemoryModel::Phantom));
    let pool = PoolOptions::new().build(&device).unwrap();
    let (mut live, mut theirs): (Vec<Block>, Vec<(Address, u64)>) = (Vec::new(), Vec::new());
    let (mut refused, mut served) = (0, 0);
    for _ in 0..600 {
        match random.below(10) {
            0 | 1 => {
                let granules = 1 + random.below(all / 4);
                let taken =
                    device.allocate(Bytes::new(granules * GRANULE.get()), Alignment::DEVICE_PAGE);
                theirs.extend(taken.map(|at| (at, granules)));
            }
            2 => {
                if let Some(index) = random.index(theirs.len()) {
                    // SAFETY: nothing was ever enqueued on it.
                    unsafe { device.free(theirs.swap_remove(index).0).unwrap() };
                }
            }
            3..6 => {
                if let Some(index) = random.index(live.len()) {
                    pool.free_block(live.swap_remove(index), DEFAULT).unwrap();
                }
            }
            kind => {
                let most = if kind == 6 { 1 << 20 } else { all * GRANULE.get() / 4 };
                let size = Bytes::new(1 + random.below(most));
                let their = theirs.iter().map(|taken| taken.1).sum::<u64>();
                let free = all - their - touched(&live);
                let before = machine.census().held;
                match pool.allocate(size, DEFAULT) {
                    Ok(block) => {
                        live.push(block);
                        served += 1;
                    }
                    Err(error) => {
                        refused += 1;
                        let whole = size.get().div_ceil(GRANULE.get());
                        assert!(
                            whole > free,
                            "{size} with {free} granules free, seed {seed}: {error}"
                        );
                        // Nothing is taken for what is refused.
                        assert!(machine.census().held <= before);
                    }
                }
            }
        }
    }
    assert!(refused > 10 && served > 60, "{refused} refused, {served} served");
    // A trimmed pool has only the pages that its blocks touch.
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.held().get(), touched(&live) * GRANULE.get());
}

#[test]
fn what_another_process_leaves_can_be_had() {
    for seed in 0..if cfg!(miri) { 1 } else { 30 } {
        play_beside_another(seed);
    }
}

/// A limit counts in whole pages, of which a pool consists: a block as large as the limit fits, whatever the limit.
#[test]
fn a_block_as_large_as_the_limit_fits() {
    for limit in
        [Bytes::new(1), Bytes::kib(100), Bytes::mib(1), Bytes::mib(3), Bytes::new(1_000_000_000)]
    {
        let device = open(SimMachine::builder().memory(MemoryModel::Phantom)).2;
        for class in [MemoryClass::STITCHED, MemoryClass::PLAIN] {
            let pool = PoolOptions::new().class(class).max_bytes(limit).build(&device).unwrap();
            let block = pool.allocate(limit, DEFAULT).unwrap();
            assert!(pool.allocate(GRANULE, DEFAULT).is_err(), "{limit}");
            assert!(pool.held() < limit.saturating_add(GRANULE));
            pool.free_block(block, DEFAULT).unwrap();
            pool.set("max_bytes", "5MiB").unwrap();
            pool.allocate(Bytes::mib(5), DEFAULT).unwrap();
        }
    }
}

/// A request that cannot be served changes nothing, however many holes there are.
#[test]
fn a_hopeless_request_changes_nothing_with_many_holes() {
    let (machine, device, shared) =
        open(SimMachine::builder().memory(MemoryModel::Phantom).capacity(Bytes::gib(4)));
    let options = PoolOptions::new().set(|set| set.magazines(false));
    let pool = options.max_bytes(Bytes::mib(300)).build(&shared).unwrap();
    let other = device.create_stream(Priority::Normal).unwrap();
    let blocks: Vec<Block> =
        (0..50_000).map(|_| pool.allocate(Bytes::new(512), DEFAULT).unwrap()).collect();
    for block in blocks.iter().step_by(2) {
        pool.free_block(*block, DEFAULT).unwrap();
    }
    let live = pool.allocate(Bytes::mib(100), DEFAULT).unwrap();
    let idle = pool.allocate(Bytes::mib(50), DEFAULT).unwrap();
    let used = pool.allocate(Bytes::mib(16), DEFAULT).unwrap();
    pool.record_use(used.address(), other).unwrap();
    let long = Duration::from_secs(1 << 20);
    let span = Span::new(used.address(), used.size()).unwrap();
    // SAFETY: the block is reused only after this work, which was recorded.
    unsafe { device.launch(Kernel::new("long").reads(span).duration(long), other).unwrap() };
    pool.free_block(used, DEFAULT).unwrap();
    pool.free_block(idle, DEFAULT).unwrap();
    let state = || {
        let calls = [Call::Unmap, Call::ReleasePage, Call::CreatePage, Call::SynchronizeDevice];
        (pool.held(), pool.page_count(), calls.map(|call| machine.calls().of(call)))
    };
    let before = state();
    assert!(pool.allocate(Bytes::mib(250), DEFAULT).is_err());
    assert_eq!(state(), before);
    // What fits is served: by what is free, and by what comes back.
    let rest = pool.allocate(Bytes::mib(120), DEFAULT).unwrap();
    pool.free_block(rest, DEFAULT).unwrap();
    pool.free_block(live, DEFAULT).unwrap();
}
