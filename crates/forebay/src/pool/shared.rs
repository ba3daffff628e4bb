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
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use forebay_core::address_space::Growth;
use forebay_core::{Address, Bytes, SizeClasses};
use forebay_hal::{Call, Device};

use crate::config::{Rounding, Settings};
use crate::pool::backing::{Backing, PoolContext};
use crate::pool::common::backing_kind::BackingKind;
use crate::pool::common::callback::Callbacks;
use crate::pool::common::capture::Captures;
use crate::pool::common::event::{History, PoolEvent};
use crate::pool::common::limits::{HeldGauge, Limits};
use crate::pool::common::log::CallLog;
use crate::pool::common::options::PoolOptions;
use crate::pool::common::upkeep_state::Upkeep;
use crate::pool::debug::{self, DebugChecks};
use crate::pool::front::thread_cache::ThreadCaches;
use crate::pool::heap::thread_ends::ThreadEnds;
use crate::pool::heap::{AllCounts, Heap};
use crate::sync::fork::Birth;
use crate::sync::gates::Gates;
use crate::sync::map::{AddressMap, LARGEST, UNIT_SHIFT};
use crate::sync::thread_slot;
use crate::sync::tracked::{Guard, lock};
use crate::{Block, PoolId, Result};

/// Sentinel epoch that no thread caches. While it is set, every call takes the slow path.
pub(in crate::pool) const SLOW_PATH: u64 = u64::MAX;

/// Everything a pool has. Leaked in a forked child, where another thread may have left any part of it half
/// changed.
pub(in crate::pool) struct Shared(pub(in crate::pool) ManuallyDrop<Parts>);

/// The parts of a pool.
pub(in crate::pool) struct Parts {
    pub(in crate::pool) id: PoolId,
    /// The process that made it.
    pub(in crate::pool) birth: Birth,
    pub(in crate::pool) device: Arc<dyn Device>,
    pub(in crate::pool) settings: Mutex<Settings>,
    pub(in crate::pool) options: PoolOptions,
    pub(in crate::pool) upkeep: Mutex<Upkeep>,
    pub(in crate::pool) history: History,
    pub(in crate::pool) scopes: AtomicU64,
    /// By which the program's own code is called.
    pub(in crate::pool) callbacks: Callbacks,
    pub(in crate::pool) classes: SizeClasses,
    pub(in crate::pool) exact: bool,
    /// What threads remember this pool by.
    pub(in crate::pool) fast_epoch: AtomicU64,
    /// The most a magazine holds, in units of 512 B.
    pub(in crate::pool) magazine: AtomicU64,
    /// The same at present: less than that under pressure.
    pub(in crate::pool) bound: AtomicU64,
    /// The limit, and where levels of pressure begin.
    pub(in crate::pool) limits: Limits,
    /// What is held.
    pub(in crate::pool) held: HeldGauge,
    /// The heap's: the large block it would give again.
    pub(in crate::pool) last_large: Arc<AtomicU64>,
    pub(in crate::pool) map: AddressMap,
    pub(in crate::pool) thread_caches: Gates<ThreadCaches>,
    /// The slots' own, for those who do not lock the heap.
    pub(in crate::pool) thread_ends: Arc<ThreadEnds>,
    pub(in crate::pool) heap: Mutex<Heap>,
    pub(in crate::pool) backing: Mutex<Backing>,
    /// The backing's: who is capturing now.
    pub(in crate::pool) captures: Captures,
    /// How many threads are giving memory back.
    pub(in crate::pool) reclaiming: AtomicUsize,
    /// Whether a thread waits for the device on behalf of a request whose time ran out.
    pub(in crate::pool) waiter: Arc<AtomicBool>,
    /// All the memory the device has.
    pub(in crate::pool) device_total: Bytes,
    /// The driver's calls.
    pub(in crate::pool) log: CallLog,
    /// The debugging aids.
    pub(in crate::pool) debug: DebugChecks,
}

impl Deref for Shared {
    type Target = Parts;

