//! The backing: the pages and segments of a pool, its deferred work, and the events between streams. Guarded by the
//! backing lock, under which one thread at a time calls the driver.
//!
//! ```text
//!   Backing ── PageProvider (small) ── regions ── pages, mapped where the small address space has them
//!           ├─ PageProvider (large) ── regions ── pages                      segments where a device maps no pages
//!           ├─ Deferred ── tasks that wait for events
//!           └─ outgoing ── segments to return to the device, without the lock
//! ```
//!
//! Words: a page is **staged** when it is mapped and not in the address space yet, **removed** when it was taken out of
//! it. An **alias** is a moved page's old mapping. **Outgoing** memory is to be returned to the device. An **orphan**,
//! a **stranded** mapping and a **stray** segment are those that the device refused to take back.
//!
//! Cache hits and allocations from holes do not take this lock, so growing for one stream does not stall another.
//! Nothing here waits for the device on the host; `calls/reclaim.rs` does, without this lock.

pub(in crate::pool) mod deferred;
pub(in crate::pool) mod grow;
mod growth;
mod headroom;
pub(in crate::pool) mod page_provider;
mod plan;
mod release;

use std::sync::{Arc, Mutex};

use forebay_core::Bytes;
use forebay_core::address_space::{Growth, PageMapping, Streams};
use forebay_hal::{Device, MemorySource, Pattern, StreamHandle};

use crate::pool::backing::deferred::{Deferred, MAX_SLOW, Task, WorkEnd};
use crate::pool::backing::page_provider::PageProvider;
pub(in crate::pool) use crate::pool::backing::release::FreePage;
use crate::pool::common::backing_kind::BackingKind;
use crate::pool::common::capture::Captures;
use crate::pool::common::group::Group;
use crate::pool::common::log::{CallLog, LoggedEvent};
use crate::pool::common::step::{self, Step};
use crate::pool::heap::serials::Serial;
use crate::pool::heap::stream_slots::{StreamState, WaitTarget};
use crate::pool::heap::thread_ends::is_ending;
use crate::pool::heap::uses::Uses;
use crate::pool::heap::{Heap, Piece, Spaces, span_of};
use crate::retry::retry_once;
use crate::sync::map::{AddressMap, Side};
use crate::sync::tracked::{Guard, lock};
use crate::{Error, Result};

/// The parts of the pool that the backing borrows for one call.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct PoolContext<'a> {
    pub(in crate::pool) heap: &'a Mutex<Heap>,
    pub(in crate::pool) map: &'a AddressMap,
    /// The most that the pools of the group may hold together.
    pub(in crate::pool) limit: Bytes,
}

impl PoolContext<'_> {
    pub(in crate::pool) fn heap(&self) -> Guard<'_, Heap> {
        lock(self.heap)
    }
}

/// The side of a pool that calls the driver.
#[derive(Debug)]
pub(in crate::pool) struct Backing {
    pub(in crate::pool) small: PageProvider,
    pub(in crate::pool) large: PageProvider,
    pub(in crate::pool) deferred: Deferred,
    /// Segments that are out of the address space and have to be returned to the device. They are freed without this
    /// lock, because a device may wait for its work first.
    pub(in crate::pool) outgoing: Vec<(Side, PageMapping)>,
    /// The event by which one stream waits for another. It is recorded and waited for under the heap lock, so one is
    /// enough.
    wait_event: LoggedEvent,
    pub(in crate::pool) growth: Growth,
    /// The device's free bytes when it was last asked, and the bytes held then.
    asked: Option<(Bytes, Bytes)>,
    /// The refusal of the device, if the last growth failed for want of its memory.
    pub(in crate::pool) refusal: Option<forebay_hal::Error>,
    /// The bytes by which the pool has grown, ever, instead of flushing the thread caches.
    pub(in crate::pool) grown_to_avoid_flush: Bytes,
    /// The pattern that new pages are filled with.
    fresh: Option<Pattern>,
    /// Whether pages are never moved or released before the pool is dropped, except while
    /// [`releasable_until`](Self::releasable_until) says so.
    stable: bool,
    /// Stable memory may be released while this many captures have begun: the launches of all earlier graphs are over.
    pub(in crate::pool) releasable_until: Option<u64>,
    /// The captures under way.
    pub(in crate::pool) captures: Captures,
    pub(in crate::pool) log: CallLog,
    pub(in crate::pool) device: Arc<dyn Device>,
    source: Arc<dyn MemorySource>,
}

