//! Puts blocks into the quarantine and releases them from it. `Pool::check` checks all quarantined blocks and every
//! canary.

use crate::pool::calls::checked::strict;
use crate::pool::calls::waits::{Reclaiming, StreamWait};
use crate::pool::calls::{put, waits};
use crate::pool::common::free_block::FreedBlock;
use crate::pool::common::step::{self, Step};
use crate::pool::common::wait::{Deadline, WaitBudget};
use crate::pool::debug::FREED;
use crate::pool::debug::canary::pattern_of;
use crate::pool::debug::quarantine::Quarantined;
use crate::pool::heap::serials::Serial;
use crate::pool::inner::PoolInner;
use crate::report::RecentFree;
use crate::sync::tracked::lock;
use crate::{Error, Result};
use forebay_core::Bytes;
use forebay_hal::{Pattern, StreamHandle};
use std::sync::atomic::Ordering;

/// Puts a freed block into the quarantine, and releases the oldest ones beyond its bound. An error is a finding in
/// one of those: the block itself is freed in any case.
pub(in crate::pool) fn quarantine(
    pool: &PoolInner,
    memory: FreedBlock,
    former: RecentFree,
) -> Result<()> {
    let most = pool.debug.max_quarantined.load(Ordering::Relaxed);
    // A block larger than the whole quarantine would only drive the others out.
    if memory.size.get() > most {
        put::return_to_heap(pool, vec![memory]);
    } else {
        let serial = pool.heap().serial_for(memory.stream);
        match serial {
            Some(order) => {
                let block = Quarantined { memory, order, former, number: 0 };
                lock(&pool.debug.quarantine).push(block);
            }
            // Without a slot its stream cannot be identified later.
            None => pool.heap().free_unknown(memory),
        }
    }
    shrink_quarantine(pool, most)
}

/// Releases the oldest blocks until no more than `most` bytes are left. An error is the first finding. A block that
/// cannot be checked in time stays, with those after it, until the next time.
fn shrink_quarantine(pool: &PoolInner, most: u64) -> Result<()> {
    if lock(&pool.debug.quarantine).bytes().get() <= most {
        return Ok(());
    }
    let _leaving = Reclaiming::begin(pool);
    let (mut wait, mut outcome) = (WaitBudget::default(), Ok(()));
    strict::recheck_streams(pool, &mut wait);
    loop {
        let Some(oldest) = lock(&pool.debug.quarantine).pop_beyond(most) else {
            return outcome;
        };
        let waited = wait_before_release(pool, oldest.order, waits::deadline(pool, &mut wait));
        let left = waited.and_then(|waited| release_quarantined(pool, oldest, waited));
        let mut quarantine = lock(&pool.debug.quarantine);
        quarantine.has_left(&oldest);
        match left {
            Ok(true) => {}
            Err(finding) if finding.is_finding() => outcome = outcome.and(Err(finding)),
            // A device error with another block is no error of this call.
            Ok(false) | Err(_) => {
                quarantine.put_back(oldest);
                return outcome;
            }
        }
    }
}

/// Changes the bound of the quarantine. Findings in released blocks are recorded, and are no error of the change.
pub(in crate::pool::calls) fn bound_quarantine(pool: &PoolInner, most: Bytes) {
    pool.debug.max_quarantined.store(most.get(), Ordering::Relaxed);
    let _ = shrink_quarantine(pool, most.get());
}

/// Waits for the work of a stream before blocks freed there are released, if they are checked.
fn wait_before_release(pool: &PoolInner, order: Serial, deadline: Deadline) -> Result<StreamWait> {
    step::reach(Step::LeavingQuarantine);
    if pool.debug.aids.poison {
        waits::wait_for_stream(pool, order, deadline)
    } else {
        Ok(StreamWait::Unknown)
    }
}

/// Releases a block to the heap. Returns `false` if it stays, because its stream was not done in time. A finding means that
/// it was written to and is retired; after any other error the caller puts it back.
///
/// No lock is held during the check, and the stream may be forgotten meanwhile, so it is identified by its serial.
/// The work enqueued on it was waited for before the check, so a checked block is free for all; an unchecked one is
/// freed in whatever order the stream's memory has now.
fn release_quarantined(pool: &PoolInner, block: Quarantined, waited: StreamWait) -> Result<bool> {
    let Quarantined { memory, order, .. } = block;
    if !pool.debug.aids.poison {
        let mut heap = pool.heap();
        heap.free_after(memory, order);
        if memory.stream.is_per_thread() {
            put::publish(pool, &mut heap, memory.stream);
        }
        return Ok(true);
    }
    match waited {
        StreamWait::Done => {}
        StreamWait::Pending => return Ok(false),
        StreamWait::Unknown => {
            // The stream ended without an event: the block returns unchecked after a wait for the device.
            pool.heap().free_unknown(memory);
            return Ok(true);
        }
    }
    let free = Pattern::U8(FREED);
    if let Some(mismatch) = pool.debug.probe.first_mismatch(memory.span(), free, None)? {
        pool.debug.retire(memory.size);
        return Err(pool.debug.record_finding(mismatch.after_free(|_| Some(block.former))));
    }
    pool.heap().free_for_all(memory);
    Ok(true)
}

