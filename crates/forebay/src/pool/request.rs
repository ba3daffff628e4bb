//! The long way of a request: what a thread's own magazine does not serve, and every call of a pool
//! that looks after its blocks one by one.

use std::sync::atomic::Ordering;

use forebay_core::{Address, Alignment, Bytes, Ladder, Rung};
use forebay_hal::StreamHandle;

use super::event::EventAction;
use super::heap::{Heap, Piece, Return};
use super::map::{Known, LARGEST, SMALL, SMALL_UNITS, Side, Slot, SlotRef, UNIT_SHIFT, tagged};
use super::registry;
use super::shared::{NO_PASS, Shared};
use super::shelf::{Counts, Kept};
use super::works::Works;
use crate::sync::seat;
use crate::{Block, Error, Request, Result, Tag};

/// How often room is made for one request that others take from meanwhile.
const MOST_ROOMS: u32 = 64;

/// What is less than one part in so many of what is held is not worth folding.
const HARDLY: u64 = 1024;

/// Where the memory of a block came from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// From what the pool held.
    Hole,
    /// From the driver, for this request.
    Driver,
}

impl Shared {
    /// A block, from wherever it takes, noted where events are.
    #[cold]
    #[inline(never)]
    pub(super) fn allocate(&self, request: Request) -> Result<Block> {
        let got = self.find(request);
        if self.pass.load(Ordering::Relaxed) == NO_PASS && !request.size.is_zero() {
            let (action, address) = match &got {
                Ok(block) => {
                    self.care.went_out(block.size);
                    (EventAction::Allocate, block.address)
                }
                Err(_) => (EventAction::Refuse, Address::NULL),
            };
            self.history.note(action, address, request.size, request.stream, Tag::current());
        }
        got
    }

    /// A block, from wherever it takes.
    fn find(&self, request: Request) -> Result<Block> {
        let Request { size: requested, stream, alignment, .. } = request;
        if requested.is_zero() {
            let (size, pool) = (Bytes::ZERO, self.id);
            return Ok(Block { address: Address::NULL, size, pool, generation: 0 });
        }
        let size = self.round(requested).ok_or_else(|| self.shortage(request, requested))?;
        self.admit(stream)?;
        if let Some(guards) = self.care.guards() {
            return self.find_guarded(guards, request, size);
        }
        if alignment <= Alignment::BLOCK
            && let Some(block) = self.take_from_own(requested, size, stream)
        {
            return Ok(block);
        }
        let kept = size.saturating_add(self.care.tail());
        let piece = Piece::new(kept, alignment).filter(|piece| piece.whole() <= LARGEST);
        let piece = piece.ok_or_else(|| self.shortage(request, kept))?;
        if piece.side() == Side::Large {
            self.fold_own(stream);
        }
        let (start, source) = self.take(piece, request)?;
        self.prepare(Return { address: start, size: kept, stream }, size)?;
        self.hand_out(start, size, request, source)
    }

    /// Notes that `size` bytes from `start` are a live block, and where they came from.
    pub(super) fn hand_out(
        &self,
        start: Address,
        size: Bytes,
        request: Request,
        source: Source,
    ) -> Result<Block> {
        let block = self.note_out(start, size, request)?;
        let mut heap = self.heap();
        match source {
            Source::Hole => heap.heap_hits += 1,
            Source::Driver => heap.misses += 1,
        }
        Ok(block)
    }

    /// The same, where that is noted already.
    #[inline]
    pub(super) fn note_out(&self, start: Address, size: Bytes, request: Request) -> Result<Block> {
        let Request { size: requested, stream, .. } = request;
        let tag = seat::tag();
        let slot = self.map.slot(start).ok_or(Error::NotABlock { address: start })?;
        let generation = slot.hand_out(start, size, tagged(requested, tag));
        let units = size.get() >> UNIT_SHIFT;
        self.count(stream, |counts| counts.allocated(units, requested.get(), tag));
        Ok(Block { address: start, size, pool: self.id, generation })
    }

    /// A block from this thread's magazine.
    fn take_from_own(&self, requested: Bytes, size: Bytes, stream: StreamHandle) -> Option<Block> {
        self.at_hand(|shelves| {
            let shelf = shelves.of(stream)?;
            shelf.magazine.refill(size.get() >> UNIT_SHIFT);
            self.take_from::<true>(shelf, requested, size)
        })?
    }

