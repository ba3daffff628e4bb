//! Enqueueing work, and waiting for it.

use std::time::{Duration, Instant};

use forebay_core::{Address, Bytes};

use super::super::data::{HostBytes, ensure_bytes};
use super::super::verdict::{Step, Verdict, ensure};
use super::{Bench, Resource, locked};
use crate::{
    Call, Copy, EventHandle, EventKind, Fill, Location, Pattern, Priority, Progress, StreamHandle,
};

/// How long work that nothing holds back may take before a case gives up on it. Less than a gate's
/// patience, so that work that wrongly waits for a gate is told from work that is slow.
const SOON: Duration = Duration::from_secs(2);

/// How long a case watches for something that must not happen. A device that lets it happen does
/// so within microseconds; the rest is for a loaded machine.
const WATCH: Duration = Duration::from_millis(30);

impl Bench {
    pub(crate) fn stream(&self) -> Step<StreamHandle> {
        self.stream_of(Priority::Normal)
    }

    pub(crate) fn stream_of(&self, priority: Priority) -> Step<StreamHandle> {
        self.last.set(Call::CreateStream);
        let stream = self.device.create_stream(priority)?;
        self.record(Resource::Stream(stream));
        Ok(stream)
    }

    pub(crate) fn destroy_stream(&self, stream: StreamHandle) -> Verdict {
        self.last.set(Call::DestroyStream);
        self.forget(Resource::Stream(stream));
        Ok(self.device.destroy_stream(stream)?)
    }

    pub(crate) fn event(&self) -> Step<EventHandle> {
        self.event_of(EventKind::Order)
    }

    pub(crate) fn event_of(&self, kind: EventKind) -> Step<EventHandle> {
        self.last.set(Call::CreateEvent);
        let event = self.device.create_event(kind)?;
        self.record(Resource::Event(event));
        Ok(event)
    }

    pub(crate) fn destroy_event(&self, event: EventHandle) -> Verdict {
        self.last.set(Call::DestroyEvent);
        self.forget(Resource::Event(event));
        Ok(self.device.destroy_event(event)?)
    }

    /// Makes what comes on `after` wait for what is on `before`, by a new event.
    pub(crate) fn order(&self, before: StreamHandle, after: StreamHandle) -> Step<EventHandle> {
        let event = self.event()?;
        self.device.record_event(event, before)?;
        self.device.wait_event(after, event)?;
        Ok(event)
    }

    pub(crate) fn synchronize(&self, stream: StreamHandle) -> Verdict {
        self.last.set(Call::SynchronizeStream);
        Ok(self.device.synchronize_stream(stream)?)
    }

    /// Polls until `is_so`; fails with `what` where it is not so soon.
    pub(crate) fn soon(&self, what: &str, mut is_so: impl FnMut() -> Step<bool>) -> Verdict {
        let begin = Instant::now();
        loop {
            if is_so()? {
                return Ok(());
            }
            let waited = begin.elapsed();
            ensure!(waited < SOON, "{what}: not so after {} ms", waited.as_millis());
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// The stream's work is done before long.
    pub(crate) fn done_soon(&self, what: &str, stream: StreamHandle) -> Verdict {
        self.last.set(Call::QueryStream);
        self.soon(what, || Ok(self.device.query_stream(stream)? == Progress::Done))
    }

    /// The stream's work is pending, and stays so while nobody lets it go on.
    pub(crate) fn stays_pending(&self, what: &str, stream: StreamHandle) -> Verdict {
        self.last.set(Call::QueryStream);
        let begin = Instant::now();
        while begin.elapsed() < WATCH {
            ensure!(
                self.device.query_stream(stream)? == Progress::Pending,
                "{what}: done after {} ms, before what it waits for",
                begin.elapsed().as_millis()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Host memory that stays to the end of the case.
    pub(crate) fn host(&self, bytes: &[u8]) -> HostBytes {
        let bytes = HostBytes::new(bytes);
        locked(&self.host).push(bytes.clone());
        bytes
    }

    /// Host memory of `size` equal bytes.
    pub(crate) fn blank(&self, size: u64, byte: u8) -> Step<HostBytes> {
        Ok(self.host(&vec![byte; Bytes::new(size).to_usize()?]))
    }

    /// Enqueues a copy of any shape.
    pub(crate) fn enqueue(&self, copy: &Copy, stream: StreamHandle) -> Verdict {
        self.last.set(Call::Copy);
        // SAFETY: host sides are bytes of this bench, kept to the end of the case; device sides
        // are memory the case has and gives back only when the device is done with it.
        Ok(unsafe { self.device.copy(copy, stream) }?)
    }

    /// Enqueues a copy of `size` bytes in a row.
    pub(crate) fn copy(
        &self,
        to: Location,
        from: Location,
        size: u64,
        stream: StreamHandle,
    ) -> Verdict {
        self.enqueue(&Copy::linear(to, from, Bytes::new(size))?, stream)
    }

    /// Enqueues a fill of any shape.
    pub(crate) fn enqueue_fill(&self, fill: &Fill, stream: StreamHandle) -> Verdict {
        self.last.set(Call::Fill);
        // SAFETY: as for `enqueue`.
        Ok(unsafe { self.device.fill(fill, stream) }?)
    }

    /// Enqueues a fill of `size` equal bytes.
    pub(crate) fn fill(&self, to: Address, size: u64, byte: u8, stream: StreamHandle) -> Verdict {
        self.enqueue_fill(&Fill::linear(to, Bytes::new(size), Pattern::U8(byte))?, stream)
    }

    /// Puts bytes into device memory, and waits.
    pub(crate) fn write(&self, to: Address, bytes: &[u8]) -> Verdict {
        let from = self.host(bytes);
        self.copy(Location::Device(to), from.location(), from.size().get(), StreamHandle::DEFAULT)?;
        self.synchronize(StreamHandle::DEFAULT)
    }

    /// What device memory holds, when all that was enqueued on the default stream is done.
    pub(crate) fn read(&self, from: Address, size: u64) -> Step<Vec<u8>> {
        let to = self.blank(size, 0x5a)?;
        self.copy(to.location(), Location::Device(from), size, StreamHandle::DEFAULT)?;
        self.synchronize(StreamHandle::DEFAULT)?;
        Ok(to.read())
    }

    /// Device memory holds `right`, when all that was enqueued on the default stream is done.
    pub(crate) fn ensure_holds(&self, what: &str, from: Address, right: &[u8]) -> Verdict {
        ensure_bytes(what, &self.read(from, right.len() as u64)?, right)
    }
}
