//! The heap: all free memory of a pool, by side and by the streams in whose order it is free. Guarded by the heap lock,
//! which is held across no driver calls but those on events and the reservation of addresses: both are short.
//!
//! ```text
//!   small side   [ block | hole A | block | hole A,B ]  gap  [ hole: all streams | block ]   AddressSpace
//!   large side   [ block ........ | hole B .......... ]  gap                                  AddressSpace
//!   slots        number ─> stream A, stream B, an event, ...                                 StreamSlots
//! ```

pub(in crate::pool) mod all_counts;
mod piece;
pub(in crate::pool) mod scope_peaks;
pub(in crate::pool) mod seen_streams;
mod side_heap;
pub(in crate::pool) mod stream_slots;
pub(in crate::pool) mod thread_ends;
pub(in crate::pool) mod uses;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::address_space::Streams;
use forebay_core::{Address, Bytes};
use forebay_hal::{NamedStream, StreamHandle};

use crate::pool::common::counts::Counts;
use crate::pool::common::free_block::FreedBlock;
use crate::pool::common::group::{BySide, Group, GroupShare};
use crate::pool::common::limits::HeldGauge;
use crate::pool::common::log::LoggedEvent;
use crate::pool::heap::all_counts::AllCounts;
pub(in crate::pool) use crate::pool::heap::piece::Piece;
use crate::pool::heap::scope_peaks::ScopePeaks;
pub(in crate::pool) use crate::pool::heap::side_heap::{SideHeap, span_of};
use crate::pool::heap::stream_slots::{Serial, StreamSlots, StreamState, SyncTicket, WaitTarget};
use crate::pool::heap::uses::{EndedStreams, Uses};
use crate::sync::map::Side;

/// Why the heap has no hole for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum Miss {
    /// The heap has not seen the stream yet.
    NewStream,
    /// Another stream has a better hole, and can be waited for.
    WorthWaiting,
    /// No hole is large enough and free in the order of the stream.
    NoHole,
}

/// The free memory of a pool, and its counters.
#[derive(Debug)]
pub(in crate::pool) struct Heap {
    pub(in crate::pool) small: SideHeap,
    pub(in crate::pool) large: SideHeap,
    /// The address of the last allocated large block, while nothing on the large side has changed since: freed and
    /// requested again, the heap would return the same block. Zero otherwise.
    pub(in crate::pool) last_large: Arc<AtomicU64>,
    pub(in crate::pool) slots: StreamSlots,
    /// Whether slots must not be taken over, because the pool is growing under one of their numbers. Written with the
    /// backing lock held.
    pub(in crate::pool) frozen: bool,
    /// The further streams of live blocks, by address.
    pub(in crate::pool) uses: HashMap<Address, Uses>,
    /// What handles that outlive their stream look up.
    pub(in crate::pool) ended: EndedStreams,
    /// Bytes of pages that are out of the address spaces and not yet returned to the device.
    pub(in crate::pool) outgoing: Bytes,
    /// Whether memory that is returned to the device stays reserved, because a request reclaims it for itself.
    keeps_room: bool,
    /// Bytes reserved for that request.
    pub(in crate::pool) room: Bytes,
    /// Counts of calls that went past the thread caches, of removed caches, and of the others up to the last census, by
    /// stream.
    pub(in crate::pool) counts: AllCounts,
    /// Units of 512 B in all magazines, as of the last census; wraps.
    pub(in crate::pool) cached: u64,
    /// How often memory came, as a hole or as room to grow: a request that found too little looks again if some has come
    /// since.
    pub(in crate::pool) arrivals: u64,
    pub(in crate::pool) waits: u64,
    /// Bytes of guarded blocks: their pages are in no address space.
    pub(in crate::pool) guarded: Bytes,
    /// The most bytes ever out of the holes at once.
    pub(in crate::pool) peak_out: Bytes,
    /// The most bytes out of the holes since upkeep last read it.
    pub(in crate::pool) window_peak: Bytes,
    /// The most bytes out of the holes since each scope began.
    pub(in crate::pool) scopes: ScopePeaks,
    /// The most bytes ever taken from the device at once.
    pub(in crate::pool) peak_held: Bytes,
    /// The bytes held, for readers without the heap lock.
    pub(in crate::pool) held_gauge: HeldGauge,
    /// This pool's part in the figures of its group.
    pub(in crate::pool) share: GroupShare,
}

