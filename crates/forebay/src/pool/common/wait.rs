//! How long the host waits for the device, and how it polls.

use core::time::Duration;
use std::thread;
use std::time::Instant;

use crate::Result;

/// A waiting thread polls this often before it sleeps. Then it sleeps between two polls, briefly at first because most
/// waits are short.
const LOOKS: u32 = 16;
const FIRST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// When to give up waiting for the device.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) enum Deadline {
    /// Wait as long as it takes.
    Never,
    /// Give up at this time.
    At(Instant),
    /// Do not wait at all.
    Now,
}

impl Deadline {
    /// The time at which it passes; `None` if it never does.
    fn instant(self) -> Option<Instant> {
        match self {
            Self::Never => None,
            Self::At(end) => Some(end),
            Self::Now => Some(Instant::now()),
        }
    }

    /// The same, but not before `least` has passed from now on.
    pub(in crate::pool) fn or_after(self, least: Duration) -> Self {
        let Some(end) = self.instant() else { return Self::Never };
        Instant::now().checked_add(least).map_or(Self::Never, |least| Self::At(end.max(least)))
    }

    pub(in crate::pool) fn has_passed(self) -> bool {
        self.remaining().is_some_and(|left| left.is_zero())
    }

    /// The time that is left; `None` if there is no limit.
    pub(in crate::pool) fn remaining(self) -> Option<Duration> {
        self.instant().map(|end| end.saturating_duration_since(Instant::now()))
    }
}

/// The time that one call may wait for the device in all. It starts with the call's first wait, so that a call that
/// never waits does not read the settings.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::pool) struct WaitBudget(Option<Deadline>);

impl WaitBudget {
    /// The deadline of the call; `longest` is read at the first wait.
    pub(in crate::pool) fn deadline(&mut self, longest: impl FnOnce() -> Duration) -> Deadline {
        *self.0.get_or_insert_with(|| {
            Instant::now().checked_add(longest()).map_or(Deadline::Never, Deadline::At)
        })
    }
}

/// Calls `ask` until it returns an answer, and sleeps in between. Returns `false` if the deadline passes first.
pub(in crate::pool) fn poll(
    deadline: Deadline,
    mut ask: impl FnMut() -> Result<Option<bool>>,
) -> Result<bool> {
    let (end, mut looks, mut nap) = (deadline.instant(), 0, FIRST_NAP);
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(false);
        }
        if looks < LOOKS {
            looks += 1;
            thread::yield_now();
            continue;
        }
        thread::sleep(left.map_or(nap, |left| nap.min(left)));
        nap = (nap * 2).min(LONGEST_NAP);
    }
}
