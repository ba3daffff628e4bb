//! Streams and events.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use forebay_core::StreamId;

use crate::stream_end::{begin_stream, count_adoption, end_value};
use crate::{Call, Device, Error, Result, ToDevice, invalid};

/// The driver's handle of a stream. The value may be reused after the stream was destroyed; see
/// [`Streams::stream_id`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamHandle(pub u64);

impl StreamHandle {
    /// The stream every device has from the start.
    pub const DEFAULT: Self = Self(0);

    /// The default stream of the calling thread, like CUDA's per-thread default stream: one name for a different stream
    /// on each thread. [`resolved`](Self::resolved) gives the stream it stands for.
    pub const PER_THREAD: Self = Self(u64::MAX);

    /// Handles with this bit name the default stream of one thread. Drivers' handles are addresses of
    /// user space or small numbers, so none has it.
    const OF_A_THREAD: u64 = 1 << 63;

    /// The default stream of the calling thread, under a name that means the same on every thread and is never reused.
    ///
    /// A driver knows such a stream by [`PER_THREAD`](Self::PER_THREAD) alone, so only the thread it
    /// belongs to can enqueue work on it, record an event there or wait for it.
    pub fn of_this_thread() -> Self {
        thread_local! {
            // Far fewer threads than 2^63 come and go in the life of a process, so the name stays below
            // `PER_THREAD`.
            static SERIAL: u64 = {
                static LAST: AtomicU64 = AtomicU64::new(0);
                LAST.fetch_add(1, Ordering::Relaxed)
            };
        }
        // Without a destructor the number is there as long as the thread; 2^62 is no other thread's.
        let serial = SERIAL.try_with(|serial| *serial).unwrap_or(1 << 62);
        Self(Self::OF_A_THREAD | serial)
    }

    /// Replaces [`PER_THREAD`](Self::PER_THREAD) by the calling thread's own stream, and returns every other handle
    /// unchanged.
    #[inline(always)]
    #[must_use]
    pub fn resolved(self) -> Self {
        if self == Self::PER_THREAD { Self::of_this_thread() } else { self }
    }

    /// Whether this is the default stream of one thread, by either name.
    pub const fn is_per_thread(self) -> bool {
        self.0 & Self::OF_A_THREAD != 0
    }

    /// Whether this is another thread's default stream, which the calling thread can neither use nor wait for.
    pub fn is_of_another_thread(self) -> bool {
        self.is_per_thread() && self.resolved() != Self::of_this_thread()
    }
}

impl fmt::Display for StreamHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::PER_THREAD => f.write_str("the calling thread's default stream"),
            Self(value) if self.is_per_thread() => {
                write!(f, "the default stream of thread {}", value & !Self::OF_A_THREAD)
            }
            Self(value) => write!(f, "stream handle {value:#x}"),
        }
    }
}

/// The driver's handle of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventHandle(pub u64);

impl fmt::Display for EventHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event handle {:#x}", self.0)
    }
}

/// The scheduling priority of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Below normal.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Above normal.
    High,
}

/// What an event is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventKind {
    /// Ordering only, which is cheaper.
    #[default]
    Order,
    /// Ordering and timing, for [`Streams::elapsed`].
    Timed,
}

/// Whether work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// All of it.
    Done,
    /// Some of it is still to come.
    Pending,
}

/// Returns an error for another thread's default stream. For devices: a driver would take it for the calling thread's.
pub fn own_thread(call: Call, stream: StreamHandle) -> Result<()> {
    if stream.is_of_another_thread() {
        let allowed = "a stream of the calling thread: only its own thread can use the default \
                       stream of a thread";
        return Err(invalid(call, "stream", stream, allowed));
    }
    Ok(())
}

/// Returns a number for a new handle: at least 1, since 0 is the default stream, and unique in the process, so that one
/// device never mistakes another's handle for its own.
pub fn fresh_handle() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    // Only the number matters; no other memory is ordered by it.
    LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
}

/// A host function that runs in stream order. It must not call the device.
pub type HostTask = Box<dyn FnOnce() + Send>;

/// Runs a host function, for devices, and contains its panic.
pub fn run_host_task(task: HostTask) {
    // Nothing of the device is inside the task, so a panic leaves nothing of it half done.
    let Err(payload) = catch_unwind(AssertUnwindSafe(task)) else { return };
    // What was thrown may panic itself when it is dropped. What that throws is let be: a few bytes
    // lost are better than a stream.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        core::mem::forget(again);
    }
}

