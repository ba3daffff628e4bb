//! Every way there is to give a block back. A new one is entered here, and every trial uses it.

use std::sync::{Arc, Mutex, PoisonError};

use forebay::adaptor::{Aligned, Counted, FailWhen, Failing, Limited, Logged, Tracked};
use forebay::handle::{OwnedBlock, lost_frees};
use forebay::{Allocate, Block, Pool, Result};
use forebay_core::{Address, Alignment, Bytes};
use forebay_hal::{Capabilities, StreamHandle};

/// What is to be freed, rightly or wrongly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    /// Where it is said to begin.
    pub(crate) address: Address,
    /// A block that some pool gave out there, where there was one.
    pub(crate) block: Option<Block>,
    /// What was asked for, where there was a block.
    pub(crate) requested: Bytes,
    /// In whose order.
    pub(crate) stream: StreamHandle,
}

/// One way to free.
pub(crate) struct Way {
    /// As a person calls it.
    pub(crate) name: &'static str,
    /// Frees; `None` where this way cannot even say it: one that takes a block has no words for
    /// an address inside one.
    pub(crate) free: fn(&Pool, Given) -> Option<Result<()>>,
}

/// All of them. The first takes any address, and stands in where another has no words.
pub(crate) const WAYS: &[Way] = &[
    Way { name: "Pool::free", free: |pool, given| Some(pool.free(given.address, given.stream)) },
    Way {
        name: "Allocate::free",
        free: |pool, given| Some(Allocate::free(pool, given.address, given.stream)),
    },
    Way {
        name: "dyn Allocate",
        free: |pool, given| {
            let shared: Arc<dyn Allocate> = Arc::new(pool.clone());
            Some(shared.free(given.address, given.stream))
        },
    },
    Way {
        name: "Pool::free_block",
        free: |pool, given| Some(pool.free_block(given.block?, given.stream)),
    },
    Way {
        name: "Pool::free_sized, by what was asked for",
        free: |pool, given| Some(pool.free_sized(given.address, given.requested, given.stream)),
    },
    Way {
        name: "Pool::free_sized, by the size of the block",
        free: |pool, given| Some(pool.free_sized(given.address, given.block?.size(), given.stream)),
    },
    Way {
        name: "Allocate::free_block, of a pool that is borrowed",
        free: |pool, given| Some(Allocate::free_block(&pool, given.block?, given.stream)),
    },
    Way {
        name: "adaptors, by address",
        free: |pool, given| Some(adapted(pool).free(given.address, given.stream)),
    },
    Way {
        name: "adaptors, by block",
        free: |pool, given| Some(adapted(pool).free_block(given.block?, given.stream)),
    },
    Way {
        name: "a handle that is freed",
        free: |pool, given| {
            let freed = handle(pool, given)?.free();
            Some(freed.map_err(|refused| {
                let (handle, error) = refused.into_parts();
                // SAFETY: the trial enqueues no work.
                let _ = unsafe { handle.into_raw_unused() };
                error
            }))
        },
    },
    Way { name: "a handle that is dropped", free: drop_handle },
    Way { name: "forebay::process::free, of the whole process", free: free_by_address_alone },
];

/// A pool beneath every adaptor there is.
fn adapted(pool: &Pool) -> impl Allocate {
    let plain = Aligned::new(Failing::new(pool, FailWhen::Never), Alignment::BLOCK);
    Counted::new(Limited::new(Tracked::new(Logged::new(plain, Vec::new())), Bytes::MAX))
}

/// A handle for a block; `None` where there is only an address.
fn handle(pool: &Pool, given: Given) -> Option<OwnedBlock> {
    // SAFETY: where the trial frees rightly the block is live and nobody else's. Where it does not,
    // that is the point: the pool must find out, and nothing is done with the memory itself.
    Some(unsafe { OwnedBlock::from_raw(pool.clone(), given.block?, given.stream) })
}

/// A drop has nobody to tell: what it could not do is found among what the process has lost.
fn drop_handle(pool: &Pool, given: Given) -> Option<Result<()>> {
    static TURN: Mutex<()> = Mutex::new(());
    let handle = handle(pool, given)?;
    // One at a time, so that what was lost is known to be this one's.
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let before = lost_frees().count;
    drop(handle);
    let lost = lost_frees();
    drop(turn);
    if lost.count == before {
        return Some(Ok(()));
    }
    Some(Err(lost.latest.expect("what was counted was noted").error))
}

/// The process is asked whose the block is. It is asked only of blocks of this pool, on memory that is
/// real: a block of another is freed rightly by this way, and phantom addresses are those of other
/// tests' devices too.
fn free_by_address_alone(pool: &Pool, given: Given) -> Option<Result<()>> {
    let real = pool.device().descriptor().capabilities.contains(Capabilities::DATA);
    let own = given.block?.pool() == pool.id();
    (real && own).then(|| forebay::process::free(given.address, given.stream))
}

/// Frees by the way with this number, counted round and round, or by the first where that one has
/// no words for it.
pub(crate) fn free_by(way: u8, pool: &Pool, given: Given) -> Result<()> {
    let way = &WAYS[usize::from(way) % WAYS.len()];
    (way.free)(pool, given).unwrap_or_else(|| pool.free(given.address, given.stream))
}
