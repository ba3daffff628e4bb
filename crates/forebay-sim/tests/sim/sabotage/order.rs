//! Devices that get the order of work wrong.

use std::collections::BTreeSet;
use std::sync::Mutex;

use forebay_core::{Address, StreamId};
use forebay_hal::{Copy, Device, EventHandle, Fill, HostTask, Progress, Result, StreamHandle};
use std::sync::Arc;

use super::tamper::Tamper;

/// `wait_event` does nothing.
#[derive(Debug)]
pub(crate) struct DropsEventWait;

impl Tamper for DropsEventWait {
    fn wait_event(
        &self,
        inner: &dyn Device,
        stream: StreamHandle,
        event: EventHandle,
    ) -> Result<()> {
        inner.stream_id(stream)?;
        inner.query_event(event).map(drop)
    }
}

/// A wait follows its event to records made later.
#[derive(Debug, Default)]
pub(crate) struct WaitFollowsTheEvent {
    waits: Mutex<Vec<(StreamHandle, EventHandle)>>,
}

impl Tamper for WaitFollowsTheEvent {
    fn wait_event(
        &self,
        inner: &dyn Device,
        stream: StreamHandle,
        event: EventHandle,
    ) -> Result<()> {
        inner.wait_event(stream, event)?;
        self.waits.lock().unwrap().push((stream, event));
        Ok(())
    }

    fn record_event(
        &self,
        inner: &dyn Device,
        event: EventHandle,
        stream: StreamHandle,
    ) -> Result<()> {
        inner.record_event(event, stream)?;
        for &(waiting, of) in self.waits.lock().unwrap().iter() {
            if of == event {
                inner.wait_event(waiting, event)?;
            }
        }
        Ok(())
    }
}

/// An event keeps its first record.
#[derive(Debug, Default)]
pub(crate) struct KeepsTheFirstRecord {
    recorded: Mutex<BTreeSet<EventHandle>>,
}

impl Tamper for KeepsTheFirstRecord {
    fn record_event(
        &self,
        inner: &dyn Device,
        event: EventHandle,
        stream: StreamHandle,
    ) -> Result<()> {
        if self.recorded.lock().unwrap().insert(event) {
            return inner.record_event(event, stream);
        }
        Ok(())
    }
}

/// A query of a stream says done, whatever is left.
#[derive(Debug)]
pub(crate) struct StreamsAlwaysDone;

impl Tamper for StreamsAlwaysDone {
    fn query_stream(&self, inner: &dyn Device, stream: StreamHandle) -> Result<Progress> {
        inner.query_stream(stream).map(|_| Progress::Done)
    }
}

/// A query of an event says done, whatever is left.
#[derive(Debug)]
pub(crate) struct EventsAlwaysDone;

impl Tamper for EventsAlwaysDone {
    fn query_event(&self, inner: &dyn Device, event: EventHandle) -> Result<Progress> {
        inner.query_event(event).map(|_| Progress::Done)
    }
}

/// `synchronize_stream` returns at once.
#[derive(Debug)]
pub(crate) struct SynchronizeReturnsAtOnce;

impl Tamper for SynchronizeReturnsAtOnce {
    fn synchronize_stream(&self, inner: &dyn Device, stream: StreamHandle) -> Result<()> {
        inner.stream_id(stream).map(drop)
    }
}

/// `synchronize_event` waits for the whole device.
#[derive(Debug)]
pub(crate) struct SynchronizesTooMuch;

impl Tamper for SynchronizesTooMuch {
    fn synchronize_event(&self, inner: &dyn Device, event: EventHandle) -> Result<()> {
        inner.query_event(event).map(drop)?;
        inner.synchronize_device()
    }
}

/// `free` waits for the device.
#[derive(Debug)]
pub(crate) struct FreeWaits;

impl Tamper for FreeWaits {
    unsafe fn free(&self, inner: &dyn Device, address: Address) -> Result<()> {
        inner.synchronize_device()?;
        // SAFETY: the caller keeps the contract of the call itself.
        unsafe { inner.free(address) }
    }
}

/// `destroy_stream` waits for the stream.
#[derive(Debug)]
pub(crate) struct DestroyWaits;

impl Tamper for DestroyWaits {
    fn destroy_stream(&self, inner: &dyn Device, stream: StreamHandle) -> Result<()> {
        inner.synchronize_stream(stream)?;
        inner.destroy_stream(stream)
    }
}

/// All streams are one: copies, fills and tasks run on the default stream.
#[derive(Debug, Default)]
pub(crate) struct WorkGoesToOneStream;

impl WorkGoesToOneStream {
    fn live(inner: &dyn Device, stream: StreamHandle) -> Result<StreamHandle> {
        inner.stream_id(stream)?;
        Ok(StreamHandle::DEFAULT)
    }
}

impl Tamper for WorkGoesToOneStream {
    fn enqueue_host(&self, inner: &dyn Device, task: HostTask, stream: StreamHandle) -> Result<()> {
        inner.enqueue_host(task, Self::live(inner, stream)?)
    }

    unsafe fn copy(&self, inner: &dyn Device, copy: &Copy, stream: StreamHandle) -> Result<()> {
        // SAFETY: the caller keeps the contract of the call itself.
        unsafe { inner.copy(copy, Self::live(inner, stream)?) }
    }

    unsafe fn fill(&self, inner: &dyn Device, fill: &Fill, stream: StreamHandle) -> Result<()> {
        // SAFETY: the caller keeps the contract of the call itself.
        unsafe { inner.fill(fill, Self::live(inner, stream)?) }
    }

