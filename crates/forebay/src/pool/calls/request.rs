//! Requests and frees that neither the fast path nor the heap path serves, and every call of a pool whose blocks are
//! checked or recorded.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_core::{Address, Alignment, Bytes, CallbackBudget};
use forebay_hal::{self as hal, Call, NamedStream, StreamHandle};

use crate::pool::backing::Backing;
use crate::pool::backing::deferred::Task;
use crate::pool::calls::registry;
use crate::pool::calls::slow_path::Source;
use crate::pool::calls::thread_end;
use crate::pool::common::event::RawEvent;
use crate::pool::common::log::LoggedEvent;
use crate::pool::common::wait::WaitBudget;
use crate::pool::front::cached_block::CachedBlock;
use crate::pool::front::cached_block::FreedBlock;
use crate::pool::front::thread_cache::Counts;
use crate::pool::heap::thread_ends::is_ending;
use crate::pool::heap::{Heap, Piece};
use crate::pool::shared::{SLOW_PATH, Shared};
use crate::report::{EventAction, Stack};
use crate::sync::map::{BlockState, LARGEST, SMALL_UNITS, Side, Slot, SlotRef, UNIT_SHIFT, tagged};
use crate::sync::thread_slot;
use crate::{Block, Error, Request, Result, Tag};

impl Shared {
    /// Allocates a block by whatever it takes, and records the event if events are recorded.
    #[cold]
    #[inline(never)]
    pub(in crate::pool) fn allocate(&self, request: Request) -> Result<Block> {
        self.birth.check()?;
        let begun = self.begin_told();
        let mut got = self.allocate_block(request);
        if self.fast_epoch.load(Ordering::Relaxed) == SLOW_PATH && !request.size.is_zero() {
            let (action, address, generation) = match &got {
                Ok(block) => {
                    self.debug.add_live(block.size);
                    (EventAction::Allocate, block.address, block.generation)
                }
                Err(_) => (EventAction::Refuse, Address::NULL, 0),
            };
            let Request { size: requested, stream, .. } = request;
            let (tag, stack) = (Tag::current(), Stack::NONE);
            self.note(RawEvent { action, address, generation, requested, stream, tag, stack });
            // An observer may have forked.
            self.birth.check()?;
        }
        self.tell_request(&begun, request, &mut got);
        got
    }

    /// Allocates a block by whatever it takes.
    fn allocate_block(&self, request: Request) -> Result<Block> {
        let stand_in = thread_end::stand_in(request);
        let is_ending = stand_in.is_some();
        let request = stand_in.unwrap_or(request);
        let Request { size: requested, stream, alignment, .. } = request;
        if requested.is_zero() {
            let (size, pool) = (Bytes::ZERO, self.id);
            return Ok(Block { address: Address::NULL, size, pool, generation: 0 });
        }
        let size = self.round(requested).ok_or_else(|| self.shortage(request, requested))?;
        let mut wait = WaitBudget::default();
        self.check_stream_identity(stream, &mut wait)?;
        if let Some(guards) = self.debug.guards() {
            if is_ending {
                return Err(self.shortage(request, size).into());
            }
            return self.allocate_guarded(guards, request, size, self.deadline(&mut wait));
        }
        if alignment <= Alignment::BLOCK
            && !is_ending
            && let Some(block) = self.allocate_from_own_cache(requested, size, stream)
        {
            return Ok(block);
        }
        let with_tail = size.saturating_add(self.debug.tail());
        let piece = Piece::new(with_tail, alignment).filter(|piece| piece.whole() <= LARGEST);
        let piece = piece.ok_or_else(|| self.shortage(request, with_tail))?;
        self.raise_limit_for(piece.whole(), request)?;
        if piece.side() == Side::Large {
            self.flush_own_large(stream);
        }
        let (start, source) = self.allocate_piece(piece, request, &mut wait).inspect_err(|_| {
            // Segments that came and could not be used are released at once. The error that led here is the one to
            // report.
            if !self.is_inherited() {
                let _ = self.release_segments(self.deadline(&mut wait));
            }
        })?;
        self.prepare_block(start, size, request, &mut wait)?;
        if is_ending && !matches!(self.wait_for_stand_in(self.deadline(&mut wait)), Ok(true)) {
            self.return_prepared(FreedBlock { address: start, size: with_tail, stream });
            return Err(self.shortage(request, with_tail).into());
        }
        self.finish_allocation(start, size, request, source)
    }

    /// Refuses a request of `whole` bytes that is larger than the limit, unless a callback raises the limit: no
    /// reclaiming could make it fit, so caches stay as they are.
    fn raise_limit_for(&self, whole: Bytes, request: Request) -> Result<()> {
        loop {
            let limit = self.group.limits.limit();
            if whole <= limit.min(self.device_total) {
                return Ok(());
            }
            let is_raised = whole <= self.device_total
                && self.call_shortage_callbacks(request, whole, &mut CallbackBudget::default())
                && self.group.limits.limit() > limit;
            // The callback may have forked.
            self.birth.check()?;
            if !is_raised {
                return Err(self.shortage(request, whole).into());
            }
        }
    }

