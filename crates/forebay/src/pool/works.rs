//! The works: everything of a pool that calls the driver, one thread at a time.
//!
//! Hits do not come here, and neither does an allocation that a hole serves: growing on one stream
//! does not stall another.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use forebay_core::line::{Growth, Streams};
use forebay_core::{Bytes, Rung};
use forebay_hal::{Call, Device, Pattern, StreamHandle};

use super::capture::Captures;
use super::errand::{Errand, When};
use super::ground::{Context, Ground, Lifted, twice};
use super::heap::Heap;
use super::log::{CallLog, Point};
use super::manner::Manner;
use super::map::{AddressMap, Side};
use crate::Result;
use crate::sync::lock;

/// What the works need of the pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'a> {
    pub(super) heap: &'a Mutex<Heap>,
    pub(super) map: &'a AddressMap,
    /// The most the pool may hold.
    pub(super) limit: Bytes,
}

impl Site<'_> {
    pub(super) fn heap(&self) -> MutexGuard<'_, Heap> {
        lock(self.heap)
    }
}

/// The driver's side of a pool.
#[derive(Debug)]
pub(super) struct Works {
    pub(super) small: Ground,
    pub(super) large: Ground,
    pub(super) errands: Vec<(When, Errand)>,
    /// The event that streams wait for each other by: recorded and waited for at once.
    meeting: Point,
    pub(super) growth: Growth,
    /// How much the pool has grown by, ever, rather than fold the magazines.
    pub(super) spared: Bytes,
    /// What new pages are filled with before anything else.
    fresh: Option<Pattern>,
    /// Whether nothing is moved, nor given back before the end.
    stable: bool,
    /// Who is capturing now.
    pub(super) captures: Captures,
    pub(super) log: CallLog,
    device: Arc<dyn Device>,
}

impl Works {
    pub(super) fn new(
        device: &Arc<dyn Device>,
        manner: &Manner,
        growth: Growth,
        fresh: Option<Pattern>,
        log: &CallLog,
    ) -> Result<(Self, Heap)> {
        let meeting = Point::new(device, log)?;
        let (mut small, small_field) = Ground::new(device, manner, Side::Small, log)?;
        let (large, large_field) = match Ground::new(device, manner, Side::Large, log) {
            Ok(made) => made,
            Err(error) => {
                small.tear_down(&small_field);
                return Err(error);
            }
        };
        let (device, errands, log) = (Arc::clone(device), Vec::new(), log.clone());
        let (stable, captures) = (manner.is_stable(), Captures::default());
        let works = Self {
            small,
            large,
            errands,
            meeting,
            growth,
            spared: Bytes::ZERO,
            fresh,
            stable,
            captures,
            log,
            device,
        };
        Ok((works, Heap::new(small_field, large_field)))
    }

    pub(super) fn ground(&mut self, side: Side) -> (&mut Ground, &CallLog) {
        match side {
            Side::Small => (&mut self.small, &self.log),
            Side::Large => (&mut self.large, &self.log),
        }
    }

    /// Does what one rung of the ladder says, for a request of `size` on `stream`. Whether it did
    /// anything that can have brought memory.
    ///
    /// What fails for others (a stream that is gone, an errand of some earlier request) leaves their
    /// memory where it is, and is no error of this request: it is served from elsewhere or refused.
    pub(super) fn climb(
        &mut self,
        site: Site<'_>,
        rung: Rung,
        (side, size): (Side, Bytes),
        stream: StreamHandle,
    ) -> Result<bool> {
        if self.captures.any() && rung != Rung::Room {
            return Ok(false);
        }
        match rung {
            Rung::Deferred => Ok(self.run_errands(site, false).is_ok()),
            Rung::Nearest => Ok(self.wait_for_nearest(site, side, size, stream)),
            Rung::Others => Ok(self.wait_for_others(site, side, stream)),
            Rung::Room => self.make_room(site, side, size, stream),
            Rung::Idle => {
                let trimmed = self.trim(site, Bytes::ZERO);
                self.wait_for_others(site, side, stream);
                // Where there is no room, it is because nothing could be given back before.
                let room = self.make_room(site, side, size, stream)?;
                if room { Ok(true) } else { trimmed.map(|_| false) }
            }
            _ => Ok(false),
        }
    }