/// Streams of work and events in them.
///
/// # Safety
///
/// An implementation promises:
///
/// * Work on one stream runs in the order it was enqueued; work on two streams in any order that
///   events allow, but it does run: no stream that `create_stream` made waits for another without
///   being told to. A stream that others made has whatever ties its maker gave it.
/// * [`StreamHandle::DEFAULT`] is a stream like any other, and cannot be destroyed.
/// * With [`Capabilities::PER_THREAD_STREAMS`](crate::Capabilities::PER_THREAD_STREAMS) each thread
///   has a default stream of its own: [`StreamHandle::PER_THREAD`] and
///   [`StreamHandle::of_this_thread`] both mean the calling thread's, in every call. It cannot be
///   destroyed, and its identity is no other thread's, ever. Every call that is given another
///   thread's refuses it with [`Error::Invalid`]. Events order such streams with all others.
/// * `record_event` puts the event after everything enqueued on the stream before it, and replaces
///   an earlier record of the same event. `wait_event` waits for the record that was the latest
///   when it was called; without one, for nothing. `query_event` and `synchronize_event` likewise.
/// * A destroyed stream's enqueued work still runs; a destroyed event's records and waits still
///   hold. Destroying does not wait.
/// * When `synchronize_*` returns, or a query says [`Progress::Done`], what the work wrote is seen
///   by the thread that called.
/// * Events order work of several devices of one kind.
/// * A [`HostTask`] runs exactly once, even where its stream or device goes first; one that panics
///   harms no other work.
pub unsafe trait Streams {
    /// Creates a stream. Devices without priorities ignore the priority.
    fn create_stream(&self, priority: Priority) -> Result<StreamHandle>;

    /// Destroys a stream from `create_stream`.
    fn destroy_stream(&self, stream: StreamHandle) -> Result<()>;

    /// The stream's unique id: no two streams of a device ever have the same, even if the driver reuses a
    /// handle. For adopted streams, as far as the driver tells.
    fn stream_id(&self, stream: StreamHandle) -> Result<StreamId>;

    /// Whether all work of the stream is done.
    fn query_stream(&self, stream: StreamHandle) -> Result<Progress>;

    /// Waits until all work of the stream is done.
    fn synchronize_stream(&self, stream: StreamHandle) -> Result<()>;

    /// Waits until all work of all streams is done, including per-thread default streams.
    fn synchronize_device(&self) -> Result<()>;

    /// Like [`synchronize_device`](Self::synchronize_device), and where the driver can, also waits for work that other
    /// libraries of this process have on streams that were not adopted.
    fn synchronize_process(&self) -> Result<()> {
        self.synchronize_device()
    }

    /// Runs a piece of the enqueued work if this device works only while it is called, and returns whether it does.
    /// A future calls this each time it is polled, and has itself polled again.
    ///
    /// The simulated device works so. Others need not implement it.
    fn drive(&self) -> bool {
        false
    }

    /// Runs a host function in stream order.
    fn enqueue_host(&self, task: HostTask, stream: StreamHandle) -> Result<()>;

    /// Creates an event.
    fn create_event(&self, kind: EventKind) -> Result<EventHandle>;

    /// Destroys an event.
    fn destroy_event(&self, event: EventHandle) -> Result<()>;

    /// Records the event after all work enqueued on the stream.
    fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<()>;

    /// Makes later work on the stream wait for the event, on the device.
    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()>;

    /// Whether the event was reached; true for an event that was never recorded.
    fn query_event(&self, event: EventHandle) -> Result<Progress>;

    /// Waits until the event was reached.
    fn synchronize_event(&self, event: EventHandle) -> Result<()>;

    /// The time from one event to another, both [timed](EventKind::Timed), recorded and reached.
    ///
    /// [`Error::Busy`](crate::Error::Busy) until both are reached, and
    /// [`Error::Invalid`](crate::Error::Invalid) for events that are not timed or never recorded.
    fn elapsed(&self, start: EventHandle, end: EventHandle) -> Result<Duration>;
}

