//! Waiting for the device on the host, and releasing memory to it. Apart from debug checks and dropping a pool, only
//! this file waits for the device, and it does so **with no lock of the pool held**: the device's work may wait for a
//! thread that needs one.
//!
//! ```text
//!   lock     list the deferred tasks and the events they wait for
//!   unlock   wait for those events; for tasks without one, for the whole device
//!   lock     run the tasks: blocks return to the heap, pages to the device, a batch of them before other threads go on
//!   unlock   return segments to the device, which may wait for its work first
//! ```
//!
//! Memory freed meanwhile is neither waited for nor taken for settled: it has a later event, or a later mark
//! ([`StreamSlots`](crate::pool::heap::stream_slots::StreamSlots)).

use core::time::Duration;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use forebay_core::address_space::{PageMapping, Streams};
use forebay_core::{Address, Bytes, Span};
use forebay_hal::{Call, Capabilities, Progress, StreamHandle};

use crate::pool::backing::deferred::WorkEnd;
use crate::pool::backing::grow::Wanted;
use crate::pool::backing::{Backing, is_gone};
use crate::pool::common::log::LoggedEvent;
use crate::pool::common::step::{self, Step};
use crate::pool::common::wait::{Deadline, WaitBudget, poll};
use crate::pool::heap::stream_slots::Serial;
use crate::pool::heap::{Piece, span_of};
use crate::pool::shared::Shared;
use crate::sync::map::Side;
use crate::sync::tracked::lock;
use crate::{Error, Result};

/// How long a thread that releases many pages sleeps after each batch, which takes the driver 1.4 ms on one H200.
const BETWEEN_BATCHES: Duration = Duration::from_micros(50);

/// What a request has not tried yet to get memory back.
#[derive(Clone, Copy, Debug)]
enum Effort {
    /// Wait for the work that memory waits for.
    Wait,
    /// Release no more free memory than the request needs, plus one page.
    ReleaseSome,
    /// Release all free memory.
    ReleaseAll,
    /// Everything was tried. Other threads may have returned memory since.
    Nothing,
}

/// What a request that reclaims memory has found.
#[derive(Clone, Copy, Debug)]
struct Look {
    found: Option<Address>,
    /// The count of [arrivals](crate::pool::heap::Heap::arrivals) from before it looked, and of blocks in quarantine.
    arrivals: u64,
    quarantined: u64,
    /// Whether the device had too little memory to grow.
    device_is_short: bool,
}

/// The result of a wait for the work of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum StreamWait {
    /// The work is done.
    Done,
    /// The deadline passed first.
    Pending,
    /// Only a wait for the whole device would tell.
    Unknown,
}

/// Held while a thread has memory on its way to the heap or to the device, so that a request of another thread which needs
/// it waits for it.
pub(in crate::pool) struct Reclaiming<'a>(&'a Shared);

impl<'a> Reclaiming<'a> {
    pub(in crate::pool) fn begin(shared: &'a Shared) -> Self {
        shared.reclaiming.fetch_add(1, Ordering::SeqCst);
        Self(shared)
    }
}

impl Drop for Reclaiming<'_> {
    fn drop(&mut self) {
        self.0.reclaiming.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Held by the one request that releases memory for itself. What is returned to the device meanwhile stays reserved for
/// it, and no other request takes back what it took out.
struct ReleaseTurn<'a>(Reclaiming<'a>);

impl<'a> ReleaseTurn<'a> {
    /// `None` while another request has the turn.
    fn begin(shared: &'a Shared) -> Option<Self> {
        let reclaiming = Reclaiming::begin(shared);
        let is_first = shared.heap().begin_room();
        is_first.then(|| Self(reclaiming))
    }
}

impl Drop for ReleaseTurn<'_> {
    fn drop(&mut self) {
        self.0.0.heap().end_room();
    }
}

impl Shared {
    /// The deadline of a call: `max_wait` after its first wait. A request that is not served by then is refused.
    pub(in crate::pool) fn deadline(&self, wait: &mut WaitBudget) -> Deadline {
        wait.deadline(|| self.settings().max_wait())
    }

    /// Runs the deferred tasks that are due.
    pub(in crate::pool) fn process_deferred(&self) -> Result<()> {
        self.birth.check()?;
        self.backing().run_deferred(self.context())?;
        self.continue_collection()?;
        self.release_segments(Deadline::Now)?;
        if let Some(guards) = self.debug.guards() {
            self.unmap_freed(guards, Deadline::Now)?;
        }
        Ok(())
    }

