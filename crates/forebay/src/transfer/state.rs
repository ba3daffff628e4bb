//! The state that an engine's threads share, under its lock.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use forebay_core::transfer::TransferQueue;
use forebay_core::{Bytes, Random};
use forebay_hal::{Priority, StreamHandle};

use super::job::{Direction, HostEnd, Job, JobId, Part};
use super::statistics::{DirectionStatistics, TransferEvent};
use crate::pinned::PinnedArray;

/// How many threads per direction may wait for the device at first. One would do if waking another took no time; many
/// would only disturb the driver and each other. Copies to the device run one after the other; several copies from it
/// may have finished.
const SEEKERS_UP: usize = 2;
const SEEKERS_DOWN: usize = 4;

/// A part, and where it goes.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) id: JobId,
    pub(super) part: Part,
    pub(super) host: HostEnd,
    pub(super) stream: StreamHandle,
}

/// The next step of a thread.
#[derive(Debug)]
pub(super) enum Step {
    /// Fill a slot, or a new one, and enqueue its copy to the device.
    Send(Task, Option<PinnedArray<u8>>),
    /// Enqueue a copy from the device into a slot, or a new one.
    Fetch(Task, Option<PinnedArray<u8>>),
    /// Wait for the copy into a slot, and empty it.
    Land(Task, PinnedArray<u8>),
}

impl Step {
    pub(super) fn direction(&self) -> Direction {
        match self {
            Self::Send(..) => Direction::Up,
            Self::Fetch(..) | Self::Land(..) => Direction::Down,
        }
    }
}

/// The state of one direction.
pub(super) struct Lane {
    pub(super) queue: TransferQueue<Priority, JobId>,
    /// Slots not in use by a thread, least recently used first. The device may still be reading those of uploads.
    pub(super) slots: VecDeque<PinnedArray<u8>>,
    is_up: bool,
    /// The number of slots that exist, and their limit.
    pub(super) made: usize,
    pub(super) most: usize,
    /// Parts whose copy into a slot is enqueued.
    pub(super) landings: VecDeque<(Task, PinnedArray<u8>)>,
    /// Threads at work.
    pub(super) workers: usize,
    /// Threads, including the program's, that have begun to wait for the device.
    pub(super) seekers: usize,
    pub(super) statistics: DirectionStatistics,
    /// Running transfers, and since when there has been at least one.
    pub(super) running: u64,
    since: Option<Instant>,
}

impl Lane {
    fn new(is_up: bool, at_once: usize, most: usize) -> Self {
        Self {
            is_up,
            queue: TransferQueue::new(at_once),
            slots: VecDeque::new(),
            made: 0,
            most,
            landings: VecDeque::new(),
            workers: 0,
            seekers: 0,
            statistics: DirectionStatistics::default(),
            running: 0,
            since: None,
        }
    }

    /// Whether a part can start: a slot can be made, or one exists and the thread may wait for it.
    fn has_slot(&self) -> bool {
        self.made < self.most || !self.slots.is_empty() && self.may_take()
    }

    /// Whether a thread may take an existing slot.
    fn may_take(&self) -> bool {
        !self.is_up || self.may_seek()
    }

    /// Whether one more thread may wait for the device.
    fn may_seek(&self) -> bool {
        self.seekers < if self.is_up { SEEKERS_UP } else { SEEKERS_DOWN }
    }

    /// Whether a thread would find a step to run.
    fn has_step(&self) -> bool {
        self.has_slot() && !self.queue.is_empty() || !self.landings.is_empty() && self.may_seek()
    }

    pub(super) fn statistics(&self) -> DirectionStatistics {
        let running = self.since.map(|since| since.elapsed()).unwrap_or_default();
        DirectionStatistics { busy: self.statistics.busy + running, ..self.statistics }
    }

    fn begin(&mut self) {
        self.running += 1;
        self.since.get_or_insert_with(Instant::now);
    }

    pub(super) fn end(&mut self, succeeded: bool) {
        self.statistics.transfers += u64::from(succeeded);
        self.statistics.failures += u64::from(!succeeded);
        self.running = self.running.saturating_sub(1);
        if self.running == 0
            && let Some(since) = self.since.take()
        {
            self.statistics.busy += since.elapsed();
        }
    }
}

/// Memory of a dropped ticket.
pub(super) struct Kept {
    pub(super) id: JobId,
    pub(super) memory: Box<dyn Send>,
}

pub(super) struct State {
    pub(super) up: Lane,
    pub(super) down: Lane,
    pub(super) jobs: BTreeMap<JobId, Job>,
    /// Oldest first.
    pub(super) kept: VecDeque<Kept>,
    next_id: JobId,
    /// The most slots per direction.
    slots: usize,
    pub(super) threads: usize,
    /// Idle threads of the engine, and waiting threads of the program.
    pub(super) idle: usize,
    pub(super) waiting: usize,
    /// The direction to look at first.
    turn: Direction,
    pub(super) random: Random,
    /// The last transfers, oldest first, and how many to keep.
    pub(super) history: VecDeque<TransferEvent>,
    max_history: usize,
}

impl State {
    pub(super) fn new(at_once: usize, slots: usize, max_history: usize) -> Self {
        Self {
            up: Lane::new(true, at_once, slots),
            down: Lane::new(false, at_once, slots),
            jobs: BTreeMap::new(),
            kept: VecDeque::new(),
            next_id: 0,
            slots,
            threads: 0,
            idle: 0,
            waiting: 0,
            turn: Direction::Up,
            random: Random::new(0),
            history: VecDeque::new(),
            max_history,
        }
    }

    pub(super) fn lane(&mut self, direction: Direction) -> &mut Lane {
        match direction {
            Direction::Up => &mut self.up,
            Direction::Down => &mut self.down,
        }
    }

