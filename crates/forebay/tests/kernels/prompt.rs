//! No call of a pool waits for work that has nothing to do with it: each is timed while long work
//! runs on a stream. Two are left out: `trim`, which says that it waits, and dropping a pool. `collect` returns all that is
//! idle before it returns, so it may take as long as the driver's calls for each page, which is far less than the work.

use std::time::{Duration, Instant};

use forebay::config::Growth;
use forebay::hal::Progress;
use forebay::{Block, Bytes, Pool, PoolOptions, Stream};

use crate::hands::Hands;
use crate::{Step, ensure};

/// What a block of the crowd takes, and how many there are.
const SIZE: Bytes = Bytes::mib(4);
const CROWD: u64 = 64;

/// What `collect` may take for each page that it returns: one H200 took 6.0 and 6.6 ms for some 130 pages of 2 MiB.
const EACH_PAGE: Duration = Duration::from_micros(100);

/// Calls by name, and how long the slowest took.
struct Watch {
    calls: u64,
    slowest: (Duration, &'static str),
}

impl Watch {
    fn new() -> Self {
        Self { calls: 0, slowest: (Duration::ZERO, "none") }
    }

    /// Makes a call and notes how long it took.
    fn time<T>(&mut self, name: &'static str, call: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let made = call();
        self.note(begun.elapsed(), name);
        made
    }

    fn note(&mut self, took: Duration, name: &'static str) {
        self.calls += 1;
        self.slowest = self.slowest.max((took, name));
    }

    /// Collects, and notes how long that took beyond what its pages may take.
    fn collect(&mut self, pool: &Pool) -> Step {
        let pages = |pool: &Pool| pool.statistics().small.pages + pool.statistics().large.pages;
        let before = pages(pool);
        let begun = Instant::now();
        pool.collect(Duration::ZERO)?;
        let took = begun.elapsed();
        let returned = u32::try_from(before.saturating_sub(pages(pool)))?;
        self.note(took.saturating_sub(EACH_PAGE * returned), "collect");
        Ok(())
    }
}

pub(crate) fn no_hidden_wait(hands: &Hands) -> Step {
    watch(hands, PoolOptions::new(), "a pool without a limit")
}

/// The crowd fills the pool but for one block: what is larger than a hole must be stitched.
pub(crate) fn no_hidden_wait_at_the_limit(hands: &Hands) -> Step {
    let limit = Bytes::new((CROWD + 2) * SIZE.get());
    // A page larger than a block of the crowd would not come free with it.
    let mut growth = Growth::default();
    growth.largest_page = Bytes::mib(2);
    let options = PoolOptions::new().max_bytes(limit).growth(growth);
    watch(hands, options, "a pool at its limit")
}

fn watch(hands: &Hands, options: PoolOptions, which: &str) -> Step {
    // A fake driver's calls take as long as the machine is busy: there the question is only whether
    // they wait for the work.
    let (long, most) = match hands.real {
        true => (Duration::from_millis(300), Duration::from_millis(5)),
        false => (Duration::from_secs(2), Duration::from_secs(1)),
    };
    let busy = hands.stream()?;
    let streams = [hands.stream()?, hands.stream()?, hands.stream()?, hands.stream()?];
    let pool = options.build(&hands.pool_device())?;
    let block = pool.allocate(SIZE, busy.handle())?;
    hands.write(&busy, (block.address(), block.size()), 1, Duration::ZERO)?;
    busy.synchronize()?;
    hands.write(&busy, (block.address(), block.size()), 2, long)?;
    let mut watch = Watch::new();
    let begun = Instant::now();
    calls(&mut watch, &pool, &streams)?;
    let all = begun.elapsed();
    ensure!(
        busy.query()? == Progress::Pending,
        "the work was over after {all:?}: nothing is shown"
    );
    let (slowest, name) = watch.slowest;
    println!(
        "record: {{\"case\":\"no hidden wait, {which}\",\"work\":\"{}\",\"calls\":{},\
         \"slowest\":\"{name}\",\"slowest_microseconds\":{},\"all_microseconds\":{},\
         \"left_out\":\"trim and dropping a pool, which wait\"}}",
        hands.work,
        watch.calls,
        slowest.as_micros(),
        all.as_micros()
    );
    ensure!(
        slowest < most,
        "{name} took {slowest:?} while work ran elsewhere, and may take {most:?}"
    );
    busy.synchronize()?;
    pool.free_block(block, busy.handle())?;
    Ok(())
}

/// Everything a program does with a pool, on streams that have nothing to do.
fn calls(watch: &mut Watch, pool: &Pool, streams: &[Stream; 4]) -> Step {
    let [first, second, third, last] = streams;
    let mut crowd: Vec<(Block, &Stream)> = Vec::new();
    for stream in streams.iter().cycle().take(64) {
        let block = watch.time("allocate, growing", || pool.allocate(SIZE, stream.handle()))?;
        crowd.push((block, stream));
    }
    for &(block, stream) in crowd.iter().step_by(2) {
        watch.time("free", || pool.free_block(block, stream.handle()))?;
    }
    let mut large = Vec::new();
    for stream in [first, second, third, first] {
        let size = Bytes::mib(24);
        let block = watch.time("allocate, stitching", || pool.allocate(size, stream.handle()))?;
        large.push((block, stream));
    }
    for &(block, stream) in &large {
        watch.time("record_use", || pool.record_use(block.address(), second.handle()))?;
        watch.time("free of a block used elsewhere", || pool.free_block(block, stream.handle()))?;
    }
    watch.time("process_deferred", || pool.process_deferred())?;
    for _ in 0..1000 {
        let block =
            watch.time("allocate, small", || pool.allocate(Bytes::new(512), second.handle()))?;
        watch.time("free, small", || pool.free(block.address(), second.handle()))?;
    }
    for &(block, stream) in crowd.iter().skip(1).step_by(2) {
        watch.time("free", || pool.free_sized(block.address(), SIZE, stream.handle()))?;
    }
    watch.time("forget_stream", || pool.forget_stream(last.handle()))?;
    watch.collect(pool)?;
    watch.collect(pool)?;
    watch.time("statistics", || pool.statistics());
    watch.time("held", || pool.held());
    let again = watch
        .time("allocate, after shrinking", || pool.allocate(Bytes::mib(16), first.handle()))?;
    watch.time("free", || pool.free_block(again, first.handle()))?;
    Ok(())
}
