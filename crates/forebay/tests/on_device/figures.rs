//! Limits, giving back, counts: the figures of a pool are the device's own.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use forebay::hal::Capabilities;
use forebay::{Block, Bytes, Error, Pool, PoolOptions, StreamHandle};

use crate::stage::Stage;
use crate::{Step, ensure};

const DEFAULT: StreamHandle = StreamHandle::DEFAULT;

fn of(stage: &Stage, limit: Bytes) -> Step<Pool> {
    Ok(PoolOptions::new().max_bytes(limit).build(&stage.device)?)
}

/// As many blocks as there are, and the error after them.
fn fill(pool: &Pool, size: Bytes) -> (Vec<Block>, Error) {
    let mut blocks = Vec::new();
    loop {
        match pool.allocate(size, DEFAULT) {
            Ok(block) => blocks.push(block),
            Err(error) => return (blocks, error),
        }
    }
}

pub(crate) fn limit(stage: &Stage) -> Step {
    let (limit, size) = (Bytes::mib(64), Bytes::mib(4));
    let pool = of(stage, limit)?;
    let (blocks, error) = fill(&pool, size);
    ensure!(blocks.len() == 16, "{} blocks of {size} are in {limit}", blocks.len());
    let Error::OutOfMemory(shortage) = error else {
        return Err(format!("another error: {error}").into());
    };
    let (requested, said) = (shortage.requested, shortage.limit);
    let (held, live) = (shortage.held, shortage.live);
    ensure!(requested == size && said == limit, "{requested} of {said}");
    ensure!(held == limit && live == limit, "{held} held, {live} live");
    ensure!(pool.held() == limit, "{} are held", pool.held());
    ensure!(stage.device.memory_info()?.held >= limit, "the device knows of less");
    for &block in &blocks {
        pool.free_block(block, DEFAULT)?;
    }
    // All of it in one piece, wherever it lay.
    let whole = pool.allocate(limit, DEFAULT)?;
    stage.write(whole.address(), limit, 5, DEFAULT)?;
    stage.check(whole.address(), limit, 5, DEFAULT)?;
    pool.free_block(whole, DEFAULT)?;
    stage.no_findings()
}

pub(crate) fn let_go(stage: &Stage) -> Step {
    // What the program could do without, given back when it is asked.
    static SPARE: Mutex<Vec<forebay::DeviceArray<u8, Pool>>> = Mutex::new(Vec::new());
    let spare = || SPARE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    spare().clear();
    let limit = Bytes::mib(32);
    let pool = PoolOptions::new()
        .max_bytes(limit)
        .on_shortage(move |_| spare().pop().is_some())
        .build(&stage.device)?;
    let kept = pool.on(DEFAULT).uninit::<u8>(24 << 20)?;
    spare().push(kept);
    let block = pool.allocate(Bytes::mib(24), DEFAULT)?;
    ensure!(spare().is_empty(), "nobody was asked");
    pool.free_block(block, DEFAULT)?;
    stage.no_findings()
}

pub(crate) fn trim(stage: &Stage) -> Step {
    let before = stage.device.memory_info()?.held;
    let pool = of(stage, Bytes::mib(128))?;
    let mut blocks = Vec::new();
    for size in [Bytes::mib(40), Bytes::new(700), Bytes::mib(9)] {
        let block = pool.allocate(size, DEFAULT)?;
        stage.write(block.address(), size, 3, DEFAULT)?;
        blocks.push(block);
    }
    for block in blocks {
        pool.free_block(block, DEFAULT)?;
    }
    let held = pool.held();
    ensure!(held >= Bytes::mib(49), "{held} are held");
    let given = pool.trim(Bytes::ZERO)?;
    ensure!(given == held && pool.held() == Bytes::ZERO, "{given} of {held} were given back");
    let after = stage.device.memory_info()?.held;
    ensure!(after == before, "the device holds {after}, and held {before} at first");
    stage.no_findings()
}

pub(crate) fn collect(stage: &Stage) -> Step {
    let pool = of(stage, Bytes::mib(128))?;
    let block = pool.allocate(Bytes::mib(64), DEFAULT)?;
    pool.free_block(block, DEFAULT)?;
    stage.device.synchronize_device()?;
    // The first look sees what was in use since the pool was made; the next ones see nothing.
    for _ in 0..3 {
        pool.collect(Duration::ZERO)?;
    }
    // It waits for nothing: what it asked of the stream is known when the stream has come to it, and
    // pages go some at a time.
    let can = stage.device.descriptor().capabilities;
    let gives_back = can.intersects(Capabilities::VIRTUAL_MEMORY | Capabilities::PROMPT_FREE);
    let begun = Instant::now();
    while gives_back && pool.held() >= Bytes::mib(64) && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(1));
        pool.process_deferred()?;
    }
    if !gives_back {
        // The device's free may wait, which a collect never does.
        ensure!(pool.held() >= Bytes::mib(64), "a collect waited");
        pool.trim(Bytes::ZERO)?;
    }
    ensure!(pool.held() < Bytes::mib(64), "{} are still held", pool.held());
    let again = pool.allocate(Bytes::mib(64), DEFAULT)?;
    stage.write(again.address(), Bytes::mib(64), 9, DEFAULT)?;
    stage.check(again.address(), Bytes::mib(64), 9, DEFAULT)?;
    pool.free_block(again, DEFAULT)?;
    stage.no_findings()
}

pub(crate) fn counts(stage: &Stage) -> Step {
    let pool = of(stage, Bytes::mib(128))?;
    let mut asked = 0;
    let mut blocks = Vec::new();
    for size in (1..200_u64).map(|index| Bytes::new(index * 777)) {
        blocks.push(pool.allocate(size, DEFAULT)?);
        asked += size.get();
    }
    let full = pool.statistics();
    ensure!(full.blocks == 199 && full.allocations == 199, "{full:?}");
    let asked = Bytes::new(asked);
    ensure!(full.requested == asked, "{} were asked for, not {}", asked, full.requested);
    ensure!(full.live >= asked && full.held >= full.live, "{full:?}");
    for block in blocks {
        pool.free_block(block, DEFAULT)?;
    }
    let empty = pool.statistics();
    ensure!(empty.blocks == 0 && empty.frees == 199 && empty.live == Bytes::ZERO, "{empty:?}");
    Ok(())
}
