//! How long the host waits for the device, and how.

use core::time::Duration;
use std::thread;
use std::time::Instant;

use crate::Result;

/// How often a thread looks before it sleeps, and how long it then sleeps between two looks: short at first, since
/// most waits are.
const LOOKS: u32 = 16;
const FIRST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// How long to wait for the device.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) enum Patience {
    /// As long as it takes.
    Unlimited,
    /// Until then.
    Until(Instant),
    /// Not at all.
    None,
}

impl Patience {
    /// When it ends, if ever.
    fn end(self) -> Option<Instant> {
        match self {
            Self::Unlimited => None,
            Self::Until(end) => Some(end),
            Self::None => Some(Instant::now()),
        }
    }

    /// Whether there is nothing left of it.
    pub(in crate::pool) fn is_over(self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    pub(in crate::pool) fn left(self) -> Option<Duration> {
        self.end().map(|end| end.saturating_duration_since(Instant::now()))
    }
}

/// Asks again and again, with naps in between, until there is an answer. `false` where time ran out first.
pub(in crate::pool) fn poll(
    patience: Patience,
    mut ask: impl FnMut() -> Result<Option<bool>>,
) -> Result<bool> {
    let (end, mut looks, mut nap) = (patience.end(), 0, FIRST_NAP);
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
