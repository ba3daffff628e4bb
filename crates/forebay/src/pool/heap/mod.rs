//! The heap: all free memory of a pool, by side and by the streams in whose order it is free. Guarded by the heap lock,
//! which is held across no driver calls except event calls and address reservations: both are short.
//!
//! ```text
//!   Heap ── spaces   the holes of both sides                            AddressSpace
//!        ├─ slots    number ─> stream A, stream B, an event, ...        StreamSlots
//!        ├─ uses     address ─> further streams that use the block
//!        ├─ ledger   bytes held, out and reserved                       Ledger
//!        └─ counts   of calls past the thread caches, by stream
//! ```

pub(in crate::pool) mod all_counts;
mod ledger;
mod piece;
pub(in crate::pool) mod scope_peaks;
pub(in crate::pool) mod seen_streams;
pub(in crate::pool) mod serials;
mod spaces;
pub(in crate::pool) mod stream_slots;
pub(in crate::pool) mod thread_ends;
pub(in crate::pool) mod uses;

use std::collections::HashMap;
use std::sync::Arc;

use forebay_core::address_space::Streams;
use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use crate::pool::common::counts::Counts;
use crate::pool::common::free_block::FreedBlock;
use crate::pool::common::group::{BySide, Group};
use crate::pool::common::log::LoggedEvent;
use crate::pool::heap::all_counts::AllCounts;
use crate::pool::heap::ledger::Ledger;
pub(in crate::pool) use crate::pool::heap::piece::Piece;
use crate::pool::heap::serials::{MARKS, Serial, SyncTicket, is_mark};
pub(in crate::pool) use crate::pool::heap::spaces::{Spaces, span_of};
use crate::pool::heap::stream_slots::{StreamSlots, StreamState, WaitTarget};
use crate::pool::heap::uses::{EndedStreams, Use, Uses};
use crate::sync::map::Side;

/// The free memory of a pool, and the order of its streams.
#[derive(Debug)]
pub(in crate::pool) struct Heap {
    pub(in crate::pool) spaces: Spaces,
    pub(in crate::pool) ledger: Ledger,
    pub(in crate::pool) slots: StreamSlots,
    /// Whether slots must not be taken over, because the pool is growing under one of their numbers. Written with the
    /// backing lock held.
    pub(in crate::pool) frozen: bool,
    /// The further uses of live blocks, by address.
    pub(in crate::pool) uses: HashMap<Address, Uses>,
    /// What handles that outlive their stream look up.
    pub(in crate::pool) ended: EndedStreams,
    /// Counts of calls that went past the thread caches, of removed caches, and of the others up to the last census, by
    /// stream.
    pub(in crate::pool) counts: AllCounts,
    /// Units of 512 B in all magazines, as of the last census; wraps.
    pub(in crate::pool) cached: u64,
    /// How often memory came, as a hole or as room to grow: a request that found too little looks again if some has come
    /// since.
    pub(in crate::pool) arrivals: u64,
    /// How often a stream was made to wait for another.
    pub(in crate::pool) waits: u64,
}

impl Heap {
    pub(in crate::pool) fn new(spaces: Spaces, group: &Arc<Group>) -> Self {
        Self {
            spaces,
            ledger: Ledger::new(group),
            slots: StreamSlots::default(),
            frozen: false,
            uses: HashMap::new(),
            ended: EndedStreams::default(),
            counts: AllCounts::default(),
            cached: 0,
            arrivals: 0,
            waits: 0,
        }
    }

    /// Bytes held from the device, by side.
    pub(in crate::pool) fn held_by_side(&self) -> BySide {
        self.ledger.held(self.spaces.backed())
    }

    /// Bytes held from the device.
    pub(in crate::pool) fn held(&self) -> Bytes {
        let [small, large] = self.held_by_side();
        small.saturating_add(large)
    }

    /// Bytes out of the holes: in live blocks, in magazines, or on their way between them.
    pub(in crate::pool) fn out(&self) -> Bytes {
        self.ledger.out(self.spaces.taken())
    }

    /// Changes the ledger, and publishes what is held then.
    pub(in crate::pool) fn account(&mut self, change: impl FnOnce(&mut Ledger)) {
        change(&mut self.ledger);
        self.ledger.set_held(self.spaces.backed());
    }

    /// Sets the bytes of guarded blocks.
    pub(in crate::pool) fn set_guarded(&mut self, size: Bytes) {
        self.account(|ledger| ledger.set_guarded(size));
        self.ledger.raise_out(Side::Large, self.spaces.of(Side::Large).taken_bytes());
    }

    /// Counts `size` bytes as returned to the device: room to grow.
    pub(in crate::pool) fn released(&mut self, size: Bytes) {
        self.arrivals += 1;
        self.account(|ledger| ledger.released(size));
    }