impl Backing {
    pub(in crate::pool) fn new(
        device: &Arc<dyn Device>,
        kind: &BackingKind,
        growth: Growth,
        fresh: Option<Pattern>,
        group: &Arc<Group>,
        log: &CallLog,
    ) -> Result<(Self, Heap)> {
        let wait_event = LoggedEvent::new(device, log)?;
        let (mut small, small_space) = PageProvider::new(kind, device, Side::Small, log)?;
        let (large, large_space) = match PageProvider::new(kind, device, Side::Large, log) {
            Ok(made) => made,
            Err(error) => {
                small.tear_down(&small_space);
                return Err(error);
            }
        };
        let backing = Self {
            small,
            large,
            deferred: Deferred::default(),
            outgoing: Vec::new(),
            wait_event,
            growth,
            asked: None,
            refusal: None,
            grown_to_avoid_flush: Bytes::ZERO,
            fresh,
            stable: kind.is_stable(),
            releasable_until: None,
            captures: Captures::default(),
            log: log.clone(),
            device: Arc::clone(device),
            source: Arc::clone(&kind.source),
        };
        Ok((backing, Heap::new(Spaces::new(small_space, large_space), group)))
    }

    /// Whether pages must stay where they are, because graphs may use them.
    fn is_stable(&self) -> bool {
        self.stable && self.releasable_until != Some(self.captures.begun())
    }

    pub(in crate::pool) fn provider(&mut self, side: Side) -> (&mut PageProvider, &CallLog) {
        match side {
            Side::Small => (&mut self.small, &self.log),
            Side::Large => (&mut self.large, &self.log),
        }
    }

    /// Makes `stream` wait, on the device, for the stream that has the best hole for a piece.
    pub(in crate::pool) fn wait_for_nearest(
        &mut self,
        pool: PoolContext<'_>,
        piece: Piece,
        stream: StreamHandle,
    ) {
        if self.captures.any() {
            return;
        }
        let mut heap = pool.heap();
        let taker = heap.slot_for(stream);
        let space = heap.spaces.of_mut(piece.side());
        let better = space.better_owner_for(piece.whole(), taker);
        // The hole is free in the order of each of them: waiting for one is enough.
        let owners: Vec<u32> = better.into_iter().flat_map(Streams::numbers).collect();
        let _ = owners.into_iter().any(|owner| self.wait_for(&mut heap, owner, taker, stream));
    }

    /// Makes `stream` wait, on the device, for every stream that has holes on a side.
    pub(in crate::pool) fn wait_for_others(
        &mut self,
        pool: PoolContext<'_>,
        side: Side,
        stream: StreamHandle,
    ) {
        if self.captures.any() {
            return;
        }
        let others = {
            let mut heap = pool.heap();
            let taker = heap.slot_for(stream);
            let others = heap.spaces.of(side).holes().other_owners(Streams::only(taker));
            heap.slots.with_serials(others)
        };
        // The heap is unlocked between two streams. One that lost its slot meanwhile is skipped.
        for (owner, serial) in others {
            let mut heap = pool.heap();
            let taker = heap.slot_for(stream);
            if heap.slots.serial(owner) == Some(serial) {
                self.wait_for(&mut heap, owner, taker, stream);
            }
        }
    }

    /// Makes `taker` wait, on the device, for everything enqueued on the stream with number `owner`. Returns `false` if
    /// that is impossible: the stream was destroyed unannounced or is another thread's own, the taker is the host, or
    /// the device fails. Its holes stay its own then.
    ///
    /// Holds the heap lock, so that nothing is freed on that stream between the event and its record. The two calls
    /// take a quarter of a microsecond each.
    fn wait_for(&self, heap: &mut Heap, owner: u32, taker: u32, stream: StreamHandle) -> bool {
        if self.source.host_stream() == Some(stream) {
            return false;
        }
        let waits = match heap.slots.wait_target(owner) {
            WaitTarget::Stream(other, _) => {
                let recorded = self.wait_event.record(other);
                if recorded.as_ref().is_err_and(is_gone) {
                    heap.end_without_event(owner);
                    return false;
                }
                recorded.and_then(|()| self.wait_event.make_wait(stream))
            }
            WaitTarget::Event(event, _) => event.make_wait(stream),
            WaitTarget::Unknown => return false,
        };
        if waits.is_ok() {
            heap.record_wait(taker, owner);
        }
        waits.is_ok()
    }

