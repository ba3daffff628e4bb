//! The engine: a device, a ring of pinned memory per direction, and the transfers.
//!
//! One lock guards the state. No copy, device call or code of the program runs under it.

use core::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use forebay_core::Bytes;
use forebay_core::transfer::Backoff;
use forebay_hal::{
    self as hal, Capabilities, Device, Event, EventKind, Priority, Stream, StreamHandle, ToDevice,
};

use super::compressed::Decoder;
use super::job::{Direction, JobId};
use super::options::TransferOptions;
use super::state::{Kept, State};
use super::statistics::{TransferEvent, TransferStatistics};
use crate::bulk;
use crate::callback::Callbacks;
use crate::monitor::{Part, ProcessEngine, ProcessSnapshot, provide};
use crate::pinned::{PinnedArray, PinnedOptions, PinnedPool};
use crate::sync::fork::PerProcess;
use crate::sync::lock;
use crate::{Error, Result, Tag};

/// Streams per direction. Transfers use them in turn, so that one transfer waiting for its array's stream does not hold
/// up the device's copies of all others.
const STREAMS: usize = 4;

/// Retries of a wait that must succeed before memory can be released.
const SETTLE_RETRIES: u32 = 400;

/// Copies between host memory and the memory of one device. Clones share the engine.
///
/// See the [module's documentation](super).
#[derive(Clone, Debug)]
pub struct TransferEngine {
    pub(super) engine: Arc<Engine>,
}

pub(super) struct Engine {
    pub(super) device: Arc<dyn Device>,
    pub(super) options: TransferOptions,
    pub(super) pinned: PinnedPool,
    streams: [Vec<Stream>; 2],
    state: Mutex<State>,
    /// Signals work for a thread of the engine.
    pub(super) work: Condvar,
    /// Signals a change of a part, a slot or a transfer to threads of the program that wait for a transfer.
    pub(super) changed: Condvar,
    pub(super) callbacks: Callbacks,
    /// The decoder for compressed data, once calibrated.
    pub(super) decoder: Mutex<Option<Decoder>>,
}

impl TransferOptions {
    /// Builds an engine, through which this device's arrays copy a megabyte and more. Pins nothing and starts no thread
    /// yet. Fails with [`Unsupported`](forebay_hal::Error::Unsupported) if `device` cannot pin host memory.
    pub fn build(self, device: &impl ToDevice) -> Result<TransferEngine> {
        let device = device.to_device();
        // Beyond the slots, allow for what the pool loses between them.
        let most = self.max_pinned().saturating_add(self.chunk).saturating_add(Bytes::mib(4));
        let pinned = PinnedOptions::new().max_bytes(most).build(&device)?;
        let engine = self.build_over(&device, pinned)?;
        show(&engine.engine);
        // If the host sees the device's memory, arrays copy directly.
        if !device.descriptor().capabilities.contains(Capabilities::HOST_VISIBLE) {
            let known: Weak<Engine> = Arc::downgrade(&engine.engine);
            bulk::enter(&device, known);
        }
        Ok(engine)
    }

    /// Builds an engine with slots from `pinned`.
    pub(super) fn build_over(
        self,
        device: &Arc<dyn Device>,
        pinned: PinnedPool,
    ) -> Result<TransferEngine> {
        let device = Arc::clone(device);
        let stream = |_| Ok(Stream::new(&device, Priority::Normal)?);
        let streams = || (0..STREAMS).map(stream).collect::<Result<Vec<_>>>();
        let streams = [streams()?, streams()?];
        let state = Mutex::new(State::new(self.at_once, self.slots_in_use(), self.history));
        let engine = Engine {
            device,
            options: self,
            pinned,
            streams,
            state,
            work: Condvar::new(),
            changed: Condvar::new(),
            callbacks: Callbacks::default(),
            decoder: Mutex::default(),
        };
        Ok(TransferEngine { engine: Arc::new(engine) })
    }
}

impl TransferEngine {
    /// Makes an engine with the [options for the device](TransferOptions::for_device).
    pub fn new(device: &impl ToDevice) -> Result<Self> {
        TransferOptions::for_device(device)?.build(device)
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.engine.device
    }

    /// The options.
    pub fn options(&self) -> &TransferOptions {
        &self.engine.options
    }

    /// The most recently finished transfers, oldest first, as many as [`TransferOptions::history`] keeps. Empty in a
    /// forked child.
    pub fn history(&self) -> Vec<TransferEvent> {
        if self.engine.device.descriptor().is_from_parent() {
            return Vec::new();
        }
        self.engine.state().history.iter().copied().collect()
    }

    /// Statistics of the engine. All zero in a forked child.
    pub fn statistics(&self) -> TransferStatistics {
        if self.engine.device.descriptor().is_from_parent() {
            return TransferStatistics::default();
        }
        let state = self.engine.state();
        let slots = (state.up.made + state.down.made) as u64;
        TransferStatistics {
            uploads: state.up.statistics(),
            downloads: state.down.statistics(),
            under_way: state.up.running + state.down.running,
            pinned: Bytes::new(slots.saturating_mul(self.engine.options.chunk.get())),
        }
    }
}