/// Releases the whole quarantine to the heap, as far as its work ends in time: a request would otherwise be refused, or
/// the memory is to be returned to the device. Blocks that were written to are retired, and reported as the error.
pub(in crate::pool::calls) fn empty_quarantine(pool: &PoolInner, deadline: Deadline) -> Result<()> {
    let orders = lock(&pool.debug.quarantine).orders();
    empty_quarantine_after(pool, orders, deadline)
}

/// Releases the blocks that were freed on one stream, which is about to end.
pub(in crate::pool::calls) fn empty_quarantine_of(
    pool: &PoolInner,
    stream: StreamHandle,
) -> Result<()> {
    let order = {
        let mut heap = pool.heap();
        let slot = heap.slots.get(stream);
        slot.and_then(|slot| heap.slots.serial(slot))
    };
    let order = order.filter(|order| lock(&pool.debug.quarantine).orders().contains(order));
    empty_quarantine_after(pool, order, Deadline::Never)
}

/// Releases the blocks that were freed on some streams. Each stream is waited for once for all of its blocks, which
/// stay in the quarantine until then, where other requests see them.
fn empty_quarantine_after(
    pool: &PoolInner,
    orders: impl IntoIterator<Item = Serial>,
    deadline: Deadline,
) -> Result<()> {
    let before = lock(&pool.debug.quarantine).added();
    let (mut stay, mut outcome) = (Vec::new(), Ok(()));
    // Streams that are done come first: one that never ends takes all the time there is.
    let mut orders: Vec<(Serial, Deadline)> =
        orders.into_iter().map(|order| (order, Deadline::Now)).collect();
    let mut next = 0;
    while let Some(&(order, now)) = orders.get(next) {
        next += 1;
        let waited = match wait_before_release(pool, order, now) {
            Ok(StreamWait::Pending) => {
                if matches!(now, Deadline::Now) {
                    orders.push((order, deadline));
                }
                continue;
            }
            Ok(waited) => waited,
            // A failed wait for one stream does not keep the blocks of others in.
            Err(error) => {
                outcome = outcome.and(Err(error));
                continue;
            }
        };
        let _leaving = Reclaiming::begin(pool);
        let leaving = lock(&pool.debug.quarantine).release_of(order, before);
        for block in leaving {
            let left = release_quarantined(pool, block, waited);
            let is_finding = left.as_ref().is_err_and(Error::is_finding);
            if is_finding || matches!(left, Ok(true)) {
                lock(&pool.debug.quarantine).has_left(&block);
            } else {
                stay.push(block);
            }
            // The rest is released all the same. The first finding is returned, before any device error, and all
            // findings are recorded.
            if let Err(error) = left
                && (outcome.is_ok()
                    || is_finding && !outcome.as_ref().is_err_and(Error::is_finding))
            {
                outcome = Err(error);
            }
        }
    }
    let mut quarantine = lock(&pool.debug.quarantine);
    for block in stay.into_iter().rev() {
        quarantine.has_left(&block);
        quarantine.put_back(block);
    }
    drop(quarantine);
    outcome
}

/// Checks every canary and every block in quarantine. Returns the first finding.
pub(in crate::pool) fn check(pool: &PoolInner) -> Result<()> {
    pool.fork_generation.check()?;
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
    // Both stay locked: no block leaves while it is checked, so a free on another thread is not filling it. Reads
    // are on the probe's own stream, which has no other work, so no work of the program is waited for.
    let canaries = lock(&debug.canaries);
    let mut quarantine = lock(&debug.quarantine);
    let mut first = Ok(());
    for (&address, watched) in &canaries.blocks {
        if watched.number >= blocks_before {
            continue;
        }
        let looked = debug.probe.first_mismatch(watched.canary, pattern_of(address), None)?;
        if let Some(mismatch) = looked {
            let finding = mismatch.overrun(address, watched.size);
            first = first.and(Err(debug.record_finding(finding)));
        }
    }
    drop(canaries);
    if debug.aids.poison {
        let look = |span| debug.probe.first_mismatch(span, Pattern::U8(FREED), None);
        for (block, mismatch) in quarantine.take_overwritten(kept_before, look)? {
            debug.retire(block.memory.size);
            let finding = mismatch.after_free(|_| Some(block.former));
            first = first.and(Err(debug.record_finding(finding)));
        }
    }
    first
}
