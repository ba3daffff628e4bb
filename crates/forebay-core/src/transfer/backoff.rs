//! How long a failed call waits before it is retried.

use core::time::Duration;

use crate::Random;

/// Delays that double from the first to the longest, each with a random part, so that calls that failed together are
/// not retried together.
///
/// ```
/// use core::time::Duration;
/// use forebay_core::Random;
/// use forebay_core::transfer::Backoff;
///
/// let backoff = Backoff { first: Duration::from_micros(100), longest: Duration::from_millis(5), retries: 2 };
/// let mut random = Random::new(1);
/// let second = backoff.delay(1, &mut random).unwrap();
/// assert!(second >= Duration::from_micros(100) && second <= Duration::from_micros(200));
/// assert_eq!(backoff.delay(2, &mut random), None); // two retries, no more
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first delay.
    pub first: Duration,
    /// The longest delay.
    pub longest: Duration,
    /// How often a call is retried.
    pub retries: u32,
}

impl Default for Backoff {
    /// Five retries after 100 us to 1.6 ms.
    fn default() -> Self {
        Self { first: Duration::from_micros(100), longest: Duration::from_millis(50), retries: 5 }
    }
}

impl Backoff {
    /// The delay before a retry, the first being number 0; `None` after the last. Between a half and the
    /// whole of the doubled delay.
    pub fn delay(&self, retry: u32, random: &mut Random) -> Option<Duration> {
        if retry >= self.retries {
            return None;
        }
        let factor = 1_u32.checked_shl(retry).unwrap_or(u32::MAX);
        let whole = self.first.saturating_mul(factor).min(self.longest);
        let half = whole / 2;
        let spread = u64::try_from((whole - half).as_nanos()).unwrap_or(u64::MAX);
        Some(half + Duration::from_nanos(random.below(spread.saturating_add(1))))
    }
}
