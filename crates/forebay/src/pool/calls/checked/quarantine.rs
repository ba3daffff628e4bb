//! Putting blocks into the quarantine and releasing them from it.

use crate::pool::calls::checked::strict;
use crate::pool::calls::waits::{Reclaiming, StreamWait};
use crate::pool::calls::{put, waits};
use crate::pool::common::free_block::FreedBlock;
use crate::pool::common::step::{self, Step};
use crate::pool::common::wait::{Deadline, WaitBudget};
use crate::pool::debug::FREED;
use crate::pool::debug::quarantine::Quarantined;
use crate::pool::heap::serials::Serial;
use crate::pool::inner::PoolInner;
use crate::report::RecentFree;
use crate::sync::tracked::lock;
use crate::{Error, Result};
use forebay_core::Bytes;
use forebay_hal::{Pattern, StreamHandle};
use std::sync::atomic::Ordering;

/// What became of a block that was to leave the quarantine.
enum QuarantineExit {
    /// It holds the free pattern, and is in the heap.
    Clean,
    /// It was written to, and is retired.
    Written(Error),
    /// It stays: its stream was not done in time.
    Stays,
}

/// Puts a freed block into the quarantine, and releases the oldest ones beyond its bound. An error is a finding in
/// one of those: the block itself is freed in any case.
pub(in crate::pool) fn quarantine(
    pool: &PoolInner,
    memory: FreedBlock,
    former: RecentFree,
) -> Result<()> {
    let most = pool.debug.most_quarantined.load(Ordering::Relaxed);
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
        let exit = waited.and_then(|waited| release_quarantined(pool, oldest, waited));
        let mut quarantine = lock(&pool.debug.quarantine);
        quarantine.has_left(&oldest);
        match exit {
            Ok(QuarantineExit::Clean) => {}
            Ok(QuarantineExit::Written(finding)) => outcome = outcome.and(Err(finding)),
            // A device error with another block is no error of this call.
            Ok(QuarantineExit::Stays) | Err(_) => {
                quarantine.put_back(oldest);
                return outcome;
            }
        }
    }
}

/// Changes the bound of the quarantine. Findings in released blocks are recorded, and are no error of the change.
pub(in crate::pool) fn bound_quarantine(pool: &PoolInner, most: Bytes) {
    pool.debug.most_quarantined.store(most.get(), Ordering::Relaxed);
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

/// Releases a block to the heap, unless it was written to. If the check fails, the caller puts the block back.
///
/// No lock is held during the check, and the stream may be forgotten meanwhile, so it is identified by its serial.
/// The work enqueued on it was waited for before the check, so a checked block is free for all; an unchecked one is
/// freed in whatever order the stream's memory has now.
fn release_quarantined(
    pool: &PoolInner,
    block: Quarantined,
    waited: StreamWait,
) -> Result<QuarantineExit> {
    let Quarantined { memory, order, .. } = block;
    if !pool.debug.aids.poison {
        let mut heap = pool.heap();
        heap.free_after(memory, order);
        if memory.stream.is_per_thread() {
            put::publish(pool, &mut heap, memory.stream);
        }
        return Ok(QuarantineExit::Clean);
    }
    match waited {
        StreamWait::Done => {}
        StreamWait::Pending => return Ok(QuarantineExit::Stays),
        StreamWait::Unknown => {
            // The stream ended without an event: the block returns unchecked after a wait for the device.
            pool.heap().free_unknown(memory);
            return Ok(QuarantineExit::Clean);
        }
    }
    let own = pool.debug.probe.own_stream()?;
    match pool.debug.probe.first_mismatch_now(memory.span(), Pattern::U8(FREED), own)? {
        None => {
            pool.heap().free_for_all(memory);
            Ok(QuarantineExit::Clean)
        }
        Some(mismatch) => {
            pool.debug.retire(memory.size);
            Ok(QuarantineExit::Written(pool.debug.record_finding(block.written(mismatch))))
        }
    }
}

/// Releases the whole quarantine to the heap, as far as its work ends in time: a request would otherwise be
/// refused, or the memory is to be returned to the device. Blocks that were written to are retired, and are the
/// error.
pub(in crate::pool) fn empty_quarantine(pool: &PoolInner, deadline: Deadline) -> Result<()> {
    let orders = lock(&pool.debug.quarantine).orders();
    empty_quarantine_after(pool, orders, deadline)
}

/// Releases the blocks that were freed on one stream, which is about to end.
pub(in crate::pool) fn empty_quarantine_of(pool: &PoolInner, stream: StreamHandle) -> Result<()> {
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
            let exit = release_quarantined(pool, block, waited);
            if matches!(exit, Ok(QuarantineExit::Clean | QuarantineExit::Written(_))) {
                lock(&pool.debug.quarantine).has_left(&block);
            }
            match exit {
                Ok(QuarantineExit::Clean) => {}
                // The rest is released all the same. The first finding is returned, before any device error, and
                // all findings are recorded.
                Ok(QuarantineExit::Written(finding)) => {
                    if !outcome.as_ref().is_err_and(Error::is_finding) {
                        outcome = Err(finding);
                    }
                }
                Ok(QuarantineExit::Stays) => stay.push(block),
                Err(error) => {
                    outcome = outcome.and(Err(error));
                    stay.push(block);
                }
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