impl Heap {
    pub(in crate::pool) fn new(small: SideHeap, large: SideHeap, group: &Arc<Group>) -> Self {
        Self {
            small,
            large,
            last_large: Arc::default(),
            slots: StreamSlots::default(),
            frozen: false,
            uses: HashMap::new(),
            ended: EndedStreams::default(),
            outgoing: Bytes::ZERO,
            keeps_room: false,
            room: Bytes::ZERO,
            counts: AllCounts::default(),
            cached: 0,
            arrivals: 0,
            waits: 0,
            guarded: Bytes::ZERO,
            peak_out: Bytes::ZERO,
            window_peak: Bytes::ZERO,
            scopes: ScopePeaks::default(),
            peak_held: Bytes::ZERO,
            held_gauge: HeldGauge::default(),
            share: GroupShare::new(group),
        }
    }

    pub(in crate::pool) fn side_heap(&mut self, side: Side) -> &mut SideHeap {
        match side {
            Side::Small => &mut self.small,
            Side::Large => {
                self.invalidate_last_large();
                &mut self.large
            }
        }
    }

    /// Must precede every change of the large side: the last large block is then no longer certain to be the next one.
    fn invalidate_last_large(&self) {
        self.last_large.store(0, Ordering::Relaxed);
    }

    /// Bytes of pages in the address spaces.
    pub(in crate::pool) fn backed(&self) -> Bytes {
        self.small.space.backed_bytes().saturating_add(self.large.space.backed_bytes())
    }

    /// Bytes held from the device.
    pub(in crate::pool) fn held(&self) -> Bytes {
        let spaces = self.backed().saturating_add(self.outgoing);
        spaces.saturating_add(self.guarded)
    }

    /// Bytes held by side. Those of no address space count as large.
    pub(in crate::pool) fn held_by_side(&self) -> BySide {
        let small = self.small.space.backed_bytes();
        [small, self.held().saturating_sub(small)]
    }

    /// Bytes out of the holes: in live blocks, in magazines, or on their way between them.
    pub(in crate::pool) fn out(&self) -> Bytes {
        let [small, large] = self.out_by_side();
        small.saturating_add(large)
    }

    /// The same by side. Guarded blocks count as large.
    fn out_by_side(&self) -> BySide {
        let large = self.large.space.taken_bytes().saturating_add(self.guarded);
        [self.small.space.taken_bytes(), large]
    }

    /// Updates the peaks of bytes out of the holes.
    fn note_peaks(&mut self) {
        let out = self.out();
        self.peak_out = self.peak_out.max(out);
        self.window_peak = self.window_peak.max(out);
        self.scopes.note(out);
        self.share.set_out(self.out_by_side());
    }

    /// Publishes the bytes held after a change, and updates their peak.
    pub(in crate::pool) fn note_held(&mut self) {
        let held = self.held();
        self.held_gauge.set(held);
        self.peak_held = self.peak_held.max(held);
        self.share.set_held(self.held_by_side());
    }

    /// Counts `size` bytes as returned to the device. They stay reserved while a request reclaims memory for itself.
    pub(in crate::pool) fn released(&mut self, size: Bytes) {
        self.outgoing = self.outgoing.saturating_sub(size);
        self.arrivals += 1;
        if self.keeps_room {
            self.room = self.room.saturating_add(size);
            self.share.keep_reserved(size);
        }
        self.note_held();
    }

    /// From now on, memory that is returned to the device stays reserved for one request. Returns `false` if another has
    /// that already.
    #[must_use]
    pub(in crate::pool) fn begin_room(&mut self) -> bool {
        !core::mem::replace(&mut self.keeps_room, true)
    }

    /// Ends the above, and the reservation of what is left.
    pub(in crate::pool) fn end_room(&mut self) {
        self.keeps_room = false;
        let left = core::mem::take(&mut self.room);
        self.end_reservation(left);
    }

    /// Reserves `size` bytes for memory that the pool is about to take from the device, up to `room` of them from what is
    /// reserved already. Returns `false` if the group would exceed `limit` by it.
    #[must_use]
    pub(in crate::pool) fn reserve(&mut self, size: Bytes, room: Bytes, limit: Bytes) -> bool {
        let room = room.min(size);
        let reserved = self.share.reserve(size.saturating_sub(room), limit);
        if reserved {
            self.room = self.room.saturating_sub(room);
        }
        reserved
    }

    /// Ends a reservation for memory that did not come, or is held already.
    pub(in crate::pool) fn end_reservation(&mut self, size: Bytes) {
        self.share.unreserve(size);
        self.note_held();
    }

