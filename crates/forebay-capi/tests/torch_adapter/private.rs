//! Private pools: of CUDA graphs and of `torch.cuda.MemPool`.

use super::*;

#[test]
fn a_private_pool_lives_as_long_as_its_users_and_blocks() {
    let _alone = alone();
    let number = PoolNumber { first: 7, second: 1 };
    assert_eq!(forebay_torch_use_count(0, number), 0);
    assert!(try_allocate_in(MIB, 0, number, false).is_null());
    assert!(last_error().contains("there is no pool (7, 1) of GPU 0"), "{}", last_error());
    assert_eq!(forebay_torch_is_out_of_memory(), 0);
    refused(forebay_torch_release(0, number), "there is no pool (7, 1)");
    refused(forebay_torch_end(0, number), "there is no pool (7, 1)");

    ok(forebay_torch_retain(0, number));
    ok(forebay_torch_begin(0, number));
    assert_eq!(forebay_torch_use_count(0, number), 2);
    assert_eq!(forebay_torch_use_count(1, number), 0, "pools are each GPU's own");
    let block = allocate_in(3 * MIB, 0, number, false);
    ok(forebay_torch_end(0, number));
    refused(forebay_torch_end(0, number), "there is no pool");
    assert_eq!(forebay_torch_use_count(0, number), 2, "the user of begin stays until release");
    let after = allocate_in(MIB, 0, number, false);
    let (held, blocks) = walk_pool(0, number);
    assert!(held >= 4 << 20);
    assert_eq!(blocks.len(), 2);
    ok(free(after));
    ok(forebay_torch_release(0, number));
    ok(forebay_torch_release(0, number));
    refused(forebay_torch_release(0, number), "there is no pool");

    // A block of it lives: emptying the cache leaves it where it is, and it can be freed.
    ok(forebay_torch_empty_cache(GPU_POOL));
    assert_eq!(walk_pool(0, number).1.len(), 1);
    assert_eq!(find(block.addr(), true).unwrap().pool, number);
    ok(free(block));
    let (held, blocks) = walk_pool(0, number);
    assert!(held >= 3 << 20 && blocks.is_empty(), "an unused pool stays until memory is short");
    assert_eq!(forebay_torch_drop_unused(), 1);
    assert_eq!(forebay_torch_drop_unused(), 0);
    assert_eq!(walk_pool(0, number).0, 0);
    refused(free(block), "");
}

#[test]
fn emptying_the_cache_drops_unused_pools_but_not_while_a_graph_may_be_captured() {
    let _alone = alone();
    let [kept, gone] = [1, 2].map(|second| PoolNumber { first: 8, second });
    ok(forebay_torch_retain(0, gone));
    ok(free(allocate_in(4 * MIB, 0, gone, false)));
    ok(forebay_torch_release(0, gone));
    ok(forebay_torch_begin(0, kept));
    ok(forebay_torch_empty_cache(GPU_POOL));
    assert!(walk_pool(0, gone).0 > 0, "a graph may be captured meanwhile");
    ok(free(allocate_in(MIB, 0, kept, false)));
    ok(forebay_torch_empty_cache(GPU_POOL));
    assert_eq!(walk_pool(0, gone).0, 0, "a request showed that none is captured");
    assert!(walk_pool(0, kept).0 > 0, "a pool in use keeps its memory");
    ok(forebay_torch_end(0, kept));
    ok(forebay_torch_release(0, kept));
    ok(forebay_torch_empty_cache(GPU_POOL));
    assert_eq!(walk_pool(0, kept).0, 0);
}

#[test]
fn a_pool_that_a_graph_was_captured_from_keeps_its_memory() {
    let _alone = alone();
    let number = PoolNumber { first: 9, second: 0 };
    ok(forebay_torch_begin(0, number));
    let block = allocate_in(2 * MIB, 0, number, true);
    ok(free(block));
    assert_eq!(allocate_in(2 * MIB, 0, number, true), block, "the order of the capture is enough");
    ok(free(block));
    // The GPU's own pool serves others meanwhile.
    let other = allocate(MIB, 0, 0);
    assert_eq!(find(other.addr(), true).unwrap().pool, GPU_POOL);
    ok(free(other));
    ok(forebay_torch_end(0, number));
    let held = walk_pool(0, number).0;
    assert!(held >= 2 << 20);
    ok(forebay_torch_empty_cache(number));
    assert_eq!(walk_pool(0, number).0, held, "a graph may use it");
    ok(forebay_torch_release(0, number));
    ok(forebay_torch_empty_cache(GPU_POOL));
    assert_eq!(walk_pool(0, number).0, 0);
}

