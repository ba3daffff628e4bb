//! Allocating and freeing guarded blocks: each on pages of its own.

use forebay_core::{Address, Alignment, Bytes, CallbackBudget, Span};
use forebay_hal::{Progress, StreamHandle};

use crate::pool::calls::{report, take, waits};
use crate::pool::common::counts::Source;
use crate::pool::common::log::LoggedEvent;
use crate::pool::common::wait::{Deadline, poll};
use crate::pool::debug::canary::canary_before;
use crate::pool::debug::guard::{
    GuardState, GuardedBlock, Guards, MAX_PENDING, PendingUnmap, Until,
};
use crate::pool::inner::PoolInner;
use crate::sync::map::{LARGEST, Side};
use crate::sync::tracked::lock;
use crate::{Block, Error, Request, Result};

/// Allocates a block on pages of its own.
pub(in crate::pool::calls) fn allocate_guarded(
    pool: &PoolInner,
    guards: &Guards,
    request: Request,
    size: Bytes,
    deadline: Deadline,
) -> Result<Block> {
    let (stream, alignment) = (request.stream, request.alignment);
    // The block ends where the pages end, except that alignment moves its start down.
    let slack = alignment.bytes().saturating_sub(Alignment::BLOCK.bytes());
    let pages = size.checked_add(slack).filter(|&whole| whole <= LARGEST);
    let pages = pages.and_then(|whole| whole.checked_align_up(guards.granule.alignment()));
    let pages = pages.ok_or_else(|| report::shortage(pool, request, size))?;
    if !wait_for_freed(pool, guards, deadline, |state| state.pending_bytes <= MAX_PENDING)? {
        return Err(report::shortage(pool, request, pages).into());
    }
    let mut budget = CallbackBudget::default();
    let guarded = loop {
        let before = lock(&guards.state).unmapped;
        if let Some(guarded) = map_guarded(pool, guards, pages, stream)? {
            break guarded;
        }
        // Another thread may have unmapped the pages that this one waits for.
        if wait_for_freed(pool, guards, deadline, |state| state.unmapped > before)? {
            continue;
        }
        if !report::call_shortage_callbacks(pool, request, pages, &mut budget) {
            return Err(report::shortage(pool, request, pages).into());
        }
    };
    let end = Bytes::new(guarded.pages.end().get().saturating_sub(size.get()));
    let start = Address::new(end.align_down(alignment).get());
    let block = Span::new(start, size).unwrap_or_default();
    let canary = canary_before(guarded.pages, start);
    lock(&guards.state).live.insert(start, guarded);
    let written = pool.debug.write_patterns(block, canary, stream);
    let block = written.and_then(|()| take::hand_out(pool, (start, Source::Driver), size, request));
    if block.is_err() {
        lock(&pool.debug.canaries).blocks.remove(&start);
        release_guarded(pool, guards, start, stream);
    }
    block
}

