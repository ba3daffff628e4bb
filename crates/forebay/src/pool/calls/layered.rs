//! The calls of a pool that checks or records them: the same way down, with checks before and after. Creating a pool or
//! changing a setting decides whether it takes this way ([`Front::set_hits`](crate::pool::front::Front::set_hits)); a
//! plain pool knows nothing of it.

use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use crate::pool::calls::checked::blocks::{free_checked, prepare_block};
use crate::pool::calls::checked::guard::allocate_guarded;
use crate::pool::calls::checked::strict::check_stream_identity;
use crate::pool::calls::make_room::make_room;
use crate::pool::calls::note::{note, note_free};
use crate::pool::calls::put::{claim, put, watch_own_stream};
use crate::pool::calls::reported::reported;
use crate::pool::calls::take::{hand_out, piece, take_any};
use crate::pool::calls::waits::deadline;
use crate::pool::common::counts::Source;
use crate::pool::common::event::RawEvent;
use crate::pool::common::wait::WaitBudget;
use crate::pool::front::claimed::FreeClaim;
use crate::pool::inner::PoolInner;
use crate::report::{EventAction, Stack};
use crate::{Block, Request, Result, Tag};

/// Allocates a block, checked and recorded.
#[cold]
#[inline(never)]
pub(super) fn allocate_layered(pool: &PoolInner, request: Request, size: Bytes) -> Result<Block> {
    reported(pool, request, || {
        let got = allocate_checked(pool, request, size);
        if request.is_refused_for_now(&got) {
            return got;
        }
        let (action, address, generation) = match &got {
            Ok(block) => {
                pool.debug.add_live(block.size);
                (EventAction::Allocate, block.address, block.generation)
            }
            Err(_) => (EventAction::Refuse, Address::NULL, 0),
        };
        let Request { size: requested, stream, .. } = request;
        let (tag, stack) = (Tag::current(), Stack::NONE);
        note(pool, RawEvent { action, address, generation, requested, stream, tag, stack });
        // An observer may have forked.
        pool.fork_generation.check()?;
        got
    })
}

/// Allocates a block, and checks its stream and its memory.
fn allocate_checked(pool: &PoolInner, request: Request, size: Bytes) -> Result<Block> {
    let mut wait = WaitBudget::default();
    check_stream_identity(pool, request.stream, &mut wait)?;
    let piece = piece(pool, request, size, pool.debug.tail())?;
    if let Some(guards) = &pool.debug.guards {
        return allocate_guarded(pool, guards, request, size, deadline(pool, &mut wait));
    }
    if let Some(block) = take_any(pool, request, size) {
        return Ok(block);
    }
    let found = pool.front.take_hole(&mut pool.heap(), piece, request.stream, |_| ());
    let found = match found {
        Some(address) => (address, Source::Hole),
        None => make_room(pool, piece, request, &mut wait)?,
    };
    prepare_block(pool, found.0, size, request, &mut wait)?;
    hand_out(pool, found, size, request)
}

/// Frees a block, checked and recorded.
#[cold]
#[inline(never)]
pub(super) fn free_layered(
    pool: &PoolInner,
    address: Address,
    stream: StreamHandle,
    claimed: FreeClaim,
) -> Result<()> {
    check_stream_identity(pool, stream, &mut WaitBudget::default())?;
    watch_own_stream(pool, stream);
    let block = claim(pool, address, claimed)?;
    if pool.debug.checks_frees() {
        return free_checked(pool, block, stream);
    }
    // From here on only this call has the block, so its event comes before the next one at its address. Nothing
    // after this can fail, so the event is true.
    note_free(pool, address, block.known, stream);
    // An observer may have forked.
    pool.fork_generation.check()?;
    put(pool, &block, stream);
    Ok(())
}
