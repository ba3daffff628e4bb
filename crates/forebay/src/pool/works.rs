//! The works: everything of a pool that calls the driver, one thread at a time.
//!
//! Hits do not come here, and neither does an allocation that a hole serves: growing on one stream
//! does not stall another.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use forebay_core::line::{Growth, Streams};
use forebay_core::{Address, Bytes, Rung};
use forebay_hal::{Call, Device, Event, EventKind, Pattern, Progress, StreamHandle};

use super::DriverLog;
use super::capture::Captures;
use super::ground::{Alias, Context, Ground, Lifted, twice};
use super::heap::{Heap, Return};
use super::manner::Manner;
use super::map::{AddressMap, Side};
use crate::Result;
use crate::sync::lock;

/// When something put off can be done.
#[derive(Debug)]
enum When {
    /// Once all of these events are reached.
    Reached(Vec<Arc<Event>>),
    /// Once the whole device was synchronised: there was no event to be had.
    Synchronised,
    /// Now: its time had come, but it failed.
    Now,
}

/// What is to be done later.
#[derive(Clone, Copy, Debug)]
enum Errand {
    /// Take the old mapping of a moved page away.
    Clear(Side, Alias),
    /// Let a stream's number go: what was freed on it is everybody's.
    Forget(u32),
    /// Take back a block that was used on further streams.
    Return(Return),
    /// Take back one whose own stream is gone: it is everybody's.
    ReturnToAll(Return),
    /// Give a page that was taken off the line to the device.
    Release(Side, Lifted),
}

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
    small: Ground,
    large: Ground,
    errands: Vec<(When, Errand)>,
    /// The event that streams wait for each other by: recorded and waited for at once.
    meeting: Event,
    pub(super) growth: Growth,
    /// What new pages are filled with before anything else.
    fresh: Option<Pattern>,
    /// Whether nothing is moved, nor given back before the end.
    stable: bool,
    /// Who is capturing now.
    pub(super) captures: Captures,
    pub(super) log: DriverLog,
    device: Arc<dyn Device>,
}

impl Works {
    pub(super) fn new(
        device: &Arc<dyn Device>,
        manner: &Manner,
        growth: Growth,
        fresh: Option<Pattern>,
    ) -> Result<(Self, Heap)> {
        let mut log = DriverLog::default();
        let meeting = Event::new(device, EventKind::Order)?;
        let (mut small, small_field) = Ground::new(device, manner, Side::Small, &mut log)?;
        let (large, large_field) = match Ground::new(device, manner, Side::Large, &mut log) {
            Ok(made) => made,
            Err(error) => {
                small.tear_down(&small_field);
                return Err(error);
            }
        };
        let (device, errands) = (Arc::clone(device), Vec::new());
        let (stable, captures) = (manner.is_stable(), Captures::default());
        let works =
            Self { small, large, errands, meeting, growth, fresh, stable, captures, log, device };
        Ok((works, Heap::new(small_field, large_field)))
    }

