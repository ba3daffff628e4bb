//! The parts that all clones of a pool share, each with its own lock or atomics. Anything that needs several of them is
//! a function in `calls/`, where the lock order is visible.
//!
//! ```text
//!   PoolInner ── sizes     rounding                                     no lock
//!             ├─ front     thread caches behind gates                   gates; no lock on a hit
//!             ├─ map       the state of the block at an address         atomics
//!             ├─ heap      holes by stream order                        heap lock; front and backing take it themselves
//!             ├─ backing   pages, deferred work, the driver             backing lock, before the heap lock
//!             ├─ debug     checks                                       a lock for each
//!             ├─ group     the limit, shared with other pools           atomics
//!             ├─ settings  of this pool                                 settings lock
//!             ├─ history   events and observers; log: driver calls      history before the gates, log last
//!             └─ upkeep    pressure and ages                            upkeep lock
//! ```

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};

use forebay_core::address_space::Growth;
use forebay_core::pressure::Level;
use forebay_core::{Address, Bytes, PageSize};
use forebay_hal::{Call, Device, MemorySource};

use crate::callback::Callbacks;
use crate::config::Settings;
use crate::pool::backing::{Backing, PoolContext};
use crate::pool::common::backing_kind::BackingKind;
use crate::pool::common::capture::Captures;
use crate::pool::common::event::{History, Origins};
use crate::pool::common::group::Group;
use crate::pool::common::limits::HeldGauge;
use crate::pool::common::log::CallLog;
use crate::pool::common::options::PoolOptions;
use crate::pool::common::sizes::Sizes;
use crate::pool::common::upkeep_state::Upkeep;
use crate::pool::debug::{self, DebugChecks};
use crate::pool::front::{Front, Hits};
use crate::pool::heap::Heap;
use crate::pool::heap::all_counts::AllCounts;
use crate::pool::heap::seen_streams::SeeingPool;
use crate::pool::heap::thread_ends::ThreadEnds;
use crate::report::PoolEvent;
use crate::sync::fork::ForkGeneration;
use crate::sync::map::{AddressMap, Side, UNIT_SHIFT};
use crate::sync::tracked::{Guard, lock};
use crate::{Block, PoolId, Result};

/// All parts of a pool. Leaked in a forked child, where another thread may have left any part half changed.
pub(in crate::pool) struct PoolInner(pub(in crate::pool) ManuallyDrop<Parts>);

/// The parts of a pool. ARCHITECTURE.md lists its locks in the order in which they are taken.
pub(in crate::pool) struct Parts {
    pub(in crate::pool) id: PoolId,
    /// The process that made the pool.
    pub(in crate::pool) fork_generation: ForkGeneration,
    /// How many references the program has.
    pub(in crate::pool) users: AtomicUsize,
    /// What orders the work that uses the memory.
    pub(in crate::pool) device: Arc<dyn Device>,
    /// Where the memory comes from.
    pub(in crate::pool) source: Arc<dyn MemorySource>,
    pub(in crate::pool) settings: Mutex<Settings>,
    pub(in crate::pool) options: PoolOptions,
    pub(in crate::pool) upkeep: Mutex<Upkeep>,
    pub(in crate::pool) history: History,
    /// Calls the program's callbacks and counts their panics.
    pub(in crate::pool) callbacks: Callbacks,
    pub(in crate::pool) sizes: Sizes,
    pub(in crate::pool) front: Front,
    /// The limit and the pressure thresholds, and the figures of all pools that share them.
    pub(in crate::pool) group: Arc<Group>,
    /// Whether the limit is that of this pool's settings.
    pub(in crate::pool) leads_group: bool,
    /// Bytes held, for readers without the heap lock.
    pub(in crate::pool) held: HeldGauge,
    pub(in crate::pool) map: AddressMap,
    /// Shared with the stream slots, for callers without the heap lock.
    pub(in crate::pool) thread_ends: Arc<ThreadEnds>,
    pub(in crate::pool) heap: Arc<Mutex<Heap>>,
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

impl Deref for PoolInner {
    type Target = Parts;

