//! Events: each allocation, free and refusal of a pool. Off by default.
//!
//! ```text
//!   each thread    a batch behind its gate: events, and a stamp for at most 16 of them ──┐  a full one moves here
//!   the pool       batches: [1024] [1024] ...  the oldest is dropped  ◄──────────────────┘
//!   observers      called with each event; then every call takes the slow path
//! ```
//!
//! Reading the clock takes longer than all else on the fast path, so only every sixteenth event there does. Between
//! threads, block generations settle what the stamps leave open: no block is freed before it was allocated. All other
//! events of a thread stay in order.
//!
//! With call stacks every call takes the slow path, and the stack of an allocation is captured there, outside of gates and
//! locks. A free has none: the recordings and reports that stacks are for ask who owns memory. The origins of live blocks
//! are then kept for as long as the blocks live: weights are older than any history is long.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use crate::callback::Callbacks;
use crate::config::Settings;
use crate::pool::common::callback_guard::{Callback, CallbackGuard};
use crate::report::{EventAction, PoolEvent};
use crate::stack::{Capturing, Stack};
use crate::sync::{lock, thread_slot};
use crate::{PoolId, Tag};

/// Called with every event.
pub(in crate::pool) type Observer = Arc<dyn Fn(&PoolEvent) + Send + Sync>;

/// How many events a thread keeps before it hands them over, which takes a lock.
const BATCH: usize = 1024;

/// How many events of the fast path share a stamp at most; a power of two.
const STAMPED: usize = 16;

/// The processor's own counter, which takes one instruction to read; elsewhere nanoseconds. Threads agree on it.
#[inline(always)]
fn stamp() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // SAFETY: every x86-64 processor has the instruction, and the system's own clock reads it in this process too.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        static BEGUN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        // A fork while it is set would leave it half set in the child.
        static SETTING: crate::sync::fork::ForkSafeMutex<()> =
            crate::sync::fork::ForkSafeMutex::new(());
        let begun = BEGUN.get().unwrap_or_else(|| {
            let _setting = SETTING.lock();
            BEGUN.get_or_init(Instant::now)
        });
        u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The number of the calling thread: its slot, of which there are fewer than 32 bits hold.
fn this_thread() -> u32 {
    thread_slot::current().and_then(|slot| u32::try_from(slot).ok()).unwrap_or(u32::MAX)
}

/// What happened to which block. The rest of an event is in its batch.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct RawEvent {
    pub(in crate::pool) action: EventAction,
    pub(in crate::pool) address: Address,
    /// The generation of the block; 0 for a refusal.
    pub(in crate::pool) generation: u64,
    pub(in crate::pool) requested: Bytes,
    pub(in crate::pool) stream: StreamHandle,
    pub(in crate::pool) tag: Tag,
    /// Of the slow path alone, where the history captures it.
    pub(in crate::pool) stack: Stack,
}

impl RawEvent {
    fn at(self, time: Duration, thread: u32) -> PoolEvent {
        let Self { action, address, requested, stream, tag, stack, .. } = self;
        PoolEvent { time, action, address, requested, stream, tag, thread, stack }
    }
}

/// When a block was allocated, on which stream and from where.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Origin {
    pub(in crate::pool) generation: u64,
    stamp: u64,
    pub(in crate::pool) stream: StreamHandle,
    pub(in crate::pool) stack: Stack,
}

/// The origins of blocks by address, and the clock that tells their ages.
#[derive(Debug, Default)]
pub(in crate::pool) struct Origins {
    blocks: HashMap<Address, Origin>,
    clock: Clock,
}

impl Origins {
    /// The origin of the block of that generation at `address`, and its age.
    pub(in crate::pool) fn of(
        &self,
        address: Address,
        generation: u64,
    ) -> Option<(Origin, Duration)> {
        let origin = self.blocks.get(&address).filter(|origin| origin.generation == generation)?;
        let age = self.clock.now.saturating_sub(self.clock.time(origin.stamp));
        Some((*origin, age))
    }