    /// The number of the next transfer.
    pub(super) fn number(&mut self) -> JobId {
        self.next_id += 1;
        self.next_id
    }

    /// Registers a transfer, and queues it if it has parts.
    pub(super) fn enter(&mut self, id: JobId, mut job: Job) {
        job.begun = (self.max_history > 0).then(Instant::now);
        let (direction, priority, has_parts) = (job.direction, job.priority, job.has_next());
        self.jobs.insert(id, job);
        let slots = self.slots;
        let lane = self.lane(direction);
        if lane.running == 0 {
            // A slot that could not be pinned before may succeed now.
            lane.most = slots;
        }
        lane.begin();
        if has_parts {
            lane.queue.push(priority, id);
        }
    }

    /// Counts the end of a transfer, and adds it to the history if there is one.
    pub(super) fn end(&mut self, id: JobId, succeeded: bool) {
        let Some(job) = self.jobs.get(&id) else { return };
        let direction = job.direction;
        if let Some(begun) = job.begun {
            if self.history.len() >= self.max_history {
                self.history.pop_front();
            }
            let (took, bytes) = (begun.elapsed(), Bytes::new(job.total));
            let (is_upload, failed) = (direction == Direction::Up, !succeeded);
            self.history.push_back(TransferEvent { begun, took, bytes, is_upload, failed });
        }
        self.lane(direction).end(succeeded);
    }

    /// The next step for a thread of the engine, which counts as a worker until it [ends](Self::end_step) the step. All
    /// threads but one may work in the same direction, since they may wait there for the device.
    pub(super) fn step(&mut self, threads: usize) -> Option<Step> {
        let first = self.turn;
        for direction in [first, first.other()] {
            if self.lane(direction).workers < threads.saturating_sub(1).max(1)
                && let Some(step) = self.step_in(direction)
            {
                self.turn = direction.other();
                self.lane(direction).workers += 1;
                return Some(step);
            }
        }
        None
    }

    /// The next step in one direction.
    pub(super) fn step_in(&mut self, direction: Direction) -> Option<Step> {
        loop {
            let lane = self.lane(direction);
            let turn = if lane.has_slot() { lane.queue.turn().copied() } else { None };
            let Some(id) = turn else { return self.land(direction, 0) };
            if let Some(step) = self.begin(direction, id) {
                return Some(step);
            }
            // It was cancelled or has failed.
            self.retire(direction, id);
        }
    }

    /// The next step of one transfer.
    pub(super) fn step_of(&mut self, id: JobId) -> Option<Step> {
        let direction = self.jobs.get(&id)?.direction;
        if self.lane(direction).has_slot()
            && let Some(step) = self.begin(direction, id)
        {
            return Some(step);
        }
        let at = self.lane(direction).landings.iter().position(|(task, _)| task.id == id)?;
        self.land(direction, at)
    }

    /// Empties a slot, if one more thread may wait for the copy into it.
    fn land(&mut self, direction: Direction, at: usize) -> Option<Step> {
        let lane = self.lane(direction);
        if !lane.may_seek() {
            return None;
        }
        let (task, slot) = lane.landings.remove(at)?;
        lane.seekers += 1;
        Some(Step::Land(task, slot))
    }

    /// Starts a part of a transfer, for which there is a slot. `None` if no part is left.
    fn begin(&mut self, direction: Direction, id: JobId) -> Option<Step> {
        let job = self.jobs.get_mut(&id)?;
        let part = job.begin_part()?;
        let task = Task { id, part, host: job.host.clone(), stream: job.stream };
        // With several parts, the next must not wait until the device has read the last one's slot.
        let is_one_of_several = job.total > task.part.bytes();
        if !job.has_next() {
            self.retire(direction, id);
        }
        let lane = self.lane(direction);
        let is_needed = is_one_of_several || lane.slots.is_empty() || !lane.may_take();
        let slot = if lane.made < lane.most && is_needed { None } else { lane.slots.pop_front() };
        lane.made += usize::from(slot.is_none());
        lane.seekers += usize::from(lane.is_up && slot.is_some());
        Some(match direction {
            Direction::Up => Step::Send(task, slot),
            Direction::Down => Step::Fetch(task, slot),
        })
    }

    /// Whether a thread would find a step to run.
    pub(super) fn has_step(&self) -> bool {
        self.up.has_step() || self.down.has_step()
    }

    /// Whether no transfer is running.
    pub(super) fn is_idle(&self) -> bool {
        self.up.running == 0 && self.down.running == 0
    }

    pub(super) fn end_step(&mut self, direction: Direction) {
        let lane = self.lane(direction);
        lane.workers = lane.workers.saturating_sub(1);
    }

    /// Removes a transfer without further parts from its queue.
    fn retire(&mut self, direction: Direction, id: JobId) {
        let known = self.jobs.get(&id).map(|job| job.priority);
        let lane = self.lane(direction);
        // If it was forgotten while queued, its priority is unknown: search all of them.
        for priority in [Priority::High, Priority::Normal, Priority::Low] {
            if known.is_none_or(|known| known == priority) && lane.queue.retire(priority, &id) {
                return;
            }
        }
    }

    /// Takes back a part for which no slot could be made. Returns whether another slot will serve it.
    pub(super) fn put_back(&mut self, direction: Direction, task: Task) -> bool {
        let lane = self.lane(direction);
        lane.made = lane.made.saturating_sub(1);
        if lane.made == 0 {
            return false;
        }
        lane.most = lane.made;
        let Some(job) = self.jobs.get_mut(&task.id) else { return false };
        let (had_next, priority) = (job.has_next(), job.priority);
        job.put_back(task.part);
        if !had_next && job.has_next() {
            self.lane(direction).queue.push(priority, task.id);
        }
        true
    }
}
