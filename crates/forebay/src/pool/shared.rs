//! What the clones of a pool share, and the way of a request through it.
//!
//! ```text
//!   allocate ── hit: this thread's magazine for the stream        no lock, no atomic exchange
//!            ── hole: this stream's lowest hole                  the heap's lock
//!            ── climb: the ladder                                 the backing's lock, the driver
//! ```

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use forebay_core::address_space::Growth;
use forebay_core::{Address, Bytes, SizeClasses};
use forebay_hal::{Call, Device, StreamHandle};

use super::backing::{Backing, Site};
use super::backing_kind::BackingKind;
use super::callback::Callbacks;
use super::capture::Captures;
use super::claimed_as::ClaimedAs;
use super::debug::{self, DebugChecks};
use super::event::{History, PoolEvent};
use super::heap::{AllCounts, Heap};
use super::limits::{HeldGauge, Limits};
use super::log::CallLog;
use super::map::{
    AddressMap, BlockState, LARGEST, SMALL_UNITS, Slot, SlotRef, UNIT_SHIFT, is_wide, tagged,
};
use super::page_provider::twice;
use super::reclaim::Patience;
use super::thread_cache::{CachedBlock, ThreadCache, ThreadCaches};
use super::thread_end::ThreadEnds;
use super::upkeep::{self, Upkeep};
use super::{Capture, PoolOptions, registry};
use crate::config::{Rounding, Settings};
use crate::sync::fork::Birth;
use crate::sync::gate::Gate;
use crate::sync::gates::Gates;
use crate::sync::thread_slot;
use crate::sync::tracked::{Guard, lock, try_lock};
use crate::{Block, Error, PoolId, Result, Tag};

/// Sentinel epoch that no thread caches. While it is set, every call takes the slow path.
pub(super) const SLOW_PATH: u64 = u64::MAX;

/// Everything a pool has. Leaked in a forked child, where another thread may have left any part of it half
/// changed.
pub(super) struct Shared(ManuallyDrop<Parts>);

/// The parts of a pool.
pub(super) struct Parts {
    pub(super) id: PoolId,
    /// The process that made it.
    pub(super) birth: Birth,
    pub(super) device: Arc<dyn Device>,
    settings: Mutex<Settings>,
    pub(super) options: PoolOptions,
    pub(super) upkeep: Mutex<Upkeep>,
    pub(super) history: History,
    pub(super) scopes: AtomicU64,
    /// By which the program's own code is called.
    pub(super) callbacks: Callbacks,
    classes: SizeClasses,
    exact: bool,
    /// What threads remember this pool by.
    pub(super) fast_epoch: AtomicU64,
    /// The most a magazine holds, in units of 512 B.
    magazine: AtomicU64,
    /// The same at present: less than that under pressure.
    bound: AtomicU64,
    /// The limit, and where levels of pressure begin.
    pub(super) limits: Limits,
    /// What is held.
    pub(super) held: HeldGauge,
    /// The heap's: the large block it would give again.
    last_large: Arc<AtomicU64>,
    pub(super) map: AddressMap,
    pub(super) rows: Gates<ThreadCaches>,
    /// The slots' own, for those who do not lock the heap.
    pub(super) thread_ends: Arc<ThreadEnds>,
    heap: Mutex<Heap>,
    backing: Mutex<Backing>,
    /// The backing's: who is capturing now.
    pub(super) captures: Captures,
    /// How many threads are giving memory back.
    pub(super) reclaiming: AtomicUsize,
    /// Whether a thread waits for the device on behalf of a request whose time ran out.
    pub(super) waiter: Arc<AtomicBool>,
    /// All the memory the device has.
    pub(super) device_total: Bytes,
    /// The driver's calls.
    pub(super) log: CallLog,
    /// The debugging aids.
    pub(super) debug: DebugChecks,
}

impl Deref for Shared {
    type Target = Parts;

