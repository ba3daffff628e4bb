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
use std::sync::{Arc, MutexGuard, PoisonError};

use forebay_core::StreamId;
use forebay_hal::{
    Call, Error, EventHandle, EventKind, HostTask, Priority, Progress, Result, StreamHandle,
    StreamTable, Streams, invalid,
};

pub(crate) use event::EVENTS;
pub(crate) use queue::{EnqueueError, Queue};
pub(crate) use worker::Command;

use crate::HostDevice;

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
        self.streams().insert(handle, queue);
        Ok(handle)
    }

    fn destroy_stream(&self, stream: StreamHandle) -> Result<()> {
        self.descriptor.check_process(Call::DestroyStream)?;
        let mut streams = self.streams();
        streams.destroy(stream)?.close();
        streams.settle(Queue::is_done);
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
        let queues = self.streams().all();
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
        Ok(EVENTS.create(kind, self.serial))
    }

    fn destroy_event(&self, event: EventHandle) -> Result<()> {
        self.descriptor.check_process(Call::DestroyEvent)?;
        EVENTS.destroy(event, self.serial)
    }

    fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        let call = Call::RecordEvent;
        let queue = self.queue(call, stream)?;
        let event = EVENTS.own(call, event, self.serial)?;
        event.state.record(|record| self.push(call, stream, &queue, Command::Record(record)))
    }

    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        let call = Call::WaitEvent;
        let queue = self.queue(call, stream)?;
        match EVENTS.get(call, event)?.state.get() {
            Some(record) if record.progress() == Progress::Pending => {
                self.push(call, stream, &queue, Command::Wait(record))
            }
            // Nothing to wait for: never recorded, or reached already.
            _ => Ok(()),
        }
    }

    fn query_event(&self, event: EventHandle) -> Result<Progress> {
        let latest = EVENTS.get(Call::QueryEvent, event)?.state.get();
        Ok(latest.map_or(Progress::Done, |record| record.progress()))
    }

    fn synchronize_event(&self, event: EventHandle) -> Result<()> {
        if let Some(record) = EVENTS.get(Call::SynchronizeEvent, event)?.state.get() {
            record.wait();
        }
        Ok(())
    }

    /// Zero where the end was reached before the start, as it may be on two streams.
    fn elapsed(&self, start: EventHandle, end: EventHandle) -> Result<Duration> {
        let call = Call::Elapsed;
        let record = |argument: &'static str, handle: EventHandle| {
            let event = EVENTS.get(call, handle)?;
            if event.kind != EventKind::Timed {
                let given = format!("{handle}, made for order alone");
                return Err(invalid(call, argument, given, "an event made to be timed"));
            }
            event.state.get().ok_or_else(|| {
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
    pub(crate) fn streams(&self) -> MutexGuard<'_, StreamTable<Queue>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue of a live stream.
    pub(crate) fn queue(&self, call: Call, stream: StreamHandle) -> Result<Arc<Queue>> {
        self.descriptor.check_process(call)?;
        self.streams().get(call, stream)
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
            EnqueueError::Closed => StreamTable::<Queue>::unknown(call, stream),
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

#[cfg(test)]
mod tests;
