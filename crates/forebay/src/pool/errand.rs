//! Errands: what a pool has put off until work of the device is over. Done in passing, when their time
//! has come; nobody waits for one.

use std::sync::Arc;

use forebay_core::Address;
use forebay_hal::StreamHandle;

use super::ground::{Alias, Lifted};
use super::heap::Return;
use super::log::Point;
use super::map::Side;
use super::works::{Site, Works};
use crate::Result;

/// How many mappings and pages are given back in passing: on one H200 so many take the driver 1.4 ms,
/// and whoever passes has not asked for it. The next one goes on.
const MOST_SLOW: usize = 24;

/// When something put off can be done.
#[derive(Debug)]
pub(super) enum When {
    /// Once all of these events are reached.
    Reached(Vec<Arc<Point>>),
    /// Once the whole device was synchronised: there was no event to be had.
    Synchronised,
    /// Now: its time had come, but it failed, or something else was missing.
    Now,
}

impl When {
    /// Once all of these are over.
    fn over(ends: impl IntoIterator<Item = End>) -> Self {
        let events: Option<Vec<Arc<Point>>> = ends.into_iter().map(End::event).collect();
        events.map_or(Self::Synchronised, Self::Reached)
    }

    /// Once this is over, too.
    fn and(self, end: End) -> Self {
        match (self, end) {
            (Self::Reached(mut events), End::At(event)) => {
                events.push(event);
                Self::Reached(events)
            }
            (Self::Now, end) => Self::over([end]),
            (Self::Synchronised, _) | (_, End::Unknown) => Self::Synchronised,
        }
    }
}

/// The end of what was enqueued on a stream by some moment.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// At this event.
    At(Arc<Point>),
    /// Nobody can tell, because an event was not to be had; the whole device tells it with the rest.
    Unknown,
}

impl End {
    fn event(self) -> Option<Arc<Point>> {
        match self {
            Self::At(event) => Some(event),
            Self::Unknown => None,
        }
    }
}

/// What is to be done later.
#[derive(Clone, Copy, Debug)]
pub(super) enum Errand {
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

impl Errand {
    /// Whether the driver takes its time for it.
    fn is_slow(self) -> bool {
        matches!(self, Self::Clear(..) | Self::Release(..))
    }
}

/// What became of an errand.
enum Done {
    /// It is done.
    Yes,
    /// Something is missing that may come: it is tried again the next time.
    Later,
}

impl Works {
    /// The end of all that is enqueued on `stream` so far.
    fn end(&self, stream: StreamHandle) -> Result<End> {
        // An event of a capture can never be asked for.
        if self.captures.any() {
            return Ok(End::Unknown);
        }
        Ok(End::At(Arc::new(self.end_of(stream)?)))
    }

    /// Takes a block back once all that is enqueued on `users` so far is done, and `ends` are reached.
    pub(super) fn return_after(&mut self, block: Return, users: &[StreamHandle], ends: Vec<End>) {
        let users = users.iter().map(|&user| self.end(user).unwrap_or(End::Unknown));
        let when = When::over(users.chain(ends));
        self.errands.push((when, Errand::Return(block)));
    }

