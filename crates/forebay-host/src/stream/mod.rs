//! Streams: each has a queue and a worker thread, and events order them.
//!
//! ```text
//!   caller ──push──> Queue [copy][record][task] ──next──> worker thread ──> memory
//!                                   │
//!                                Record  <──wait── another stream's worker, or a caller
//! ```
//!
//! The thread starts with the first work and is never joined: destroying a stream or device closes the queue, and the
//! thread ends after the last command.

mod event;
mod queue;
mod worker;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard, PoisonError};

use forebay_core::StreamId;
use forebay_hal::{
    Call, Error, EventHandle, EventKind, HostTask, Priority, Progress, Result, StreamHandle,
    Streams, invalid,
};

pub(crate) use event::Event;
pub(crate) use queue::{EnqueueError, Queue};
pub(crate) use worker::Command;

use crate::HostDevice;

/// The streams and events of a device.
#[derive(Debug)]
pub(crate) struct StreamTable {
    /// Live streams, the default one among them.
    live: BTreeMap<StreamHandle, Arc<Queue>>,
    /// Destroyed streams whose work may not be done yet.
    draining: Vec<Arc<Queue>>,
    /// Events this device made.
    events: BTreeSet<EventHandle>,
}

impl StreamTable {
    /// The default stream and no other.
    pub(crate) fn new() -> Self {
        let default = (StreamHandle::DEFAULT, Arc::new(Queue::new()));
        Self { live: BTreeMap::from([default]), draining: Vec::new(), events: BTreeSet::new() }
    }

    /// Every stream whose work is of interest, destroyed ones that still run included.
    fn queues(&mut self) -> Vec<Arc<Queue>> {
        self.draining.retain(|queue| queue.pending() > 0);
        self.live.values().chain(&self.draining).map(Arc::clone).collect()
    }

    /// Live streams that were created, destroyed ones still at work, events, and commands to come.
    pub(crate) fn counts(&mut self) -> (usize, usize, usize, u64) {
        let queued = self.queues().iter().map(|queue| queue.pending()).sum();
        // The default stream was not created by anyone.
        (self.live.len().saturating_sub(1), self.draining.len(), self.events.len(), queued)
    }
}

impl Drop for StreamTable {
    /// Lets every worker end after its last command, without waiting for it.
    fn drop(&mut self) {
        for queue in self.live.values() {
            queue.close();
        }
        for event in &self.events {
            Event::destroy(*event);
        }
    }
}

// Events of all host devices are found by all; closed queues run empty; a task is taken out of the
// queue before it runs, so it runs once, and its panic is caught.
// SAFETY: a queue is first in, first out, with one thread of its own, so streams wait for each
// other only by records. A record is reached by the worker after everything before it, and found
// reached through a lock, which makes what was done before visible.
unsafe impl Streams for HostDevice {
    fn create_stream(&self, _priority: Priority) -> Result<StreamHandle> {
        self.descriptor.check_process(Call::CreateStream)?;
        let queue = Arc::new(Queue::new());
        let handle = StreamHandle(queue.id().0);
        self.streams().live.insert(handle, queue);
        Ok(handle)
    }

    fn destroy_stream(&self, stream: StreamHandle) -> Result<()> {
        let call = Call::DestroyStream;
        self.descriptor.check_process(call)?;
        if stream == StreamHandle::DEFAULT {
            return Err(invalid(call, "stream", "the default stream", "a stream that was created"));
        }
        let mut streams = self.streams();
        let queue = streams.live.remove(&stream).ok_or_else(|| not_a_stream(call, stream))?;
        queue.close();
        streams.draining.retain(|queue| queue.pending() > 0);
        streams.draining.push(queue);
        Ok(())
    }

    fn stream_id(&self, stream: StreamHandle) -> Result<StreamId> {
        Ok(self.queue(Call::StreamId, stream)?.id())
    }

    fn query_stream(&self, stream: StreamHandle) -> Result<Progress> {
        Ok(self.queue(Call::QueryStream, stream)?.progress())
    }

    fn synchronize_stream(&self, stream: StreamHandle) -> Result<()> {
        self.queue(Call::SynchronizeStream, stream)?.synchronize();
        Ok(())
    }

    fn synchronize_device(&self) -> Result<()> {
        self.descriptor.check_process(Call::SynchronizeDevice)?;
        let queues = self.streams().queues();
        for queue in queues {
            queue.synchronize();
        }
        Ok(())
    }

    fn enqueue_host(&self, task: HostTask, stream: StreamHandle) -> Result<()> {
        let queue = self.queue(Call::EnqueueHost, stream)?;
        self.push(Call::EnqueueHost, stream, &queue, Command::Task(task))
    }

