//! Programs: blocks that come and go on streams and threads, each with data of its own.
//!
//! A block is filled when it is got and looked at when it is freed, both in stream order and without
//! waiting in between: so what another stream writes too early or too late is seen.

use std::sync::mpsc;
use std::thread;

use forebay::config::Growth;
use forebay::hal::Call;
use forebay::{Block, Bytes, Error, Pool, PoolOptions, Stream, StreamHandle};

use crate::stage::{Look, Numbers, Stage};
use crate::{Step, ensure};

/// What programs may take of the device.
const LIMIT: Bytes = Bytes::mib(192);

/// A live block.
struct Held {
    block: Block,
    size: Bytes,
    value: u32,
    stream: StreamHandle,
}

/// Gets a block and fills it.
fn get(stage: &Stage, pool: &Pool, numbers: &mut Numbers, stream: StreamHandle) -> Step<Held> {
    let (size, value) = (numbers.size(Bytes::mib(8)), numbers.value());
    let block = pool.allocate(size, stream)?;
    stage.write(block.address(), size, value, stream)?;
    Ok(Held { block, size, value, stream })
}

/// Looks at a block and gives it back, all in the order of its stream.
fn give(stage: &Stage, pool: &Pool, held: &Held) -> Step<Look> {
    let look = stage.look(held.block.address(), held.size, held.value, held.stream)?;
    pool.free_block(held.block, held.stream)?;
    Ok(look)
}

/// Some hundred operations of one thread on its streams.
fn program(stage: &Stage, pool: &Pool, streams: &[Stream], seed: u64, steps: usize) -> Step {
    let mut numbers = Numbers(seed);
    let (mut live, mut looks): (Vec<Held>, Vec<Look>) = (Vec::new(), Vec::new());
    for _ in 0..steps {
        let many = live.len() >= 12;
        if live.is_empty() || (!many && numbers.below(3) > 0) {
            let stream = streams[numbers.below(streams.len())].handle();
            live.push(get(stage, pool, &mut numbers, stream)?);
        } else {
            let held = live.swap_remove(numbers.below(live.len()));
            looks.push(give(stage, pool, &held)?);
        }
    }
    for held in &live {
        looks.push(give(stage, pool, held)?);
    }
    for stream in streams {
        stream.synchronize()?;
    }
    looks.iter().try_for_each(Look::check)
}

fn limited(stage: &Stage) -> Step<Pool> {
    Ok(PoolOptions::new().max_bytes(LIMIT).build(&stage.device)?)
}

pub(crate) fn streams(stage: &Stage) -> Step {
    let streams = stage.streams(4)?;
    let pool = limited(stage)?;
    for seed in 0..6 {
        program(stage, &pool, &streams, seed, 250)?;
    }
    let statistics = pool.statistics();
    ensure!(statistics.live == Bytes::ZERO, "{} are live in the end", statistics.live);
    ensure!(statistics.waits > 0, "no stream ever waited for another");
    stage.no_findings()
}

pub(crate) fn threads(stage: &Stage) -> Step {
    let streams: Vec<Vec<Stream>> = (0..4).map(|_| stage.streams(2)).collect::<Step<_>>()?;
    let pool = limited(stage)?;
    thread::scope(|scope| -> Step {
        let (sender, receiver) = mpsc::channel::<Held>();
        let mut workers = Vec::new();
        for (number, streams) in (0_u64..).zip(&streams) {
            let (pool, sender) = (pool.clone(), sender.clone());
            workers.push(scope.spawn(move || -> Step {
                program(stage, &pool, streams, 100 + number, 300)?;
                // What another thread gives back.
                let mut numbers = Numbers(200 + number);
                for stream in streams {
                    sender.send(get(stage, &pool, &mut numbers, stream.handle())?)?;
                }
                Ok(())
            }));
        }
        drop(sender);
        let mut looks = Vec::new();
        for held in receiver {
            looks.push((give(stage, &pool, &held)?, held.stream));
        }
        for worker in workers {
            worker.join().map_err(|_| "a thread panicked")??;
        }
        for (look, stream) in looks {
            stage.device.synchronize_stream(stream)?;
            look.check()?;
        }
        Ok(())
    })?;
    ensure!(pool.statistics().live == Bytes::ZERO, "something is live in the end");
    stage.no_findings()
}