/// Streams that other libraries created, such as PyTorch's current stream.
///
/// A driver trusts its handles: it dereferences a wrong one instead of refusing it. So a foreign stream is
/// first adopted by an unsafe call, and every other call refuses streams that were not.
///
/// # Safety
///
/// An implementation promises:
///
/// * An adopted stream is a stream like any other for every call but `destroy_stream`, which
///   refuses it: the library that created it destroys it.
/// * Adopting counts: a stream adopted twice is known until it was forgotten twice.
/// * The value by which the driver knows the default stream is adopted as
///   [`StreamHandle::DEFAULT`]: most programs' current stream is that one.
/// * With [`Capabilities::PER_THREAD_STREAMS`](crate::Capabilities::PER_THREAD_STREAMS) the value by
///   which the driver knows the calling thread's default stream is adopted as
///   [`StreamHandle::PER_THREAD`], and so is the value of that handle itself. Once is enough for all
///   threads.
/// * A stream that `create_stream` made is refused, and so is forgetting what was not adopted.
pub unsafe trait ForeignStreams {
    /// Adopts a stream by its driver handle.
    ///
    /// # Safety
    ///
    /// * `raw` names a live stream of this device, and goes on to do so until it is forgotten as
    ///   often as it was adopted.
    unsafe fn adopt_stream(&self, raw: u64) -> Result<StreamHandle>;

    /// Undoes one [`adopt_stream`](Self::adopt_stream). Does not wait for the stream's work.
    fn forget_stream(&self, stream: StreamHandle) -> Result<()>;

    /// The driver handle of a stream, to pass to other libraries.
    fn raw_stream(&self, stream: StreamHandle) -> u64 {
        stream.0
    }
}

/// Which side destroys a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ownership {
    /// Created here, destroyed when this value is dropped.
    Owned,
    /// Created and destroyed by another library, adopted until it may be destroyed.
    Foreign,
    /// As `Foreign`, but adopted for a few calls: its owner goes on using it.
    Borrowed,
}

/// A stream of a device: created here and destroyed on drop, or borrowed from another library.
#[must_use = "an owned stream is destroyed when this value goes"]
pub struct Stream {
    device: Arc<dyn Device>,
    handle: StreamHandle,
    id: StreamId,
    ownership: Ownership,
}

impl Stream {
    /// Creates a stream that is destroyed on drop.
    pub fn new(device: &impl ToDevice, priority: Priority) -> Result<Self> {
        let device = device.to_device();
        device.descriptor().check_process(Call::CreateStream)?;
        let handle = device.create_stream(priority)?;
        Self::of(device, handle, Ownership::Owned)
    }

    /// Adopts a stream that another library made and will destroy, such as PyTorch's current stream. Dropping the
    /// last value of a stream forgets it, in the device and in all pools of it: drop it before the stream is destroyed,
    /// and not while blocks are still used on the stream.
    ///
    /// # Safety
    ///
    /// * `raw` names a live stream of `device`, and goes on to do so while the value lives.
    pub unsafe fn foreign(device: &impl ToDevice, raw: u64) -> Result<Self> {
        // SAFETY: the caller has promised what is asked there.
        unsafe { Self::adopt(device.to_device(), raw, Ownership::Foreign) }
    }

    /// Adopts a stream for a few calls. Pools keep what they know of it when the value is dropped.
    ///
    /// # Safety
    ///
    /// * As for [`foreign`](Self::foreign).
    /// * Every pool that was given the stream, or this value's handle, is told by its `forget_stream` before the
    ///   stream is destroyed. Dropping this value does not tell them. A driver may give the handle to a new stream, and
    ///   a pool that was not told takes the two for one: it reuses memory without waiting for the old stream's work.
    pub unsafe fn borrowed(device: &impl ToDevice, raw: u64) -> Result<Self> {
        // SAFETY: the caller has promised what is asked there.
        unsafe { Self::adopt(device.to_device(), raw, Ownership::Borrowed) }
    }

    /// # Safety
    ///
    /// * As for [`foreign`](Self::foreign).
    unsafe fn adopt(device: Arc<dyn Device>, raw: u64, ownership: Ownership) -> Result<Self> {
        device.descriptor().check_process(Call::AdoptStream)?;
        let streams = device.foreign_streams().ok_or_else(|| Error::Unsupported {
            call: Call::AdoptStream,
            missing: format!("{} has no streams but its own", device.descriptor()).into(),
        })?;
        // SAFETY: the caller has promised what is asked here.
        let handle = unsafe { streams.adopt_stream(raw) }?;
        Self::of(device, handle, ownership)
    }

    /// Wraps a stream to be released with the value, or right away if its identity cannot be obtained.
    fn of(device: Arc<dyn Device>, handle: StreamHandle, ownership: Ownership) -> Result<Self> {
        match ownership {
            Ownership::Owned => begin_stream(&device, handle),
            Ownership::Foreign => count_adoption(&device, handle),
            Ownership::Borrowed => {}
        }
        let mut stream = Self { device, handle, id: StreamId(0), ownership };
        stream.id = stream.device.stream_id(handle)?;
        Ok(stream)
    }

