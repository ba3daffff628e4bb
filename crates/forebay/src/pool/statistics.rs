//! Figures: what happened in a pool, and how it stands.

use core::time::Duration;
use std::collections::BTreeMap;
use std::time::Instant;

use forebay_core::Bytes;
use forebay_hal::Call;

use super::map::UNIT_SHIFT;
use super::shared::Shared;
use super::shelf::{ClassCounts, Counts};

/// How often the pool called the driver, and over what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverLog {
    counts: BTreeMap<(Call, Bytes), u64>,
    time: Duration,
}

impl DriverLog {
    /// Makes one call over one page or range of `size`, and notes it.
    pub(crate) fn make<T>(&mut self, call: Call, size: Bytes, make: impl FnOnce() -> T) -> T {
        *self.counts.entry((call, size)).or_default() += 1;
        let begun = Instant::now();
        let made = make();
        self.time = self.time.saturating_add(begun.elapsed());
        made
    }

    /// How long all of them took, by the clock.
    pub fn time(&self) -> Duration {
        self.time
    }

    /// Each kind of call, the size it was over, and how often it was made.
    pub fn entries(&self) -> impl Iterator<Item = (Call, Bytes, u64)> {
        self.counts.iter().map(|(&(call, size), &count)| (call, size, count))
    }

    /// How often a kind of call was made.
    pub fn of(&self, call: Call) -> u64 {
        self.entries().filter(|&(kind, ..)| kind == call).map(|(.., count)| count).sum()
    }
}

/// How a pool stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Bytes in blocks, rounding counted.
    pub live: Bytes,
    /// The most bytes ever out of the heap at once, in blocks or at hand in magazines.
    pub peak_out: Bytes,
    /// Bytes asked for by live blocks.
    pub requested: Bytes,
    /// Bytes at hand in magazines.
    pub cached: Bytes,
    /// Bytes taken from the device.
    pub held: Bytes,
    /// The most bytes ever taken from the device at once.
    pub peak_held: Bytes,
    /// Blocks given out.
    pub allocations: u64,
    /// Blocks taken back.
    pub frees: u64,
    /// Allocations that needed nothing of the driver but, at most, one stream to wait for another.
    pub hits: u64,
    /// Of those, the ones that a magazine had.
    pub magazine_hits: u64,
    /// Requests that no hole held.
    pub misses: u64,
    /// Times a stream was made to wait for another.
    pub waits: u64,
    /// Calls of the driver.
    pub driver: DriverLog,
}

/// The figures of a pool.
pub(super) fn of(shared: &Shared) -> Statistics {
    let mut sum = Counts::default();
    for counts in shared.counts().values() {
        sum.add(counts);
    }
    let total = |of: fn(&ClassCounts) -> u64| -> u64 {
        sum.classes.iter().map(of).fold(0, u64::wrapping_add)
    };
    let driver = shared.works().log.clone();
    let cached = shared.cached();
    let heap = shared.heap();
    let allocations = total(|class| class.allocations);
    let bytes = |units: u64| Bytes::new(units << UNIT_SHIFT);
    Statistics {
        live: bytes(total(|class| class.live)),
        peak_out: heap.peak_out,
        requested: Bytes::new(sum.requested),
        cached,
        held: heap.held(),
        peak_held: heap.peak_held,
        allocations,
        frees: total(|class| class.frees),
        hits: allocations.saturating_sub(heap.misses),
        magazine_hits: allocations.saturating_sub(heap.misses.saturating_add(heap.heap_hits)),
        misses: heap.misses,
        waits: heap.waits,
        driver,
    }
}
