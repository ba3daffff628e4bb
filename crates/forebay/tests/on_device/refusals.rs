//! What must be refused is, with nothing changed.

use forebay::{Address, Block, Bytes, Error, Pool, PoolOptions, StreamHandle};

use crate::stage::Stage;
use crate::{Step, ensure};

const DEFAULT: StreamHandle = StreamHandle::DEFAULT;

/// Every way to free at a pool: by address, with the size, as the block.
fn ways(pool: &Pool, block: Block, size: Bytes) -> [(&'static str, Result<(), Error>); 3] {
    [
        ("free", pool.free(block.address(), DEFAULT)),
        ("free_sized", pool.free_sized(block.address(), size, DEFAULT)),
        ("free_block", pool.free_block(block, DEFAULT)),
    ]
}

pub(crate) fn wrong_frees(stage: &Stage) -> Step {
    let pool = PoolOptions::new().build(&stage.device)?;
    let other = PoolOptions::new().build(&stage.device)?;
    for size in [Bytes::new(1000), Bytes::mib(5)] {
        let (block, foreign) = (pool.allocate(size, DEFAULT)?, other.allocate(size, DEFAULT)?);
        stage.write(block.address(), size, 21, DEFAULT)?;

        // What is another pool's.
        for (way, freed) in ways(&pool, foreign, size) {
            let right = matches!(freed, Err(Error::WrongPool { .. } | Error::NotABlock { .. }));
            ensure!(right, "{way} of another pool's block: {freed:?}");
        }
        // What begins nowhere.
        let inside = Address::new(block.address().get() + 512);
        let freed = pool.free(inside, DEFAULT);
        ensure!(matches!(freed, Err(Error::NotABlock { .. })), "inside a block: {freed:?}");
        let freed = forebay::process::free(Address::new(4096), DEFAULT);
        ensure!(matches!(freed, Err(Error::NotABlock { .. })), "nobody's address: {freed:?}");
        // Another size.
        let freed = pool.free_sized(block.address(), Bytes::new(7), DEFAULT);
        ensure!(matches!(freed, Err(Error::WrongSize { .. })), "another size: {freed:?}");

        // Nothing of that changed anything.
        stage.check(block.address(), size, 21, DEFAULT)?;
        ensure!(pool.block_at(block.address()) == Some(block), "the block is another");
        ensure!(other.block_at(foreign.address()) == Some(foreign), "the other is another");

        // Twice, and after it was given out again.
        pool.free_block(block, DEFAULT)?;
        for (way, freed) in ways(&pool, block, size) {
            ensure!(matches!(freed, Err(Error::DoubleFree { .. })), "{way} twice: {freed:?}");
        }
        let freed = forebay::process::free(block.address(), DEFAULT);
        ensure!(matches!(freed, Err(Error::DoubleFree { .. })), "by address alone: {freed:?}");
        let again = pool.allocate(size, DEFAULT)?;
        ensure!(again.address() == block.address(), "the same size is somewhere else");
        let freed = pool.free_block(block, DEFAULT);
        ensure!(matches!(freed, Err(Error::StaleBlock { .. })), "an old block: {freed:?}");
        pool.free_block(again, DEFAULT)?;
        other.free_block(foreign, DEFAULT)?;
        // No address is no error.
        pool.free(Address::NULL, DEFAULT)?;
    }
    ensure!(pool.statistics().live == Bytes::ZERO, "something is live in the end");
    stage.no_findings()
}

pub(crate) fn wrong_requests(stage: &Stage) -> Step {
    let pool = PoolOptions::new().build(&stage.device)?;
    let none = pool.allocate(Bytes::ZERO, DEFAULT)?;
    ensure!(none.address() == Address::NULL, "no bytes are at {}", none.address());
    for size in [u64::MAX, u64::MAX / 2, 1 << 60] {
        let got = pool.allocate(Bytes::new(size), DEFAULT);
        ensure!(matches!(got, Err(Error::OutOfMemory { .. })), "{size} bytes: {got:?}");
    }
    let used = pool.record_use(Address::new(4096), DEFAULT);
    ensure!(matches!(used, Err(Error::NotABlock { .. })), "{used:?}");
    let block = pool.allocate(Bytes::mib(1), DEFAULT)?;
    pool.free_block(block, DEFAULT)?;
    stage.no_findings()
}