    /// Makes the holes of idle streams free for all, so that neighbouring holes of different streams merge. Does not
    /// wait.
    ///
    /// Holds the heap lock during each stream, as in `wait_for`: nothing is freed on it between the event and its
    /// record. The lock is released between two streams.
    pub(in crate::pool) fn free_holes_of_idle_streams(&self, pool: PoolContext<'_>) {
        if self.captures.any() {
            return;
        }
        let owners = {
            let heap = pool.heap();
            heap.slots.with_serials(heap.spaces.owners())
        };
        for (number, serial) in owners {
            let mut heap = pool.heap();
            if heap.slots.serial(number) != Some(serial) {
                continue;
            }
            let over = match heap.slots.wait_target(number) {
                WaitTarget::Stream(stream, _) => {
                    self.wait_event.record(stream).is_ok() && self.wait_event.is_reached()
                }
                WaitTarget::Event(event, _) => event.is_reached(),
                WaitTarget::Unknown => false,
            };
            if over {
                heap.spaces.record_idle(number);
            }
        }
    }

    /// Defers `tasks` until `ends` are reached. During a capture events cannot be queried, so the tasks wait for the
    /// whole device instead.
    pub(in crate::pool) fn defer(
        &mut self,
        pool: PoolContext<'_>,
        tasks: &[Task],
        ends: impl IntoIterator<Item = WorkEnd>,
    ) {
        let syncs = pool.heap().slots.serials.syncs();
        let capturing = self.captures.any();
        let ends = ends.into_iter().map(|end| if capturing { WorkEnd::Unknown } else { end });
        self.deferred.push(&self.device, &self.log, tasks, ends, syncs);
    }

    /// How to wait for the work enqueued so far on the stream of a serial; `None` if it is done.
    pub(in crate::pool) fn end_of(heap: &Heap, serial: Serial) -> Option<WorkEnd> {
        match heap.slots.state_of(serial) {
            StreamState::Live(stream, _) if stream.is_of_another_thread() || is_ending(stream) => {
                Some(WorkEnd::Unknown)
            }
            StreamState::Live(stream, _) => Some(WorkEnd::Stream(stream, serial)),
            StreamState::Ended(event, _) => Some(WorkEnd::Event(event, serial)),
            StreamState::Unknown(_) => Some(WorkEnd::Unknown),
            // The stream may live on, and use blocks that recorded it before it lost its slot.
            StreamState::Done => heap.slots.serials.was_evicted(serial).then_some(WorkEnd::Unknown),
        }
    }

    /// How to wait for the further uses of a block that is freed in the order of the stream with the serial `own`.
    pub(in crate::pool) fn ends_of(
        heap: &mut Heap,
        uses: Uses,
        own: Option<Serial>,
    ) -> Vec<WorkEnd> {
        let others = uses.streams.into_iter().filter(|&user| Some(user) != own);
        let mut ends: Vec<WorkEnd> = others.filter_map(|user| Self::end_of(heap, user)).collect();
        ends.extend(uses.unknown.then_some(WorkEnd::Unknown));
        ends.extend(uses.events.into_iter().map(|event| {
            // Events of one serial are taken to be in the order of one stream, and these are not.
            WorkEnd::Event(event, heap.slots.serials.next_unused())
        }));
        ends
    }

    /// Makes `stream` wait, on the device, for `ends`. Returns `false` if one of them has no event, or the stream is
    /// the host's: then only a wait for the whole device is enough.
    pub(in crate::pool) fn make_stream_wait(
        &self,
        stream: StreamHandle,
        ends: &[WorkEnd],
    ) -> Result<bool> {
        if self.source.host_stream() == Some(stream) {
            return Ok(ends.is_empty());
        }
        let mut all = true;
        for end in ends {
            match end {
                WorkEnd::Stream(other, _) => {
                    self.wait_event.record(*other)?;
                    self.wait_event.make_wait(stream)?;
                }
                WorkEnd::Event(event, _) => event.make_wait(stream)?,
                WorkEnd::Unknown => all = false,
            }
        }
        Ok(all)
    }

    /// Runs deferred tasks that are due, one batch of them. Does not wait.
    pub(in crate::pool) fn run_deferred(&mut self, pool: PoolContext<'_>) -> Result<()> {
        let begun = self.begin_pass(pool);
        begun.and(self.run_batch(pool).outcome)
    }

