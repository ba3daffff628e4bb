//! Stream slots: the small numbers by which the heap's holes name streams, and what remains of streams that ended.
//! Guarded by the heap lock.
//!
//! ```text
//!   slot   ── live ──────── forgotten: its last event is recorded ──> ended ── event reached ──> free
//!             │  └───────── destroyed unannounced, or evicted ─────> its holes are unknown
//!             └─ per thread: the event its own thread recorded last has a slot too (published). It is released at
//!                the stream's end; if that has no event, when it is reached.
//! ```
//!
//! A number is reused; what may outlive it names the stream's serial, and [`Serials`] knows what became of the stream.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_core::address_space::Streams;
use forebay_hal::StreamHandle;

use crate::pool::common::log::LoggedEvent;
use crate::pool::heap::seen_streams::SeeingPool;
use crate::pool::heap::serials::{MARKS, Serial, SerialState, Serials};
use crate::pool::heap::thread_ends::{ThreadEnds, is_ending};

/// The number of slots for streams: the last two numbers are the marks.
const MAX: u32 = MARKS[0];

/// The number of orphaned published events at which a new stream triggers their deferred release.
const MANY_ORPHANS: usize = 16;

/// The number of slot requests after which all events are queried again once slots run out.
const WANTED_BEFORE_RECOVERY: u32 = MAX / 8;

/// The content of a slot.
#[derive(Clone, Debug)]
enum StreamEntry {
    /// Not in use.
    Free,
    /// A stream that the program uses.
    Live {
        handle: StreamHandle,
        serial: Serial,
        /// The number of look-ups when it was last used.
        used: u64,
        /// Whether the handle may have become another stream's (only with strict streams).
        doubted: bool,
        /// For a thread's own stream: the slot of the last event that the thread recorded on it.
        published: Option<u32>,
    },
    /// The end event of a forgotten stream, or the last event of a thread's own stream.
    Event {
        serial: Serial,
        event: Arc<LoggedEvent>,
        /// The slot of the live stream that published it.
        publisher: Option<u32>,
    },
}

impl StreamEntry {
    /// When it was last used; `None` if it is free.
    fn age(&self) -> Option<u64> {
        match self {
            Self::Free => None,
            Self::Live { used, .. } => Some(*used),
            // Before any live stream: no work is enqueued on it any more.
            Self::Event { .. } => Some(0),
        }
    }
}

/// A slot as a candidate to be taken over; the least is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ranked {
    /// Whether holes were free in its order.
    owns: bool,
    age: u64,
    number: u32,
}

/// How to wait for the work after which the holes of a number are free.
#[derive(Clone, Debug)]
pub(in crate::pool) enum WaitTarget {
    /// Record an event on this stream.
    Stream(StreamHandle, Serial),
    /// Wait for this event.
    Event(Arc<LoggedEvent>, Serial),
    /// Wait for the whole device: nothing less covers it.
    Unknown,
}

/// The state of a stream, looked up by its serial.
#[derive(Clone, Debug)]
pub(in crate::pool) enum StreamState {
    /// In use, under this number.
    Live(StreamHandle, u32),
    /// Ended at this event; its holes are under this number.
    Ended(Arc<LoggedEvent>, u32),
    /// Ended without an event; its holes are under this mark.
    Unknown(u32),
    /// Its work is done.
    Done,
}

/// The streams that a pool tells apart. Guarded by the heap lock.
#[derive(Debug)]
pub(in crate::pool) struct StreamSlots {
    slots: Vec<StreamEntry>,
    /// Free numbers below the length of `slots`; the last one is assigned next.
    free: Vec<u32>,
    numbers: HashMap<StreamHandle, u32>,
    /// The stream looked up last: most requests come on the same one.
    latest: (StreamHandle, u32),
    pub(in crate::pool) serials: Serials,
    /// Published events whose stream ended without another event. Their slots are released when the events are reached.
    orphans: Vec<(u32, Serial)>,
    /// The pool, by which other pools' streams are told from its own. Set before it is used.
    pub(in crate::pool) pool: Option<SeeingPool>,
    /// Notified when a thread ends whose own stream has a slot here.
    pub(in crate::pool) thread_ends: Arc<ThreadEnds>,
    lookups: u64,
    /// Slots to take over, the next one last. Those that were used since are passed over.
    ranked: Vec<Ranked>,
    /// The number of slot requests since the events were last queried.
    wanted: u32,
}

