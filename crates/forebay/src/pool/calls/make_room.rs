//! Makes room for a request that no hole serves: the ladder of attempts before it is refused. Holds the backing lock,
//! except while it waits on the host or calls the program.
//!
//! ```text
//!   flush      flush the thread caches into the heap; skipped while they hold next to nothing
//!   deferred   run deferred tasks that are due
//!   nearest    wait, on the device, for the stream that has the best hole; before all others if that is far better
//!   others     wait, on the device, for every stream that has one; with poison both come after grow
//!   grow       create pages, or move free ones, and cut the piece before another request sees them
//!   reclaim    wait on the host, without a lock; release pages that cannot serve the request; grow
//!   ask        ask the program to free memory, without a lock, and begin again
//!   refuse
//! ```

use forebay_core::{Address, Bytes, CallbackBudget};
use forebay_hal::{Call, StreamHandle};

use crate::pool::backing::Backing;
use crate::pool::backing::grow::Wanted;
use crate::pool::calls::checked::strict;
use crate::pool::calls::{flush, reclaim, report, settle, upkeep, waits};
use crate::pool::common::counts::Source;
use crate::pool::common::wait::WaitBudget;
use crate::pool::heap::Piece;
use crate::pool::inner::PoolInner;
use crate::sync::map::{SMALL, Side};
use crate::{Request, Result};

/// Thread caches are not flushed while they hold less than this fraction of the bytes held.
const FLUSH_THRESHOLD_DIVISOR: u64 = 1024;

/// With more streams than this, the pool grows by up to [`CACHED_PER_STREAM`] bytes for each further stream before it
/// flushes the thread caches. A flush would make every stream wait for another at its next request.
const MANY_STREAMS: u64 = 64;
const CACHED_PER_STREAM: u64 = 64 << 10;

/// What a request skips as long as the pool can grow instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Avoided {
    /// Flushing the thread caches.
    flush: bool,
    /// Waiting, on the device, for other streams.
    streams: bool,
}

/// Makes room for a piece and returns it. A refused request has changed nothing but where free memory is.
#[cold]
#[inline(never)]
pub(super) fn make_room(
    pool: &PoolInner,
    piece: Piece,
    request: Request,
    wait: &mut WaitBudget,
) -> Result<(Address, Source)> {
    raise_limit_for(pool, piece.whole(), request)?;
    climb(pool, piece, request, wait).inspect_err(|_| {
        // Segments that came and could not be used are released at once. The error that led here is the one to
        // report.
        if !pool.is_from_parent() {
            let _ = settle::release_segments(pool, waits::deadline(pool, wait));
        }
    })
}

/// Tries one rung after another until one returns the piece.
fn climb(
    pool: &PoolInner,
    piece: Piece,
    request: Request,
    wait: &mut WaitBudget,
) -> Result<(Address, Source)> {
    let (stream, size) = (request.stream, piece.whole());
    let is_known = pool.heap().slots.knows(stream);
    if !is_known {
        check_stream(pool, stream)?;
    }
    strict::recheck_streams(pool, wait);
    let (held, mut callbacks) = (pool.held.get(), CallbackBudget::default());
    let mut backing = pool.backing();
    backing.reactivate(pool.context(), stream);
    let mut avoided = Avoided {
        flush: size <= SMALL && caches_hold_little(pool, &backing),
        // With poison, the host waits for the stream before it checks the memory, and so for every stream that this
        // one was made to wait for.
        streams: pool.debug.aids.poison,
    };
    // One event makes the holes of the other stream usable, and the far too large hole of the own stream stays whole.
    if is_known
        && !avoided.streams
        && is_worth_waiting(pool, piece, stream)
        && let Some(found) = wait_for_nearest(pool, &mut backing, piece, stream)
    {
        return Ok((found, Source::Hole));
    }
    loop {
        if let Some(found) = use_what_is_held(pool, &mut backing, piece, stream, avoided) {
            return Ok((found, Source::Hole));
        }
        let grown = grow(pool, &mut backing, piece, stream, avoided);
        if avoided != Avoided::default() && !matches!(grown, Ok(Some(_))) {
            // With nothing avoided there may be enough. If not, the next round reports it.
            avoided = Avoided::default();
            continue;
        }
        // No lock is held from here on: the work that is waited for may itself wait for a thread that needs one, and
        // a callback may free and allocate.
        drop(backing);
        let found = match grown? {
            Some(found) => Some(found),
            None => reclaim::reclaim(pool, piece, stream, waits::deadline(pool, wait))?,
        };
        if let Some(found) = found {
            note_growth(pool, piece, stream, held)?;
            return Ok((found, Source::Driver));
        }
        let has_released = report::call_shortage_callbacks(pool, request, size, &mut callbacks);
        // The callback may have forked.
        pool.fork_generation.check()?;
        if !has_released {
            // Other threads may have freed some meanwhile.
            let found =
                cut(pool, piece, stream).ok_or_else(|| report::shortage(pool, request, size))?;
            return Ok((found, Source::Hole));
        }
        backing = pool.backing();
    }
}