    /// Makes `size` bytes from `start` a live block, and counts where they came from.
    pub(in crate::pool) fn finish_allocation(
        &self,
        start: Address,
        size: Bytes,
        request: Request,
        source: Source,
    ) -> Result<Block> {
        let block = self.mark_block_live(start, size, request)?;
        let mut heap = self.heap();
        match source {
            Source::Hole => heap.heap_hits += 1,
            Source::Driver => heap.misses += 1,
        }
        Ok(block)
    }

    /// Makes `size` bytes from `start` a live block.
    #[inline]
    pub(in crate::pool) fn mark_block_live(
        &self,
        start: Address,
        size: Bytes,
        request: Request,
    ) -> Result<Block> {
        let Request { size: requested, stream, .. } = request;
        let tag = thread_slot::tag();
        let slot = self.map.slot(start).ok_or(Error::NotABlock { address: start })?;
        let generation = slot.mark_live(start, size, tagged(requested, tag));
        let units = size.get() >> UNIT_SHIFT;
        self.count(stream, |counts| counts.count_allocation(units, requested.get(), tag));
        Ok(Block { address: start, size, pool: self.id, generation })
    }

    /// Allocates from this thread's magazine.
    fn allocate_from_own_cache(
        &self,
        requested: Bytes,
        size: Bytes,
        stream: StreamHandle,
    ) -> Option<Block> {
        self.with_own_caches(|caches| {
            let cache = caches.of(stream)?;
            cache.magazine.refill(size.get() >> UNIT_SHIFT);
            self.take_cached::<true>(cache, requested, size)
        })?
    }

    /// The error for an address at which no live block begins.
    #[cold]
    pub(in crate::pool) fn free_error(&self, address: Address, known: Option<BlockState>) -> Error {
        if let Some(known) = known.filter(|known| !known.live()) {
            return Error::DoubleFree { address, size: known.size() };
        }
        match registry::other_owner_of(address, self.id) {
            Some(owner) => Error::WrongPool { address, pool: self.id, owner },
            None => Error::NotABlock { address },
        }
    }

    /// The live block at `address`, and its slot in the address map.
    pub(in crate::pool) fn live(&self, address: Address) -> Result<(&Slot, BlockState)> {
        let slot = self.map.slot(address);
        let known = slot.and_then(|slot| slot.state_at(address));
        match (slot, known) {
            (Some(slot), Some(known)) if known.live() => Ok((slot, known)),
            _ => Err(self.free_error(address, known)),
        }
    }

    /// Makes a handle the owner of a live block.
    pub(in crate::pool) fn own(&self, block: Block) -> Result<()> {
        let Block { address, pool: owner, generation, .. } = block;
        if address.is_null() {
            return Ok(());
        }
        if owner != self.id {
            return Err(Error::WrongPool { address, pool: self.id, owner });
        }
        self.birth.check()?;
        loop {
            let (slot, known) = self.live(address)?;
            if known.generation() != generation {
                return Err(Error::StaleBlock { address, size: known.size() });
            }
            if known.owned() {
                return Err(Error::Owned { address });
            }
            if slot.set_owned(known, true) {
                return Ok(());
            }
        }
    }

    /// Ends a handle's ownership of a block.
    pub(in crate::pool) fn disown(&self, block: Block) {
        while !self.is_inherited()
            && let Ok((slot, known)) = self.live(block.address)
        {
            let is_it = block.pool == self.id && known.generation() == block.generation;
            if !is_it || !known.owned() || slot.set_owned(known, false) {
                return;
            }
        }
    }

    /// Frees the live block at `address`, if `check` accepts it.
    #[cold]
    #[inline(never)]
    pub(in crate::pool) fn free(
        &self,
        address: Address,
        stream: StreamHandle,
        check: &dyn Fn(BlockState) -> Result<()>,
    ) -> Result<()> {
        if address.is_null() {
            return Ok(());
        }
        self.check_stream_identity(stream, &mut WaitBudget::default())?;
        self.watch_own_stream(stream);
        let (slot, known) = loop {
            let (slot, known) = self.live(address)?;
            check(known)?;
            if known.owned() {
                return Err(Error::Owned { address });
            }
            if known.used_elsewhere() {
                self.recheck_users(address)?;
            }
            if slot.claim(known) {
                break (slot, known);
            }
            // The state has changed: another thread freed the block, which the next look shows, or recorded a use on a
            // further stream.
        };
        if self.debug.checks_frees() {
            return self.free_checked(slot, known, address, stream);
        }
        // From here on only this call has the block, so its event comes before the next one at its address. Nothing
        // after this can fail, so the event is true.
        self.note_free(address, known, stream);
        // An observer may have forked.
        self.birth.check()?;
        let block = FreedBlock { address, size: known.size(), stream };
        if known.used_elsewhere() {
            self.return_used(block);
        } else if is_ending(stream) {
            self.heap().free_unknown(block);
        } else if self.cache_with_eviction(slot, block) {
            // The magazine counts the size range.
            let note = |counts: &mut Counts| {
                counts.count_kept(known.units(), known.requested(), known.tag());
            };
            self.count(stream, note);
            return Ok(());
        } else {
            self.return_to_heap(vec![block]);
        }
        self.count(stream, |counts| {
            counts.count_free(known.units(), known.requested(), known.tag());
        });
        Ok(())
    }

