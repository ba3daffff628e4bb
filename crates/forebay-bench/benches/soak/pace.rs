//! How threads run: together, or one at a time in an order that a seed decides.

use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use clap::ValueEnum;
use forebay_core::Random;

/// The most operations of one turn. A thread that stops in the middle of what it does stops for a
/// while, as it does when the system takes its processor away.
const MAX_IN_A_TURN: u64 = 256;

/// How threads run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pace {
    /// All at once.
    Together,
    /// One at a time, in an order that the seed decides: what fails so fails again. Each is a thread all the same, with
    /// what the pool keeps for it.
    Turns,
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Together => "together",
            Self::Turns => "turns",
        })
    }
}

/// Whose turn it is, and what is left to do.
struct Turn {
    whose: usize,
    random: Random,
    left: u64,
    /// Something went wrong: nobody goes on.
    over: bool,
}

/// The threads of a round, and who may go.
pub(crate) struct Turns {
    pace: Pace,
    turn: Mutex<Turn>,
    /// One for each thread: a turn that passes wakes the one whose it is.
    theirs: Box<[Condvar]>,
}

impl Turns {
    pub(crate) fn new(pace: Pace, threads: usize, operations: u64, seed: u64) -> Self {
        let turn = Turn { whose: 0, random: Random::new(!seed), left: operations, over: false };
        let theirs = (0..threads).map(|_| Condvar::new()).collect();
        Self { pace, turn: Mutex::new(turn), theirs }
    }

    fn lock(&self) -> MutexGuard<'_, Turn> {
        // A turn is whole whenever it is not held.
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `thread` may go; gives how many operations it may do. None are left at 0.
    pub(crate) fn take(&self, thread: usize) -> u64 {
        let mut turn = self.lock();
        while let Some(mine) = self.theirs.get(thread)
            && self.pace == Pace::Turns
            && turn.whose != thread
            && turn.left > 0
            && !turn.over
        {
            turn = mine.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
        if turn.over {
            return 0;
        }
        let wanted = match self.pace {
            Pace::Turns => turn.random.between(1, MAX_IN_A_TURN),
            Pace::Together => MAX_IN_A_TURN,
        };
        let count = wanted.min(turn.left);
        turn.left -= count;
        count
    }

    /// Says that a turn is over; the next is whoever's the seed says.
    pub(crate) fn pass(&self) {
        if self.pace == Pace::Together {
            return;
        }
        let mut turn = self.lock();
        turn.whose = turn.random.index(self.theirs.len()).unwrap_or(0);
        let (next, left) = (self.theirs.get(turn.whose), turn.left);
        drop(turn);
        match next {
            Some(next) if left > 0 => next.notify_one(),
            // The end is everybody's.
            _ => self.theirs.iter().for_each(Condvar::notify_all),
        }
    }

    /// Lets nobody go on.
    pub(crate) fn stop(&self) {
        self.lock().over = true;
        self.theirs.iter().for_each(Condvar::notify_all);
    }
}
