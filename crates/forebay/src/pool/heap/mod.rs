//! The heap: what is free, of which side, in whose order. Under one lock that is held across no call of the
//! driver longer than those about events and the reserving of addresses.

pub(in crate::pool) mod stream_slots;
pub(in crate::pool) mod thread_ends;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::address_space::{AddressSpace, Boundaries, Offset, Streams};
use forebay_core::{Address, Alignment, Bytes, PageSize, Span};
use forebay_hal::StreamHandle;

use crate::pool::common::limits::HeldGauge;
use crate::pool::common::log::Point;
use crate::pool::front::cached_block::FreedBlock;
use crate::pool::front::thread_cache::{Counts, ThreadCache};
use crate::pool::heap::stream_slots::{Fate, Owner, Serial, StreamSlots, SyncTicket};
use crate::sync::map::Side;

/// The address space of one side. Places on it are addresses.
#[derive(Debug)]
pub(in crate::pool) struct SideHeap {
    pub(in crate::pool) space: AddressSpace,
}

impl SideHeap {
    pub(in crate::pool) fn new(granule: PageSize, boundaries: Boundaries) -> Self {
        Self { space: AddressSpace::new(granule, boundaries) }
    }

    /// Takes `size` bytes in the order of the stream with number `taker`.
    #[inline]
    pub(in crate::pool) fn take(&mut self, size: Bytes, taker: u32) -> Option<Address> {
        self.space.allocate_for(size, taker).map(Address::new)
    }

    /// Gives back what of the memory at `found` lies before and after an aligned piece; gives where
    /// that begins.
    fn cut(&mut self, found: Address, piece: Piece, taker: u32) -> Address {
        let start = found.checked_align_up(piece.alignment).unwrap_or(found);
        let before = start.offset_from(found).unwrap_or_default();
        let after = piece.whole.saturating_sub(before).saturating_sub(piece.size);
        for (address, part) in [(Some(found), before), (start.checked_add(piece.size), after)] {
            if let Some(address) = address.filter(|_| !part.is_zero()) {
                let given = self.give(address, part, taker);
                debug_assert!(given, "{address} of {part} was just taken");
            }
        }
        start
    }

    /// Takes `size` bytes back, in the order of the stream with number `owner`; `false` where they are
    /// not out.
    #[inline]
    #[must_use]
    pub(in crate::pool) fn give(&mut self, address: Address, size: Bytes, owner: u32) -> bool {
        self.space.free_for(address.get(), size, owner).is_ok()
    }
}

/// The addresses of a place in an address space.
pub(in crate::pool) fn span_of(at: Offset, size: Bytes) -> Span {
    Span::new(Address::new(at), size).unwrap_or_default()
}

/// What a request takes of the heap.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Piece {
    size: Bytes,
    alignment: Alignment,
    whole: Bytes,
}

impl Piece {
    /// `size` bytes at a multiple of `alignment`; `None` where there is no such number of bytes.
    pub(in crate::pool) fn new(size: Bytes, alignment: Alignment) -> Option<Self> {
        let slack = alignment.bytes().saturating_sub(Alignment::BLOCK.bytes());
        Some(Self { size, alignment, whole: size.checked_add(slack)? })
    }

    /// The address space it is taken from.
    pub(in crate::pool) fn side(&self) -> Side {
        Side::of(self.size)
    }

    /// How large a hole has to be so that it fits wherever that begins. What is before and after it
    /// stays a hole.
    pub(in crate::pool) fn whole(&self) -> Bytes {
        self.whole
    }
}

/// How many streams are counted apart: what a stream counts is some kilobytes.
const MOST_COUNTED: usize = 256;

/// Counts by stream.
#[derive(Clone, Debug, Default)]
pub(in crate::pool) struct AllCounts {
    pub(in crate::pool) streams: BTreeMap<StreamHandle, Counts>,
    /// Those of streams that were forgotten, together.
    pub(in crate::pool) forgotten: Counts,
}

impl AllCounts {
    /// Counts some streams with those that were forgotten.
    pub(in crate::pool) fn forget(&mut self, which: impl Fn(StreamHandle) -> bool) {
        for (_, counts) in self.streams.extract_if(.., |&stream, _| which(stream)) {
            self.forgotten.add(&counts);
        }
    }