    /// Records a free, if events are recorded.
    pub(in crate::pool) fn note_free(
        &self,
        address: Address,
        known: BlockState,
        stream: StreamHandle,
    ) {
        if self.fast_epoch.load(Ordering::Relaxed) == SLOW_PATH {
            self.debug.subtract_live(known.size());
            let requested = Bytes::new(known.requested());
            let (action, generation) = (EventAction::Free, known.generation());
            let (tag, stack) = (Tag::of(known), Stack::NONE);
            self.note(RawEvent { action, address, generation, requested, stream, tag, stack });
        }
    }

    /// Frees a block once the further streams that used it are done with it.
    pub(in crate::pool) fn return_used(&self, block: FreedBlock) {
        let mut backing = self.backing();
        let (ends, serial) = {
            let mut heap = self.heap();
            let slot = heap.slot_for(block.stream);
            let uses = heap.uses.remove(&block.address).unwrap_or_default();
            let Some(serial) = heap.slots.serial(slot) else {
                heap.free(block.address, block.size, slot);
                return;
            };
            let ends = Backing::ends_of(&mut heap, uses, Some(serial));
            if ends.is_empty() {
                heap.free(block.address, block.size, slot);
                return;
            }
            (ends, serial)
        };
        backing.defer(self.context(), &[Task::ReturnBlock(block, serial)], ends);
    }

    /// Caches a claimed block in this thread's magazine, and moves blocks in its way to the heap. Returns `false` if no
    /// magazine takes it.
    fn cache_with_eviction(&self, slot: &Slot, block: FreedBlock) -> bool {
        let bound = self.magazine_units();
        if bound == 0 {
            return false;
        }
        self.note_new_cache(block.stream);
        // An evicted cache belongs to another stream, which another thread may forget meanwhile. The heap lock is held
        // from the eviction until its blocks and counts are in the heap, so that a sum finds them in one place.
        let crowded = self.with_own_caches(|caches| caches.is_full_for(block.stream)) == Some(true);
        let mut heap = crowded.then(|| self.heap());
        let mut spilled = Vec::new();
        let kept = self.with_own_caches(|caches| {
            if caches.of(block.stream).is_none() {
                caches.add_cache(block.stream, self.bound_now());
            }
            if let Some(heap) = &mut heap
                && let Some(cache) = caches.take_evicted()
            {
                heap.absorb_cache(*cache, &mut spilled);
            }
            let Some(cache) = caches.of(block.stream) else { return false };
            let units = block.size.get() >> UNIT_SHIFT;
            if units > SMALL_UNITS && !self.is_last_large(block.address) {
                return false;
            }
            let cached = CachedBlock { address: block.address, slot: SlotRef::new(slot) };
            cache.keep(units, cached, &mut spilled)
        });
        match heap {
            Some(mut heap) => heap.free_all(spilled),
            None => self.return_to_heap(spilled),
        }
        kept == Some(true)
    }

    /// Notes that the pool has seen a stream for which this thread is about to have a cache. The owner of a gate takes no
    /// lock inside it, so this comes before.
    fn note_new_cache(&self, stream: StreamHandle) {
        if self.with_own_caches(|caches| caches.has(stream)) != Some(true) {
            self.seeing().note(stream);
        }
    }

    /// Frees blocks into the heap. On a thread's own stream, publishes an event for the other threads.
    pub(in crate::pool) fn return_to_heap(&self, returns: Vec<FreedBlock>) {
        let Some(stream) = returns.last().map(|one| one.stream) else { return };
        let mut heap = self.heap();
        heap.free_all(returns);
        if stream.is_per_thread() && !self.publish(&mut heap, stream) && heap.slots.may_recover() {
            drop(heap);
            self.backing().recover_slots(self.context());
            self.publish(&mut self.heap(), stream);
        }
    }