impl Engine {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The stream of a transfer.
    pub(super) fn stream(&self, direction: Direction, id: JobId) -> StreamHandle {
        let [up, down] = &self.streams;
        let streams = match direction {
            Direction::Up => up,
            Direction::Down => down,
        };
        let number = usize::try_from(id).unwrap_or(0) % STREAMS;
        streams.get(number).map_or(StreamHandle::DEFAULT, Stream::handle)
    }

    /// Pins a slot.
    pub(super) fn new_slot(&self) -> Result<PinnedArray<u8>> {
        let size =
            self.options.chunk.to_usize().map_err(|error| {
                hal::Error::quantity(hal::Call::AllocatePinned, "chunk", &error)
            })?;
        let _tag = Tag::staging().enter();
        self.pinned.array(size)
    }

    /// Calls the device, and retries transient errors. Sleeps in between, so hold no lock.
    pub(super) fn retried<T, E: Into<Error>>(
        &self,
        direction: Direction,
        call: impl FnMut() -> core::result::Result<T, E>,
    ) -> Result<T> {
        self.retried_by(&self.options.backoff, direction, call)
    }

    /// Waits for the work of a transfer's stream, or for the whole device. Retries far more often than other calls,
    /// since memory cannot be released before; after that, treats the device as lost.
    pub(super) fn settle(&self, direction: Direction, stream: StreamHandle) -> Result<()> {
        let backoff = Backoff { retries: SETTLE_RETRIES, ..self.options.backoff };
        let wait = || self.device.synchronize_stream(stream);
        let waited = self.retried_by(&backoff, direction, wait);
        waited.or_else(|_| self.retried(direction, || self.device.synchronize_device()))
    }

    fn retried_by<T, E: Into<Error>>(
        &self,
        backoff: &Backoff,
        direction: Direction,
        mut call: impl FnMut() -> core::result::Result<T, E>,
    ) -> Result<T> {
        let mut retry = 0;
        loop {
            let error = match call().map_err(Into::into) {
                Err(Error::Device(error)) if error.may_pass() => error,
                outcome => return outcome,
            };
            let delay = {
                let mut state = self.state();
                let delay = backoff.delay(retry, &mut state.random);
                state.lane(direction).statistics.retries += u64::from(delay.is_some());
                delay
            };
            let Some(delay) = delay else { return Err(error.into()) };
            (self.options.sleep)(delay);
            retry += 1;
        }
    }

    /// Records an event after everything enqueued on `stream`.
    pub(super) fn event_after(&self, direction: Direction, stream: StreamHandle) -> Result<Event> {
        let event = self.retried(direction, || Event::new(&self.device, EventKind::Order))?;
        self.retried(direction, || self.device.record_event(event.handle(), stream))?;
        Ok(event)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Not locked: in a forked child, a thread of the parent may have held the lock.
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let kept = core::mem::take(&mut state.kept);
        if kept.is_empty() {
            return;
        }
        // No transfer is running: a thread that runs one keeps the engine alive.
        let settled = !self.device.descriptor().is_from_parent()
            && self.streams.iter().flatten().all(|stream| stream.synchronize().is_ok());
        for Kept { memory, .. } in kept {
            if settled {
                let _ = self.callbacks.call(|| drop(memory));
            } else {
                // The device may still use it.
                core::mem::forget(memory);
            }
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("options", &self.options).finish_non_exhaustive()
    }
}

/// The engines of the process by number, and the last number used: what [`monitor`](crate::monitor) shows.
#[derive(Default)]
struct Engines {
    living: Vec<(u64, Weak<Engine>)>,
    last: u64,
}

static ENGINES: PerProcess<Engines> = PerProcess::new();

/// Shows an engine in snapshots of the process while it lives.
fn show(engine: &Arc<Engine>) {
    let mut engines = ENGINES.lock();
    engines.living.retain(|(_, engine)| engine.strong_count() > 0);
    engines.last += 1;
    let number = engines.last;
    engines.living.push((number, Arc::downgrade(engine)));
    drop(engines);
    provide(Part::Engines, add_to);
}

fn add_to(snapshot: &mut ProcessSnapshot) {
    // Unlock before taking references: dropping the last one waits for transfers.
    let living = ENGINES.lock().living.clone();
    let living = living.into_iter().filter_map(|(number, living)| {
        let engine = TransferEngine { engine: living.upgrade()? };
        let (of, statistics) = (engine.device().descriptor(), engine.statistics());
        Some(ProcessEngine {
            engine: number,
            kind: of.kind.name().to_owned(),
            ordinal: u64::from(of.ordinal.0),
            under_way: statistics.under_way,
            pinned_bytes: statistics.pinned.get(),
            uploads: statistics.uploads.into(),
            downloads: statistics.downloads.into(),
        })
    });
    snapshot.engines.extend(living.take(ProcessSnapshot::MAX_OTHERS));
}