    /// A piece of the heap, or of what can be brought into it.
    fn take(&self, piece: Piece, request: Request) -> Result<(Address, Source)> {
        let (side, size, stream) = (piece.side(), piece.whole(), request.stream);
        let from_hole = |heap: &mut Heap| {
            let lane = heap.lanes.get(stream)?;
            heap.take(piece, lane)
        };
        let worth_waiting = {
            let mut heap = self.heap();
            match heap.lanes.get(stream) {
                Some(lane) if heap.worth_waiting(side, size, lane) => true,
                Some(lane) => {
                    if let Some(found) = heap.take(piece, lane) {
                        return Ok((found, Source::Hole));
                    }
                    false
                }
                None => false,
            }
        };
        self.recheck_streams();
        let mut works = self.works();
        works.welcome(self.site(), stream)?;
        let mut ladder = Ladder::new();
        if worth_waiting {
            // What is due costs less: nobody waits for it. Then one event brings what the other stream
            // has freed; a hole of one's own that is much too large stays whole.
            for rung in [Rung::Deferred, Rung::Nearest] {
                works.climb(self.site(), rung, (side, size), stream)?;
            }
            let mut heap = self.heap();
            if let Some(found) = from_hole(&mut heap) {
                return Ok((found, Source::Hole));
            }
        }
        // Where folding would bring next to nothing, the blocks are worth more at hand: the rest of the
        // ladder is climbed first.
        let mut spared = size <= SMALL && self.little_at_hand(&works);
        let mut rooms = 0;
        loop {
            let rung = ladder.rung();
            let mut grown = false;
            match rung {
                Rung::Fold if spared => {}
                Rung::Fold => self.fold(&mut works),
                Rung::Refuse => {
                    drop(works);
                    return Err(self.shortage(request, size).into());
                }
                Rung::Callback => {
                    // Without a lock: whoever is asked may free and allocate.
                    drop(works);
                    let let_go = self.ask_to_let_go(request, size);
                    works = self.works();
                    works.enrol(self.site(), stream)?;
                    if let_go {
                        ladder.let_go();
                        continue;
                    }
                }
                _ => {
                    if rung == Rung::Idle
                        && let Err(error) = self.end_quarantine(&mut works)
                        && error.is_finding()
                    {
                        return Err(error);
                    }
                    let before = self.held.get();
                    match works.climb(self.site(), rung, (side, size), stream) {
                        Ok(made) => {
                            grown = made;
                            if spared {
                                let more = self.held.get().saturating_sub(before);
                                works.spared = works.spared.saturating_add(more);
                            }
                        }
                        // What is at hand may do; where not, the next time up the ladder tells it.
                        Err(_) if spared => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            // Where there are more streams than numbers, making others known may have taken this one's.
            works.enrol(self.site(), stream)?;
            let mut heap = self.heap();
            if let Some(found) = from_hole(&mut heap) {
                if !matches!(rung, Rung::Room | Rung::Idle) {
                    return Ok((found, Source::Hole));
                }
                drop(heap);
                drop(works);
                self.read_pressure();
                return Ok((found, Source::Driver));
            }
            drop(heap);
            // Others on this stream take from what grows as well: there may be room for all.
            rooms += u32::from(rung == Rung::Room);
            if rung == Rung::Room && grown && rooms < MOST_ROOMS {
                continue;
            }
            if spared && rung == Rung::Room {
                spared = false;
                ladder = Ladder::new();
                continue;
            }
            ladder.climb();
        }
    }

    /// Whether all that lies in magazines is a part of what is held that nobody would miss, and so is
    /// all that the pool has ever grown by to leave it there.
    fn little_at_hand(&self, works: &Works) -> bool {
        let most = self.held.get().get() / HARDLY;
        if works.spared.get() >= most {
            return false;
        }
        let mut units = 0_u64;
        self.rows.measure(|shelves| units = units.saturating_add(shelves.small_held()));
        units << UNIT_SHIFT < most
    }

    /// Why there is no block to be freed at `address`.
    #[cold]
    pub(super) fn not_there(&self, address: Address, known: Option<Known>) -> Error {
        if let Some(known) = known.filter(|known| !known.live()) {
            return Error::DoubleFree { address, size: known.size() };
        }
        match registry::owner_of(address, self.id) {
            Some(owner) => Error::WrongPool { address, pool: self.id, owner },
            None => Error::NotABlock { address },
        }
    }

    /// The live block at `address`, with its slot.
    pub(super) fn live(&self, address: Address) -> Result<(&Slot, Known)> {
        let slot = self.map.slot(address);
        let known = slot.and_then(|slot| slot.look(address));
        match (slot, known) {
            (Some(slot), Some(known)) if known.live() => Ok((slot, known)),
            _ => Err(self.not_there(address, known)),
        }
    }

    /// Frees the live block at `address` if `check` allows it, wherever it has to go.
    #[cold]
    #[inline(never)]
    pub(super) fn free(
        &self,
        address: Address,
        stream: StreamHandle,
        check: &dyn Fn(Known) -> Result<()>,
    ) -> Result<()> {
        if address.is_null() {
            return Ok(());
        }
        self.admit(stream)?;
        let (slot, known) = loop {
            let (slot, known) = self.live(address)?;
            check(known)?;
            if known.used_elsewhere() {
                self.recheck_users(address)?;
            }
            if slot.claim(known) {
                break (slot, known);
            }
            // Not as it was any more: freed by another, which the next look tells, or said to be used
            // on a further stream.
        };
        if self.care.looks_after_blocks() {
            return self.take_back(slot, known, address, stream);
        }
        // From here on the block is this call's alone, so the event comes before the next of its
        // address; and nothing that comes can fail, so what it tells has happened. Where the block's
        // stream can have no number now, for want of an event of another, the block comes later.
        self.note_free(address, known, stream);
        let block = Return { address, size: known.size(), stream };
        if known.used_elsewhere() {
            self.return_used(block);
        } else if self.keep_making_way(slot, block) {
            // The magazine has counted it.
            let note = |counts: &mut Counts| {
                counts.back(known.units(), known.requested(), known.tag());
            };
            self.count(stream, note);
            return Ok(());
        } else {
            self.give_back_or_later(vec![block]);
        }
        self.count(stream, |counts| {
            counts.freed(known.units(), known.requested(), known.tag());
        });
        Ok(())
    }

    /// Notes that a block came back, where such is noted.
    pub(super) fn note_free(&self, address: Address, known: Known, stream: StreamHandle) {
        if self.pass.load(Ordering::Relaxed) == NO_PASS {
            self.care.came_back(known.size());
            let requested = Bytes::new(known.requested());
            let tag = Tag::numbered(usize::from(known.tag())).unwrap_or(Tag::NONE);
            self.history.note(EventAction::Free, address, requested, stream, tag);
        }
    }

    /// Takes back a block once the streams it was used on are done with it.
    fn return_used(&self, block: Return) {
        let mut works = self.works();
        let (users, ends) = {
            let mut heap = self.heap();
            let ends = heap.ends.remove(&block.address).unwrap_or_default();
            (heap.uses.remove(&block.address).unwrap_or_default(), ends)
        };
        let others: Vec<StreamHandle> =
            users.into_iter().filter(|&user| user != block.stream).collect();
        works.return_after(block, &others, ends);
    }

    /// Puts a claimed block into this thread's magazine, and what stands in its way into the heap.
    /// `false` where there is no magazine for it.
    fn keep_making_way(&self, slot: &Slot, block: Return) -> bool {
        let bound = self.magazine_units();
        if bound == 0 {
            return false;
        }
        // A shelf that goes is of another stream, which may be forgotten meanwhile: not before its
        // blocks are in the heap.
        let crowded = self.at_hand(|shelves| shelves.is_full_for(block.stream)) == Some(true);
        let works = crowded.then(|| self.works());
        let mut spilled = Vec::new();
        let kept = self.at_hand(|shelves| {
            if shelves.of(block.stream).is_none() {
                shelves.put_up(block.stream, self.bound_now());
            }
            let Some(shelf) = shelves.of(block.stream) else { return false };
            let units = block.size.get() >> UNIT_SHIFT;
            if units > SMALL_UNITS && !self.is_lone(block.address) {
                return false;
            }
            let kept = Kept { address: block.address, slot: SlotRef::new(slot) };
            shelf.keep(units, kept, &mut spilled)
        });
        match works {
            Some(mut works) => {
                let mut heap = self.heap();
                // Under the heap's lock, so that whoever sums up sees its counts in one place.
                self.at_hand(|shelves| {
                    if let Some(shelf) = shelves.take_leaving() {
                        heap.retire(*shelf, &mut spilled);
                    }
                });
                heap.give_known(&mut spilled);
                drop(heap);
                if self.give_enrolling(&mut works, &mut spilled).is_err() {
                    self.heap().later.append(&mut spilled);
                }
            }
            None => self.give_back_or_later(spilled),
        }
        kept == Some(true)
    }

    /// Gives blocks back to the heap. Where a stream can have no number, its blocks stay in
    /// `returns`.
    fn give_back(&self, returns: &mut Vec<Return>) -> Result<()> {
        if returns.is_empty() {
            return Ok(());
        }
        self.heap().give_known(returns);
        if returns.is_empty() {
            return Ok(());
        }
        self.recheck_streams();
        self.give_enrolling(&mut self.works(), returns)
    }

    /// Gives blocks back to the heap, making their streams known. Those of streams that cannot be stay
    /// in `returns`, and the error says why of the first.
    pub(super) fn give_enrolling(
        &self,
        works: &mut Works,
        returns: &mut Vec<Return>,
    ) -> Result<()> {
        let (mut left, mut outcome) = (Vec::new(), Ok(()));
        while let Some(stream) = returns.last().map(|one| one.stream) {
            match works.enrol(self.site(), stream) {
                Ok(_) => self.heap().give_known(returns),
                Err(error) => {
                    left.extend(returns.extract_if(.., |one| one.stream == stream));
                    outcome = outcome.and(Err(error));
                }
            }
        }
        *returns = left;
        outcome
    }

    /// Gives blocks back to the heap, those that cannot be at the moment the next time it is folded.
    pub(super) fn give_back_or_later(&self, mut returns: Vec<Return>) {
        if self.give_back(&mut returns).is_err() {
            self.heap().later.append(&mut returns);
        }
    }

    /// Folds the large blocks of this thread's magazine for `stream` into the heap: what they become
    /// with their neighbours may be the lower hole.
    fn fold_own(&self, stream: StreamHandle) {
        let mut returns = Vec::new();
        self.at_hand(|shelves| {
            if let Some(shelf) = shelves.of(stream) {
                shelf.empty(|side| side == Side::Large, &mut returns);
            }
        });
        self.give_back_or_later(returns);
    }

    /// Folds what all magazines hold into the heap.
    ///
    /// Waits for nobody: blocks of streams that have no number, and can have none without waiting for
    /// another stream, stay aside, and threads inside their magazines fold them when they are next
    /// there. With the works' lock, so that none of their streams is forgotten meanwhile.
    pub(super) fn fold(&self, _works: &mut Works) {
        let mut returns = core::mem::take(&mut self.heap().later);
        returns.append(&mut self.tidy());
        self.rows.drain(|shelves| shelves.drain(&mut returns));
        self.heap().give_or_keep(returns);
    }

    /// The same, after waiting for threads that are inside their magazines: for what has to be complete.
    pub(super) fn fold_all(&self, _works: &mut Works) {
        let mut returns = core::mem::take(&mut self.heap().later);
        returns.append(&mut self.tidy());
        self.rows.drain_all(|shelves| shelves.drain(&mut returns));
        self.heap().give_or_keep(returns);
    }

    /// Counts something that did not pass over a shelf: on this thread's all the same, where it has
    /// or can have one for the stream.
    #[inline]
    pub(super) fn count(&self, stream: StreamHandle, note: impl Fn(&mut Counts)) {
        let counted = self.at_hand(|shelves| match shelves.front(stream) {
            Some(shelf) => {
                note(&mut shelf.counts);
                true
            }
            None => false,
        });
        if counted != Some(true) {
            self.count_elsewhere(stream, &note);
        }
    }

    /// The same where the stream is not the one this thread used last.
    #[cold]
    #[inline(never)]
    fn count_elsewhere(&self, stream: StreamHandle, note: &dyn Fn(&mut Counts)) {
        let counted = self.at_hand(|shelves| {
            if shelves.of(stream).is_none() && !shelves.is_full_for(stream) {
                shelves.put_up(stream, self.bound_now());
            }
            shelves.of(stream).map(|shelf| note(&mut shelf.counts)).is_some()
        });
        if counted != Some(true) {
            note(self.heap().counts_of(stream));
        }
    }

    /// Notes that the block at `address` is used on `stream` too: its memory is reused only after
    /// what is enqueued there when it is freed.
    pub(super) fn record_use(&self, address: Address, stream: StreamHandle) -> Result<()> {
        self.admit(stream)?;
        loop {
            // Apart from the heap's lock: finding out whose it is looks at other pools.
            let (slot, known) = self.live(address)?;
            let mut heap = self.heap();
            let users = heap.uses.entry(address).or_default();
            let first = users.is_empty();
            if !users.contains(&stream) {
                users.push(stream);
            }
            if !first || known.used_elsewhere() || slot.mark_used(known) {
                return Ok(());
            }
            // Freed since it was looked at, and perhaps given out again: the next look tells.
            heap.uses.remove(&address);
        }
    }
}
