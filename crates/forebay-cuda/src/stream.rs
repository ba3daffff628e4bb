//! Pooled streams: destroying a stream returns it to a list; the driver keeps it.
//!
//! Destroying a stream while other threads call the driver is a known way to crash it, and creating one
//! takes milliseconds. So a stream created here is never destroyed in the driver. It is reused once its work
//! is done, since a new stream must not wait for an old one's work.

use core::sync::atomic::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use forebay_core::StreamId;
use forebay_hal::{Priority, Progress, StreamHandle};
use forebay_sync::lock;

use crate::context::Context;
use crate::event::progress;
use crate::staging::{StagingBuffer, StagingBuffers};
use crate::sys::values::stream as flags;
use crate::sys::{Outcome, RawStream};
use crate::task::Signal;

/// How many destroyed streams are checked for finished work before a new one is created.
const LOOKS: usize = 16;

/// Ids of streams created here have this bit; the driver counts from one and never gets that far, so the
/// two never collide.
pub(crate) const OURS: u64 = 1 << 63;

/// The most side streams of one copy.
const MAX_SIDES: usize = 8;

/// The most side streams of a context. A program that enqueues copies without ever waiting gets no more.
const MAX_OF_ALL: usize = 4 * MAX_SIDES;

/// The id of the default stream.
const DEFAULT_ID: StreamId = StreamId(OURS);

/// What a stream needs to run host tasks in its order.
#[derive(Debug, Default)]
pub(crate) struct TaskLane {
    /// The signal by which the stream waits for its tasks.
    pub(crate) signal: Option<Arc<Signal>>,
    /// The staging buffer for its copies of pageable memory. One is enough, since copies on one stream do
    /// not overtake each other.
    pub(crate) stage: Option<StagingBuffer>,
}

/// Where a stream comes from.
#[derive(Clone, Copy, Debug)]
enum StreamOrigin {
    /// Created here; it returns to this list.
    Pool { pool: &'static StreamPool, priority: Priority, number: u64 },
    /// Created by another library.
    Foreign,
}

/// A stream in use.
#[derive(Debug)]
pub(crate) struct StreamCore {
    pub(crate) raw: RawStream,
    home: StreamOrigin,
    lane: Arc<Mutex<TaskLane>>,
}

impl StreamCore {
    /// A stream that another library created.
    pub(crate) fn lent(raw: RawStream) -> Self {
        Self { raw, home: StreamOrigin::Foreign, lane: Arc::default() }
    }

    /// Whether this stands for the default stream of whichever thread calls.
    pub(crate) fn is_per_thread(&self) -> bool {
        self.raw == RawStream::PER_THREAD
    }

    /// The stream's lane, which the caller locks during a sequence of calls that belong together.
    ///
    /// The default stream of a thread has a new one each time, because nothing tells us when the thread ends:
    /// [`end_lane`](Self::end_lane) returns its staging buffer. Only the thread itself enqueues there, so no two sequences
    /// mix.
    pub(crate) fn lane(&self) -> Arc<Mutex<TaskLane>> {
        if self.is_per_thread() { Arc::default() } else { Arc::clone(&self.lane) }
    }

    /// Ends a sequence of calls with a lane that [`lane`](Self::lane) returned.
    pub(crate) fn end_lane(&self, lane: &mut TaskLane, stages: &StagingBuffers) {
        if self.is_per_thread() {
            self.clear(lane, stages);
        }
    }

    /// Clears the lane of another library's stream, while the stream is still live.
    pub(crate) fn close(&self, stages: &StagingBuffers) {
        self.clear(&mut lock(&self.lane), stages);
    }

