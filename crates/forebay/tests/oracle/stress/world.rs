//! What the threads of an episode share: the device, the pool, and who has which bytes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay::{Block, Error, MemoryClass, Pool};
use forebay_core::{Bytes, Span};
use forebay_hal::{self as hal, Device, EventHandle, EventKind, StreamHandle, Streams};
use forebay_sim::{Kernel, SimDevice, SimMachine};

use super::{Figures, Outcome};
use crate::claims::Claims;

/// How often a call of the trial's own is tried again that a planned fault struck.
const ATTEMPTS: u32 = 20;

/// How many stream handles the keeper can name.
const KNOWN_STREAMS: usize = 24;

/// How many bytes at either end of a block are written and read. All of it is declared to the checker.
const EDGE: u64 = 64;

/// How many queries let the device do about what twenty operations enqueue.
const QUERIES: u32 = 32;

/// How many events a drop may lose: it tries twice, and planned faults can strike twice.
const EVENTS_LOST_TO_FAULTS: usize = 3;

/// A live block, and the stream its work is on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parcel {
    pub(super) block: Block,
    pub(super) tag: u8,
    /// Named so that every thread means the same stream by it.
    pub(super) stream: StreamHandle,
    /// Recorded on the stream after the block's work there, where another thread is to have it.
    pub(super) after: Option<EventHandle>,
}

/// What all threads of an episode share.
pub(super) struct World {
    pub(super) machine: SimMachine,
    pub(super) sim: Arc<SimDevice>,
    /// The device as the pool sees it.
    pub(super) device: Arc<dyn Device>,
    pub(super) pool: Pool,
    claims: Claims,
    /// Blocks on their way from one thread to another.
    mailbox: Mutex<Vec<Parcel>>,
    /// Streams of any thread, dead ones too.
    known: Mutex<VecDeque<StreamHandle>>,
    /// Bytes that were not what was written.
    wrong: Arc<AtomicU64>,
    over: AtomicBool,
    /// Whether one thread does all: a block that another frees is in the heap before it is counted.
    alone: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whoever panicked has ended the episode.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub(super) fn new(
        machine: SimMachine,
        sim: Arc<SimDevice>,
        device: Arc<dyn Device>,
        pool: Pool,
        alone: bool,
    ) -> Self {
        Self {
            machine,
            sim,
            device,
            pool,
            claims: Claims::default(),
            mailbox: Mutex::default(),
            known: Mutex::default(),
            wrong: Arc::default(),
            over: AtomicBool::new(false),
            alone,
        }
    }

    /// Lets nobody go on.
    pub(super) fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// A call of the trial's own: planned faults strike it too, and it is made again.
    pub(super) fn own<T>(&self, call: impl Fn() -> hal::Result<T>) -> Outcome<T> {
        self.own_or_gone(call)?.ok_or_else(|| "a live stream or event is refused".to_owned())
    }

