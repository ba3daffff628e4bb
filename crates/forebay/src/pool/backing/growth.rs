//! What a growth is for, and its result.

use std::sync::Mutex;

use forebay_core::address_space::{Growth, Streams};
use forebay_core::{Address, Bytes};
use forebay_hal::{Pattern, StreamHandle};

use crate::pool::heap::{Heap, Piece};
use crate::sync::map::AddressMap;
use crate::sync::quota::Reservation;
use crate::sync::tracked::lock;

/// The result of a growth.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) enum Made {
    /// Nothing: the limit, the addresses or the device do not allow it.
    Nothing,
    /// A hole, for a growth without a piece to cut.
    Room,
    /// The piece, cut before anyone else could see the room.
    Piece(Address),
}

/// A growth: what it is for, and what it needs beside the provider.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct GrowthContext<'a> {
    pub(in crate::pool) heap: &'a Mutex<Heap>,
    pub(in crate::pool) map: &'a AddressMap,
    pub(in crate::pool) growth: &'a Growth,
    /// The most that both sides together may hold.
    pub(in crate::pool) limit: Bytes,
    /// The pattern for new memory, and the stream to fill it on: the one it is made for.
    pub(in crate::pool) fresh: Option<(Pattern, StreamHandle)>,
    /// How large the hole has to be.
    pub(in crate::pool) size: Bytes,
    /// The slot of the stream that it is for.
    pub(in crate::pool) taker: u32,
    /// What to cut out of it.
    pub(in crate::pool) piece: Option<Piece>,
    /// Whether the room that was released for a request is for this one.
    pub(in crate::pool) has_room: bool,
}

impl GrowthContext<'_> {
    /// The stream that it is for, as a set.
    pub(super) fn stream(&self) -> Streams {
        Streams::only(self.taker)
    }

    /// Ends a reservation for memory that did not come. A request that has room keeps it for its next attempt.
    pub(super) fn end_reservation(&self, reserved: Reservation) {
        if self.has_room {
            lock(self.heap).ledger.share.return_room(reserved);
        }
    }

    /// Cuts the piece out of the hole that is there now.
    pub(super) fn cut(&self, heap: &mut Heap) -> Made {
        let Some(piece) = self.piece else { return Made::Room };
        heap.allocate(piece, self.taker).map_or(Made::Nothing, Made::Piece)
    }
}