    fn wait_for_nearest(
        &mut self,
        site: Site<'_>,
        side: Side,
        size: Bytes,
        stream: StreamHandle,
    ) -> bool {
        let mut heap = site.heap();
        let Some(lane) = heap.lanes.get(stream) else { return false };
        let better = heap.field(side).line.worth_waiting_for(size, Streams::only(lane));
        // Any one of them will do.
        let mut owners = better.into_iter().flat_map(Streams::numbers);
        owners.any(|owner| self.wait_for(&mut heap, owner, lane, stream))
    }

    fn wait_for_others(&mut self, site: Site<'_>, side: Side, stream: StreamHandle) -> bool {
        let mut heap = site.heap();
        let Some(lane) = heap.lanes.get(stream) else { return false };
        let others = heap.owners(side).numbers().filter(|&number| number != lane);
        others.filter(|&number| self.wait_for(&mut heap, number, lane, stream)).count() > 0
    }

    /// Makes `lane` wait for all that was enqueued on the stream with number `owner`, on the device.
    /// `false` where that stream cannot be waited for: it is on its way out, gone without a word, or
    /// the device fails. What is free in its order stays so.
    ///
    /// Under the heap's lock, so that nothing is freed on that stream between the event and the note
    /// of it. The two calls take a quarter of a microsecond each.
    fn wait_for(&mut self, heap: &mut Heap, owner: u32, lane: u32, stream: StreamHandle) -> bool {
        let Some(other) = heap.lanes.handle(owner) else { return false };
        let recorded = self.meeting.record(other);
        if let Err(crate::Error::Device(forebay_hal::Error::Invalid { .. })) = recorded {
            // There is no such stream any more: nobody else need ask.
            heap.lanes.set_doubted(other, true);
        }
        let waits = recorded.and_then(|()| self.meeting.hold(stream));
        if waits.is_ok() {
            heap.waited(lane, owner);
        }
        waits.is_ok()
    }

    /// Makes what is free in the order of streams that have nothing left to do everybody's, so that
    /// neighbours which were of different streams are one hole. Does not wait.
    ///
    /// Under the heap's lock, as where a stream is waited for: nothing is freed on it between the event
    /// and the note of it.
    pub(super) fn part_from_idle_streams(&self, site: Site<'_>) {
        if self.captures.any() {
            return;
        }
        let mut heap = site.heap();
        let sides = [Side::Small, Side::Large].map(|side| heap.owners(side));
        for lane in 0..Streams::MOST {
            if !sides.iter().any(|owners| owners.contains(Streams::only(lane))) {
                continue;
            }
            let Some(stream) = heap.lanes.handle(lane) else { continue };
            if self.meeting.record(stream).is_ok() && self.meeting.is_reached() {
                heap.idle(lane);
            }
        }
    }

    fn make_room(
        &mut self,
        site: Site<'_>,
        side: Side,
        size: Bytes,
        stream: StreamHandle,
    ) -> Result<bool> {
        let Some(lane) = site.heap().lanes.get(stream) else { return Ok(false) };
        let (mut growth, limit) = (self.growth, site.limit);
        // What moves, moves in the order of a stream, by an event.
        growth.moves &= !self.stable && !self.captures.any();
        let fresh = self.fresh.map(|pattern| (pattern, stream));
        let context = Context { heap: site.heap, map: site.map, growth: &growth, limit, fresh };
        let mut aliases = Vec::new();
        let (ground, log) = self.ground(side);
        let lane = Streams::only(lane);
        let mut made = ground.make_room(context, size, lane, &mut aliases, log);
        if matches!(made, Err(crate::Error::Device(forebay_hal::Error::OutOfMemory { .. }))) {
            // The device has less than a page of the size that is best: of the smallest there may be
            // enough.
            let mut smallest = growth;
            smallest.largest_page = Bytes::ZERO;
            let context = Context { growth: &smallest, ..context };
            made = ground.make_room(context, size, lane, &mut aliases, log);
        }
        if !aliases.is_empty() {
            // The taker has waited for everyone whose memory it took, so what it has enqueued so
            // far comes after every use through the old mappings. Where no event is to be had, the
            // next time the device is synchronised will do.
            let end = self.end_of(stream).map(Arc::new).ok();
            for alias in aliases {
                let when = end.clone().map_or(When::Synchronised, |end| When::Reached(vec![end]));
                self.errands.push((when, Errand::Clear(side, alias)));
            }
        }
        match made {
            Err(crate::Error::Device(forebay_hal::Error::OutOfMemory { .. })) => Ok(false),
            other => other,
        }
    }