    /// Takes over the counts of others.
    pub(in crate::pool) fn add(&mut self, stream: StreamHandle, counts: &Counts) {
        self.streams.entry(stream).or_default().add(counts);
    }

    /// All of them together.
    pub(in crate::pool) fn sum(&self) -> Counts {
        Counts::sum(self.streams.values().chain([&self.forgotten]))
    }
}

/// The streams that a live block was used on beside its own.
#[derive(Clone, Debug, Default)]
pub(in crate::pool) struct Uses {
    pub(in crate::pool) streams: Vec<Serial>,
    /// Whether it was used on a stream that had no slot then: only a wait for the whole device tells when
    /// that use is over.
    pub(in crate::pool) unknown: bool,
    /// At how many of them those whose work is over are left out.
    full_at: usize,
}

impl Uses {
    /// The least at which it is worth looking which are over.
    const FEW: usize = 8;

    fn add(&mut self, serial: Serial, slots: &StreamSlots) {
        if self.streams.contains(&serial) {
            return;
        }
        if self.streams.len() >= self.full_at.max(Self::FEW) {
            let Self { streams, unknown, .. } = self;
            streams.retain(|&user| {
                let lost = slots.is_lost(user);
                *unknown |= lost;
                !lost && !slots.is_over(user)
            });
            // As many again come before the next look: a look costs a use no more than a constant.
            self.full_at = self.streams.len() * 2;
        }
        self.streams.push(serial);
    }
}

/// What is free, and what happened on the way.
#[derive(Debug)]
pub(in crate::pool) struct Heap {
    pub(in crate::pool) small: SideHeap,
    pub(in crate::pool) large: SideHeap,
    /// Where the large block begins that was taken last, if nothing on the large side changed since:
    /// freed, it would be taken again.
    pub(in crate::pool) last_large: Arc<AtomicU64>,
    pub(in crate::pool) slots: StreamSlots,
    /// Whether no slot may be taken over at present: room is being made under one of their numbers. Set and
    /// cleared with the backing's lock held.
    pub(in crate::pool) frozen: bool,
    /// Streams that live blocks were used on beside their own.
    pub(in crate::pool) uses: HashMap<Address, Uses>,
    /// Bytes of pages that are out of the address spaces and not yet given to the device.
    pub(in crate::pool) going: Bytes,
    /// Counts of what did not pass over a cache, and of caches that are gone, by stream.
    pub(in crate::pool) counts: AllCounts,
    /// Allocations that no magazine had and a hole did, and those that no hole had.
    pub(in crate::pool) heap_hits: u64,
    pub(in crate::pool) misses: u64,
    pub(in crate::pool) waits: u64,
    /// Bytes in pages that are in no address space: those of blocks that have pages of their own.
    pub(in crate::pool) apart: Bytes,
    /// The most bytes ever out of the address spaces at once.
    pub(in crate::pool) peak_out: Bytes,
    /// The most bytes out since the last time someone asked.
    pub(in crate::pool) window_peak: Bytes,
    /// The most bytes out since each scope began.
    pub(in crate::pool) scopes: Vec<(u64, Bytes)>,
    /// The most bytes ever taken from the device at once.
    pub(in crate::pool) peak_held: Bytes,
    /// Where those who do not lock the heap read what is held.
    pub(in crate::pool) held_gauge: HeldGauge,
}

impl Heap {
    pub(in crate::pool) fn new(small: SideHeap, large: SideHeap) -> Self {
        Self {
            small,
            large,
            last_large: Arc::default(),
            slots: StreamSlots::default(),
            frozen: false,
            uses: HashMap::new(),
            going: Bytes::ZERO,
            counts: AllCounts::default(),
            heap_hits: 0,
            misses: 0,
            waits: 0,
            apart: Bytes::ZERO,
            peak_out: Bytes::ZERO,
            window_peak: Bytes::ZERO,
            scopes: Vec::new(),
            peak_held: Bytes::ZERO,
            held_gauge: HeldGauge::default(),
        }
    }

    pub(in crate::pool) fn side_heap(&mut self, side: Side) -> &mut SideHeap {
        match side {
            Side::Small => &mut self.small,
            Side::Large => {
                self.changed();
                &mut self.large
            }
        }
    }

    /// Notes that the large side may be about to change.
    fn changed(&self) {
        self.last_large.store(0, Ordering::Relaxed);
    }