    /// Sets the bytes of guarded blocks.
    pub(in crate::pool) fn set_guarded(&mut self, size: Bytes) {
        self.guarded = size;
        self.note_peaks();
        self.note_held();
    }

    /// Allocates a piece from a hole that the stream with number `slot` should take.
    #[inline]
    pub(in crate::pool) fn take(&mut self, piece: Piece, slot: u32) -> Result<Address, Miss> {
        if self.worth_waiting(piece.side(), piece.whole(), slot) {
            return Err(Miss::WorthWaiting);
        }
        self.allocate(piece, slot).ok_or(Miss::NoHole)
    }

    /// Allocates a piece in the order of the stream with number `slot`. The rest of an aligned piece is freed under the
    /// same lock: later the stream may have lost its number.
    pub(in crate::pool) fn allocate(&mut self, piece: Piece, slot: u32) -> Option<Address> {
        let whole = piece.whole();
        if whole == piece.size {
            return self.allocate_unaligned(piece.side(), whole, slot);
        }
        let side_heap = self.side_heap(piece.side());
        let found = side_heap.allocate(whole, slot)?;
        let start = side_heap.trim_to(found, piece, slot);
        self.note_peaks();
        Some(start)
    }

    /// Allocates `size` bytes with the alignment that every block has, in the order of the stream with number `slot`.
    pub(in crate::pool) fn allocate_unaligned(
        &mut self,
        side: Side,
        size: Bytes,
        slot: u32,
    ) -> Option<Address> {
        let found = self.side_heap(side).allocate(size, slot)?;
        self.note_peaks();
        if side == Side::Large {
            self.last_large.store(found.get(), Ordering::Relaxed);
        }
        Some(found)
    }

    /// Allocates exactly `size` bytes from `address`, whatever the streams of the holes there. Returns `false` if they
    /// are not free.
    #[must_use]
    pub(in crate::pool) fn allocate_at(&mut self, address: Address, size: Bytes) -> bool {
        let taken = self.side_heap(Side::of(size)).space.allocate_at(address.get(), size).is_ok();
        self.note_peaks();
        taken
    }

    /// Whether a stream should wait for another that has a better hole for `size` before it takes one of its own.
    #[inline]
    pub(in crate::pool) fn worth_waiting(&mut self, side: Side, size: Bytes, taker: u32) -> bool {
        let better = self.side_heap(side).space.better_owner_for(size, taker);
        let can_wait = |owner| !matches!(self.slots.wait_target(owner), WaitTarget::Unknown);
        better.is_some_and(|owners| owners.numbers().any(can_wait))
    }

    /// The slot of a stream, assigned if it has none. If all are taken, the least recently used stream loses its slot,
    /// and memory free in its order becomes unknown until the next wait for the whole device.
    pub(in crate::pool) fn slot_for(&mut self, stream: StreamHandle) -> u32 {
        if let Some(number) = self.slots.get(stream) {
            return number;
        }
        if let Some(number) = self.slots.assign_slot(stream) {
            return number;
        }
        if self.frozen {
            // Pages are being moved under the current slot numbers.
            return self.slots.mark();
        }
        let Self { slots, small, large, .. } = self;
        let victim = slots.victim(|number| {
            let stream = Streams::only(number);
            small.space.owns_nothing(stream) && large.space.owns_nothing(stream)
        });
        if let Some(victim) = victim {
            // The stream lives on and may still use blocks that recorded it. Only a wait for the whole device covers
            // those uses; a free of such a block finds that out.
            self.slots.note_eviction(victim, !self.uses.is_empty());
            self.end_without_event(victim);
        }
        self.slots.assign_slot(stream).unwrap_or_else(|| self.slots.mark())
    }

    /// The slot in whose order memory freed on a stream is free: the collecting mark, if the stream is the own one of a
    /// thread that most likely has ended. Such a stream gets no slot again.
    pub(in crate::pool) fn slot_to_free(&mut self, stream: StreamHandle) -> u32 {
        let is_orphaned = stream.is_of_another_thread() && !self.slots.knows(stream);
        if is_orphaned { self.slots.mark() } else { self.slot_for(stream) }
    }

    /// Releases the slot of a stream that ended without an event. Memory free in its order becomes unknown: it is free
    /// for all after a wait for the whole device that begins from now on.
    pub(in crate::pool) fn end_without_event(&mut self, number: u32) {
        self.invalidate_last_large();
        let (mark, published) = self.slots.end_without_event(number);
        self.hand_over(number, mark);
        if let Some(event) = published.filter(|&event| self.owns_nothing(event)) {
            self.slots.release_slot(event);
        }
    }