    /// Allocates a piece from a hole that the stream with number `slot` should take.
    #[inline]
    pub(in crate::pool) fn take(&mut self, piece: Piece, slot: u32) -> Option<Address> {
        if self.worth_waiting(piece, slot) { None } else { self.allocate(piece, slot) }
    }

    /// Allocates a piece in the order of the stream with number `slot`.
    #[inline]
    pub(in crate::pool) fn allocate(&mut self, piece: Piece, slot: u32) -> Option<Address> {
        let found = self.spaces.allocate(piece, slot)?;
        let side = piece.side();
        self.ledger.raise_out(side, self.spaces.of(side).taken_bytes());
        Some(found)
    }

    /// Allocates exactly `size` bytes from `address`, whatever the streams of the holes there. Returns `false` if they
    /// are not free.
    #[must_use]
    pub(in crate::pool) fn allocate_at(&mut self, address: Address, size: Bytes) -> bool {
        let side = Side::of(size);
        let taken = self.spaces.of_mut(side).allocate_at(address.get(), size).is_ok();
        self.ledger.raise_out(side, self.spaces.of(side).taken_bytes());
        taken
    }

    /// Whether a stream should wait for another that has a better hole for a piece before it takes one of its own.
    #[inline]
    pub(in crate::pool) fn worth_waiting(&mut self, piece: Piece, taker: u32) -> bool {
        let better = self.spaces.of_mut(piece.side()).better_owner_for(piece.whole(), taker);
        let can_wait = |owner| !matches!(self.slots.wait_target(owner), WaitTarget::Unknown);
        better.is_some_and(|owners| owners.numbers().any(can_wait))
    }

    /// The slot of a stream, assigned if it has none. If all are taken, the least recently used stream loses its slot,
    /// and memory free in its order becomes unknown until the next wait for the whole device.
    pub(in crate::pool) fn slot_for(&mut self, stream: StreamHandle) -> u32 {
        if let Some(number) = self.slots.assign_slot(stream) {
            return number;
        }
        if self.frozen {
            // Pages are being moved under the current slot numbers.
            return self.slots.serials.mark();
        }
        let Self { slots, spaces, .. } = self;
        let victim = slots.victim(|number| spaces.owns_nothing(number));
        if let Some(victim) = victim {
            // The stream lives on and may still use blocks that recorded it. Only a wait for the whole device covers
            // those uses; a free of such a block finds that out.
            self.slots.note_eviction(victim, !self.uses.is_empty());
            self.end_without_event(victim);
        }
        self.slots.assign_slot(stream).unwrap_or_else(|| self.slots.serials.mark())
    }

    /// The slot in whose order memory freed on a stream is free: the collecting mark, if the stream is the own one of a
    /// thread that most likely has ended. Such a stream gets no slot again.
    #[inline]
    pub(in crate::pool) fn slot_to_free(&mut self, stream: StreamHandle) -> u32 {
        match self.slots.get(stream) {
            Some(number) => number,
            None if stream.is_of_another_thread() => self.slots.serials.mark(),
            None => self.slot_for(stream),
        }
    }

    /// Releases the slot of a stream that ended without an event. Memory free in its order becomes unknown: it is free
    /// for all after a wait for the whole device that begins from now on.
    pub(in crate::pool) fn end_without_event(&mut self, number: u32) {
        let (mark, published) = self.slots.end_without_event(number);
        self.spaces.hand_over(number, mark);
        if let Some(event) = published.filter(|&event| self.spaces.owns_nothing(event)) {
            self.slots.release_slot(event);
        }
    }

    /// Ends a live stream at `event`. The event comes after the one that the stream published last, so the slot of the
    /// published one is released.
    pub(in crate::pool) fn end_with_event(&mut self, number: u32, event: Arc<LoggedEvent>) {
        if let Some(event) = self.slots.end_with_event(number, event) {
            self.spaces.hand_over(event, number);
            self.slots.release_slot(event);
        }
    }

    /// Releases the slot of an ended stream whose work is done, unless the slot was reassigned.
    pub(in crate::pool) fn release_slot(&mut self, number: u32, serial: Serial) {
        if self.slots.serial(number) == Some(serial) {
            self.spaces.record_idle(number);
            self.slots.release_slot(number);
        }
    }

    /// Releases the slot of the last event of a thread's own stream, if the slot was not reassigned and owns no hole.
    /// Returns whether it did.
    pub(in crate::pool) fn drop_idle_event(&mut self, number: u32, serial: Serial) -> bool {
        let goes = self.slots.is_published(number, serial) && self.spaces.owns_nothing(number);
        if goes {
            self.slots.release_slot(number);
        }
        goes
    }

    /// Ends a wait for the whole device that began with `ticket`.
    pub(in crate::pool) fn end_sync(&mut self, ticket: SyncTicket, succeeded: bool) {
        if let Some(mark) = self.slots.serials.end_sync(ticket, succeeded) {
            self.spaces.record_idle(mark);
        }
    }