impl Default for StreamSlots {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            numbers: HashMap::new(),
            latest: (StreamHandle::DEFAULT, u32::MAX),
            serials: Serials::default(),
            orphans: Vec::new(),
            pool: None,
            thread_ends: Arc::default(),
            lookups: 0,
            ranked: Vec::new(),
            wanted: 0,
        }
    }
}

impl StreamSlots {
    fn slot(&self, number: u32) -> Option<&StreamEntry> {
        self.slots.get(usize::try_from(number).ok()?)
    }

    fn slot_mut(&mut self, number: u32) -> Option<&mut StreamEntry> {
        self.slots.get_mut(usize::try_from(number).ok()?)
    }

    /// The number of a stream that has one.
    #[inline]
    pub(in crate::pool) fn get(&mut self, stream: StreamHandle) -> Option<u32> {
        let number = if self.latest.0 == stream && self.latest.1 != u32::MAX {
            self.latest.1
        } else {
            *self.numbers.get(&stream)?
        };
        self.latest = (stream, number);
        self.lookups += 1;
        let lookups = self.lookups;
        if let Some(StreamEntry::Live { used, .. }) = self.slot_mut(number) {
            *used = lookups;
        }
        Some(number)
    }

    /// The number of streams with a slot.
    pub(in crate::pool) fn count(&self) -> u64 {
        self.numbers.len() as u64
    }

    /// Whether a stream has a slot.
    pub(in crate::pool) fn knows(&self, stream: StreamHandle) -> bool {
        self.numbers.contains_key(&stream)
    }

    /// The serial behind a number.
    pub(in crate::pool) fn serial(&self, number: u32) -> Option<Serial> {
        match self.slot(number)? {
            StreamEntry::Live { serial, .. } | StreamEntry::Event { serial, .. } => Some(*serial),
            StreamEntry::Free => None,
        }
    }

    /// The numbers of a set that have a serial, with their serials.
    pub(in crate::pool) fn with_serials(&self, set: Streams) -> Vec<(u32, Serial)> {
        set.numbers().filter_map(|number| Some((number, self.serial(number)?))).collect()
    }

    /// Notes that the pool has seen a stream, so that it hears of its end.
    pub(in crate::pool) fn note_seen(&self, stream: StreamHandle) {
        if let Some(pool) = self.pool {
            pool.note(stream);
        }
    }

    /// Returns the number of a stream, or assigns one; `None` if all are taken.
    pub(in crate::pool) fn assign_slot(&mut self, stream: StreamHandle) -> Option<u32> {
        if let Some(number) = self.get(stream) {
            return Some(number);
        }
        let number = self.take_free()?;
        if stream.is_per_thread() && !stream.is_of_another_thread() {
            self.thread_ends.watch_this_thread(None);
        }
        self.note_seen(stream);
        self.lookups += 1;
        let (serial, used) = (self.serials.assign(number), self.lookups);
        let live =
            StreamEntry::Live { handle: stream, serial, used, doubted: false, published: None };
        *self.slot_mut(number)? = live;
        self.numbers.insert(stream, number);
        self.latest = (stream, number);
        Some(number)
    }

    fn take_free(&mut self) -> Option<u32> {
        self.wanted = self.wanted.saturating_add(1);
        if let Some(number) = self.free.pop() {
            return Some(number);
        }
        let next = u32::try_from(self.slots.len()).ok().filter(|&next| next < MAX)?;
        self.slots.push(StreamEntry::Free);
        Some(next)
    }

    /// Whether no number is left and enough were requested since the last query of all events to pay for another one.
    pub(in crate::pool) fn may_recover(&self) -> bool {
        let is_full = self.free.is_empty() && self.slots.len() >= MAX as usize;
        is_full && self.wanted >= WANTED_BEFORE_RECOVERY
    }

    /// The numbers of events, if querying them is worthwhile: those that are reached can be released.
    pub(in crate::pool) fn events_to_recover(&mut self) -> Vec<(u32, Serial)> {
        if !self.may_recover() {
            return Vec::new();
        }
        self.wanted = 0;
        let all = (0_u32..).zip(&self.slots);
        let events = all.filter_map(|(number, slot)| match slot {
            StreamEntry::Event { serial, .. } => Some((number, *serial)),
            StreamEntry::Free | StreamEntry::Live { .. } => None,
        });
        events.collect()
    }

