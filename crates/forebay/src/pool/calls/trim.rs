//! Returns free memory to the device on request.

use forebay_core::Bytes;
use forebay_hal::Call;

use crate::Result;
use crate::pool::calls::checked::{guard, quarantine};
use crate::pool::calls::{flush, settle, upkeep};
use crate::pool::common::wait::Deadline;
use crate::pool::inner::PoolInner;

/// Releases free memory until the pool holds `keep` bytes. Returns how much was released. Waits.
pub(in crate::pool) fn trim(pool: &PoolInner, keep: Bytes) -> Result<Bytes> {
    upkeep::release(pool, || trim_inner(pool, keep))
}

/// Releases all free memory of a pool whose memory is [stable](crate::MemoryClass::STABLE), once no graph uses it.
/// Waits for all work of the process: graphs may have been launched on streams that the device does not know. From
/// the moment a capture begins, nothing more is released: its graph may be launched, and be gone, before this returns.
pub(in crate::pool) fn trim_stable(pool: &PoolInner) -> Result<Bytes> {
    pool.fork_generation.check()?;
    let begun = pool.captures.begun();
    let wait = || pool.device.synchronize_process();
    pool.log.wait(Call::SynchronizeDevice, Bytes::ZERO, wait)?;
    pool.backing().releasable_until = Some(begun);
    let trimmed = trim(pool, Bytes::ZERO);
    pool.backing().releasable_until = None;
    trimmed
}

fn trim_inner(pool: &PoolInner, keep: Bytes) -> Result<Bytes> {
    let keep = keep.max(pool.settings().min_bytes());
    quarantine::empty_quarantine(pool, Deadline::Never)?;
    flush::flush_all_caches(pool, &mut pool.backing());
    if pool.captures.any() {
        return Ok(Bytes::ZERO);
    }
    let before = pool.held.get();
    // Memory that waits for other streams becomes free by this, and is released with the rest. A failure here does
    // not keep the rest from being released.
    let settled = settle::settle(pool, Deadline::Never).map(drop);
    settle::take_out_free(pool, keep);
    let released = settle::settle(pool, Deadline::Never).map(drop);
    let unmapped =
        pool.debug.guards.as_ref().map(|guards| guard::unmap_freed(pool, guards, Deadline::Never));
    unmapped.transpose()?;
    settled.and(released).map(|()| before.saturating_sub(pool.held.get()))
}