    /// Keeps the origin of a block that an event allocated, unless a later block at its address is known.
    fn add(&mut self, stamp: u64, event: &RawEvent) {
        if event.action != EventAction::Allocate {
            return;
        }
        let RawEvent { generation, stream, stack, .. } = *event;
        let origin = Origin { generation, stamp, stream, stack };
        let known = self.blocks.entry(event.address).or_insert(origin);
        if known.generation <= generation {
            *known = origin;
        }
    }

    /// Forgets the block that an event freed. A later one at its address stays.
    fn remove(&mut self, event: &RawEvent) {
        let is_it = |origin: &Origin| origin.generation <= event.generation;
        if event.action == EventAction::Free && self.blocks.get(&event.address).is_some_and(is_it) {
            self.blocks.remove(&event.address);
        }
    }
}

/// Turns stamps into times since the history began: the counter runs at an even rate, which the clock shows.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    begun_stamp: u64,
    now: Duration,
    counted: u64,
}

impl Clock {
    fn time(&self, stamp: u64) -> Duration {
        let since = u128::from(stamp.saturating_sub(self.begun_stamp));
        let nanos = since.saturating_mul(self.now.as_nanos()) / u128::from(self.counted.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Events of one thread, in order.
#[derive(Clone, Debug, Default)]
pub(in crate::pool) struct ThreadEvents {
    events: Vec<RawEvent>,
    /// Stamps, each with the number of the first event that has it.
    stamps: Vec<(usize, u64)>,
    thread: u32,
}

impl ThreadEvents {
    /// Whether there is room for another event of the fast path.
    #[inline(always)]
    pub(in crate::pool) fn has_room(&mut self) -> bool {
        // A batch is full at such a number too, so one comparison does.
        !self.events.len().is_multiple_of(STAMPED) || self.begin_stamped()
    }

    #[cold]
    #[inline(never)]
    fn begin_stamped(&mut self) -> bool {
        let has_room = self.events.len() < self.events.capacity();
        if has_room {
            self.stamp();
        }
        has_room
    }

    /// Adds an event of the fast path, for which there is room.
    #[inline(always)]
    pub(in crate::pool) fn push(&mut self, event: RawEvent) {
        self.events.push(event);
    }

    /// Stamps the events from the next on.
    fn stamp(&mut self) {
        let (next, stamp) = (self.events.len(), stamp());
        match self.stamps.last_mut().filter(|(first, _)| *first == next) {
            Some((_, last)) => *last = stamp,
            None => self.stamps.push((next, stamp)),
        }
    }

    /// Makes room for a batch of this thread, and returns the events so far.
    pub(in crate::pool) fn begin_batch(&mut self) -> Self {
        let events = Vec::with_capacity(BATCH);
        core::mem::replace(self, Self { events, stamps: Vec::new(), thread: this_thread() })
    }

    /// The events with their stamps and the thread.
    fn all(&self) -> impl Iterator<Item = (u64, RawEvent, u32)> {
        let mut stamps = self.stamps.iter().peekable();
        let mut stamp = 0;
        self.events.iter().enumerate().map(move |(number, &event)| {
            while let Some(&(_, next)) = stamps.next_if(|&&(first, _)| first <= number) {
                stamp = next;
            }
            (stamp, event, self.thread)
        })
    }
}

/// The last events, as many as the setting `history` keeps, and the observers that are called with each.
pub(in crate::pool) struct History {
    pub(in crate::pool) begun: Instant,
    begun_stamp: u64,
    events: Mutex<Events>,
    callbacks: Callbacks,
    pool: PoolId,
}

struct Events {
    batches: VecDeque<ThreadEvents>,
    kept: usize,
    most: usize,
    /// While stacks are captured.
    stacks: Option<Capturing>,
    /// Of live blocks that were allocated while stacks were captured.
    origins: Origins,
    /// Replaced as a whole on change, so that each event reaches exactly the observers attached when it was recorded.
    observers: Arc<Vec<Arc<Attached>>>,
}

/// Once a new observer is this many events behind, threads wait after each of theirs until it has caught up.
const LONG_BACKLOG: usize = 4096;
/// An observer that does not advance for this long may be waiting for the thread that waits for it.
const BACKLOG_PAUSE: Duration = Duration::from_millis(10);
/// How many events then pass without a pause. Too few, and a thread that the observer waits for takes a pause for each
/// event; too many, and an observer that a busy machine held up has more to hear after each pause than before it.
const STUCK_EVENTS: u32 = 128;

/// The events that a new observer is still to be told, after those of the blocks that were live when it came.
#[derive(Default)]
struct Backlog {
    events: Vec<PoolEvent>,
    /// Whether it ever was long: faster threads would fill it again and again.
    is_long: bool,
    /// How often a thread waited in vain.
    pauses: u64,
    /// The value of `told` at the last such pause, and how many events may still pass at that value.
    stuck: (u64, u32),
}

pub(in crate::pool) struct Attached {
    observer: Observer,
    /// `None` once it is told of each event immediately.
    backlog: Mutex<Option<Backlog>>,
    /// How many events it was told of before it caught up.
    told: AtomicU64,
    caught_up: Condvar,
}

impl Attached {
    fn new(observer: Observer, backlog: Option<Backlog>) -> Arc<Self> {
        let (told, caught_up) = (AtomicU64::new(0), Condvar::new());
        Arc::new(Self { observer, backlog: Mutex::new(backlog), told, caught_up })
    }

    fn tell(&self, event: &PoolEvent, callbacks: &Callbacks) {
        let mut guard = lock(&self.backlog);
        let Some(backlog) = &mut *guard else {
            drop(guard);
            callbacks.call(|| (self.observer)(event));
            return;
        };
        backlog.events.push(*event);
        backlog.is_long |= backlog.events.len() > LONG_BACKLOG;
        if !backlog.is_long {
            return;
        }
        // For as long as it advances: with many threads, one pause for each event would still be too many events.
        while let Some(backlog) = &mut *guard {
            let (told, pauses) = (self.told.load(Ordering::Relaxed), backlog.pauses);
            if let (at, left @ 1..) = backlog.stuck
                && at == told
            {
                backlog.stuck = (told, left - 1);
                return;
            }
            let waited = self.caught_up.wait_timeout(guard, BACKLOG_PAUSE);
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
            if self.told.load(Ordering::Relaxed) != told {
                continue;
            }
            // Of the threads that waited together, one lets further events pass.
            if let Some(backlog) = guard.as_mut().filter(|backlog| backlog.pauses == pauses) {
                backlog.pauses += 1;
                backlog.stuck = (told, STUCK_EVENTS);
            }
            return;
        }
    }

    /// Tells it of an event before it has caught up.
    fn tell_early(&self, event: &PoolEvent, callbacks: &Callbacks) {
        callbacks.call(|| (self.observer)(event));
        self.told.fetch_add(1, Ordering::Relaxed);
    }

    /// The events since the last call; `None` if there are none, and it is told each at once from now on.
    fn next_events(&self) -> Option<Vec<PoolEvent>> {
        let mut guard = lock(&self.backlog);
        let events = core::mem::take(&mut guard.as_mut()?.events);
        if events.is_empty() {
            *guard = None;
            self.caught_up.notify_all();
            return None;
        }
        Some(events)
    }
}

impl Events {
    /// Adds events that one thread has recorded, and drops old ones that are too many.
    fn add(&mut self, batch: ThreadEvents) {
        if self.most == 0 {
            return;
        }
        self.kept += batch.events.len();
        self.batches.push_back(batch);
        self.drop_oldest();
    }

    fn drop_oldest(&mut self) {
        while let Some(oldest) = self.batches.front()
            && self.kept - oldest.events.len() >= self.most
        {
            self.kept -= oldest.events.len();
            self.batches.pop_front();
        }
    }
}

impl History {
    pub(in crate::pool) fn new(
        pool: PoolId,
        settings: &Settings,
        observers: Vec<Observer>,
        callbacks: Callbacks,
    ) -> Self {
        let observers = observers.into_iter().map(|observer| Attached::new(observer, None));
        let observers = Arc::new(observers.collect());
        let (batches, origins) = (VecDeque::new(), Origins::default());
        let events = Events { batches, kept: 0, most: 0, stacks: None, origins, observers };
        let (begun, begun_stamp) = (Instant::now(), stamp());
        let history = Self { begun, begun_stamp, events: Mutex::new(events), callbacks, pool };
        history.set(settings);
        history
    }

    pub(in crate::pool) fn is_observed(&self) -> bool {
        !self.events().observers.is_empty()
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        lock(&self.events)
    }

    /// Sets how many events are kept, and whether stacks are captured.
    pub(in crate::pool) fn set(&self, settings: &Settings) {
        let mut events = self.events();
        events.most = usize::try_from(settings.history()).unwrap_or(usize::MAX);
        events.drop_oldest();
        if settings.stacks() != events.stacks.is_some() {
            events.stacks = settings.stacks().then(Capturing::begin);
        }
        if events.stacks.is_none() {
            events.origins = Origins::default();
        }
    }

    pub(in crate::pool) fn add(&self, batch: ThreadEvents) {
        self.events().add(batch);
    }

    /// Adds an event to those of the calling thread, to which `of_thread` gives exclusive access; `None` for a thread
    /// that has none. Then calls the observers with it. The caller holds no lock, for the observers' sake and because
    /// capturing a stack takes long.
    pub(in crate::pool) fn note(
        &self,
        mut event: RawEvent,
        of_thread: impl FnOnce(&mut dyn FnMut(&mut ThreadEvents)) -> Option<()>,
    ) {
        let (most, observers, stacks) = {
            let events = self.events();
            (events.most, Arc::clone(&events.observers), events.stacks.is_some())
        };
        if stacks {
            self.note_origin(&mut event);
        }
        if most > 0 {
            let mut full = None;
            let mut push = |events: &mut ThreadEvents| {
                if events.events.len() == events.events.capacity() {
                    full = Some(events.begin_batch());
                }
                events.stamp();
                events.push(event);
            };
            if of_thread(&mut push).is_none() {
                let mut own = ThreadEvents { thread: this_thread(), ..ThreadEvents::default() };
                own.stamp();
                own.push(event);
                full = Some(own);
            }
            if let Some(full) = full {
                self.add(full);
            }
        }
        if observers.is_empty() {
            return;
        }
        // An observer may use the pool. It is not told what it does there, which would have no end.
        let Some(_telling) = CallbackGuard::begin(self.pool, Callback::Observer) else { return };
        let event = event.at(self.begun.elapsed(), this_thread());
        observers.iter().for_each(|observer| observer.tell(&event, &self.callbacks));
    }

    /// Captures the stack of an event, and keeps or forgets the origin of its block.
    fn note_origin(&self, event: &mut RawEvent) {
        if event.action != EventAction::Free {
            event.stack = Stack::capture();
        }
        let mut events = self.events();
        // They may have been switched off meanwhile.
        if events.stacks.is_some() {
            events.origins.remove(event);
            events.origins.add(stamp(), event);
        }
    }

    /// Adds an observer of every event from now on. Returns it with the `live` blocks, for
    /// [`catch_up`](Self::catch_up). The lock is held meanwhile, so that an event of another thread is either before
    /// these or in the backlog.
    pub(in crate::pool) fn attach(
        &self,
        observer: Observer,
        live: impl FnOnce() -> Vec<(Address, Bytes, Tag)>,
    ) -> (Arc<Attached>, Vec<(Address, Bytes, Tag)>) {
        let attached = Attached::new(observer, Some(Backlog::default()));
        let mut events = self.events();
        Arc::make_mut(&mut events.observers).push(Arc::clone(&attached));
        (attached, live())
    }

    /// Tells a new observer of an allocation for each of `live`, then what other threads did meanwhile. The caller holds
    /// no lock: the observer may use the pool.
    pub(in crate::pool) fn catch_up(&self, attached: &Attached, live: Vec<(Address, Bytes, Tag)>) {
        // Within another observer of the pool, that one's guard does.
        let _telling = CallbackGuard::begin(self.pool, Callback::Observer);
        for (address, requested, tag) in live {
            let (action, stream) = (EventAction::Allocate, StreamHandle::DEFAULT);
            let stack = Stack::NONE;
            let event = RawEvent { action, address, generation: 0, requested, stream, tag, stack };
            let event = event.at(self.begun.elapsed(), this_thread());
            attached.tell_early(&event, &self.callbacks);
        }
        while let Some(events) = attached.next_events() {
            events.iter().for_each(|event| attached.tell_early(event, &self.callbacks));
        }
    }

    pub(in crate::pool) fn detach(&self, attached: &Arc<Attached>) {
        let mut events = self.events();
        Arc::make_mut(&mut events.observers).retain(|other| !Arc::ptr_eq(other, attached));
    }

    fn clock(&self) -> Clock {
        let counted = stamp().saturating_sub(self.begun_stamp);
        Clock { begun_stamp: self.begun_stamp, now: self.begun.elapsed(), counted }
    }

    /// What is known of the origins of live blocks: from the events that are kept, with those of `of_threads`, and of all
    /// blocks that were allocated while stacks were captured.
    pub(in crate::pool) fn origins(
        &self,
        of_threads: impl FnOnce() -> Vec<ThreadEvents>,
    ) -> Origins {
        let events = self.events();
        let of_threads = if events.most > 0 { of_threads() } else { Vec::new() };
        let blocks = events.origins.blocks.clone();
        let mut origins = Origins { blocks, clock: self.clock() };
        for (stamp, event, _) in
            events.batches.iter().chain(&of_threads).flat_map(ThreadEvents::all)
        {
            origins.add(stamp, &event);
        }
        origins
    }

    /// The events that are kept, with those of `of_threads` that are not handed over, oldest first.
    pub(in crate::pool) fn all(
        &self,
        of_threads: impl FnOnce() -> Vec<ThreadEvents>,
    ) -> Vec<PoolEvent> {
        let (mut all, most) = {
            let events = self.events();
            // Under the lock, so that none is handed over meanwhile and is there twice.
            let of_threads = of_threads();
            let batches = events.batches.iter().chain(&of_threads);
            (batches.flat_map(ThreadEvents::all).collect::<Vec<_>>(), events.most)
        };
        put_right(&mut all);
        // Stable: events of one thread that share a stamp stay in order.
        all.sort_by_key(|&(stamp, ..)| stamp);
        let first = all.len().saturating_sub(most);
        let clock = self.clock();
        all.into_iter()
            .skip(first)
            .map(|(stamp, event, thread)| event.at(clock.time(stamp), thread))
            .collect()
    }
}

/// Reorders events of one address that different threads have stamped in the wrong order: a generation is allocated,
/// then freed, then comes the next.
fn put_right(all: &mut [(u64, RawEvent, u32)]) {
    let order = |(_, event, _): &(u64, RawEvent, u32)| {
        (event.address, event.generation, event.action == EventAction::Free)
    };
    let mut by_address: Vec<usize> = (0..all.len()).collect();
    by_address.sort_by_key(|&index| all.get(index).map(order));
    let mut last: Option<(Address, u64, u32)> = None;
    for index in by_address {
        let Some((stamp, event, thread)) = all.get_mut(index) else { continue };
        if let Some((address, before, by)) = last
            && address == event.address
            && !address.is_null()
            && (*stamp < before || *stamp == before && *thread != by)
        {
            *stamp = before.saturating_add(1);
        }
        last = Some((event.address, *stamp, *thread));
    }
}