    /// Frees a block in the order of the stream with number `slot`.
    pub(in crate::pool) fn free(&mut self, address: Address, size: Bytes, slot: u32) {
        self.spaces.free(address, size, slot);
        self.arrivals += 1;
        let side = Side::of(size);
        self.ledger.set_out(side, self.spaces.of(side).taken_bytes());
    }

    /// Frees a block that was freed on the stream of a serial, in whatever order that stream's memory has now.
    pub(in crate::pool) fn free_after(&mut self, block: FreedBlock, serial: Serial) {
        match self.slots.state_of(serial) {
            StreamState::Live(_, slot)
            | StreamState::Ended(_, slot)
            | StreamState::Unknown(slot) => {
                self.free(block.address, block.size, slot);
            }
            StreamState::Done => self.free_for_all(block),
        }
    }

    /// The serial of a stream in use, which identifies it after it ends and its handle is reused. `None` if all slots
    /// are taken while another thread grows the pool: then only a wait for the whole device shows that its work is
    /// done.
    pub(in crate::pool) fn serial_for(&mut self, stream: StreamHandle) -> Option<Serial> {
        let slot = self.slot_for(stream);
        self.slots.serial(slot)
    }

    /// Frees a block that no work uses any more, for all streams.
    pub(in crate::pool) fn free_for_all(&mut self, block: FreedBlock) {
        self.spaces.free_for_all(block.address, block.size);
        self.arrivals += 1;
        let side = Side::of(block.size);
        self.ledger.set_out(side, self.spaces.of(side).taken_bytes());
    }

    /// Frees a block whose last use is known to be over only after a wait for the whole device.
    pub(in crate::pool) fn free_unknown(&mut self, block: FreedBlock) {
        let mark = self.slots.serials.mark();
        self.free(block.address, block.size, mark);
    }

    /// Frees blocks, each in the order of its stream.
    pub(in crate::pool) fn free_all(&mut self, returns: Vec<FreedBlock>) {
        for one in returns {
            let slot = self.slot_to_free(one.stream);
            self.free(one.address, one.size, slot);
        }
    }

    /// Records a further use of the live block at `address`.
    pub(in crate::pool) fn note_use(&mut self, address: Address, used: Use) {
        let serials = match &used {
            // Without a serial, all slots are taken while another thread grows the pool.
            Use::Stream(stream) => self.serial_for(*stream).into_iter().collect(),
            Use::Ended(named) => self.ended.since(*named).unwrap_or_default(),
            _ => Vec::new(),
        };
        let uses = self.uses.entry(address).or_default();
        match used {
            #[cfg(feature = "host")]
            Use::Until(event) => uses.add_event(event),
            _ if serials.is_empty() => uses.unknown = true,
            _ => serials.into_iter().for_each(|serial| uses.add(serial, &self.slots)),
        }
    }

    /// Records that `taker` waits, on the device, for all that was enqueued on `owner`.
    pub(in crate::pool) fn record_wait(&mut self, taker: u32, owner: u32) {
        self.spaces.record_wait(taker, owner);
        self.waits += 1;
    }

    /// Puts memory of streams that cannot be waited for one by one (other threads' own streams, and doubted handles)
    /// under the mark that the next wait for the whole device settles.
    pub(in crate::pool) fn mark_unreachable(&mut self) {
        let is_unreachable = |&number: &u32| {
            !is_mark(number) && matches!(self.slots.wait_target(number), WaitTarget::Unknown)
        };
        let unreachable = self.spaces.owners().numbers().filter(is_unreachable).map(Streams::only);
        let unreachable = unreachable.fold(Streams::NONE, Streams::or);
        if !unreachable.is_empty() {
            self.spaces.record_wait_any(self.slots.serials.mark(), unreachable);
        }
    }

    /// Whether any hole becomes free only by a wait for the whole device.
    pub(in crate::pool) fn has_unknown(&self) -> bool {
        MARKS.into_iter().any(|mark| !self.spaces.owns_nothing(mark))
    }

    /// The counts of a stream. If there are too many, those of streams without a slot are summed up: the program has
    /// not used them for long.
    pub(in crate::pool) fn counts_of(&mut self, stream: StreamHandle) -> &mut Counts {
        let slots = &self.slots;
        self.counts.make_room_for(stream, |other| slots.knows(other));
        self.counts.streams.entry(stream).or_default()
    }

    /// Whether holes of a side are free in the order of streams that `taker` cannot be made to wait for on the device.
    pub(in crate::pool) fn has_unreachable(&self, side: Side, taker: Streams) -> bool {
        let owners = self.spaces.of(side).holes().other_owners(taker);
        owners.numbers().any(|owner| matches!(self.slots.wait_target(owner), WaitTarget::Unknown))
    }
}
