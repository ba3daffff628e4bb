//! Settling deferred work: waiting for what it waits for, and returning memory to the heap and to the device.
//!
//! ```text
//!   lock     list the deferred tasks and the events they wait for
//!   unlock   wait for those events; for tasks without one, for the whole device
//!   lock     run the tasks: blocks return to the heap, pages to the device, a batch of them before other threads go on
//!   unlock   return segments to the device, which may wait for its work first
//! ```
//!
//! Memory freed meanwhile is neither waited for nor treated as settled: it has a later event, or a later mark
//! ([`StreamSlots`](crate::pool::heap::stream_slots::StreamSlots)).

use core::time::Duration;

use forebay_core::address_space::PageMapping;
use forebay_core::{Address, Bytes, Span};
use forebay_hal::{Call, Capabilities};

use crate::pool::calls::checked::unclean;
use crate::pool::calls::waits;
use crate::pool::calls::waits::Reclaiming;
use crate::pool::common::step::{self, Step};
use crate::pool::common::wait::Deadline;
use crate::pool::heap::span_of;
use crate::pool::inner::PoolInner;
use crate::sync::map::Side;
use crate::{Error, Result};

/// How long a thread that releases many pages sleeps after each batch, which takes the driver 1.4 ms on one H200.
const BETWEEN_BATCHES: Duration = Duration::from_micros(50);

/// Takes free pages out of the address spaces until no more than `keep` bytes would be held, for a caller that
/// returns them to the device at once.
pub(super) fn take_out_free(pool: &PoolInner, keep: Bytes) {
    let mut backing = pool.backing();
    let mut pages = backing.free_pages(pool.context()).into_iter();
    backing.defer_release(pool.context(), &mut pages, keep, usize::MAX);
}

/// Runs every deferred task that is due. Other threads go on between two batches.
fn run_all_deferred(pool: &PoolInner) -> Result<()> {
    let mut outcome = pool.backing().begin_pass(pool.context());
    loop {
        let batch = pool.backing().run_batch(pool.context());
        outcome = outcome.and(batch.outcome).and(batch.refused);
        if !batch.more {
            return outcome;
        }
        let_others_in(pool);
    }
}

/// Sleeps between two batches of driver calls, if other threads use the pool: a thread that waits for the lock
/// would not get it from one that takes it again at once.
pub(super) fn let_others_in(pool: &PoolInner) {
    if pool.front.all.is_shared() {
        std::thread::sleep(BETWEEN_BATCHES);
    }
}

/// Waits for all work that deferred tasks wait for, and runs the tasks. Returns `false` if the deadline passed
/// first.
pub(in crate::pool) fn settle(pool: &PoolInner, deadline: Deadline) -> Result<bool> {
    step::reach(Step::Settling);
    let (events, ticket) = {
        let backing = pool.backing();
        // A capture begins under this lock, and one may have begun since the caller looked.
        if pool.captures.any() {
            return Ok(false);
        }
        let mut heap = pool.heap();
        heap.mark_unreachable();
        let unknown = backing.deferred.has_unknown()
            || heap.has_unknown()
            || unclean::has_unclean_unknown(pool, &heap);
        (backing.deferred.events(), unknown.then(|| heap.slots.serials.begin_sync()))
    };
    let mut outcome = waits::wait_for_events(pool, &events, deadline);
    if let Some(ticket) = ticket {
        let synchronized = waits::wait_for_device_unless_captured(pool, deadline);
        let done = matches!(synchronized, Ok(true));
        let mut backing = pool.backing();
        pool.heap().end_sync(ticket, done);
        if done {
            backing.deferred.synchronized(ticket.before);
        }
        drop(backing);
        outcome = outcome.and_then(|all| Ok(synchronized? && all));
    }
    let ran = run_all_deferred(pool);
    {
        let mut backing = pool.backing();
        if !pool.captures.any() {
            // More streams are known to be done by now.
            let returns = unclean::fill_unclean(pool, &mut backing);
            pool.heap().free_all(returns);
        }
    }
    let given = release_segments(pool, deadline).map(drop);
    ran.and(given).and(outcome)
}

/// Whether any segment is waiting to be returned to the device.
fn has_segments_to_release(pool: &PoolInner) -> bool {
    let mut backing = pool.backing();
    let mut strays = [Side::Small, Side::Large].into_iter();
    !backing.outgoing.is_empty() || strays.any(|side| !backing.provider(side).0.strays.is_empty())
}

/// Takes the next segment to return to the device; `None` if there is none, or a capture is under way. A capture
/// begins under the backing lock, so it begins either before or after this.
fn next_outgoing(pool: &PoolInner) -> Option<(Side, PageMapping)> {
    let mut backing = pool.backing();
    if pool.captures.any() {
        return None;
    }
    let (side, page) = backing.outgoing.pop()?;
    // Cleared before the device gets it: the device may return the same addresses again at once.
    let cleared = pool.heap().spaces.of_mut(side).page_table_mut().clear_alias(page.at);
    debug_assert!(cleared.is_ok(), "the segment was not removed: {cleared:?}");
    Some((side, page))
}

/// Takes the segments that never came into the address space.
fn take_strays(pool: &PoolInner) -> [(Side, Vec<(Address, Bytes)>); 2] {
    let mut backing = pool.backing();
    let capturing = pool.captures.any();
    [Side::Small, Side::Large].map(|side| {
        let strays = &mut backing.provider(side).0.strays;
        (side, if capturing { Vec::new() } else { core::mem::take(strays) })
    })
}

/// Returns segments that are out of the address space to the device, without a lock: a device may wait for its work
/// before it takes memory back. Such a device is waited for first, and if that takes too long the segments are
/// released another time, unless a request takes them back. Returns how many bytes were released.
pub(super) fn release_segments(pool: &PoolInner, deadline: Deadline) -> Result<Bytes> {
    if !has_segments_to_release(pool) {
        return Ok(Bytes::ZERO);
    }
    let _reclaiming = Reclaiming::begin(pool);
    let prompt = pool.source.descriptor().capabilities.contains(Capabilities::PROMPT_FREE);
    let in_time = match deadline {
        Deadline::Never => true,
        _ if prompt => true,
        Deadline::Now => false,
        Deadline::At(_) => waits::wait_for_device_unless_captured(pool, deadline)?,
    };
    if !in_time {
        return Ok(Bytes::ZERO);
    }
    let free = |span: Span| {
        // SAFETY: the segment is in no address space, so no block lies in it. The end of all work that used it was
        // seen when its task became due, or no work ever used it.
        let free = || unsafe { pool.source.free(span.start()) };
        pool.log.wait(Call::Free, span.size(), free).map_err(Error::from)
    };
    let (mut outcome, mut released) = (Ok(()), Bytes::ZERO);
    while let Some((side, page)) = next_outgoing(pool) {
        let freed = free(span_of(page.at, page.size));
        if freed.is_ok() {
            released = released.saturating_add(page.size);
        }
        let mut backing = pool.backing();
        backing.provider(side).0.finish_segment_release(pool.context().heap, page, freed.is_ok());
        outcome = outcome.and(freed);
    }
    for (side, segments) in take_strays(pool) {
        for (start, size) in segments {
            let freed = Span::new(start, size).map_or(Ok(()), free);
            let mut backing = pool.backing();
            if freed.is_ok() {
                released = released.saturating_add(size);
                pool.heap().released(size);
            } else {
                backing.provider(side).0.strays.push((start, size));
            }
            outcome = outcome.and(freed);
        }
    }
    outcome.map(|()| released)
}
