//! The machine behind the simulated devices: one state, one scheduler, one checker for all of them.
//!
//! ```text
//!   call ── enter: count, lost?, fault? ── check arguments ── enqueue ──> lane (a stream's queue)
//!                                                               │            │
//!                                        checker: who happens before whom    │  late: only while a
//!                                        cost model: when it would end       │  thread synchronises
//!                                                                            v  or queries
//!                                                 pick (by seed, among those that events allow), run
//! ```

mod lane;
mod own;
mod run;
mod space;
mod store;
mod work;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use forebay_core::{Address, Bytes, DeviceOrdinal, Random, Serial, Span, StreamId};
use forebay_hal::address_book::{Entry, Figures};
use forebay_hal::{
    Call, Capabilities, Error, EventHandle, MemoryInfo, Priority, Result, StreamHandle, invalid,
};
use forebay_sync::fork::ForkGeneration;

pub(crate) use self::lane::{EventState, Lane, LaneState, Point, Reach};
pub(crate) use self::space::{Block, PageRun, PageStore, Region, Space, Wire};
pub(crate) use self::store::{Store, system_refused};
pub(crate) use self::work::{CopyEnd, CopyPiece, Work};
use crate::checker::{Actor, Checker, OverlapRule, Removal, Shadow, Uses};
use crate::clock::{ClockSlot, VectorClock};
use crate::cost::CostModel;
use crate::fault::{FaultKind, Faults};
use crate::finding::{Effect, Operation};
use crate::machine::{CallCounts, SimOptions};

const PER_THREAD_STREAMS: Capabilities = Capabilities::PER_THREAD_STREAMS;

/// How much host memory the checker remembers before it forgets what is past.
const HOST_CELLS: usize = 4096;

/// Whether a device answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// It does.
    Well,
    /// It is lost, until the machine is gone.
    Lost,
}

/// Everything there is, under one lock.
pub(crate) struct State {
    pub(crate) options: SimOptions,
    pub(crate) spaces: Vec<Space>,
    pub(crate) health: Vec<Health>,
    pub(crate) lanes: BTreeMap<StreamId, Lane>,
    /// Which of them can run.
    schedule: lane::Schedule,
    pub(crate) handles: BTreeMap<(DeviceOrdinal, StreamHandle), StreamId>,
    /// Streams made outside the contract, by the value their maker knows them by.
    pub(crate) foreign: BTreeMap<(DeviceOrdinal, u64), StreamId>,
    /// How often each of them was adopted. By value alone, as a driver has it: a value that comes
    /// back names the new stream.
    pub(crate) adopted: BTreeMap<(DeviceOrdinal, StreamHandle), u64>,
    /// Threads' default streams, each made when its thread first names it.
    pub(crate) own: own::OwnStreams,
    /// Values of foreign streams that are gone, to be given out again where that is asked for.
    pub(crate) spare_foreign: Vec<u64>,
    /// Handles of destroyed streams, to be given out again where that is asked for.
    pub(crate) spare_handles: Vec<StreamHandle>,
    pub(crate) events: BTreeMap<EventHandle, EventState>,
    /// What the host has seen the end of.
    pub(crate) host: VectorClock,
    /// The host's place on the simulation's clock, and the part of it spent in calls.
    pub(crate) host_time: Duration,
    pub(crate) driver_time: Duration,
    pub(crate) counts: CallCounts,
    pub(crate) checker: Checker,
    pub(crate) serial: Serial,
    /// Which device was let at which.
    pub(crate) peers: BTreeSet<(DeviceOrdinal, DeviceOrdinal)>,
    faults: Faults,
    random: Random,
    /// What was done to host memory that no device knows, by address.
    host_shadow: Shadow,
    slots: usize,
    /// Places in the clocks that streams of a device have left, and how much work they had.
    retired: Vec<(ClockSlot, u64, DeviceOrdinal)>,
    operations: u64,
    /// Host functions running now, on threads of their own.
    tasks: usize,
    /// Whether a thread is running a piece of work now, with the lock let go.
    running: bool,
    /// Work of lost devices, to be ended where no lock is held: what it drops may call us.
    leftovers: Vec<VecDeque<Work>>,
}

