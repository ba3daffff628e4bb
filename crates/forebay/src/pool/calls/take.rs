//! The steps of a request that need no room to be made: this thread's magazines, then a hole of the heap.

use forebay_core::{Address, Alignment, Bytes};
use forebay_hal::StreamHandle;

use crate::pool::calls::report;
use crate::pool::common::counts::Source;
use crate::pool::common::sizes::Sizes;
use crate::pool::heap::{Miss, Piece};
use crate::pool::inner::PoolInner;
use crate::sync::map::{Side, UNIT_SHIFT, tagged};
use crate::sync::thread_slot;
use crate::{Block, Error, Request, Result};

/// Takes a block from any magazine of this thread. Cached blocks have no alignment of their own.
#[inline]
pub(in crate::pool) fn take_any(pool: &PoolInner, request: Request, size: Bytes) -> Option<Block> {
    if request.alignment > Alignment::BLOCK {
        return None;
    }
    pool.front.take_any(request.size, size, request.stream)
}

/// The piece of the heap for a request: its rounded size and `tail` bytes. Refuses a size that no block can have.
#[inline]
pub(in crate::pool) fn piece(
    pool: &PoolInner,
    request: Request,
    size: Bytes,
    tail: Bytes,
) -> Result<Piece> {
    let whole = size.saturating_add(tail);
    let piece = Piece::new(whole, request.alignment);
    let piece = piece.filter(|_| Sizes::is_possible(request.size, size));
    piece.ok_or_else(|| report::shortage(pool, request, whole.max(request.size)).into())
}

/// Takes a piece from a hole that is free in the order of the stream.
#[inline]
pub(in crate::pool) fn take_hole(
    pool: &PoolInner,
    piece: Piece,
    stream: StreamHandle,
) -> core::result::Result<Address, Miss> {
    let mut heap = pool.heap();
    let slot = heap.slots.get(stream).ok_or(Miss::NewStream)?;
    if piece.side() == Side::Large {
        pool.front.flush_own_large(&mut heap, stream, slot);
    }
    heap.take(piece, slot)
}

/// Flushes the large block that this thread has cached for a stream.
pub(in crate::pool) fn flush_own_large(pool: &PoolInner, stream: StreamHandle) {
    let mut heap = pool.heap();
    let slot = heap.slot_to_free(stream);
    pool.front.flush_own_large(&mut heap, stream, slot);
}

/// Makes `size` bytes from the address that was found a live block.
#[inline]
pub(in crate::pool) fn hand_out(
    pool: &PoolInner,
    (address, source): (Address, Source),
    size: Bytes,
    request: Request,
) -> Result<Block> {
    let Request { size: requested, stream, .. } = request;
    let tag = thread_slot::tag();
    let slot = pool.map.slot(address).ok_or(Error::NotABlock { address })?;
    let generation = slot.mark_live(address, size, tagged(requested, tag));
    let units = size.get() >> UNIT_SHIFT;
    pool.front.count(stream, |counts| {
        counts.count_allocation(source, units, requested.get(), tag);
    });
    Ok(Block { address, size, pool: pool.id, generation })
}
