//! The backing: everything of a pool that calls the driver, one thread at a time.
//!
//! Hits do not come here, and neither does an allocation that a hole serves: growing on one stream
//! does not stall another. Nothing here waits for the device on the host; [`reclaim`](super::reclaim) does,
//! without this lock.

pub(in crate::pool) mod deferred;
pub(in crate::pool) mod page_provider;
mod release;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use forebay_core::address_space::{Growth, Streams};
use forebay_core::{Bytes, Rung};
use forebay_hal::{Device, Pattern, StreamHandle};

use crate::pool::backing::deferred::{Deferred, End, Task};
use crate::pool::backing::page_provider::{Context, Outgoing, PageProvider, twice};
use crate::pool::common::backing_kind::BackingKind;
use crate::pool::common::capture::Captures;
use crate::pool::common::log::{CallLog, Point};
use crate::pool::common::step::{self, Step};
use crate::pool::heap::stream_slots::{Fate, Owner, Serial};
use crate::pool::heap::thread_ends::is_ending;
use crate::pool::heap::{Heap, span_of};
use crate::sync::map::{AddressMap, Side};
use crate::sync::tracked::{Guard, lock};
use crate::{Error, Result};

/// What the backing needs of the pool.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Site<'a> {
    pub(in crate::pool) heap: &'a Mutex<Heap>,
    pub(in crate::pool) map: &'a AddressMap,
    /// The most the pool may hold.
    pub(in crate::pool) limit: Bytes,
}

impl Site<'_> {
    pub(in crate::pool) fn heap(&self) -> Guard<'_, Heap> {
        lock(self.heap)
    }
}

/// The driver's side of a pool.
#[derive(Debug)]
pub(in crate::pool) struct Backing {
    pub(in crate::pool) small: PageProvider,
    pub(in crate::pool) large: PageProvider,
    pub(in crate::pool) deferred: Deferred,
    /// Segments out of the address space that the device has to have back. Given without this lock, because a device
    /// may wait for its work then.
    pub(in crate::pool) outgoing: Vec<(Side, Outgoing)>,
    /// The event that streams wait for each other by: recorded and waited for at once.
    meeting: Point,
    pub(in crate::pool) growth: Growth,
    /// How much the pool has grown by, ever, rather than fold the magazines.
    pub(in crate::pool) grown_to_avoid_fold: Bytes,
    /// What new pages are filled with before anything else.
    fresh: Option<Pattern>,
    /// Whether nothing is moved, nor given back before the end.
    stable: bool,
    /// Who is capturing now.
    pub(in crate::pool) captures: Captures,
    pub(in crate::pool) log: CallLog,
    pub(in crate::pool) device: Arc<dyn Device>,
}

impl Backing {
    pub(in crate::pool) fn new(
        device: &Arc<dyn Device>,
        kind: &BackingKind,
        growth: Growth,
        fresh: Option<Pattern>,
        log: &CallLog,
    ) -> Result<(Self, Heap)> {
        let meeting = Point::new(device, log)?;
        let (mut small, small_heap) = PageProvider::new(device, kind, Side::Small, log)?;
        let (large, large_heap) = match PageProvider::new(device, kind, Side::Large, log) {
            Ok(made) => made,
            Err(error) => {
                small.tear_down(&small_heap);
                return Err(error);
            }
        };
        let backing = Self {
            small,
            large,
            deferred: Deferred::default(),
            outgoing: Vec::new(),
            meeting,
            growth,
            grown_to_avoid_fold: Bytes::ZERO,
            fresh,
            stable: kind.is_stable(),
            captures: Captures::default(),
            log: log.clone(),
            device: Arc::clone(device),
        };
        Ok((backing, Heap::new(small_heap, large_heap)))
    }

    pub(in crate::pool) fn provider(&mut self, side: Side) -> (&mut PageProvider, &CallLog) {
        match side {
            Side::Small => (&mut self.small, &self.log),
            Side::Large => (&mut self.large, &self.log),
        }
    }

