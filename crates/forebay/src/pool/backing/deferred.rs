//! Deferred work: what a pool has put off until work of the device is over. Done in passing, when its time
//! has come; no request waits for it.
//!
//! ```text
//!   stream 7   [ sealed: event, items ][ open: event, items ]      one query answers for all of a batch
//!   stream 9   [ sealed: event, items ]
//!   unknown    items with no event: due after the next wait for the whole device
//!   ready      items whose time has come
//! ```
//!
//! A stream has at most two batches. What is put off first seals the first batch with an event; what comes
//! later joins the second, whose event is recorded anew each time, so that it covers the latest. When the
//! first is reached the second is sealed. So there are never more than two events and one query a stream,
//! however many blocks wait.

use core::ops::Range;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use forebay_hal::{Device, StreamHandle};

use crate::Result;
use crate::pool::backing::page_provider::{Alias, Outgoing};
use crate::pool::common::log::{CallLog, Point};
use crate::pool::front::cached_block::FreedBlock;
use crate::pool::heap::stream_slots::Serial;
use crate::sync::map::Side;

/// How many mappings and pages are given back in passing: on one H200 so many take the driver 1.4 ms,
/// and the request that does it has not asked for it. The next one goes on.
const MOST_SLOW: usize = 24;

/// The end of what was enqueued on a stream by some moment.
#[derive(Clone, Debug)]
pub(in crate::pool) enum End {
    /// After what is enqueued on this stream now.
    Stream(StreamHandle, Serial),
    /// At this event, of the stream with that serial.
    Event(Arc<Point>, Serial),
    /// Nobody can tell but a wait for the whole device.
    Unknown,
}

/// What is to be done later.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) enum Task {
    /// Take the old mapping of a moved page away.
    Clear(Side, Alias),
    /// Let the slot of a stream that ended go: what was freed on it is everybody's.
    EndSlot(u32, Serial),
    /// Take back a block that was used on further streams, in the order of the stream it was freed on.
    Return(FreedBlock, Serial),
    /// Give a page that was taken out of the address space to the device.
    Release(Side, Outgoing),
}

impl Task {
    /// Whether the driver takes its time for it.
    fn is_slow(self) -> bool {
        matches!(self, Self::Clear(..) | Self::Release(..))
    }
}

/// Items that wait for one event.
#[derive(Debug)]
struct Batch {
    event: Arc<Point>,
    items: Vec<u64>,
}

/// What waits for one stream: its batches in the order of their events. A live stream has two at the most;
/// one that ended may have a third, for its last event.
#[derive(Debug, Default)]
struct Queue(VecDeque<Batch>);

/// What is put off.
#[derive(Debug, Default)]
pub(in crate::pool) struct Deferred {
    /// Each item, and for how many events it waits.
    waiting: HashMap<u64, (Task, u32)>,
    next: u64,
    queues: BTreeMap<Serial, Queue>,
    /// Items that a wait for the device will bring, and how many such waits had begun before.
    unknown: Vec<(u64, u64)>,
    ready: Vec<Task>,
}

