//! Memory that is freed while work still writes to it, asked for again at once. Whoever gets it must
//! find what they wrote there, when all work is done.
//!
//! ```text
//!   one    |---------- wait ----------| writes OLD |      freed here, right after it was enqueued
//!   other        asks, gets the same memory         | writes NEW |          all of it must be NEW
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::config::Growth;
use forebay::hal::{Call, Progress};
use forebay::{Block, Bytes, Device, Pool, PoolOptions, Stream};

use crate::front::{Front, Script, Target};
use crate::hands::Hands;
use crate::{Step, ensure};

/// How long the old work takes: far longer than anything the pool does without waiting. A fake driver
/// shares its processor with whatever else is tested.
pub(crate) fn delay(hands: &Hands) -> Duration {
    Duration::from_millis(if hands.real { 150 } else { 600 })
}

/// What the pool may take, and a block that leaves no room for a second.
pub(crate) const LIMIT: Bytes = Bytes::mib(64);
pub(crate) const SIZE: Bytes = Bytes::mib(48);

/// What the old work and the new one write.
pub(crate) const OLD: u32 = 0x0bad_0bad;
pub(crate) const NEW: u32 = 0x600d_600d;

/// What came of a case: how many words were wrong in the end, and how long the request took.
struct Seen {
    wrong: u64,
    took: Duration,
}

impl Seen {
    fn intact(self) -> Step {
        ensure!(self.wrong == 0, "{} words were written over by what came before", self.wrong);
        Ok(())
    }

    fn spoiled(self) -> Step {
        ensure!(self.wrong > 0, "nothing was written over: the case cannot tell right from wrong");
        Ok(())
    }
}

/// The device, with none of the calls of a kind made that order streams.
fn without(hands: &Hands, call: Call) -> Arc<dyn Device> {
    let script = Script::swallow(Target::Every(call));
    Front::new(hands.pool_device(), Box::new(|| ()), script)
}

pub(crate) fn pool(device: &Arc<dyn Device>) -> Step<Pool> {
    // Pages of the least size, so that what can be moved is not a matter of luck.
    let mut growth = Growth::default();
    growth.largest_page = Bytes::mib(2);
    Ok(PoolOptions::new().growth(growth).max_bytes(LIMIT).build(device)?)
}

pub(crate) fn span(block: Block) -> (forebay::Address, Bytes) {
    (block.address(), block.size())
}

/// A block that was written once, so that the first launch of a kernel is not part of any time.
pub(crate) fn written(hands: &Hands, pool: &Pool, size: Bytes, stream: &Stream) -> Step<Block> {
    let block = pool.allocate(size, stream.handle())?;
    hands.write(stream, span(block), 0, Duration::ZERO)?;
    stream.synchronize()?;
    Ok(block)
}

/// Writes to what was just got, lets all streams end, and looks at it.
fn conclude(
    hands: &Hands,
    pool: &Pool,
    block: Block,
    by: &Stream,
    others: &[&Stream],
) -> Step<u64> {
    hands.write(by, span(block), NEW, Duration::ZERO)?;
    for stream in others {
        stream.synchronize()?;
    }
    by.synchronize()?;
    let wrong = hands.others(by, span(block), NEW)?;
    pool.free_block(block, by.handle())?;
    Ok(wrong)
}

/// A block is freed on a stream whose work still writes to it; another stream asks for as much.
fn free_and_take(hands: &Hands, device: &Arc<dyn Device>) -> Step<Seen> {
    let (one, other) = (hands.stream()?, hands.stream()?);
    let pool = pool(device)?;
    let block = written(hands, &pool, SIZE, &one)?;
    hands.write(&one, span(block), OLD, delay(hands))?;
    pool.free_block(block, one.handle())?;
    let begun = Instant::now();
    let again = pool.allocate(SIZE, other.handle())?;
    let took = begun.elapsed();
    ensure!(one.query()? == Progress::Pending, "the old work was over too soon to tell anything");
    let shared = again.address() == block.address();
    ensure!(shared, "{again:?} is not where {block:?} was, and there is no room for both");
    let wrong = conclude(hands, &pool, again, &other, &[&one])?;
    Ok(Seen { wrong, took })
}

pub(crate) fn freed(hands: &Hands) -> Step {
    free_and_take(hands, &hands.pool_device())?.intact()
}

pub(crate) fn freed_without_wait(hands: &Hands) -> Step {
    free_and_take(hands, &without(hands, Call::WaitEvent))?.spoiled()
}

