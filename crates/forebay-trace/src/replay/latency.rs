//! A latency histogram of bounded size.

use core::time::Duration;

/// Bits of a value that are kept: values up to 64 ns are exact, larger ones to one part in 32.
const KEPT: u32 = 6;
/// Values of each power of two.
const STEPS: usize = 1 << (KEPT - 1);
/// Counters for all 64-bit values: the exact ones, then so many for each further power of two.
const COUNTERS: usize = (1 << KEPT) + STEPS * (64 - KEPT as usize);

/// A histogram of times: mean and greatest exact, quantiles to one part in 32.
#[derive(Clone, Debug)]
pub struct Latency {
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    most: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Self { counts: vec![0; COUNTERS], count: 0, sum: 0, most: 0 }
    }
}

impl Latency {
    /// Records one operation.
    pub fn record(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if let Some(counter) = self.counts.get_mut(Self::counter(nanos)) {
            *counter += 1;
        }
        self.count += 1;
        self.sum += u128::from(nanos);
        self.most = self.most.max(nanos);
    }

    /// The mean in nanoseconds; 0 if nothing was recorded.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// The longest in nanoseconds.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// The time in nanoseconds that `percent` of a hundred operations do not exceed: the upper end of its step, at most
    /// the longest.
    pub fn percentile(&self, percent: u64) -> u64 {
        let rank = (u128::from(self.count) * u128::from(percent.min(100))).div_ceil(100).max(1);
        let mut seen = 0_u128;
        for (counter, &count) in self.counts.iter().enumerate() {
            seen += u128::from(count);
            if seen >= rank {
                return Self::upper(counter).min(self.most);
            }
        }
        self.most
    }

    /// The counter of a value.
    fn counter(nanos: u64) -> usize {
        let bits = u64::BITS - nanos.leading_zeros();
        let shift = bits.saturating_sub(KEPT);
        // What is left has KEPT bits at most, and the shift is at most 58: both fit any usize.
        #[allow(clippy::cast_possible_truncation)]
        let kept = (nanos >> shift) as usize;
        kept + shift as usize * STEPS
    }

    /// The greatest value of a counter.
    fn upper(counter: usize) -> u64 {
        if counter < 1 << KEPT {
            return counter as u64;
        }
        let shift = (counter - (1 << KEPT)) / STEPS + 1;
        let kept = (counter - shift * STEPS) as u64;
        // In 128 bits: the last counter's end is the end of all 64.
        let end = ((u128::from(kept) + 1) << shift) - 1;
        u64::try_from(end).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_step_holds_its_value_within_one_part_in_32(nanos: u64) {
            let counter = Latency::counter(nanos);
            prop_assert!(counter < COUNTERS);
            let upper = Latency::upper(counter);
            prop_assert!(upper >= nanos && upper - nanos <= nanos / 32);
            prop_assert!(counter == 0 || Latency::upper(counter - 1) < nanos);
        }
    }

    #[test]
    fn quantiles_of_known_times() {
        let mut times = Latency::default();
        assert_eq!((times.mean(), times.percentile(50), times.most()), (0.0, 0, 0));
        for nanos in 1..=100 {
            times.record(Duration::from_nanos(nanos));
        }
        assert_eq!(times.mean(), 50.5);
        assert_eq!(times.percentile(50), 50);
        assert_eq!(times.percentile(99), 99);
        assert_eq!(times.percentile(100), 100);
        assert_eq!(times.most(), 100);
        times.record(Duration::from_secs(1));
        assert_eq!(times.most(), 1_000_000_000);
        assert_eq!(times.percentile(100), 1_000_000_000);
    }
}
