//! Decay: how much of what is held was not needed for a while.
//!
//! Ages of single pages mean little where any page serves any request. What can go is what was not
//! needed at any moment of the last while: what is held less the most that was in use. So the most in
//! use is noted for stretches of time, and stretches that are older than asked for are forgotten.

use core::time::Duration;
use std::collections::VecDeque;

use crate::Bytes;

/// How many stretches are remembered: the age is kept to an eighth.
const STRETCHES: usize = 16;

/// The most in use, for stretches of time. Time is counted from a moment of the caller's choice.
///
/// ```
/// use core::time::Duration;
/// use forebay_core::{Bytes, Decay};
///
/// let mut decay = Decay::default();
/// let at = Duration::from_secs;
/// decay.note(at(0), Bytes::gib(8));
/// decay.note(at(5), Bytes::gib(2));
/// assert_eq!(decay.needed(at(5), at(10)), None, "not watched for that long");
/// decay.note(at(20), Bytes::gib(1));
/// assert_eq!(decay.needed(at(20), at(10)), Some(Bytes::gib(1)));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Decay {
    /// The end of each stretch, and the most that was in use in it; the oldest first.
    stretches: VecDeque<(Duration, Bytes)>,
    begun: Option<Duration>,
}

impl Decay {
    /// Notes that no more than `most` was in use since the last note.
    pub fn note(&mut self, now: Duration, most: Bytes) {
        if self.begun.is_none() {
            // What was before the first note nobody knows.
            self.begun = Some(now);
            return;
        }
        self.stretches.push_back((now, most));
        if self.stretches.len() > STRETCHES {
            // The two shortest neighbours become one, so that the oldest are still told apart.
            let gap = |index: usize| {
                let before = index.checked_sub(1).and_then(|i| self.stretches.get(i));
                let start = before.map_or(self.begun.unwrap_or_default(), |&(end, _)| end);
                let end = self.stretches.get(index + 1).map_or(now, |&(end, _)| end);
                end.saturating_sub(start)
            };
            let shortest = (0..self.stretches.len() - 1).min_by_key(|&index| gap(index));
            if let Some(index) = shortest
                && let Some((_, one)) = self.stretches.remove(index)
                && let Some((_, two)) = self.stretches.get_mut(index)
            {
                *two = (*two).max(one);
            }
        }
    }

    /// The most that was in use in the last `age`; `None` where that is longer than was watched.
    pub fn needed(&self, now: Duration, age: Duration) -> Option<Bytes> {
        let since = now.checked_sub(age)?;
        if self.begun? > since {
            return None;
        }
        let recent = self.stretches.iter().filter(|&&(end, _)| end > since);
        Some(recent.map(|&(_, most)| most).max().unwrap_or(Bytes::ZERO))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    /// Against all notes kept: never less than what was needed, and not older than twice the age.
    #[test]
    fn never_says_less_than_was_needed() {
        for seed in 0..40 {
            let mut random = Random::new(seed);
            let (mut decay, mut all, mut now) = (Decay::default(), Vec::new(), 0_u64);
            decay.note(Duration::ZERO, Bytes::new(u64::MAX));
            for _ in 0..400 {
                now += 1 + random.below(5);
                let most = random.below(1000);
                decay.note(Duration::from_secs(now), Bytes::new(most));
                all.push((now, most));
                let age = random.below(40);
                let said = decay.needed(Duration::from_secs(now), Duration::from_secs(age));
                let Some(since) = now.checked_sub(age) else {
                    assert_eq!(said, None);
                    continue;
                };
                let said = said.unwrap().get();
                let over = |from: u64| {
                    all.iter().filter(|&&(end, _)| end > from).map(|&(_, most)| most).max()
                };
                assert!(said >= over(since).unwrap_or(0), "seed {seed}");
                assert!(said <= over(0).unwrap_or(0), "seed {seed}");
            }
        }
    }

    #[test]
    fn a_peak_is_forgotten_when_it_is_old() {
        let mut decay = Decay::default();
        decay.note(Duration::ZERO, Bytes::ZERO);
        for second in 1..200 {
            let most = if second == 5 { 100 } else { 10 };
            decay.note(Duration::from_secs(second), Bytes::new(most));
        }
        let needed = decay.needed(Duration::from_secs(199), Duration::from_secs(60));
        assert_eq!(needed, Some(Bytes::new(10)));
    }
}
