//! Streams by small numbers, as the holes of the heap know them, and what is left of streams that ended.
//!
//! ```text
//!   slot   ── live ──────── forgotten: its last event is recorded ──> ended ── event reached ──> free
//!             │  └───────── gone without a word, or no slot left ───> its holes join the unknown
//!             └─ per thread: the event its own thread recorded last has a slot too (published). It goes with
//!                the stream's end; without one it is kept until it is reached.
//!
//!   unknown [ collecting | awaited ]   two marks: what ended without an event. A wait for the whole device
//!                                      that begins later settles what was collected before.
//! ```
//!
//! A number is reused; a **serial** never is. Whatever must outlive a number (a use of a block, a block that
//! comes back later) names the serial, and asks here what became of it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use forebay_core::address_space::Streams;
use forebay_hal::StreamHandle;

use crate::pool::common::log::Point;
use crate::pool::heap::thread_ends::{ThreadEnds, is_ending};

/// The number of slots that streams can have: two are marks for what ended without an event.
const MOST: u32 = Streams::MOST - 2;

/// How many streams that are gone without an event are remembered one by one. Beyond that, all serials so far
/// that have no slot count as unknown: a wait too many, and never one too few.
const MOST_REMEMBERED: usize = 4096;

/// How many published events may wait to be asked for before a new stream has it done.
const MANY_ORPHANS: usize = 16;

/// How many numbers are wanted before it is asked of all events whether they are reached.
const WANTED_BEFORE_RECOVERY: u32 = MOST / 8;

/// Which stream, for ever.
pub(in crate::pool) type Serial = u64;

/// What a number stands for.
#[derive(Clone, Debug)]
enum Slot {
    /// Nothing.
    Free,
    /// A stream that the program uses.
    Live {
        handle: StreamHandle,
        serial: Serial,
        /// The count of look-ups when it was last used.
        used: u64,
        /// Whether the handle may have become another stream's (strict streams alone).
        doubted: bool,
        /// For a thread's own stream: the slot of the last event that thread recorded on it.
        published: Option<u32>,
    },
    /// The end of a stream that was forgotten, or the last event of a thread's own stream.
    Event {
        serial: Serial,
        point: Arc<Point>,
        /// The slot of the live stream that published it.
        publisher: Option<u32>,
    },
}

/// How to wait for the memory that is free in the order of a number.
#[derive(Clone, Debug)]
pub(in crate::pool) enum Owner {
    /// By an event to be recorded on this stream.
    Stream(StreamHandle, Serial),
    /// By this event.
    Event(Arc<Point>, Serial),
    /// There is no way but to wait for the whole device.
    Unknown,
}

/// What became of a stream.
#[derive(Clone, Debug)]
pub(in crate::pool) enum Fate {
    /// It is in use, under this number.
    Live(StreamHandle, u32),
    /// It ended, and its end is this event; its memory is under this number.
    Ended(Arc<Point>, u32),
    /// It ended without an event: its memory is under the mark of that time.
    Unknown(u32),
    /// Its work is over.
    Over,
}

#[derive(Clone, Copy, Debug)]
enum State {
    At(u32),
    Unknown { mark: u32 },
}

/// A wait for the whole device that is about to begin. What ended before it is settled when it returns.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(in crate::pool) struct SyncTicket {
    /// What was put off without an event before this count is due.
    pub(in crate::pool) before: u64,
    mark: Option<u32>,
}