    /// An event after all work enqueued on `stream`.
    pub(super) fn end_of(&self, stream: StreamHandle) -> Result<Point> {
        Point::after(&self.device, &self.log, stream)
    }

    /// Makes `stream` wait on the device for all that is enqueued on `others` so far.
    pub(super) fn join(&mut self, stream: StreamHandle, others: &[StreamHandle]) -> Result<()> {
        for &other in others.iter().filter(|&&other| other != stream) {
            self.meeting.record(other)?;
            self.meeting.hold(stream)?;
        }
        Ok(())
    }

    /// Waits for all work of the device, and does what was put off until then.
    pub(super) fn settle(&mut self, site: Site<'_>) -> Result<()> {
        // Taken before: what is freed while the device is waited for may be used by work of then.
        let later = core::mem::take(&mut site.heap().later);
        if let Err(error) = self.synchronize() {
            site.heap().later.extend(later);
            return Err(error);
        }
        {
            let mut heap = site.heap();
            later.into_iter().for_each(|block| heap.give_to_all(block));
        }
        self.run_errands(site, true)
    }

    /// Waits for all work of the device.
    pub(super) fn synchronize(&self) -> Result<()> {
        let synchronize = || self.device.synchronize_device();
        Ok(self.log.call(Call::SynchronizeDevice, synchronize)?)
    }

    /// A number for a stream that someone uses, as [`enrol`](Self::enrol) gives it: so it is there, and
    /// can be waited for.
    pub(super) fn welcome(&mut self, site: Site<'_>, stream: StreamHandle) -> Result<u32> {
        site.heap().lanes.set_doubted(stream, false);
        self.enrol(site, stream)
    }

    /// A number for a stream. Where all are taken, the stream that was not used for the longest is
    /// waited for on the host, and what is free in its order becomes everybody's. One that cannot be
    /// waited for keeps its number, and the next is tried.
    pub(super) fn enrol(&mut self, site: Site<'_>, stream: StreamHandle) -> Result<u32> {
        let (mut tries, mut failed) = (0, None);
        loop {
            let (oldest, number) = {
                let mut heap = site.heap();
                if let Some(number) = heap.lanes.enrol(stream) {
                    return Ok(number);
                }
                drop(heap);
                if self.captures.any() {
                    return Err(crate::Error::TooManyStreams { stream, most: Streams::MOST });
                }
                if self.forget_those_over(site, false) {
                    continue;
                }
                let mut heap = site.heap();
                let oldest = heap.lanes.oldest().filter(|_| tries < Streams::MOST);
                let left = oldest.and_then(|oldest| Some((oldest, heap.lanes.leave(oldest)?)));
                drop(heap);
                match left {
                    Some(left) => left,
                    // None can be waited for but those that were forgotten: the first to be over will
                    // do.
                    None if self.forget_those_over(site, true) => continue,
                    None => {
                        let most = Streams::MOST;
                        return Err(failed.unwrap_or(crate::Error::TooManyStreams { stream, most }));
                    }
                }
            };
            // What is freed on it from here on finds no number, and waits for the works.
            let waited = self.end_of(oldest).and_then(|end| end.synchronize());
            let mut heap = site.heap();
            match waited {
                Ok(()) => heap.gone(number),
                Err(error) => {
                    // As one that was used just now, so that it is not the next to be tried.
                    heap.lanes.stay(oldest, number);
                    failed = failed.or(Some(error));
                    tries += 1;
                }
            }
        }
    }