    /// Releases free memory until the pool holds `keep` bytes. Returns how much was released. Waits.
    pub(in crate::pool) fn trim(&self, keep: Bytes) -> Result<Bytes> {
        self.birth.check()?;
        let begun = self.begin_told();
        let trimmed = self.trim_inner(keep);
        self.tell_release(&begun, &trimmed);
        self.read_pressure();
        trimmed
    }

    /// Releases all free memory of a pool whose memory is [stable](crate::MemoryClass::STABLE), once no graph uses it.
    /// Waits for all work of the process: graphs may have been launched on streams that the device does not know. From
    /// the moment a capture begins, nothing more is released: its graph may be launched, and be gone, before this returns.
    pub(in crate::pool) fn trim_stable(&self) -> Result<Bytes> {
        self.birth.check()?;
        let begun = self.captures.begun();
        let wait = || self.device.synchronize_process();
        self.log.wait(Call::SynchronizeDevice, Bytes::ZERO, wait)?;
        self.backing().releasable_until = Some(begun);
        let trimmed = self.trim(Bytes::ZERO);
        self.backing().releasable_until = None;
        trimmed
    }

    fn trim_inner(&self, keep: Bytes) -> Result<Bytes> {
        let keep = keep.max(self.settings().min_bytes());
        self.empty_quarantine(Deadline::Never)?;
        self.flush_all_caches(&mut self.backing());
        if self.captures.any() {
            return Ok(Bytes::ZERO);
        }
        let before = self.held.get();
        // Memory that waits for other streams becomes free by this, and is released with the rest. A failure here does
        // not keep the rest from being released.
        let settled = self.settle(Deadline::Never).map(drop);
        self.take_out_free(keep);
        let released = self.settle(Deadline::Never).map(drop);
        let unmapped = self.debug.guards().map(|guards| self.unmap_freed(guards, Deadline::Never));
        unmapped.transpose()?;
        settled.and(released).map(|()| before.saturating_sub(self.held.get()))
    }

    /// Takes free pages out of the address spaces until no more than `keep` bytes would be held, for a caller that
    /// returns them to the device at once.
    fn take_out_free(&self, keep: Bytes) {
        let mut backing = self.backing();
        let mut pages = backing.free_pages(self.context()).into_iter();
        backing.defer_release(self.context(), &mut pages, keep, usize::MAX);
    }

    /// Runs every deferred task that is due. Other threads go on between two batches.
    fn run_all_deferred(&self) -> Result<()> {
        let mut outcome = self.backing().begin_pass(self.context());
        loop {
            let batch = self.backing().run_batch(self.context());
            outcome = outcome.and(batch.outcome).and(batch.refused);
            if !batch.more {
                return outcome;
            }
            self.let_others_in();
        }
    }

    /// Sleeps between two batches of driver calls, if other threads use the pool: a thread that waits for the lock
    /// would not get it from one that takes it again at once.
    pub(in crate::pool) fn let_others_in(&self) {
        if self.front.is_shared() {
            std::thread::sleep(BETWEEN_BATCHES);
        }
    }

    /// Waits for all work that deferred tasks wait for, and runs the tasks. Returns `false` if the deadline passed
    /// first.
    pub(in crate::pool) fn settle(&self, deadline: Deadline) -> Result<bool> {
        step::reach(Step::Settling);
        let (events, ticket) = {
            let backing = self.backing();
            // A capture begins under this lock, and one may have begun since the caller looked.
            if self.captures.any() {
                return Ok(false);
            }
            let mut heap = self.heap();
            heap.mark_unreachable();
            let unknown = backing.deferred.has_unknown()
                || heap.has_unknown()
                || self.has_unclean_unknown(&heap);
            (backing.deferred.events(), unknown.then(|| heap.slots.begin_sync()))
        };
        let mut outcome = self.wait_for_events(&events, deadline);
        if let Some(ticket) = ticket {
            let synchronized = self.wait_for_device_unless_captured(deadline);
            let done = matches!(synchronized, Ok(true));
            let mut backing = self.backing();
            self.heap().end_sync(ticket, done);
            if done {
                backing.deferred.synchronized(ticket.before);
            }
            drop(backing);
            outcome = outcome.and_then(|all| Ok(synchronized? && all));
        }
        let ran = self.run_all_deferred();
        {
            let mut backing = self.backing();
            if !self.captures.any() {
                // More streams are known to be done by now.
                let returns = self.fill_unclean(&mut backing);
                self.heap().free_all(returns);
            }
        }
        let given = self.release_segments(deadline).map(drop);
        ran.and(given).and(outcome)
    }

