//! Deferred work: tasks that wait until work of the device is done. Requests run due tasks in passing, and no request
//! waits for them. Guarded by the backing lock.
//!
//! ```text
//!   stream 7   [ sealed: event, items ][ open: event, items ]      one query answers for all of a batch
//!   stream 9   [ sealed: event, items ]
//!   unknown    items with no event: due after the next wait for the whole device
//!   ready      items whose time has come
//! ```
//!
//! A stream has at most two batches. The first task seals the first batch with an event. Later tasks join the second,
//! whose event is recorded again each time, so that it covers the latest. When the first event is reached, the second
//! batch is sealed. So a stream has at most two events and two queries, however many blocks wait.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use forebay_core::Bytes;
use forebay_core::address_space::{Offset, PageMapping};
use forebay_hal::{Device, StreamHandle};

use crate::Result;
use crate::pool::common::free_block::FreedBlock;
use crate::pool::common::log::{CallLog, LoggedEvent};
use crate::pool::heap::serials::Serial;
use crate::sync::map::Side;

/// The most unmappings and page releases that run before the backing lock is released, of deferred tasks and of kept
/// mappings each: on one H200 this many take the driver 1.4 ms. A request pays for no more than these, because it did not
/// ask for them; a call that releases memory lets other threads in before it continues.
pub(in crate::pool) const MAX_SLOW: usize = 24;

/// The point after which the work enqueued on a stream so far is done.
#[derive(Clone, Debug)]
pub(in crate::pool) enum WorkEnd {
    /// After the work that is enqueued on this stream now.
    Stream(StreamHandle, Serial),
    /// At this event, of the stream with this serial.
    Event(Arc<LoggedEvent>, Serial),
    /// After a wait for the whole device: there is no event.
    Unknown,
}

/// A deferred task.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) enum Task {
    /// Remove the old mapping of a moved page.
    ClearAlias(Side, PageMapping),
    /// Release the slot of an ended stream; its holes become free for all.
    ReleaseSlot(u32, Serial),
    /// Free a block that was used on further streams, in the order of the stream it was freed on.
    ReturnBlock(FreedBlock, Serial),
    /// Return a page to the device that was taken out of the address space, where it was free in the order of the stream
    /// with this serial; `None` if only a wait for the whole device tells when its work is done.
    ReleasePage(Side, PageMapping, Option<Serial>),
}

/// Which streams may use a page that returns to the address space.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) enum FreeFor {
    /// For all streams: its work is done.
    All,
    /// In the order of the stream with this serial.
    Stream(Serial),
    /// For all streams after the next wait for the whole device.
    Unknown,
}

impl Task {
    /// Whether the driver takes long to run it.
    fn is_slow(self) -> bool {
        matches!(self, Self::ClearAlias(..) | Self::ReleasePage(..))
    }
}

/// Tasks that wait for one event, by number.
#[derive(Debug)]
struct Batch {
    event: Arc<LoggedEvent>,
    items: Vec<u64>,
}

/// The batches of one stream, in the order of their events. A live stream has at most two; an ended one may have a
/// third, for its last event.
#[derive(Debug, Default)]
struct Queue(VecDeque<Batch>);

/// The deferred tasks of a pool.
#[derive(Debug, Default)]
pub(in crate::pool) struct Deferred {
    /// Each task, and for how many events it still waits.
    waiting: HashMap<u64, (Task, u32)>,
    next: u64,
    queues: BTreeMap<Serial, Queue>,
    /// Tasks that a wait for the device will settle, each with the number of such waits that had begun before.
    unknown: Vec<(u64, u64)>,
    ready: Vec<Task>,
    /// Tasks that were due and failed. They are due again in the next pass.
    failed: Vec<Task>,
}