    fn clear(&self, lane: &mut TaskLane, stages: &StagingBuffers) {
        // Tasks that have not run yet keep the signal.
        lane.signal = None;
        if let Some(stage) = lane.stage.take() {
            stages.retire(stage, self.raw);
        }
    }
}

impl Drop for StreamCore {
    fn drop(&mut self) {
        if let StreamOrigin::Pool { pool, priority, number } = self.home {
            let lane = Arc::clone(&self.lane);
            pool.of(priority).insert(number, IdleStream { raw: self.raw, lane });
        }
    }
}

/// A stream that is no longer used, though its work may not be done.
#[derive(Debug)]
struct IdleStream {
    raw: RawStream,
    lane: Arc<Mutex<TaskLane>>,
}

/// The unused streams of a context, in the order in which they were created: the driver spreads streams
/// over the hardware's queues in that order, so neighbours do not share one.
#[derive(Debug)]
pub(crate) struct StreamPool {
    context: &'static Context,
    spare: [Mutex<BTreeMap<u64, IdleStream>>; 3],
}

impl StreamPool {
    pub(crate) fn new(context: &'static Context) -> Self {
        Self { context, spare: Default::default() }
    }

    fn of(&self, priority: Priority) -> MutexGuard<'_, BTreeMap<u64, IdleStream>> {
        let [low, normal, high] = &self.spare;
        lock(match priority {
            Priority::Low => low,
            Priority::Normal => normal,
            Priority::High => high,
        })
    }

    /// A stream without work, from the list or new.
    pub(crate) fn take(&'static self, priority: Priority) -> Outcome<StreamCore> {
        let spare = self.of(priority);
        let numbers: Vec<u64> = spare.keys().copied().take(LOOKS).collect();
        drop(spare);
        for number in numbers {
            // Removed before the driver is asked, so that no other thread takes it.
            let Some(found) = self.of(priority).remove(&number) else { continue };
            let home = StreamOrigin::Pool { pool: self, priority, number };
            let core = StreamCore { raw: found.raw, home, lane: found.lane };
            // If it is busy, `core` returns to the list when it is dropped.
            if query(self.context, core.raw)? == Progress::Done {
                return Ok(core);
            }
        }
        let raw = create(self.context, priority)?;
        let home = StreamOrigin::Pool { pool: self, priority, number: forebay_hal::fresh_handle() };
        Ok(StreamCore { raw, home, lane: Arc::default() })
    }
}

/// The side streams of a context that no copy is being enqueued on.
#[derive(Debug)]
pub(crate) struct SideStreams {
    context: &'static Context,
    spare: Mutex<SpareStreams>,
    /// How many one copy takes: no more than there are processors to fill buffers.
    at_once: OnceLock<usize>,
}

#[derive(Debug, Default)]
struct SpareStreams {
    streams: Vec<StreamCore>,
    made: usize,
}

impl SideStreams {
    pub(crate) fn new(context: &'static Context) -> Self {
        Self { context, spare: Mutex::default(), at_once: OnceLock::new() }
    }

    /// One without work: a stream that still waits for another copy's turn would hold this one back.
    pub(crate) fn take(&self) -> Option<StreamCore> {
        let spare = core::mem::take(&mut lock(&self.spare).streams);
        let mut spare = spare.into_iter();
        let mut busy = Vec::new();
        let idle = spare.by_ref().find_map(|side| match query(self.context, side.raw) {
            Ok(Progress::Done) => Some(side),
            _ => {
                busy.push(side);
                None
            }
        });
        let mut state = lock(&self.spare);
        state.streams.extend(busy.into_iter().chain(spare));
        if idle.is_some() || state.made >= MAX_OF_ALL {
            return idle;
        }
        state.made += 1;
        drop(state);
        let made = create(self.context, Priority::Normal);
        if made.is_err() {
            lock(&self.spare).made -= 1;
        }
        made.ok().map(StreamCore::lent)
    }

    pub(crate) fn put_back(&self, sides: impl IntoIterator<Item = StreamCore>) {
        lock(&self.spare).streams.extend(sides);
    }

    pub(crate) fn at_once(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        *self.at_once.get_or_init(|| processors().min(MAX_SIDES))
    }
}

