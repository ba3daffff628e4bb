//! The stream and event calls of the device.

use core::time::Duration;
use std::sync::Arc;

use forebay_core::StreamId;
use forebay_hal::{
    Asked, Call, Error, EventHandle, EventKind, HostTask, Priority, Progress, Result, StreamHandle,
    Streams, fresh_handle, invalid,
};
use forebay_sync::lock;

use crate::code::Outcome;
use crate::event::{EVENTS, Record, awaited};
use crate::stream::{StreamQueue, about};
use crate::{OpenClDevice, task};

impl OpenClDevice {
    /// The queue of a live stream.
    pub(crate) fn queue(&self, call: Call, stream: StreamHandle) -> Result<Arc<StreamQueue>> {
        self.descriptor.check_process(call)?;
        lock(&self.streams).get(call, stream)
    }

    /// Lets destroyed streams whose work is done be used again.
    fn settle(&self) {
        let over = lock(&self.streams).settle(StreamQueue::is_over);
        lock(&self.context.idle).extend(over);
    }

    /// The outcome of a call about an event.
    fn settled<T>(&self, call: Call, event: EventHandle, outcome: Outcome<T>) -> Result<T> {
        let settled =
            outcome.map_err(self.refusing(call, || Asked::of("event", event, "a live event")))?;
        self.lost.check(call)?;
        Ok(settled)
    }
}

// SAFETY: a queue keeps the order of its commands, by itself or by the events of their predecessors, and
// every submission of commands is sent to the device when it ends. Queues wait for each other by barriers on events
// alone. A task runs when its callback or the call has handed it over, once, and the queue waits for its end.
unsafe impl Streams for OpenClDevice {
    fn create_stream(&self, priority: Priority) -> Result<StreamHandle> {
        let call = Call::CreateStream;
        self.descriptor.check_process(call)?;
        self.settle();
        let queue = StreamQueue::take(self.context, self.order, priority).map_err(|refusal| {
            let asked = Asked::of("priority", format!("{priority:?}"), "low, normal or high");
            self.refused(call, refusal, &asked)
        })?;
        let handle = StreamHandle(fresh_handle());
        lock(&self.streams).insert(handle, queue);
        Ok(handle)
    }

    fn destroy_stream(&self, stream: StreamHandle) -> Result<()> {
        self.descriptor.check_process(Call::DestroyStream)?;
        lock(&self.streams).destroy(stream)?;
        self.settle();
        Ok(())
    }

    fn stream_id(&self, stream: StreamHandle) -> Result<StreamId> {
        self.queue(Call::StreamId, stream)?;
        // Handles never come back, so they are identities.
        Ok(StreamId(stream.0))
    }

    fn query_stream(&self, stream: StreamHandle) -> Result<Progress> {
        let call = Call::QueryStream;
        let queue = self.queue(call, stream)?;
        let progress = queue.progress();
        let progress = progress.map_err(self.refusing(call, || about(stream)))?;
        self.lost.check(call)?;
        Ok(progress)
    }

    fn synchronize_stream(&self, stream: StreamHandle) -> Result<()> {
        let call = Call::SynchronizeStream;
        let queue = self.queue(call, stream)?;
        queue.wait().map_err(self.refusing(call, || about(stream)))?;
        self.lost.check(call)
    }

    fn synchronize_device(&self) -> Result<()> {
        let call = Call::SynchronizeDevice;
        self.descriptor.check_process(call)?;
        let queues = lock(&self.streams).all();
        // All are waited for, whatever one of them says.
        let outcomes: Vec<_> = queues.iter().map(|queue| queue.wait()).collect();
        let waited = outcomes.into_iter().collect::<Outcome<()>>();
        waited.map_err(self.refusing(call, || about(StreamHandle::DEFAULT)))?;
        self.lost.check(call)
    }

    fn enqueue_host(&self, task: HostTask, stream: StreamHandle) -> Result<()> {
        let call = Call::EnqueueHost;
        let queue = self.queue(call, stream)?;
        task::enqueue(&mut queue.begin(), task).map_err(self.refusing(call, || about(stream)))
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
        let named = EVENTS.own(call, event, self.serial)?;
        let mut latest = lock(&named.state);
        let event = match named.kind {
            // The last command's event will do: nothing is enqueued for this.
            EventKind::Order => queue.tail(),
            EventKind::Timed => {
                let marked = queue.begin().mark();
                Some(marked.map_err(self.refusing(call, || about(stream)))?)
            }
        };
        *latest = Some(Record { context: queue.context, event });
        Ok(())
    }

    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        let call = Call::WaitEvent;
        let queue = self.queue(call, stream)?;
        let Some((context, awaited)) = awaited(&*EVENTS.get(call, event)?) else { return Ok(()) };
        if awaited.is_over() {
            return Ok(());
        }
        let mut submission = queue.begin();
        let waited = if core::ptr::eq(context, queue.context) {
            submission.join(&[&awaited])
        } else {
            // OpenCL's waits end at the context; a thread of ours carries the news across.
            task::enqueue_after(&mut submission, Some(&awaited), Box::new(|| ()))
        };
        waited.map_err(self.refusing(call, || Asked::of("event", event, "an event of OpenCL")))
    }

    fn query_event(&self, event: EventHandle) -> Result<Progress> {
        let call = Call::QueryEvent;
        self.descriptor.check_process(call)?;
        let awaited = awaited(&*EVENTS.get(call, event)?);
        self.settled(call, event, awaited.map_or(Ok(Progress::Done), |(_, event)| event.progress()))
    }

    fn synchronize_event(&self, event: EventHandle) -> Result<()> {
        let call = Call::SynchronizeEvent;
        self.descriptor.check_process(call)?;
        let awaited = awaited(&*EVENTS.get(call, event)?);
        self.settled(call, event, awaited.map_or(Ok(()), |(_, event)| event.wait()))
    }

    fn elapsed(&self, start: EventHandle, end: EventHandle) -> Result<Duration> {
        let call = Call::Elapsed;
        self.descriptor.check_process(call)?;
        let find = |argument, handle| {
            let event = EVENTS.get(call, handle)?;
            let lack = match event.kind {
                EventKind::Order => "made for order alone",
                EventKind::Timed => "never recorded",
            };
            awaited(&event).filter(|_| event.kind == EventKind::Timed).ok_or_else(|| {
                let given = format!("{handle}, {lack}");
                invalid(call, argument, given, "a timed event that was recorded")
            })
        };
        let ((here, first), (there, last)) = (find("start", start)?, find("end", end)?);
        if !core::ptr::eq(here, there) {
            let given = format!("{end}, of another device than {start}");
            return Err(invalid(call, "end", given, "events of one device, which has one clock"));
        }
        for (handle, event) in [(start, &first), (end, &last)] {
            if self.settled(call, handle, event.progress())? == Progress::Pending {
                let what = format!("{handle} was recorded and is not reached yet");
                return Err(Error::Busy { call, what: what.into() });
            }
        }
        let first = self.settled(call, start, first.end_time())?;
        let last = self.settled(call, end, last.end_time())?;
        // Zero where the end was reached before the start, as it may be on two streams.
        Ok(Duration::from_nanos(last.saturating_sub(first)))
    }
}
