//! Decay: how much of the memory held has not been needed for some time.
//!
//! The ages of single pages mean little if any page can serve any request. The memory to release is what was not needed
//! at any moment of the recent past: the memory held minus the peak in use. So the peak is recorded per time interval,
//! and intervals older than the requested age are dropped.

use core::time::Duration;
use std::collections::VecDeque;

use crate::Bytes;

/// How many intervals are kept: enough to resolve the age to an eighth.
const INTERVALS: usize = 16;

/// The peak in use per interval of time. Times count from a moment that the caller chooses.
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
    /// The end of each interval and its peak, oldest first.
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
mod tests;