    /// Waits for events. Returns `false` if the deadline passed or a capture began: from then on nothing is waited for.
    /// A wait that is already inside the driver goes on, as it began before the capture.
    pub(in crate::pool) fn wait_for_events(
        &self,
        events: &[Arc<LoggedEvent>],
        deadline: Deadline,
    ) -> Result<bool> {
        for event in events {
            if matches!(deadline, Deadline::Never) {
                if self.captures.any() {
                    return Ok(false);
                }
                if event.synchronize().is_err() {
                    // A wait for the whole device covers the event too, whatever was wrong with it.
                    return self.wait_for_device_unless_captured(deadline);
                }
                continue;
            }
            let reached = poll(deadline, || {
                // Locked, so that no capture begins during the query.
                let _backing = self.backing();
                if self.captures.any() {
                    return Ok(Some(false));
                }
                Ok((event.query()? == Progress::Done).then_some(true))
            });
            if !reached? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits for all work of the device. Returns `false` if the deadline passed or a capture is under way.
    fn wait_for_device_unless_captured(&self, deadline: Deadline) -> Result<bool> {
        if self.captures.any() { Ok(false) } else { self.wait_for_device(deadline) }
    }

    /// Waits for all work of the device. Returns `false` if the deadline passed first.
    ///
    /// The whole device cannot be polled, so with a deadline a helper thread waits. It ends when the device is done,
    /// and meanwhile no second one is started. A request that comes meanwhile first waits for the helper's end and then
    /// for the device itself: the wait under way does not cover work enqueued after it began.
    pub(in crate::pool) fn wait_for_device(&self, deadline: Deadline) -> Result<bool> {
        let wait = || self.device.synchronize_device();
        if deadline.remaining().is_none() {
            return Ok(self.log.wait(Call::SynchronizeDevice, Bytes::ZERO, wait).map(|()| true)?);
        }
        if deadline.has_passed() {
            return Ok(false);
        }
        // One helper at a time.
        if !poll(deadline, || Ok((!self.waiter.swap(true, Ordering::SeqCst)).then_some(true)))? {
            return Ok(false);
        }
        let left = deadline.remaining().unwrap_or_default();
        let (tell, told) = mpsc::channel();
        let (device, waiter) = (Arc::clone(&self.device), Arc::clone(&self.waiter));
        let spawned = crate::sync::thread::spawn("forebay-wait", move || {
            let waited = device.synchronize_device();
            waiter.store(false, Ordering::SeqCst);
            // After the deadline nobody listens any more.
            let _ = tell.send(waited);
        });
        if spawned.is_err() {
            self.waiter.store(false, Ordering::SeqCst);
            return Ok(false);
        }
        let receive = || told.recv_timeout(left);
        match self.log.wait(Call::SynchronizeDevice, Bytes::ZERO, receive) {
            Ok(waited) => Ok(waited.map(|()| true)?),
            Err(_) => Ok(false),
        }
    }

    /// Whether any segment is waiting to be returned to the device.
    fn has_segments_to_release(&self) -> bool {
        let mut backing = self.backing();
        let mut strays = [Side::Small, Side::Large].into_iter();
        !backing.outgoing.is_empty()
            || strays.any(|side| !backing.provider(side).0.strays.is_empty())
    }

    /// Takes the next segment to return to the device; `None` if there is none, or a capture is under way. A capture
    /// begins under the backing lock, so it begins either before or after this.
    fn next_outgoing(&self) -> Option<(Side, PageMapping)> {
        let mut backing = self.backing();
        if self.captures.any() {
            return None;
        }
        let (side, page) = backing.outgoing.pop()?;
        // Cleared before the device gets it: the device may return the same addresses again at once.
        let cleared = self.heap().side_heap(side).space.clear_alias(page.at);
        debug_assert!(cleared.is_ok(), "the segment was not removed: {cleared:?}");
        Some((side, page))
    }

    /// Takes the segments that never came into the address space.
    fn take_strays(&self) -> [(Side, Vec<(Address, Bytes)>); 2] {
        let mut backing = self.backing();
        let capturing = self.captures.any();
        [Side::Small, Side::Large].map(|side| {
            let strays = &mut backing.provider(side).0.strays;
            (side, if capturing { Vec::new() } else { core::mem::take(strays) })
        })
    }

    /// Returns segments that are out of the address space to the device, without a lock: a device may wait for its work
    /// before it takes memory back. Such a device is waited for first, and if that takes too long the segments are
    /// released another time, unless a request takes them back. Returns how many bytes were released.
    pub(in crate::pool) fn release_segments(&self, deadline: Deadline) -> Result<Bytes> {
        if !self.has_segments_to_release() {
            return Ok(Bytes::ZERO);
        }
        let _reclaiming = Reclaiming::begin(self);
        let prompt = self.device.descriptor().capabilities.contains(Capabilities::PROMPT_FREE);
        let in_time = match deadline {
            Deadline::Never => true,
            _ if prompt => true,
            Deadline::Now => false,
            Deadline::At(_) => self.wait_for_device_unless_captured(deadline)?,
        };
        if !in_time {
            return Ok(Bytes::ZERO);
        }
        let free = |span: Span| {
            // SAFETY: the segment is in no address space, so no block lies in it. The end of all work that used it was
            // seen when its task became due, or no work ever used it.
            let free = || unsafe { self.device.free(span.start()) };
            self.log.wait(Call::Free, span.size(), free).map_err(Error::from)
        };
        let (mut outcome, mut released) = (Ok(()), Bytes::ZERO);
        while let Some((side, page)) = self.next_outgoing() {
            let freed = free(span_of(page.at, page.size));
            if freed.is_ok() {
                released = released.saturating_add(page.size);
            }
            let mut backing = self.backing();
            backing.provider(side).0.finish_segment_release(
                self.context().heap,
                page,
                freed.is_ok(),
            );
            outcome = outcome.and(freed);
        }
        for (side, segments) in self.take_strays() {
            for (start, size) in segments {
                let freed = Span::new(start, size).map_or(Ok(()), free);
                let mut backing = self.backing();
                if freed.is_ok() {
                    released = released.saturating_add(size);
                    self.heap().released(size);
                } else {
                    backing.provider(side).0.strays.push((start, size));
                }
                outcome = outcome.and(freed);
            }
        }
        outcome.map(|()| released)
    }

    /// Waits for the device, so that memory used by finished work comes back, and releases free memory that cannot
    /// serve the request where it is. The last thing tried before the program is asked to free memory. Returns the piece;
    /// `None` if there would be too little even if everything came back, or too little came in time.
    ///
    /// The request has no claim on what other threads free and take meanwhile. It looks again only after one of them has
    /// returned memory, or while work is pending that holds some: so it ends, at the latest when the deadline passes.
    pub(in crate::pool) fn reclaim(
        &self,
        piece: Piece,
        stream: StreamHandle,
        deadline: Deadline,
    ) -> Result<Option<Address>> {
        if self.captures.any() || self.is_infeasible(piece, true) {
            return Ok(None);
        }
        let (mut effort, mut turn) = (Effort::Wait, None);
        // The failures on the way are the reason if the memory does not come.
        let (mut outcome, mut has_settled) = (Ok(()), true);
        loop {
            let look = self.take_all_there_is(piece, stream, turn.is_some())?;
            if look.found.is_some() {
                return Ok(look.found);
            }
            if self.captures.any() {
                return outcome.map(|()| None);
            }
            match effort {
                Effort::Wait => {
                    if let Err(error) = self.empty_quarantine(deadline)
                        && error.is_finding()
                    {
                        return Err(error);
                    }
                    effort = Effort::ReleaseSome;
                }
                Effort::ReleaseSome | Effort::ReleaseAll if turn.is_none() => {
                    turn = ReleaseTurn::begin(self);
                    if turn.is_none() {
                        self.wait_for_reclaims(deadline);
                        effort = if deadline.has_passed() { Effort::Nothing } else { effort };
                    }
                    continue;
                }
                Effort::ReleaseSome => {
                    let page = self.backing().growth.largest_page;
                    let keep = self.held.get().saturating_sub(piece.whole()).saturating_sub(page);
                    self.take_out_free(keep);
                    effort = Effort::ReleaseAll;
                }
                Effort::ReleaseAll => {
                    self.take_out_free(Bytes::ZERO);
                    effort = Effort::Nothing;
                }
                Effort::Nothing => {
                    turn = None;
                    let is_over = outcome.is_err() || deadline.has_passed();
                    if is_over || !self.may_come(piece, stream, look, has_settled, deadline) {
                        return outcome.map(|()| None);
                    }
                    effort = Effort::Wait;
                    self.let_others_in();
                    continue;
                }
            }
            let settled = self.settle(deadline);
            has_settled = matches!(settled, Ok(true));
            outcome = outcome.and(settled.map(drop));
        }
    }

    /// Cuts a piece out of all that is free now, in caches too, or grows for it.
    fn take_all_there_is(
        &self,
        piece: Piece,
        stream: StreamHandle,
        has_room: bool,
    ) -> Result<Look> {
        step::reach(Step::Looking);
        let quarantined = lock(&self.debug.quarantine).added();
        let mut backing = self.backing();
        self.flush_all_caches(&mut backing);
        let arrivals = self.heap().arrivals;
        backing.wait_for_others(self.context(), piece.side(), stream);
        let mut found = {
            let mut heap = self.heap();
            let slot = heap.slot_for(stream);
            heap.allocate(piece, slot)
        };
        if found.is_none() {
            found = backing.grow(self.context(), Wanted { piece, stream, has_room })?;
        }
        Ok(Look { found, arrivals, quarantined, device_is_short: backing.device_is_short })
    }

    /// Whether memory has come for a request since it last looked, or is held by work that is pending. Pending work is no
    /// reason to look again if the last wait for it did not end.
    fn may_come(
        &self,
        piece: Piece,
        stream: StreamHandle,
        look: Look,
        has_settled: bool,
        deadline: Deadline,
    ) -> bool {
        // The device has less than it says, and no other memory of the pool would help.
        if look.device_is_short || self.is_infeasible(piece, true) {
            return false;
        }
        // First what other threads have under way, then what they have done.
        self.wait_for_reclaims(deadline);
        let has_quarantined = lock(&self.debug.quarantine).added() != look.quarantined;
        {
            let backing = self.backing();
            let mut heap = self.heap();
            let taker = Streams::only(heap.slot_for(stream));
            let is_pending = !backing.deferred.is_empty()
                || !backing.outgoing.is_empty()
                || heap.has_unknown()
                || heap.has_unreachable(piece.side(), taker);
            if heap.arrivals != look.arrivals || has_quarantined || is_pending && has_settled {
                return true;
            }
        }
        // Or they have freed what it needs into their caches.
        self.is_infeasible(piece, false)
    }

    /// Takes back what calls that release memory have taken out and not returned yet, unless it is another request that
    /// releases it for itself.
    pub(in crate::pool) fn take_back(&self, backing: &mut Backing, side: Side, size: Bytes) {
        if self.reclaiming.load(Ordering::SeqCst) == 0 {
            backing.take_back(self.context(), side, size);
        }
    }

    /// Waits, on the host, until no other thread is releasing memory. Returns `false` if none was, or the deadline
    /// passed.
    pub(in crate::pool) fn wait_for_reclaims(&self, deadline: Deadline) -> bool {
        if self.reclaiming.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let none = || (self.reclaiming.load(Ordering::SeqCst) == 0).then_some(true);
        poll(deadline, || Ok(none())).is_ok_and(|waited| waited)
    }

    /// Waits, on the host, for all work enqueued so far on the stream of a serial.
    pub(in crate::pool) fn wait_for_stream(
        &self,
        serial: Serial,
        deadline: Deadline,
    ) -> Result<StreamWait> {
        let event = {
            // Under this lock no thread forgets the stream, so the handle still stands for it when the event is
            // recorded.
            let _backing = self.backing();
            let end = Backing::end_of(&self.heap(), serial);
            match end {
                None => return Ok(StreamWait::Done),
                Some(WorkEnd::Unknown) => return Ok(StreamWait::Unknown),
                Some(WorkEnd::Event(event, _)) => event,
                Some(WorkEnd::Stream(stream, _)) => {
                    match LoggedEvent::after(&self.device, &self.log, stream) {
                        Ok(event) => Arc::new(event),
                        Err(error) if is_gone(&error) => return Ok(StreamWait::Unknown),
                        Err(error) => return Err(error),
                    }
                }
            }
        };
        let over = self.wait_for_events(&[event], deadline)?;
        Ok(if over { StreamWait::Done } else { StreamWait::Pending })
    }
}