    #[inline(always)]
    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl PoolInner {
    pub(in crate::pool) fn new(
        device: &Arc<dyn Device>,
        source: Arc<dyn MemorySource>,
        settings: Settings,
        mut options: PoolOptions,
    ) -> Result<Self> {
        device.descriptor().check_process(Call::Open)?;
        let growth = growth_of(&settings, options.growth);
        let device_total = source.memory_info()?.total;
        let log = CallLog::default();
        let guarded = settings.guard_pages();
        let (class, peers) = (options.class, &options.peers);
        let kind = BackingKind::new(
            device,
            Arc::clone(&source),
            class,
            peers,
            options.exportable,
            guarded,
        )?;
        let debug = DebugChecks::new(device, &settings, &log)?;
        let fresh = debug::fresh_page_pattern(&settings);
        let shared_group = options.group.take();
        let leads_group = shared_group.is_none();
        let group = shared_group.unwrap_or_default();
        let (backing, heap) = Backing::new(device, &kind, growth, fresh, &group, &log)?;
        let granule = heap.spaces.of(Side::Large).page_table().granule();
        if leads_group {
            group.limits.set(device_total, granule, &settings);
        }
        let id = PoolId::next();
        let (held, last_large) = (heap.ledger.held_gauge(), heap.spaces.last_large());
        let thread_ends = Arc::clone(&heap.slots.thread_ends);
        let (map, heap) = (AddressMap::new(id.0), Arc::new(Mutex::new(heap)));
        let front = Front::new(id, &map, &heap, last_large, magazine_units(&settings));
        let callbacks = Callbacks::default();
        let shared = Self(ManuallyDrop::new(Parts {
            id,
            fork_generation: ForkGeneration::here(),
            users: AtomicUsize::new(0),
            device: Arc::clone(device),
            source,
            sizes: Sizes::new(settings.size_classes()),
            front,
            history: History::new(id, &settings, options.observers.clone(), callbacks.clone()),
            upkeep: Mutex::default(),
            callbacks,
            group,
            leads_group,
            granule,
            held,
            settings: Mutex::new(settings),
            options,
            map,
            thread_ends,
            heap,
            captures: backing.captures.clone(),
            reclaiming: AtomicUsize::new(0),
            waiter: Arc::default(),
            device_total,
            backing: Mutex::new(backing),
            log,
            debug,
        }));
        let settings = shared.settings().clone();
        shared.set_hits(&settings);
        id.remember_name(&settings.name());
        Ok(shared)
    }

    /// Sets which calls may be hits, as `settings` demand.
    pub(in crate::pool) fn set_hits(&self, settings: &Settings) {
        let is_checked =
            settings.stacks() || self.history.is_observed() || debug::checks_calls(settings);
        self.front.set_hits(match (is_checked, settings.history() > 0) {
            (true, _) => Hits::None,
            (false, true) => Hits::Recorded,
            (false, false) => Hits::Plain,
        });
    }

    /// The pool as the list of seen streams names it. The address of a device object identifies the device: the pool keeps
    /// it alive.
    pub(in crate::pool) fn seeing(&self) -> SeeingPool {
        SeeingPool { id: self.id, device: address_of(&self.device) }
    }

    /// Whether this is a forked child and the pool is its parent's. Ask before taking a lock: it may be held forever.
    pub(in crate::pool) fn is_from_parent(&self) -> bool {
        self.fork_generation.is_stale()
    }

    pub(in crate::pool) fn settings(&self) -> Guard<'_, Settings> {
        debug_assert!(!self.is_from_parent(), "the lock may be held forever");
        lock(&self.settings)
    }

    pub(in crate::pool) fn context(&self) -> PoolContext<'_> {
        PoolContext { heap: &self.heap, map: &self.map, limit: self.group.limits.limit() }
    }

    pub(in crate::pool) fn heap(&self) -> Guard<'_, Heap> {
        debug_assert!(!self.is_from_parent(), "the lock may be held forever");
        lock(&self.heap)
    }

    pub(in crate::pool) fn backing(&self) -> Guard<'_, Backing> {
        debug_assert!(!self.is_from_parent(), "the lock may be held forever");
        lock(&self.backing)
    }

    pub(in crate::pool) fn upkeep(&self) -> Guard<'_, Upkeep> {
        debug_assert!(!self.is_from_parent(), "the lock may be held forever");
        lock(&self.upkeep)
    }

    /// How near the pool is to its limit.
    pub(in crate::pool) fn pressure(&self) -> Level {
        self.group.limits.thresholds().level(self.group.held())
    }

    /// The recorded events.
    pub(in crate::pool) fn history(&self) -> Vec<PoolEvent> {
        if self.is_from_parent() {
            return Vec::new();
        }
        self.history.all(|| self.front.all.events())
    }

    /// What is known of the origins of live blocks.
    pub(in crate::pool) fn origins(&self) -> Origins {
        self.history.origins(|| self.front.all.events())
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
        self.front.all.add_counts(heap);
        (heap.counts.clone(), Bytes::new(heap.cached << UNIT_SHIFT))
    }
}

impl fmt::Debug for PoolInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolInner").field("id", &self.id).finish_non_exhaustive()
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
