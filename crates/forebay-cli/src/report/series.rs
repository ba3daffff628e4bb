//! Values over time, reduced to the least and the most of a bounded number of buckets.

use super::data::Series;

/// The most buckets: eight for each pixel of a wide screen, so that zooming in shows more.
pub(super) const MAX_BUCKETS: u64 = 1 << 14;

/// How many events go into a bucket, of so many in all.
pub(super) fn events_per_bucket(events: u64) -> u64 {
    events.div_ceil(MAX_BUCKETS).max(1)
}

/// A series in the making. Values come in order of time, one for each event.
#[derive(Debug)]
pub(super) struct SeriesBuilder {
    series: Series,
    per_bucket: u64,
    in_bucket: u64,
    seen: u64,
}

impl SeriesBuilder {
    /// A series without values.
    pub(super) fn new(name: &'static str, events: u64) -> Self {
        let series = Series { name, min: Vec::new(), max: Vec::new(), peak_bytes: 0, peak_at: 0 };
        Self { series, per_bucket: events_per_bucket(events), in_bucket: 0, seen: 0 }
    }

    /// The value after the next event.
    pub(super) fn push(&mut self, value: u64) {
        let Series { min, max, peak_bytes, peak_at, .. } = &mut self.series;
        match (min.last_mut(), max.last_mut()) {
            (Some(min), Some(max)) if self.in_bucket < self.per_bucket => {
                *min = value.min(*min);
                *max = value.max(*max);
            }
            _ => {
                min.push(value);
                max.push(value);
                self.in_bucket = 0;
            }
        }
        self.in_bucket += 1;
        if value > *peak_bytes {
            (*peak_bytes, *peak_at) = (value, self.seen);
        }
        self.seen += 1;
    }

    /// The series.
    pub(super) fn finish(self) -> Series {
        self.series
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_value_is_within_its_bucket(values in prop::collection::vec(any::<u64>(), 0..400), claimed in 0_u64..1 << 24) {
            let mut builder = SeriesBuilder::new("test", claimed);
            values.iter().for_each(|&value| builder.push(value));
            let series = builder.finish();
            let per = usize::try_from(events_per_bucket(claimed)).unwrap();
            prop_assert_eq!(series.max.len(), values.len().div_ceil(per));
            for (bucket, chunk) in values.chunks(per).enumerate() {
                prop_assert_eq!(series.min[bucket], *chunk.iter().min().unwrap());
                prop_assert_eq!(series.max[bucket], *chunk.iter().max().unwrap());
            }
            let peak = values.iter().copied().max().unwrap_or(0);
            prop_assert_eq!(series.peak_bytes, peak);
            let first = values.iter().position(|&value| value == peak).unwrap_or(0);
            prop_assert!(series.peak_at == first as u64 || peak == 0);
        }
    }

    #[test]
    fn a_million_events_are_few_buckets() {
        for events in [0, 1, MAX_BUCKETS, MAX_BUCKETS + 1, 1_000_000, 1 << 26] {
            assert!(events.div_ceil(events_per_bucket(events)) <= MAX_BUCKETS);
        }
        assert_eq!([1, MAX_BUCKETS].map(events_per_bucket), [1, 1]);
    }
}