impl Deferred {
    fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.waiting.values().map(|(task, _)| task).chain(&self.ready)
    }

    /// The blocks that come back when all of it is done.
    pub(in crate::pool) fn returns(&self) -> impl Iterator<Item = FreedBlock> {
        self.tasks().filter_map(|task| match task {
            Task::Return(block, _) => Some(*block),
            Task::Clear(..) | Task::EndSlot(..) | Task::Release(..) => None,
        })
    }

    /// Where addresses of a side become a gap when all of it is done.
    pub(in crate::pool) fn cleared(&self, of: Side) -> impl Iterator<Item = u64> {
        self.tasks().filter_map(move |task| match task {
            Task::Clear(side, alias) if *side == of => Some(alias.at),
            Task::Release(side, page) if *side == of => Some(page.at),
            _ => None,
        })
    }

    /// Does `task` as soon as anyone looks.
    pub(in crate::pool) fn push_ready(&mut self, task: Task) {
        self.ready.push(task);
    }

    /// Does `tasks` once all of `ends` are reached. `syncs` is how many waits for the device have begun.
    pub(in crate::pool) fn push(
        &mut self,
        device: &Arc<dyn Device>,
        log: &CallLog,
        tasks: &[Task],
        ends: impl IntoIterator<Item = End>,
        syncs: u64,
    ) {
        let items = self.next..self.next + tasks.len() as u64;
        self.next = items.end;
        let (mut count, mut unknown) = (0, false);
        for end in ends {
            let joined = match end {
                End::Stream(stream, serial) => {
                    let make = || Ok(Arc::new(Point::after(device, log, stream)?));
                    self.queues
                        .entry(serial)
                        .or_default()
                        .join_live(items.clone(), stream, make)
                        .is_ok()
                }
                End::Event(event, serial) => {
                    self.queues.entry(serial).or_default().join_ended(items.clone(), event);
                    true
                }
                End::Unknown => false,
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

    /// An item has one event less to wait for.
    fn reached(&mut self, item: u64) {
        let Some((task, count)) = self.waiting.get_mut(&item) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.ready.push(*task);
            self.waiting.remove(&item);
        }
    }

    /// Asks for the events that are next; what was waiting for them is ready. Does not wait.
    pub(in crate::pool) fn poll(&mut self) {
        let mut done = Vec::new();
        self.queues.retain(|_, queue| {
            // The latest first: where that is reached all are.
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

    /// A wait for the whole device, before which this many others had begun, is over.
    pub(in crate::pool) fn synchronized(&mut self, before: u64) {
        let settled = self.unknown.extract_if(.., |(syncs, _)| *syncs < before);
        let settled: Vec<u64> = settled.map(|(_, item)| item).collect();
        settled.into_iter().for_each(|item| self.reached(item));
    }

    /// All work is over: everything is ready.
    pub(in crate::pool) fn settle_all(&mut self) {
        self.queues.clear();
        self.unknown.clear();
        self.ready.extend(self.waiting.drain().map(|(_, (task, _))| task));
    }

    /// Whether anything waits for a wait for the whole device.
    pub(in crate::pool) fn has_unknown(&self) -> bool {
        !self.unknown.is_empty()
    }

    /// Every event that something waits for.
    pub(in crate::pool) fn events(&self) -> Vec<Arc<Point>> {
        let batches = self.queues.values().flat_map(|queue| &queue.0);
        batches.map(|batch| Arc::clone(&batch.event)).collect()
    }

    /// Takes out what is ready, those first that let a slot go. Without `all` no more of what takes the
    /// driver long than one request should pay for.
    pub(in crate::pool) fn take_ready(&mut self, all: bool) -> Vec<Task> {
        let mut ready = core::mem::take(&mut self.ready);
        ready.sort_by_key(|task| !matches!(task, Task::EndSlot(..)));
        let mut slow = 0;
        let (now, later): (Vec<Task>, Vec<Task>) = ready.into_iter().partition(|task| {
            slow += usize::from(task.is_slow());
            all || !task.is_slow() || slow <= MOST_SLOW
        });
        self.ready = later;
        now
    }
}

impl Queue {
    /// Lets `items` wait for the work of a live stream so far. `make` gives a new event there. An error
    /// where there is no event to be had: then they do not wait here.
    fn join_live(
        &mut self,
        items: Range<u64>,
        stream: StreamHandle,
        make: impl FnOnce() -> Result<Arc<Point>>,
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

    /// Lets `items` wait for the last event of a stream that ended.
    fn join_ended(&mut self, items: Range<u64>, event: Arc<Point>) {
        match self.0.back_mut().filter(|last| Arc::ptr_eq(&last.event, &event)) {
            Some(last) => last.items.extend(items),
            None => self.0.push_back(Batch { event, items: items.collect() }),
        }
    }
}