    /// Moves the holes of one number to another, whose order comes after it.
    fn hand_over(&mut self, from: u32, to: u32) {
        let (from, to) = (Streams::only(from), Streams::only(to));
        self.small.space.hand_over(from, to);
        self.large.space.hand_over(from, to);
    }

    /// Whether no hole is free in the order of a number.
    fn owns_nothing(&self, number: u32) -> bool {
        let stream = Streams::only(number);
        self.small.space.owns_nothing(stream) && self.large.space.owns_nothing(stream)
    }

    /// Ends a live stream at `event`. The event comes after the one that the stream published last, so the slot of the
    /// published one is released.
    pub(in crate::pool) fn end_with_event(&mut self, number: u32, event: Arc<LoggedEvent>) {
        if let Some(event) = self.slots.end_with_event(number, event) {
            self.invalidate_last_large();
            self.hand_over(event, number);
            self.slots.release_slot(event);
        }
    }

    /// Releases the slot of an ended stream whose work is done, unless the slot was reassigned.
    pub(in crate::pool) fn release_slot(&mut self, number: u32, serial: Serial) {
        if self.slots.serial(number) == Some(serial) {
            self.record_idle(number);
            self.slots.release_slot(number);
        }
    }

    /// Releases the slot of the last event of a thread's own stream, if the slot was not reassigned and owns no hole.
    /// Returns whether it did.
    pub(in crate::pool) fn drop_idle_event(&mut self, number: u32, serial: Serial) -> bool {
        let goes = self.slots.is_published(number, serial) && self.owns_nothing(number);
        if goes {
            self.slots.release_slot(number);
        }
        goes
    }

    /// Ends a wait for the whole device that began with `ticket`.
    pub(in crate::pool) fn end_sync(&mut self, ticket: SyncTicket, succeeded: bool) {
        if let Some(mark) = self.slots.end_sync(ticket, succeeded) {
            self.record_idle(mark);
        }
    }

    /// Frees a block in the order of the stream with number `slot`.
    pub(in crate::pool) fn free(&mut self, address: Address, size: Bytes, slot: u32) {
        let freed = self.side_heap(Side::of(size)).free(address, size, slot);
        debug_assert!(freed, "{size} at {address} was freed and not allocated");
        self.arrivals += 1;
        self.share.set_out(self.out_by_side());
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
        let FreedBlock { address, size, .. } = block;
        let freed = self.side_heap(Side::of(size)).space.free(address.get(), size, Streams::ALL);
        debug_assert!(freed.is_ok(), "{size} at {address} was freed and not allocated");
        self.arrivals += 1;
        self.share.set_out(self.out_by_side());
    }

    /// Frees a block whose last use is known to be over only after a wait for the whole device.
    pub(in crate::pool) fn free_unknown(&mut self, block: FreedBlock) {
        let mark = self.slots.mark();
        self.free(block.address, block.size, mark);
    }

    /// Frees blocks, each in the order of its stream.
    pub(in crate::pool) fn free_all(&mut self, returns: Vec<FreedBlock>) {
        for one in returns {
            let slot = self.slot_to_free(one.stream);
            self.free(one.address, one.size, slot);
        }
    }

    /// Records that the live block at `address` is used on `stream`. Returns whether this is its first further stream.
    pub(in crate::pool) fn note_use(&mut self, address: Address, stream: StreamHandle) -> bool {
        // Without a serial, all slots are taken while another thread grows the pool.
        let Some(serial) = self.serial_for(stream) else { return self.note_unknown_use(address) };
        let uses = self.uses.entry(address).or_default();
        let first = uses.is_empty();
        uses.add(serial, &self.slots);
        first
    }

    /// Records that the live block at `address` was used on a stream that has ended. Returns whether this is its first
    /// further use.
    pub(in crate::pool) fn note_ended_use(&mut self, address: Address, used: NamedStream) -> bool {
        let Some(serials) = self.ended.since(used) else { return self.note_unknown_use(address) };
        let uses = self.uses.entry(address).or_default();
        let first = uses.is_empty();
        for serial in serials {
            uses.add(serial, &self.slots);
        }
        first
    }