    fn create_event(&self, kind: EventKind) -> Result<EventHandle> {
        self.descriptor.check_process(Call::CreateEvent)?;
        let handle = Event::create(kind);
        self.streams().events.insert(handle);
        Ok(handle)
    }

    fn destroy_event(&self, event: EventHandle) -> Result<()> {
        self.descriptor.check_process(Call::DestroyEvent)?;
        if !self.streams().events.remove(&event) {
            return Err(not_an_event(Call::DestroyEvent, event, OWN_EVENT));
        }
        Event::destroy(event);
        Ok(())
    }

    fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        let call = Call::RecordEvent;
        let queue = self.queue(call, stream)?;
        let own = self.streams().events.contains(&event);
        let found = Event::find(event).filter(|_| own);
        let found = found.ok_or_else(|| not_an_event(call, event, OWN_EVENT))?;
        found.record(|record| self.push(call, stream, &queue, Command::Record(record)))
    }

    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        let call = Call::WaitEvent;
        let queue = self.queue(call, stream)?;
        match find_event(call, event)?.latest() {
            Some(record) if record.progress() == Progress::Pending => {
                self.push(call, stream, &queue, Command::Wait(record))
            }
            // Nothing to wait for: never recorded, or reached already.
            _ => Ok(()),
        }
    }

    fn query_event(&self, event: EventHandle) -> Result<Progress> {
        let latest = find_event(Call::QueryEvent, event)?.latest();
        Ok(latest.map_or(Progress::Done, |record| record.progress()))
    }

    fn synchronize_event(&self, event: EventHandle) -> Result<()> {
        if let Some(record) = find_event(Call::SynchronizeEvent, event)?.latest() {
            record.wait();
        }
        Ok(())
    }

    /// Zero where the end was reached before the start, as it may be on two streams.
    fn elapsed(&self, start: EventHandle, end: EventHandle) -> Result<Duration> {
        let call = Call::Elapsed;
        let record = |argument: &'static str, handle: EventHandle| {
            let event = find_event(call, handle)?;
            if event.kind != EventKind::Timed {
                let given = format!("{handle}, made for order alone");
                return Err(invalid(call, argument, given, "an event made to be timed"));
            }
            event.latest().ok_or_else(|| {
                let given = format!("{handle}, never recorded");
                invalid(call, argument, given, "an event that was recorded")
            })
        };
        // First whether the question makes sense, then whether it can be answered already.
        let records = (record("start", start)?, record("end", end)?);
        let busy = |handle: EventHandle| Error::Busy {
            call,
            what: format!("{handle} was recorded and is not reached yet").into(),
        };
        let start = records.0.time().ok_or_else(|| busy(start))?;
        let end = records.1.time().ok_or_else(|| busy(end))?;
        Ok(end.saturating_duration_since(start))
    }
}

impl HostDevice {
    pub(crate) fn streams(&self) -> MutexGuard<'_, StreamTable> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue of a live stream.
    pub(crate) fn queue(&self, call: Call, stream: StreamHandle) -> Result<Arc<Queue>> {
        self.descriptor.check_process(call)?;
        let found = self.streams().live.get(&stream).map(Arc::clone);
        found.ok_or_else(|| not_a_stream(call, stream))
    }

    /// Enqueues work.
    pub(crate) fn push(
        &self,
        call: Call,
        stream: StreamHandle,
        queue: &Arc<Queue>,
        command: Command,
    ) -> Result<()> {
        queue.push(command, &self.space).map_err(|refused| match refused {
            // Another thread destroyed it since it was looked up.
            EnqueueError::Closed => not_a_stream(call, stream),
            EnqueueError::NoThread(error) => Error::Transient {
                call,
                reason: format!(
                    "no thread for {stream}: {error}; destroy streams that are idle, or raise the \
                     limits on threads (ulimit -u, the container's pids limit)"
                )
                .into(),
            },
        })
    }
}

fn not_a_stream(call: Call, stream: StreamHandle) -> Error {
    let allowed = "a stream of this device, created and not destroyed, or the default stream";
    invalid(call, "stream", stream, allowed)
}

/// What an event must be to be recorded or destroyed.
const OWN_EVENT: &str = "an event this device created and did not destroy";

fn not_an_event(call: Call, event: EventHandle, allowed: &str) -> Error {
    invalid(call, "event", event, allowed)
}

/// An event of any host device.
fn find_event(call: Call, event: EventHandle) -> Result<Arc<Event>> {
    let allowed = "an event that a host device created and did not destroy";
    Event::find(event).ok_or_else(|| not_an_event(call, event, allowed))
}

#[cfg(test)]
mod tests;
