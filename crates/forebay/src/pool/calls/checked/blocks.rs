//! Allocating and freeing a block with debug checks on.

use crate::pool::backing::Backing;
use crate::pool::backing::deferred::WorkEnd;
use crate::pool::calls::checked::{guard, quarantine, unclean};
use crate::pool::calls::{note, put, report, waits};
use crate::pool::common::free_block::FreedBlock;
use crate::pool::common::log::LoggedEvent;
use crate::pool::common::step::{self, Step};
use crate::pool::common::wait::{Deadline, WaitBudget};
use crate::pool::front::claimed::Claimed;
use crate::pool::inner::PoolInner;
use crate::report::RecentFree;
use crate::sync::map::BlockState;
use crate::sync::tracked::lock;
use crate::{Request, Result, Tag};
use forebay_core::{Address, Bytes, Span};
use forebay_hal::StreamHandle;
use std::sync::Arc;

/// Prepares memory from the heap to become a block of `size`. On an error or a finding, the memory is no longer the
/// caller's.
pub(in crate::pool::calls) fn prepare_block(
    pool: &PoolInner,
    address: Address,
    size: Bytes,
    request: Request,
    wait: &mut WaitBudget,
) -> Result<()> {
    let (debug, stream) = (&pool.debug, request.stream);
    if !debug.aids.prepares_blocks() {
        return Ok(());
    }
    let memory = FreedBlock { address, size: size.saturating_add(debug.tail()), stream };
    if debug.aids.poison {
        // Memory that is free in the order of the stream may still be used by work enqueued there.
        let looked = LoggedEvent::after(&pool.device, &pool.log, stream)
            .and_then(|end| {
                waits::wait_for_events(pool, &[Arc::new(end)], waits::deadline(pool, wait))
            })
            .and_then(|over| match over {
                true => debug.written_since(memory),
                false => Err(report::shortage(pool, request, memory.size).into()),
            });
        match looked {
            Ok(None) => {}
            Ok(Some(finding)) => {
                debug.retire(memory.size);
                return Err(debug.record_finding(finding));
            }
            Err(error) => {
                put::return_to_heap(pool, vec![memory]);
                return Err(error);
            }
        }
    }
    let block = Span::new(memory.address, size).unwrap_or_default();
    let canary = Span::new(block.end(), debug.tail()).unwrap_or_default();
    debug.write_patterns(block, canary, stream).inspect_err(|_| return_prepared(pool, memory))
}

/// Returns memory that was prepared, perhaps only in part, and never became a block.
fn return_prepared(pool: &PoolInner, memory: FreedBlock) {
    if pool.debug.aids.poison {
        unclean::keep_unclean(pool, memory);
    } else {
        put::return_to_heap(pool, vec![memory]);
    }
}

/// Frees the claimed block at `address` after checking its surroundings.
pub(in crate::pool::calls) fn free_checked(
    pool: &PoolInner,
    block: Claimed<'_>,
    stream: StreamHandle,
) -> Result<()> {
    let Claimed { slot, known, address } = block;
    let size = known.size().saturating_add(pool.debug.tail());
    let memory = FreedBlock { address, size, stream };
    let finding = match join_users(pool, known, memory)
        .and_then(|()| pool.debug.check_and_poison(address, memory))
    {
        Ok(finding) => finding,
        Err(error) => {
            slot.unclaim(known);
            return Err(error);
        }
    };
    // The block is free from here on, whatever happens next.
    if known.used_elsewhere() {
        pool.heap().uses.remove(&address);
    }
    note::note_free(pool, address, known, stream);
    pool.front.count(stream, |counts| {
        counts.count_free(known.units(), known.requested(), known.tag());
    });
    let former = RecentFree {
        address,
        size: known.size(),
        requested: Bytes::new(known.requested()),
        tag: Tag::of(known),
        stream,
    };
    if pool.debug.aids.poison {
        lock(&pool.debug.recent_frees).remember(former);
    }
    match (&pool.debug.guards, finding) {
        (Some(guards), finding) => {
            guard::release_guarded(pool, guards, address, stream);
            finding.map_or(Ok(()), |finding| Err(pool.debug.record_finding(finding)))
        }
        (None, Some(finding)) => {
            pool.debug.retire(memory.size);
            Err(pool.debug.record_finding(finding))
        }
        (None, None) => quarantine::quarantine(pool, memory, former),
    }
}

/// Makes the stream a block is freed on wait, on the device, for the further streams that used it: what the pool
/// does with the block in that stream's order then comes after all of its uses.
fn join_users(pool: &PoolInner, known: BlockState, memory: FreedBlock) -> Result<()> {
    if !known.used_elsewhere() {
        return Ok(());
    }
    step::reach(Step::JoiningUsers);
    let joined = {
        // Locked from before the look-up until the events are recorded: a user that is forgotten in between would
        // leave its handle to another stream.
        let backing = pool.backing();
        let ends: Vec<WorkEnd> = {
            let mut heap = pool.heap();
            let own = heap.serial_for(memory.stream);
            let uses = heap.uses.get(&memory.address).cloned().unwrap_or_default();
            Backing::ends_of(&mut heap, uses, own)
        };
        backing.make_stream_wait(memory.stream, &ends)?
    };
    if !joined {
        waits::wait_for_device(pool, Deadline::Never)?;
    }
    Ok(())
}
