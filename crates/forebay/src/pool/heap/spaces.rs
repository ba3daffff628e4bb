//! The address spaces of both sides: every hole of the pool, and the numbers of the streams in whose order it is free.
//!
//! ```text
//!   small   [ block | hole A | block | hole A,B ]  gap  [ hole: all streams | block ]
//!   large   [ block ........ | hole B .......... ]  gap
//! ```
//!
//! **Last large block.** Freed and requested again, the large block that was allocated last would be allocated where it
//! was, so a thread may cache it. Any change of the large side ends that: every way to it here does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::address_space::{AddressSpace, Offset, Streams};
use forebay_core::{Address, Bytes, Span};

use crate::pool::common::group::BySide;
use crate::pool::heap::piece::Piece;
use crate::sync::map::Side;

/// The holes of a pool. Offsets are addresses.
#[derive(Debug)]
pub(in crate::pool) struct Spaces {
    small: AddressSpace,
    large: AddressSpace,
    /// The address of the last allocated large block, while nothing on the large side has changed since; else zero.
    last_large: Arc<AtomicU64>,
}

impl Spaces {
    pub(in crate::pool) fn new(small: AddressSpace, large: AddressSpace) -> Self {
        Self { small, large, last_large: Arc::default() }
    }

    /// The address of the last allocated large block, for readers without the heap lock.
    pub(in crate::pool) fn last_large(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.last_large)
    }

    pub(in crate::pool) fn of(&self, side: Side) -> &AddressSpace {
        match side {
            Side::Small => &self.small,
            Side::Large => &self.large,
        }
    }

    /// The space of a side, to be changed.
    #[inline]
    pub(in crate::pool) fn of_mut(&mut self, side: Side) -> &mut AddressSpace {
        match side {
            Side::Small => &mut self.small,
            Side::Large => {
                self.last_large.store(0, Ordering::Relaxed);
                &mut self.large
            }
        }
    }

    /// Small and large.
    pub(in crate::pool) fn both(&self) -> [&AddressSpace; 2] {
        [&self.small, &self.large]
    }

    /// Changes both sides.
    fn each(&mut self, change: impl Fn(&mut AddressSpace)) {
        change(self.of_mut(Side::Small));
        change(self.of_mut(Side::Large));
    }

    /// Bytes of pages, by side.
    pub(in crate::pool) fn backed(&self) -> BySide {
        self.both().map(|space| space.backed_bytes())
    }

    /// Bytes out of the holes, by side: in live blocks, in magazines, or on their way between them.
    #[inline]
    pub(in crate::pool) fn taken(&self) -> BySide {
        [self.small.taken_bytes(), self.large.taken_bytes()]
    }

    /// Allocates a piece in the order of the stream with number `taker`. The rest of an aligned piece is freed at once:
    /// later the stream may have lost its number.
    #[inline]
    pub(in crate::pool) fn allocate(&mut self, piece: Piece, taker: u32) -> Option<Address> {
        let side = piece.side();
        let found = Address::new(self.of_mut(side).allocate_for(piece.whole(), taker)?);
        if piece.whole() != piece.size {
            return Some(self.trim_to(found, piece, taker));
        }
        if side == Side::Large {
            self.last_large.store(found.get(), Ordering::Relaxed);
        }
        Some(found)
    }

    /// Cuts an aligned piece out of the memory at `found` and frees the rest before and after it. Returns where the
    /// piece begins.
    fn trim_to(&mut self, found: Address, piece: Piece, taker: u32) -> Address {
        let start = found.checked_align_up(piece.alignment).unwrap_or(found);
        let before = start.offset_from(found).unwrap_or_default();
        let after = piece.whole().saturating_sub(before).saturating_sub(piece.size);
        let space = self.of_mut(piece.side());
        for (address, part) in [(Some(found), before), (start.checked_add(piece.size), after)] {
            if let Some(address) = address.filter(|_| !part.is_zero()) {
                let freed = space.free_for(address.get(), part, taker);
                debug_assert!(freed.is_ok(), "{part} at {address} was allocated just now");
            }
        }
        start
    }

    /// Frees a block in the order of the stream with number `owner`.
    #[inline]
    pub(in crate::pool) fn free(&mut self, address: Address, size: Bytes, owner: u32) {
        let freed = self.of_mut(Side::of(size)).free_for(address.get(), size, owner);
        debug_assert!(freed.is_ok(), "{size} at {address} was freed and not allocated");
    }

    /// Frees a block for all streams.
    pub(in crate::pool) fn free_for_all(&mut self, address: Address, size: Bytes) {
        let freed = self.of_mut(Side::of(size)).free(address.get(), size, Streams::ALL);
        debug_assert!(freed.is_ok(), "{size} at {address} was freed and not allocated");
    }

    /// Moves the holes of one number to another, whose order comes after it.
    pub(super) fn hand_over(&mut self, from: u32, to: u32) {
        self.each(|space| space.holes_mut().hand_over(Streams::only(from), Streams::only(to)));
    }

    /// Records that what comes after `taker` comes after all that was freed in the order of `owner`.
    pub(in crate::pool) fn record_wait(&mut self, taker: u32, owner: u32) {
        self.each(|space| {
            space.holes_mut().record_wait(Streams::only(taker), Streams::only(owner))
        });
    }

    /// The same for any of several owners.
    pub(super) fn record_wait_any(&mut self, taker: u32, owners: Streams) {
        self.each(|space| space.holes_mut().record_wait_any(Streams::only(taker), owners));
    }

    /// Records that all work enqueued so far in the order of a number is done.
    pub(in crate::pool) fn record_idle(&mut self, number: u32) {
        self.each(|space| space.holes_mut().record_idle(Streams::only(number)));
    }

    /// Whether no hole is free in the order of a number.
    pub(super) fn owns_nothing(&self, number: u32) -> bool {
        self.both().iter().all(|space| space.holes().owns_nothing(Streams::only(number)))
    }

    /// Streams that own holes on either side, without the holes that are free for all.
    pub(in crate::pool) fn owners(&self) -> Streams {
        let [small, large] = self.both().map(|space| space.holes().other_owners(Streams::ALL));
        small.or(large)
    }
}

/// The addresses of a range in an address space.
pub(in crate::pool) fn span_of(at: Offset, size: Bytes) -> Span {
    Span::new(Address::new(at), size).unwrap_or_default()
}