    /// Records an event on the calling thread's own stream, by which other threads can wait for what was freed there so
    /// far: only the thread itself can record one. Returns `false` if no slot is left for it.
    pub(in crate::pool) fn publish(&self, heap: &mut Heap, stream: StreamHandle) -> bool {
        // A capture that begins now is not on this stream: only its own thread begins one there, and that thread is
        // here.
        if stream.is_of_another_thread() || is_ending(stream) || self.captures.any() {
            return true;
        }
        let slot = heap.slot_for(stream);
        let event = match heap.slots.published(slot) {
            Some((_, event)) => event,
            None => match LoggedEvent::new(&self.device, &self.log) {
                Ok(event) => Arc::new(event),
                // The memory then serves its own thread, and all others after a wait for the device.
                Err(_) => return true,
            },
        };
        if event.record(stream).is_err() {
            return true;
        }
        let published = heap.slots.publish(slot, &event);
        if let Some(published) = published {
            heap.record_event(published, slot);
        }
        published.is_some()
    }

    /// Counts a call that went past the cache: in this thread's cache all the same, if it has or can have one for the
    /// stream.
    #[inline]
    pub(in crate::pool) fn count(&self, stream: StreamHandle, note: impl Fn(&mut Counts)) {
        let counted = self.with_own_caches(|caches| match caches.front(stream) {
            Some(cache) => {
                note(&mut cache.counts);
                true
            }
            None => false,
        });
        if counted != Some(true) {
            self.count_slowly(stream, &note);
        }
    }

    /// Counts a call on a stream other than the one this thread used last.
    #[cold]
    #[inline(never)]
    fn count_slowly(&self, stream: StreamHandle, note: &dyn Fn(&mut Counts)) {
        self.note_new_cache(stream);
        let counted = self.with_own_caches(|caches| {
            let may_have = !caches.is_full_for(stream) && !is_ending(stream);
            if caches.of(stream).is_none() && may_have {
                caches.add_cache(stream, self.bound_now());
            }
            caches.of(stream).map(|cache| note(&mut cache.counts)).is_some()
        });
        if counted != Some(true) {
            note(self.heap().counts_of(stream));
        }
    }

    /// Records that the block at `address` is used on `stream` too: after its free, the memory is reused only after the
    /// work enqueued there by then.
    pub(in crate::pool) fn record_use(&self, address: Address, stream: StreamHandle) -> Result<()> {
        self.birth.check()?;
        self.check_stream_identity(stream, &mut WaitBudget::default())?;
        self.mark_used(address, |heap| heap.note_use(address, stream))
    }

    /// As [`record_use`](Self::record_use), of a stream that may have ended since it was named.
    pub(in crate::pool) fn record_named_use(
        &self,
        address: Address,
        used: NamedStream,
    ) -> Result<()> {
        self.birth.check()?;
        let stream = used.handle();
        // Work may have been enqueued on whichever stream has the handle now. Nothing is asked during a capture, where
        // every use waits for the whole device.
        let is_there = !used.has_ended(&self.device)
            || self.captures.any()
            || self.log.call(Call::StreamId, || self.device.stream_id(stream)).is_ok();
        let mut was_announced = true;
        if is_there {
            match self.check_stream_identity(stream, &mut WaitBudget::default()) {
                Err(Error::Device(hal::Error::Invalid { .. })) => was_announced = false,
                checked => checked?,
            }
        }
        self.mark_used(address, |heap| {
            let mut first = false;
            if !was_announced {
                first |= heap.note_unknown_use(address);
            } else if is_there {
                first |= heap.note_use(address, stream);
            }
            // Looked at under the heap lock, under which the pool hears of ends.
            if used.has_ended(&self.device) {
                first |= heap.note_ended_use(address, used);
            }
            first
        })
    }

    /// Records that the block at `address` is used until `event`, or until a wait for the whole device: after its free,
    /// the memory is reused only after that.
    #[cfg(feature = "host")]
    pub(in crate::pool) fn record_use_until(
        &self,
        address: Address,
        event: Option<&Arc<LoggedEvent>>,
    ) -> Result<()> {
        self.birth.check()?;
        self.mark_used(address, |heap| match event {
            Some(event) => heap.note_use_until(address, event),
            None => heap.note_unknown_use(address),
        })
    }

    /// Marks the live block at `address` as used elsewhere too. `note` records the use, and returns whether it is the
    /// first.
    fn mark_used(&self, address: Address, note: impl Fn(&mut Heap) -> bool) -> Result<()> {
        loop {
            // Not under the heap lock: the error path looks at other pools.
            let (slot, known) = self.live(address)?;
            let mut heap = self.heap();
            let first = note(&mut heap);
            if slot.mark_used(known) {
                return Ok(());
            }
            // The block was freed meanwhile, and perhaps allocated again; the next look shows. Uses recorded before
            // belong to the block that is there now.
            if first {
                heap.uses.remove(&address);
            }
        }
    }
}
