//! STRESS-CLIFFS: the cost of one call as the pool around it gets ten and a hundred times larger.
//!
//! Each case measures one call beside a growing number of something that the call does not use: streams, holes, pages,
//! threads, pools, scopes. A cost that grows with that number is a cliff for programs that have many. The last row of a
//! case compares its median with that of the first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{Builder, JoinHandle};

use forebay::{Block, Pool};
use forebay_core::Bytes;
use forebay_hal::{Device, Priority, Stream, StreamHandle};

use super::tools::{Latch, PAIR, STACK, Times, new_row, phantom, ratio};
use crate::bench::row::Row;
use crate::bench::setup::{BenchSetup, streams};
use crate::layout::grouped;
use crate::output::Fault;

/// Makes the call of a case and times it. The pool and all that is beside it live as long as this.
type Operation = Box<dyn FnMut(usize, &mut Times) -> Result<(), Fault>>;

/// One case: what there are many of, how many of them, how often the call is measured at most, the most that the last row
/// may take as a multiple of the first, and what prepares the call.
type Cliff = (
    &'static str,
    &'static [usize],
    usize,
    f64,
    fn(BenchSetup<'_>, usize) -> Result<Operation, Fault>,
);

/// The bounds: 3 where the cost is to stay as it is, more where it may grow with a logarithm or the call works on all of
/// what is counted.
#[rustfmt::skip] // a table: one line for each
const CLIFFS: [Cliff; 11] = [
    ("gaps, a request that fills them", &[80, 800, 8_000], 1, 300.0, |setup, count| fill_gaps(setup, count, false)),
    ("gaps, another thread's longest pair meanwhile", &[80, 800, 8_000], 1, 300.0, |setup, count| fill_gaps(setup, count, true)),
    ("pages, a request that moves three", &[200, 2_000, 20_000], 50, 10.0, move_pages),
    ("streams, a small and a large pair on each in turn", &[100, 1_000, 2_000, 3_000], 20_000, 3.0, on_streams),
    ("streams, one of them dropped", &[100, 1_000, 3_000], 500, 3.0, drop_stream),
    ("streams that share 10,000 holes, a large pair", &[1, 8, 64, 200], 2_000, 10.0, holes_on_streams),
    ("threads, the statistics", &[20, 200, 2_000], 20, 100.0, |setup, count| beside_threads(setup, count, false)),
    ("threads, a refusal", &[20, 200, 2_000], 20, 100.0, |setup, count| beside_threads(setup, count, true)),
    ("pools, whose block it is", &[10, 100, 1_000], 1_000, 6.0, |setup, count| beside_pools(setup, count, false)),
    ("pools, a stream made and dropped beside them", &[10, 100, 1_000], 50, 3.0, |setup, count| beside_pools(setup, count, true)),
    ("open scopes, a large pair", &[1, 100, 10_000], 2_000, 3.0, in_scopes),
];

const STREAM: StreamHandle = StreamHandle::DEFAULT;

pub(super) fn measure(setup: BenchSetup<'_>) -> Result<Vec<Row>, Fault> {
    let mut rows = Vec::new();
    for (what, counts, calls, at_most, prepare) in CLIFFS {
        let mut first = None;
        for (index, &count) in counts.iter().enumerate() {
            // A quick run only has to show that everything works.
            let count = setup.effort.pick(count, count.div_ceil(20));
            let mut row = new_row(setup, format!("{} {what}", grouped(count)));
            row.time(setup, 5, calls, prepare(setup, count)?)?.enter(&mut row);
            let median = row.median_ns();
            first = first.or(median);
            if index + 1 == counts.len() {
                row.aim("this median / the first", ratio(median, first), at_most);
            }
            rows.push(row);
        }
    }
    Ok(rows)
}

/// A device with as much memory as any case wants.
fn device() -> Result<Arc<dyn Device>, Fault> {
    phantom(4096).map(|(_, device)| device)
}

/// A pool whose pages are 2 MiB.
fn pool_of_small_pages(setup: BenchSetup<'_>) -> Result<Pool, Fault> {
    let pool = setup.pool(&device()?, None)?;
    pool.set("largest_page", "2MiB")?;
    Ok(pool)
}

fn pair(pool: &Pool, size: Bytes, stream: StreamHandle) -> Result<(), Fault> {
    let block = pool.allocate(size, stream)?;
    Ok(pool.free_block(block, stream)?)
}

fn blocks(pool: &Pool, size: Bytes, count: usize) -> Result<Vec<Block>, Fault> {
    Ok((0..count).map(|_| pool.allocate(size, STREAM)).collect::<Result<_, _>>()?)
}

/// Frees every other block and returns the rest.
fn free_every_other(pool: &Pool, blocks: Vec<Block>) -> Result<Vec<Block>, Fault> {
    let mut kept = Vec::new();
    for (index, block) in blocks.into_iter().enumerate() {
        if index % 2 == 0 {
            pool.free_block(block, STREAM)?;
        } else {
            kept.push(block);
        }
    }
    Ok(kept)
}

/// Gaps of 2 MiB, and as many free pages of 4 MiB, which fit in none of them: one request fills all gaps. `beside` times
/// the longest pair that another thread makes meanwhile instead.
fn fill_gaps(setup: BenchSetup<'_>, count: usize, beside: bool) -> Result<Operation, Fault> {
    let pool = pool_of_small_pages(setup)?;
    let small = blocks(&pool, Bytes::mib(2), 2 * count)?;
    let small = free_every_other(&pool, small)?;
    pool.trim(Bytes::ZERO)?;
    pool.set("largest_page", "4MiB")?;
    let large = blocks(&pool, Bytes::mib(4), 2 * count)?;
    free_every_other(&pool, large)?;
    for block in small {
        pool.free_block(block, STREAM)?;
    }
    let size = Bytes::mib(4 * count as u64 - 4);
    Ok(Box::new(move |_, times| {
        if !beside {
            times.time(|| pool.allocate(size, STREAM))?;
            return Ok(());
        }
        let longest = longest_pair_during(&pool, || Ok(pool.allocate(size, STREAM)?))?;
        times.push(longest);
        Ok(())
    }))
}

/// The longest of the pairs that another thread makes during `call`.
fn longest_pair_during<T>(
    pool: &Pool,
    call: impl FnOnce() -> Result<T, Fault>,
) -> Result<u64, Fault> {
    let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let pairs = scope.spawn(|| {
            let mut times = Times::default();
            for number in 0_u64.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let sizes = [64 + number % 100, 300 + 50 * (number % 9)].map(Bytes::kib);
                times.time(|| sizes.iter().try_for_each(|&size| pair(pool, size, STREAM)))?;
                if !begun.swap(true, Ordering::Relaxed) {
                    // The first pair warms up.
                    times = Times::default();
                }
            }
            Ok::<_, Fault>(times.most().unwrap_or(0))
        });
        while !begun.load(Ordering::Relaxed) && !pairs.is_finished() {
            std::thread::yield_now();
        }
        let called = call();
        over.store(true, Ordering::Relaxed);
        let longest = pairs.join().map_err(|_| "the other thread panicked")?;
        called.and(longest)
    })
}