    #[inline(always)]
    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl Shared {
    pub(in crate::pool) fn new(
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
        let fresh = debug::fresh_page_pattern(&settings);
        let (backing, heap) = Backing::new(device, &kind, growth, fresh, &log)?;
        let rounding = settings.size_classes();
        let id = PoolId::next();
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
            thread_caches: Gates::new(thread_slot::MAX_SLOTS),
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
        shared.update_fast_epoch(&shared.settings());
        Ok(shared)
    }

    /// Whether every block is looked after on its way in and out.
    fn is_checked(&self, settings: &Settings) -> bool {
        settings.history() > 0 || self.history.is_observed() || debug::checks_calls(settings)
    }

    /// Lets threads take the fast path, or no longer.
    pub(in crate::pool) fn update_fast_epoch(&self, settings: &Settings) {
        // An epoch that no thread has: what threads remember from before is worth nothing.
        let epoch = if self.is_checked(settings) { SLOW_PATH } else { PoolId::next().0 };
        self.fast_epoch.store(epoch, Ordering::Relaxed);
    }

    /// The most a magazine holds, in units of 512 B, where there is no pressure.
    pub(in crate::pool) fn magazine_units(&self) -> u64 {
        self.magazine.load(Ordering::Relaxed)
    }

    /// Whether this is a forked child, and the pool its parent's. To be asked before a lock is taken.
    pub(in crate::pool) fn is_inherited(&self) -> bool {
        self.birth.is_elsewhere()
    }

    pub(in crate::pool) fn settings(&self) -> Guard<'_, Settings> {
        debug_assert!(!self.is_inherited(), "the lock may be held for ever");
        lock(&self.settings)
    }

    /// The most a magazine holds at present, in units of 512 B.
    pub(in crate::pool) fn bound_now(&self) -> u64 {
        self.bound.load(Ordering::Relaxed)
    }

    /// Changes how much magazines hold; what is beyond goes the next time.
    pub(in crate::pool) fn bound_magazines(&self, units: u64) {
        self.bound.store(units, Ordering::Relaxed);
        self.thread_caches.change(|caches| caches.set_bound(units));
    }

    pub(in crate::pool) fn context(&self) -> PoolContext<'_> {
        PoolContext { heap: &self.heap, map: &self.map, limit: self.limits.limit() }
    }

    pub(in crate::pool) fn heap(&self) -> Guard<'_, Heap> {
        debug_assert!(!self.is_inherited(), "the lock may be held for ever");
        lock(&self.heap)
    }

    pub(in crate::pool) fn backing(&self) -> Guard<'_, Backing> {
        debug_assert!(!self.is_inherited(), "the lock may be held for ever");
        lock(&self.backing)
    }

    /// What a request is rounded to; `None` for nothing and for what no block can be.
    pub(in crate::pool) fn round(&self, requested: Bytes) -> Option<Bytes> {
        if requested > LARGEST || requested.is_zero() {
            return None;
        }
        if self.exact {
            // The largest is a multiple of 512 itself.
            return Some(Bytes::new((requested.get() + 511) & !511));
        }
        self.classes.round(requested).ok().filter(|&size| size <= LARGEST)
    }

    /// What happened lately.
    pub(in crate::pool) fn history(&self) -> Vec<PoolEvent> {
        if self.is_inherited() { Vec::new() } else { self.history.all() }
    }

    /// The live block at `address`, and what was asked for.
    pub(in crate::pool) fn block_at(&self, address: Address) -> Option<(Block, Bytes)> {
        let known = self.map.slot(address)?.state_at(address).filter(|known| known.live())?;
        let (size, pool) = (known.size(), self.id);
        let block = Block { address, size, pool, generation: known.generation() };
        Some((block, Bytes::new(known.requested())))
    }

    /// All counts, by stream, and the bytes in magazines, as they are at one moment. The heap is
    /// locked, so that no cache's counts are on their way to it.
    pub(in crate::pool) fn census(&self, heap: &Heap) -> (AllCounts, Bytes) {
        let (mut sums, mut units) = (heap.counts.clone(), 0_u64);
        self.thread_caches.each(|caches| {
            for cache in caches.all() {
                sums.add(cache.stream, &cache.counts());
                units = units.wrapping_add(cache.magazine.held());
            }
        });
        (sums, Bytes::new(units << UNIT_SHIFT))
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("id", &self.id).finish_non_exhaustive()
    }
}

/// How pages are chosen.
pub(in crate::pool) fn growth_of(settings: &Settings, given: Option<Growth>) -> Growth {
    given.unwrap_or_else(|| {
        let mut growth = Growth::default();
        growth.largest_page = settings.largest_page().bytes();
        growth
    })
}

/// The most a magazine holds, in units of 512 B.
pub(in crate::pool) fn magazine_units(settings: &Settings) -> u64 {
    let wanted = settings.magazines() && debug::allows_magazines(settings);
    if wanted { settings.magazine_bytes().get() >> UNIT_SHIFT } else { 0 }
}