    /// Does what a rung of the ladder below `Room` says, for a request of `size` on `stream`.
    ///
    /// What fails for others (a stream that is gone, work put off for some earlier request) leaves their
    /// memory where it is, and is no error of this request: it is served from elsewhere or refused.
    pub(in crate::pool) fn climb(
        &mut self,
        site: Site<'_>,
        rung: Rung,
        (side, size): (Side, Bytes),
        stream: StreamHandle,
    ) {
        if self.captures.any() {
            return;
        }
        match rung {
            Rung::Deferred => drop(self.run_deferred(site, false)),
            Rung::Nearest => self.wait_for_nearest(site, side, size, stream),
            Rung::Others => self.wait_for_others(site, side, stream),
            _ => {}
        }
    }

    fn wait_for_nearest(&mut self, site: Site<'_>, side: Side, size: Bytes, stream: StreamHandle) {
        let mut heap = site.heap();
        let taker = heap.slot_for(stream);
        let better = heap.side_heap(side).space.better_owner(size, Streams::only(taker));
        // Any one of them will do.
        let owners: Vec<u32> = better.into_iter().flat_map(Streams::numbers).collect();
        let _ = owners.into_iter().any(|owner| self.wait_for(&mut heap, owner, taker, stream));
    }

    fn wait_for_others(&mut self, site: Site<'_>, side: Side, stream: StreamHandle) {
        let others = {
            let mut heap = site.heap();
            let taker = heap.slot_for(stream);
            let others = heap.owners(side, Streams::only(taker));
            heap.slots.with_serials(others)
        };
        // The heap is unlocked between any two: a stream that lost its slot meanwhile is not waited for.
        for (owner, serial) in others {
            let mut heap = site.heap();
            let taker = heap.slot_for(stream);
            if heap.slots.serial(owner) == Some(serial) {
                self.wait_for(&mut heap, owner, taker, stream);
            }
        }
    }

    /// Makes `taker` wait for all that was enqueued on the stream with number `owner`, on the device.
    /// `false` where that stream cannot be waited for: it is gone without a word, it is another
    /// thread's own, or the device fails. What is free in its order stays so.
    ///
    /// Under the heap's lock, so that nothing is freed on that stream between the event and the note
    /// of it. The two calls take a quarter of a microsecond each.
    fn wait_for(&self, heap: &mut Heap, owner: u32, taker: u32, stream: StreamHandle) -> bool {
        let waits = match heap.slots.owner(owner) {
            Owner::Stream(other, _) => {
                let recorded = self.meeting.record(other);
                if recorded.as_ref().is_err_and(is_gone) {
                    heap.bury(owner);
                    return false;
                }
                recorded.and_then(|()| self.meeting.make_wait(stream))
            }
            Owner::Event(event, _) => event.make_wait(stream),
            Owner::Unknown => return false,
        };
        if waits.is_ok() {
            heap.waited(taker, owner);
        }
        waits.is_ok()
    }

    /// Makes what is free in the order of streams that have nothing left to do everybody's, so that
    /// neighbours which were of different streams are one hole. Does not wait.
    ///
    /// Under the heap's lock, as where a stream is waited for: nothing is freed on it between the event
    /// and the note of it. The lock is let go between any two streams.
    pub(in crate::pool) fn part_from_idle_streams(&self, site: Site<'_>) {
        if self.captures.any() {
            return;
        }
        let owners = {
            let heap = site.heap();
            heap.slots.with_serials(heap.all_owners())
        };
        for (number, serial) in owners {
            let mut heap = site.heap();
            if heap.slots.serial(number) != Some(serial) {
                continue;
            }
            let over = match heap.slots.owner(number) {
                Owner::Stream(stream, _) => {
                    self.meeting.record(stream).is_ok() && self.meeting.is_reached()
                }
                Owner::Event(event, _) => event.is_reached(),
                Owner::Unknown => false,
            };
            if over {
                heap.idle(number);
            }
        }
    }

