//! Handles, arenas, and the pool of the whole process.

use forebay::arena::Arena;
use forebay::{Bytes, Pool, PoolOptions};

use crate::stage::Stage;
use crate::{Step, ensure};

pub(crate) fn arrays(stage: &Stage) -> Step {
    let (one, other) = (stage.stream()?, stage.stream()?);
    let pool = PoolOptions::new().build(&stage.device)?;
    let numbers: Vec<f64> = (0..100_000).map(f64::from).collect();
    let mut array = pool.on(one.handle()).uninit::<f64>(numbers.len())?;
    array.copy_from_slice(&numbers)?;
    array.hand_over_to(other.handle())?;
    let mut back = vec![0.0; numbers.len()];
    array.copy_to_slice(&mut back)?;
    ensure!(back == numbers, "other numbers came back");
    let address = array.address();
    drop(array);
    ensure!(pool.statistics().live == Bytes::ZERO, "the array is still live");
    ensure!(pool.block_at(address).is_none(), "there is still a block at {address}");
    stage.no_findings()
}

pub(crate) fn arena(stage: &Stage) -> Step {
    let stream = stage.stream()?;
    let pool = PoolOptions::new().build(&stage.device)?;
    let mut arena = Arena::new(pool.clone(), Bytes::mib(4), stream.handle())?;
    for step in 0..5 {
        let (size, values) = (Bytes::new(300_000), [step + 10, step + 20, step + 30]);
        let mut parts = Vec::new();
        for value in values {
            let part = arena.allocate(size)?;
            stage.write(part.address(), size, value, stream.handle())?;
            parts.push((part.address(), value));
        }
        for (address, value) in parts {
            stage.check(address, size, value, stream.handle())?;
        }
        arena.reset();
    }
    arena.close()?;
    ensure!(pool.statistics().live == Bytes::ZERO, "the arena is still live");
    stage.no_findings()
}

pub(crate) fn process_pool(stage: &Stage) -> Step {
    let stream = stage.stream()?;
    let pool = Pool::of(&stage.device)?;
    ensure!(Pool::of(&stage.device)?.id() == pool.id(), "two pools of one device");
    let block = pool.allocate(Bytes::mib(3), stream.handle())?;
    stage.write(block.address(), Bytes::mib(3), 8, stream.handle())?;
    stage.check(block.address(), Bytes::mib(3), 8, stream.handle())?;
    // By whoever was handed the address alone.
    forebay::process::free(block.address(), stream.handle())?;
    ensure!(pool.statistics().live == Bytes::ZERO, "the block is still live");
    ensure!(Pool::forget(&stage.device), "there was no pool to forget");
    drop(pool);
    stage.no_findings()
}
