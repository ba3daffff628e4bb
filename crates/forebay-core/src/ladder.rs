//! The ladder: what is tried, and in which order, before a request for memory is refused.
//!
//! ```text
//!   fold ─> deferred ─> nearest ─> others ─> room ─> idle ─> callback ─> refuse
//!    ^                                                          │
//!    └────────────── something was let go ─────────────────────┘
//! ```
//!
//! Every rung makes memory that exists already usable before the next asks for more, and what costs
//! least comes first. The ladder only says what comes next; its user looks for memory after each rung.
//!
//! A request may rather grow the pool than pay for some rungs ([`Avoided`]): then it passes over them up to
//! `room`, and starts from the foot again where there is no room, with nothing left out.

/// One thing to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rung {
    /// Fold what the magazines hold into the heap.
    Fold,
    /// Do what was put off and is due: old mappings, forgotten streams, blocks used elsewhere.
    Deferred,
    /// Wait, on the device, for the one stream that has the best hole.
    Nearest,
    /// Wait, on the device, for every stream that has anything.
    Others,
    /// Make room: new pages, or pages from where they lie free.
    Room,
    /// Wait for the device, on the host, and give back every free page; then make room.
    Idle,
    /// Ask the program to let something go.
    Callback,
    /// There is nothing left to try.
    Refuse,
}

/// What a request would rather grow the pool than do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Avoided {
    /// Empty the thread caches.
    pub fold: bool,
    /// Wait, on the device, for other streams.
    pub streams: bool,
}

/// Where a request stands on the ladder.
///
/// ```
/// use forebay_core::{Avoided, Ladder, Rung};
///
/// let mut ladder = Ladder::new(Avoided::default());
/// while ladder.rung() != Rung::Refuse {
///     ladder.climb();
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Ladder {
    rung: Rung,
    avoided: Avoided,
    calls: u32,
}

impl Ladder {
    /// How often the program is asked to let something go for one request: one that says yes and frees
    /// nothing must not be asked for ever.
    pub const MOST_CALLS: u32 = 16;

    /// At its foot.
    pub const fn new(avoided: Avoided) -> Self {
        Self { rung: Rung::Fold, avoided, calls: 0 }
    }

    /// What is passed over until there is no room.
    pub const fn avoided(&self) -> Avoided {
        self.avoided
    }

    /// Starts from the foot again, with nothing left out.
    pub const fn restart(&mut self) {
        self.avoided = Avoided { fold: false, streams: false };
        self.rung = Rung::Fold;
    }

    /// What to try now.
    pub const fn rung(&self) -> Rung {
        self.rung
    }

    /// What was tried did not bring the memory: on to the next.
    pub const fn climb(&mut self) {
        if matches!(self.rung, Rung::Room) && (self.avoided.fold || self.avoided.streams) {
            self.restart();
            return;
        }
        self.rung = match self.rung {
            Rung::Fold => Rung::Deferred,
            Rung::Deferred => Rung::Nearest,
            Rung::Nearest => Rung::Others,
            Rung::Others => Rung::Room,
            Rung::Room => Rung::Idle,
            Rung::Idle => Rung::Callback,
            Rung::Callback | Rung::Refuse => Rung::Refuse,
        };
    }

    /// The program says that it let something go: from the foot again, unless it has said so too
    /// often.
    pub const fn let_go(&mut self) {
        self.calls += 1;
        self.rung = if self.calls < Self::MOST_CALLS { Rung::Fold } else { Rung::Refuse };
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
            ladder.climb();
        }
        assert_eq!(seen.len(), 7);
        ladder.climb();
        assert_eq!(ladder.rung(), Rung::Refuse);
        let at = |rung| seen.iter().position(|&other| other == rung);
        assert!(at(Rung::Fold) < at(Rung::Room), "what there is comes before what is new");
        assert!(at(Rung::Others) < at(Rung::Room));
        assert!(at(Rung::Room) < at(Rung::Idle), "waiting comes last");
    }

    #[test]
    fn a_program_that_always_says_yes_is_not_asked_for_ever() {
        let mut ladder = Ladder::new(Avoided::default());
        let mut calls = 0;
        while ladder.rung() != Rung::Refuse {
            if ladder.rung() == Rung::Callback {
                calls += 1;
                ladder.let_go();
            } else {
                ladder.climb();
            }
        }
        assert_eq!(calls, Ladder::MOST_CALLS);
    }

    #[test]
    fn what_is_avoided_is_done_where_there_is_no_room() {
        for (fold, streams) in [(true, false), (false, true), (true, true)] {
            let mut ladder = Ladder::new(Avoided { fold, streams });
            while ladder.rung() != Rung::Room {
                assert_eq!(ladder.avoided(), Avoided { fold, streams });
                ladder.climb();
            }
            ladder.climb();
            assert_eq!((ladder.rung(), ladder.avoided()), (Rung::Fold, Avoided::default()));
            while ladder.rung() != Rung::Room {
                ladder.climb();
            }
            ladder.climb();
            assert_eq!(ladder.rung(), Rung::Idle);
        }
    }
}
