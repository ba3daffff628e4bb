//! Allocating: one way down, from this thread's cache to the device.
//!
//! ```text
//!   allocate   this thread's magazine for the stream used last      no lock, no atomic exchange
//!   take_any   any other magazine of this thread                    no lock
//!   take_hole  this stream's lowest hole                            heap lock
//!   make_room  wait on the device, grow, wait on the host, ask      backing lock, driver calls
//! ```
//!
//! The size is rounded where the request enters. Every step returns the block or the address itself, so that no request
//! comes back to a step it has left.

use forebay_core::{Address, Alignment, Bytes};
use forebay_hal::StreamHandle;

use crate::pool::common::counts::Source;
use crate::pool::common::sizes::Sizes;
use crate::pool::common::wait::WaitBudget;
use crate::pool::heap::thread_ends::is_ending;
use crate::pool::heap::{Miss, Piece};
use crate::pool::shared::Shared;
use crate::sync::map::{SMALL_UNITS, Side, UNIT_SHIFT, tagged};
use crate::sync::thread_slot;
use crate::{Block, Error, Request, Result, Tag};

impl Shared {
    /// Allocates `requested` bytes, under `tag` unless the thread has entered one.
    #[inline(always)]
    pub(in crate::pool) fn allocate<const COUNTED: bool>(
        &self,
        requested: Bytes,
        stream: StreamHandle,
        tag: Tag,
    ) -> Result<Block> {
        let size = self.sizes.round(requested);
        match self.front.take::<COUNTED, false>(requested, size, stream, tag) {
            Some(block) => Ok(block),
            None if tag == Tag::NONE => self.allocate_slowly(requested, size, stream),
            None => self.allocate_slowly_for(requested, size, stream, tag),
        }
    }

    /// Allocates a small block whose size is rounded in place, if it is a hit: no function is called. With `OWNED` the
    /// caller owns it.
    #[inline(always)]
    pub(in crate::pool) fn allocate_small<const OWNED: bool>(
        &self,
        requested: Bytes,
        stream: StreamHandle,
    ) -> Option<Block> {
        let size = self.sizes.round_in_place(requested)?;
        if size.get() >> UNIT_SHIFT > SMALL_UNITS {
            return None;
        }
        self.front.take::<true, OWNED>(requested, size, stream, Tag::NONE)
    }

    /// Allocates a block that the caller owns, if it is a hit.
    #[inline(always)]
    pub(in crate::pool) fn take_owned(
        &self,
        requested: Bytes,
        stream: StreamHandle,
    ) -> Option<Block> {
        self.front.take::<true, true>(requested, self.sizes.round(requested), stream, Tag::NONE)
    }

    /// What is no hit. Plain arguments instead of a `Request`: they are in registers already.
    #[cold]
    #[inline(never)]
    fn allocate_slowly(
        &self,
        requested: Bytes,
        size: Bytes,
        stream: StreamHandle,
    ) -> Result<Block> {
        match self.front.take_recorded(&self.history, requested, size, stream) {
            Some(block) => Ok(block),
            None => self.allocate_below(Request::new(requested, stream), size),
        }
    }

    #[cold]
    #[inline(never)]
    fn allocate_slowly_for(
        &self,
        requested: Bytes,
        size: Bytes,
        stream: StreamHandle,
        tag: Tag,
    ) -> Result<Block> {
        let _tag = tag.enter_unless_tagged();
        self.allocate_slowly(requested, size, stream)
    }

    /// Allocates past the front cache. `size` is the rounded size.
    #[inline(never)]
    pub(in crate::pool) fn allocate_below(&self, request: Request, size: Bytes) -> Result<Block> {
        self.birth.check()?;
        let request = Request { stream: request.stream.resolved(), ..request };
        if request.size.is_zero() {
            let (address, pool) = (Address::NULL, self.id);
            return Ok(Block { address, size: Bytes::ZERO, pool, generation: 0 });
        }
        if is_ending(request.stream) {
            return self.allocate_at_thread_end(request, size);
        }
        if !self.front.is_plain() {
            return self.allocate_layered(request, size);
        }
        if let Some(block) = self.take_any(request, size) {
            return Ok(block);
        }
        let mut wait = WaitBudget::default();
        let found = match self.piece(request, size, Bytes::ZERO) {
            Ok(piece) => match self.take_hole(piece, request.stream) {
                Ok(address) => (address, Source::Hole),
                Err(miss) => {
                    self.told(request, || self.make_room(piece, request, miss, &mut wait))?
                }
            },
            Err(error) => return self.told(request, || Err(error)),
        };
        self.hand_out(found, size, request)
    }

    /// Takes a block from any magazine of this thread. Cached blocks have no alignment of their own.
    #[inline]
    pub(in crate::pool) fn take_any(&self, request: Request, size: Bytes) -> Option<Block> {
        if request.alignment > Alignment::BLOCK {
            return None;
        }
        self.front.take_any(request.size, size, request.stream)
    }

    /// The piece of the heap for a request: its rounded size and `tail` bytes. Refuses a size that no block can have.
    #[inline]
    pub(in crate::pool) fn piece(
        &self,
        request: Request,
        size: Bytes,
        tail: Bytes,
    ) -> Result<Piece> {
        let whole = size.saturating_add(tail);
        let piece = Piece::new(whole, request.alignment);
        let piece = piece.filter(|_| Sizes::is_possible(request.size, size));
        piece.ok_or_else(|| self.shortage(request, whole.max(request.size)).into())
    }

    /// Takes a piece from a hole that is free in the order of the stream.
    #[inline]
    pub(in crate::pool) fn take_hole(
        &self,
        piece: Piece,
        stream: StreamHandle,
    ) -> core::result::Result<Address, Miss> {
        let mut heap = self.heap();
        let slot = heap.slots.get(stream).ok_or(Miss::NewStream)?;
        if piece.side() == Side::Large {
            self.front.flush_own_large(&mut heap, stream, slot);
        }
        heap.take(piece, slot)
    }

    /// Flushes the large block that this thread has cached for a stream.
    pub(in crate::pool) fn flush_own_large(&self, stream: StreamHandle) {
        let mut heap = self.heap();
        let slot = heap.slot_for(stream);
        self.front.flush_own_large(&mut heap, stream, slot);
    }

    /// Makes `size` bytes from the address that was found a live block.
    #[inline]
    pub(in crate::pool) fn hand_out(
        &self,
        (address, source): (Address, Source),
        size: Bytes,
        request: Request,
    ) -> Result<Block> {
        let Request { size: requested, stream, .. } = request;
        let tag = thread_slot::tag();
        let slot = self.map.slot(address).ok_or(Error::NotABlock { address })?;
        let generation = slot.mark_live(address, size, tagged(requested, tag));
        let units = size.get() >> UNIT_SHIFT;
        self.front.count(stream, |counts| {
            counts.count_allocation(source, units, requested.get(), tag);
        });
        Ok(Block { address, size, pool: self.id, generation })
    }
}