    /// The number to take over when all are taken: preferably one for which `owns_nothing` holds, else the least
    /// recently used. Half of all are ranked at a time, so that one takeover costs little however many there are.
    pub(in crate::pool) fn victim(&mut self, owns_nothing: impl Fn(u32) -> bool) -> Option<u32> {
        for _ in 0..2 {
            while let Some(ranked) = self.ranked.pop() {
                let is_as_before =
                    self.slot(ranked.number).and_then(StreamEntry::age) == Some(ranked.age);
                if is_as_before && (ranked.owns || owns_nothing(ranked.number)) {
                    return Some(ranked.number);
                }
            }
            self.rank(&owns_nothing);
        }
        None
    }

    /// Ranks all slots that are taken, the next victim last, and keeps the better half.
    fn rank(&mut self, owns_nothing: impl Fn(u32) -> bool) {
        // The slot of a thread's last event is not exempt: its stream publishes another.
        let ranked = (0_u32..).zip(&self.slots).filter_map(|(number, slot)| {
            Some(Ranked { owns: !owns_nothing(number), age: slot.age()?, number })
        });
        let mut ranked: Vec<Ranked> = ranked.collect();
        ranked.sort_unstable_by(|one, other| other.cmp(one));
        ranked.drain(..ranked.len() / 2);
        self.ranked = ranked;
    }

    /// How to wait for the work after which the holes of a number are free.
    pub(in crate::pool) fn wait_target(&self, number: u32) -> WaitTarget {
        match self.slot(number) {
            Some(StreamEntry::Live { handle, serial, doubted: false, .. })
                if !handle.is_of_another_thread() && !is_ending(*handle) =>
            {
                WaitTarget::Stream(*handle, *serial)
            }
            Some(StreamEntry::Event { serial, event, .. }) => {
                WaitTarget::Event(Arc::clone(event), *serial)
            }
            _ => WaitTarget::Unknown,
        }
    }

    /// Sets whether the handle of a stream may be another stream's. If so, an event on it proves nothing.
    pub(in crate::pool) fn set_doubted(&mut self, stream: StreamHandle, doubted: bool) {
        let Some(&number) = self.numbers.get(&stream) else { return };
        if let Some(StreamEntry::Live { doubted: before, .. }) = self.slot_mut(number) {
            *before = doubted;
        }
    }

    /// What became of the stream of a serial.
    pub(in crate::pool) fn state_of(&self, serial: Serial) -> StreamState {
        match self.serials.state_of(serial) {
            SerialState::Done => StreamState::Done,
            SerialState::Unknown(mark) => StreamState::Unknown(mark),
            SerialState::At(number) => match self.slot(number) {
                Some(StreamEntry::Live { handle, .. }) => StreamState::Live(*handle, number),
                Some(StreamEntry::Event { event, .. }) => {
                    StreamState::Ended(Arc::clone(event), number)
                }
                Some(StreamEntry::Free) | None => StreamState::Done,
            },
        }
    }

    /// Whether the work of a stream is known to be done and no more of it can come.
    pub(in crate::pool) fn is_done(&self, serial: Serial) -> bool {
        !self.serials.was_evicted(serial) && matches!(self.state_of(serial), StreamState::Done)
    }

    /// Records that the slot of a live stream is about to be taken over. Without recorded `uses` of any stream, earlier
    /// evictions no longer matter.
    pub(super) fn note_eviction(&mut self, number: u32, uses: bool) {
        if !uses {
            self.serials.forget_evictions();
        } else if let Some(&StreamEntry::Live { serial, .. }) = self.slot(number) {
            self.serials.note_eviction(serial);
        }
    }

    /// Ends a live stream at `event`: its number now stands for that event, and its handle for a new stream. Returns
    /// the number of the event it had published, whose holes the caller hands over.
    pub(in crate::pool) fn end_with_event(
        &mut self,
        number: u32,
        event: Arc<LoggedEvent>,
    ) -> Option<u32> {
        let StreamEntry::Live { handle, serial, published, .. } = self.slot(number).cloned()?
        else {
            return None;
        };
        self.drop_handle(handle);
        if let Some(slot) = self.slot_mut(number) {
            *slot = StreamEntry::Event { serial, event, publisher: None };
        }
        published
    }

