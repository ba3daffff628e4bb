//! Events: what happened to blocks, one by one. Off by default; a pool that notes them takes the slow path for every
//! call.

use core::fmt;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use super::callback::Callbacks;
use super::options::Observer;
use super::shared::{SLOW_PATH, Shared};
use crate::sync::lock;
use crate::{Result, Tag};

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

/// The last events, as many as were asked for, and the observers that each is passed to.
pub(super) struct History {
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
    pub(super) fn new(most: usize, observers: Vec<Observer>, callbacks: Callbacks) -> Self {
        let events = Events { last: VecDeque::new(), most, observers: Arc::new(observers) };
        Self { begun: Instant::now(), events: Mutex::new(events), callbacks }
    }

    /// Whether anyone is told.
    pub(super) fn is_observed(&self) -> bool {
        !self.events().observers.is_empty()
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        lock(&self.events)
    }

    /// How many are remembered.
    pub(super) fn set_most(&self, most: usize) {
        let mut events = self.events();
        events.most = most;
        while events.last.len() > most {
            events.last.pop_front();
        }
    }

    /// Notes an event and tells of it; the oldest goes where there are too many.
    pub(super) fn note(
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
    fn attach(&self, observer: &Observer, live: impl FnOnce() -> Vec<(Address, Bytes, Tag)>) {
        let mut events = self.events();
        let time = self.begun.elapsed();
        for (address, requested, tag) in live() {
            let (action, stream) = (EventAction::Allocate, StreamHandle::DEFAULT);
            let event = PoolEvent { time, action, address, requested, stream, tag };
            self.callbacks.call(|| observer(&event));
        }
        Arc::make_mut(&mut events.observers).push(Arc::clone(observer));
    }

    fn detach(&self, observer: &Observer) {
        let mut events = self.events();
        Arc::make_mut(&mut events.observers).retain(|other| !Arc::ptr_eq(other, observer));
    }

    /// What is remembered, the oldest first.
    pub(super) fn all(&self) -> Vec<PoolEvent> {
        self.events().last.iter().copied().collect()
    }
}

/// An observer attached to a pool, from [`Pool::observe`](crate::Pool::observe) until this is dropped.
#[must_use = "the observer is detached when this is dropped"]
pub struct Observation {
    shared: Arc<Shared>,
    observer: Observer,
}

impl Observation {
    pub(super) fn new(shared: &Arc<Shared>, observer: Observer) -> Result<Self> {
        shared.birth.check()?;
        // The settings' lock: whoever else chooses between the fast path and the slow one holds it too.
        let settings = shared.settings();
        shared.fast_epoch.store(SLOW_PATH, Ordering::Relaxed);
        // Waits for threads that are on the fast path now.
        shared.rows.each(|_| ());
        shared.history.attach(&observer, || {
            let live = shared.map.live_blocks().into_iter();
            live.filter_map(|block| {
                let known = shared.map.slot(block.address)?.look(block.address);
                let known = known.filter(|known| known.live())?;
                let tag = Tag::numbered(usize::from(known.tag())).unwrap_or(Tag::NONE);
                Some((block.address, Bytes::new(known.requested()), tag))
            })
            .collect()
        });
        drop(settings);
        Ok(Self { shared: Arc::clone(shared), observer })
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        if self.shared.is_inherited() {
            return;
        }
        let settings = self.shared.settings();
        self.shared.history.detach(&self.observer);
        self.shared.choose_way(&settings);
    }
}

impl fmt::Debug for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observation").field("pool", &self.shared.id).finish_non_exhaustive()
    }
}
