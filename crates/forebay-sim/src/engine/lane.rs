//! Streams as the scheduler sees them: queues of work, ordered by events and priority.
//!
//! ```text
//!   queue of a stream ── front can run ──────────────> ready, by priority ── pick (by seed) ──> run
//!                     └─ front waits for a point ───> blocked, by point ── point is reached ──┘
//! ```
//!
//! Both are kept up to date where a queue or a point changes ([`State::update_ready`]), so that picking takes no longer
//! with thousands of streams.

use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

use forebay_core::{DeviceOrdinal, StreamId};
use forebay_hal::{EventKind, Priority};

use super::State;
use super::work::Work;
use crate::clock::{ClockSlot, VectorClock};

/// Whether a stream can be given more work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneState {
    /// It can.
    Open,
    /// It was destroyed; what was enqueued still runs.
    Closed,
}

/// One stream.
pub(crate) struct Lane {
    pub(crate) device: DeviceOrdinal,
    pub(crate) slot: ClockSlot,
    pub(crate) priority: Priority,
    pub(crate) state: LaneState,
    /// The past of whatever is enqueued next.
    pub(crate) clock: VectorClock,
    pub(crate) queue: VecDeque<Work>,
    /// Pieces of work ever enqueued.
    pub(crate) enqueued: u64,
    /// Pieces of work done. Work is numbered from 1, so number `n` is done where `done >= n`.
    pub(crate) done: u64,
    /// Whether a piece of its work is running now, taken from the queue and not done.
    pub(crate) busy: bool,
    /// The number of the first piece of work that was lost with the device.
    pub(crate) lost_from: Option<u64>,
    /// When its work so far ends, on the simulation's clock.
    pub(crate) time: Duration,
    /// Its place among the streams of its priority that can run.
    pub(crate) ready_at: Option<usize>,
}

/// Streams whose next work can run, and those whose next work waits for a point.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    /// By priority: low, normal, high.
    ready: [Vec<StreamId>; 3],
    /// The point of another stream, and who waits for it.
    blocked: BTreeSet<(StreamId, u64, StreamId)>,
}

/// A point in a stream's order.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) stream: StreamId,
    pub(crate) number: u64,
    pub(crate) clock: VectorClock,
    pub(crate) time: Duration,
}

/// Whether a point was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It was.
    Done,
    /// It was not yet.
    Pending,
    /// It never will be: its device is lost.
    Lost,
}

/// An event, and its latest record.
#[derive(Clone, Debug)]
pub(crate) struct EventState {
    pub(crate) kind: EventKind,
    pub(crate) record: Option<Point>,
}

impl Lane {
    /// Puts work at the end of the queue; gives its number.
    pub(crate) fn push(&mut self, work: Work) -> u64 {
        self.queue.push_back(work);
        self.enqueued += 1;
        self.enqueued
    }

    /// The point after everything enqueued so far.
    pub(crate) fn now(&self, stream: StreamId) -> Point {
        Point { stream, number: self.enqueued, clock: self.clock.clone(), time: self.time }
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.queue.is_empty() && !self.busy
    }
}

impl State {
    /// Whether a stream has done so much. A stream that is gone has done everything.
    pub(crate) fn reach(&self, stream: StreamId, number: u64) -> Reach {
        match self.lanes.get(&stream) {
            None => Reach::Done,
            Some(lane) if lane.done >= number => Reach::Done,
            Some(lane) if lane.lost_from.is_some_and(|from| number >= from) => Reach::Lost,
            Some(_) => Reach::Pending,
        }
    }

