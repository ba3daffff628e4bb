//! The parts that all clones of a pool share, each with its own lock or atomics. The calls that use them are in
//! `calls/`.
//!
//! ```text
//!   allocate ── hit     this thread's magazine for the stream      no lock, no atomic exchange
//!            ── hole    this stream's lowest hole                  heap lock
//!            ── ladder  one rung after another                     backing lock, driver calls
//! ```

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use forebay_core::address_space::Growth;
use forebay_core::{Address, Bytes, PageSize, SizeClasses};
use forebay_hal::{Call, Device};

use crate::callback::Callbacks;
use crate::config::{Rounding, Settings};
use crate::pool::backing::{Backing, PoolContext};
use crate::pool::common::backing_kind::BackingKind;
use crate::pool::common::capture::Captures;
use crate::pool::common::event::{History, Origins, ThreadEvents};
use crate::pool::common::group::Group;
use crate::pool::common::limits::HeldGauge;
use crate::pool::common::log::CallLog;
use crate::pool::common::options::PoolOptions;
use crate::pool::common::upkeep_state::Upkeep;
use crate::pool::debug::{self, DebugChecks};
use crate::pool::front::thread_cache::ThreadCaches;
use crate::pool::heap::Heap;
use crate::pool::heap::all_counts::AllCounts;
use crate::pool::heap::seen_streams::SeeingPool;
use crate::pool::heap::thread_ends::ThreadEnds;
use crate::report::PoolEvent;
use crate::sync::fork::Birth;
use crate::sync::gates::Gates;
use crate::sync::map::{AddressMap, LARGEST, UNIT_SHIFT};
use crate::sync::tracked::{Guard, lock};
use crate::{Block, PoolId, Result};

/// Sentinel epoch that no thread caches. While it is set, every call takes the slow path.
pub(in crate::pool) const SLOW_PATH: u64 = u64::MAX;

/// All parts of a pool. Leaked in a forked child, where another thread may have left any part half changed.
pub(in crate::pool) struct Shared(pub(in crate::pool) ManuallyDrop<Parts>);