/// The streams a pool tells apart. Guarded by the heap's lock.
#[derive(Debug)]
pub(in crate::pool) struct StreamSlots {
    slots: Vec<Slot>,
    /// Free numbers below the length of `slots`, the lowest last.
    free: Vec<u32>,
    numbers: HashMap<StreamHandle, u32>,
    /// The stream looked up last: most requests come on the same one.
    latest: (StreamHandle, u32),
    serials: HashMap<Serial, State>,
    /// How many of the serials are unknown.
    unknown: usize,
    /// Serials up to this that are not among `serials` are unknown too, under this mark.
    unknown_up_to: Option<(Serial, u32)>,
    /// Live streams whose slot was taken over. A wait for the device tells nothing of what they do later.
    evicted: HashSet<Serial>,
    /// Serials up to this count as evicted.
    evicted_up_to: Serial,
    /// Published events whose stream ended without another event: their slots go when they are reached.
    orphans: Vec<(u32, Serial)>,
    /// Told when a thread ends whose own stream has a slot here.
    pub(in crate::pool) thread_ends: Arc<ThreadEnds>,
    next_serial: Serial,
    lookups: u64,
    /// How many numbers were wanted since it was last asked which events are reached.
    wanted: u32,
    /// The mark that collects what ends without an event, of the two.
    collecting: u32,
    /// The mark that a wait for the device under way will settle.
    awaited: Option<u32>,
    /// How many waits for the device have begun.
    syncs: u64,
}

impl Default for StreamSlots {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            numbers: HashMap::new(),
            latest: (StreamHandle::DEFAULT, u32::MAX),
            serials: HashMap::new(),
            unknown: 0,
            unknown_up_to: None,
            evicted: HashSet::new(),
            evicted_up_to: 0,
            orphans: Vec::new(),
            thread_ends: Arc::default(),
            next_serial: 0,
            lookups: 0,
            wanted: 0,
            collecting: MOST,
            awaited: None,
            syncs: 0,
        }
    }
}

impl StreamSlots {
    fn slot(&self, number: u32) -> Option<&Slot> {
        self.slots.get(usize::try_from(number).ok()?)
    }

    fn slot_mut(&mut self, number: u32) -> Option<&mut Slot> {
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
        if let Some(Slot::Live { used, .. }) = self.slot_mut(number) {
            *used = lookups;
        }
        Some(number)
    }

    /// How many streams have a number.
    pub(in crate::pool) fn count(&self) -> u64 {
        self.numbers.len() as u64
    }

    /// Whether a stream has a number.
    pub(in crate::pool) fn knows(&self, stream: StreamHandle) -> bool {
        self.numbers.contains_key(&stream)
    }

    /// The serial of a stream that has a number.
    pub(in crate::pool) fn serial(&self, number: u32) -> Option<Serial> {
        match self.slot(number)? {
            Slot::Live { serial, .. } | Slot::Event { serial, .. } => Some(*serial),
            Slot::Free => None,
        }
    }

    /// The numbers of a set that have a serial, with it.
    pub(in crate::pool) fn with_serials(&self, set: Streams) -> Vec<(u32, Serial)> {
        set.numbers().filter_map(|number| Some((number, self.serial(number)?))).collect()
    }

    /// A number for a stream, its own where it has one; `None` where all are taken.
    pub(in crate::pool) fn assign_slot(&mut self, stream: StreamHandle) -> Option<u32> {
        if let Some(number) = self.get(stream) {
            return Some(number);
        }
        let number = self.take_free()?;
        if stream.is_per_thread() && !stream.is_of_another_thread() {
            self.thread_ends.watch_this_thread(None);
        }
        let (serial, used) = (self.new_serial(number), self.lookups);
        let live = Slot::Live { handle: stream, serial, used, doubted: false, published: None };
        *self.slot_mut(number)? = live;
        self.numbers.insert(stream, number);
        self.latest = (stream, number);
        Some(number)
    }

    fn new_serial(&mut self, number: u32) -> Serial {
        self.next_serial += 1;
        self.serials.insert(self.next_serial, State::At(number));
        self.next_serial
    }

    fn take_free(&mut self) -> Option<u32> {
        self.wanted = self.wanted.saturating_add(1);
        if let Some(number) = self.free.pop() {
            return Some(number);
        }
        let next = u32::try_from(self.slots.len()).ok().filter(|&next| next < MOST)?;
        self.slots.push(Slot::Free);
        Some(next)
    }