    /// Puts a stream among those that can run, or takes it out: called whenever the front of its queue changes, it begins
    /// or ends a piece of work, or the point that it waits for is reached.
    pub(crate) fn update_ready(&mut self, stream: StreamId) {
        let Some(lane) = self.lanes.get(&stream) else { return };
        let can_run = !lane.busy
            && match lane.queue.front() {
                None => false,
                // Whoever waits for a lost device goes on, as with an event that was destroyed:
                // its data is not there, but nothing hangs.
                Some(&Work::Wait(target, number)) => {
                    let is_pending = self.reach(target, number) == Reach::Pending;
                    if is_pending {
                        self.schedule.blocked.insert((target, number, stream));
                    }
                    !is_pending
                }
                Some(_) => true,
            };
        let ready = &mut self.schedule.ready[class(lane.priority)];
        match (can_run, lane.ready_at) {
            (true, None) => {
                let at = Some(ready.len());
                ready.push(stream);
                self.lanes.entry(stream).and_modify(|lane| lane.ready_at = at);
            }
            (false, Some(at)) => {
                ready.swap_remove(at);
                if let Some(&moved) = ready.get(at) {
                    self.lanes.entry(moved).and_modify(|lane| lane.ready_at = Some(at));
                }
                self.lanes.entry(stream).and_modify(|lane| lane.ready_at = None);
            }
            (true, Some(_)) | (false, None) => {}
        }
    }

    /// Looks again at the streams that wait for points of `target` up to number `last`.
    pub(super) fn wake(&mut self, target: StreamId, last: u64) {
        let points = (target, 0, StreamId(0))..=(target, last, StreamId(u64::MAX));
        let woken: Vec<_> = self.schedule.blocked.extract_if(points, |_| true).collect();
        woken.into_iter().for_each(|(.., waiting)| self.update_ready(waiting));
    }

    /// A stream whose next work can run: the seed decides among those that events allow.
    pub(crate) fn pick(&mut self) -> Option<StreamId> {
        let ready = &self.schedule.ready;
        let total =
            ready.iter().zip(WEIGHTS).map(|(class, weight)| class.len() as u64 * weight).sum();
        let mut drawn = self.random.below(total);
        for (class, weight) in ready.iter().zip(WEIGHTS) {
            let index = usize::try_from(drawn / weight).unwrap_or(usize::MAX);
            if let Some(&stream) = class.get(index) {
                return Some(stream);
            }
            drawn = drawn.saturating_sub(class.len() as u64 * weight);
        }
        None
    }

    /// Ends the piece of work that `stream` was busy with, and the stream too if it was its last.
    pub(crate) fn finish(&mut self, stream: StreamId) {
        let Some(lane) = self.lanes.get_mut(&stream) else { return };
        lane.done += 1;
        lane.busy = false;
        let done = lane.done;
        self.update_ready(stream);
        self.wake(stream, done);
        self.retire(stream);
    }

    /// Ends a stream for those who would give it work; what it has still runs.
    pub(crate) fn close(&mut self, stream: StreamId) {
        if let Some(lane) = self.lanes.get_mut(&stream) {
            lane.state = LaneState::Closed;
        }
        self.retire(stream);
    }

    /// Forgets a destroyed stream once it has done everything.
    pub(crate) fn retire(&mut self, stream: StreamId) {
        let gone = self.lanes.get(&stream).is_some_and(|lane| {
            // What was lost must go on being known as lost.
            lane.state == LaneState::Closed && lane.is_drained() && lane.lost_from.is_none()
        });
        if gone && let Some(lane) = self.lanes.remove(&stream) {
            let number = lane.clock.count(lane.slot);
            self.retired.push((lane.slot, number, lane.device));
        }
    }

    /// A place in the vector clocks: one whose stream is gone and all of whose work the host has
    /// seen the end of, or a new one. So a program that makes and destroys streams for ever does
    /// not make the clocks grow for ever, and nothing unordered comes to look ordered.
    pub(crate) fn take_slot(&mut self) -> ClockSlot {
        let host = &self.host;
        let free = self.retired.iter().position(|&(slot, number, _)| host.covers(slot, number));
        match free {
            Some(index) => self.retired.swap_remove(index).0,
            None => {
                let slot = ClockSlot(self.slots);
                self.slots += 1;
                slot
            }
        }
    }
}

/// How often a stream of each priority is picked, against the others: low, normal, high.
const WEIGHTS: [u64; 3] = [1, 2, 8];

/// The place of a priority in [`WEIGHTS`].
fn class(priority: Priority) -> usize {
    match priority {
        Priority::Low => 0,
        Priority::Normal => 1,
        Priority::High => 2,
    }
}
