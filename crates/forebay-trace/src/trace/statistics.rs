//! The statistics of a recording, computed without playing it.

use forebay_core::Bytes;

use super::{Event, Trace};

/// The figures of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// The number of allocations.
    pub allocations: u64,
    /// The number of frees.
    pub frees: u64,
    /// The number of blocks never freed.
    pub never_freed: u64,
    /// The peak of requested live bytes, the lower bound for any allocator.
    pub peak_requested: Bytes,
    /// The peak number of live blocks.
    pub peak_blocks: u64,
    /// The largest block.
    pub largest: Bytes,
    /// The number of streams used.
    pub streams: u64,
}

impl Statistics {
    pub(super) fn of(trace: &Trace) -> Self {
        let mut sums = Self { streams: trace.streams().len() as u64, ..Self::default() };
        let mut live = Bytes::ZERO;
        for event in trace.events() {
            match event {
                Event::Allocate { size, .. } => {
                    sums.allocations += 1;
                    // The builder saw that what is live fits.
                    live = live.saturating_add(size);
                    sums.largest = sums.largest.max(size);
                    sums.peak_requested = sums.peak_requested.max(live);
                    sums.peak_blocks = sums.peak_blocks.max(sums.allocations - sums.frees);
                }
                Event::Free { block, .. } => {
                    sums.frees += 1;
                    live = live.saturating_sub(trace.size(block));
                }
            }
        }
        sums.never_freed = sums.allocations - sums.frees;
        sums
    }
}

#[cfg(test)]
mod tests {
    use crate::TraceBuilder;

    use super::*;

    #[test]
    fn the_peak_is_what_was_live_at_once() {
        let mut builder = TraceBuilder::new("peak");
        builder.allocate(0, Bytes::new(100), 0).unwrap();
        builder.allocate(1, Bytes::new(50), 1).unwrap();
        builder.free(0, 0).unwrap();
        builder.allocate(2, Bytes::new(70), 0).unwrap();
        let sums = builder.finish().statistics();
        assert_eq!(sums.peak_requested, Bytes::new(150));
        assert_eq!((sums.allocations, sums.frees, sums.never_freed), (3, 1, 2));
        assert_eq!((sums.peak_blocks, sums.largest, sums.streams), (2, Bytes::new(100), 2));
    }
}
