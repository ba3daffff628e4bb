//! Limits the work that recordings may cause, and lets a hook stop it.

use core::cell::{Cell, RefCell};
use core::fmt;
use core::time::Duration;
use std::time::Instant;

use crate::ReplayError;

/// How often the clock and the hook are asked: often enough that a person sees no delay, too seldom to cost.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Before this the time of the whole is not estimated: the first events of a run are not like the others.
const EARLIEST_ESTIMATE: Duration = Duration::from_secs(2);

/// Work is stopped early only if the estimate exceeds the limit this many times: it is rough.
const CERTAINTY: f64 = 2.0;

/// A bound on the work that recordings cause. One budget spans all replays of a command.
///
/// A few bytes of a file can cause hours of work: blocks of terabytes, thousands of streams, millions of events.
/// [`replay`](fn@crate::replay) consults its budget between events, about every 20 ms, and ends with
/// [`ReplayError::TooLong`] or [`ReplayError::Interrupted`].
///
/// ```
/// use std::time::Duration;
///
/// use forebay_core::Bytes;
/// use forebay_sim::{MemoryModel, SimMachine};
/// use forebay_trace::{Model, ReplayError, ReplayOptions, WorkBudget, replay, sample};
///
/// let machine = SimMachine::builder().memory(MemoryModel::Phantom).capacity(Bytes::gib(24)).build()?;
/// let mut player = Model::Torch.player(machine.device(0).ok_or("no device")?)?;
/// let interrupted = || true;
/// let budget = WorkBudget::of(Duration::from_secs(60)).interrupted_by(&interrupted);
/// let ended = replay(&sample::gpt2_train()?, &mut *player, ReplayOptions::new().budget(&budget));
/// assert!(matches!(ended, Err(ReplayError::Interrupted)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WorkBudget<'a> {
    began: Instant,
    limit: Option<Duration>,
    interrupted: Option<&'a dyn Fn() -> bool>,
    /// Events of the whole work, as far as that is known.
    expected: Cell<u64>,
    /// Events played so far.
    done: Cell<u64>,
    /// When the first of them ended: what came before, such as an analysis, says nothing about events.
    first: Cell<Option<Instant>>,
    /// When the clock and the hook were last asked.
    looked: Cell<Instant>,
    /// Why the work ended. Once set, every later check returns it.
    stopped: RefCell<Option<ReplayError>>,
}

impl WorkBudget<'_> {
    /// A budget without a limit.
    pub fn unlimited() -> Self {
        let now = Instant::now();
        Self {
            began: now,
            limit: None,
            interrupted: None,
            expected: Cell::new(0),
            done: Cell::new(0),
            first: Cell::new(None),
            // The first look comes at once.
            looked: Cell::new(now.checked_sub(LOOK_EVERY).unwrap_or(now)),
            stopped: RefCell::new(None),
        }
    }

    /// A budget of this much time from now on.
    pub fn of(limit: Duration) -> Self {
        Self { limit: Some(limit), ..Self::unlimited() }
    }

    /// Announces that this many more events will be played. This allows an estimate of the total time, so that work
    /// that would far exceed the limit is stopped early.
    pub fn expect(&self, events: u64) {
        self.expected.set(self.expected.get().saturating_add(events));
    }

    /// A rough estimate of the total time; `None` if it cannot be estimated yet.
    pub fn estimate(&self) -> Option<Duration> {
        let elapsed = self.began.elapsed();
        let played = self.first.get().map_or(Duration::ZERO, |first| first.elapsed());
        let (done, expected) = (self.done.get(), self.expected.get());
        if played < EARLIEST_ESTIMATE || done == 0 || expected <= done {
            return None;
        }
        let rest = played.as_secs_f64() * (expected - done) as f64 / done as f64;
        let rest = Duration::try_from_secs_f64(rest).unwrap_or(Duration::MAX);
        Some(elapsed.saturating_add(rest))
    }

    /// One more event was played, and the time is `now`.
    pub(crate) fn spend(&self, now: Instant) -> Result<(), ReplayError> {
        self.done.set(self.done.get().saturating_add(1));
        if self.first.get().is_none() {
            self.first.set(Some(now));
        }
        if now.saturating_duration_since(self.looked.get()) < LOOK_EVERY {
            return Ok(());
        }
        self.looked.set(now);
        self.check()
    }

    /// Returns an error if work must stop. Replays check by themselves; other work calls this between its steps. Once
    /// it fails, it fails for good.
    pub fn check(&self) -> Result<(), ReplayError> {
        let mut stopped = self.stopped.borrow_mut();
        if stopped.is_none() {
            *stopped = self.look();
        }
        stopped.clone().map_or(Ok(()), Err)
    }

    /// Asks the hook and the clock.
    fn look(&self) -> Option<ReplayError> {
        if self.interrupted.is_some_and(|interrupted| interrupted()) {
            return Some(ReplayError::Interrupted);
        }
        let limit = self.limit?;
        let (elapsed, estimate) = (self.began.elapsed(), self.estimate());
        let would_be =
            |estimate: Duration| estimate.as_secs_f64() > limit.as_secs_f64() * CERTAINTY;
        let is_over = elapsed > limit || estimate.is_some_and(would_be);
        is_over.then_some(ReplayError::TooLong { limit, elapsed, estimate })
    }
}