/// Every second page is free, and none beside another: a request of 6 MiB moves three.
fn move_pages(setup: BenchSetup<'_>, count: usize) -> Result<Operation, Fault> {
    let pool = pool_of_small_pages(setup)?;
    let all = blocks(&pool, Bytes::mib(2), count)?;
    free_every_other(&pool, all)?;
    Ok(Box::new(move |_, times| {
        times.time(|| pool.allocate(Bytes::mib(6), STREAM))?;
        Ok(())
    }))
}

/// Each stream in turn: four calls.
fn on_streams(setup: BenchSetup<'_>, count: usize) -> Result<Operation, Fault> {
    let device = device()?;
    let pool = setup.pool(&device, None)?;
    let streams = streams(&device, count)?;
    let both = move |stream: &Stream| {
        pair(&pool, PAIR, stream.handle())?;
        pair(&pool, Bytes::mib(1), stream.handle())
    };
    streams.iter().try_for_each(&both)?;
    Ok(Box::new(move |number, times| {
        let stream = streams.get(number % streams.len()).ok_or("there is no stream")?;
        times.time(|| both(stream))
    }))
}

/// Streams with blocks in their caches; one ends.
fn drop_stream(setup: BenchSetup<'_>, count: usize) -> Result<Operation, Fault> {
    let device = device()?;
    let pool = setup.pool(&device, None)?;
    let mut streams = streams(&device, count)?;
    for stream in &streams {
        pair(&pool, PAIR, stream.handle())?;
    }
    Ok(Box::new(move |_, times| {
        let stream = streams.pop().ok_or("all streams are gone")?;
        times.time(|| drop(stream));
        let next = Stream::new(&device, Priority::Normal)?;
        pair(&pool, PAIR, next.handle())?;
        streams.insert(0, next);
        Ok(())
    }))
}