impl Deferred {
    fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.waiting.values().map(|(task, _)| task).chain(&self.ready).chain(&self.failed)
    }

    /// The blocks that the tasks will free.
    pub(in crate::pool) fn returns(&self) -> impl Iterator<Item = FreedBlock> {
        self.tasks().filter_map(|task| match task {
            Task::ReturnBlock(block, _) => Some(*block),
            Task::ClearAlias(..) | Task::ReleaseSlot(..) | Task::ReleasePage(..) => None,
        })
    }

    /// Drops the due tasks for which `is_done` returns true.
    pub(super) fn discard_ready(&mut self, mut is_done: impl FnMut(&Task) -> bool) {
        self.ready.retain(|task| !is_done(task));
    }

    /// Adds a task that is due.
    pub(super) fn push_ready(&mut self, task: Task) {
        self.ready.push(task);
    }

    /// Adds a task that was due and failed, for the next pass.
    pub(super) fn push_failed(&mut self, task: Task) {
        self.failed.push(task);
    }

    /// How many pages are out of the address spaces and wait to be returned.
    pub(in crate::pool) fn releases(&self) -> usize {
        self.tasks().filter(|task| matches!(task, Task::ReleasePage(..))).count()
    }

    /// Whether a page is due to be returned.
    pub(in crate::pool) fn has_due_release(&self) -> bool {
        self.ready.iter().any(|task| matches!(task, Task::ReleasePage(..)))
    }

    /// The pages of a side that wait to be returned: where they are, and their sizes.
    pub(in crate::pool) fn released(&self, of: Side) -> impl Iterator<Item = (Offset, Bytes)> {
        self.tasks().filter_map(move |task| match task {
            Task::ReleasePage(side, page, _) if *side == of => Some((page.at, page.size)),
            _ => None,
        })
    }

    /// Calls off the release of the pages of a side at `chosen`.
    pub(in crate::pool) fn take_back(
        &mut self,
        side: Side,
        chosen: &BTreeSet<Offset>,
    ) -> Vec<(PageMapping, FreeFor)> {
        let page = |task: &Task| match *task {
            Task::ReleasePage(of, page, serial) if of == side && chosen.contains(&page.at) => {
                Some((page, serial.map_or(FreeFor::Unknown, FreeFor::Stream)))
            }
            _ => None,
        };
        let due = self.ready.extract_if(.., |task| page(task).is_some());
        let due = due.chain(self.failed.extract_if(.., |task| page(task).is_some()));
        let due = due.filter_map(|task| page(&task)).map(|(page, _)| (page, FreeFor::All));
        let mut taken: Vec<(PageMapping, FreeFor)> = due.collect();
        let waiting = self.waiting.extract_if(|_, (task, _)| page(task).is_some());
        taken.extend(waiting.filter_map(|(_, (task, _))| page(&task)));
        let left = &self.waiting;
        self.unknown.retain(|(_, item)| left.contains_key(item));
        taken
    }

    /// Adds tasks that are due once all of `ends` are reached. `syncs` is the number of waits for the device that have
    /// begun.
    pub(in crate::pool) fn push(
        &mut self,
        device: &Arc<dyn Device>,
        log: &CallLog,
        tasks: &[Task],
        ends: impl IntoIterator<Item = WorkEnd>,
        syncs: u64,
    ) {
        let items = self.next..self.next + tasks.len() as u64;
        self.next = items.end;
        let (mut count, mut unknown) = (0, false);
        for end in ends {
            let joined = match end {
                WorkEnd::Stream(stream, serial) => {
                    let make = || Ok(Arc::new(LoggedEvent::after(device, log, stream)?));
                    self.queues
                        .entry(serial)
                        .or_default()
                        .join_live(items.clone(), stream, make)
                        .is_ok()
                }
                WorkEnd::Event(event, serial) => {
                    self.queues.entry(serial).or_default().join_ended(items.clone(), event);
                    true
                }
                WorkEnd::Unknown => false,
            };
            count += u32::from(joined);
            unknown |= !joined;
        }
        if unknown {
            self.unknown.extend(items.clone().map(|item| (syncs, item)));
            count += 1;
        }
        for (item, &task) in items.zip(tasks) {
            if count == 0 {
                self.ready.push(task);
            } else {
                self.waiting.insert(item, (task, count));
            }
        }
    }

    /// Records that one of a task's events was reached, which may make it due.
    fn reached(&mut self, item: u64) {
        let Some((task, count)) = self.waiting.get_mut(&item) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.ready.push(*task);
            self.waiting.remove(&item);
        }
    }

    /// Makes the tasks that failed due again.
    pub(super) fn retry_failed(&mut self) {
        self.ready.append(&mut self.failed);
    }

    /// Queries the next events, and makes the tasks of reached ones due. Does not wait.
    pub(in crate::pool) fn poll(&mut self) {
        let mut done = Vec::new();
        self.queues.retain(|_, queue| {
            // The latest first: if it is reached, all are.
            if queue.0.back().is_some_and(|batch| batch.event.is_reached()) {
                done.extend(queue.0.drain(..).flat_map(|batch| batch.items));
            } else if queue.0.len() > 1
                && queue.0.front().is_some_and(|batch| batch.event.is_reached())
                && let Some(batch) = queue.0.pop_front()
            {
                done.extend(batch.items);
            }
            !queue.0.is_empty()
        });
        done.into_iter().for_each(|item| self.reached(item));
    }

    /// Settles the tasks that were waiting for a wait for the whole device with this number or an earlier one.
    pub(in crate::pool) fn synchronized(&mut self, before: u64) {
        let settled = self.unknown.extract_if(.., |(syncs, _)| *syncs < before);
        let settled: Vec<u64> = settled.map(|(_, item)| item).collect();
        settled.into_iter().for_each(|item| self.reached(item));
    }

    /// All work is done: makes every task due.
    pub(super) fn settle_all(&mut self) {
        self.queues.clear();
        self.unknown.clear();
        self.ready.extend(self.waiting.drain().map(|(_, (task, _))| task));
    }

    /// Whether there are no tasks.
    pub(in crate::pool) fn is_empty(&self) -> bool {
        self.tasks().next().is_none()
    }

    /// Whether any task needs a wait for the whole device.
    pub(in crate::pool) fn has_unknown(&self) -> bool {
        !self.unknown.is_empty()
    }

    /// Every event that a task waits for.
    pub(in crate::pool) fn events(&self) -> Vec<Arc<LoggedEvent>> {
        let batches = self.queues.values().flat_map(|queue| &queue.0);
        batches.map(|batch| Arc::clone(&batch.event)).collect()
    }

    /// The pages that have old mappings.
    pub(super) fn aliased_pages(&self) -> BTreeSet<u64> {
        let aliases = self.tasks().filter_map(|task| match task {
            Task::ClearAlias(_, alias) => Some(alias.page),
            _ => None,
        });
        aliases.collect()
    }

    /// Takes the tasks that are due: first those that release a slot, then old mappings, then pages; at most
    /// [`MAX_SLOW`] slow ones. Returns whether more are due.
    pub(super) fn take_ready(&mut self) -> (Vec<Task>, bool) {
        let mut ready = core::mem::take(&mut self.ready);
        ready.sort_by_key(|task| match task {
            Task::ReleaseSlot(..) => 0,
            Task::ClearAlias(..) => 1,
            Task::ReturnBlock(..) | Task::ReleasePage(..) => 2,
        });
        let mut slow = 0_usize;
        let (now, later): (Vec<Task>, Vec<Task>) = ready.into_iter().partition(|task| {
            slow += usize::from(task.is_slow());
            !task.is_slow() || slow <= MAX_SLOW
        });
        self.ready = later;
        (now, !self.ready.is_empty())
    }
}

impl Queue {
    /// Makes `items` wait for the work of a live stream so far. `make` creates a new event there. On an error they do
    /// not wait here.
    fn join_live(
        &mut self,
        items: Range<u64>,
        stream: StreamHandle,
        make: impl FnOnce() -> Result<Arc<LoggedEvent>>,
    ) -> Result<()> {
        if self.0.len() >= 2
            && let Some(open) = self.0.back_mut()
        {
            open.event.record(stream)?;
            open.items.extend(items);
            return Ok(());
        }
        self.0.push_back(Batch { event: make()?, items: items.collect() });
        Ok(())
    }

    /// Makes `items` wait for the last event of an ended stream.
    fn join_ended(&mut self, items: Range<u64>, event: Arc<LoggedEvent>) {
        match self.0.back_mut().filter(|last| Arc::ptr_eq(&last.event, &event)) {
            Some(last) => last.items.extend(items),
            None => self.0.push_back(Batch { event, items: items.collect() }),
        }
    }
}
