//! Pooled streams: destroying a stream returns it to a list; the driver keeps it.
//!
//! Destroying a stream while other threads call the driver is a known way to crash it, and creating one
//! takes milliseconds. So a stream created here is never destroyed in the driver. It is reused once its work
//! is done, since a new stream must not wait for an old one's work.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::StreamId;
use forebay_hal::{
    Call, Error, EventHandle, EventKind, ForeignStreams, HostTask, Priority, Progress, Result,
    StreamHandle, Streams, invalid, own_thread,
};

use crate::CudaDevice;
use crate::context::Context;
use crate::event::progress;
use crate::refusal::CallInfo;
use crate::staging::StagingBuffer;
use crate::sys::values::stream as flags;
use crate::sys::{Code, RawStream, Refusal};
use crate::task::Signal;

/// How many destroyed streams are checked for finished work before a new one is created.
const LOOKS: usize = 16;

/// Ids of streams created here have this bit; the driver counts from one and never gets that far, so the
/// two never collide.
const OURS: u64 = 1 << 63;

/// The id of the default stream.
pub(crate) const DEFAULT_ID: StreamId = StreamId(OURS);

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
    Pool { context: &'static Context, priority: Priority, number: u64 },
    /// Created by another library.
    Elsewhere,
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
        Self { raw, home: StreamOrigin::Elsewhere, lane: Arc::default() }
    }

    /// Whether this stands for the default stream of whichever thread calls.
    pub(crate) fn is_per_thread(&self) -> bool {
        self.raw == RawStream::PER_THREAD
    }

    /// What the stream has for tasks; locked while a row of calls belongs together.
    ///
    /// For the default stream of a thread it is a new one each time, because there is nobody to tell
    /// when the thread ends: [`end_lane`](Self::end_lane) gives up what it came to have. Only the
    /// thread itself enqueues there, so no two rows of calls mix.
    pub(crate) fn lane(&self) -> Arc<Mutex<TaskLane>> {
        if self.is_per_thread() { Arc::default() } else { Arc::clone(&self.lane) }
    }

    /// Ends a row of calls with a lane that [`lane`](Self::lane) gave.
    pub(crate) fn end_lane(&self, lane: &mut TaskLane, context: &'static Context) {
        if self.is_per_thread() {
            self.give_up(lane, context);
        }
    }

    /// Gives up what a stream of another's had here, while the stream is still live.
    pub(crate) fn close(&self, context: &'static Context) {
        self.give_up(&mut lock(&self.lane), context);
    }

    fn give_up(&self, lane: &mut TaskLane, context: &'static Context) {
        // A task that is still to run keeps the word.
        lane.signal = None;
        if let Some(stage) = lane.stage.take() {
            context.stages.retire(context, stage, self.raw);
        }
    }
}