/// The wait for the other stream's work is the device's, not the caller's.
pub(crate) fn at_once(hands: &Hands) -> Step {
    let took = free_and_take(hands, &hands.pool_device())?.took;
    let most = if hands.real { Duration::from_millis(5) } else { delay(hands) / 2 };
    println!(
        "record: {{\"case\":\"take another stream's memory\",\"work\":\"{}\",\"microseconds\":{}}}",
        hands.work,
        took.as_micros()
    );
    ensure!(took < most, "the request took {took:?}, and may take {most:?}");
    Ok(())
}

/// A block of one stream, written late by another, is freed on the first, which asks for as much.
fn use_and_take(hands: &Hands, record: bool) -> Step<Seen> {
    let (one, other) = (hands.stream()?, hands.stream()?);
    let pool = pool(&hands.pool_device())?;
    let block = written(hands, &pool, SIZE, &one)?;
    hands.write(&other, span(block), OLD, delay(hands))?;
    if record {
        pool.record_use(block.address(), other.handle())?;
    }
    pool.free_block(block, one.handle())?;
    let begun = Instant::now();
    let again = pool.allocate(SIZE, one.handle())?;
    let took = begun.elapsed();
    let wrong = conclude(hands, &pool, again, &one, &[&other])?;
    Ok(Seen { wrong, took })
}

pub(crate) fn used_elsewhere(hands: &Hands) -> Step {
    use_and_take(hands, true)?.intact()
}

pub(crate) fn used_in_secret(hands: &Hands) -> Step {
    use_and_take(hands, false)?.spoiled()
}

/// Every second of the blocks that fill the pool is freed while its late work still runs; another
/// stream asks for more than any hole has, so pages must be moved.
fn free_and_move(hands: &Hands, device: &Arc<dyn Device>) -> Step<Seen> {
    let (one, other) = (hands.stream()?, hands.stream()?);
    let pool = pool(device)?;
    let size = Bytes::mib(4);
    let mut blocks = Vec::new();
    for _ in 0..LIMIT.get() / size.get() {
        blocks.push(written(hands, &pool, size, &one)?);
    }
    // One kernel waits, and the others come after it on the same stream.
    for (&block, value) in blocks.iter().zip(OLD..) {
        let delay = if value == OLD { delay(hands) } else { Duration::ZERO };
        hands.write(&one, span(block), value, delay)?;
    }
    for &block in blocks.iter().step_by(2) {
        pool.free_block(block, one.handle())?;
    }
    let maps = |pool: &Pool| pool.statistics().driver.of(Call::Map);
    let before = maps(&pool);
    let begun = Instant::now();
    let large = pool.allocate(Bytes::mib(28), other.handle())?;
    let took = begun.elapsed();
    let moved = maps(&pool) - before;
    ensure!(moved > 0, "no page was moved");
    ensure!(one.query()? == Progress::Pending, "the old work was over too soon to tell anything");
    let wrong = conclude(hands, &pool, large, &other, &[&one])?;
    for (&block, value) in blocks.iter().zip(OLD..).skip(1).step_by(2) {
        let wrong = hands.others(&one, span(block), value)?;
        ensure!(wrong == 0, "{wrong} words of {block:?}, which was live all the time, are wrong");
        pool.free_block(block, one.handle())?;
    }
    Ok(Seen { wrong, took })
}

pub(crate) fn moved(hands: &Hands) -> Step {
    free_and_move(hands, &hands.pool_device())?.intact()
}

pub(crate) fn moved_without_wait(hands: &Hands) -> Step {
    free_and_move(hands, &without(hands, Call::WaitEvent))?.spoiled()
}

/// The stream that freed a block is forgotten while its work still writes to it.
fn free_and_forget(hands: &Hands, device: &Arc<dyn Device>) -> Step<Seen> {
    let (one, other) = (hands.stream()?, hands.stream()?);
    let pool = pool(device)?;
    let block = written(hands, &pool, SIZE, &one)?;
    hands.write(&one, span(block), OLD, delay(hands))?;
    pool.free_block(block, one.handle())?;
    pool.forget_stream(one.handle())?;
    ensure!(one.query()? == Progress::Pending, "the old work was over too soon to tell anything");
    let begun = Instant::now();
    let again = pool.allocate(SIZE, other.handle())?;
    let took = begun.elapsed();
    let wrong = conclude(hands, &pool, again, &other, &[&one])?;
    Ok(Seen { wrong, took })
}

pub(crate) fn forgotten(hands: &Hands) -> Step {
    free_and_forget(hands, &hands.pool_device())?.intact()
}

pub(crate) fn forgotten_without_record(hands: &Hands) -> Step {
    free_and_forget(hands, &without(hands, Call::RecordEvent))?.spoiled()
}
