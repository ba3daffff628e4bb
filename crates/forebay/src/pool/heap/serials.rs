//! What became of streams, by their serials, and the two marks for memory whose stream ended without an event.
//!
//! ```text
//!   serial   at a slot ──> forgotten: its work is done
//!                     └──> unknown: under a mark, until a wait for the whole device that begins later
//!   marks    [ collecting | awaited ]   a wait for the device settles what was collected before it began
//! ```
//!
//! A slot's number is reused; a **serial** never is. Anything that may outlive a number (a use of a block, a deferred
//! free) names the serial.

use std::collections::{HashMap, HashSet};

use forebay_core::address_space::Streams;

/// The numbers of the two marks: the last two.
pub(super) const MARKS: [u32; 2] = [Streams::MAX - 2, Streams::MAX - 1];

/// Whether a number is a mark, not a stream's slot.
pub(super) fn is_mark(number: u32) -> bool {
    MARKS.contains(&number)
}

/// The most streams without an end event that are remembered one by one. Beyond that, all earlier serials without a
/// slot count as unknown: that may cause a wait too many, never one too few.
const MAX_REMEMBERED: usize = 4096;

/// Identifies a stream for the whole life of the pool.
pub(in crate::pool) type Serial = u64;

/// What became of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SerialState {
    /// It has this slot, or its last event has.
    At(u32),
    /// It ended without an event; its holes are under this mark.
    Unknown(u32),
    /// Its work is done.
    Done,
}

/// A wait for the whole device that is about to begin. When it returns, everything that ended before it is settled.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(in crate::pool) struct SyncTicket {
    /// Deferred tasks without an event that were added before this count are due after the wait.
    pub(in crate::pool) before: u64,
    mark: Option<u32>,
}

/// The serials of a pool. Guarded by the heap lock.
#[derive(Debug)]
pub(in crate::pool) struct Serials {
    /// Those that are not done.
    states: HashMap<Serial, SerialState>,
    last: Serial,
    /// The number of serials that are unknown.
    unknown: usize,
    /// Serials up to this one that are not in `states` are unknown too, under this mark.
    unknown_up_to: Option<(Serial, u32)>,
    /// Live streams that lost their slot. A wait for the device says nothing about their later work.
    evicted: HashSet<Serial>,
    /// Serials up to this one count as evicted.
    evicted_up_to: Serial,
    /// The mark that collects what ends without an event.
    collecting: u32,
    /// The mark that the current wait for the device will settle.
    awaited: Option<u32>,
    /// The number of waits for the device that have begun.
    syncs: u64,
}

impl Default for Serials {
    fn default() -> Self {
        Self {
            states: HashMap::new(),
            last: 0,
            unknown: 0,
            unknown_up_to: None,
            evicted: HashSet::new(),
            evicted_up_to: 0,
            collecting: MARKS[0],
            awaited: None,
            syncs: 0,
        }
    }
}

impl Serials {
    /// A serial for the stream or event in a slot.
    pub(super) fn assign(&mut self, slot: u32) -> Serial {
        let serial = self.next_unused();
        self.states.insert(serial, SerialState::At(slot));
        serial
    }

    /// A serial that stands for no stream, for an event that is in no stream's order.
    pub(in crate::pool) fn next_unused(&mut self) -> Serial {
        self.last += 1;
        self.last
    }

    /// What became of a stream.
    pub(super) fn state_of(&self, serial: Serial) -> SerialState {
        match (self.states.get(&serial), self.unknown_up_to) {
            (Some(state), _) => *state,
            (None, Some((last, mark))) if serial <= last => SerialState::Unknown(mark),
            (None, _) => SerialState::Done,
        }
    }

    /// Forgets a stream: its work is done.
    pub(super) fn forget(&mut self, serial: Serial) {
        self.states.remove(&serial);
    }

    /// Records that a stream ended without an event. Returns the mark to which its holes go.
    pub(super) fn set_unknown(&mut self, serial: Option<Serial>) -> u32 {
        let mark = self.collecting;
        if self.unknown >= MAX_REMEMBERED {
            // A wait that begins from now on covers those under the other mark too.
            self.states.retain(|_, state| matches!(state, SerialState::At(_)));
            self.unknown = 0;
            self.unknown_up_to = Some((self.last, mark));
        }
        if let Some(serial) = serial {
            self.states.insert(serial, SerialState::Unknown(mark));
            self.unknown += 1;
        }
        mark
    }

    /// Records that a live stream is about to lose its slot.
    pub(super) fn note_eviction(&mut self, serial: Serial) {
        if self.evicted.len() >= MAX_REMEMBERED {
            // Serials with a slot are looked up before this bound.
            self.evicted.clear();
            self.evicted_up_to = self.last;
        }
        self.evicted.insert(serial);
    }

    /// Forgets earlier evictions: no recorded use of any stream is left.
    pub(super) fn forget_evictions(&mut self) {
        self.evicted.clear();
        self.evicted_up_to = 0;
    }

    /// Whether a stream lost its slot while live. It may live on under another serial, and still use blocks that
    /// recorded this one.
    pub(in crate::pool) fn was_evicted(&self, serial: Serial) -> bool {
        serial <= self.evicted_up_to || self.evicted.contains(&serial)
    }

    /// Whether only a wait for the device can cover the work of a stream, now or later.
    pub(super) fn is_lost(&self, serial: Serial) -> bool {
        self.was_evicted(serial) && !matches!(self.states.get(&serial), Some(SerialState::At(_)))
    }

    /// The mark for memory whose stream ended without an event.
    pub(in crate::pool) fn mark(&self) -> u32 {
        self.collecting
    }

    /// The number of waits for the device that have begun. A task that is deferred now without an event is settled by
    /// the next one.
    pub(in crate::pool) fn syncs(&self) -> u64 {
        self.syncs
    }

    /// Begins a wait for the whole device.
    pub(in crate::pool) fn begin_sync(&mut self) -> SyncTicket {
        self.syncs += 1;
        let mark = match self.awaited {
            // Another wait settles that mark. This one began later and must not reuse it.
            Some(_) => None,
            None => {
                let (mark, [first, second]) = (self.collecting, MARKS);
                self.collecting = if mark == first { second } else { first };
                self.awaited = Some(mark);
                Some(mark)
            }
        };
        SyncTicket { before: self.syncs, mark }
    }

    /// Ends the wait. Returns the mark whose memory is free for all now. After a failed wait nothing is settled, and
    /// the mark waits for the next one.
    pub(super) fn end_sync(&mut self, ticket: SyncTicket, succeeded: bool) -> Option<u32> {
        let mark = ticket.mark?;
        self.awaited = None;
        if !succeeded {
            // The mark becomes the collecting one again at the next wait: there are only two.
            return None;
        }
        let before = self.states.len();
        self.states.retain(|_, state| *state != SerialState::Unknown(mark));
        self.unknown = self.unknown.saturating_sub(before - self.states.len());
        self.unknown_up_to.take_if(|(_, of)| *of == mark);
        Some(mark)
    }

    /// The number of remembered streams, ended ones included.
    #[cfg(test)]
    pub(in crate::pool) fn remembered(&self) -> usize {
        self.states.len() + self.evicted.len()
    }
}