impl<'a> WorkBudget<'a> {
    /// Adds a hook that is called about every 20 ms on the working thread. If it returns `true`, the work ends with
    /// [`ReplayError::Interrupted`].
    #[must_use]
    pub fn interrupted_by<'b>(self, interrupted: &'b dyn Fn() -> bool) -> WorkBudget<'b>
    where
        'a: 'b,
    {
        WorkBudget { interrupted: Some(interrupted), ..self }
    }
}

impl fmt::Debug for WorkBudget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkBudget")
            .field("limit", &self.limit)
            .field("elapsed", &self.began.elapsed())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A budget of which so much time has passed.
    fn begun(ago: Duration, limit: Duration) -> WorkBudget<'static> {
        let began = Instant::now().checked_sub(ago).unwrap();
        WorkBudget { began, first: Cell::new(Some(began)), ..WorkBudget::of(limit) }
    }

    #[test]
    fn work_past_its_limit_is_stopped_and_so_is_work_that_would_be() {
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        assert_eq!(begun(minute, 2 * minute).check(), Ok(()));
        let over = begun(2 * minute, minute).check().unwrap_err();
        assert!(matches!(over, ReplayError::TooLong { limit, .. } if limit == minute), "{over}");
        let said = over.to_string();
        assert!(said.contains("has taken 2 min and is not done, longer than the limit"), "{said}");
        assert!(said.contains("--limit 3min"), "{said}");
        // A hundredth done after three seconds: five minutes in all.
        let early = begun(3 * second, minute);
        early.expect(10_000);
        assert_eq!(early.check(), Ok(()), "nothing is done yet, so nothing is known");
        early.done.set(100);
        let said = early.check().unwrap_err().to_string();
        assert!(said.contains("about 5 min") && said.contains("limit of 60 s"), "{said}");
        assert!(said.contains("--limit 8min"), "{said}");
        // Time before the first event says nothing about events.
        let late = begun(20 * second, minute);
        late.first.set(Some(Instant::now()));
        late.expect(10_000);
        late.done.set(1);
        assert_eq!(late.check(), Ok(()));
        early.done.set(4_000);
        assert!(early.check().is_err(), "it stays stopped");
    }

    #[test]
    fn the_hook_is_asked_at_once_and_then_seldom() {
        let asked = Cell::new(0);
        let hook = || {
            asked.set(asked.get() + 1);
            false
        };
        let budget = WorkBudget::unlimited().interrupted_by(&hook);
        let now = Instant::now();
        for _ in 0..1000 {
            budget.spend(now).unwrap();
        }
        assert_eq!(asked.get(), 1);
        budget.spend(now + LOOK_EVERY).unwrap();
        assert_eq!(asked.get(), 2);
        // A hook may say it once only, as a signal does.
        let once = Cell::new(true);
        let hook = || once.replace(false);
        let budget = WorkBudget::unlimited().interrupted_by(&hook);
        assert_eq!(budget.spend(Instant::now()), Err(ReplayError::Interrupted));
        assert_eq!(budget.check(), Err(ReplayError::Interrupted));
    }
}
