//! What the plain and the layered way of a request share: this thread's other magazines, the piece to ask the heap for,
//! and the block made from an address.

use forebay_core::{Address, Alignment, Bytes};

use crate::pool::calls::report;
use crate::pool::common::counts::{Counts, Source};
use crate::pool::common::sizes::Sizes;
use crate::pool::heap::Piece;
use crate::pool::inner::PoolInner;
use crate::sync::map::{UNIT_SHIFT, tagged};
use crate::sync::thread_slot;
use crate::{Block, Error, Request, Result};

/// Takes a block from any magazine of this thread. Cached blocks have no alignment of their own.
#[inline(always)]
pub(in crate::pool) fn take_any(pool: &PoolInner, request: Request, size: Bytes) -> Option<Block> {
    if request.alignment > Alignment::BLOCK {
        return None;
    }
    pool.front.take_any(request.size, size, request.stream)
}

/// The piece of the heap for a request: its rounded size and `tail` bytes. Refuses a size that no block can have.
#[inline(always)]
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

/// Turns `size` bytes from the address found into a live block. The caller counts it.
#[inline(always)]
pub(super) fn mark_live(
    pool: &PoolInner,
    address: Address,
    size: Bytes,
    requested: Bytes,
) -> Result<Block> {
    let Some(slot) = pool.map.slot(address) else { return Err(Error::NotABlock { address }) };
    let generation = slot.mark_live(address, size, tagged(requested, thread_slot::tag()));
    Ok(Block { address, size, pool: pool.id, generation })
}

/// Turns `size` bytes from the address found into a live block, and counts it.
pub(super) fn hand_out(
    pool: &PoolInner,
    (address, source): (Address, Source),
    size: Bytes,
    request: Request,
) -> Result<Block> {
    let block = mark_live(pool, address, size, request.size)?;
    pool.front.count(request.stream, count(source, size, request.size));
    Ok(block)
}

/// Counts the allocation of a block.
#[inline(always)]
pub(in crate::pool) fn count(
    source: Source,
    size: Bytes,
    requested: Bytes,
) -> impl Fn(&mut Counts) {
    let (units, tag) = (size.get() >> UNIT_SHIFT, thread_slot::tag());
    move |counts| counts.count_allocation(source, units, requested.get(), tag)
}