pub(crate) fn across_streams(stage: &Stage) -> Step {
    let (one, other) = (stage.stream()?, stage.stream()?);
    let size = Bytes::mib(24);
    let pool = PoolOptions::new().max_bytes(Bytes::mib(32)).build(&stage.device)?;
    for value in 1..20 {
        let (from, to) = if value % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let block = pool.allocate(size, from.handle())?;
        stage.write(block.address(), size, value, from.handle())?;
        let look = stage.look(block.address(), size, value, from.handle())?;
        pool.free_block(block, from.handle())?;
        let again = pool.allocate(size, to.handle())?;
        ensure!(again.address() == block.address(), "there is room for one alone");
        stage.write(again.address(), size, value + 100, to.handle())?;
        stage.check(again.address(), size, value + 100, to.handle())?;
        from.synchronize()?;
        look.check()?;
        pool.free_block(again, to.handle())?;
    }
    ensure!(pool.held() <= Bytes::mib(32), "{} are held", pool.held());
    stage.no_findings()
}

pub(crate) fn used_elsewhere(stage: &Stage) -> Step {
    let (one, other) = (stage.stream()?, stage.stream()?);
    let size = Bytes::mib(24);
    let pool = PoolOptions::new().max_bytes(Bytes::mib(32)).build(&stage.device)?;
    for value in 1..20 {
        let block = pool.allocate(size, one.handle())?;
        // The block is the other stream's from the start: nothing of the first is in its way.
        one.synchronize()?;
        stage.write(block.address(), size, value, other.handle())?;
        let look = stage.look(block.address(), size, value, other.handle())?;
        pool.record_use(block.address(), other.handle())?;
        pool.free_block(block, one.handle())?;
        let again = pool.allocate(size, one.handle())?;
        stage.write(again.address(), size, value + 100, one.handle())?;
        stage.check(again.address(), size, value + 100, one.handle())?;
        other.synchronize()?;
        look.check()?;
        pool.free_block(again, one.handle())?;
    }
    stage.no_findings()
}

pub(crate) fn many_streams(stage: &Stage) -> Step {
    let pool = limited(stage)?;
    let mut numbers = Numbers(3);
    for _ in 0..2 {
        let streams = stage.streams(70)?;
        let mut looks = Vec::new();
        for stream in &streams {
            let held = get(stage, &pool, &mut numbers, stream.handle())?;
            looks.push(give(stage, &pool, &held)?);
        }
        for stream in &streams {
            pool.forget_stream(stream.handle())?;
            stream.synchronize()?;
        }
        looks.iter().try_for_each(Look::check)?;
    }
    stage.no_findings()
}

pub(crate) fn moved_pages(stage: &Stage) -> Step {
    let stream = stage.stream()?;
    let stream = stream.handle();
    let (size, limit) = (Bytes::mib(4), Bytes::mib(64));
    let mut growth = Growth::default();
    growth.largest_page = Bytes::mib(2);
    let pool = PoolOptions::new().growth(growth).max_bytes(limit).build(&stage.device)?;
    let mut blocks = Vec::new();
    for value in 0..16 {
        let block = pool.allocate(size, stream)?;
        stage.write(block.address(), size, value, stream)?;
        blocks.push((block, value));
    }
    for &(block, _) in blocks.iter().step_by(2) {
        pool.free_block(block, stream)?;
    }
    let before = pool.statistics().driver.of(Call::Map);
    let large = match pool.allocate(Bytes::mib(28), stream) {
        // Segments cannot move: the limit is kept instead, and blocks that live are left alone.
        Err(Error::OutOfMemory(_)) if stage.device.virtual_memory().is_none() => {
            for &(block, value) in blocks.iter().skip(1).step_by(2) {
                stage.check(block.address(), size, value, stream)?;
                pool.free_block(block, stream)?;
            }
            return stage.no_findings();
        }
        large => large?,
    };
    let maps = pool.statistics().driver.of(Call::Map);
    ensure!(maps > before || stage.device.virtual_memory().is_none(), "no page was moved");
    stage.write(large.address(), Bytes::mib(28), 77, stream)?;
    stage.check(large.address(), Bytes::mib(28), 77, stream)?;
    for &(block, value) in blocks.iter().skip(1).step_by(2) {
        stage.check(block.address(), size, value, stream)?;
        pool.free_block(block, stream)?;
    }
    pool.free_block(large, stream)?;
    stage.no_findings()
}
