//! Streams and events.

use core::time::Duration;

use forebay_core::{Bytes, StreamId};
use forebay_hal::{
    Call, Capabilities, Error, EventHandle, EventKind, HostTask, Priority, Progress, Result,
    StreamHandle, Streams, fresh_handle, invalid,
};

use super::SimDevice;
use crate::engine::{EventState, Job, Point, Reach, State, Work, lost};
use crate::machine::HandleReuse;

impl SimDevice {
    /// The point after all work of `stream`.
    fn end_of(state: &State, call: Call, stream: StreamId, handle: StreamHandle) -> Result<Point> {
        let lane = state.lanes.get(&stream);
        let lane = lane.ok_or_else(|| invalid(call, "stream", handle, "a live stream"))?;
        Ok(lane.now(stream))
    }
}

// SAFETY: the scheduler runs a stream's work in its order, and a wait only after the record that
// was the latest when it was made; a queue outlives its handle; streams that can run are picked
// with a chance above zero each time, so all do. Results are written under the lock that the
// synchronising thread takes.
unsafe impl Streams for SimDevice {
    fn create_stream(&self, priority: Priority) -> Result<StreamHandle> {
        let mut state = self.engine.enter(self.ordinal, Call::CreateStream, Bytes::ZERO)?;
        let again = state.options.handles == HandleReuse::AtOnce;
        let spare = if again { state.spare_handles.pop() } else { None };
        let handle = spare.unwrap_or_else(|| StreamHandle(fresh_handle()));
        let stream = state.add_lane(self.ordinal, priority);
        state.handles.insert((self.ordinal, handle), stream);
        Ok(handle)
    }

    fn destroy_stream(&self, stream: StreamHandle) -> Result<()> {
        let call = Call::DestroyStream;
        let (mut state, verdict) = self.engine.enter_release(self.ordinal, call)?;
        if stream == StreamHandle::DEFAULT {
            return Err(invalid(call, "stream", "the default stream", "a stream that was created"));
        }
        if stream.is_per_thread() {
            return Err(invalid(call, "stream", stream, "a stream that was created"));
        }
        let Some(id) = state.handles.remove(&(self.ordinal, stream)) else {
            let allowed = "a stream that this device created and that was not destroyed";
            return Err(invalid(call, "stream", stream, allowed));
        };
        if state.options.handles == HandleReuse::AtOnce {
            state.spare_handles.push(stream);
        }
        state.close(id);
        verdict
    }

    fn stream_id(&self, stream: StreamHandle) -> Result<StreamId> {
        let mut state = self.engine.enter(self.ordinal, Call::StreamId, Bytes::ZERO)?;
        state.stream(Call::StreamId, self.ordinal, stream)
    }

    fn query_stream(&self, stream: StreamHandle) -> Result<Progress> {
        let call = Call::QueryStream;
        let mut state = self.engine.enter(self.ordinal, call, Bytes::ZERO)?;
        let id = state.stream(call, self.ordinal, stream)?;
        let point = Self::end_of(&state, call, id, stream)?;
        state.charge(call, Bytes::ZERO);
        self.engine.poll(state, call, &point)
    }

    fn synchronize_stream(&self, stream: StreamHandle) -> Result<()> {
        let call = Call::SynchronizeStream;
        let mut state = self.engine.enter(self.ordinal, call, Bytes::ZERO)?;
        let id = state.stream(call, self.ordinal, stream)?;
        let point = Self::end_of(&state, call, id, stream)?;
        drop(self.engine.wait_for(state, call, self.ordinal, &point)?);
        Ok(())
    }

    fn synchronize_device(&self) -> Result<()> {
        let call = Call::SynchronizeDevice;
        let mut state = self.engine.enter(self.ordinal, call, Bytes::ZERO)?;
        // Destroyed streams count: their work still runs.
        let lanes = state.lanes.iter().filter(|(_, lane)| lane.device == self.ordinal);
        let points: Vec<Point> = lanes.map(|(&id, lane)| lane.now(id)).collect();
        for point in &points {
            state = self.engine.wait_for(state, call, self.ordinal, point)?;
        }
        state.saw_all(self.ordinal);
        Ok(())
    }

    fn drive(&self) -> bool {
        self.engine.drive();
        true
    }