    #[inline(always)]
    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl Shared {
    pub(super) fn new(
        device: &Arc<dyn Device>,
        settings: Settings,
        options: PoolOptions,
    ) -> Result<Self> {
        device.descriptor().check_process(Call::Open)?;
        let growth = growth_of(&settings, options.growth);
        let device_total = device.memory_info()?.total;
        let limit = settings.limit_of(device_total);
        let log = CallLog::default();
        let guarded = settings.guard_pages();
        let kind = BackingKind::new(device, options.class, &options.peers, guarded)?;
        let debug = DebugChecks::new(device, &settings, &log)?;
        let fresh = debug::fresh_pages(&settings);
        let (backing, heap) = Backing::new(device, &kind, growth, fresh, &log)?;
        let rounding = settings.size_classes();
        let id = registry::next_id();
        let callbacks = Callbacks::default();
        let shared = Self(ManuallyDrop::new(Parts {
            id,
            birth: Birth::here(),
            device: Arc::clone(device),
            classes: rounding.classes().unwrap_or(SizeClasses::exact()),
            exact: rounding == Rounding::Exact,
            fast_epoch: AtomicU64::new(SLOW_PATH),
            history: History::new(
                usize::try_from(settings.history()).unwrap_or(usize::MAX),
                options.observers.clone(),
                callbacks.clone(),
            ),
            upkeep: Mutex::new(Upkeep::new()),
            scopes: AtomicU64::new(0),
            callbacks,
            magazine: AtomicU64::new(magazine_units(&settings)),
            bound: AtomicU64::new(magazine_units(&settings)),
            limits: Limits::new(limit, &settings),
            held: heap.held_gauge.clone(),
            settings: Mutex::new(settings),
            options,
            last_large: Arc::clone(&heap.last_large),
            map: AddressMap::new(),
            rows: Gates::new(thread_slot::MAX_SLOTS),
            thread_ends: Arc::clone(&heap.slots.thread_ends),
            heap: Mutex::new(heap),
            captures: backing.captures.clone(),
            reclaiming: AtomicUsize::new(0),
            waiter: Arc::default(),
            device_total,
            backing: Mutex::new(backing),
            log,
            debug,
        }));
        shared.choose_way(&shared.settings());
        Ok(shared)
    }

    /// Whether every block is looked after on its way in and out.
    fn is_checked(&self, settings: &Settings) -> bool {
        settings.history() > 0 || self.history.is_observed() || debug::wanted(settings)
    }

    /// Lets threads take the fast path, or no longer.
    fn choose_way(&self, settings: &Settings) {
        // An epoch that no thread has: what threads remember from before is worth nothing.
        let epoch = if self.is_checked(settings) { SLOW_PATH } else { registry::next_id().0 };
        self.fast_epoch.store(epoch, Ordering::Relaxed);
    }

    /// The most a magazine holds, in units of 512 B, where there is no pressure.
    pub(super) fn magazine_units(&self) -> u64 {
        self.magazine.load(Ordering::Relaxed)
    }

    /// Whether this is a forked child, and the pool its parent's. To be asked before a lock is taken.
    pub(super) fn is_inherited(&self) -> bool {
        self.birth.is_elsewhere()
    }

    pub(super) fn settings(&self) -> Guard<'_, Settings> {
        debug_assert!(!self.is_inherited(), "the lock may be held for ever");
        lock(&self.settings)
    }

    /// Changes a setting of the living pool.
    pub(super) fn change(&self, key: &str, value: &str) -> Result<()> {
        self.birth.check()?;
        let total = self.device.memory_info()?.total;
        let mut settings = self.settings();
        let mut changed = settings.clone();
        changed.change(key, value)?;
        if let Some(setting) = debug::seen_by_captures(&changed)
            && self.captures.any()
        {
            return Err(Error::CaptureRefused { setting });
        }
        *settings = changed;
        self.choose_way(&settings);
        self.history.set_most(usize::try_from(settings.history()).unwrap_or(usize::MAX));
        registry::set_upkeep(self.id, settings.upkeep());
        if settings.upkeep() {
            upkeep::start();
        }
        self.limits.set(settings.limit_of(total), &settings);
        drop(settings);
        // Until nobody has changed them meanwhile: two changes at once both end with the later one's.
        loop {
            let settings = self.settings().clone();
            let units = magazine_units(&settings);
            self.backing().growth = growth_of(&settings, self.options.growth);
            if self.magazine.swap(units, Ordering::Relaxed) != units {
                self.fit_magazines();
            }
            self.bound_quarantine(settings.quarantine());
            if *self.settings() == settings {
                break;
            }
        }
        self.read_pressure();
        Ok(())
    }