/// Refuses a request of `whole` bytes that is larger than the limit, unless a callback raises the limit: no
/// reclaiming could make it fit, so caches stay as they are.
fn raise_limit_for(pool: &PoolInner, whole: Bytes, request: Request) -> Result<()> {
    loop {
        let limit = pool.group.limits.limit();
        if whole <= limit.min(pool.device_total) {
            return Ok(());
        }
        let is_raised = whole <= pool.device_total
            && report::call_shortage_callbacks(
                pool,
                request,
                whole,
                &mut CallbackBudget::default(),
            )
            && pool.group.limits.limit() > limit;
        // The callback may have forked.
        pool.fork_generation.check()?;
        if !is_raised {
            // No driver was asked.
            pool.backing().refusal = None;
            return Err(report::shortage(pool, request, whole).into());
        }
    }
}

/// Refuses a stream that the device does not know, when the pool first sees it.
fn check_stream(pool: &PoolInner, stream: StreamHandle) -> Result<()> {
    if pool.captures.any() {
        return Ok(());
    }
    let asked = pool.log.call(Call::StreamId, || pool.device.stream_id(stream));
    match asked {
        Err(error @ forebay_hal::Error::Invalid { .. }) => Err(error.into()),
        Ok(id) if stream.is_per_thread() => {
            pool.thread_ends.watch_this_thread(Some(id));
            Ok(())
        }
        // If the device cannot tell now, it reports the stream when it is used.
        _ => Ok(()),
    }
}

/// Cuts a piece out of a hole that is free in the order of the stream.
fn cut(pool: &PoolInner, piece: Piece, stream: StreamHandle) -> Option<Address> {
    let mut heap = pool.heap();
    let slot = heap.slot_for(stream);
    heap.allocate(piece, slot)
}

/// Whether another stream has a far better hole.
fn is_worth_waiting(pool: &PoolInner, piece: Piece, stream: StreamHandle) -> bool {
    let mut heap = pool.heap();
    heap.slots.get(stream).is_some_and(|slot| heap.worth_waiting(piece, slot))
}

/// Makes the stream wait, on the device, for the one that has the best hole. Due tasks come first: they cost no wait.
fn wait_for_nearest(
    pool: &PoolInner,
    backing: &mut Backing,
    piece: Piece,
    stream: StreamHandle,
) -> Option<Address> {
    let _ = backing.run_deferred(pool.context());
    backing.wait_for_nearest(pool.context(), piece, stream);
    cut(pool, piece, stream)
}

/// The rungs before `grow`, the cheapest first: they make memory usable that the pool holds.
///
/// A failure that concerns others (a destroyed stream, deferred work of an earlier request) leaves their memory
/// where it is and is no error of this request, which is served from elsewhere or refused.
fn use_what_is_held(
    pool: &PoolInner,
    backing: &mut Backing,
    piece: Piece,
    stream: StreamHandle,
    avoided: Avoided,
) -> Option<Address> {
    if !avoided.flush {
        flush::flush_caches(pool, backing, piece.side() == Side::Large);
        if let Some(found) = cut(pool, piece, stream) {
            return Some(found);
        }
    }
    reclaim::take_back(pool, backing, piece.side(), piece.whole());
    let _ = backing.run_deferred(pool.context());
    if let Some(found) = cut(pool, piece, stream) {
        return Some(found);
    }
    if avoided.streams {
        backing.free_holes_of_idle_streams(pool.context());
        return cut(pool, piece, stream);
    }
    backing.wait_for_nearest(pool.context(), piece, stream);
    if let Some(found) = cut(pool, piece, stream) {
        return Some(found);
    }
    backing.wait_for_others(pool.context(), piece.side(), stream);
    cut(pool, piece, stream)
}

/// Creates pages or moves free ones.
fn grow(
    pool: &PoolInner,
    backing: &mut Backing,
    piece: Piece,
    stream: StreamHandle,
    avoided: Avoided,
) -> Result<Option<Address>> {
    if piece.side() == Side::Large {
        flush::flush_own_small(pool, piece.whole());
    }
    let before = pool.held.get();
    let grown = backing.grow(pool.context(), Wanted { piece, stream, has_room: false });
    if avoided.flush {
        let more = pool.held.get().saturating_sub(before);
        backing.grown_to_avoid_flush = backing.grown_to_avoid_flush.saturating_add(more);
    }
    grown
}

/// After the driver made room: reads the pressure, and asks for more ahead of the next request.
fn note_growth(pool: &PoolInner, piece: Piece, stream: StreamHandle, before: Bytes) -> Result<()> {
    upkeep::read_pressure(pool);
    // A callback may have forked.
    pool.fork_generation.check()?;
    if piece.side() == Side::Large && pool.held.get() > before {
        upkeep::ask_to_grow_ahead(pool, stream);
    }
    Ok(())
}

/// Whether all magazines together hold a negligible part of the bytes held, or little for that many streams, and
/// the pool has not yet grown by more than that to avoid flushing them.
fn caches_hold_little(pool: &PoolInner, backing: &Backing) -> bool {
    let streams = pool.heap().slots.count().saturating_sub(MANY_STREAMS);
    let most = (pool.held.get().get() / FLUSH_THRESHOLD_DIVISOR)
        .max(streams.saturating_mul(CACHED_PER_STREAM));
    backing.grown_to_avoid_flush.get() < most && pool.front.all.small_held().get() < most
}
