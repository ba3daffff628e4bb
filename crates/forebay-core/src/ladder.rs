//! The ladder: what a pool tries, and in which order, before it refuses a request.
//!
//! ```text
//!   flush ─> deferred ─> nearest ─> others ─> grow ─> idle ─> callback ─> refuse
//!    ^                                                          │
//!    └──────────── the program released memory ────────────────┘
//! ```
//!
//! The rungs before `grow` make existing memory usable, the cheapest first. The ladder only says what comes
//! next; the pool looks for memory after each rung.
//!
//! A request may prefer growing the pool to the cost of some rungs ([`Avoided`]): then it skips them up to
//! `grow`, and if the pool cannot grow it starts again from the first rung without skipping any.

use crate::Bytes;

/// One way to find memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rung {
    /// Flush the thread caches into the heap.
    FlushCaches,
    /// Do the deferred work that is due: old mappings, forgotten streams, blocks used on other streams.
    Deferred,
    /// Wait, on the device, for the stream that has the best hole.
    Nearest,
    /// Wait, on the device, for every stream that has a hole.
    Others,
    /// Create pages, or move free ones.
    Grow,
    /// Wait on the host until the device is idle, release every free page, then grow.
    Idle,
    /// Call the program's callbacks, which may release memory.
    Callback,
    /// Nothing is left to try.
    Refuse,
}

/// What a request skips as long as the pool can grow instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Avoided {
    /// Flushing the thread caches.
    pub flush: bool,
    /// Waiting, on the device, for other streams.
    pub streams: bool,
}

/// The position of one request on the ladder.
///
/// ```
/// use forebay_core::{Avoided, Ladder, Rung};
///
/// let mut ladder = Ladder::new(Avoided::default());
/// while ladder.rung() != Rung::Refuse {
///     ladder.advance();
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Ladder {
    rung: Rung,
    avoided: Avoided,
}

/// How often one request calls the program's callbacks: as often as they make progress, and a few times more. A
/// callback that releases one entry of a cache at a time is called until the request fits; one that claims to have
/// released memory and did not is not called forever.
///
/// ```
/// use forebay_core::{Bytes, CallbackBudget};
///
/// let mut budget = CallbackBudget::default();
/// for mib in 0..1000 {
///     assert!(budget.may_call(Bytes::mib(mib)), "each call left more room than all before");
/// }
/// let idle = (0..1000).filter(|_| budget.may_call(Bytes::mib(7))).count();
/// assert_eq!(idle, CallbackBudget::MAX_IDLE as usize);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct CallbackBudget {
    most_room: Option<Bytes>,
    idle: u32,
}

impl CallbackBudget {
    /// The most calls after which there was no more room than before.
    pub const MAX_IDLE: u32 = 15;

    /// Whether the callbacks may be called, now that the pool could serve `room` bytes if they were in one piece.
    pub fn may_call(&mut self, room: Bytes) -> bool {
        if self.most_room.is_none_or(|most| room > most) {
            self.most_room = Some(room);
            return true;
        }
        self.idle += 1;
        self.idle <= Self::MAX_IDLE
    }
}

impl Ladder {
    /// At the first rung.
    pub const fn new(avoided: Avoided) -> Self {
        Self { rung: Rung::FlushCaches, avoided }
    }

    /// What is skipped as long as the pool can grow.
    pub const fn avoided(&self) -> Avoided {
        self.avoided
    }

    /// Starts again from the first rung and skips nothing.
    pub const fn restart(&mut self) {
        self.avoided = Avoided { flush: false, streams: false };
        self.rung = Rung::FlushCaches;
    }

    /// The current rung.
    pub const fn rung(&self) -> Rung {
        self.rung
    }

    /// Moves to the next rung, as the current one did not find the memory.
    pub const fn advance(&mut self) {
        if matches!(self.rung, Rung::Grow) && (self.avoided.flush || self.avoided.streams) {
            self.restart();
            return;
        }
        self.rung = match self.rung {
            Rung::FlushCaches => Rung::Deferred,
            Rung::Deferred => Rung::Nearest,
            Rung::Nearest => Rung::Others,
            Rung::Others => Rung::Grow,
            Rung::Grow => Rung::Idle,
            Rung::Idle => Rung::Callback,
            Rung::Callback | Rung::Refuse => Rung::Refuse,
        };
    }

    /// Starts again from the first rung because a callback says that it released memory.
    pub const fn memory_released(&mut self) {
        self.rung = Rung::FlushCaches;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rung_comes_once_and_then_it_is_refused() {
        let mut ladder = Ladder::new(Avoided::default());
        let mut seen = Vec::new();
        while ladder.rung() != Rung::Refuse {
            assert!(!seen.contains(&ladder.rung()), "{:?} twice", ladder.rung());
            seen.push(ladder.rung());
            ladder.advance();
        }
        assert_eq!(seen.len(), 7);
        ladder.advance();
        assert_eq!(ladder.rung(), Rung::Refuse);
        let at = |rung| seen.iter().position(|&other| other == rung);
        assert!(at(Rung::FlushCaches) < at(Rung::Grow), "what there is comes before what is new");
        assert!(at(Rung::Others) < at(Rung::Grow));
        assert!(at(Rung::Grow) < at(Rung::Idle), "waiting comes last");
    }

    #[test]
    fn callbacks_are_called_while_they_make_room() {
        // How much more room each call makes, and how many calls that are.
        for (step, calls) in [(0, 16), (1, 100)] {
            let mut ladder = Ladder::new(Avoided::default());
            let mut budget = CallbackBudget::default();
            let (mut called, mut room) = (0, 0);
            while ladder.rung() != Rung::Refuse {
                if ladder.rung() == Rung::Callback
                    && called < 100
                    && budget.may_call(Bytes::new(room))
                {
                    called += 1;
                    room += step;
                    ladder.memory_released();
                } else {
                    ladder.advance();
                }
            }
            assert_eq!(called, calls, "{step} bytes a call");
        }
    }

    #[test]
    fn what_is_avoided_is_done_where_there_is_no_room() {
        for (flush, streams) in [(true, false), (false, true), (true, true)] {
            let mut ladder = Ladder::new(Avoided { flush, streams });
            while ladder.rung() != Rung::Grow {
                assert_eq!(ladder.avoided(), Avoided { flush, streams });
                ladder.advance();
            }
            ladder.advance();
            assert_eq!((ladder.rung(), ladder.avoided()), (Rung::FlushCaches, Avoided::default()));
            while ladder.rung() != Rung::Grow {
                ladder.advance();
            }
            ladder.advance();
            assert_eq!(ladder.rung(), Rung::Idle);
        }
    }
}