    /// Whether no number is left, and it is worth asking which events are reached: that takes a while, so as
    /// many numbers have to be wanted before as pay for it.
    pub(in crate::pool) fn may_recover(&self) -> bool {
        let is_full = self.free.is_empty() && self.slots.len() >= MOST as usize;
        is_full && self.wanted >= WANTED_BEFORE_RECOVERY
    }

    /// The numbers that events have, where it is worth asking for them: those that are reached can go.
    pub(in crate::pool) fn events_to_recover(&mut self) -> Vec<(u32, Serial)> {
        if !self.may_recover() {
            return Vec::new();
        }
        self.wanted = 0;
        let all = (0_u32..).zip(&self.slots);
        let events = all.filter_map(|(number, slot)| match slot {
            Slot::Event { serial, .. } => Some((number, *serial)),
            Slot::Free | Slot::Live { .. } => None,
        });
        events.collect()
    }

    /// The number to make room with where all are taken: one of which `owns_nothing` holds, else the one
    /// that was not used for the longest.
    pub(in crate::pool) fn victim(&self, owns_nothing: impl Fn(u32) -> bool) -> Option<u32> {
        let age = |slot: &Slot| match slot {
            Slot::Free => None,
            Slot::Live { used, .. } => Some(*used),
            // Before any live stream: nobody enqueues on it any more.
            Slot::Event { .. } => Some(0),
        };
        let all = (0_u32..).zip(&self.slots);
        let taken = all.filter_map(|(number, slot)| Some((number, age(slot)?)));
        // A thread's own stream keeps the slot of its last event.
        let (number, _) = taken.min_by_key(|&(number, age)| (!owns_nothing(number), age))?;
        Some(number)
    }

    /// How to wait for what is free in the order of a number.
    pub(in crate::pool) fn owner(&self, number: u32) -> Owner {
        match self.slot(number) {
            Some(Slot::Live { handle, serial, doubted: false, .. })
                if !handle.is_of_another_thread() && !is_ending(*handle) =>
            {
                Owner::Stream(*handle, *serial)
            }
            Some(Slot::Event { serial, point, .. }) => Owner::Event(Arc::clone(point), *serial),
            _ => Owner::Unknown,
        }
    }

    /// Notes whether the handle of a stream may be another stream's: then nothing can be learnt by it.
    pub(in crate::pool) fn set_doubted(&mut self, stream: StreamHandle, doubted: bool) {
        let Some(&number) = self.numbers.get(&stream) else { return };
        if let Some(Slot::Live { doubted: before, .. }) = self.slot_mut(number) {
            *before = doubted;
        }
    }

    /// What became of the stream of a serial.
    pub(in crate::pool) fn fate(&self, serial: Serial) -> Fate {
        match self.serials.get(&serial) {
            None => match self.unknown_up_to {
                Some((last, mark)) if serial <= last => Fate::Unknown(mark),
                _ => Fate::Over,
            },
            Some(State::Unknown { mark }) => Fate::Unknown(*mark),
            Some(State::At(number)) => match self.slot(*number) {
                Some(Slot::Live { handle, .. }) => Fate::Live(*handle, *number),
                Some(Slot::Event { point, .. }) => Fate::Ended(Arc::clone(point), *number),
                Some(Slot::Free) | None => Fate::Over,
            },
        }
    }

    /// Whether the work of the stream of a serial is known to be over, and no more of it can come.
    pub(in crate::pool) fn is_over(&self, serial: Serial) -> bool {
        !self.was_evicted(serial) && matches!(self.fate(serial), Fate::Over)
    }

    /// Whether the stream of a serial may live on, under another serial: then it may go on using blocks that
    /// it was said to use.
    pub(in crate::pool) fn was_evicted(&self, serial: Serial) -> bool {
        serial <= self.evicted_up_to || self.evicted.contains(&serial)
    }

    /// Whether of the stream of a serial nothing can be told but by a wait for the device, now or later.
    pub(in crate::pool) fn is_lost(&self, serial: Serial) -> bool {
        self.was_evicted(serial) && !matches!(self.serials.get(&serial), Some(State::At(_)))
    }