    /// The handle, for calls.
    pub fn handle(&self) -> StreamHandle {
        self.handle
    }

    /// The identity.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Whether dropping this value destroys the stream.
    pub fn is_owned(&self) -> bool {
        self.ownership == Ownership::Owned
    }

    /// Waits until all its work is done.
    pub fn synchronize(&self) -> Result<()> {
        self.device.descriptor().check_process(Call::SynchronizeStream)?;
        self.device.synchronize_stream(self.handle)
    }

    /// Whether all its work is done.
    pub fn query(&self) -> Result<Progress> {
        self.device.descriptor().check_process(Call::QueryStream)?;
        self.device.query_stream(self.handle)
    }

    /// Makes later work wait for `event`, of this device or another of its kind.
    pub fn wait(&self, event: &Event) -> Result<()> {
        let (mine, theirs) = (self.device.descriptor(), event.device.descriptor());
        if mine.kind != theirs.kind {
            let given = format!("an event of {theirs}");
            let allowed = format!("an event of a {} device", mine.kind);
            return Err(invalid(Call::WaitEvent, "event", given, allowed));
        }
        mine.check_process(Call::WaitEvent)?;
        theirs.check_process(Call::WaitEvent)?;
        self.device.wait_event(self.handle, event.handle)
    }
}

/// Releases a resource in a drop, which cannot report an error. Retries once after an error that may pass, so that a
/// single fault does not leak. In a forked child it leaks, because the parent owns it.
fn destroy(device: &Arc<dyn Device>, end: impl Fn() -> Result<()>) {
    if device.descriptor().is_from_parent() {
        return;
    }
    if end().is_err_and(|error| error.may_pass()) {
        let _ = end();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // An adopted stream may end at any time from its last adopter's drop on.
        if self.ownership != Ownership::Borrowed {
            end_value(&self.device, self.handle);
        }
        destroy(&self.device, || match self.ownership {
            Ownership::Owned => self.device.destroy_stream(self.handle),
            Ownership::Foreign | Ownership::Borrowed => {
                let streams = self.device.foreign_streams();
                streams.map_or(Ok(()), |streams| streams.forget_stream(self.handle))
            }
        });
    }
}

/// So that calls take a stream by reference.
impl From<&StreamHandle> for StreamHandle {
    fn from(handle: &Self) -> Self {
        *handle
    }
}

impl From<&Stream> for StreamHandle {
    fn from(stream: &Stream) -> Self {
        stream.handle
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("handle", &self.handle)
            .field("id", &self.id)
            .field("ownership", &self.ownership)
            .finish_non_exhaustive()
    }
}

/// An event of a device, destroyed on drop.
#[must_use = "the event is destroyed when this value goes"]
pub struct Event {
    device: Arc<dyn Device>,
    handle: EventHandle,
}

impl Event {
    /// Creates an event.
    pub fn new(device: &impl ToDevice, kind: EventKind) -> Result<Self> {
        let device = device.to_device();
        device.descriptor().check_process(Call::CreateEvent)?;
        let handle = device.create_event(kind)?;
        Ok(Self { device, handle })
    }

    /// The handle, for calls.
    pub fn handle(&self) -> EventHandle {
        self.handle
    }

    /// Records the event after all work enqueued on `stream`, which must be of the same device.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        if !Arc::ptr_eq(&self.device, &stream.device) {
            let given = format!("a stream of {}", stream.device.descriptor());
            let allowed = format!("a stream of {}, the event's device", self.device.descriptor());
            return Err(invalid(Call::RecordEvent, "stream", given, allowed));
        }
        self.device.descriptor().check_process(Call::RecordEvent)?;
        self.device.record_event(self.handle, stream.handle)
    }

    /// Whether the event was reached.
    pub fn query(&self) -> Result<Progress> {
        self.device.descriptor().check_process(Call::QueryEvent)?;
        self.device.query_event(self.handle)
    }

    /// Waits until the event was reached.
    pub fn synchronize(&self) -> Result<()> {
        self.device.descriptor().check_process(Call::SynchronizeEvent)?;
        self.device.synchronize_event(self.handle)
    }

    /// The time from `start` to this event.
    pub fn since(&self, start: &Self) -> Result<Duration> {
        self.device.descriptor().check_process(Call::Elapsed)?;
        start.device.descriptor().check_process(Call::Elapsed)?;
        self.device.elapsed(start.handle, self.handle)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        destroy(&self.device, || self.device.destroy_event(self.handle));
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("handle", &self.handle).finish_non_exhaustive()
    }
}