    /// Makes `stream` wait on the device for ends that were noted before; for those that no event tells,
    /// the device is waited for.
    pub(super) fn wait_for_ends(&self, stream: StreamHandle, ends: &[End]) -> Result<()> {
        ends.iter().try_for_each(|end| match end {
            End::At(event) => event.hold(stream),
            End::Unknown => self.synchronize(),
        })
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
        let mut outcome = self.small.tidy(site.heap, &self.log);
        outcome = outcome.and(self.large.tidy(site.heap, &self.log));
        let mut due = Vec::new();
        for (mut when, errand) in core::mem::take(&mut self.errands) {
            let is_due = match &mut when {
                When::Now => true,
                When::Synchronised => synchronised,
                When::Reached(_) if synchronised => true,
                When::Reached(events) => {
                    // Where asking fails, it is asked again the next time.
                    events.retain(|event| !event.is_reached());
                    events.is_empty()
                }
            };
            if is_due { due.push(errand) } else { self.errands.push((when, errand)) }
        }
        // Those first that let a number go: one that needs a number may come after.
        due.sort_by_key(|errand| !matches!(errand, Errand::Forget(_)));
        let mut slow = 0;
        for errand in due {
            slow += usize::from(errand.is_slow());
            if errand.is_slow() && slow > MOST_SLOW && !synchronised {
                self.errands.push((When::Now, errand));
                continue;
            }
            match self.run_errand(site, errand, synchronised) {
                Ok(Done::Yes) => {}
                Ok(Done::Later) => self.errands.push((When::Now, errand)),
                Err(error) => {
                    self.errands.push((When::Now, errand));
                    outcome = outcome.and(Err(error));
                }
            }
        }
        outcome
    }

    fn run_errand(&mut self, site: Site<'_>, errand: Errand, synchronised: bool) -> Result<Done> {
        match errand {
            Errand::Clear(side, alias) => {
                let (ground, log) = self.ground(side);
                ground.clear(site.heap, alias, log)?;
            }
            Errand::Forget(number) => site.heap().gone(number),
            Errand::ReturnToAll(block) => site.heap().give_to_all(block),
            // All work is over, that of its own stream too.
            Errand::Return(block) if synchronised => site.heap().give_to_all(block),
            Errand::Return(block) => {
                let mut heap = site.heap();
                // Nobody's number is waited for: it comes back with its stream's next request, or when
                // the device is waited for.
                let Some(lane) = heap.lanes.enrol(block.stream) else { return Ok(Done::Later) };
                heap.give(block.address, block.size, lane);
            }
            Errand::Release(side, page) => {
                // Where the device refuses, the page is on the line again, and this errand is over.
                let (ground, log) = self.ground(side);
                let _ = ground.release(site.heap, page, log);
            }
        }
        Ok(Done::Yes)
    }

    /// Lets the numbers go of forgotten streams whose work is over; with `wait`, waits for the first
    /// of them. Whether any went.
    pub(super) fn forget_those_over(&mut self, site: Site<'_>, mut wait: bool) -> bool {
        let mut any = false;
        for (when, errand) in core::mem::take(&mut self.errands) {
            let Errand::Forget(number) = errand else {
                self.errands.push((when, errand));
                continue;
            };
            let over = match &when {
                When::Reached(events) if core::mem::take(&mut wait) => {
                    events.iter().all(|event| event.synchronize().is_ok())
                }
                When::Reached(events) => events.iter().all(|event| event.is_reached()),
                When::Synchronised => core::mem::take(&mut wait) && self.synchronize().is_ok(),
                When::Now => true,
            };
            if over {
                site.heap().gone(number);
                any = true;
            } else {
                self.errands.push((when, errand));
            }
        }
        any
    }

    /// Lets a stream go once its work so far is done. `freed` are blocks that were freed on it and are
    /// in no hole: they are everybody's then.
    pub(super) fn forget(
        &mut self,
        site: Site<'_>,
        stream: StreamHandle,
        freed: &mut Vec<Return>,
    ) -> Result<()> {
        let end = self.end(stream)?;
        // Blocks of its own that others still use must not bring it back when they are done.
        for (when, errand) in &mut self.errands {
            if let Errand::Return(block) = *errand
                && block.stream == stream
            {
                *errand = Errand::ReturnToAll(block);
                *when = core::mem::replace(when, When::Now).and(end.clone());
            }
        }
        for block in freed.drain(..) {
            self.errands.push((When::over([end.clone()]), Errand::ReturnToAll(block)));
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
            heap.ends.entry(address).or_default().push(end.clone());
        }
        if let Some(number) = heap.lanes.leave(stream) {
            self.errands.push((When::over([end]), Errand::Forget(number)));
        }
        Ok(())
    }
}
