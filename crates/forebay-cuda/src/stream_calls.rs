//! The stream and event calls of the device.

use core::time::Duration;
use std::sync::{Arc, PoisonError};

use forebay_core::StreamId;
use forebay_hal::{
    Asked, Call, Error, EventHandle, EventKind, ForeignStreams, HostTask, Priority, Progress,
    Result, StreamHandle, Streams, fresh_handle, invalid, own_thread,
};
use forebay_sync::lock;

use crate::device::CudaDevice;
use crate::event::EventCore;
use crate::stream::{OURS, StreamCore, StreamEntry, StreamOwner, query};
use crate::sys::{Code, Outcome, RawStream};

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

    pub(crate) fn wait_for(&self, core: &StreamCore) -> Outcome {
        // SAFETY: the stream is live: made here and never destroyed, or adopted and not forgotten.
        self.context.call(|table| unsafe { table.stream_synchronize(core.raw) })
    }

    /// A live event.
    fn event(&self, call: Call, event: EventHandle) -> Result<Arc<EventCore>> {
        let events = self.driver.events.read().unwrap_or_else(PoisonError::into_inner);
        events.get(&event.0).cloned().ok_or_else(|| not_an_event(call, event))
    }

    /// An event this device made.
    fn own_event(&self, call: Call, event: EventHandle) -> Result<Arc<EventCore>> {
        let found = self.event(call, event)?;
        if found.is_of(self.serial) { Ok(found) } else { Err(not_an_event(call, event)) }
    }

    /// Refuses a stream of another context if the driver can tell: our events cannot be recorded on it.
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
        let core = self.pools.streams.take(priority).map_err(|refusal| {
            let asked = Asked::of("priority", format!("{priority:?}"), "low, normal or high");
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
        // If the driver gives no id, a thread's default stream takes one from the thread's number, which is never
        // reused: counted down from the top, where the ids of streams created here never get to.
        let otherwise = if known.core.is_per_thread() {
            StreamId(!StreamHandle::of_this_thread().0 | OURS)
        } else {
            known.id
        };
        // Asked each time: its owner may have destroyed it and got the same handle for a new stream.
        let mut id = 0;
        // SAFETY: the stream is live until it is forgotten, by the promise of who adopted it.
        let told =
            self.context.call(|table| unsafe { table.stream_get_id(known.core.raw, &raw mut id) });
        if told.is_err() && known.core.is_per_thread() {
            // This makes the driver create the stream, as giving its id would have.
            let _ = query(self.context, known.core.raw);
        }
        Ok(told.map_or(otherwise, |()| StreamId(id & !OURS)))
    }

    fn query_stream(&self, stream: StreamHandle) -> Result<Progress> {
        let call = Call::QueryStream;
        let core = self.stream(call, stream)?;
        query(self.context, core.raw)
            .map_err(self.refusing(call, || Asked::of("stream", stream, "a live stream")))
    }

    fn synchronize_stream(&self, stream: StreamHandle) -> Result<()> {
        let call = Call::SynchronizeStream;
        let core = self.stream(call, stream)?;
        self.wait_for(&core)
            .map_err(self.refusing(call, || Asked::of("stream", stream, "a live stream")))
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
                // Another library destroyed it without telling us.
                Err(refusal) if refusal.understood() == Code::ERROR_INVALID_HANDLE => {
                    return self.synchronize_process();
                }
                Err(refusal) => {
                    let given = StreamHandle(core.raw.0);
                    let asked = Asked::of("stream", given, "a live stream");
                    return Err(self.refused(call, refusal, &asked));
                }
            }
        }
        Ok(())
    }

    /// Waits for all work of the context, including other libraries'.
    fn synchronize_process(&self) -> Result<()> {
        // Fails if the driver lacks the function, which is better than returning before the work is done.
        self.context.synchronize().map_err(|refusal| {
            let asked = Asked::of("device", &self.descriptor, "a device that is up");
            self.refused(Call::SynchronizeDevice, refusal, &asked)
        })
    }

    fn enqueue_host(&self, task: HostTask, stream: StreamHandle) -> Result<()> {
        let call = Call::EnqueueHost;
        let core = self.stream(call, stream)?;
        if !self.context.has_tasks() {
            let needed = self.context.table().stream_wait_value.symbol;
            let missing = format!(
                "functions of the host in stream order need {}, which came with {}",
                needed.name,
                needed.since()
            );
            return Err(Error::Unsupported { call, missing: missing.into() });
        }
        let lane = core.lane();
        let mut lane = lock(&lane);
        self.pools
            .tasks
            .enqueue(task, core.raw, &mut lane.signal)
            .map_err(self.refusing(call, || Asked::of("stream", stream, "a live stream")))
    }

    fn create_event(&self, kind: EventKind) -> Result<EventHandle> {
        let core = self.pools.events.take(kind, self.serial).map_err(|refusal| {
            let asked = Asked::of("kind", format!("{kind:?}"), "order or timed");
            self.refused(Call::CreateEvent, refusal, &asked)
        })?;
        let handle = fresh_handle();
        let mut events = self.driver.events.write().unwrap_or_else(PoisonError::into_inner);
        events.insert(handle, Arc::new(core));
        Ok(EventHandle(handle))
    }

    fn destroy_event(&self, event: EventHandle) -> Result<()> {
        self.own_event(Call::DestroyEvent, event)?;
        let mut events = self.driver.events.write().unwrap_or_else(PoisonError::into_inner);
        // Two threads may both have found it, and only one of them removes it.
        match events.remove(&event.0) {
            Some(_) => Ok(()),
            None => Err(not_an_event(Call::DestroyEvent, event)),
        }
    }

    fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        let call = Call::RecordEvent;
        let lane = self.stream(call, stream)?;
        let event = self.own_event(call, event)?;
        event.record(lane.raw).map_err(|refusal| {
            let asked = Asked::of("stream", stream, "a live stream of the event's context");
            self.refused(call, refusal, &asked)
        })
    }

    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        let call = Call::WaitEvent;
        let lane = self.stream(call, stream)?;
        let core = self.event(call, event)?;
        if !core.is_recorded() {
            return Ok(());
        }
        core.hold_back(lane.raw)
            .map_err(self.refusing(call, || Asked::of("event", event, "an event of this machine")))
    }

    fn query_event(&self, event: EventHandle) -> Result<Progress> {
        let call = Call::QueryEvent;
        let core = self.event(call, event)?;
        core.query().map_err(self.refusing(call, || Asked::of("event", event, "a live event")))
    }

    fn synchronize_event(&self, event: EventHandle) -> Result<()> {
        let call = Call::SynchronizeEvent;
        let core = self.event(call, event)?;
        core.synchronize()
            .map_err(self.refusing(call, || Asked::of("event", event, "a live event")))
    }

    fn elapsed(&self, start: EventHandle, end: EventHandle) -> Result<Duration> {
        let call = Call::Elapsed;
        let cores = [("start", start), ("end", end)].map(|(argument, handle)| {
            let core = self.event(call, handle)?;
            if core.kind != EventKind::Timed || !core.is_recorded() {
                let lack = if core.is_recorded() { "keeps no time" } else { "was never recorded" };
                let given = format!("{handle}, which {lack}");
                return Err(invalid(call, argument, given, "a timed event that was recorded"));
            }
            Ok(core)
        });
        let [first, last] = cores;
        let (first, last) = (first?, last?);
        let mut milliseconds = 0.0_f32;
        let told = self.context.call(|table| {
            // SAFETY: both events are live while their values are, and the time is written to a
            // place of our own.
            unsafe { table.event_elapsed(&raw mut milliseconds, first.raw, last.raw) }
        });
        told.map_err(|refusal| match refusal.code {
            Code::ERROR_NOT_READY => {
                Error::Busy { call, what: format!("{start} or {end} was not reached yet").into() }
            }
            _ => {
                let given = format!("{start} and {end}");
                self.refused(call, refusal, &Asked::of("start", given, "events of one device"))
            }
        })?;
        // An end before its start is a negative time, which counts as zero.
        Ok(Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).unwrap_or_default())
    }
}

// SAFETY: adopted streams are in the table every call looks into, with a count; a stream of the
// device's own and one of another context are refused.
unsafe impl ForeignStreams for CudaDevice {
    unsafe fn adopt_stream(&self, raw: u64) -> Result<StreamHandle> {
        let call = Call::AdoptStream;
        // Both names of the legacy default stream become one. This stream synchronizes with others implicitly:
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
            known.core.close(&self.pools.stages);
            table.known.remove(&place);
        }
        Ok(())
    }

    fn raw_stream(&self, stream: StreamHandle) -> u64 {
        if stream.is_per_thread() { RawStream::PER_THREAD.0 } else { stream.0 }
    }
}

/// The key of a stream in the table. Both names of the calling thread's default stream have the same key; another
/// thread's default stream is not in the table.
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

fn not_an_event(call: Call, event: EventHandle) -> Error {
    invalid(call, "event", event, "an event that was made and not destroyed")
}
