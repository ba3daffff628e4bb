//! What the clones of a pool share, and the way of a request through it.
//!
//! ```text
//!   allocate ── hit: this thread's magazine for the stream        no lock, no atomic exchange
//!            ── hole: this stream's lowest hole                  the heap's lock
//!            ── climb: the ladder                                 the works' lock, the driver
//! ```

use core::fmt;
use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::line::Growth;
use forebay_core::{Address, Alignment, Bytes, Ladder, Rung, SizeClasses};
use forebay_hal::{Device, StreamHandle};

use super::event::{EventAction, History, PoolEvent};
use super::heap::{Heap, Return};
use super::map::{
    AddressMap, Known, LARGEST, SMALL_UNITS, Side, Slot, SlotRef, UNIT_SHIFT, tagged,
};
use super::shelf::{Counts, Kept, Shelf, Shelves};
use super::upkeep::{self, Upkeep};
use super::works::{Site, Works};
use super::{DropReport, LeftBlock, PoolOptions, Shortage, registry};
use crate::config::{Rounding, Settings};
use crate::sync::gate::{Gate, Gates};
use crate::sync::seat;
use crate::{Block, Error, PoolId, Request, Result, Tag};

/// How many owners a report names.
const OWNERS: usize = 4;

/// What no thread remembers a pool by: while it is this, every call goes the long way.
const NO_PASS: u64 = u64::MAX;

/// Everything a pool has.
pub(super) struct Shared {
    pub(super) id: PoolId,
    pub(super) device: Arc<dyn Device>,
    settings: Mutex<Settings>,
    pub(super) options: PoolOptions,
    pub(super) upkeep: Mutex<Upkeep>,
    history: History,
    pub(super) scopes: AtomicU64,
    classes: SizeClasses,
    exact: bool,
    /// What threads remember this pool by.
    pass: AtomicU64,
    /// The most a magazine holds, in units of 512 B.
    magazine: AtomicU64,
    /// Counts changes of the heap's large side.
    version: Arc<AtomicU64>,
    map: AddressMap,
    rows: Gates<Shelves>,
    heap: Mutex<Heap>,
    works: Mutex<Works>,
}

impl Shared {
    pub(super) fn new(
        device: &Arc<dyn Device>,
        settings: Settings,
        options: PoolOptions,
    ) -> Result<Self> {
        let growth = growth_of(&settings, options.growth);
        let limit = settings.limit_of(device.memory_info()?.total);
        let (works, heap) = Works::new(device, growth, limit)?;
        let rounding = settings.size_classes();
        let id = registry::next_id();
        let shared = Self {
            id,
            device: Arc::clone(device),
            classes: rounding.classes().unwrap_or(SizeClasses::exact()),
            exact: rounding == Rounding::Exact,
            pass: AtomicU64::new(NO_PASS),
            history: History::new(usize::try_from(settings.history()).unwrap_or(usize::MAX)),
            upkeep: Mutex::new(Upkeep::new()),
            scopes: AtomicU64::new(0),
            magazine: AtomicU64::new(magazine_units(&settings)),
            settings: Mutex::new(settings),
            options,
            version: Arc::clone(&heap.version),
            map: AddressMap::new(),
            rows: Gates::new(seat::SEATS),
            heap: Mutex::new(heap),
            works: Mutex::new(works),
        };
        shared.choose_way(&shared.settings());
        Ok(shared)
    }

    /// Whether every block is looked after on its way in and out.
    fn careful(&self, settings: &Settings) -> bool {
        settings.history() > 0 || !self.options.observers.is_empty()
    }

    /// Lets threads take the short way, or no longer.
    fn choose_way(&self, settings: &Settings) {
        // A pass that no thread has: what threads remember from before is worth nothing.
        let pass = if self.careful(settings) { NO_PASS } else { registry::next_id().0 };
        self.pass.store(pass, Ordering::Relaxed);
    }