    /// Begins a capture. Under the backing's lock, so that nobody is at the driver when it begins; and under
    /// that of the settings, so that none which it could see is turned on meanwhile.
    pub(super) fn capture(&self) -> Result<Capture> {
        self.birth.check()?;
        let backing = self.backing();
        let settings = self.settings();
        match debug::seen_by_captures(&settings) {
            Some(setting) => Err(Error::CaptureRefused { setting }),
            None => Ok(backing.captures.begin()),
        }
    }

    /// The most a magazine holds at present, in units of 512 B.
    pub(super) fn bound_now(&self) -> u64 {
        self.bound.load(Ordering::Relaxed)
    }

    /// Changes how much magazines hold; what is beyond goes the next time.
    pub(super) fn bound_magazines(&self, units: u64) {
        self.bound.store(units, Ordering::Relaxed);
        self.rows.change(|caches| caches.set_bound(units));
    }

    pub(super) fn site(&self) -> Site<'_> {
        Site { heap: &self.heap, map: &self.map, limit: self.limits.limit() }
    }

    pub(super) fn heap(&self) -> Guard<'_, Heap> {
        debug_assert!(!self.is_inherited(), "the lock may be held for ever");
        lock(&self.heap)
    }

    pub(super) fn backing(&self) -> Guard<'_, Backing> {
        debug_assert!(!self.is_inherited(), "the lock may be held for ever");
        lock(&self.backing)
    }

    /// What a request is rounded to; `None` for nothing and for what no block can be.
    pub(super) fn round(&self, requested: Bytes) -> Option<Bytes> {
        if requested > LARGEST || requested.is_zero() {
            return None;
        }
        if self.exact {
            // The largest is a multiple of 512 itself.
            return Some(Bytes::new((requested.get() + 511) & !511));
        }
        self.classes.round(requested).ok().filter(|&size| size <= LARGEST)
    }

    /// The same where it takes no more than a few instructions.
    #[inline(always)]
    fn round_quickly(&self, requested: Bytes) -> Option<Bytes> {
        if !self.exact {
            return self.round_by_class(requested);
        }
        // Nothing, and what passes the end, come to sizes that no magazine has.
        Some(Bytes::new(requested.get().wrapping_add(511) & !511))
    }

    #[cold]
    #[inline(never)]
    fn round_by_class(&self, requested: Bytes) -> Option<Bytes> {
        self.round(requested)
    }

    /// This thread's gate, where it was the last that the thread passed.
    #[inline(always)]
    fn remembered_gate(&self) -> Option<&Gate<ThreadCaches>> {
        let place = thread_slot::cached_pool(self.fast_epoch.load(Ordering::Relaxed))?;
        // SAFETY: remembered under this pool's epoch, which no other pool ever has, so it is a gate of
        // this pool; gates stay where they are as long as the pool.
        Some(unsafe { place.cast::<Gate<ThreadCaches>>().as_ref() })
    }

    /// This thread's gate, made where it has none; `None` where there are no thread slots left.
    #[inline]
    pub(super) fn own_gate(&self) -> Option<OwnGate<'_>> {
        let gate = match self.remembered_gate() {
            Some(gate) => gate,
            None => self.find_gate()?,
        };
        Some(OwnGate { gate, shared: self })
    }

    fn find_gate(&self) -> Option<&Gate<ThreadCaches>> {
        let gate: &Gate<ThreadCaches> =
            self.rows.get_or_make(thread_slot::current()?, ThreadCaches::default)?;
        let epoch = self.fast_epoch.load(Ordering::Relaxed);
        if epoch != SLOW_PATH {
            thread_slot::cache_pool(epoch, NonNull::from(gate).cast());
        }
        Some(gate)
    }

    /// Does `work` with this thread's caches, made where it has none; `None` where there are no
    /// thread slots left.
    #[inline]
    pub(super) fn with_own_caches<R>(&self, work: impl FnMut(&mut ThreadCaches) -> R) -> Option<R> {
        Some(self.own_gate()?.enter(work))
    }

    /// A block from the magazine of this thread and stream.
    #[inline(always)]
    pub(super) fn allocate_cached<const COUNTED: bool>(
        &self,
        requested: Bytes,
        stream: StreamHandle,
        tag: Tag,
    ) -> Option<Block> {
        let size = self.round_quickly(requested)?;
        let gate = self.remembered_gate()?;
        // SAFETY: the gate is this thread's, and nothing in here comes back to a gate.
        let mut passed = unsafe { gate.pass() }?;
        let block = match passed.data().front(stream) {
            Some(cache) => self.take_from_for::<COUNTED>(cache, requested, size, tag),
            None => None,
        };
        passed.leave();
        block
    }

    /// A block from a magazine.
    #[inline(always)]
    pub(super) fn take_from<const COUNTED: bool>(
        &self,
        cache: &mut ThreadCache,
        requested: Bytes,
        size: Bytes,
    ) -> Option<Block> {
        self.take_from_for::<COUNTED>(cache, requested, size, Tag::NONE)
    }

    /// The same, under `tag` where the thread allocates under none.
    #[inline(always)]
    fn take_from_for<const COUNTED: bool>(
        &self,
        cache: &mut ThreadCache,
        requested: Bytes,
        size: Bytes,
        tag: Tag,
    ) -> Option<Block> {
        let units = size.get() >> UNIT_SHIFT;
        let CachedBlock { address, slot } = if units > SMALL_UNITS {
            self.take_large(cache, units, size.saturating_sub(requested))?
        } else {
            cache.magazine.take_small::<COUNTED>(units)?
        };
        let tag = tag.unless_tagged();
        if COUNTED {
            cache.counts.out(units, requested.get(), tag);
        }
        // SAFETY: the slot is of this pool's map.
        let generation = unsafe { slot.get() }.mark_live_again(size, tagged(requested, tag));
        Some(Block { address, size, pool: self.id, generation })
    }

    /// The large block of a magazine, where the heap would give the same.
    #[inline(never)]
    fn take_large(&self, cache: &mut ThreadCache, units: u64, added: Bytes) -> Option<CachedBlock> {
        if is_wide(added) {
            return None;
        }
        cache.magazine.take_large_if(units, |kept| {
            // SAFETY: the slot is of this pool's map.
            self.is_last_large(kept.address) && !unsafe { kept.slot.get() }.is_wide()
        })
    }

    /// Whether the heap would give the large block at `address` again for a request of its size.
    #[inline(always)]
    pub(super) fn is_last_large(&self, address: Address) -> bool {
        self.last_large.load(Ordering::Relaxed) == address.get()
    }

    /// Frees a block into the magazine of this thread and stream, if it is live and plain, `allowed`,
    /// and there is room. Nothing is changed where not.
    #[inline(always)]
    pub(super) fn free_cached<const COUNTED: bool>(
        &self,
        address: Address,
        stream: StreamHandle,
        said: ClaimedAs,
    ) -> bool {
        let Some(gate) = self.remembered_gate() else { return false };
        let Some(slot) = self.map.slot(address) else { return false };
        let Some(known) = said.plain(slot, address) else { return false };
        // SAFETY: the gate is this thread's, and nothing in here comes back to a gate.
        let Some(mut passed) = (unsafe { gate.pass() }) else { return false };
        let kept = match passed.data().front(stream) {
            Some(cache) => self.keep_in::<COUNTED>(cache, slot, known, address, said),
            None => false,
        };
        passed.leave();
        kept
    }

    #[inline(always)]
    fn keep_in<const COUNTED: bool>(
        &self,
        cache: &mut ThreadCache,
        slot: &Slot,
        known: BlockState,
        address: Address,
        said: ClaimedAs,
    ) -> bool {
        let block = CachedBlock { address, slot: SlotRef::new(slot) };
        let units = known.units();
        let (kept, requested) = if units > SMALL_UNITS {
            let claim =
                || said.fits_at_a_glance(known, BlockState::requested) && slot.claim_plain(known);
            // Any other that is large goes to the heap.
            let kept =
                self.is_last_large(address) && cache.magazine.keep_large_if(units, block, claim);
            (kept, known.requested())
        } else {
            let claim = || {
                said.fits_at_a_glance(known, BlockState::requested_small) && slot.claim_plain(known)
            };
            let kept = cache.magazine.keep_small_if::<COUNTED>(units, block, claim);
            (kept, known.requested_small())
        };
        if COUNTED && kept {
            cache.counts.back(units, requested, known.tag());
        }
        kept
    }

    /// What happened lately.
    pub(super) fn history(&self) -> Vec<PoolEvent> {
        if self.is_inherited() { Vec::new() } else { self.history.all() }
    }

    /// The live block at `address`, and what was asked for.
    pub(super) fn block_at(&self, address: Address) -> Option<(Block, Bytes)> {
        let known = self.map.slot(address)?.state_at(address).filter(|known| known.live())?;
        let (size, pool) = (known.size(), self.id);
        let block = Block { address, size, pool, generation: known.generation() };
        Some((block, Bytes::new(known.requested())))
    }

    /// Does what was put off and is due.
    pub(super) fn process_deferred(&self) -> Result<()> {
        self.birth.check()?;
        self.backing().run_deferred(self.site(), false)?;
        self.give_back_segments(Patience::None)?;
        if let Some(guards) = self.debug.guards() {
            self.unmap_freed(guards, Patience::None)?;
        }
        Ok(())
    }

    /// All counts, by stream, and the bytes in magazines, as they are at one moment. The heap is
    /// locked, so that no cache's counts are on their way to it.
    pub(super) fn census(&self, heap: &Heap) -> (AllCounts, Bytes) {
        let (mut sums, mut units) = (heap.counts.clone(), 0_u64);
        self.rows.each(|caches| {
            for cache in caches.all() {
                sums.add(cache.stream, &cache.counts());
                units = units.wrapping_add(cache.magazine.held());
            }
        });
        (sums, Bytes::new(units << UNIT_SHIFT))
    }
}

