//! Decay: how much of the memory held has not been needed for some time.
//!
//! The ages of single pages mean little if any page can serve any request. The memory to release is what
//! was not needed at any moment of the recent past: the memory held minus the peak in use. So the peak is
//! recorded per interval of time, and intervals older than the requested age are dropped.

use core::time::Duration;
use std::collections::VecDeque;

use crate::Bytes;

/// How many intervals are kept: enough to resolve the age to an eighth.
const INTERVALS: usize = 16;

/// The peak in use per interval of time. Times count from a moment of the caller's choice.
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
    /// The end of each interval and its peak, the oldest first.
    intervals: VecDeque<(Duration, Bytes)>,
    begun: Option<Duration>,
}

impl Decay {
    /// Records that no more than `most` was in use since the last call.
    pub fn note(&mut self, now: Duration, most: Bytes) {
        if self.begun.is_none() {
            // Nothing is known about the time before the first call.
            self.begun = Some(now);
            return;
        }
        self.intervals.push_back((now, most));
        if self.intervals.len() > INTERVALS {
            // Merge the two shortest neighbours, so that old intervals stay distinct.
            let gap = |index: usize| {
                let before = index.checked_sub(1).and_then(|i| self.intervals.get(i));
                let start = before.map_or(self.begun.unwrap_or_default(), |&(end, _)| end);
                let end = self.intervals.get(index + 1).map_or(now, |&(end, _)| end);
                end.saturating_sub(start)
            };
            let shortest = (0..self.intervals.len() - 1).min_by_key(|&index| gap(index));
            if let Some(index) = shortest
                && let Some((_, one)) = self.intervals.remove(index)
                && let Some((_, two)) = self.intervals.get_mut(index)
            {
                *two = (*two).max(one);
            }
        }
    }

    /// The peak in use during the last `age`; `None` if recording began later than that.
    pub fn needed(&self, now: Duration, age: Duration) -> Option<Bytes> {
        let since = now.checked_sub(age)?;
        if self.begun? > since {
            return None;
        }
        let recent = self.intervals.iter().filter(|&&(end, _)| end > since);
        Some(recent.map(|&(_, most)| most).max().unwrap_or(Bytes::ZERO))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    /// Compared with a full history: never less than the true peak, and not older than twice the age.
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
