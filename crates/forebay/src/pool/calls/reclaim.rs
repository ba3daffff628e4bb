//! Reclaiming memory for one request: waiting for work that holds some, and releasing free memory that cannot serve the
//! request where it is. The last thing tried before the program is asked to free memory.
//!
//! ```text
//!   look ──> wait ──> look ──> release some ──> look ──> release all ──> look ──> over, or memory may still come
//!   each look cuts or grows            one request at a time: what it releases is its room
//! ```
//!
//! Memory on its way to the heap or the device is announced by [`Reclaiming`], which other requests wait for.

use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_core::address_space::Streams;
use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use crate::Result;
use crate::pool::backing::Backing;
use crate::pool::backing::grow::Wanted;
use crate::pool::calls::checked::quarantine;
use crate::pool::calls::waits::Reclaiming;
use crate::pool::calls::{feasibility, flush, settle, waits};
use crate::pool::common::step::{self, Step};
use crate::pool::common::wait::Deadline;
use crate::pool::heap::Piece;
use crate::pool::inner::PoolInner;
use crate::sync::map::Side;
use crate::sync::tracked::lock;

/// How long a request waits for others that release memory, even if it may not wait for work: those may not either, so they
/// only make driver calls.
const TURNS: Duration = Duration::from_secs(1);

/// What a request has not tried yet to get memory back.
#[derive(Clone, Copy, Debug)]
enum Effort {
    /// Wait for the work that memory waits for.
    Wait,
    /// Release no more free memory than the request needs, plus one page.
    ReleaseSome,
    /// Release all free memory.
    ReleaseAll,
    /// Everything was tried. Other threads may have returned memory since.
    Nothing,
}

/// What a request that reclaims memory has found.
#[derive(Clone, Copy, Debug)]
struct Look {
    found: Option<Address>,
    /// The count of [arrivals](crate::pool::heap::Heap::arrivals) from before it looked, and of blocks in quarantine.
    arrivals: u64,
    quarantined: u64,
    /// Whether the device had too little memory to grow.
    device_is_short: bool,
}

/// Held by the one request that releases memory for itself. What is returned to the device meanwhile stays reserved for
/// it, and no other request takes back what it took out.
struct ReleaseTurn<'a> {
    pool: &'a PoolInner,
    _reclaiming: Reclaiming<'a>,
}

impl<'a> ReleaseTurn<'a> {
    /// `None` while another request has the turn.
    fn begin(pool: &'a PoolInner) -> Option<Self> {
        let _reclaiming = Reclaiming::begin(pool);
        let is_first = pool.heap().ledger.share.begin_room();
        is_first.then(|| Self { pool, _reclaiming })
    }
}

impl Drop for ReleaseTurn<'_> {
    fn drop(&mut self) {
        self.pool.heap().ledger.share.end_room();
    }
}

