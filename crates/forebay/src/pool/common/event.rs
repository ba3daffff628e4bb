//! Events: what happened to blocks, one by one. Off by default; a pool that notes them takes the slow path for every
//! call.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use crate::Tag;
use crate::pool::common::callback::Callbacks;
use crate::sync::lock;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventAction {
    /// A block was given out.
    Allocate,
    /// A block was taken back.
    Free,
    /// A request was refused.
    Refuse,
}

/// Something that happened to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolEvent {
    /// When, from the start of the pool.
    pub time: Duration,
    /// What.
    pub action: EventAction,
    /// The block; null for a request that was refused.
    pub address: Address,
    /// What was asked for.
    pub requested: Bytes,
    /// In whose order.
    pub stream: StreamHandle,
    /// For whom.
    pub tag: Tag,
}

/// Told of every event.
pub(in crate::pool) type Observer = Arc<dyn Fn(&PoolEvent) + Send + Sync>;

/// The last events, as many as were asked for, and the observers that each is passed to.
pub(in crate::pool) struct History {
    begun: Instant,
    events: Mutex<Events>,
    callbacks: Callbacks,
}

struct Events {
    last: VecDeque<PoolEvent>,
    most: usize,
    /// Replaced as a whole, so that an event reaches those who observed when it was noted.
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

    /// Whether anyone is told.
    pub(in crate::pool) fn is_observed(&self) -> bool {
        !self.events().observers.is_empty()
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        lock(&self.events)
    }

    /// How many are remembered.
    pub(in crate::pool) fn set_most(&self, most: usize) {
        let mut events = self.events();
        events.most = most;
        while events.last.len() > most {
            events.last.pop_front();
        }
    }

    /// Notes an event and tells of it; the oldest goes where there are too many.
    pub(in crate::pool) fn note(
        &self,
        action: EventAction,
        address: Address,
        requested: Bytes,
        stream: StreamHandle,
        tag: Tag,
    ) {
        let mut events = self.events();
        // The clock under the lock: events are in the order of their times.
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
    /// Under the lock: an event that another thread notes meanwhile comes after them.
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

    /// What is remembered, the oldest first.
    pub(in crate::pool) fn all(&self) -> Vec<PoolEvent> {
        self.events().last.iter().copied().collect()
    }
}
