//! Freeing: one way down. A block is claimed before anything else, so that of two frees one is refused.
//!
//! ```text
//!   free    this thread's magazine for the stream used last         no lock
//!   claim   double free, wrong pool, wrong size: refused here
//!   put     that of a stream used before, or its reserve            no lock
//!           the heap: a hole, or room in the magazine               heap lock
//!           later, if other streams used the block                  backing lock
//! ```

use forebay_core::Address;
use forebay_hal::StreamHandle;

use crate::Result;
use crate::pool::calls::layered::free_layered;
use crate::pool::calls::put::{claim_plain, claim_slowly, put};
use crate::pool::front::claimed::FreeClaim;
use crate::pool::inner::PoolInner;

/// Frees the block at `address`, in the order of `stream`.
#[inline(always)]
pub(in crate::pool) fn free<const COUNTED: bool>(
    pool: &PoolInner,
    address: Address,
    stream: StreamHandle,
    claimed: FreeClaim,
) -> Result<()> {
    if pool.front.keep::<COUNTED, true>(address, stream, claimed) {
        return Ok(());
    }
    free_slowly(pool, address, stream, claimed)
}

#[cold]
#[inline(never)]
fn free_slowly(
    pool: &PoolInner,
    address: Address,
    stream: StreamHandle,
    claimed: FreeClaim,
) -> Result<()> {
    if pool.front.keep_recorded(&pool.history, address, stream, claimed) {
        return Ok(());
    }
    free_below(pool, address, stream, claimed)
}

/// Frees past the front cache.
#[inline(always)]
pub(in crate::pool) fn free_below(
    pool: &PoolInner,
    address: Address,
    stream: StreamHandle,
    claimed: FreeClaim,
) -> Result<()> {
    pool.fork_generation.check()?;
    if address.is_null() {
        return Ok(());
    }
    // Caches are keyed by the resolved handle: every thread uses the same name for its own default stream.
    let stream = stream.resolved();
    if !pool.front.is_plain() {
        return free_layered(pool, address, stream, claimed);
    }
    match claim_plain(pool, address, claimed) {
        Some(block) => put(pool, &block, stream),
        None => return free_unplain(pool, address, stream, claimed),
    }
    Ok(())
}

/// Frees a block that no hit could have freed, or refuses to.
#[cold]
#[inline(never)]
fn free_unplain(
    pool: &PoolInner,
    address: Address,
    stream: StreamHandle,
    claimed: FreeClaim,
) -> Result<()> {
    put(pool, &claim_slowly(pool, address, claimed)?, stream);
    Ok(())
}
