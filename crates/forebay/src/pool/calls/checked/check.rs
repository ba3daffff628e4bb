//! `Pool::check`: checks every canary and the whole quarantine.

use crate::Result;
use crate::pool::debug::FREED;
use crate::pool::debug::canary::{overrun, pattern_of};
use crate::pool::inner::PoolInner;
use crate::sync::tracked::lock;
use forebay_hal::Pattern;

/// Checks every canary and every block in quarantine. Returns the first finding.
pub(in crate::pool) fn check(pool: &PoolInner) -> Result<()> {
    pool.birth.check()?;
    let debug = &pool.debug;
    // Blocks added while the device is waited for may still be being filled, and are skipped.
    let (blocks_before, kept_before) = {
        let (canaries, quarantine) = (lock(&debug.canaries), lock(&debug.quarantine));
        if canaries.blocks.is_empty() && quarantine.is_empty() {
            return Ok(());
        }
        (canaries.added, quarantine.added())
    };
    debug.probe.synchronize()?;
    let stream = debug.probe.own_stream()?;
    // Both stay locked: no block leaves while it is checked, so a free on another thread is not filling it. Reads
    // are on the probe's own stream, which has no other work, so no work of the program is waited for.
    let canaries = lock(&debug.canaries);
    let mut quarantine = lock(&debug.quarantine);
    let mut first = Ok(());
    for (&address, watched) in &canaries.blocks {
        if watched.number >= blocks_before {
            continue;
        }
        let looked = debug.probe.first_mismatch_now(watched.canary, pattern_of(address), stream)?;
        if let Some(mismatch) = looked {
            first = first.and(Err(debug.record_finding(overrun(address, watched.size, mismatch))));
        }
    }
    drop(canaries);
    if debug.aids.poison {
        let free = Pattern::U8(FREED);
        let look = |span| debug.probe.first_mismatch_now(span, free, stream);
        let overwritten = quarantine.take_overwritten(kept_before, look)?;
        for (block, mismatch) in overwritten {
            debug.retire(block.memory.size);
            first = first.and(Err(debug.record_finding(block.written(mismatch))));
        }
    }
    first
}