    /// Records that the live block at `address` has a use that only a wait for the whole device covers. Returns whether
    /// this is its first further use.
    pub(in crate::pool) fn note_unknown_use(&mut self, address: Address) -> bool {
        let uses = self.uses.entry(address).or_default();
        let first = uses.is_empty();
        uses.unknown = true;
        first
    }

    /// Records that the live block at `address` is used until `event`. Returns whether this is its first further use.
    #[cfg(feature = "host")]
    pub(in crate::pool) fn note_use_until(
        &mut self,
        address: Address,
        event: &Arc<LoggedEvent>,
    ) -> bool {
        let uses = self.uses.entry(address).or_default();
        let first = uses.is_empty();
        uses.add_event(event);
        first
    }

    /// Records that `taker` waits, on the device, for all that was enqueued on `owner`.
    pub(in crate::pool) fn record_wait(&mut self, taker: u32, owner: u32) {
        self.invalidate_last_large();
        let (taker, owner) = (Streams::only(taker), Streams::only(owner));
        self.small.space.record_wait(taker, owner);
        self.large.space.record_wait(taker, owner);
        self.waits += 1;
    }

    /// Records that the event with number `event` comes after all that was freed on the stream with number `slot`: a
    /// stream that waits for the event may use that memory.
    pub(in crate::pool) fn record_event(&mut self, event: u32, slot: u32) {
        self.invalidate_last_large();
        let (event, slot) = (Streams::only(event), Streams::only(slot));
        self.small.space.record_wait(event, slot);
        self.large.space.record_wait(event, slot);
    }

    /// Assigns a slot to a stream in use. Its handle is valid again, so others may wait for it.
    pub(in crate::pool) fn reactivate(&mut self, stream: StreamHandle) {
        self.slot_for(stream);
        self.slots.set_doubted(stream, false);
    }

    /// Puts memory of streams that cannot be waited for one by one (other threads' own streams, and doubted handles)
    /// under the mark that the next wait for the whole device settles.
    pub(in crate::pool) fn mark_unreachable(&mut self) {
        let is_unreachable = |&number: &u32| {
            !StreamSlots::is_mark(number)
                && matches!(self.slots.wait_target(number), WaitTarget::Unknown)
        };
        let unreachable = self.all_owners().numbers().filter(is_unreachable).map(Streams::only);
        let unreachable = unreachable.fold(Streams::NONE, Streams::or);
        if !unreachable.is_empty() {
            self.invalidate_last_large();
            let mark = Streams::only(self.slots.mark());
            self.small.space.record_wait_any(mark, unreachable);
            self.large.space.record_wait_any(mark, unreachable);
        }
    }

    /// Whether any hole becomes free only by a wait for the whole device.
    pub(in crate::pool) fn has_unknown(&self) -> bool {
        let marks = StreamSlots::MARKS.map(Streams::only);
        let spaces = [&self.small.space, &self.large.space];
        spaces.iter().any(|space| marks.iter().any(|&mark| !space.owns_nothing(mark)))
    }

    /// Records that all work enqueued on a stream so far is done.
    pub(in crate::pool) fn record_idle(&mut self, slot: u32) {
        self.invalidate_last_large();
        self.small.space.record_idle(Streams::only(slot));
        self.large.space.record_idle(Streams::only(slot));
    }

    /// The counts of a stream. If there are too many, those of streams without a slot are summed up: the program has
    /// not used them for long.
    pub(in crate::pool) fn counts_of(&mut self, stream: StreamHandle) -> &mut Counts {
        let slots = &self.slots;
        self.counts.make_room_for(stream, |other| slots.knows(other));
        self.counts.streams.entry(stream).or_default()
    }

    /// Streams that own holes on either side, without the holes that are free for all.
    pub(in crate::pool) fn all_owners(&self) -> Streams {
        let [small, large] =
            [&self.small, &self.large].map(|side_heap| side_heap.space.other_owners(Streams::ALL));
        small.or(large)
    }

    /// Whether holes of a side are free in the order of streams that `taker` cannot be made to wait for on the device.
    pub(in crate::pool) fn has_unreachable(&mut self, side: Side, taker: Streams) -> bool {
        let owners = self.owners(side, taker);
        owners.numbers().any(|owner| matches!(self.slots.wait_target(owner), WaitTarget::Unknown))
    }

    /// Streams that own holes on a side which `taker` may not use.
    pub(in crate::pool) fn owners(&mut self, side: Side, taker: Streams) -> Streams {
        self.side_heap(side).space.other_owners(taker)
    }
}