    fn query_stream(&self, inner: &dyn Device, stream: StreamHandle) -> Result<Progress> {
        inner.query_stream(Self::live(inner, stream)?)
    }

    fn synchronize_stream(&self, inner: &dyn Device, stream: StreamHandle) -> Result<()> {
        inner.synchronize_stream(Self::live(inner, stream)?)
    }
}

/// The default streams of all threads are one, as where their one name is taken for a stream's.
#[derive(Debug)]
pub(crate) struct OwnStreamsAreOne;

fn shared(stream: StreamHandle) -> StreamHandle {
    if stream.is_per_thread() { StreamHandle::DEFAULT } else { stream }
}

impl Tamper for OwnStreamsAreOne {
    fn stream_id(&self, inner: &dyn Device, stream: StreamHandle) -> Result<StreamId> {
        inner.stream_id(shared(stream))
    }

    fn query_stream(&self, inner: &dyn Device, stream: StreamHandle) -> Result<Progress> {
        inner.query_stream(shared(stream))
    }

    fn synchronize_stream(&self, inner: &dyn Device, stream: StreamHandle) -> Result<()> {
        inner.synchronize_stream(shared(stream))
    }

    fn enqueue_host(&self, inner: &dyn Device, task: HostTask, stream: StreamHandle) -> Result<()> {
        inner.enqueue_host(task, shared(stream))
    }

    unsafe fn copy(&self, inner: &dyn Device, copy: &Copy, stream: StreamHandle) -> Result<()> {
        // SAFETY: the caller keeps the contract of the call itself.
        unsafe { inner.copy(copy, shared(stream)) }
    }

    unsafe fn fill(&self, inner: &dyn Device, fill: &Fill, stream: StreamHandle) -> Result<()> {
        // SAFETY: the caller keeps the contract of the call itself.
        unsafe { inner.fill(fill, shared(stream)) }
    }
}

/// `synchronize_device` sees the calling thread's default stream alone.
#[derive(Debug)]
pub(crate) struct SynchronizesOwnThreadAlone;

impl Tamper for SynchronizesOwnThreadAlone {
    fn synchronize_device(&self, inner: &dyn Device) -> Result<()> {
        inner.synchronize_stream(StreamHandle::DEFAULT)?;
        inner.synchronize_stream(StreamHandle::PER_THREAD)
    }
}

/// Every stream has the same identity.
#[derive(Debug)]
pub(crate) struct ReusesStreamIds;

impl Tamper for ReusesStreamIds {
    fn stream_id(&self, inner: &dyn Device, stream: StreamHandle) -> Result<StreamId> {
        inner.stream_id(stream).map(|_| StreamId(1))
    }
}

/// Host tasks are taken and forgotten.
#[derive(Debug)]
pub(crate) struct TasksNeverRun;

impl Tamper for TasksNeverRun {
    fn enqueue_host(&self, inner: &dyn Device, task: HostTask, stream: StreamHandle) -> Result<()> {
        drop(task);
        inner.enqueue_host(Box::new(|| ()), stream)
    }
}

/// Host tasks run when they are enqueued, not in their turn.
#[derive(Debug)]
pub(crate) struct TasksRunAtOnce;

impl Tamper for TasksRunAtOnce {
    fn enqueue_host(&self, inner: &dyn Device, task: HostTask, stream: StreamHandle) -> Result<()> {
        inner.stream_id(stream)?;
        task();
        Ok(())
    }
}

/// Host tasks of a stream that was destroyed meanwhile do not run.
#[derive(Debug, Default)]
pub(crate) struct TasksDieWithTheirStream {
    destroyed: Arc<Mutex<BTreeSet<StreamHandle>>>,
}

impl Tamper for TasksDieWithTheirStream {
    fn enqueue_host(&self, inner: &dyn Device, task: HostTask, stream: StreamHandle) -> Result<()> {
        let destroyed = Arc::clone(&self.destroyed);
        let unless_destroyed = move || {
            if !destroyed.lock().unwrap().contains(&stream) {
                task();
            }
        };
        inner.enqueue_host(Box::new(unless_destroyed), stream)
    }

    fn destroy_stream(&self, inner: &dyn Device, stream: StreamHandle) -> Result<()> {
        inner.destroy_stream(stream)?;
        self.destroyed.lock().unwrap().insert(stream);
        Ok(())
    }
}

/// `synchronize_device` never returns.
#[derive(Debug)]
pub(crate) struct SynchronizeHangs;

impl Tamper for SynchronizeHangs {
    fn synchronize_device(&self, _: &dyn Device) -> Result<()> {
        loop {
            std::thread::park();
        }
    }
}

/// `query_event` unwinds instead of giving an error.
#[derive(Debug)]
pub(crate) struct QueryPanics;

impl Tamper for QueryPanics {
    fn query_event(&self, _: &dyn Device, _: EventHandle) -> Result<Progress> {
        // As a panic does, without the hook's words in the test's output.
        std::panic::resume_unwind(Box::new("on purpose"))
    }
}

/// An adopted stream is never forgotten.
#[derive(Debug)]
pub(crate) struct ForgetsNoStream;

impl Tamper for ForgetsNoStream {
    fn forget_stream(&self, inner: &dyn Device, stream: StreamHandle) -> Result<()> {
        inner.stream_id(stream).map(drop)
    }
}
