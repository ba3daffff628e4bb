//! Allocating: one way down, from this thread's cache to the device.
//!
//! ```text
//!   allocate   this thread's magazine for the stream used last      no lock, no atomic exchange
//!   take_any   that of a stream used before, and reserves           no lock
//!   take_hole  this stream's lowest hole                            heap lock
//!   make_room  wait on the device, grow, wait on the host, ask      backing lock, driver calls
//! ```
//!
//! The size is rounded where the request enters. Every step returns the block or the address itself, so that no request
//! comes back to a step it has left.

use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use crate::pool::calls::layered::allocate_layered;
use crate::pool::calls::make_room::make_room;
use crate::pool::calls::reported::reported;
use crate::pool::calls::take::{count, hand_out, mark_live, piece, take_any};
use crate::pool::calls::thread_end::STAND_IN;
use crate::pool::calls::{free, report, thread_end, waits};
use crate::pool::common::counts::Source;
use crate::pool::common::wait::WaitBudget;
use crate::pool::front::claimed::FreeClaim;
use crate::pool::heap::Piece;
use crate::pool::heap::thread_ends::is_ending;
use crate::pool::inner::PoolInner;
use crate::sync::map::{SMALL_UNITS, UNIT_SHIFT};
use crate::{Block, Request, Result, Tag};

/// Allocates `requested` bytes, under `tag` unless the thread has entered one.
#[inline(always)]
pub(in crate::pool) fn allocate<const COUNTED: bool>(
    pool: &PoolInner,
    requested: Bytes,
    stream: StreamHandle,
    tag: Tag,
) -> Result<Block> {
    let size = pool.sizes.round(requested);
    match pool.front.take::<COUNTED, false>(requested, size, stream, tag) {
        Some(block) => Ok(block),
        None if tag == Tag::NONE => allocate_slowly(pool, requested, size, stream),
        None => allocate_slowly_for(pool, requested, size, stream, tag),
    }
}

/// Allocates a small block whose size is rounded in place, if it is a hit: no function is called. With `OWNED` the
/// caller owns it.
#[inline(always)]
pub(in crate::pool) fn allocate_small<const OWNED: bool>(
    pool: &PoolInner,
    requested: Bytes,
    stream: StreamHandle,
) -> Option<Block> {
    let size = pool.sizes.round_in_place(requested)?;
    if size.get() >> UNIT_SHIFT > SMALL_UNITS {
        return None;
    }
    pool.front.take::<true, OWNED>(requested, size, stream, Tag::NONE)
}

/// Allocates a block that the caller owns, if it is a hit.
#[inline(always)]
pub(in crate::pool) fn take_owned(
    pool: &PoolInner,
    requested: Bytes,
    stream: StreamHandle,
) -> Option<Block> {
    pool.front.take::<true, true>(requested, pool.sizes.round(requested), stream, Tag::NONE)
}

/// Allocates on a miss. Plain arguments instead of a `Request`: they are in registers already.
#[cold]
#[inline(never)]
fn allocate_slowly(
    pool: &PoolInner,
    requested: Bytes,
    size: Bytes,
    stream: StreamHandle,
) -> Result<Block> {
    match pool.front.take_recorded(&pool.history, requested, size, stream) {
        Some(block) => Ok(block),
        None => allocate_below(pool, Request::new(requested, stream), size),
    }
}

#[cold]
#[inline(never)]
fn allocate_slowly_for(
    pool: &PoolInner,
    requested: Bytes,
    size: Bytes,
    stream: StreamHandle,
    tag: Tag,
) -> Result<Block> {
    let _tag = tag.enter_unless_tagged();
    allocate_slowly(pool, requested, size, stream)
}

/// Allocates past the front cache, perhaps aligned. `size` is the rounded size.
#[inline(never)]
pub(in crate::pool) fn allocate_request(
    pool: &PoolInner,
    request: Request,
    size: Bytes,
) -> Result<Block> {
    allocate_below(pool, request, size)
}

#[inline(always)]
fn allocate_below(pool: &PoolInner, request: Request, size: Bytes) -> Result<Block> {
    pool.fork_generation.check()?;
    let request = Request { stream: request.stream.resolved(), ..request };
    if request.size.is_zero() {
        let (address, pool) = (Address::NULL, pool.id);
        return Ok(Block { address, size: Bytes::ZERO, pool, generation: 0 });
    }
    if is_ending(request.stream) {
        return allocate_at_thread_end(pool, request, size);
    }
    if !pool.front.is_plain() {
        return allocate_layered(pool, request, size);
    }
    if let Some(block) = take_any(pool, request, size) {
        return Ok(block);
    }
    let piece = match piece(pool, request, size, Bytes::ZERO) {
        Ok(piece) => piece,
        Err(refused) => return reported(pool, request, || Err(refused)),
    };
    let count = count(Source::Hole, size, request.size);
    let found = pool.front.take_hole(&mut pool.heap(), piece, request.stream, count);
    match found {
        Some(address) => mark_live(pool, address, size, request.size),
        None => allocate_with_room(pool, piece, request, size),
    }
}

/// Allocates a block that no hole serves.
#[cold]
#[inline(never)]
fn allocate_with_room(
    pool: &PoolInner,
    piece: Piece,
    request: Request,
    size: Bytes,
) -> Result<Block> {
    let mut wait = WaitBudget::default();
    let found = reported(pool, request, || make_room(pool, piece, request, &mut wait))?;
    hand_out(pool, found, size, request)
}

/// Serves a request on the own stream of an ending thread by the stand-in stream, and waits for that on the host: the
/// driver may make a new stream for every call of such a thread, so no wait on the device orders them.
#[cold]
fn allocate_at_thread_end(pool: &PoolInner, request: Request, size: Bytes) -> Result<Block> {
    let block = allocate_request(pool, Request { stream: STAND_IN, ..request }, size)?;
    let deadline = waits::deadline(pool, &mut WaitBudget::default());
    if matches!(thread_end::wait_for_stand_in(pool, deadline), Ok(true)) {
        return Ok(block);
    }
    let claimed = FreeClaim::Exact(block.generation);
    let _ = free::free_below(pool, block.address, STAND_IN, claimed);
    reported(pool, request, || Err(report::shortage(pool, request, size).into()))
}