    /// The same, where the stream may be gone: `None` then.
    pub(super) fn own_or_gone<T>(&self, call: impl Fn() -> hal::Result<T>) -> Outcome<Option<T>> {
        for _ in 0..ATTEMPTS {
            match call() {
                Ok(made) => return Ok(Some(made)),
                Err(hal::Error::Invalid { .. }) => return Ok(None),
                Err(error) if error.may_pass() => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Err("a call fails again and again".to_owned())
    }

    /// Whether no more is said to be live than is held.
    pub(super) fn adds_up(&self, live: Bytes, held: Bytes) -> bool {
        !self.alone || live <= held
    }

    pub(super) fn know(&self, stream: StreamHandle) {
        let mut known = lock(&self.known);
        known.push_back(stream);
        if known.len() > KNOWN_STREAMS {
            known.pop_front();
        }
    }

    /// Some stream of any thread, perhaps a dead one.
    pub(super) fn some_stream(&self, number: u64) -> Option<StreamHandle> {
        let known = lock(&self.known);
        let index = usize::try_from(number).ok()?.checked_rem(known.len())?;
        known.get(index).copied()
    }

    pub(super) fn send(&self, parcel: Parcel) {
        lock(&self.mailbox).push(parcel);
    }

    pub(super) fn receive(&self) -> Option<Parcel> {
        lock(&self.mailbox).pop()
    }

    /// A block, entered and written; `None` where memory is short or a fault struck.
    pub(super) fn allocate(
        &self,
        size: u64,
        stream: StreamHandle,
        tag: u8,
        figures: &mut Figures,
    ) -> Outcome<Option<Parcel>> {
        let block = match self.pool.allocate(Bytes::new(size), stream) {
            Ok(block) => block,
            Err(Error::OutOfMemory(shortage)) => {
                figures.refusals += 1;
                let text =
                    || format!("{size} B refused: {} live, {} held", shortage.live, shortage.held);
                let sound = self.adds_up(shortage.live, shortage.held)
                    && shortage.held <= self.pool.limit();
                return if sound { Ok(None) } else { Err(text()) };
            }
            Err(Error::Device(error)) if error.may_pass() => {
                figures.failures += 1;
                return Ok(None);
            }
            Err(error) => return Err(format!("{size} B on {stream}: {error}")),
        };
        let (start, length) = (block.address().get(), block.size().get());
        if length < size {
            return Err(format!("{block:?} was given for {size} B"));
        }
        let claimed = self.claims.claim(start, length);
        claimed.map_err(|conflict| format!("{block:?}: {conflict}"))?;
        figures.allocations += 1;
        let parcel = Parcel { block, tag, stream: stream.resolved(), after: None };
        if self.launch(&parcel, stream, Access::Write)? {
            Ok(Some(parcel))
        } else {
            Err(format!("{stream} is gone, which is in use"))
        }
    }

    /// Reads the block on `stream` and counts what is wrong; `false` where the stream is gone, or another
    /// thread's own.
    pub(super) fn check(&self, parcel: &Parcel, stream: StreamHandle) -> Outcome<bool> {
        self.launch(parcel, stream, Access::Read)
    }

    fn launch(&self, parcel: &Parcel, stream: StreamHandle, access: Access) -> Outcome<bool> {
        let Parcel { block, tag, .. } = *parcel;
        let (start, size) = (block.address(), block.size());
        let whole = Span::new(start, size).map_err(|error| error.to_string())?;
        let edge = Bytes::new(EDGE.min(size.get()));
        let tail = start.checked_add(size.saturating_sub(edge)).ok_or("a block without an end")?;
        let head = Span::new(start, edge).map_err(|error| error.to_string())?;
        let tail = Span::new(tail, edge).map_err(|error| error.to_string())?;
        let launch = || {
            let wrong = Arc::clone(&self.wrong);
            let count = move |bytes: u64| _ = wrong.fetch_add(bytes, Ordering::Relaxed);
            let kernel = match access {
                Access::Write => Kernel::new("write").writes(whole).body(move |memory| {
                    let bytes = vec![tag; usize::try_from(edge.get()).unwrap_or(0)];
                    for end in [head, tail] {
                        count(u64::from(!memory.write(end, &bytes)));
                    }
                }),
                Access::Read => Kernel::new("read").reads(whole).body(move |memory| {
                    for end in [head, tail] {
                        count(memory.read(end).map_or(1, |bytes| {
                            bytes.iter().filter(|&&byte| byte != tag).count() as u64
                        }));
                    }
                }),
            };
            // SAFETY: the block is live, and is freed after this in the order of its stream, or the use is
            // recorded. Whether the pool keeps the memory until then is what is tried.
            unsafe { self.sim.launch(kernel, stream) }
        };
        Ok(self.own_or_gone(launch)?.is_some())
    }

    /// Lets the device work for a while. A simulated one does nothing unless it is asked something; nothing is
    /// ever on the default stream, so nothing is learnt by asking for that.
    pub(super) fn let_work(&self) -> Outcome {
        for _ in 0..QUERIES {
            let _ = self.own(|| self.sim.query_stream(StreamHandle::DEFAULT))?;
        }
        Ok(())
    }

    /// An event after all that is on `stream` now; `None` where the stream is gone.
    pub(super) fn event_after(&self, stream: StreamHandle) -> Outcome<Option<EventHandle>> {
        let event = self.own(|| self.sim.create_event(EventKind::Order))?;
        if self.own_or_gone(|| self.sim.record_event(event, stream))?.is_some() {
            return Ok(Some(event));
        }
        self.own(|| self.sim.destroy_event(event))?;
        Ok(None)
    }

    /// Makes `stream` wait for an event, which ends with it.
    pub(super) fn wait(&self, stream: StreamHandle, event: EventHandle) -> Outcome {
        self.own(|| self.sim.wait_event(stream, event))?;
        self.own(|| self.sim.destroy_event(event))
    }

    /// Makes `stream` wait for all that is on `other` now; `false` where `other` is gone.
    pub(super) fn order(&self, stream: StreamHandle, other: StreamHandle) -> Outcome<bool> {
        let Some(event) = self.event_after(other)? else { return Ok(false) };
        self.wait(stream, event)?;
        Ok(true)
    }

    /// Reads the block a last time where its stream is still there, and frees it in that order.
    pub(super) fn free(&self, parcel: Parcel, figures: &mut Figures) -> Outcome {
        if !self.check(&parcel, parcel.stream)? {
            figures.freed_on_dead += 1;
        }
        self.free_unread(parcel)
    }

    /// Frees a block in the order of its stream.
    pub(super) fn free_unread(&self, parcel: Parcel) -> Outcome {
        if let Some(event) = parcel.after {
            self.own(|| self.sim.destroy_event(event))?;
        }
        let (start, size) = (parcel.block.address(), parcel.block.size());
        let released = self.claims.release(start.get(), size.get());
        released.map_err(|conflict| format!("{parcel:?}: {conflict}"))?;
        let freed = self.pool.free_block(parcel.block, parcel.stream);
        freed.map_err(|error| format!("{parcel:?}: {error}"))
    }

    /// Everything that is still on its way is freed; then nothing may be left.
    pub(super) fn close(self, faults: bool) -> Outcome<Figures> {
        let mut figures = Figures::default();
        while let Some(parcel) = self.receive() {
            self.free(parcel, &mut figures)?;
        }
        self.machine.clear_faults();
        let Self { machine, sim, device, pool, claims, wrong, .. } = self;
        let statistics = pool.statistics();
        let (given, back) = (statistics.allocations, statistics.frees);
        if !statistics.live.is_zero() || !statistics.requested.is_zero() || given != back {
            let (live, requested) = (statistics.live, statistics.requested);
            let told = format!("{live} live, {requested} requested, {given} given, {back} back");
            return Err(format!("with everything freed: {told}"));
        }
        if !claims.is_empty() {
            return Err("blocks were lost by the trial itself".to_owned());
        }
        let held = (pool.held(), machine.census().held);
        if held.0 != held.1 {
            return Err(format!("{} held, and the device gave out {}", held.0, held.1));
        }
        pool.trim(Bytes::ZERO).map_err(|error| format!("trim at the end: {error}"))?;
        let held = (pool.held(), machine.census().held);
        // A stable pool keeps what is behind its addresses.
        let stays = pool.class().contains(MemoryClass::STABLE);
        if held.0 != held.1 || !stays && !held.0.is_zero() {
            return Err(format!("after a trim {} held, {} given out", held.0, held.1));
        }
        drop(pool);
        sim.synchronize_device().map_err(|error| error.to_string())?;
        drop(device);
        if let Some(first) = machine.findings().first() {
            return Err(format!("{first}; {} in all", machine.finding_count()));
        }
        let wrong = wrong.load(Ordering::Relaxed);
        if wrong > 0 {
            return Err(format!("{wrong} bytes were not what was written"));
        }
        let left = machine.census();
        let lost_events = if faults { EVENTS_LOST_TO_FAULTS } else { 0 };
        let parts = (left.pages, left.mappings, left.regions, left.blocks);
        if parts != (0, 0, 0, 0) || left.events > lost_events {
            return Err(format!("left behind: {left}"));
        }
        Ok(figures)
    }
}

/// What a kernel does with a block.
#[derive(Clone, Copy, Debug)]
enum Access {
    Write,
    Read,
}