/// A new stream of the driver's, which does not wait for the legacy default stream.
fn create(context: &Context, priority: Priority) -> Outcome<RawStream> {
    let mut raw = RawStream::NULL;
    let level = level(context, priority);
    context.call(|table| {
        // SAFETY: the stream is written to a place of our own.
        unsafe { table.stream_create(&raw mut raw, flags::NON_BLOCKING, level) }?;
        // That would be the default stream.
        table.stream_create.check_allocated(raw.0)
    })?;
    context.created.streams.fetch_add(1, Ordering::Relaxed);
    Ok(raw)
}

/// The driver's number for a priority: lower goes first, and 0 is the default.
fn level(context: &Context, priority: Priority) -> core::ffi::c_int {
    let (mut least, mut greatest) = (0, 0);
    // SAFETY: both are written to places of our own. Where there are no priorities both stay 0.
    let _ = context
        .call(|table| unsafe { table.context_priority_range(&raw mut least, &raw mut greatest) });
    match priority {
        Priority::Low => least,
        Priority::Normal => 0.min(least).max(greatest),
        Priority::High => greatest,
    }
}

/// Whether all work of a live stream is done.
pub(crate) fn query(context: &Context, stream: RawStream) -> Outcome<Progress> {
    // SAFETY: the stream is live: made here and never destroyed, or adopted and not forgotten.
    progress(context.call(|table| unsafe { table.stream_query(stream) }))
}

/// A stream in a device's table.
#[derive(Clone, Debug)]
pub(crate) struct StreamEntry {
    pub(crate) core: Arc<StreamCore>,
    /// How often it was adopted. The default stream may be adopted too.
    pub(crate) adopted: u64,
    /// Its id, if the driver gives none.
    pub(crate) id: StreamId,
    pub(crate) whose: StreamOwner,
}

/// Who destroys a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamOwner {
    /// No one: it exists from the start.
    Default,
    /// This device, which created it.
    Own,
    /// Another library, which created it.
    Foreign,
}

/// The streams a device knows.
#[derive(Debug)]
pub(crate) struct StreamTable {
    pub(crate) known: HashMap<u64, StreamEntry>,
    /// Destroyed streams whose work may not be done.
    pub(crate) draining: Vec<Arc<StreamCore>>,
    ids: u64,
    /// Whether per-thread default streams were ever adopted. From then on unknown threads may have work on
    /// theirs.
    pub(crate) per_thread: bool,
}

impl StreamTable {
    pub(crate) fn new(default: &Arc<StreamCore>) -> Self {
        let core = Arc::clone(default);
        let known = StreamEntry { core, adopted: 0, id: DEFAULT_ID, whose: StreamOwner::Default };
        let known = HashMap::from([(StreamHandle::DEFAULT.0, known)]);
        Self { known, draining: Vec::new(), ids: OURS, per_thread: false }
    }

    /// The next id of our own.
    pub(crate) fn next_id(&mut self) -> StreamId {
        self.ids += 1;
        StreamId(self.ids)
    }

    /// Returns destroyed streams whose work is done to the pool. A stream whose query fails counts as busy.
    pub(crate) fn settle(&mut self, context: &Context) {
        self.draining.retain(|core| query(context, core.raw) != Ok(Progress::Done));
    }

    /// Every stream with work of this device, known or on its way out; but for the threads' default
    /// streams, which [`has_per_thread`](Self::has_per_thread) is about.
    pub(crate) fn all(&self) -> Vec<Arc<StreamCore>> {
        let known = self.known.values().map(|known| &known.core);
        let all = known.chain(&self.draining).filter(|core| !core.is_per_thread());
        all.map(Arc::clone).collect()
    }

    /// Whether threads' default streams may have work of this device. The driver shows a thread its
    /// own alone, so only a wait for the whole context sees the end of all of it.
    pub(crate) const fn has_per_thread(&self) -> bool {
        self.per_thread
    }

    /// The streams of others.
    pub(crate) fn foreign(&self) -> impl Iterator<Item = &Arc<StreamCore>> {
        let foreign = self.known.values().filter(|known| known.whose == StreamOwner::Foreign);
        foreign.map(|known| &known.core)
    }
}
