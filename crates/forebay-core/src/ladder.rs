//! The ladder: what is tried, and in which order, before a request for memory is refused.
//!
//! ```text
//!   fold ─> deferred ─> nearest ─> others ─> room ─> idle ─> callback ─> refuse
//!    ^                                                          │
//!    └────────────── something was let go ─────────────────────┘
//! ```
//!
//! Every rung makes memory that exists already usable before the next asks for more, and what costs
//! least comes first. The ladder only says what comes next; whoever climbs it looks for memory after
//! each rung.

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

/// Where a request stands on the ladder.
///
/// ```
/// use forebay_core::{Ladder, Rung};
///
/// let mut ladder = Ladder::new();
/// while ladder.rung() != Rung::Refuse {
///     ladder.climb();
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Ladder {
    rung: Rung,
    calls: u32,
}

impl Default for Ladder {
    fn default() -> Self {
        Self::new()
    }
}

impl Ladder {
    /// How often the program is asked to let something go for one request: one that says yes and frees
    /// nothing must not be asked for ever.
    pub const MOST_CALLS: u32 = 16;

    /// At its foot.
    pub const fn new() -> Self {
        Self { rung: Rung::Fold, calls: 0 }
    }

    /// What to try now.
    pub const fn rung(&self) -> Rung {
        self.rung
    }

    /// What was tried did not bring the memory: on to the next.
    pub const fn climb(&mut self) {
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
        let mut ladder = Ladder::new();
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
        let mut ladder = Ladder::new();
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
}