/// The state and its lock.
pub(crate) struct Engine {
    state: Mutex<State>,
    /// Told whenever a host function ends.
    changed: Condvar,
    /// The process that made it.
    fork_generation: ForkGeneration,
}

/// What an operation does, for the checker and the clock.
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) manner: OverlapRule,
    /// The wire it goes over, if it does.
    pub(crate) wire: Option<Wire>,
    pub(crate) uses: Vec<(Effect, DeviceOrdinal, PageRun)>,
    pub(crate) host_uses: Vec<(Effect, Span)>,
    pub(crate) duration: Duration,
}

impl Job {
    /// One that touches nothing and takes no time.
    pub(crate) fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            manner: OverlapRule::Moves,
            wire: None,
            uses: Vec::new(),
            host_uses: Vec::new(),
            duration: Duration::ZERO,
        }
    }
}

impl Engine {
    pub(crate) fn new(options: SimOptions) -> Self {
        let count = options.devices;
        let seed = options.seed;
        let mut state = State {
            options,
            spaces: Vec::new(),
            health: Vec::new(),
            lanes: BTreeMap::new(),
            schedule: lane::Schedule::default(),
            handles: BTreeMap::new(),
            foreign: BTreeMap::new(),
            adopted: BTreeMap::new(),
            own: own::OwnStreams::default(),
            spare_foreign: Vec::new(),
            spare_handles: Vec::new(),
            events: BTreeMap::new(),
            host: VectorClock::default(),
            host_time: Duration::ZERO,
            driver_time: Duration::ZERO,
            counts: CallCounts::default(),
            checker: Checker::default(),
            serial: Serial::default(),
            peers: BTreeSet::new(),
            faults: Faults::new(seed),
            random: Random::new(seed),
            host_shadow: Shadow::default(),
            slots: 0,
            retired: Vec::new(),
            operations: 0,
            tasks: 0,
            running: false,
            leftovers: Vec::new(),
        };
        for ordinal in (0..count).map(DeviceOrdinal) {
            state.spaces.push(Space::new(ordinal));
            state.health.push(Health::Well);
            let stream = state.add_lane(ordinal, Priority::Normal);
            state.handles.insert((ordinal, StreamHandle::DEFAULT), stream);
        }
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            fork_generation: ForkGeneration::here(),
        }
    }

    /// The state. A thread that panicked while it held the lock was running a kernel's body, which
    /// leaves the state whole.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call: counts it, and fails it where the device is lost or a fault strikes.
    pub(crate) fn enter(
        &self,
        device: DeviceOrdinal,
        call: Call,
        requested: Bytes,
    ) -> Result<MutexGuard<'_, State>> {
        let mut state = self.lock();
        let begun = state.begin(device, call, requested);
        if begun.is_err() {
            drop(state);
            self.settle();
            return begun.map(|()| self.lock());
        }
        Ok(state)
    }

    /// Begins a call that gives something back: on a lost device it still does its work, so that
    /// nothing leaks, and then reports the loss.
    pub(crate) fn enter_release(
        &self,
        device: DeviceOrdinal,
        call: Call,
    ) -> Result<(MutexGuard<'_, State>, Result<()>)> {
        let mut state = self.lock();
        match state.begin(device, call, Bytes::ZERO) {
            Ok(()) => Ok((state, Ok(()))),
            Err(lost @ Error::Lost { .. }) => {
                drop(state);
                self.settle();
                Ok((self.lock(), Err(lost)))
            }
            Err(other) => Err(other),
        }
    }
}

impl State {
    fn begin(&mut self, device: DeviceOrdinal, call: Call, requested: Bytes) -> Result<()> {
        let (number, of_kind) = self.counts.count(call);
        if self.health.get(device.0 as usize) == Some(&Health::Lost) {
            return Err(lost(call));
        }
        match self.faults.strike(call, number, of_kind) {
            None => Ok(()),
            Some(FaultKind::OutOfMemory) => Err(self.out_of_memory(device, call, requested)),
            Some(FaultKind::Transient) => {
                let reason = format!("a planned fault struck call {number}");
                Err(Error::Transient { call, reason: reason.into() })
            }
            Some(FaultKind::Lost) => {
                self.lose(device);
                Err(lost(call))
            }
        }
    }