/// The parts of a pool. ARCHITECTURE.md lists its locks in the order in which they are taken.
pub(in crate::pool) struct Parts {
    pub(in crate::pool) id: PoolId,
    /// The process that made the pool.
    pub(in crate::pool) birth: Birth,
    /// How many references the program has.
    pub(in crate::pool) users: AtomicUsize,
    pub(in crate::pool) device: Arc<dyn Device>,
    pub(in crate::pool) settings: Mutex<Settings>,
    pub(in crate::pool) options: PoolOptions,
    pub(in crate::pool) upkeep: Mutex<Upkeep>,
    pub(in crate::pool) history: History,
    /// Calls the program's callbacks and counts their panics.
    pub(in crate::pool) callbacks: Callbacks,
    pub(in crate::pool) classes: SizeClasses,
    pub(in crate::pool) exact: bool,
    /// The number by which threads cache their gate of this pool, or the sentinel.
    pub(in crate::pool) fast_epoch: AtomicU64,
    /// The same for the fast path that records, which exists while the pool records events and checks nothing.
    pub(in crate::pool) record_epoch: AtomicU64,
    /// The most a magazine holds, in units of 512 B.
    pub(in crate::pool) magazine: AtomicU64,
    /// The current bound: lower under pressure.
    pub(in crate::pool) bound: AtomicU64,
    /// The limit and the pressure thresholds, and the figures of all pools that share them.
    pub(in crate::pool) group: Arc<Group>,
    /// Whether the limit is that of this pool's settings.
    pub(in crate::pool) leads_group: bool,
    /// Bytes held, for readers without the heap lock.
    pub(in crate::pool) held: HeldGauge,
    /// Shared with the heap: the large block that it would allocate again.
    pub(in crate::pool) last_large: Arc<AtomicU64>,
    pub(in crate::pool) map: AddressMap,
    pub(in crate::pool) thread_caches: Gates<ThreadCaches>,
    /// Shared with the stream slots, for callers without the heap lock.
    pub(in crate::pool) thread_ends: Arc<ThreadEnds>,
    pub(in crate::pool) heap: Mutex<Heap>,
    pub(in crate::pool) backing: Mutex<Backing>,
    /// Shared with the backing: the captures under way.
    pub(in crate::pool) captures: Captures,
    /// The number of threads that are releasing memory.
    pub(in crate::pool) reclaiming: AtomicUsize,
    /// Whether a helper thread waits for the device on behalf of a request, perhaps one that has timed out.
    pub(in crate::pool) waiter: Arc<AtomicBool>,
    /// The smallest page of the device.
    pub(in crate::pool) granule: PageSize,
    /// The total memory of the device.
    pub(in crate::pool) device_total: Bytes,
    /// The log of driver calls.
    pub(in crate::pool) log: CallLog,
    /// The debug checks and their state.
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
        mut options: PoolOptions,
    ) -> Result<Self> {
        device.descriptor().check_process(Call::Open)?;
        let growth = growth_of(&settings, options.growth);
        let device_total = device.memory_info()?.total;
        let log = CallLog::default();
        let guarded = settings.guard_pages();
        let kind =
            BackingKind::new(device, options.class, &options.peers, options.exportable, guarded)?
                .segments_of(options.segments);
        let debug = DebugChecks::new(device, &settings, &log)?;
        let fresh = debug::fresh_page_pattern(&settings);
        let shared_group = options.group.take();
        let leads_group = shared_group.is_none();
        let group = shared_group.unwrap_or_default();
        let (backing, heap) = Backing::new(device, &kind, growth, fresh, &group, &log)?;
        let granule = heap.large.space.granule();
        if leads_group {
            group.limits.set(device_total, granule, &settings);
        }
        let rounding = settings.size_classes();
        let id = PoolId::next();
        let callbacks = Callbacks::default();
        let shared = Self(ManuallyDrop::new(Parts {
            id,
            birth: Birth::here(),
            users: AtomicUsize::new(0),
            device: Arc::clone(device),
            classes: rounding.classes().unwrap_or(SizeClasses::exact()),
            exact: rounding == Rounding::Exact,
            fast_epoch: AtomicU64::new(SLOW_PATH),
            record_epoch: AtomicU64::new(SLOW_PATH),
            history: History::new(id, &settings, options.observers.clone(), callbacks.clone()),
            upkeep: Mutex::new(Upkeep::new()),
            callbacks,
            magazine: AtomicU64::new(magazine_units(&settings)),
            bound: AtomicU64::new(magazine_units(&settings)),
            group,
            leads_group,
            granule,
            held: heap.held_gauge.clone(),
            settings: Mutex::new(settings),
            options,
            last_large: Arc::clone(&heap.last_large),
            map: AddressMap::new(id.0),
            thread_caches: Gates::of_threads(),
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

    /// Whether every call has to take the slow path, because it is recorded or checked.
    fn is_checked(&self, settings: &Settings) -> bool {
        settings.history() > 0
            || settings.stacks()
            || self.history.is_observed()
            || debug::checks_calls(settings)
    }

    /// Turns the fast path on or off, as `settings` demand.
    pub(in crate::pool) fn update_fast_epoch(&self, settings: &Settings) {
        // A new epoch each time: what threads cached before is stale.
        let epoch = if self.is_checked(settings) { SLOW_PATH } else { PoolId::next().0 };
        let only_records = settings.history() > 0
            && !settings.stacks()
            && !self.history.is_observed()
            && !debug::checks_calls(settings);
        let record_epoch = if only_records { PoolId::next().0 } else { SLOW_PATH };
        self.record_epoch.store(record_epoch, Ordering::Relaxed);
        self.fast_epoch.store(epoch, Ordering::Relaxed);
    }

    /// The pool as the list of seen streams names it. The address of a device object identifies the device: the pool keeps
    /// it alive.
    pub(in crate::pool) fn seeing(&self) -> SeeingPool {
        SeeingPool { id: self.id, device: address_of(&self.device) }
    }

    /// The most a magazine holds without pressure, in units of 512 B.
    pub(in crate::pool) fn magazine_units(&self) -> u64 {
        self.magazine.load(Ordering::Relaxed)
    }

    /// Whether this is a forked child and the pool is its parent's. Ask before taking a lock: it may be held forever.
    pub(in crate::pool) fn is_inherited(&self) -> bool {
        self.birth.is_elsewhere()
    }

    pub(in crate::pool) fn settings(&self) -> Guard<'_, Settings> {
        debug_assert!(!self.is_inherited(), "the lock may be held forever");
        lock(&self.settings)
    }

    /// The current bound of a magazine, in units of 512 B.
    pub(in crate::pool) fn bound_now(&self) -> u64 {
        self.bound.load(Ordering::Relaxed)
    }

    /// Changes the bound of all magazines. A magazine above the bound shrinks at its next use.
    pub(in crate::pool) fn bound_magazines(&self, units: u64) {
        self.bound.store(units, Ordering::Relaxed);
        self.thread_caches.change(|caches| {
            caches.set_bound(units);
            true
        });
    }

    pub(in crate::pool) fn context(&self) -> PoolContext<'_> {
        PoolContext { heap: &self.heap, map: &self.map, limit: self.group.limits.limit() }
    }

    pub(in crate::pool) fn heap(&self) -> Guard<'_, Heap> {
        debug_assert!(!self.is_inherited(), "the lock may be held forever");
        lock(&self.heap)
    }

    pub(in crate::pool) fn backing(&self) -> Guard<'_, Backing> {
        debug_assert!(!self.is_inherited(), "the lock may be held forever");
        lock(&self.backing)
    }

    /// Rounds a request; `None` for zero and for sizes above the largest block.
    pub(in crate::pool) fn round(&self, requested: Bytes) -> Option<Bytes> {
        if requested > LARGEST || requested.is_zero() {
            return None;
        }
        if self.exact {
            // Cannot overflow: the largest size is itself a multiple of 512.
            return Some(Bytes::new((requested.get() + 511) & !511));
        }
        self.classes.round(requested).ok().filter(|&size| size <= LARGEST)
    }

    /// The recorded events.
    pub(in crate::pool) fn history(&self) -> Vec<PoolEvent> {
        if self.is_inherited() {
            return Vec::new();
        }
        self.history.all(|| self.thread_events())
    }

    /// What is known of the origins of live blocks.
    pub(in crate::pool) fn origins(&self) -> Origins {
        self.history.origins(|| self.thread_events())
    }

    /// The events that threads have not handed over.
    fn thread_events(&self) -> Vec<ThreadEvents> {
        let mut of_threads = Vec::new();
        self.thread_caches.each(|caches| of_threads.extend(caches.events.as_deref().cloned()));
        of_threads
    }

    /// The live block at `address`, and its requested size.
    pub(in crate::pool) fn block_at(&self, address: Address) -> Option<(Block, Bytes)> {
        let known = self.map.slot(address)?.state_at(address).filter(|known| known.live())?;
        let (size, pool) = (known.size(), self.id);
        let block = Block { address, size, pool, generation: known.generation() };
        Some((block, Bytes::new(known.requested())))
    }

    /// All counts by stream, and the bytes in magazines, as of one moment. The caller holds the heap lock, so that no
    /// counts are on their way from a cache to the heap. The counts move to the heap, so that only threads that have used
    /// the pool since the last census are looked at.
    pub(in crate::pool) fn census(&self, heap: &mut Heap) -> (AllCounts, Bytes) {
        self.thread_caches.count_changed(|caches| {
            let more = caches.take_counts(|stream, counts| heap.counts.add(stream, &counts));
            heap.cached = heap.cached.wrapping_add(more);
        });
        (heap.counts.clone(), Bytes::new(heap.cached << UNIT_SHIFT))
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The address of a device object.
pub(in crate::pool) fn address_of(device: &Arc<dyn Device>) -> usize {
    Arc::as_ptr(device).cast::<()>().addr()
}

/// The growth policy: `given`, or one made from the settings.
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
