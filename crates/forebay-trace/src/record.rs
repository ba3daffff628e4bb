//! Records the requests to a pool in a running program, for replay.
//!
//! Events are kept in memory, as a [`Trace`] stores them: six bytes each, eight more for each block, and some forty for
//! each address at which a block ever began. The number of events is bounded; later ones are counted and left out.
//! Writing to a file while the program runs would also bound memory, but a failed write would have to be reported from
//! inside a call of the pool, and a file truncated by a crash has no checksum and could not be read. For a program that
//! may crash, use [`Pool::history`](forebay::Pool::history), which keeps the last events instead of the first.
//!
//! A recording has its date, requested sizes, streams, the stream of each free, tags, times, threads, and with
//! [`Recorder::with_stacks`] or the pool's setting `stacks` call stacks. `.fbt` files keep all of it.

use core::fmt;
use core::time::Duration;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Instant, SystemTime};

use forebay::guard::Observation;
use forebay::report::{EventAction, PoolEvent, Stack};
use forebay::transfer::TransferEvent;
use forebay::{Pool, PoolOptions, Tag};

use crate::{BlockIndex, InvalidEvent, Trace, TraceBuilder, Transfer, TransferDirection};

/// The most events unless said: about 200 MB.
const MAX_EVENTS: usize = 1 << 24;

/// Records the allocations and frees of one running pool. Clones are the same recorder.
///
/// ```
/// use forebay::{Bytes, Pool};
/// use forebay_trace::Recorder;
///
/// let pool = Pool::open("host")?;
/// let weights = pool.default_stream().owned(Bytes::mib(2))?;
///
/// let recorder = Recorder::new("my program");
/// let recording = recorder.attach(&pool)?;
/// drop(pool.default_stream().owned(Bytes::mib(3))?);
/// drop(recording);
/// let trace = recorder.finish();
/// assert_eq!((trace.len(), trace.remarks().live_at_start), (3, 1));
/// assert_eq!(trace.statistics().peak_requested, Bytes::mib(5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Recorder {
    intake: Arc<Mutex<Intake>>,
    /// Whether the recorder captures stacks that the pool does not.
    stacks: bool,
}

impl Recorder {
    /// Creates a recorder that keeps the first 16,777,216 events.
    pub fn new(name: impl Into<String>) -> Self {
        Self::at_most(name, MAX_EVENTS)
    }

    /// Creates a recorder that keeps the first `events`.
    pub fn at_most(name: impl Into<String>, events: usize) -> Self {
        Self { intake: Arc::new(Mutex::new(Intake::new(name, events))), stacks: false }
    }

    /// Also records the call stack of each allocation, even of pools whose setting `stacks` is off.
    #[must_use]
    pub fn with_stacks(self) -> Self {
        Self { stacks: true, ..self }
    }

    /// Records `pool` until the guard is dropped. Blocks that are live already come first, on the default stream, and
    /// [`SourceNotes::live_at_start`](crate::SourceNotes::live_at_start) counts them.
    ///
    /// A recorder can be attached once, since two pools may hand out the same address at once and a second recording
    /// of one pool would enter its blocks twice. Fails with [`AttachError::Used`] after the first time, and after
    /// [`watch`](Self::watch), [`stop`](Self::stop) and [`finish`](Self::finish). Meanwhile every call of the pool
    /// takes the slow path and waits for the recorder.
    pub fn attach(&self, pool: &Pool) -> Result<Observation, AttachError> {
        let mut intake = self.intake();
        if core::mem::replace(&mut intake.is_attached, true) || intake.most.is_none() {
            return Err(AttachError::Used);
        }
        drop(intake);
        let observation = self.observe(pool);
        // A recorder that the pool refused has recorded nothing.
        self.intake().is_attached = observation.is_ok();
        Ok(observation?)
    }

    fn observe(&self, pool: &Pool) -> forebay::Result<Observation> {
        let (recorder, attacher) = (self.clone(), thread::current().id());
        let attaching = Arc::new(AtomicBool::new(true));
        let attached = Arc::clone(&attaching);
        let observation = pool.observe(move |event| {
            // This thread is inside `attach` and allocates nothing: the pool tells of a block that is live.
            if attaching.load(Ordering::Relaxed) && thread::current().id() == attacher {
                let mut intake = recorder.intake();
                let is_entered = intake.enter(event);
                intake.builder.remarks().live_at_start += u64::from(is_entered);
            } else {
                recorder.enter(event);
            }
        })?;
        attached.store(false, Ordering::Relaxed);
        Ok(observation)
    }

