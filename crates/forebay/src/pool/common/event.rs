//! Events: each allocation, free and refusal of a pool. Off by default, because a pool that records them takes the slow
//! path for every call.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use crate::Tag;
use crate::callback::Callbacks;
use crate::report::{EventAction, PoolEvent};
use crate::sync::lock;

/// Called with every event.
pub(in crate::pool) type Observer = Arc<dyn Fn(&PoolEvent) + Send + Sync>;

/// The last events, as many as the setting `history` keeps, and the observers that are called with each.
pub(in crate::pool) struct History {
    begun: Instant,
    events: Mutex<Events>,
    callbacks: Callbacks,
}

struct Events {
    last: VecDeque<PoolEvent>,
    most: usize,
    /// Replaced as a whole when it changes, so that each event reaches exactly those who observed when it was recorded.
    observers: Arc<Vec<Observer>>,
}

impl History {
    pub(in crate::pool) fn new(
        most: usize,
        observers: Vec<Observer>,
        callbacks: Callbacks,
    ) -> Self {
        let events = Events { last: VecDeque::new(), most, observers: Arc::new(observers) };
        Self { begun: Instant::now(), events: Mutex::new(events), callbacks }
    }

    /// Whether there are observers.
    pub(in crate::pool) fn is_observed(&self) -> bool {
        !self.events().observers.is_empty()
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        lock(&self.events)
    }

    /// Sets how many events are kept.
    pub(in crate::pool) fn set_most(&self, most: usize) {
        let mut events = self.events();
        events.most = most;
        while events.last.len() > most {
            events.last.pop_front();
        }
    }

    /// Records an event and calls the observers with it. Drops the oldest event if there are too many.
    pub(in crate::pool) fn note(
        &self,
        action: EventAction,
        address: Address,
        requested: Bytes,
        stream: StreamHandle,
        tag: Tag,
    ) {
        let mut events = self.events();
        // Read under the lock, so that the events are in the order of their times.
        let time = self.begun.elapsed();
        let event = PoolEvent { time, action, address, requested, stream, tag };
        if events.most > 0 {
            if events.last.len() >= events.most {
                events.last.pop_front();
            }
            events.last.push_back(event);
        }
        let observers = Arc::clone(&events.observers);
        drop(events);
        for observer in observers.iter() {
            self.callbacks.call(|| observer(&event));
        }
    }

    /// Passes every event from now on to `observer`, and before that an allocation for each of `live`.
    ///
    /// Holds the lock, so that an event recorded by another thread meanwhile comes after those of the live blocks.
    pub(in crate::pool) fn attach(
        &self,
        observer: &Observer,
        live: impl FnOnce() -> Vec<(Address, Bytes, Tag)>,
    ) {
        let mut events = self.events();
        let time = self.begun.elapsed();
        for (address, requested, tag) in live() {
            let (action, stream) = (EventAction::Allocate, StreamHandle::DEFAULT);
            let event = PoolEvent { time, action, address, requested, stream, tag };
            self.callbacks.call(|| observer(&event));
        }
        Arc::make_mut(&mut events.observers).push(Arc::clone(observer));
    }

    pub(in crate::pool) fn detach(&self, observer: &Observer) {
        let mut events = self.events();
        Arc::make_mut(&mut events.observers).retain(|other| !Arc::ptr_eq(other, observer));
    }

    /// The events that are kept, the oldest first.
    pub(in crate::pool) fn all(&self) -> Vec<PoolEvent> {
        self.events().last.iter().copied().collect()
    }
}