    fn enqueue_host(&self, task: HostTask, stream: StreamHandle) -> Result<()> {
        let call = Call::EnqueueHost;
        let mut state = self.engine.enter(self.ordinal, call, Bytes::ZERO)?;
        self.descriptor.check_capability(call, Capabilities::HOST_TASKS)?;
        let stream = state.stream(call, self.ordinal, stream)?;
        state.enqueue(stream, Job::named(call.name()), Work::Task(task));
        drop(self.engine.relieve(state, stream));
        Ok(())
    }

    fn create_event(&self, kind: EventKind) -> Result<EventHandle> {
        let call = Call::CreateEvent;
        let mut state = self.engine.enter(self.ordinal, call, Bytes::ZERO)?;
        if kind == EventKind::Timed {
            self.descriptor.check_capability(call, Capabilities::TIMED_EVENTS)?;
        }
        let handle = EventHandle(fresh_handle());
        state.events.insert(handle, EventState { kind, record: None });
        Ok(handle)
    }

    fn destroy_event(&self, event: EventHandle) -> Result<()> {
        let call = Call::DestroyEvent;
        let (mut state, verdict) = self.engine.enter_release(self.ordinal, call)?;
        state.event(call, event)?;
        state.events.remove(&event);
        verdict
    }

    fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        let call = Call::RecordEvent;
        let mut state = self.engine.enter(self.ordinal, call, Bytes::ZERO)?;
        let id = state.stream(call, self.ordinal, stream)?;
        state.event(call, event)?;
        state.charge(call, Bytes::ZERO);
        state.enqueue(id, Job::named(call.name()), Work::Nothing);
        let point = Self::end_of(&state, call, id, stream)?;
        state.event(call, event)?.record = Some(point);
        drop(self.engine.relieve(state, id));
        Ok(())
    }

    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        let call = Call::WaitEvent;
        let mut state = self.engine.enter(self.ordinal, call, Bytes::ZERO)?;
        let id = state.stream(call, self.ordinal, stream)?;
        let record = state.event(call, event)?.record.clone();
        state.charge(call, Bytes::ZERO);
        if let (Some(point), Some(lane)) = (record, state.lanes.get_mut(&id)) {
            lane.clock.join(&point.clock);
            lane.time = lane.time.max(point.time);
            state.enqueue(id, Job::named(call.name()), Work::Wait(point.stream, point.number));
        }
        drop(self.engine.relieve(state, id));
        Ok(())
    }

    fn query_event(&self, event: EventHandle) -> Result<Progress> {
        let call = Call::QueryEvent;
        let mut state = self.engine.enter(self.ordinal, call, Bytes::ZERO)?;
        let record = state.event(call, event)?.record.clone();
        state.charge(call, Bytes::ZERO);
        match record {
            Some(point) => self.engine.poll(state, call, &point),
            None => Ok(Progress::Done),
        }
    }

    fn synchronize_event(&self, event: EventHandle) -> Result<()> {
        let call = Call::SynchronizeEvent;
        let mut state = self.engine.enter(self.ordinal, call, Bytes::ZERO)?;
        if let Some(point) = state.event(call, event)?.record.clone() {
            drop(self.engine.wait_for(state, call, self.ordinal, &point)?);
        }
        Ok(())
    }

    fn elapsed(&self, start: EventHandle, end: EventHandle) -> Result<Duration> {
        let call = Call::Elapsed;
        let mut state = self.engine.enter(self.ordinal, call, Bytes::ZERO)?;
        let mut times = [Duration::ZERO; 2];
        for ((argument, event), time) in
            [("start", start), ("end", end)].into_iter().zip(&mut times)
        {
            let found = state.event(call, event)?;
            let timed = found.kind == EventKind::Timed;
            let Some(point) = found.record.clone().filter(|_| timed) else {
                let allowed = "a timed event that was recorded";
                return Err(invalid(call, argument, event, allowed));
            };
            match state.reach(point.stream, point.number) {
                Reach::Done => {}
                Reach::Lost => return Err(lost(call)),
                Reach::Pending => {
                    let what = format!("{event} is not reached");
                    return Err(Error::Busy { call, what: what.into() });
                }
            }
            *time = point.time;
        }
        let [start, end] = times;
        Ok(end.saturating_sub(start))
    }
}