    /// Like [`attach`](Self::attach), for the whole life of a pool created with these options. Create only one pool
    /// with them.
    pub fn watch(&self, options: PoolOptions) -> PoolOptions {
        self.intake().is_attached = true;
        let recorder = self.clone();
        options.on_event(move |event| recorder.enter(event))
    }

    fn enter(&self, event: &PoolEvent) {
        let mut event = *event;
        let lacks_stack = event.stack.is_none() && event.action == EventAction::Allocate;
        if self.stacks && lacks_stack && self.intake().has_room() {
            // Takes long, and other calls of the pool wait for the intake.
            event.stack = Stack::capture();
        }
        self.intake().enter(&event);
    }

    /// Adds transfers of an engine, such as its [history](forebay::transfer::TransferEngine::history), that began
    /// during the recording and did not fail.
    pub fn enter_transfers(&self, transfers: &[TransferEvent]) {
        let mut intake = self.intake();
        let begun = intake.begun_at;
        add_transfers(&mut intake.builder, begun, transfers);
    }

    /// Returns a copy of the recording so far, with these transfers added as by
    /// [`enter_transfers`](Self::enter_transfers). The recorder continues without them.
    pub fn copy_with(&self, transfers: &[TransferEvent]) -> Trace {
        let (mut builder, stacks, begun) = {
            let intake = self.intake();
            (intake.builder.clone(), intake.stacks.clone(), intake.begun_at)
        };
        add_transfers(&mut builder, begun, transfers);
        finish(builder, &stacks)
    }

    /// Stops recording and drops the recording.
    pub fn discard(&self) {
        let mut intake = self.intake();
        intake.most = None;
        drop(intake.take());
    }

    /// Stops recording. Blocks that are live stay live to the end of the recording.
    pub fn stop(&self) {
        self.intake().most = None;
    }

    /// The number of events left out: those past the bound, and frees of blocks that the recorder did not know.
    pub fn left_out(&self) -> u64 {
        self.intake().left_out
    }

    /// Stops recording and returns the recording.
    pub fn finish(&self) -> Trace {
        let mut intake = self.intake();
        intake.most = None;
        let (builder, stacks) = intake.take();
        // Naming stacks takes long, and calls of the pool wait for the intake.
        drop(intake);
        finish(builder, &stacks)
    }

    fn intake(&self) -> MutexGuard<'_, Intake> {
        // An event is entered whole or not at all.
        self.intake.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a recorder could not be attached.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttachError {
    /// The recorder was attached before, or has stopped.
    Used,
    /// The pool refused to be observed.
    Pool(forebay::Error),
}

impl From<forebay::Error> for AttachError {
    fn from(error: forebay::Error) -> Self {
        Self::Pool(error)
    }
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Used => f.write_str(
                "the recorder was attached before, or has stopped: make a new one for each recording",
            ),
            Self::Pool(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for AttachError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Used => None,
            Self::Pool(error) => error.source(),
        }
    }
}

/// Converts a pool's [history](forebay::Pool::history) to a recording.
///
/// A history begins in the middle of a run. A block that is freed in it but not allocated was live before: such blocks
/// are allocated first, in the order and on the streams of their frees, because their own are unknown, and
/// [`SourceNotes::live_at_start`](crate::SourceNotes::live_at_start) counts them. A block that was live before and
/// still is does not appear, so the recording's peaks lack it.
pub fn trace_of_history(name: impl Into<String>, history: &[PoolEvent]) -> Trace {
    let (mut builder, stacks) = enter_history(Intake::new(name, usize::MAX), history);
    // Its times are the pool's, and the pool is not here to say when it was made.
    builder.remarks().began = None;
    finish(builder, &stacks)
}

/// Like [`trace_of_history`], with the transfers that began during the history and did not fail. The recording begins
/// with the first event, or at `since`.
pub fn trace_of_pool(
    name: impl Into<String>,
    pool: &Pool,
    since: Option<Instant>,
    transfers: &[TransferEvent],
) -> Trace {
    let history = pool.history();
    let first = || pool.made_at().checked_add(history.first()?.time);
    let begun = since.or_else(first);
    let mut intake = Intake::new(name, usize::MAX);
    intake.begun_at = begun;
    intake.begun = begun.map(|begun| begun.saturating_duration_since(pool.made_at()));
    let date = begun.and_then(|begun| SystemTime::now().checked_sub(begun.elapsed()));
    intake.builder.remarks().began = date;
    let (mut builder, stacks) = enter_history(intake, &history);
    add_transfers(&mut builder, begun, transfers);
    finish(builder, &stacks)
}