    /// Begins a pass over the deferred tasks: finds out which are due, and retries what the device refused before.
    pub(in crate::pool) fn begin_pass(&mut self, pool: PoolContext<'_>) -> Result<()> {
        if self.captures.any() {
            return Ok(());
        }
        self.adopt_orphans(pool);
        let mut outcome = self.small.retry_refused(pool.heap, &self.log);
        outcome = outcome.and(self.large.retry_refused(pool.heap, &self.log));
        self.deferred.retry_failed();
        self.deferred.poll();
        self.keep_aliases(pool);
        for side in [Side::Small, Side::Large] {
            let (provider, log) = self.provider(side);
            provider.clear_oldest_kept(pool.heap, MAX_SLOW, log);
        }
        outcome
    }

    /// Runs tasks that are due, at most [`MAX_SLOW`] slow ones.
    pub(in crate::pool) fn run_batch(&mut self, pool: PoolContext<'_>) -> Batch {
        let mut batch = Batch { more: false, outcome: Ok(()), refused: Ok(()) };
        if self.captures.any() {
            return batch;
        }
        let (tasks, more) = self.deferred.take_ready();
        batch.more = more;
        let mut aliased = None;
        for task in tasks {
            if let Task::ReleasePage(_, page, _) = task {
                // A page that is also mapped elsewhere would not go back to the device, and would count as gone.
                let aliased = aliased.get_or_insert_with(|| self.deferred.aliased_pages());
                if aliased.contains(&page.page) {
                    self.deferred.push_failed(task);
                    continue;
                }
            }
            let Err(error) = self.run(pool, task) else { continue };
            if matches!(task, Task::ReleasePage(..)) {
                // The page is in the address space again, where requests and the next release find it.
                batch.refused = batch.refused.and(Err(error));
            } else {
                self.deferred.push_failed(task);
                batch.outcome = batch.outcome.and(Err(error));
            }
        }
        batch
    }

    /// Keeps the old mappings that no work uses any more, if their pages are still there and may return.
    fn keep_aliases(&mut self, pool: PoolContext<'_>) {
        let mut heap = pool.heap();
        self.deferred.discard_ready(|task| match task {
            Task::ClearAlias(side, alias) => {
                heap.spaces.of_mut(*side).page_table_mut().keep_alias(alias.at, alias.page).is_ok()
            }
            _ => false,
        });
    }

    /// Defers the release of event slots that ended threads left behind, until the events are reached.
    fn adopt_orphans(&mut self, pool: PoolContext<'_>) {
        let (orphans, syncs) = {
            let mut heap = pool.heap();
            (heap.slots.take_orphans(), heap.slots.serials.syncs())
        };
        for (number, serial, event) in orphans {
            let (task, end) =
                ([Task::ReleaseSlot(number, serial)], [WorkEnd::Event(event, serial)]);
            self.deferred.push(&self.device, &self.log, &task, end, syncs);
        }
    }

    /// When all slots are taken, releases event slots that own no hole or whose event is reached. The holes of a
    /// reached event become free for all.
    ///
    /// Holds the heap lock from the query to its record, because a thread may record the event of its own stream again.
    /// The lock is released between two events.
    pub(in crate::pool) fn recover_slots(&self, pool: PoolContext<'_>) {
        if self.captures.any() {
            return;
        }
        let events = pool.heap().slots.events_to_recover();
        for (number, serial) in events {
            let mut heap = pool.heap();
            if heap.drop_idle_event(number, serial) {
                continue;
            }
            if let WaitTarget::Event(event, now) = heap.slots.wait_target(number)
                && now == serial
                && event.is_reached()
            {
                heap.release_slot(number, serial);
            }
        }
    }

    /// Assigns a slot to a stream in use. If many threads have ended meanwhile, runs deferred tasks, so that the slots
    /// and events of ended threads stay bounded.
    pub(in crate::pool) fn reactivate(&mut self, pool: PoolContext<'_>, stream: StreamHandle) {
        self.recover_slots(pool);
        let many = {
            let mut heap = pool.heap();
            heap.slot_for(stream);
            // Its handle is valid again, so others may wait for it.
            heap.slots.set_doubted(stream, false);
            heap.slots.has_many_orphans()
        };
        if many {
            // A failed task is retried by the next call.
            let _ = self.run_deferred(pool);
        }
    }