    pub(crate) fn faults(&mut self) -> &mut Faults {
        &mut self.faults
    }

    /// The space of a device of this machine.
    pub(crate) fn space(&mut self, call: Call, device: DeviceOrdinal) -> Result<&mut Space> {
        let count = self.spaces.len();
        self.spaces.get_mut(device.0 as usize).ok_or_else(|| unknown_device(call, device, count))
    }

    pub(crate) fn memory_info(&self, device: DeviceOrdinal) -> MemoryInfo {
        let space = self.spaces.get(device.0 as usize);
        let Figures { held, managed, .. } = space.map(|space| space.figures).unwrap_or_default();
        let total = self.options.capacity;
        let free = total.saturating_sub(held).saturating_sub(managed);
        MemoryInfo { total, free, held, managed }
    }

    pub(crate) fn out_of_memory(
        &self,
        device: DeviceOrdinal,
        call: Call,
        requested: Bytes,
    ) -> Error {
        self.memory_info(device).out_of_memory(call, requested)
    }

    /// Refuses what the device has no room for.
    pub(crate) fn room(&self, device: DeviceOrdinal, call: Call, size: Bytes) -> Result<()> {
        if size > self.memory_info(device).free {
            return Err(self.out_of_memory(device, call, size));
        }
        Ok(())
    }

    /// Charges the host's clock for a call.
    pub(crate) fn charge(&mut self, call: Call, size: Bytes) {
        let cost = self.options.costs.call(call, size);
        self.driver_time = self.driver_time.saturating_add(cost);
        self.host_time = self.host_time.saturating_add(cost);
    }

    /// Lets the host's clock wait for all work of a device, as the drivers' frees do.
    pub(crate) fn charge_wait(&mut self, device: DeviceOrdinal) {
        if self.options.costs == CostModel::Free {
            return;
        }
        let space = self.spaces.get(device.0 as usize);
        let last = space.map_or(Duration::ZERO, |space| space.busy_until);
        self.driver_time = self.driver_time.saturating_add(last.saturating_sub(self.host_time));
        self.host_time = self.host_time.max(last);
    }

    pub(crate) fn costs(&self) -> CostModel {
        self.options.costs
    }

    /// A new stream of `device`.
    pub(crate) fn add_lane(&mut self, device: DeviceOrdinal, priority: Priority) -> StreamId {
        let id = StreamId(self.serial.take());
        let lane = Lane {
            device,
            slot: self.take_slot(),
            priority,
            state: LaneState::Open,
            clock: self.host.clone(),
            queue: VecDeque::new(),
            enqueued: 0,
            done: 0,
            busy: false,
            lost_from: None,
            time: self.host_time,
            ready_at: None,
        };
        self.lanes.insert(id, lane);
        id
    }

    /// The stream behind a handle of `device`.
    pub(crate) fn stream(
        &mut self,
        call: Call,
        device: DeviceOrdinal,
        handle: StreamHandle,
    ) -> Result<StreamId> {
        if handle.is_per_thread() && !self.options.without.contains(PER_THREAD_STREAMS) {
            return self.own_stream(call, device, handle);
        }
        let own = self.handles.get(&(device, handle));
        let adopted = self.adopted.get(&(device, handle));
        let adopted = adopted.and_then(|_| self.foreign.get(&(device, handle.0)));
        own.or(adopted).copied().ok_or_else(|| {
            invalid(call, "stream", handle, "a live stream of this device, or the default one")
        })
    }

    /// The event behind a handle.
    pub(crate) fn event(&mut self, call: Call, handle: EventHandle) -> Result<&mut EventState> {
        self.events
            .get_mut(&handle)
            .ok_or_else(|| invalid(call, "event", handle, "a live event of this machine"))
    }

