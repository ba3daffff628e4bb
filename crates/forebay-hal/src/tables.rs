//! Tables that devices keep of their streams and events, by handle.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_sync::fork::PerProcess;

use crate::{Call, Error, EventHandle, EventKind, Result, StreamHandle, fresh_handle, invalid};

/// The streams of a device. `S` is what the device keeps of one.
#[derive(Debug)]
pub struct StreamTable<S> {
    live: BTreeMap<StreamHandle, Arc<S>>,
    /// Destroyed streams whose work may not be done.
    draining: Vec<Arc<S>>,
}

impl<S> StreamTable<S> {
    /// The default stream and no other.
    pub fn new(default: Arc<S>) -> Self {
        Self { live: BTreeMap::from([(StreamHandle::DEFAULT, default)]), draining: Vec::new() }
    }

    /// Adds a stream.
    pub fn insert(&mut self, handle: StreamHandle, stream: Arc<S>) {
        self.live.insert(handle, stream);
    }

    /// A live stream.
    pub fn get(&self, call: Call, handle: StreamHandle) -> Result<Arc<S>> {
        let found = self.live.get(&handle).map(Arc::clone);
        found.ok_or_else(|| Self::unknown(call, handle))
    }

    /// Ends the handle of a created stream, whose work still runs.
    pub fn destroy(&mut self, handle: StreamHandle) -> Result<Arc<S>> {
        let call = Call::DestroyStream;
        if handle == StreamHandle::DEFAULT {
            return Err(invalid(call, "stream", "the default stream", "a stream that was created"));
        }
        let stream = self.live.remove(&handle).ok_or_else(|| Self::unknown(call, handle))?;
        self.draining.push(Arc::clone(&stream));
        Ok(stream)
    }

    /// Removes the destroyed streams whose work is done, and returns them.
    pub fn settle(&mut self, is_done: impl Fn(&S) -> bool) -> Vec<Arc<S>> {
        self.draining.extract_if(.., |stream| is_done(stream)).collect()
    }

    /// Every stream that may have work.
    pub fn all(&self) -> Vec<Arc<S>> {
        self.live.values().chain(&self.draining).map(Arc::clone).collect()
    }

    /// The number of live streams, with the default one, and of destroyed ones.
    pub fn counts(&self) -> (usize, usize) {
        (self.live.len(), self.draining.len())
    }

    /// The error for a handle that is no live stream's.
    pub fn unknown(call: Call, handle: StreamHandle) -> Error {
        let allowed = "a stream of this device, created and not destroyed, or the default stream";
        invalid(call, "stream", handle, allowed)
    }
}

/// An event: its handle may be ended while waits still refer to `state`.
#[derive(Debug)]
pub struct EventEntry<E> {
    /// What it is for.
    pub kind: EventKind,
    /// What the devices keep of it.
    pub state: E,
    owner: u64,
}

/// The events of all devices of one kind, since one device's streams may wait for another's event. A forked child knows
/// none of its parent's.
pub struct EventTable<E: 'static>(PerProcess<BTreeMap<EventHandle, Arc<EventEntry<E>>>>);

impl<E: Default + Send + Sync + 'static> EventTable<E> {
    /// An empty table for a static.
    #[allow(clippy::new_without_default, reason = "only statics are of use")]
    pub const fn new() -> Self {
        Self(PerProcess::new())
    }

    /// Creates an event of the device with the number `owner`.
    pub fn create(&'static self, kind: EventKind, owner: u64) -> EventHandle {
        let handle = EventHandle(fresh_handle());
        let entry = EventEntry { kind, state: E::default(), owner };
        self.0.lock().insert(handle, Arc::new(entry));
        handle
    }

    /// An event of any of the devices.
    pub fn get(&'static self, call: Call, handle: EventHandle) -> Result<Arc<EventEntry<E>>> {
        self.0.lock().get(&handle).map(Arc::clone).ok_or_else(|| unknown_event(call, handle))
    }

    /// An event of the device with the number `owner`, which alone records and destroys it.
    pub fn own(
        &'static self,
        call: Call,
        handle: EventHandle,
        owner: u64,
    ) -> Result<Arc<EventEntry<E>>> {
        let found = self.get(call, handle)?;
        if found.owner == owner { Ok(found) } else { Err(unknown_event(call, handle)) }
    }

    /// Ends the handle of an event of the device `owner`. Records and waits that were made stay.
    pub fn destroy(&'static self, handle: EventHandle, owner: u64) -> Result<()> {
        let call = Call::DestroyEvent;
        self.own(call, handle, owner)?;
        // Two threads may both have found it; one of them is too late.
        let removed = self.0.lock().remove(&handle);
        removed.map(drop).ok_or_else(|| unknown_event(call, handle))
    }

    /// Ends the handles of a device that goes.
    pub fn forget_all_of(&'static self, owner: u64) {
        self.0.lock().retain(|_, event| event.owner != owner);
    }

    /// The number of events of a device.
    pub fn count_of(&'static self, owner: u64) -> usize {
        self.0.lock().values().filter(|event| event.owner == owner).count()
    }
}

fn unknown_event(call: Call, handle: EventHandle) -> Error {
    invalid(call, "event", handle, "an event that was created and not destroyed")
}