/// Enters transfers that began at `begun` or later and did not fail.
fn add_transfers(builder: &mut TraceBuilder, begun: Option<Instant>, all: &[TransferEvent]) {
    for transfer in all.iter().filter(|transfer| !transfer.failed) {
        let since = begun.and_then(|begun| transfer.begun.checked_duration_since(begun));
        let Some(begin) = since else { continue };
        let direction = match transfer.is_upload {
            true => TransferDirection::Upload,
            false => TransferDirection::Download,
        };
        let (end, bytes) = (begin.saturating_add(transfer.took), transfer.bytes);
        builder.transfer(Transfer { begin, end, bytes, direction });
    }
}

fn enter_history(
    mut intake: Intake,
    history: &[PoolEvent],
) -> (TraceBuilder, Vec<(BlockIndex, Stack)>) {
    let begun = history.first().map(|event| event.time);
    let mut seen = HashSet::new();
    for event in history {
        let first = event.action != EventAction::Refuse && seen.insert(event.address);
        if first && event.action == EventAction::Free {
            let mut before = *event;
            before.action = EventAction::Allocate;
            before.time = begun.unwrap_or_default();
            intake.enter(&before);
            intake.builder.remarks().live_at_start += 1;
        }
    }
    for event in history {
        intake.enter(event);
    }
    intake.take()
}

/// Names the stacks, and ends the recording.
fn finish(mut builder: TraceBuilder, stacks: &[(BlockIndex, Stack)]) -> Trace {
    let mut named = HashMap::new();
    for &(block, stack) in stacks {
        let text = named.entry(stack).or_insert_with(|| stack.to_string());
        builder.details().stacks.set(block, text);
    }
    builder.finish()
}

/// Events on their way into a recording.
#[derive(Debug)]
struct Intake {
    builder: TraceBuilder,
    /// How many events there may be; nothing more is entered where there is no number.
    most: Option<usize>,
    left_out: u64,
    /// Whether a pool tells this recorder of its events, or did.
    is_attached: bool,
    /// The time of the first event, on the pool's clock and on the program's.
    begun: Option<Duration>,
    begun_at: Option<Instant>,
    /// The call stacks of blocks that have one.
    stacks: Vec<(BlockIndex, Stack)>,
}

impl Intake {
    fn new(name: impl Into<String>, most: usize) -> Self {
        let mut builder = TraceBuilder::new(name);
        builder.remarks().of_forebay = true;
        let (most, left_out, is_attached) = (Some(most), 0, false);
        let (begun, begun_at, stacks) = (None, None, Vec::new());
        Self { builder, most, left_out, is_attached, begun, begun_at, stacks }
    }

    /// What was recorded, which leaves nothing here.
    fn take(&mut self) -> (TraceBuilder, Vec<(BlockIndex, Stack)>) {
        let builder = core::mem::replace(&mut self.builder, TraceBuilder::new(""));
        (builder, core::mem::take(&mut self.stacks))
    }

    fn has_room(&self) -> bool {
        self.most.is_some_and(|most| self.builder.len() < most)
    }

    /// Enters an event, if there is room for it; whether it is in the recording.
    fn enter(&mut self, event: &PoolEvent) -> bool {
        if self.most.is_none() {
            return false;
        }
        if self.begun.is_none() {
            (self.begun, self.begun_at) = (Some(event.time), Some(Instant::now()));
            self.builder.remarks().began = Some(SystemTime::now());
        }
        if event.action == EventAction::Refuse {
            self.builder.remarks().failed_allocations += 1;
            return false;
        }
        let is_entered = self.has_room() && self.try_enter(event).is_ok();
        if !is_entered {
            self.left_out = self.left_out.saturating_add(1);
        }
        is_entered
    }

    fn try_enter(&mut self, event: &PoolEvent) -> Result<(), InvalidEvent> {
        let (key, stream) = (event.address.get(), event.stream.0);
        match event.action {
            EventAction::Allocate => {
                if self.builder.is_live(key) {
                    // It could not be given out again had it not come back, unseen.
                    self.builder.free(key, stream)?;
                }
                self.builder.allocate(key, event.requested, stream)?;
                // A lock and a copy, which blocks without a tag are spared.
                if event.tag != Tag::NONE {
                    self.builder.tag(&event.tag.name());
                }
                if !event.stack.is_none()
                    && let Ok(block) = u32::try_from(self.builder.blocks().saturating_sub(1))
                {
                    self.stacks.push((BlockIndex(block), event.stack));
                }
            }
            EventAction::Free => self.builder.free(key, stream)?,
            _ => return Ok(()),
        }
        let since = event.time.saturating_sub(self.begun.unwrap_or_default());
        self.builder.time(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
        self.builder.thread(event.thread);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