    /// Notes that the slot of a live stream is about to be taken over. With no `uses` of any stream noted,
    /// those evicted before are of no interest any more.
    pub(in crate::pool) fn note_eviction(&mut self, number: u32, uses: bool) {
        if !uses {
            self.evicted.clear();
            self.evicted_up_to = 0;
            return;
        }
        let Some(&Slot::Live { serial, .. }) = self.slot(number) else { return };
        if self.evicted.len() >= MOST_REMEMBERED {
            // Those that have a slot are asked for there first.
            self.evicted.clear();
            self.evicted_up_to = self.next_serial;
        }
        self.evicted.insert(serial);
    }

    /// A live stream ends at `point`: from now on its number stands for that event, and its handle for a
    /// new stream. Gives the number of the event it had published, whose memory has to be handed over.
    pub(in crate::pool) fn end(&mut self, number: u32, point: Arc<Point>) -> Option<u32> {
        let Slot::Live { handle, serial, published, .. } = self.slot(number).cloned()? else {
            return None;
        };
        self.drop_handle(handle);
        if let Some(slot) = self.slot_mut(number) {
            *slot = Slot::Event { serial, point, publisher: None };
        }
        published
    }

    fn drop_handle(&mut self, handle: StreamHandle) {
        self.numbers.remove(&handle);
        if self.latest.0 == handle {
            self.latest.1 = u32::MAX;
        }
    }

    /// Gives the number of a thread's own stream `number` whose last event is `point` now: the same as
    /// before, or a new one. `None` where there is none left.
    pub(in crate::pool) fn publish(&mut self, number: u32, point: &Arc<Point>) -> Option<u32> {
        let Slot::Live { published, .. } = self.slot(number)? else { return None };
        if let Some(published) = *published {
            return Some(published);
        }
        let event = self.take_free()?;
        let serial = self.new_serial(event);
        *self.slot_mut(event)? =
            Slot::Event { serial, point: Arc::clone(point), publisher: Some(number) };
        if let Some(Slot::Live { published, .. }) = self.slot_mut(number) {
            *published = Some(event);
        }
        Some(event)
    }

    /// The last event that the thread of a thread's own stream recorded.
    pub(in crate::pool) fn published(&self, number: u32) -> Option<(u32, Arc<Point>)> {
        let Slot::Live { published: Some(event), .. } = self.slot(number)? else { return None };
        match self.slot(*event)? {
            Slot::Event { point, .. } => Some((*event, Arc::clone(point))),
            Slot::Free | Slot::Live { .. } => None,
        }
    }

    /// Whether a number is that of the last event of a live thread's own stream, as it was with a serial.
    pub(in crate::pool) fn is_published(&self, number: u32, serial: Serial) -> bool {
        matches!(
            self.slot(number),
            Some(Slot::Event { serial: now, publisher: Some(_), .. }) if *now == serial
        )
    }

    /// Takes a number back whose stream ended without an event; gives the mark that its memory has to be
    /// handed over to, and the number of the event that it had published. That one is
    /// [kept](Self::take_orphans) until it is reached.
    pub(in crate::pool) fn bury(&mut self, number: u32) -> (u32, Option<u32>) {
        let mark = self.collecting;
        if self.unknown >= MOST_REMEMBERED {
            // A wait that begins from now on tells of those under the other mark too.
            self.serials.retain(|_, state| matches!(state, State::At(_)));
            self.unknown = 0;
            self.unknown_up_to = Some((self.next_serial, mark));
        }
        if let Some(serial) = self.serial(number) {
            self.serials.insert(serial, State::Unknown { mark });
            self.unknown += 1;
        }
        let published = match self.slot(number) {
            Some(Slot::Live { published, .. }) => *published,
            _ => None,
        };
        self.vacate(number);
        if let Some(event) = published
            && let Some(Slot::Event { serial, publisher, .. }) = self.slot_mut(event)
        {
            *publisher = None;
            let orphan = (event, *serial);
            self.orphans.push(orphan);
        }
        (mark, published)
    }