    /// Bytes in the address spaces.
    pub(in crate::pool) fn backed(&self) -> Bytes {
        self.small.space.backed_bytes().saturating_add(self.large.space.backed_bytes())
    }

    /// Bytes taken from the device.
    pub(in crate::pool) fn held(&self) -> Bytes {
        let spaces = self.backed().saturating_add(self.going);
        spaces.saturating_add(self.apart)
    }

    /// Bytes out of the address spaces: in blocks, in magazines, or on their way between them.
    pub(in crate::pool) fn out(&self) -> Bytes {
        let spaces = self.small.space.taken_bytes().saturating_add(self.large.space.taken_bytes());
        spaces.saturating_add(self.apart)
    }

    /// Notes what is out now, where it is the most.
    fn note_peaks(&mut self) {
        let out = self.out();
        self.peak_out = self.peak_out.max(out);
        self.window_peak = self.window_peak.max(out);
        for (_, peak) in &mut self.scopes {
            *peak = (*peak).max(out);
        }
    }

    /// Notes what is held after it has changed, for those who ask, and where it is the most.
    pub(in crate::pool) fn note_held(&mut self) {
        let held = self.held();
        self.held_gauge.set(held);
        self.peak_held = self.peak_held.max(held);
    }

    /// Notes how many bytes are in pages in no address space.
    pub(in crate::pool) fn set_apart(&mut self, size: Bytes) {
        self.apart = size;
        self.note_peaks();
        self.note_held();
    }

    /// Takes a piece in the order of the stream with number `slot`. What was taken to align it goes
    /// back before anyone else comes: later the stream may have no number any more.
    pub(in crate::pool) fn take(&mut self, piece: Piece, slot: u32) -> Option<Address> {
        let whole = piece.whole();
        if whole == piece.size {
            return self.take_plain(piece.side(), whole, slot);
        }
        let side_heap = self.side_heap(piece.side());
        let found = side_heap.take(whole, slot)?;
        let start = side_heap.cut(found, piece, slot);
        self.note_peaks();
        Some(start)
    }

    /// Takes `size` bytes wherever blocks may begin, in the order of the stream with number `slot`.
    pub(in crate::pool) fn take_plain(
        &mut self,
        side: Side,
        size: Bytes,
        slot: u32,
    ) -> Option<Address> {
        let found = self.side_heap(side).take(size, slot)?;
        self.note_peaks();
        if side == Side::Large {
            self.last_large.store(found.get(), Ordering::Relaxed);
        }
        Some(found)
    }

    /// Whether a stream should wait for another that has a better hole for `size`, before it takes one
    /// of its own.
    #[inline]
    pub(in crate::pool) fn worth_waiting(&mut self, side: Side, size: Bytes, taker: u32) -> bool {
        let better = self.side_heap(side).space.better_owner_for(size, taker);
        let can_wait = |owner| !matches!(self.slots.owner(owner), Owner::Unknown);
        better.is_some_and(|owners| owners.numbers().any(can_wait))
    }

    /// The slot of a stream, made where it has none. Where all are taken, that of the stream that was not
    /// used for the longest is taken over; what is free in its order waits for the device as a whole.
    pub(in crate::pool) fn slot_for(&mut self, stream: StreamHandle) -> u32 {
        if let Some(number) = self.slots.get(stream) {
            return number;
        }
        if let Some(number) = self.slots.assign_slot(stream) {
            return number;
        }
        if self.frozen {
            // Pages are on their way between places of the address space under the numbers there are now.
            return self.slots.mark();
        }
        let owns_nothing = |number| self.owns_nothing(number);
        if let Some(victim) = self.slots.victim(owns_nothing) {
            // The stream lives on, and may go on using blocks that it was said to use: of those only a wait
            // for the whole device tells, which is found out when they are freed.
            self.slots.note_eviction(victim, !self.uses.is_empty());
            self.bury(victim);
        }
        self.slots.assign_slot(stream).unwrap_or_else(|| self.slots.mark())
    }

    /// Lets a slot go whose stream ended without an event: what is free in its order is nobody's until a
    /// wait for the whole device is over that begins from now on.
    pub(in crate::pool) fn bury(&mut self, number: u32) {
        self.changed();
        let (mark, published) = self.slots.bury(number);
        self.hand_over(number, mark);
        if let Some(event) = published.filter(|&event| self.owns_nothing(event)) {
            self.slots.release_slot(event);
        }
    }