/// This thread's gate of a pool.
#[derive(Clone, Copy)]
pub(super) struct OwnGate<'a> {
    gate: &'a Gate<ThreadCaches>,
    shared: &'a Shared,
}

impl OwnGate<'_> {
    /// Does `work`, the pool's own, which comes back to no gate, with what is behind it.
    #[inline(always)]
    pub(super) fn enter<R>(self, mut work: impl FnMut(&mut ThreadCaches) -> R) -> R {
        // SAFETY: the gate is this thread's by its thread slot, and `work` comes back to no gate.
        if let Some(mut passed) = unsafe { self.gate.pass() } {
            return work(passed.data());
        }
        self.wait_and_enter(&mut work)
    }

    #[cold]
    #[inline(never)]
    fn wait_and_enter<R>(self, work: &mut dyn FnMut(&mut ThreadCaches) -> R) -> R {
        loop {
            if self.gate.is_asked() {
                self.heed_request();
            }
            // SAFETY: as above.
            if let Some(done) = unsafe { self.gate.enter(&mut *work) } {
                return done;
            }
            self.shared.rows.wait();
        }
    }

    /// Does what a visitor that passed this thread over would have done: gives the heap what is in the
    /// magazines, and fits their bound. Where the heap is locked, perhaps by this thread, the request
    /// stays for the next entry.
    fn heed_request(self) {
        let Some(mut heap) = try_lock(&self.shared.heap) else { return };
        let mut returns = Vec::new();
        let drain = |caches: &mut ThreadCaches| {
            self.gate.take_request();
            caches.set_bound(self.shared.bound_now());
            caches.drain(&mut returns);
            // Inside, as in `free_to_heap`: none of the streams is forgotten before its blocks are here.
            heap.give_all(core::mem::take(&mut returns));
        };
        // SAFETY: as in `enter`.
        unsafe { self.gate.enter(drain) };
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
    let wanted = settings.magazines() && debug::allows_magazines(settings);
    if wanted { settings.magazine_bytes().get() >> UNIT_SHIFT } else { 0 }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        registry::remove(self.id);
        if let Some(told) = &self.options.told
            && let Some(report) = self.left()
        {
            // There is nobody left to tell of a panic but the hook, which was told.
            let _ = self.callbacks.call(|| told(&report));
        }
        // Work may still use what is about to be given back; where waiting fails the device is lost, and
        // its work with it.
        let _ = twice(|| self.device.synchronize_device());
        self.backing().tear_down(self.site());
        // SAFETY: nobody uses the parts after this.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}
