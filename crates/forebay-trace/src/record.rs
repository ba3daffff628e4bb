//! Recording: what a pool of a running program is asked, as a recording to play again.
//!
//! Events are kept in memory, as a [`Trace`] has them: six bytes each, eight more for each block, and
//! some forty for each address that blocks ever began at. That is bounded by a number of events, and
//! what comes after it is counted and left out. Writing to a file as the program goes would bound it
//! too, but a failed write would then have to be told from inside a call of the pool, and a file cut
//! short by a crash has no checksum and could not be read: for a program that may crash there is
//! [`Pool::history`](forebay::Pool::history), which keeps the last events and not the first.
//!
//! A recording has sizes as asked for, streams, on which of them each block was freed, tags, times, threads, and with
//! [`Recorder::with_stacks`] call stacks. `.fbt` files keep all of it.

mod stacks;

use core::fmt;
use core::time::Duration;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use forebay::guard::Observation;
use forebay::report::{EventAction, PoolEvent};
use forebay::transfer::TransferEvent;
use forebay::{Pool, PoolOptions, Tag};

use self::stacks::Stacks;
use crate::{BlockIndex, InvalidEvent, Trace, TraceBuilder, Transfer, TransferDirection};

/// The most events unless said: about 200 MB.
const MOST_EVENTS: usize = 1 << 24;

/// Records the allocations and frees of one running pool. Clones are the same recorder.
///
/// ```
/// use forebay::{Bytes, HostDevice, Pool, StreamHandle};
/// use forebay_trace::Recorder;
///
/// let pool = Pool::new(&HostDevice::open()?)?;
/// let weights = pool.owned(Bytes::mib(2), StreamHandle::DEFAULT)?;
///
/// let recorder = Recorder::new("my program");
/// let recording = recorder.attach(&pool)?;
/// drop(pool.owned(Bytes::mib(3), StreamHandle::DEFAULT)?);
/// drop(recording);
/// let trace = recorder.finish();
/// assert_eq!((trace.len(), trace.remarks().live_at_start), (3, 1));
/// assert_eq!(trace.statistics().peak_requested, Bytes::mib(5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Recorder {
    intake: Arc<Mutex<Intake>>,
}

impl Recorder {
    /// Makes a recorder that keeps the first 16,777,216 events.
    pub fn new(name: impl Into<String>) -> Self {
        Self::at_most(name, MOST_EVENTS)
    }

    /// Makes a recorder that keeps the first `events`.
    pub fn at_most(name: impl Into<String>, events: usize) -> Self {
        Self { intake: Arc::new(Mutex::new(Intake::new(name, events))) }
    }

    /// The same, with the call stack of each allocation: function, file and line, as far as the program has debug
    /// information. Capturing a stack takes some microseconds; they are resolved when the recording is finished.
    #[must_use]
    pub fn with_stacks(self) -> Self {
        self.intake().stacks = Some(Stacks::default());
        self
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
            let mut intake = recorder.intake();
            let is_entered = intake.enter(event);
            // This thread is inside `attach` and allocates nothing: the pool tells of a block that is live.
            if is_entered && attaching.load(Ordering::Relaxed) && thread::current().id() == attacher
            {
                intake.builder.remarks().live_at_start += 1;
            }
        })?;
        attached.store(false, Ordering::Relaxed);
        Ok(observation)
    }

    /// As [`attach`](Self::attach), for the whole life of a pool that is made with these options. Make one pool with
    /// them only.
    pub fn watch(&self, options: PoolOptions) -> PoolOptions {
        self.intake().is_attached = true;
        let recorder = self.clone();
        options.on_event(move |event| {
            recorder.intake().enter(event);
        })
    }

    /// Enters transfers of an engine, such as its [history](forebay::transfer::TransferEngine::history), that began during the recording and
    /// did not fail.
    pub fn enter_transfers(&self, transfers: &[TransferEvent]) {
        let mut intake = self.intake();
        let Some(begun) = intake.begun_at else { return };
        for transfer in transfers.iter().filter(|transfer| !transfer.failed) {
            let Some(begin) = transfer.begun.checked_duration_since(begun) else { continue };
            let direction = match transfer.is_upload {
                true => TransferDirection::Upload,
                false => TransferDirection::Download,
            };
            let (end, bytes) = (begin.saturating_add(transfer.took), transfer.bytes);
            intake.builder.transfer(Transfer { begin, end, bytes, direction });
        }
    }

    /// Stops recording. Blocks that are live stay live to the end of the recording.
    pub fn stop(&self) {
        self.intake().most = None;
    }

    /// How many events were left out: those after the last that there was room for, and frees of blocks that the
    /// recorder did not know.
    pub fn left_out(&self) -> u64 {
        self.intake().left_out
    }

    /// Stops recording and returns the recording.
    pub fn finish(&self) -> Trace {
        let mut intake = self.intake();
        intake.most = None;
        let mut builder = core::mem::replace(&mut intake.builder, TraceBuilder::new(""));
        if let Some(stacks) = intake.stacks.take() {
            stacks.label(&mut builder.details().stacks);
        }
        builder.finish()
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

/// The recording that a pool's [history](forebay::Pool::history) makes.
///
/// A history begins in the middle. A block that was freed in it and not allocated was live before it
/// began: such blocks are allocated first, in the order of their frees and on the streams of those,
/// as their own are not known, and [`SourceNotes::live_at_start`](crate::SourceNotes::live_at_start) has their
/// number. A block that was live before and still is does not appear, so that peaks of the recording
/// lack it.
pub fn trace_of_history(name: impl Into<String>, history: &[PoolEvent]) -> Trace {
    let mut intake = Intake::new(name, usize::MAX);
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
    intake.builder.finish()
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
    /// Call stacks, if they are recorded.
    stacks: Option<Stacks>,
}

impl Intake {
    fn new(name: impl Into<String>, most: usize) -> Self {
        let builder = TraceBuilder::new(name);
        let (most, left_out, is_attached) = (Some(most), 0, false);
        Self { builder, most, left_out, is_attached, begun: None, begun_at: None, stacks: None }
    }

    /// Enters an event, if there is room for it; whether it is in the recording.
    fn enter(&mut self, event: &PoolEvent) -> bool {
        let Some(most) = self.most else { return false };
        if self.begun.is_none() {
            (self.begun, self.begun_at) = (Some(event.time), Some(Instant::now()));
        }
        if event.action == EventAction::Refuse {
            self.builder.remarks().failed_allocations += 1;
            return false;
        }
        let is_entered = self.builder.len() < most && self.try_enter(event).is_ok();
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
                if let Some(stacks) = &mut self.stacks
                    && let Ok(block) = u32::try_from(self.builder.blocks().saturating_sub(1))
                {
                    stacks.note(BlockIndex(block), stacks::capture());
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