/// Waits for the device, so that memory used by finished work comes back, and releases free memory that cannot
/// serve the request where it is. The last thing tried before the program is asked to free memory. Returns the piece;
/// `None` if there would be too little even if everything came back, or too little came in time.
///
/// The request has no claim on what other threads free and take meanwhile. It looks again only after one of them has
/// returned memory, or while work is pending that holds some: so it ends, at the latest when the deadline passes.
pub(super) fn reclaim(
    pool: &PoolInner,
    piece: Piece,
    stream: StreamHandle,
    deadline: Deadline,
) -> Result<Option<Address>> {
    if pool.captures.any() || feasibility::is_infeasible(pool, piece, true) {
        return Ok(None);
    }
    let (mut effort, mut turn, mut patience) = (Effort::Wait, None, None);
    // The failures on the way are the reason if the memory does not come.
    let (mut outcome, mut has_settled) = (Ok(()), true);
    loop {
        let look = take_all_there_is(pool, piece, stream, turn.is_some())?;
        if look.found.is_some() {
            return Ok(look.found);
        }
        if pool.captures.any() {
            return outcome.map(|()| None);
        }
        match effort {
            Effort::Wait => {
                if let Err(error) = quarantine::empty_quarantine(pool, deadline)
                    && error.is_finding()
                {
                    return Err(error);
                }
                effort = Effort::ReleaseSome;
            }
            Effort::ReleaseSome | Effort::ReleaseAll if turn.is_none() => {
                turn = ReleaseTurn::begin(pool);
                if turn.is_none() {
                    let patience = *patience.get_or_insert_with(|| deadline.or_after(TURNS));
                    waits::wait_for_reclaims(pool, patience);
                    effort = if patience.has_passed() { Effort::Nothing } else { effort };
                }
                continue;
            }
            Effort::ReleaseSome => {
                let page = pool.backing().growth.largest_page;
                let keep = pool.held.get().saturating_sub(piece.whole()).saturating_sub(page);
                settle::take_out_free(pool, keep);
                effort = Effort::ReleaseAll;
            }
            Effort::ReleaseAll => {
                settle::take_out_free(pool, Bytes::ZERO);
                effort = Effort::Nothing;
            }
            Effort::Nothing => {
                turn = None;
                let is_over = outcome.is_err() || deadline.has_passed();
                if is_over || !may_come(pool, piece, stream, look, has_settled, deadline) {
                    return outcome.map(|()| None);
                }
                effort = Effort::Wait;
                settle::let_others_in(pool);
                continue;
            }
        }
        let settled = settle::settle(pool, deadline);
        has_settled = matches!(settled, Ok(true));
        outcome = outcome.and(settled.map(drop));
    }
}

/// Cuts a piece out of all that is free now, caches included, or grows for it.
fn take_all_there_is(
    pool: &PoolInner,
    piece: Piece,
    stream: StreamHandle,
    has_room: bool,
) -> Result<Look> {
    step::reach(Step::Looking);
    let quarantined = lock(&pool.debug.quarantine).added();
    let mut backing = pool.backing();
    flush::flush_all_caches(pool, &mut backing);
    let arrivals = pool.heap().arrivals;
    backing.wait_for_others(pool.context(), piece.side(), stream);
    let mut found = {
        let mut heap = pool.heap();
        let slot = heap.slot_for(stream);
        heap.allocate(piece, slot)
    };
    if found.is_none() {
        found = backing.grow(pool.context(), Wanted { piece, stream, has_room })?;
    }
    Ok(Look { found, arrivals, quarantined, device_is_short: backing.refusal.is_some() })
}

/// Whether memory has come for a request since it last looked, or is held by work that is pending. Pending work is no
/// reason to look again if the last wait for it did not end.
fn may_come(
    pool: &PoolInner,
    piece: Piece,
    stream: StreamHandle,
    look: Look,
    has_settled: bool,
    deadline: Deadline,
) -> bool {
    // The device has less than it says, and no other memory of the pool would help.
    if look.device_is_short || feasibility::is_infeasible(pool, piece, true) {
        return false;
    }
    // First what other threads have under way, then what they have done.
    waits::wait_for_reclaims(pool, deadline);
    let has_quarantined = lock(&pool.debug.quarantine).added() != look.quarantined;
    {
        let backing = pool.backing();
        let mut heap = pool.heap();
        let taker = Streams::only(heap.slot_for(stream));
        let is_pending = !backing.deferred.is_empty()
            || !backing.outgoing.is_empty()
            || heap.has_unknown()
            || heap.has_unreachable(piece.side(), taker);
        if heap.arrivals != look.arrivals || has_quarantined || is_pending && has_settled {
            return true;
        }
    }
    // Or they have freed what it needs into their caches.
    feasibility::is_infeasible(pool, piece, false)
}

/// Takes back what calls that release memory have taken out and not returned yet, unless it is another request that
/// releases it for itself.
pub(in crate::pool) fn take_back(pool: &PoolInner, backing: &mut Backing, side: Side, size: Bytes) {
    if pool.reclaiming.load(Ordering::SeqCst) == 0 {
        backing.take_back(pool.context(), side, size);
    }
}