    /// Gives what is free in the order of one number to that of another, which comes after it.
    fn hand_over(&mut self, from: u32, to: u32) {
        let (from, to) = (Streams::only(from), Streams::only(to));
        self.small.space.hand_over(from, to);
        self.large.space.hand_over(from, to);
    }

    /// Whether nothing is free in the order of a number.
    fn owns_nothing(&self, number: u32) -> bool {
        let stream = Streams::only(number);
        self.small.space.owns_nothing(stream) && self.large.space.owns_nothing(stream)
    }

    /// A live stream ends at `point`, which comes after the event that it published last: that one's slot is
    /// not needed any more.
    pub(in crate::pool) fn end(&mut self, number: u32, point: Arc<Point>) {
        if let Some(event) = self.slots.end(number, point) {
            self.changed();
            self.hand_over(event, number);
            self.slots.release_slot(event);
        }
    }

    /// Lets the slot of a stream that ended go, if it still has it: its work is over.
    pub(in crate::pool) fn release_slot(&mut self, number: u32, serial: Serial) {
        if self.slots.serial(number) == Some(serial) {
            self.idle(number);
            self.slots.release_slot(number);
        }
    }

    /// Releases the slot of the last event of a thread's own stream, if it still has it and owns no free memory.
    /// Whether it did.
    pub(in crate::pool) fn drop_idle_event(&mut self, number: u32, serial: Serial) -> bool {
        let goes = self.slots.is_published(number, serial) && self.owns_nothing(number);
        if goes {
            self.slots.release_slot(number);
        }
        goes
    }

    /// A wait for the whole device, which began with `ticket`, is over.
    pub(in crate::pool) fn end_sync(&mut self, ticket: SyncTicket, succeeded: bool) {
        if let Some(mark) = self.slots.end_sync(ticket, succeeded) {
            self.idle(mark);
        }
    }

    /// Takes a block back in the order of the stream with number `slot`.
    pub(in crate::pool) fn give(&mut self, address: Address, size: Bytes, slot: u32) {
        let given = self.side_heap(Side::of(size)).give(address, size, slot);
        debug_assert!(given, "{address} of {size} came back and was not out");
    }

    /// Takes a block back that was freed on the stream of a serial, in whatever order it has now.
    pub(in crate::pool) fn give_after(&mut self, block: FreedBlock, serial: Serial) {
        match self.slots.fate(serial) {
            Fate::Live(_, slot) | Fate::Ended(_, slot) | Fate::Unknown(slot) => {
                self.give(block.address, block.size, slot);
            }
            Fate::Over => self.give_to_all(block),
        }
    }

    /// The serial of a stream that someone uses, by which it is known when it is gone and its handle
    /// another's. `None` where another thread grows the pool just now and all slots are taken: then only a
    /// wait for the whole device tells when its work is over.
    pub(in crate::pool) fn serial_for(&mut self, stream: StreamHandle) -> Option<Serial> {
        let slot = self.slot_for(stream);
        self.slots.serial(slot)
    }

    /// Takes a block back that no work uses any more: it is everybody's.
    pub(in crate::pool) fn give_to_all(&mut self, block: FreedBlock) {
        let FreedBlock { address, size, .. } = block;
        let given = self.side_heap(Side::of(size)).space.free(address.get(), size, Streams::ALL);
        debug_assert!(given.is_ok(), "{address} of {size} came back and was not out");
    }

    /// Takes a block back of which nobody can tell when its last use is over.
    pub(in crate::pool) fn give_to_unknown(&mut self, block: FreedBlock) {
        let mark = self.slots.mark();
        self.give(block.address, block.size, mark);
    }

    /// Takes blocks back, each in the order of its stream.
    pub(in crate::pool) fn give_all(&mut self, returns: Vec<FreedBlock>) {
        for one in returns {
            // Of a thread that has ended, most likely: its stream gets no slot again.
            let orphaned = one.stream.is_of_another_thread() && !self.slots.knows(one.stream);
            let slot = if orphaned { self.slots.mark() } else { self.slot_for(one.stream) };
            self.give(one.address, one.size, slot);
        }
    }

