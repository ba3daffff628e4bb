//! Every way there is to give a block back. A new one is entered here, and every trial uses it.

use std::sync::Arc;

use forebay::{Allocate, Block, Pool, Result};
use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

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
];

/// Frees by the way with this number, counted round and round, or by the first where that one has
/// no words for it.
pub(crate) fn free_by(way: u8, pool: &Pool, given: Given) -> Result<()> {
    let way = &WAYS[usize::from(way) % WAYS.len()];
    (way.free)(pool, given).unwrap_or_else(|| pool.free(given.address, given.stream))
}