    fn drop_handle(&mut self, handle: StreamHandle) {
        self.numbers.remove(&handle);
        if self.latest.0 == handle {
            self.latest.1 = u32::MAX;
        }
    }

    /// Publishes `event` as the last event of the thread's own stream `number`. Returns the number of the event, the
    /// same as before or a new one; `None` if no number is left.
    pub(in crate::pool) fn publish(
        &mut self,
        number: u32,
        event: &Arc<LoggedEvent>,
    ) -> Option<u32> {
        let StreamEntry::Live { published, .. } = self.slot(number)? else { return None };
        if let Some(published) = *published {
            return Some(published);
        }
        let event_number = self.take_free()?;
        let serial = self.serials.assign(event_number);
        *self.slot_mut(event_number)? =
            StreamEntry::Event { serial, event: Arc::clone(event), publisher: Some(number) };
        if let Some(StreamEntry::Live { published, .. }) = self.slot_mut(number) {
            *published = Some(event_number);
        }
        Some(event_number)
    }

    /// The last event published for a thread's own stream, with its number.
    pub(in crate::pool) fn published(&self, number: u32) -> Option<(u32, Arc<LoggedEvent>)> {
        let StreamEntry::Live { published: Some(number), .. } = self.slot(number)? else {
            return None;
        };
        match self.slot(*number)? {
            StreamEntry::Event { event, .. } => Some((*number, Arc::clone(event))),
            StreamEntry::Free | StreamEntry::Live { .. } => None,
        }
    }

    /// Whether a number still stands for the published event with this serial, of a live stream.
    pub(super) fn is_published(&self, number: u32, serial: Serial) -> bool {
        matches!(
            self.slot(number),
            Some(StreamEntry::Event { serial: now, publisher: Some(_), .. }) if *now == serial
        )
    }

    /// Releases a number whose stream ended without an event. Returns the mark to which the caller hands over its
    /// holes, and the number of the event that it had published. That event becomes an [orphan](Self::take_orphans)
    /// until it is reached.
    pub(in crate::pool) fn end_without_event(&mut self, number: u32) -> (u32, Option<u32>) {
        let mark = self.serials.set_unknown(self.serial(number));
        let published = match self.slot(number) {
            Some(StreamEntry::Live { published, .. }) => *published,
            _ => None,
        };
        self.vacate(number);
        if let Some(event) = published
            && let Some(StreamEntry::Event { serial, publisher, .. }) = self.slot_mut(event)
        {
            *publisher = None;
            let orphan = (event, *serial);
            self.orphans.push(orphan);
        }
        (mark, published)
    }

    /// Whether so many published events are orphaned that they should be queried.
    pub(in crate::pool) fn has_many_orphans(&self) -> bool {
        self.orphans.len() >= MANY_ORPHANS
    }

    /// Takes the published events whose streams ended without another event. The caller releases their slots when the
    /// events are reached.
    pub(in crate::pool) fn take_orphans(&mut self) -> Vec<(u32, Serial, Arc<LoggedEvent>)> {
        let orphans = core::mem::take(&mut self.orphans);
        let there = orphans.into_iter().filter_map(|(number, serial)| match self.slot(number)? {
            StreamEntry::Event { serial: now, event, .. } if *now == serial => {
                Some((number, serial, Arc::clone(event)))
            }
            _ => None,
        });
        there.collect()
    }

    /// Releases a number: the work of its stream is done.
    pub(in crate::pool) fn release_slot(&mut self, number: u32) {
        if let Some(serial) = self.serial(number) {
            self.serials.forget(serial);
        }
        self.vacate(number);
    }

    fn vacate(&mut self, number: u32) {
        let Some(slot) = self.slot_mut(number) else { return };
        match core::mem::replace(slot, StreamEntry::Free) {
            StreamEntry::Free => return,
            StreamEntry::Live { handle, .. } => self.drop_handle(handle),
            StreamEntry::Event { publisher, .. } => {
                // The stream that published it has no event now.
                if let Some(StreamEntry::Live { published, .. }) =
                    publisher.and_then(|publisher| self.slot_mut(publisher))
                {
                    published.take_if(|event| *event == number);
                }
            }
        }
        self.free.push(number);
    }

    /// The number of slots in use.
    #[cfg(test)]
    pub(in crate::pool) fn taken(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