    fn run(&mut self, pool: PoolContext<'_>, task: Task) -> Result<()> {
        match task {
            Task::ClearAlias(side, alias) => {
                let (provider, log) = self.provider(side);
                provider.clear_alias(pool.heap, alias, log)?;
            }
            Task::ReleaseSlot(number, serial) => pool.heap().release_slot(number, serial),
            Task::ReturnBlock(block, serial) => pool.heap().free_after(block, serial),
            Task::ReleasePage(side, page, _) if !self.provider(side).0.maps_pages => {
                self.outgoing.push((side, page));
            }
            Task::ReleasePage(side, page, _) => {
                let (provider, log) = self.provider(side);
                provider.release(pool.heap, page, log)?;
            }
        }
        Ok(())
    }

    /// Ends a stream. Its holes become free for all once its work so far is done, and its handle may stand for another
    /// stream from now on.
    ///
    /// The caller holds the heap lock from before the event to its record: a later free finds the handle without a
    /// slot, and belongs to whichever stream has the handle then.
    ///
    /// `is_same` is asked after the event is recorded whether the handle still stands for the stream: only then does
    /// the event cover the stream's work.
    pub(in crate::pool) fn end_stream(
        &mut self,
        heap: &mut Heap,
        stream: StreamHandle,
        is_same: &dyn Fn() -> bool,
    ) -> Result<()> {
        let Some(number) = heap.slots.get(stream) else { return Ok(()) };
        let Some(serial) = heap.slots.serial(number) else { return Ok(()) };
        if self.captures.any() {
            heap.end_without_event(number);
            return Ok(());
        }
        step::reach(Step::Ending);
        match LoggedEvent::after(&self.device, &self.log, stream) {
            Ok(end) if is_same() => {
                let (end, syncs) = (Arc::new(end), heap.slots.serials.syncs());
                heap.end_with_event(number, Arc::clone(&end));
                let task = [Task::ReleaseSlot(number, serial)];
                self.deferred.push(
                    &self.device,
                    &self.log,
                    &task,
                    [WorkEnd::Event(end, serial)],
                    syncs,
                );
                Ok(())
            }
            Ok(_) => {
                heap.end_without_event(number);
                Ok(())
            }
            // The stream was destroyed before, or is another thread's own.
            Err(error) if is_gone(&error) => {
                heap.end_without_event(number);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Runs every task that is due.
    fn run_pass(&mut self, pool: PoolContext<'_>) -> Result<()> {
        let mut outcome = self.begin_pass(pool);
        loop {
            let batch = self.run_batch(pool);
            outcome = outcome.and(batch.outcome).and(batch.refused);
            if !batch.more {
                return outcome;
            }
        }
    }

    /// Returns everything to the device. The pool is being dropped, and its work is done.
    pub(in crate::pool) fn tear_down(&mut self, pool: PoolContext<'_>) {
        // A capture that is still under way cannot use the pool any more.
        self.captures = Captures::default();
        self.deferred.settle_all();
        let _ = retry_once(|| self.run_pass(pool));
        // There is no later: an old mapping that the device will not remove keeps no page from being released.
        self.deferred.retry_failed();
        self.deferred.discard_ready(|task| matches!(task, Task::ClearAlias(..)));
        let _ = self.run_pass(pool);
        for (side, page) in core::mem::take(&mut self.outgoing) {
            let span = span_of(page.at, page.size);
            let cleared = pool.heap().spaces.of_mut(side).page_table_mut().clear_alias(page.at);
            debug_assert!(cleared.is_ok(), "the segment was not removed: {cleared:?}");
            self.provider(side).0.strays.push((span.start(), span.size()));
            self.provider(side).0.finish_segment_release(pool.heap, page, true);
        }
        let heap = pool.heap();
        self.small.tear_down(heap.spaces.of(Side::Small));
        self.large.tear_down(heap.spaces.of(Side::Large));
    }
}

/// The result of one batch of deferred tasks.
#[derive(Debug)]
pub(in crate::pool) struct Batch {
    /// Whether more slow tasks are due.
    pub(in crate::pool) more: bool,
    /// The first task that failed and is retried.
    pub(in crate::pool) outcome: Result<()>,
    /// The first page that the device refused to take back.
    pub(in crate::pool) refused: Result<()>,
}

/// Whether the device reports that a stream does not exist.
pub(in crate::pool) fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Device(forebay_hal::Error::Invalid { .. }))
}