    /// Gives free pages back to the device until no more than `keep` bytes are held; gives how many
    /// bytes. Waits for the device where work may still use them.
    pub(super) fn trim(&mut self, site: Site<'_>, keep: Bytes) -> Result<Bytes> {
        if self.captures.any() {
            return Ok(Bytes::ZERO);
        }
        let before = site.heap().held();
        // What waits for other streams, or for a number, becomes free by this, and is given back with
        // the rest; so is what was to go already. An errand that fails keeps nothing else from going.
        let mut settled = Ok(());
        if self.has_errands() || !site.heap().later.is_empty() {
            settled = self.settle(site);
        }
        // Off the lines first: nobody can have them while the device is waited for.
        let lifted = self.lift(site, keep);
        if lifted.iter().any(|(_, page)| !page.idle())
            && let Err(error) = self.synchronize()
        {
            self.put_back(site, lifted);
            return Err(error);
        }
        let mut outcome = Ok(());
        for (side, page) in lifted {
            let (ground, log) = self.ground(side);
            // One that the device refuses is on the line again, and keeps no other from going.
            outcome = outcome.and(ground.release(site.heap, page, log));
        }
        settled.and(outcome).map(|()| before.saturating_sub(site.heap().held()))
    }

    /// Takes free pages off the lines until no more than `keep` bytes would be held.
    fn lift(&mut self, site: Site<'_>, keep: Bytes) -> Vec<(Side, Lifted)> {
        if self.stable || self.captures.any() {
            return Vec::new();
        }
        let mut heap = site.heap();
        let mut spare = heap.backed().saturating_sub(keep);
        let mut lifted = Vec::new();
        for side in [Side::Large, Side::Small] {
            for page in self.ground(side).0.lift(&mut heap, spare) {
                spare = spare.saturating_sub(page.size());
                lifted.push((side, page));
            }
        }
        lifted
    }

    /// Gives free pages back to the device, once the work that may use them is done, until no more
    /// than `keep` bytes are held; gives how many bytes are to go. Does not wait.
    pub(super) fn retire(&mut self, site: Site<'_>, keep: Bytes) -> Result<Bytes> {
        let mut ends: BTreeMap<u32, Arc<Point>> = BTreeMap::new();
        let mut bytes = Bytes::ZERO;
        for (side, page) in self.lift(site, keep) {
            bytes = bytes.saturating_add(page.size());
            let errand = Errand::Release(side, page);
            if page.idle() {
                self.errands.push((When::Now, errand));
                continue;
            }
            // Free in the order of any of its streams: the end of one of them is enough.
            let end = page.streams().numbers().find_map(|lane| {
                if let Some(known) = ends.get(&lane) {
                    return Some(Arc::clone(known));
                }
                let stream = site.heap().lanes.handle(lane)?;
                let end = Arc::new(self.end_of(stream).ok()?);
                ends.insert(lane, Arc::clone(&end));
                Some(end)
            });
            match end {
                Some(end) => self.errands.push((When::Reached(vec![end]), errand)),
                // There is no event to be had: better there for requests than nobody's.
                None => {
                    bytes = bytes.saturating_sub(page.size());
                    self.put_back(site, vec![(side, page)]);
                }
            }
        }
        self.run_errands(site, false).map(|()| bytes)
    }

    fn put_back(&mut self, site: Site<'_>, pages: Vec<(Side, Lifted)>) {
        for (side, page) in pages {
            self.ground(side).0.put_back(site.heap, [page]);
        }
    }

    /// Gives everything back to the device: the pool is going.
    pub(super) fn tear_down(&mut self, site: Site<'_>) {
        // Work may still use what is about to be given back; where waiting fails the device is lost,
        // and its work with it.
        let _ = twice(|| self.device.synchronize_device());
        // Whoever captures has nothing of the pool any more.
        self.captures = Captures::default();
        let _ = twice(|| self.run_errands(site, true));
        let heap = site.heap();
        self.small.tear_down(&heap.small);
        self.large.tear_down(&heap.large);
    }
}