    pub(in crate::pool) fn make_room(
        &mut self,
        site: Site<'_>,
        side: Side,
        size: Bytes,
        stream: StreamHandle,
    ) -> Result<bool> {
        let (taker, serial) = {
            let mut heap = site.heap();
            let taker = heap.slot_for(stream);
            // The driver works without this lock. Until it is done the number stays that stream's: what is
            // placed under it, and what its steps take, must not be another's.
            heap.frozen = true;
            (taker, heap.slots.serial(taker))
        };
        step::reach(Step::MakingRoom);
        let made = self.make_room_for(site, (side, size), stream, (taker, serial));
        site.heap().frozen = false;
        made
    }

    /// The same for a stream whose slot nobody takes over meanwhile.
    fn make_room_for(
        &mut self,
        site: Site<'_>,
        (side, size): (Side, Bytes),
        stream: StreamHandle,
        (taker, serial): (u32, Option<Serial>),
    ) -> Result<bool> {
        let (mut growth, limit) = (self.growth, site.limit);
        // What moves, moves in the order of a stream, by an event.
        growth.moves &= !self.stable && !self.captures.any();
        let fresh = self.fresh.map(|pattern| (pattern, stream));
        let context = Context { heap: site.heap, map: site.map, growth: &growth, limit, fresh };
        let mut aliases = Vec::new();
        let (provider, log) = self.provider(side);
        let lane = Streams::only(taker);
        let mut made = provider.make_room(context, size, lane, &mut aliases, log);
        if is_shortage(&made) {
            // The device has less than a page of the size that is best: of the smallest there may be
            // enough.
            let mut smallest = growth;
            smallest.largest_page = Bytes::ZERO;
            let context = Context { growth: &smallest, ..context };
            made = provider.make_room(context, size, lane, &mut aliases, log);
        }
        if !aliases.is_empty() {
            // The taker has waited for everyone whose memory it took, so what it has enqueued so
            // far comes after every use through the old mappings.
            let end = serial.map_or(End::Unknown, |serial| End::Stream(stream, serial));
            let clear = |alias| Task::Clear(side, alias);
            let tasks: Vec<Task> = aliases.into_iter().map(clear).collect();
            self.defer(site, &tasks, [end]);
        }
        if is_shortage(&made) { Ok(false) } else { made }
    }

    /// Puts `tasks` off until `ends` are reached. While work is captured no event can be asked for.
    pub(in crate::pool) fn defer(
        &mut self,
        site: Site<'_>,
        tasks: &[Task],
        ends: impl IntoIterator<Item = End>,
    ) {
        let syncs = site.heap().slots.syncs();
        let capturing = self.captures.any();
        let ends = ends.into_iter().map(|end| if capturing { End::Unknown } else { end });
        self.deferred.push(&self.device, &self.log, tasks, ends, syncs);
    }

    /// How to wait for what is enqueued so far on the stream of a serial; `None` where it is over.
    pub(in crate::pool) fn end_of(heap: &Heap, serial: Serial) -> Option<End> {
        match heap.slots.fate(serial) {
            Fate::Live(stream, _) if stream.is_of_another_thread() || is_ending(stream) => {
                Some(End::Unknown)
            }
            Fate::Live(stream, _) => Some(End::Stream(stream, serial)),
            Fate::Ended(event, _) => Some(End::Event(event, serial)),
            Fate::Unknown(_) => Some(End::Unknown),
            // It may live on, and use blocks that it was said to use before it lost its slot.
            Fate::Over => heap.slots.was_evicted(serial).then_some(End::Unknown),
        }
    }

    /// Makes `stream` wait on the device for `ends`. `false` where one of them has no event: then only a
    /// wait for the whole device will do.
    pub(in crate::pool) fn join(&self, stream: StreamHandle, ends: &[End]) -> Result<bool> {
        let mut all = true;
        for end in ends {
            match end {
                End::Stream(other, _) => {
                    self.meeting.record(*other)?;
                    self.meeting.make_wait(stream)?;
                }
                End::Event(event, _) => event.make_wait(stream)?,
                End::Unknown => all = false,
            }
        }
        Ok(all)
    }