    /// Puts an operation on a stream: tells the checker, moves the clock, queues the work.
    pub(crate) fn enqueue(&mut self, stream: StreamId, job: Job, work: Work) {
        let Some(lane) = self.lanes.get_mut(&stream) else { return };
        lane.clock.join(&self.host);
        let Some(space) = self.spaces.get_mut(lane.device.0 as usize) else { return };
        let wire = job.wire.map(|wire| space.wires.entry(wire).or_default());
        let start = lane.time.max(self.host_time).max(wire.as_deref().copied().unwrap_or_default());
        lane.time = start.saturating_add(job.duration);
        if let Some(wire) = wire {
            *wire = lane.time;
        }
        space.busy_until = space.busy_until.max(lane.time);
        lane.push(work);
        // Behind other work it changes nothing for the scheduler.
        if lane.queue.len() == 1 {
            self.update_ready(stream);
        }
        if job.uses.is_empty() && job.host_uses.is_empty() || !self.options.checked {
            return;
        }
        let Some(lane) = self.lanes.get_mut(&stream) else { return };
        self.operations += 1;
        let number = lane.clock.advance(lane.slot);
        let (clock, slot, device) = (lane.clock.clone(), lane.slot, lane.device);
        let operation = Operation { number: self.operations, name: job.name, device, stream };
        let actor = Actor { operation: operation.into(), slot, number, manner: job.manner };
        self.note(&job.uses, &job.host_uses, &actor, &clock);
    }

    fn note(
        &mut self,
        uses: &[(Effect, DeviceOrdinal, PageRun)],
        host_uses: &[(Effect, Span)],
        actor: &Actor,
        clock: &VectorClock,
    ) {
        // Reads first: an operation that writes what it reads is then seen by its own reads.
        for wanted in [Effect::Reads, Effect::Writes] {
            for (effect, device, piece) in uses.iter().filter(|(effect, ..)| *effect == wanted) {
                let space = self.spaces.get_mut(device.0 as usize);
                if let Some(uses) = space.and_then(|space| space.uses_at(piece.at)) {
                    uses.note(*effect, actor);
                }
                let start = piece.offset.get();
                let bytes = (start, start.saturating_add(piece.size.get()));
                let touch = (actor, piece.through());
                self.checker.touch(&mut piece.store.shadow(), bytes, *effect, touch, clock);
            }
            for (effect, span) in host_uses.iter().filter(|(effect, _)| *effect == wanted) {
                let bytes = (span.start().get(), span.end().get());
                let touch = (actor, Address::NULL);
                self.checker.touch(&mut self.host_shadow, bytes, *effect, touch, clock);
                if self.host_shadow.len() > HOST_CELLS {
                    self.host_shadow.forget(&self.host);
                }
            }
        }
    }

    /// Tells the checker that `call` takes something away.
    pub(crate) fn check_taken(&mut self, call: Call, span: Span, taken: Removal, uses: &Uses) {
        self.checker.take(call, (span, taken), uses, &self.host);
    }

    /// The host has seen the end of everything before `point`.
    pub(crate) fn saw(&mut self, point: &Point) {
        self.host.join(&point.clock);
        self.host_time = self.host_time.max(point.time);
    }

    /// The host has seen the end of all work of a device, that of streams long gone included.
    pub(crate) fn saw_all(&mut self, device: DeviceOrdinal) {
        for &(slot, number, _) in self.retired.iter().filter(|(.., of)| *of == device) {
            self.host.raise(slot, number);
        }
        self.forget_past();
    }

    /// What the host has seen the end of the checker need not remember.
    fn forget_past(&mut self) {
        self.host_shadow.forget(&self.host);
        for space in &self.spaces {
            let blocks = space.book.entries().filter_map(Entry::memory);
            let blocks = blocks.map(|memory| &memory.owner.store);
            for store in blocks.chain(space.book.pages().map(|page| &page.owner.store)) {
                store.shadow().forget(&self.host);
            }
        }
    }
}

/// The error of every call on a lost device.
pub(crate) fn lost(call: Call) -> Error {
    Error::Lost { call, reason: "the simulated device was lost by a planned fault".into() }
}

/// The error for an ordinal that names no device of the machine.
pub(crate) fn unknown_device(call: Call, device: DeviceOrdinal, count: usize) -> Error {
    invalid(call, "device", device, format!("0 to {}", count.saturating_sub(1)))
}