    /// Notes that the live block at `address` is used on `stream`; says whether that is its first use
    /// beside its own stream.
    pub(in crate::pool) fn note_use(&mut self, address: Address, stream: StreamHandle) -> bool {
        let serial = self.serial_for(stream);
        let uses = self.uses.entry(address).or_default();
        let first = uses.streams.is_empty() && !uses.unknown;
        match serial {
            Some(serial) => uses.add(serial, &self.slots),
            // Another thread grows the pool just now, and all slots are taken.
            None => uses.unknown = true,
        }
        first
    }

    /// What a cache held goes to `returns`, and what it counted is counted here.
    pub(in crate::pool) fn retire(
        &mut self,
        mut cache: ThreadCache,
        returns: &mut Vec<FreedBlock>,
    ) {
        cache.empty(|_| true, returns);
        self.counts_of(cache.stream).add(&cache.counts());
    }

    /// Notes that `taker` waits on the device for all that was enqueued on `owner`.
    pub(in crate::pool) fn waited(&mut self, taker: u32, owner: u32) {
        self.changed();
        let (taker, owner) = (Streams::only(taker), Streams::only(owner));
        self.small.space.record_wait(taker, owner);
        self.large.space.record_wait(taker, owner);
        self.waits += 1;
    }

    /// Notes that the event with number `event` comes after all that was freed on the stream with number
    /// `slot`: whoever waits for it may have that.
    pub(in crate::pool) fn covers(&mut self, event: u32, slot: u32) {
        self.changed();
        let (event, slot) = (Streams::only(event), Streams::only(slot));
        self.small.space.record_wait(event, slot);
        self.large.space.record_wait(event, slot);
    }

    /// The slot of a stream that someone uses: so it is there, and can be waited for.
    pub(in crate::pool) fn reactivate(&mut self, stream: StreamHandle) {
        self.slot_for(stream);
        self.slots.set_doubted(stream, false);
    }

    /// Has the next wait for the whole device settle what is free on streams that cannot be waited for one by
    /// one: those of other threads, and those whose handle may be another's.
    pub(in crate::pool) fn mark_unreachable(&mut self) {
        let is_unreachable = |&number: &u32| {
            !StreamSlots::is_mark(number) && matches!(self.slots.owner(number), Owner::Unknown)
        };
        let unreachable = self.all_owners().numbers().filter(is_unreachable).map(Streams::only);
        let unreachable = unreachable.fold(Streams::NONE, Streams::or);
        if !unreachable.is_empty() {
            self.changed();
            let mark = Streams::only(self.slots.mark());
            self.small.space.record_wait_any(mark, unreachable);
            self.large.space.record_wait_any(mark, unreachable);
        }
    }

    /// Whether anything is free that only a wait for the whole device makes anyone's.
    pub(in crate::pool) fn has_unknown(&self) -> bool {
        let marks = StreamSlots::MARKS.map(Streams::only);
        let spaces = [&self.small.space, &self.large.space];
        spaces.iter().any(|space| marks.iter().any(|&mark| !space.owns_nothing(mark)))
    }

    /// Notes that all work on a stream is over that was enqueued so far.
    pub(in crate::pool) fn idle(&mut self, slot: u32) {
        self.changed();
        self.small.space.record_idle(Streams::only(slot));
        self.large.space.record_idle(Streams::only(slot));
    }

    /// The counts of a stream. Where there are too many, those of streams that have no number any
    /// more are summed up: the program has not used them for long.
    pub(in crate::pool) fn counts_of(&mut self, stream: StreamHandle) -> &mut Counts {
        let streams = &self.counts.streams;
        if streams.len() >= MOST_COUNTED && !streams.contains_key(&stream) {
            let slots = &self.slots;
            self.counts.forget(|other| !slots.knows(other));
        }
        self.counts.streams.entry(stream).or_default()
    }

    /// Streams in whose order something is free on either side that is not free for all.
    pub(in crate::pool) fn all_owners(&self) -> Streams {
        let [small, large] =
            [&self.small, &self.large].map(|side_heap| side_heap.space.other_owners(Streams::ALL));
        small.or(large)
    }

    /// Streams that have something free on a side which `taker` may not have.
    pub(in crate::pool) fn owners(&mut self, side: Side, taker: Streams) -> Streams {
        self.side_heap(side).space.other_owners(taker)
    }
}