    /// The most a magazine holds, in units of 512 B, where there is no pressure.
    pub(super) fn magazine_units(&self) -> u64 {
        self.magazine.load(Ordering::Relaxed)
    }

    pub(super) fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a setting of the living pool.
    pub(super) fn change(&self, key: &str, value: &str) -> Result<()> {
        let mut settings = self.settings();
        settings.change(key, value)?;
        self.choose_way(&settings);
        self.history.set_most(usize::try_from(settings.history()).unwrap_or(usize::MAX));
        if settings.upkeep() {
            upkeep::start();
        }
        let units = magazine_units(&settings);
        let growth = growth_of(&settings, self.options.growth);
        let limit = settings.limit_of(self.device.memory_info()?.total);
        drop(settings);
        {
            let mut works = self.works();
            works.growth = growth;
            works.limit = limit;
        }
        if self.magazine.swap(units, Ordering::Relaxed) != units {
            self.bound_magazines(units);
        }
        Ok(())
    }

    /// Changes how much magazines hold; what is beyond goes the next time.
    pub(super) fn bound_magazines(&self, units: u64) {
        self.rows.each(|shelves| {
            for shelf in shelves.all() {
                shelf.magazine.set_bound(units);
            }
        });
    }

    pub(super) fn site(&self) -> Site<'_> {
        Site { heap: &self.heap, map: &self.map }
    }

    pub(super) fn heap(&self) -> MutexGuard<'_, Heap> {
        // Every change of the heap is made in steps that each leave it whole; of the works likewise.
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn works(&self) -> MutexGuard<'_, Works> {
        self.works.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a large block was taken from the heap.
    fn note_lone(&self, stream: StreamHandle, address: Address) {
        let version = self.version.load(Ordering::Relaxed);
        self.at_hand(|shelves| {
            if let Some(shelf) = shelves.of(stream) {
                shelf.lone = (address, version);
            }
        });
    }

    /// What a request is rounded to; `None` for nothing and for what no block can be.
    fn round(&self, requested: Bytes) -> Option<Bytes> {
        if requested > LARGEST || requested.is_zero() {
            return None;
        }
        self.classes.round(requested).ok().filter(|&size| size <= LARGEST)
    }

    /// The same where it takes no more than a few instructions.
    #[inline(always)]
    fn round_quickly(&self, requested: Bytes) -> Option<Bytes> {
        if self.exact {
            // Nothing, and what passes the end, come to sizes that no magazine has.
            return Some(Bytes::new(requested.get().wrapping_add(511) & !511));
        }
        self.round(requested)
    }

    /// This thread's gate, where it was the last that the thread passed.
    #[inline(always)]
    fn gate_at_hand(&self) -> Option<&Gate<Shelves>> {
        let place = seat::remembered(self.pass.load(Ordering::Relaxed))?;
        // SAFETY: remembered under this pool's pass, which no other pool ever has, so it is a gate of
        // this pool; gates stay where they are as long as the pool.
        Some(unsafe { place.cast::<Gate<Shelves>>().as_ref() })
    }

    /// Does `work` with this thread's shelves, made where it has none; `None` where there are no
    /// seats left.
    fn at_hand<R>(&self, mut work: impl FnMut(&mut Shelves) -> R) -> Option<R> {
        let gate: &Gate<Shelves> = self.rows.get_or_make(seat::mine()?, Shelves::default)?;
        let pass = self.pass.load(Ordering::Relaxed);
        if pass != NO_PASS {
            seat::remember(pass, NonNull::from(gate).cast());
        }
        // SAFETY: as below.
        if let Some(done) = unsafe { gate.enter_lightly(&mut work) } {
            return Some(done);
        }
        loop {
            // SAFETY: the gate is this thread's by its seat; `work` is the pool's own and comes back
            // to no gate.
            if let Some(done) = unsafe { gate.enter(&mut work) } {
                return Some(done);
            }
            self.rows.wait();
        }
    }

    /// A block from the magazine of this thread and stream.
    #[inline(always)]
    pub(super) fn take_at_hand(&self, requested: Bytes, stream: StreamHandle) -> Option<Block> {
        let size = self.round_quickly(requested)?;
        let gate = self.gate_at_hand()?;
        // SAFETY: the gate is this thread's, and nothing in here comes back to a gate.
        unsafe {
            gate.enter_lightly(|shelves| self.take_from(shelves.front(stream)?, requested, size))
        }?
    }

    #[inline(always)]
    fn take_from(&self, shelf: &mut Shelf, requested: Bytes, size: Bytes) -> Option<Block> {
        let units = size.get() >> UNIT_SHIFT;
        // A large block is had from here only where the heap would give the same.
        if units > SMALL_UNITS && shelf.lone.1 != self.version.load(Ordering::Relaxed) {
            return None;
        }
        let Kept { address, slot } = shelf.magazine.take(units)?;
        let tag = seat::tag();
        // SAFETY: the slot is of this pool's map.
        let generation = unsafe { slot.get() }.hand_out_again(tagged(requested, tag));
        shelf.counts.out(units, requested.get(), tag);
        Some(Block { address, size, pool: self.id, generation })
    }

    /// Whether the heap would give the large block at `address` again for a request of its size.
    #[inline(always)]
    fn is_lone(&self, shelf: &Shelf, address: Address) -> bool {
        shelf.lone == (address, self.version.load(Ordering::Relaxed))
    }

    /// Frees a block into the magazine of this thread and stream, if it is live and plain, `allowed`,
    /// and there is room. Nothing is changed where not.
    #[inline(always)]
    pub(super) fn keep_at_hand(
        &self,
        address: Address,
        stream: StreamHandle,
        allowed: impl FnOnce(Known) -> bool,
    ) -> bool {
        let Some(gate) = self.gate_at_hand() else { return false };
        let Some(slot) = self.map.slot(address) else { return false };
        let Some(known) = slot.plain(address) else { return false };
        if !allowed(known) {
            return false;
        }
        // SAFETY: the gate is this thread's, and nothing in here comes back to a gate.
        let kept = unsafe {
            gate.enter_lightly(|shelves| {
                let Some(shelf) = shelves.front(stream) else { return false };
                let kept = Kept { address, slot: SlotRef::new(slot) };
                let units = known.units();
                if units > SMALL_UNITS && !self.is_lone(shelf, address) {
                    return false;
                }
                if !shelf.magazine.keep_if(units, kept, || slot.claim_plain(known)) {
                    return false;
                }
                shelf.counts.back(units, known.requested(), known.tag());
                true
            })
        };
        kept == Some(true)
    }

    /// A block, from wherever it takes, noted where events are.
    #[cold]
    #[inline(never)]
    pub(super) fn allocate(&self, request: Request) -> Result<Block> {
        let got = self.find(request);
        if self.pass.load(Ordering::Relaxed) == NO_PASS && !request.size.is_zero() {
            let (action, address) = match &got {
                Ok(block) => (EventAction::Allocate, block.address),
                Err(_) => (EventAction::Refuse, Address::NULL),
            };
            self.note(action, address, request.size, request.stream, Tag::current());
        }
        got
    }

    /// Notes an event.
    fn note(
        &self,
        action: EventAction,
        address: Address,
        requested: Bytes,
        stream: StreamHandle,
        tag: Tag,
    ) {
        let event = self.history.note(action, address, requested, stream, tag);
        for observer in &self.options.observers {
            observer(&event);
        }
    }

    /// What happened lately.
    pub(super) fn history(&self) -> Vec<PoolEvent> {
        self.history.all()
    }

    /// A block, from wherever it takes.
    fn find(&self, request: Request) -> Result<Block> {
        let Request { size: requested, stream, alignment } = request;
        if requested.is_zero() {
            let (size, pool) = (Bytes::ZERO, self.id);
            return Ok(Block { address: Address::NULL, size, pool, generation: 0 });
        }
        let size = self.round(requested).ok_or_else(|| self.shortage(requested))?;
        let plain = alignment <= Alignment::BLOCK;
        if plain && let Some(block) = self.take_from_own(requested, size, stream) {
            return Ok(block);
        }
        // Room to move to an aligned start; what is before and after goes back.
        let slack = alignment.bytes().saturating_sub(Alignment::BLOCK.bytes());
        let whole = size.checked_add(slack).filter(|&whole| whole <= LARGEST);
        let whole = whole.ok_or_else(|| self.shortage(requested))?;
        let side = Side::of(size);
        if side == Side::Large {
            self.fold_own(stream);
        }
        let found = self.take(side, whole, stream)?;
        let start = found.checked_align_up(alignment).unwrap_or(found);
        if !slack.is_zero() {
            self.cut(side, found, whole, start, size, stream);
        } else if side == Side::Large {
            self.note_lone(stream, start);
        }
        let tag = seat::tag();
        let slot = self.map.slot(start).ok_or(Error::NotABlock { address: start })?;
        let generation = slot.hand_out(start, size, tagged(requested, tag));
        let units = size.get() >> UNIT_SHIFT;
        self.count(stream, |counts| counts.allocated(units, requested.get(), tag));
        Ok(Block { address: start, size, pool: self.id, generation })
    }

    /// A block from this thread's magazine, where the quick way found the gate shut or another stream
    /// in front.
    fn take_from_own(&self, requested: Bytes, size: Bytes, stream: StreamHandle) -> Option<Block> {
        self.at_hand(|shelves| self.take_from(shelves.of(stream)?, requested, size))?
    }

    /// `size` bytes of the heap, or of what can be brought into it.
    fn take(&self, side: Side, size: Bytes, stream: StreamHandle) -> Result<Address> {
        let from_hole = |heap: &mut Heap| {
            let lane = heap.lanes.get(stream)?;
            heap.take(side, size, lane)
        };
        let worth_waiting = {
            let mut heap = self.heap();
            let lane = heap.lanes.get(stream);
            let worth = lane.is_some_and(|lane| heap.worth_waiting(side, size, lane));
            if !worth && let Some(found) = from_hole(&mut heap) {
                heap.heap_hits += 1;
                return Ok(found);
            }
            worth
        };
        let mut works = self.works();
        works.enrol(self.site(), stream)?;
        let mut ladder = Ladder::new();
        if worth_waiting {
            // One event brings what the other stream has freed; a hole of one's own that is much too
            // large stays whole.
            works.climb(self.site(), Rung::Nearest, (side, size), stream)?;
            let mut heap = self.heap();
            if let Some(found) = from_hole(&mut heap) {
                heap.heap_hits += 1;
                return Ok(found);
            }
        }
        loop {
            let rung = ladder.rung();
            match rung {
                Rung::Fold => self.fold(&mut works)?,
                Rung::Refuse => {
                    drop(works);
                    return Err(self.shortage(size).into());
                }
                Rung::Callback => {
                    // Without a lock: whoever is asked may free and allocate.
                    drop(works);
                    let let_go = self.ask_to_let_go(size);
                    works = self.works();
                    works.enrol(self.site(), stream)?;
                    if let_go {
                        ladder.let_go();
                        continue;
                    }
                }
                _ => {
                    works.climb(self.site(), rung, (side, size), stream)?;
                }
            }
            let mut heap = self.heap();
            if let Some(found) = from_hole(&mut heap) {
                if !matches!(rung, Rung::Room | Rung::Idle) {
                    heap.heap_hits += 1;
                    return Ok(found);
                }
                heap.misses += 1;
                drop(heap);
                drop(works);
                self.read_pressure();
                return Ok(found);
            }
            drop(heap);
            ladder.climb();
        }
    }

    /// Gives the parts of `found` before and after the block back.
    fn cut(
        &self,
        side: Side,
        found: Address,
        whole: Bytes,
        start: Address,
        size: Bytes,
        stream: StreamHandle,
    ) {
        let before = start.offset_from(found).unwrap_or_default();
        let after = whole.saturating_sub(before).saturating_sub(size);
        let mut heap = self.heap();
        let Some(lane) = heap.lanes.get(stream) else { return };
        let field = heap.field(side);
        let owner = forebay_core::line::Streams::only(lane);
        for (address, part) in [(Some(found), before), (start.checked_add(size), after)] {
            if let Some(address) = address.filter(|_| !part.is_zero()) {
                let given = field.give(address, part, owner);
                debug_assert!(given, "{address} of {part} was just taken");
            }
        }
    }

    /// Why there is no block to be freed at `address`.
    #[cold]
    fn not_there(&self, address: Address, known: Option<Known>) -> Error {
        if let Some(known) = known.filter(|known| !known.live()) {
            return Error::DoubleFree { address, size: known.size() };
        }
        match registry::owner_of(address, self.id) {
            Some(owner) => Error::WrongPool { address, pool: self.id, owner },
            None => Error::NotABlock { address },
        }
    }

    /// The live block at `address`, with its slot.
    fn live(&self, address: Address) -> Result<(&Slot, Known)> {
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
        let (slot, known) = self.live(address)?;
        check(known)?;
        if !slot.claim(known) {
            return Err(self.not_there(address, slot.look(address)));
        }
        // From here on the block is this call's alone, so the event comes before the next of its
        // address.
        if self.pass.load(Ordering::Relaxed) == NO_PASS {
            let requested = Bytes::new(known.requested());
            let tag = Tag::numbered(usize::from(known.tag())).unwrap_or(Tag::NONE);
            self.note(EventAction::Free, address, requested, stream, tag);
        }
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
        } else if let Err(error) = self.give_back(&mut vec![block]) {
            slot.unclaim(known);
            return Err(error);
        }
        self.count(stream, |counts| {
            counts.freed(known.units(), known.requested(), known.tag());
        });
        Ok(())
    }

    /// Takes back a block once the streams it was used on are done with it.
    fn return_used(&self, block: Return) {
        let mut works = self.works();
        let users = self.heap().uses.remove(&block.address).unwrap_or_default();
        let others: Vec<StreamHandle> =
            users.into_iter().filter(|&user| user != block.stream).collect();
        works.return_after(block, &others);
    }

    /// Puts a claimed block into this thread's magazine, and what stands in its way into the heap.
    /// `false` where there is no magazine for it.
    fn keep_making_way(&self, slot: &Slot, block: Return) -> bool {
        let bound = self.magazine_units();
        if bound == 0 {
            return false;
        }
        let (mut spilled, mut gone) = (Vec::new(), None);
        let kept = self.at_hand(|shelves| {
            if shelves.of(block.stream).is_none() {
                gone = shelves.put_up(block.stream, bound);
            }
            let Some(shelf) = shelves.of(block.stream) else { return false };
            let units = block.size.get() >> UNIT_SHIFT;
            if units > SMALL_UNITS && !self.is_lone(shelf, block.address) {
                return false;
            }
            shelf.magazine.make_way(units, |kept, units| {
                spilled.push(Return::of(kept, units, block.stream));
            });
            shelf.magazine.keep(units, Kept { address: block.address, slot: SlotRef::new(slot) })
        });
        if let Some(shelf) = gone {
            self.retire(*shelf, &mut spilled);
        }
        self.give_back_or_later(spilled);
        kept == Some(true)
    }

    /// What a shelf held and counted, when it goes.
    fn retire(&self, mut shelf: Shelf, spilled: &mut Vec<Return>) {
        shelf.empty(|_| true, spilled);
        self.heap().counts.entry(shelf.stream).or_default().add(&shelf.counts());
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
        self.give_enrolling(&mut self.works(), returns)
    }

    fn give_enrolling(&self, works: &mut Works, returns: &mut Vec<Return>) -> Result<()> {
        while let Some(stream) = returns.last().map(|one| one.stream) {
            works.enrol(self.site(), stream)?;
            self.heap().give_known(returns);
        }
        Ok(())
    }

    /// Gives blocks back to the heap, those that cannot be at the moment the next time it is folded.
    fn give_back_or_later(&self, mut returns: Vec<Return>) {
        if self.give_back(&mut returns).is_err() {
            self.heap().later.append(&mut returns);
        }
    }

    /// Folds the large blocks of this thread's magazine for `stream` into the heap: what they become
    /// with their neighbours may be the better fit.
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
    pub(super) fn fold(&self, works: &mut Works) -> Result<()> {
        let mut returns = core::mem::take(&mut self.heap().later);
        self.rows.each(|shelves| {
            for shelf in shelves.all() {
                shelf.empty(|_| true, &mut returns);
            }
        });
        self.heap().give_known(&mut returns);
        let given = self.give_enrolling(works, &mut returns);
        self.heap().later.append(&mut returns);
        given
    }

    /// Counts something that did not pass over a shelf: on this thread's all the same, where it has
    /// one for the stream.
    fn count(&self, stream: StreamHandle, note: impl Fn(&mut Counts)) {
        let counted = self
            .at_hand(|shelves| shelves.of(stream).map(|shelf| note(&mut shelf.counts)).is_some());
        if counted != Some(true) {
            note(self.heap().counts.entry(stream).or_default());
        }
    }

    /// Notes that the block at `address` is used on `stream` too: its memory is reused only after
    /// what is enqueued there when it is freed.
    pub(super) fn record_use(&self, address: Address, stream: StreamHandle) -> Result<()> {
        let (slot, known) = self.live(address)?;
        let mut heap = self.heap();
        let users = heap.uses.entry(address).or_default();
        let first = users.is_empty();
        if !users.contains(&stream) {
            users.push(stream);
        }
        if first && !known.used_elsewhere() && !slot.mark_used(known) {
            heap.uses.remove(&address);
            return Err(self.not_there(address, slot.look(address)));
        }
        Ok(())
    }

    /// The live block at `address`, and what was asked for.
    pub(super) fn block_at(&self, address: Address) -> Option<(Block, Bytes)> {
        let known = self.map.slot(address)?.look(address).filter(|known| known.live())?;
        let (size, pool) = (known.size(), self.id);
        let block = Block { address, size, pool, generation: known.generation() };
        Some((block, Bytes::new(known.requested())))
    }

    /// Whether a block of this pool begins at `address`, live or freed.
    pub(super) fn knows(&self, address: Address) -> bool {
        self.map.slot(address).and_then(|slot| slot.look(address)).is_some()
    }

    pub(super) fn forget_stream(&self, stream: StreamHandle) -> Result<()> {
        let mut works = self.works();
        let mut shelves_gone = Vec::new();
        self.rows.each(|shelves| shelves_gone.extend(shelves.remove(stream)));
        let mut returns = Vec::new();
        for shelf in shelves_gone {
            self.retire(*shelf, &mut returns);
        }
        let given = self.give_enrolling(&mut works, &mut returns);
        self.heap().later.append(&mut returns);
        given?;
        works.forget(self.site(), stream)
    }

    pub(super) fn trim(&self, keep: Bytes) -> Result<Bytes> {
        let mut works = self.works();
        self.fold(&mut works)?;
        works.trim(self.site(), keep.max(self.settings().min_bytes()))
    }

    /// Does what was put off and is due.
    pub(super) fn process_deferred(&self) -> Result<()> {
        self.works().run_errands(self.site(), false)
    }

    /// All counts, by stream.
    pub(super) fn counts(&self) -> BTreeMap<StreamHandle, Counts> {
        let mut sums: BTreeMap<StreamHandle, Counts> = BTreeMap::new();
        self.rows.each(|shelves| {
            for shelf in shelves.all() {
                sums.entry(shelf.stream).or_default().add(&shelf.counts());
            }
        });
        for (&stream, counts) in &self.heap().counts {
            sums.entry(stream).or_default().add(counts);
        }
        sums
    }

    /// Bytes in magazines.
    pub(super) fn cached(&self) -> Bytes {
        let mut bytes = 0_u64;
        self.rows.each(|shelves| {
            bytes += shelves.all().map(|shelf| shelf.magazine.held()).sum::<u64>() << UNIT_SHIFT;
        });
        Bytes::new(bytes)
    }

    /// How the pool stands, with no memory for a request. Takes the locks.
    #[cold]
    fn shortage(&self, requested: Bytes) -> Shortage {
        let device_free = self.device.memory_info().map_or(Bytes::ZERO, |info| info.free);
        let limit = self.works().limit;
        let owners = self.owners();
        let mut heap = self.heap();
        Shortage {
            requested,
            limit,
            held: heap.held(),
            live: heap.out(),
            largest_free: heap.field(Side::of(requested)).line.largest_hole(),
            device_free,
            owners,
        }
    }

    /// Asks everyone who might, to let memory go.
    fn ask_to_let_go(&self, requested: Bytes) -> bool {
        if self.options.let_go.is_empty() {
            return false;
        }
        let shortage = self.shortage(requested);
        self.options.let_go.iter().fold(false, |any, let_go| let_go(&shortage) || any)
    }

    /// Who has the most, by tag: no more than a few, and nobody where no tags are used.
    fn owners(&self) -> Vec<(String, Bytes)> {
        let mut sum = Counts::default();
        self.counts().values().for_each(|counts| sum.add(counts));
        let tagged = sum.tags.iter().enumerate().filter(|&(_, &units)| units > 0);
        let mut owners: Vec<(String, Bytes)> = tagged
            .filter_map(|(number, &units)| {
                Some((Tag::numbered(number)?.name(), Bytes::new(units << UNIT_SHIFT)))
            })
            .collect();
        owners.sort_by(|one, two| two.1.cmp(&one.1).then_with(|| one.0.cmp(&two.0)));
        owners.truncate(OWNERS);
        owners
    }

    /// What is still live, when the pool goes.
    fn left(&self) -> Option<DropReport> {
        let counts = self.counts();
        let blocks = |counts: &Counts| {
            let classes = counts.classes.iter();
            classes.fold(0, |sum: u64, class| {
                sum.wrapping_add(class.allocations).wrapping_sub(class.frees)
            })
        };
        let count = counts.values().map(blocks).fold(0, u64::wrapping_add);
        if count == 0 {
            return None;
        }
        let mut largest: Vec<LeftBlock> = self.map.live_blocks();
        let bytes = largest.iter().fold(Bytes::ZERO, |sum, block| sum.saturating_add(block.size));
        largest.sort_unstable_by_key(|block| (core::cmp::Reverse(block.size), block.address));
        largest.truncate(DropReport::MOST);
        let streams = counts.iter().map(|(&stream, counts)| (stream, blocks(counts)));
        let streams = streams.filter(|&(_, blocks)| blocks > 0 && blocks < u64::MAX / 2).collect();
        let owners = self.owners();
        Some(DropReport { pool: self.id, blocks: count, bytes, owners, streams, largest })
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("id", &self.id).finish_non_exhaustive()
    }
}

/// How pages are chosen.
fn growth_of(settings: &Settings, given: Option<Growth>) -> Growth {
    given.unwrap_or_else(|| {
        let mut growth = Growth::default();
        growth.largest_page = settings.largest_page().bytes();
        growth
    })
}

/// The most a magazine holds, in units of 512 B.
fn magazine_units(settings: &Settings) -> u64 {
    if settings.magazines() { settings.magazine_bytes().get() >> UNIT_SHIFT } else { 0 }
}

impl Drop for Shared {
    fn drop(&mut self) {
        registry::remove(self.id);
        if let Some(told) = &self.options.told
            && let Some(report) = self.left()
        {
            told(&report);
        }
        let site = Site { heap: &self.heap, map: &self.map };
        self.works.lock().unwrap_or_else(PoisonError::into_inner).tear_down(site);
    }
}
