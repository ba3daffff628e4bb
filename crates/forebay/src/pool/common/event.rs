//! Events: what happened to blocks, one by one. Off by default; a pool that notes them takes the long
//! way for every call.

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

/// The last events, as many as were asked for, and who is told of each.
pub(in crate::pool) struct History {
    begun: Instant,
    events: Mutex<(VecDeque<PoolEvent>, usize)>,
    observers: Vec<Observer>,
    callbacks: Callbacks,
}

impl History {
    pub(in crate::pool) fn new(
        most: usize,
        observers: Vec<Observer>,
        callbacks: Callbacks,
    ) -> Self {
        let events = Mutex::new((VecDeque::new(), most));
        Self { begun: Instant::now(), events, observers, callbacks }
    }

    /// Whether anyone is told.
    pub(in crate::pool) fn is_observed(&self) -> bool {
        !self.observers.is_empty()
    }

    fn events(&self) -> MutexGuard<'_, (VecDeque<PoolEvent>, usize)> {
        lock(&self.events)
    }

    /// How many are remembered.
    pub(in crate::pool) fn set_most(&self, most: usize) {
        let mut events = self.events();
        events.1 = most;
        while events.0.len() > most {
            events.0.pop_front();
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
        if events.1 > 0 {
            if events.0.len() >= events.1 {
                events.0.pop_front();
            }
            events.0.push_back(event);
        }
        drop(events);
        for observer in &self.observers {
            self.callbacks.call(|| observer(&event));
        }
    }

    /// What is remembered, the oldest first.
    pub(in crate::pool) fn all(&self) -> Vec<PoolEvent> {
        self.events().0.iter().copied().collect()
    }
}