/// Holes that belong to the streams in turn, with a live block between every two.
fn holes_on_streams(setup: BenchSetup<'_>, count: usize) -> Result<Operation, Fault> {
    let holes = setup.effort.pick(10_000, 500);
    let device = device()?;
    let pool = setup.pool(&device, None)?;
    let streams = streams(&device, count)?;
    let of = |number: usize| streams.get(number % count).map_or(STREAM, Stream::handle);
    let sizes = (0..2 * holes).map(|number: usize| Bytes::kib(300 + number as u64 * 7919 % 400));
    let all: Vec<Block> = (0_usize..)
        .zip(sizes)
        .map(|(number, size)| pool.allocate(size, of(number / 2)))
        .collect::<Result<_, _>>()?;
    for (number, block) in all.into_iter().enumerate().step_by(2) {
        pool.free_block(block, of(number / 2))?;
    }
    Ok(Box::new(move |number, times| {
        let stream = streams.get(number % count).map_or(STREAM, Stream::handle);
        times.time(|| pair(&pool, Bytes::kib(280 + number as u64 * 31 % 500), stream))
    }))
}

/// Threads that have cached some blocks and wait until this is dropped.
struct Idle {
    latch: Arc<Latch>,
    threads: Vec<JoinHandle<()>>,
}

impl Idle {
    fn new(pool: &Pool, count: usize) -> Result<Self, Fault> {
        let mut idle = Self { latch: Arc::default(), threads: Vec::new() };
        let (ready, are_ready) = mpsc::channel::<()>();
        for _ in 0..count {
            let (pool, latch, ready) = (pool.clone(), Arc::clone(&idle.latch), ready.clone());
            let body = move || {
                let sizes = (1..=20).map(Bytes::kib);
                let held: Vec<Block> =
                    sizes.filter_map(|size| pool.allocate(size, STREAM).ok()).collect();
                held.into_iter().for_each(|block| _ = pool.free_block(block, STREAM));
                // Not a barrier: if a later thread cannot be started, the others would wait there for ever.
                drop(ready);
                latch.wait();
            };
            idle.threads.push(Builder::new().stack_size(STACK).spawn(body)?);
        }
        drop(ready);
        // Nothing is sent: it ends when every thread has dropped its sender.
        let _ = are_ready.recv();
        Ok(idle)
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.latch.open();
        self.threads.drain(..).for_each(|thread| _ = thread.join());
    }
}

/// Statistics, or a refusal, of a pool that many threads have used.
fn beside_threads(setup: BenchSetup<'_>, count: usize, refused: bool) -> Result<Operation, Fault> {
    let pool = setup.pool(&device()?, None)?;
    let idle = Idle::new(&pool, count)?;
    let large = pool.allocate(Bytes::gib(1), STREAM)?;
    let limit = pool.held();
    pool.set("max_bytes", &limit.get().to_string())?;
    let half = Bytes::new(limit.get() / 2);
    Ok(Box::new(move |_, times| {
        let (_idle, _large) = (&idle, &large);
        if !refused {
            let statistics = times.time(|| pool.statistics());
            return if statistics.blocks == 1 { Ok(()) } else { Err("a block is lost".into()) };
        }
        match times.time(|| pool.allocate(half, STREAM)) {
            Ok(_) => Err("half of the limit fit beside almost all of it".into()),
            Err(_) => Ok(()),
        }
    }))
}

/// Many pools with a block each: whose an address is, or a stream that none of them has seen.
fn beside_pools(setup: BenchSetup<'_>, count: usize, dropped: bool) -> Result<Operation, Fault> {
    let device = device()?;
    let pools: Vec<Pool> =
        (0..count).map(|_| setup.pool(&device, None)).collect::<Result<_, _>>()?;
    let blocks = pools.iter().map(|pool| pool.allocate(Bytes::mib(1), STREAM));
    let blocks: Vec<Block> = blocks.collect::<Result<_, _>>()?;
    Ok(Box::new(move |number, times| {
        if dropped {
            return Ok(times.time(|| Stream::new(&device, Priority::Normal).map(drop))?);
        }
        let index = number * 7 % pools.len();
        let (pool, block) = pools.get(index).zip(blocks.get(index)).ok_or("there is no pool")?;
        let owner = times.time(|| Pool::owning(block.address()));
        match owner {
            Some(owner) if owner.id() == pool.id() => Ok(()),
            _ => Err("the owner of a block was not found".into()),
        }
    }))
}

fn in_scopes(setup: BenchSetup<'_>, count: usize) -> Result<Operation, Fault> {
    let pool = setup.pool(&device()?, None)?;
    let scopes: Vec<_> = (0..count).map(|_| pool.scope()).collect();
    let live = pool.allocate(Bytes::mib(1), STREAM)?;
    Ok(Box::new(move |number, times| {
        let (_scopes, _live) = (&scopes, &live);
        times.time(|| pair(&pool, Bytes::kib(300 + number as u64 % 7 * 100), STREAM))
    }))
}