    /// Does what was put off, as far as its time has come. Does not wait. With `all`, however long the
    /// driver takes for it, and a page that it would not take back is an error.
    pub(in crate::pool) fn run_deferred(&mut self, site: Site<'_>, all: bool) -> Result<()> {
        if self.captures.any() {
            return Ok(());
        }
        self.adopt_orphans(site);
        let mut outcome = self.small.tidy(site.heap, &self.log);
        outcome = outcome.and(self.large.tidy(site.heap, &self.log));
        self.deferred.poll();
        for task in self.deferred.take_ready(all) {
            let Err(error) = self.run(site, task) else { continue };
            if matches!(task, Task::Release(..)) {
                // The page is in the address space again, for requests and for the next who gives memory back.
                outcome = if all { outcome.and(Err(error)) } else { outcome };
            } else {
                self.deferred.push_ready(task);
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }

    /// Has the slots of events go that streams of ended threads left behind, once they are reached.
    fn adopt_orphans(&mut self, site: Site<'_>) {
        let (orphans, syncs) = {
            let mut heap = site.heap();
            (heap.slots.take_orphans(), heap.slots.syncs())
        };
        for (number, serial, event) in orphans {
            let (task, end) = ([Task::EndSlot(number, serial)], [End::Event(event, serial)]);
            self.deferred.push(&self.device, &self.log, &task, end, syncs);
        }
    }

    /// When all slots are taken, releases event slots that own no free memory or whose event is reached. What was
    /// free in the order of a reached event is everybody's then.
    ///
    /// Under the heap's lock from the question to the note of the answer, because a thread records the event of
    /// its own stream anew; the lock is let go between any two.
    pub(in crate::pool) fn recover_slots(&self, site: Site<'_>) {
        if self.captures.any() {
            return;
        }
        let events = site.heap().slots.events_to_recover();
        for (number, serial) in events {
            let mut heap = site.heap();
            if heap.drop_idle_event(number, serial) {
                continue;
            }
            if let Owner::Event(event, now) = heap.slots.owner(number)
                && now == serial
                && event.is_reached()
            {
                heap.release_slot(number, serial);
            }
        }
    }

    /// Gives a stream a slot that someone uses. Where many threads have ended meanwhile, does what was put
    /// off, so that the slots and events of ended threads stay bounded.
    pub(in crate::pool) fn reactivate(&mut self, site: Site<'_>, stream: StreamHandle) {
        self.recover_slots(site);
        let many = {
            let mut heap = site.heap();
            heap.reactivate(stream);
            heap.slots.has_many_orphans()
        };
        if many {
            // What fails is tried again with the next.
            let _ = self.run_deferred(site, false);
        }
    }

    fn run(&mut self, site: Site<'_>, task: Task) -> Result<()> {
        match task {
            Task::Clear(side, alias) => {
                let (provider, log) = self.provider(side);
                provider.clear(site.heap, alias, log)?;
            }
            Task::EndSlot(number, serial) => site.heap().release_slot(number, serial),
            Task::Return(block, serial) => site.heap().give_after(block, serial),
            Task::Release(side, page) if !self.provider(side).0.maps_pages => {
                self.outgoing.push((side, page));
            }
            Task::Release(side, page) => {
                let (provider, log) = self.provider(side);
                provider.release(site.heap, page, log)?;
            }
        }
        Ok(())
    }

    /// Ends a stream: what was freed on it is everybody's once its work so far is done, and its handle
    /// may stand for another stream from now on.
    ///
    /// Under the heap's lock from the event to the note of it: a free that comes later finds the handle
    /// without a slot, and is in the order of whatever stream has it then.
    ///
    /// `is_same` tells, once the event is recorded, whether the handle still stands for the stream: only then
    /// the event says anything of it.
    pub(in crate::pool) fn end_stream(
        &mut self,
        heap: &mut Heap,
        stream: StreamHandle,
        is_same: &dyn Fn() -> bool,
    ) -> Result<()> {
        let Some(number) = heap.slots.get(stream) else { return Ok(()) };
        let Some(serial) = heap.slots.serial(number) else { return Ok(()) };
        if self.captures.any() {
            heap.bury(number);
            return Ok(());
        }
        step::reach(Step::Ending);
        match Point::after(&self.device, &self.log, stream) {
            Ok(end) if is_same() => {
                let (end, syncs) = (Arc::new(end), heap.slots.syncs());
                heap.end(number, Arc::clone(&end));
                let task = [Task::EndSlot(number, serial)];
                self.deferred.push(
                    &self.device,
                    &self.log,
                    &task,
                    [End::Event(end, serial)],
                    syncs,
                );
                Ok(())
            }
            Ok(_) => {
                heap.bury(number);
                Ok(())
            }
            // It was destroyed before, or is another thread's own.
            Err(error) if is_gone(&error) => {
                heap.bury(number);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Takes free pages out of the address spaces until no more than `keep` bytes would be held, and puts off giving
    /// them to the device until the work that may use them is done; gives how many bytes are to go.
    /// Does not wait.
    pub(in crate::pool) fn retire(&mut self, site: Site<'_>, keep: Bytes) -> Bytes {
        if self.stable || self.captures.any() {
            return Bytes::ZERO;
        }
        // Those that one event tells, together.
        let mut by_owner: BTreeMap<u32, (End, Vec<Task>)> = BTreeMap::new();
        let (mut bytes, mut unknown) = (Bytes::ZERO, Vec::new());
        {
            let mut heap = site.heap();
            let mut spare = heap.backed().saturating_sub(keep);
            for side in [Side::Large, Side::Small] {
                for page in self.provider(side).0.lift(&mut heap, spare) {
                    spare = spare.saturating_sub(page.size);
                    bytes = bytes.saturating_add(page.size);
                    let task = Task::Release(side, page.outgoing());
                    if page.is_idle() {
                        self.deferred.push_ready(task);
                        continue;
                    }
                    // Free in the order of any of its streams: the end of one of them is enough.
                    let end = page.streams.numbers().find_map(|number| {
                        let end = match heap.slots.owner(number) {
                            Owner::Stream(stream, serial) => End::Stream(stream, serial),
                            Owner::Event(event, serial) => End::Event(event, serial),
                            Owner::Unknown => return None,
                        };
                        Some((number, end))
                    });
                    match end {
                        Some((number, end)) => {
                            by_owner.entry(number).or_insert((end, Vec::new())).1.push(task);
                        }
                        None => unknown.push(task),
                    }
                }
            }
        }
        for (end, tasks) in by_owner.into_values() {
            self.defer(site, &tasks, [end]);
        }
        self.defer(site, &unknown, [End::Unknown]);
        bytes
    }

    /// Gives everything back to the device: the pool is going, and its work is over.
    pub(in crate::pool) fn tear_down(&mut self, site: Site<'_>) {
        // Whoever captures has nothing of the pool any more.
        self.captures = Captures::default();
        self.deferred.settle_all();
        let _ = twice(|| self.run_deferred(site, true));
        for (side, page) in core::mem::take(&mut self.outgoing) {
            let span = span_of(page.at, page.size);
            let cleared = site.heap().side_heap(side).space.clear_alias(page.at);
            debug_assert!(cleared.is_ok(), "a segment that was not lifted: {cleared:?}");
            self.provider(side).0.strays.push((span.start(), span.size()));
            self.provider(side).0.segment_went(site.heap, page, true);
        }
        let heap = site.heap();
        self.small.tear_down(&heap.small);
        self.large.tear_down(&heap.large);
    }
}

/// Whether a stream is not there any more, as the device tells it.
pub(in crate::pool) fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Device(forebay_hal::Error::Invalid { .. }))
}

/// Whether the device had not that much.
fn is_shortage(made: &Result<bool>) -> bool {
    matches!(made, Err(Error::Device(forebay_hal::Error::OutOfMemory { .. })))
}