    fn ground(&mut self, side: Side) -> (&mut Ground, &mut DriverLog) {
        match side {
            Side::Small => (&mut self.small, &mut self.log),
            Side::Large => (&mut self.large, &mut self.log),
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
        let event = self.meeting.handle();
        let (device, log) = (&self.device, &mut self.log);
        let recorded =
            log.make(Call::RecordEvent, Bytes::ZERO, || device.record_event(event, other));
        let waits = recorded.and_then(|()| {
            log.make(Call::WaitEvent, Bytes::ZERO, || device.wait_event(stream, event))
        });
        if waits.is_ok() {
            heap.waited(lane, owner);
        }
        waits.is_ok()
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
    fn end_of(&mut self, stream: StreamHandle) -> Result<Event> {
        let event = Event::new(&self.device, EventKind::Order)?;
        let record = || self.device.record_event(event.handle(), stream);
        self.log.make(Call::RecordEvent, Bytes::ZERO, record)?;
        Ok(event)
    }

    /// Takes a block back once all that is enqueued on `users` so far is done, and `ends` are reached.
    pub(super) fn return_after(
        &mut self,
        block: Return,
        users: &[StreamHandle],
        ends: Vec<Arc<Event>>,
    ) {
        let when = if self.captures.any() {
            // An event of a capture can never be asked for.
            When::Synchronised
        } else {
            let users = users.iter().map(|&user| self.end_of(user).map(Arc::new));
            let ends: Result<Vec<Arc<Event>>> = users.chain(ends.into_iter().map(Ok)).collect();
            ends.map_or(When::Synchronised, When::Reached)
        };
        self.errands.push((when, Errand::Return(block)));
    }

    /// Makes `stream` wait on the device for all that is enqueued on `others` so far.
    pub(super) fn join(&mut self, stream: StreamHandle, others: &[StreamHandle]) -> Result<()> {
        let event = self.meeting.handle();
        let (device, log) = (&self.device, &mut self.log);
        for &other in others.iter().filter(|&&other| other != stream) {
            log.make(Call::RecordEvent, Bytes::ZERO, || device.record_event(event, other))?;
            log.make(Call::WaitEvent, Bytes::ZERO, || device.wait_event(stream, event))?;
        }
        Ok(())
    }

    /// Makes `stream` wait on the device for events that were recorded before.
    pub(super) fn wait_for_ends(
        &mut self,
        stream: StreamHandle,
        ends: &[Arc<Event>],
    ) -> Result<()> {
        for end in ends {
            let (device, log) = (&self.device, &mut self.log);
            let wait = || device.wait_event(stream, end.handle());
            log.make(Call::WaitEvent, Bytes::ZERO, wait)?;
        }
        Ok(())
    }

    /// Waits for all work of the device, and does what was put off until then.
    pub(super) fn settle(&mut self, site: Site<'_>) -> Result<()> {
        self.synchronize()?;
        self.run_errands(site, true)
    }

    /// Waits for all work of the device.
    fn synchronize(&mut self) -> Result<()> {
        let synchronize = || self.device.synchronize_device();
        Ok(self.log.make(Call::SynchronizeDevice, Bytes::ZERO, synchronize)?)
    }

    /// Whether anything is put off.
    pub(super) fn has_errands(&self) -> bool {
        !self.errands.is_empty() || self.small.is_untidy() || self.large.is_untidy()
    }

    /// Does what was put off, as far as its time has come. Does not wait.
    pub(super) fn run_errands(&mut self, site: Site<'_>, synchronised: bool) -> Result<()> {
        if self.captures.any() {
            return Ok(());
        }
        let mut later = Vec::new();
        let mut outcome = self.small.tidy(site.heap, &mut self.log);
        outcome = outcome.and(self.large.tidy(site.heap, &mut self.log));
        for (mut when, errand) in core::mem::take(&mut self.errands) {
            let due = match &mut when {
                When::Now => true,
                When::Synchronised => synchronised,
                When::Reached(_) if synchronised => true,
                When::Reached(events) => {
                    let log = &mut self.log;
                    // Where asking fails, it is asked again the next time.
                    events.retain(|event| {
                        let asked = log.make(Call::QueryEvent, Bytes::ZERO, || event.query());
                        !asked.is_ok_and(|progress| progress == Progress::Done)
                    });
                    events.is_empty()
                }
            };
            if !due {
                later.push((when, errand));
            } else if let Err(error) = self.run_errand(site, errand, synchronised) {
                later.push((When::Now, errand));
                outcome = Err(error);
            }
        }
        self.errands.append(&mut later);
        outcome
    }

    fn run_errand(&mut self, site: Site<'_>, errand: Errand, synchronised: bool) -> Result<()> {
        match errand {
            Errand::Clear(side, alias) => {
                let (ground, log) = self.ground(side);
                ground.clear(site.heap, alias, log)
            }
            Errand::Forget(number) => {
                site.heap().gone(number);
                Ok(())
            }
            Errand::ReturnToAll(block) => {
                site.heap().give_to_all(block);
                Ok(())
            }
            // All work is over, that of its own stream too.
            Errand::Return(block) if synchronised => {
                site.heap().give_to_all(block);
                Ok(())
            }
            Errand::Return(block) => {
                let lane = self.enrol(site, block.stream)?;
                site.heap().give(block.address, block.size, lane);
                Ok(())
            }
            Errand::Release(side, page) => {
                // Where the device refuses, the page is on the line again, and this errand is over.
                let (ground, log) = self.ground(side);
                let _ = ground.release(site.heap, page, log);
                Ok(())
            }
        }
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
                if self.forget_those_over(site, false)? {
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
                    None if self.forget_those_over(site, true)? => continue,
                    None => {
                        let most = Streams::MOST;
                        return Err(failed.unwrap_or(crate::Error::TooManyStreams { stream, most }));
                    }
                }
            };
            // What is freed on it from here on finds no number, and waits for the works.
            let waited = self.end_of(oldest).and_then(|end| Ok(end.synchronize()?));
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

    /// Lets the numbers go of forgotten streams whose work is over; with `wait`, waits for the first
    /// of them. Whether any went.
    fn forget_those_over(&mut self, site: Site<'_>, mut wait: bool) -> Result<bool> {
        let mut any = false;
        for (when, errand) in core::mem::take(&mut self.errands) {
            let over = match (&when, errand) {
                (When::Reached(events), Errand::Forget(_)) if core::mem::take(&mut wait) => {
                    events.iter().all(|event| event.synchronize().is_ok())
                }
                (When::Reached(events), Errand::Forget(_)) => events
                    .iter()
                    .all(|event| event.query().is_ok_and(|progress| progress == Progress::Done)),
                (When::Now, Errand::Forget(_)) => true,
                _ => false,
            };
            match errand {
                Errand::Forget(number) if over => {
                    site.heap().gone(number);
                    any = true;
                }
                _ => self.errands.push((when, errand)),
            }
        }
        Ok(any)
    }

    /// Lets a stream go once its work so far is done.
    pub(super) fn forget(&mut self, site: Site<'_>, stream: StreamHandle) -> Result<()> {
        let event = Arc::new(self.end_of(stream)?);
        // Blocks of its own that others still use must not bring it back when they are done.
        for (when, errand) in &mut self.errands {
            if let Errand::Return(block) = *errand
                && block.stream == stream
            {
                *errand = Errand::ReturnToAll(block);
                match when {
                    When::Reached(events) => events.push(Arc::clone(&event)),
                    When::Now => *when = When::Reached(vec![Arc::clone(&event)]),
                    When::Synchronised => {}
                }
            }
        }
        let mut heap = site.heap();
        // Of blocks that were used on it this is all there will be to wait for.
        let users = heap.uses.iter_mut().filter(|(_, users)| users.contains(&stream));
        let used: Vec<Address> = users
            .map(|(&address, users)| {
                users.retain(|&user| user != stream);
                address
            })
            .collect();
        for address in used {
            heap.ends.entry(address).or_default().push(Arc::clone(&event));
        }
        if let Some(number) = heap.lanes.leave(stream) {
            self.errands.push((When::Reached(vec![event]), Errand::Forget(number)));
        }
        Ok(())
    }

    /// Gives free pages back to the device until no more than `keep` bytes are held; gives how many
    /// bytes. Waits for the device where work may still use them.
    pub(super) fn trim(&mut self, site: Site<'_>, keep: Bytes) -> Result<Bytes> {
        if self.captures.any() {
            return Ok(Bytes::ZERO);
        }
        let before = site.heap().held();
        // What waits for other streams becomes free by this, and is given back with the rest; so is
        // what was to go already. An errand that fails keeps nothing else from going.
        let mut settled = Ok(());
        if self.has_errands() {
            self.synchronize()?;
            settled = self.run_errands(site, true);
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
        let mut pages = lifted.into_iter();
        while outcome.is_ok()
            && let Some((side, page)) = pages.next()
        {
            let (ground, log) = self.ground(side);
            outcome = ground.release(site.heap, page, log);
        }
        self.put_back(site, pages.collect());
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
        let mut ends: BTreeMap<u32, Arc<Event>> = BTreeMap::new();
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
        self.run_errands(site, false)?;
        Ok(bytes)
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