/// Maps pages for one block; `None` if there is no memory for them.
fn map_guarded(
    pool: &PoolInner,
    guards: &Guards,
    size: Bytes,
    stream: StreamHandle,
) -> Result<Option<GuardedBlock>> {
    let mut state = lock(&guards.state);
    let limit = pool.group.limits.limit();
    let reserved = pool.heap().ledger.share.reserve(size, false, limit);
    let Some(reserved) = reserved else { return Ok(None) };
    let range = size.saturating_add(guards.granule.bytes());
    let Some(start) = state.place(guards.region, range) else { return Ok(None) };
    let pages = Span::new(start, size).unwrap_or_default();
    let made = if pool.map.make(pages, Side::Small) {
        guards.make_pages(&mut state, pages, stream)
    } else {
        state.taken.remove(&start);
        Err(Error::AddressRange { span: pages })
    };
    let mut heap = pool.heap();
    heap.ledger.share.commit(reserved);
    heap.set_guarded(state.held);
    drop(heap);
    match made {
        Ok(page) => Ok(Some(GuardedBlock { pages, page })),
        Err(Error::Device(forebay_hal::Error::OutOfMemory { .. })) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Unmaps the pages of a block once the work of `stream` so far is done.
pub(super) fn release_guarded(
    pool: &PoolInner,
    guards: &Guards,
    address: Address,
    stream: StreamHandle,
) {
    let end = LoggedEvent::after(&pool.device, &pool.log, stream);
    let until = end.map_or(Until::Synchronised, Until::Reached);
    {
        let mut state = lock(&guards.state);
        if let Some(guarded) = state.live.remove(&address) {
            let number = state.freed;
            state.freed += 1;
            state.queue(PendingUnmap { until, stream, guarded, number });
        }
    }
    // What cannot be unmapped now is retried by a later call.
    let _ = unmap_freed(pool, guards, Deadline::Now);
}

/// Unmaps the pages of freed blocks that are due. Returns how many bytes that were. Waits for the device first, so
/// that all of them are due, unless the deadline passes.
pub(in crate::pool::calls) fn unmap_freed(
    pool: &PoolInner,
    guards: &Guards,
    deadline: Deadline,
) -> Result<Bytes> {
    // The wait does not cover blocks that are freed during it.
    let freed_before = {
        let state = lock(&guards.state);
        if state.pending.is_empty() && state.orphans.is_empty() {
            return Ok(Bytes::ZERO);
        }
        state.freed
    };
    let waits = !matches!(deadline, Deadline::Now);
    let synchronised = waits && waits::wait_for_device(pool, deadline)?;
    let mut state = lock(&guards.state);
    let before = state.held;
    let mut outcome = guards.release_orphans(&mut state);
    // Streams with a pending event: later frees on them are not due either, and need no query. If a handle was
    // reused, its blocks are only checked later.
    let mut busy: Vec<StreamHandle> = Vec::new();
    state.pending_bytes = Bytes::ZERO;
    for PendingUnmap { mut until, stream, guarded, number } in core::mem::take(&mut state.pending) {
        let due = match &until {
            Until::Now => true,
            _ if synchronised && number < freed_before => true,
            Until::Synchronised => false,
            Until::Reached(_) if busy.contains(&stream) => false,
            Until::Reached(event) => match event.query() {
                Ok(Progress::Done) => true,
                Ok(Progress::Pending) => {
                    busy.push(stream);
                    false
                }
                Err(_) => {
                    until = Until::Synchronised;
                    false
                }
            },
        };
        if !due {
            state.queue(PendingUnmap { until, stream, guarded, number });
            continue;
        }
        // SAFETY: it is due: its event was reached or the device waited for after it was freed, and
        // `free_checked` made its stream wait for the further ones first.
        if let Err(error) = unsafe { guards.unmap_pages(&mut state, guarded) } {
            state.queue(PendingUnmap { until: Until::Now, stream, guarded, number });
            outcome = Err(error);
        }
    }
    pool.heap().set_guarded(state.held);
    outcome.map(|()| before.saturating_sub(state.held))
}

/// Unmaps pages of freed blocks as their work ends, until `is_enough`. Returns `false` if the deadline passed or
/// nothing more can come.
fn wait_for_freed(
    pool: &PoolInner,
    guards: &Guards,
    deadline: Deadline,
    is_enough: impl Fn(&GuardState) -> bool,
) -> Result<bool> {
    let came = |unmapped: Result<Bytes>| {
        let state = lock(&guards.state);
        // A refusal for earlier blocks is no error of a request that has enough.
        if is_enough(&state) {
            return Ok(Some(true));
        }
        unmapped?;
        let waits = |pending: &PendingUnmap| matches!(pending.until, Until::Reached(_));
        Ok((!state.pending.iter().any(waits)).then_some(false))
    };
    if poll(deadline, || came(unmap_freed(pool, guards, Deadline::Now)))? {
        return Ok(true);
    }
    let waits = |pending: &PendingUnmap| matches!(pending.until, Until::Synchronised);
    if !lock(&guards.state).pending.iter().any(waits) {
        return Ok(false);
    }
    Ok(came(unmap_freed(pool, guards, deadline))? == Some(true))
}