    /// Whether so many published events are orphaned that they should be asked for.
    pub(in crate::pool) fn has_many_orphans(&self) -> bool {
        self.orphans.len() >= MANY_ORPHANS
    }

    /// Takes out the published events whose streams ended without another event. The caller releases their
    /// slots when the events are reached.
    pub(in crate::pool) fn take_orphans(&mut self) -> Vec<(u32, Serial, Arc<Point>)> {
        let orphans = core::mem::take(&mut self.orphans);
        let there = orphans.into_iter().filter_map(|(number, serial)| match self.slot(number)? {
            Slot::Event { serial: now, point, .. } if *now == serial => {
                Some((number, serial, Arc::clone(point)))
            }
            _ => None,
        });
        there.collect()
    }

    /// Takes a number back: the work of its stream is over.
    pub(in crate::pool) fn release_slot(&mut self, number: u32) {
        if let Some(serial) = self.serial(number) {
            self.serials.remove(&serial);
        }
        self.vacate(number);
    }

    fn vacate(&mut self, number: u32) {
        let Some(slot) = self.slot_mut(number) else { return };
        match core::mem::replace(slot, Slot::Free) {
            Slot::Free => return,
            Slot::Live { handle, .. } => self.drop_handle(handle),
            Slot::Event { publisher, .. } => {
                // The stream whose last event it was has none now.
                if let Some(Slot::Live { published, .. }) =
                    publisher.and_then(|publisher| self.slot_mut(publisher))
                {
                    published.take_if(|event| *event == number);
                }
            }
        }
        self.free.push(number);
    }

    /// The numbers of the two marks.
    pub(in crate::pool) const MARKS: [u32; 2] = [MOST, MOST + 1];

    /// Whether a number is a mark, and no stream's.
    pub(in crate::pool) const fn is_mark(number: u32) -> bool {
        number >= MOST
    }

    /// The mark that what ends without an event is under.
    pub(in crate::pool) fn mark(&self) -> u32 {
        self.collecting
    }

    /// A wait for the whole device is about to begin.
    pub(in crate::pool) fn begin_sync(&mut self) -> SyncTicket {
        self.syncs += 1;
        let mark = match self.awaited {
            // Another wait settles that mark; this one began later, and must not reuse it.
            Some(_) => None,
            None => {
                let (mark, [first, second]) = (self.collecting, Self::MARKS);
                self.collecting = if mark == first { second } else { first };
                self.awaited = Some(mark);
                Some(mark)
            }
        };
        SyncTicket { before: self.syncs, mark }
    }

    /// How many waits for the device have begun: what is put off now without an event is settled by the
    /// next.
    pub(in crate::pool) fn syncs(&self) -> u64 {
        self.syncs
    }

    /// The wait is over; gives the mark whose memory is free for all now. Where it failed nothing is, and
    /// the mark waits for the next.
    pub(in crate::pool) fn end_sync(&mut self, ticket: SyncTicket, succeeded: bool) -> Option<u32> {
        let mark = ticket.mark?;
        self.awaited = None;
        if !succeeded {
            // Two marks, one to collect and one to await: what was awaited goes on to be collected.
            return None;
        }
        let before = self.serials.len();
        self.serials
            .retain(|_, state| !matches!(state, State::Unknown { mark: of } if *of == mark));
        self.unknown = self.unknown.saturating_sub(before - self.serials.len());
        self.unknown_up_to.take_if(|(_, of)| *of == mark);
        Some(mark)
    }

    /// How many slots are taken.
    #[cfg(test)]
    pub(in crate::pool) fn taken(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// How many streams are remembered, those that are gone included.
    #[cfg(test)]
    pub(in crate::pool) fn remembered(&self) -> usize {
        self.serials.len() + self.evicted.len()
    }
}