#[test]
fn a_destroyed_graph_returns_its_memory_while_a_result_lives() {
    let _alone = alone();
    let driver = Driver::open();
    let [launches] = driver.streams(0);
    let number = PoolNumber { first: 10, second: 0 };
    let before = stats(0);
    ok(forebay_torch_begin(0, number));
    let temporaries = [(); 8].map(|()| allocate_in(20 * MIB, 0, number, true));
    for block in &temporaries[..7] {
        ok(free(*block));
    }
    let result = allocate_in(MIB, 0, number, true);
    ok(free(temporaries[7]));
    ok(forebay_torch_end(0, number));
    let reserved =
        |now: DeviceStatistics| now.reserved_bytes[0].current - before.reserved_bytes[0].current;
    let with_graph = reserved(stats(0));
    assert!(with_graph >= 160 << 20, "{with_graph}");
    ok(forebay_torch_empty_cache(GPU_POOL));
    assert_eq!(reserved(stats(0)), with_graph, "the graph may be launched again");
    // The last launch, on a stream that the pool does not know, is still running when the graph is destroyed.
    for block in temporaries {
        driver.fill(launches, block, 20 * MIB, 10);
    }
    driver.fill(launches, result, MIB, 1);
    ok(forebay_torch_release(0, number));
    assert_eq!(reserved(stats(0)), with_graph, "until memory is short or the cache is emptied");
    ok(forebay_torch_empty_cache(GPU_POOL));
    assert!(driver.is_done(launches), "its memory went while it was running");
    let left = reserved(stats(0));
    assert!((1..=20 << 20).contains(&left), "{left} B are reserved for a result of 1 MiB");
    assert_eq!(walk_pool(0, number).1.len(), 1);
    assert_eq!(stats(0).allocation[0].current, before.allocation[0].current + 1);
    ok(free(result));
    ok(forebay_torch_empty_cache(GPU_POOL));
    assert_eq!(reserved(stats(0)), 0);
}

#[test]
fn a_refused_request_gets_what_a_destroyed_graph_left() {
    let _alone = alone();
    let number = PoolNumber { first: 11, second: 0 };
    ok(forebay_torch_begin(0, number));
    let result = allocate_in(MIB, 0, number, true);
    let temporary = allocate_in(64 * MIB, 0, number, true);
    ok(free(temporary));
    ok(forebay_torch_end(0, number));
    assert_eq!(forebay_torch_drop_unused(), 0, "the graph may be launched again");
    ok(forebay_torch_release(0, number));
    assert_eq!(forebay_torch_drop_unused(), 1);
    assert_eq!(forebay_torch_drop_unused(), 0);
    let (held, blocks) = walk_pool(0, number);
    assert!(held < 64 << 20 && blocks.len() == 1, "{held}");
    ok(free(result));
    assert_eq!(forebay_torch_drop_unused(), 1);
}

/// Ends a thread that looks at the flag.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Emptying the cache releases no memory that a graph was captured from, until the graph is destroyed.
#[test]
fn a_graph_keeps_its_memory_while_the_cache_is_emptied() {
    let _alone = alone();
    let number = PoolNumber { first: 11, second: 0 };
    // Results of graphs that are gone. Many others, so that there is time before it is the turn of this one.
    let others = (1..=60).map(|second| PoolNumber { second, ..number });
    let result_of = |number| {
        ok(forebay_torch_begin(0, number));
        let result = allocate_in(MIB, 0, number, true);
        ok(forebay_torch_end(0, number));
        ok(forebay_torch_release(0, number));
        result
    };
    let results: Vec<_> = others.chain([number]).map(result_of).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                ok(forebay_torch_empty_cache(GPU_POOL));
            }
        });
        // By a panic too: the scope waits for the other thread.
        let _ends = Ends(&is_over);
        let held = (0..300).map(|_| {
            ok(forebay_torch_begin(0, number));
            ok(free(allocate_in(8 * MIB, 0, number, true)));
            ok(forebay_torch_end(0, number));
            let held = (0..20).map(|_| walk_pool(0, number).0).min().unwrap();
            ok(forebay_torch_release(0, number));
            held
        });
        let least = held.min().unwrap();
        assert!(least >= 9 << 20, "{least} B were held with a graph of 8 MiB and a block of 1 MiB");
    });
    results.into_iter().for_each(|result| ok(free(result)));
    ok(forebay_torch_empty_cache(GPU_POOL));
    assert_eq!(walk_pool(0, number).0, 0);
}