impl Drop for StreamCore {
    fn drop(&mut self) {
        if let StreamOrigin::Pool { context, priority, number } = self.home {
            let lane = Arc::clone(&self.lane);
            context.streams.of(priority).insert(number, IdleStream { raw: self.raw, lane });
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these locks guard is changed in one piece, so a panic elsewhere leaves it whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream that is no longer used, though its work may not be done.
#[derive(Debug)]
struct IdleStream {
    raw: RawStream,
    lane: Arc<Mutex<TaskLane>>,
}

/// The unused streams of a context, in the order in which they were created: the driver spreads streams
/// over the hardware's queues in that order, so neighbours do not share one.
#[derive(Debug, Default)]
pub(crate) struct StreamPool {
    spare: [Mutex<BTreeMap<u64, IdleStream>>; 3],
}

impl StreamPool {
    fn of(&self, priority: Priority) -> MutexGuard<'_, BTreeMap<u64, IdleStream>> {
        let [low, normal, high] = &self.spare;
        lock(match priority {
            Priority::Low => low,
            Priority::Normal => normal,
            Priority::High => high,
        })
    }

    /// A stream without work, from the list or new.
    fn take(
        context: &'static Context,
        priority: Priority,
    ) -> core::result::Result<StreamCore, Refusal> {
        let spare = context.streams.of(priority);
        let numbers: Vec<u64> = spare.keys().copied().take(LOOKS).collect();
        drop(spare);
        for number in numbers {
            // Taken off the list before the driver is asked, so that nobody else takes it.
            let Some(found) = context.streams.of(priority).remove(&number) else { continue };
            let home = StreamOrigin::Pool { context, priority, number };
            let core = StreamCore { raw: found.raw, home, lane: found.lane };
            // Where it is busy, `core` goes back on the list as it goes out of scope.
            if query(context, core.raw)? == Progress::Done {
                return Ok(core);
            }
        }
        let raw = create(context, priority)?;
        let home = StreamOrigin::Pool { context, priority, number: forebay_hal::fresh_handle() };
        Ok(StreamCore { raw, home, lane: Arc::default() })
    }
}

/// A new stream of the driver's, which does not wait for the legacy default stream.
pub(crate) fn create(
    context: &Context,
    priority: Priority,
) -> core::result::Result<RawStream, Refusal> {
    let mut raw = RawStream::NULL;
    let level = level(context, priority);
    context.call(|table| {
        // SAFETY: the stream is written to a place of our own.
        unsafe { table.stream_create(&raw mut raw, flags::NON_BLOCKING, level) }?;
        // That would be the default stream.
        table.stream_create.check_allocated(raw.0)
    })?;
    context.driver.streams_made.fetch_add(1, Ordering::Relaxed);
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
pub(crate) fn query(
    context: &Context,
    stream: RawStream,
) -> core::result::Result<Progress, Refusal> {
    // SAFETY: the stream is live: made here and never destroyed, or adopted and not forgotten.
    progress(context.call(|table| unsafe { table.stream_query(stream) }))
}

/// A stream in a device's table.
#[derive(Clone, Debug)]
struct StreamEntry {
    core: Arc<StreamCore>,
    /// How often it was adopted; the default stream may be, too.
    adopted: u64,
    /// Its identity, where the driver does not tell one.
    id: StreamId,
    whose: StreamOwner,
}

/// Who destroys a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamOwner {
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
    known: HashMap<u64, StreamEntry>,
    /// Destroyed streams whose work may not be done.
    draining: Vec<Arc<StreamCore>>,
    ids: u64,
    /// Whether per-thread default streams were ever adopted. From then on unknown threads may have work on
    /// theirs.
    per_thread: bool,
}

impl StreamTable {
    pub(crate) fn new(default: &Arc<StreamCore>) -> Self {
        let core = Arc::clone(default);
        let known = StreamEntry { core, adopted: 0, id: DEFAULT_ID, whose: StreamOwner::Default };
        let known = HashMap::from([(StreamHandle::DEFAULT.0, known)]);
        Self { known, draining: Vec::new(), ids: OURS, per_thread: false }
    }

    /// The next identity of our own.
    fn next_id(&mut self) -> StreamId {
        self.ids += 1;
        StreamId(self.ids)
    }

    /// Returns destroyed streams whose work is done to the pool. A stream whose query fails counts as busy.
    fn settle(&mut self, context: &Context) {
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

/// What the stream calls share.
impl CudaDevice {
    fn known(&self, call: Call, stream: StreamHandle) -> Result<StreamEntry> {
        own_thread(call, stream)?;
        let table = self.streams.read().unwrap_or_else(PoisonError::into_inner);
        table.known.get(&key(stream)).cloned().ok_or_else(|| not_a_stream(call, stream))
    }

    /// A live stream.
    pub(crate) fn stream(&self, call: Call, stream: StreamHandle) -> Result<Arc<StreamCore>> {
        Ok(self.known(call, stream)?.core)
    }

    pub(crate) fn wait_for(&self, core: &StreamCore) -> core::result::Result<(), Refusal> {
        // SAFETY: the stream is live: made here and never destroyed, or adopted and not forgotten.
        self.context.call(|table| unsafe { table.stream_synchronize(core.raw) })
    }

    /// Refuses a stream of another context, where the driver tells: no event of ours could be
    /// recorded on it.
    fn check_context(&self, raw: RawStream) -> Result<()> {
        let mut theirs = self.context.raw;
        // SAFETY: the stream is live, as the caller of `adopt` promised.
        let told =
            self.context.call(|table| unsafe { table.stream_get_context(raw, &raw mut theirs) });
        if told.is_ok() && theirs != self.context.raw {
            let given = format!("a stream of context {:#x}", theirs.0);
            let allowed = "a stream of the device's context; for streams of others, open a device \
                           in theirs";
            return Err(invalid(Call::AdoptStream, "raw", given, allowed));
        }
        Ok(())
    }
}

// SAFETY: the driver keeps the order of streams and events. Streams made here have no ties with the
// legacy default stream, and one is given out again only when its work is done. Handles are looked
// up in tables that outlive what they name: a stream or event that another thread destroys goes back
// to its pool only when the call that found it is over. Tasks run in threads of their own.
unsafe impl Streams for CudaDevice {
    fn create_stream(&self, priority: Priority) -> Result<StreamHandle> {
        self.streams.write().unwrap_or_else(PoisonError::into_inner).settle(self.context);
        let core = StreamPool::take(self.context, priority).map_err(|refusal| {
            let asked = CallInfo::of("priority", format!("{priority:?}"), "low, normal or high");
            self.refused(Call::CreateStream, refusal, &asked)
        })?;
        let mut table = self.streams.write().unwrap_or_else(PoisonError::into_inner);
        let (handle, id) = (core.raw.0, table.next_id());
        let known = StreamEntry { core: Arc::new(core), adopted: 0, id, whose: StreamOwner::Own };
        table.known.insert(handle, known);
        Ok(StreamHandle(handle))
    }

    fn destroy_stream(&self, stream: StreamHandle) -> Result<()> {
        let call = Call::DestroyStream;
        let mut table = self.streams.write().unwrap_or_else(PoisonError::into_inner);
        match table.known.get(&key(stream)).map(|known| known.whose) {
            Some(StreamOwner::Own) => {}
            Some(StreamOwner::Default) => {
                let given = format!("{stream}, the default stream");
                return Err(invalid(call, "stream", given, "a stream that create_stream made"));
            }
            Some(StreamOwner::Foreign) => {
                let given = format!("{stream}, which was adopted");
                return Err(invalid(call, "stream", given, "a stream that create_stream made"));
            }
            None => return Err(not_a_stream(call, stream)),
        }
        if let Some(known) = table.known.remove(&stream.0) {
            table.settle(self.context);
            table.draining.push(known.core);
        }
        Ok(())
    }

    fn stream_id(&self, stream: StreamHandle) -> Result<StreamId> {
        let known = self.known(Call::StreamId, stream)?;
        if known.whose != StreamOwner::Foreign {
            return Ok(known.id);
        }
        // Where the driver cannot tell, a thread's own stream goes by the thread, whose number never comes
        // back: counted down from the top, where the identities of streams made here never get to.
        let otherwise = if known.core.is_per_thread() {
            StreamId(!StreamHandle::of_this_thread().0 | OURS)
        } else {
            known.id
        };
        // Asked each time: a maker may have destroyed it and got the same value for a new one.
        let mut id = 0;
        // SAFETY: the stream is live until it is forgotten, by the promise of who adopted it.
        let told =
            self.context.call(|table| unsafe { table.stream_get_id(known.core.raw, &raw mut id) });
        if told.is_err() && known.core.is_per_thread() {
            // The driver has made the stream when this returns, as when it tells the identity.
            let _ = query(self.context, known.core.raw);
        }
        Ok(told.map_or(otherwise, |()| StreamId(id & !OURS)))
    }

    fn query_stream(&self, stream: StreamHandle) -> Result<Progress> {
        let call = Call::QueryStream;
        let core = self.stream(call, stream)?;
        query(self.context, core.raw).map_err(|refusal| {
            self.refused(call, refusal, &CallInfo::of("stream", stream, "a live stream"))
        })
    }

    fn synchronize_stream(&self, stream: StreamHandle) -> Result<()> {
        let call = Call::SynchronizeStream;
        let core = self.stream(call, stream)?;
        self.wait_for(&core).map_err(|refusal| {
            self.refused(call, refusal, &CallInfo::of("stream", stream, "a live stream"))
        })
    }

    /// Waits for the streams of this device only, not for other libraries' work in the same context. If
    /// per-thread default streams were adopted, it waits for the whole context: nothing less covers those of
    /// other threads. So it does if a stream is gone that another library made.
    fn synchronize_device(&self) -> Result<()> {
        let call = Call::SynchronizeDevice;
        let table = self.streams.read().unwrap_or_else(PoisonError::into_inner);
        let (streams, per_thread) = (table.all(), table.has_per_thread());
        drop(table);
        if per_thread {
            return self.synchronize_process();
        }
        for core in &streams {
            match self.wait_for(core) {
                Ok(()) => {}
                // Another library destroyed it and did not say so.
                Err(refusal) if refusal.understood() == Code::ERROR_INVALID_HANDLE => {
                    return self.synchronize_process();
                }
                Err(refusal) => {
                    let given = StreamHandle(core.raw.0);
                    let asked = CallInfo::of("stream", given, "a live stream");
                    return Err(self.refused(call, refusal, &asked));
                }
            }
        }
        Ok(())
    }

    /// Waits for all work of the context, that of other libraries too.
    fn synchronize_process(&self) -> Result<()> {
        // A driver without the function says so: an answer before the work is done is worse.
        self.context.synchronize().map_err(|refusal| {
            let asked = CallInfo::of("device", &self.descriptor, "a device that is up");
            self.refused(Call::SynchronizeDevice, refusal, &asked)
        })
    }

    fn enqueue_host(&self, task: HostTask, stream: StreamHandle) -> Result<()> {
        self.enqueue_task(task, stream)
    }

    fn create_event(&self, kind: EventKind) -> Result<EventHandle> {
        self.new_event(kind)
    }

    fn destroy_event(&self, event: EventHandle) -> Result<()> {
        self.end_event(event)
    }

    fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        self.record(event, stream)
    }

    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        self.wait(stream, event)
    }

    fn query_event(&self, event: EventHandle) -> Result<Progress> {
        self.event_progress(event)
    }

    fn synchronize_event(&self, event: EventHandle) -> Result<()> {
        self.wait_for_event(event)
    }

    fn elapsed(&self, start: EventHandle, end: EventHandle) -> Result<Duration> {
        self.time_between(start, end)
    }
}

// SAFETY: adopted streams are in the table every call looks into, with a count; a stream of the
// device's own and one of another context are refused.
unsafe impl ForeignStreams for CudaDevice {
    unsafe fn adopt_stream(&self, raw: u64) -> Result<StreamHandle> {
        let call = Call::AdoptStream;
        // Two names of one stream: one name here. This stream is tied to others without being told:
        // its work waits for what was enqueued before on every stream of the context that was not
        // made with NON_BLOCKING, the threads' default streams among them, and those wait for its.
        // Nothing here relies on that. Whatever must be in order across streams is ordered by an
        // event or by a wait of the host, so the tie can only make work wait longer. Nor can it make
        // two wait for each other: it leads from later work to earlier work of the same context, as
        // every event does; streams made here are NON_BLOCKING and have no part in it; and what a
        // stream waits for besides is the end of a task, whose thread waits for no stream.
        let (raw, stream) = match RawStream(raw) {
            RawStream::LEGACY => (RawStream::NULL, StreamHandle::DEFAULT),
            // One for each thread behind one value: by its number it could not be told from a
            // stream, so it has a name of its own, which also is a value to adopt it by.
            RawStream::PER_THREAD => (RawStream::PER_THREAD, StreamHandle::PER_THREAD),
            RawStream(raw) if StreamHandle(raw) == StreamHandle::PER_THREAD => {
                (RawStream::PER_THREAD, StreamHandle::PER_THREAD)
            }
            raw => (raw, StreamHandle(raw.0)),
        };
        if stream.is_per_thread() && stream != StreamHandle::PER_THREAD {
            let allowed = "a value that the driver gave";
            return Err(invalid(call, "raw", stream, allowed));
        }
        let mut table = self.streams.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = table.known.get_mut(&stream.0) {
            if known.whose == StreamOwner::Own {
                let given = format!("{stream}, which this device made");
                return Err(invalid(call, "raw", given, "a stream that another library made"));
            }
            known.adopted += 1;
            return Ok(stream);
        }
        self.check_context(raw)?;
        let id = table.next_id();
        let core = Arc::new(StreamCore::lent(raw));
        table.per_thread |= core.is_per_thread();
        table
            .known
            .insert(stream.0, StreamEntry { core, adopted: 1, id, whose: StreamOwner::Foreign });
        Ok(stream)
    }

    fn forget_stream(&self, stream: StreamHandle) -> Result<()> {
        let mut table = self.streams.write().unwrap_or_else(PoisonError::into_inner);
        let place = key(stream);
        let Some(known) = table.known.get_mut(&place).filter(|known| known.adopted > 0) else {
            let allowed = "a stream that was adopted and not yet forgotten as often";
            return Err(invalid(Call::ForgetStream, "stream", stream, allowed));
        };
        known.adopted -= 1;
        if known.adopted == 0 && known.whose == StreamOwner::Foreign {
            known.core.close(self.context);
            table.known.remove(&place);
        }
        Ok(())
    }

    fn raw_stream(&self, stream: StreamHandle) -> u64 {
        if stream.is_per_thread() { RawStream::PER_THREAD.0 } else { stream.0 }
    }
}

/// Where a stream is in the table: the calling thread's default stream by either of its names in one
/// place. Another thread's is nowhere.
fn key(stream: StreamHandle) -> u64 {
    if stream.is_per_thread() && !stream.is_of_another_thread() {
        return StreamHandle::PER_THREAD.0;
    }
    stream.0
}

fn not_a_stream(call: Call, stream: StreamHandle) -> Error {
    let allowed = "a stream that was made and not destroyed, or adopted and not forgotten";
    invalid(call, "stream", stream, allowed)
}
