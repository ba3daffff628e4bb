//! Groups: pools that share one limit, and what they hold together. Most pools are a group of one.
//!
//! ```text
//!   Group         limits, quota, sums and peaks over all pools  atomics, no lock
//!   PoolGauges    one pool's part of these sums                 in the heap of the pool, under its lock
//! ```
//!
//! A pool [reserves](crate::sync::quota) what it is about to take from the device before it takes it, so that the pools
//! of a group never exceed the limit, however their threads interleave.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use forebay_core::Bytes;

use crate::pool::common::limits::Limits;
use crate::sync::lock;
use crate::sync::map::Side;
use crate::sync::quota::Quota;

/// Bytes of small and of large blocks.
pub(in crate::pool) type BySide = [Bytes; 2];

pub(in crate::pool) fn sum(sides: BySide) -> Bytes {
    let [small, large] = sides;
    small.saturating_add(large)
}

/// A figure's current value and its peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeakStatistics {
    /// The current bytes.
    pub now: Bytes,
    /// The most bytes at once, since the first pool of the group was made or the peaks were reset.
    pub peak: Bytes,
}

/// The figures of all pools that share a limit, made by [`Pool::group_statistics`](crate::Pool::group_statistics). Peaks are
/// those of the sums, not sums of peaks. Guarded blocks, and memory on its way back to the device, count as large.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupStatistics {
    /// Bytes held from the device.
    pub held: PeakStatistics,
    /// Of those, bytes for small blocks: up to 256 KiB.
    pub small_held: PeakStatistics,
    /// Of those, bytes for large blocks.
    pub large_held: PeakStatistics,
    /// Bytes in live or cached blocks.
    pub out: PeakStatistics,
    /// Of those, bytes in small blocks.
    pub small_out: PeakStatistics,
    /// Of those, bytes in large blocks.
    pub large_out: PeakStatistics,
}

/// A sum over the pools of a group, and its peak.
#[derive(Debug, Default)]
struct Gauge {
    now: AtomicU64,
    peak: AtomicU64,
}

impl Gauge {
    /// Adds `more` bytes; wraps to subtract. The sum is never below zero: each pool only takes away what it added.
    #[inline]
    fn add(&self, more: u64) {
        let now = self.now.fetch_add(more, Ordering::Relaxed).wrapping_add(more);
        // Most changes are no peak, and a load is cheaper than an exchange. Fewer bytes are never a peak, even after a
        // reset in between.
        if now > self.peak.load(Ordering::Relaxed) && more.cast_signed() > 0 {
            self.peak.fetch_max(now, Ordering::Relaxed);
        }
    }

    fn now(&self) -> Bytes {
        Bytes::new(self.now.load(Ordering::Relaxed))
    }

    fn reset_peak(&self) {
        self.peak.store(0, Ordering::Relaxed);
        // A change in between has set its own peak, or is in the sum.
        self.peak.fetch_max(self.now.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn statistics(&self) -> PeakStatistics {
        let now = self.now();
        PeakStatistics { now, peak: Bytes::new(self.peak.load(Ordering::Relaxed)).max(now) }
    }
}

/// Sums by side, and over both.
#[derive(Debug, Default)]
struct SideGauges {
    small: Gauge,
    large: Gauge,
    both: Gauge,
}

impl SideGauges {
    /// Replaces the bytes of one pool on one side.
    #[inline]
    fn replace(&self, side: Side, before: &mut Bytes, after: Bytes) {
        let more = after.get().wrapping_sub(before.get());
        if more == 0 {
            return;
        }
        *before = after;
        self.both.add(more);
        match side {
            Side::Small => self.small.add(more),
            Side::Large => self.large.add(more),
        }
    }

    /// Replaces the bytes of one pool on both sides. The sum changes once, so bytes that
    /// move from one side to the other make no peak.
    fn replace_both(&self, before: &mut BySide, after: BySide) {
        let more = |before: Bytes, after: Bytes| after.get().wrapping_sub(before.get());
        self.both.add(more(sum(*before), sum(after)));
        self.small.add(more(before[0], after[0]));
        self.large.add(more(before[1], after[1]));
        *before = after;
    }

    fn all(&self) -> [&Gauge; 3] {
        [&self.both, &self.small, &self.large]
    }
}

/// What the pools of a group share.
#[derive(Debug, Default)]
pub(in crate::pool) struct Group {
    /// The limit of all pools together, as the settings of the first one have it.
    pub(in crate::pool) limits: Limits,
    /// Bytes held and reserved.
    pub(in crate::pool) quota: Quota,
    /// Of those, bytes that none of the pools holds. The lock makes replacing them one step: otherwise two threads
    /// could subtract bytes that are not yet added, and the quota would wrap.
    outside: Mutex<Bytes>,
    held: SideGauges,
    out: SideGauges,
}

impl Group {
    /// Bytes held by all pools.
    pub(in crate::pool) fn held(&self) -> Bytes {
        self.held.both.now()
    }

    pub(in crate::pool) fn statistics(&self) -> GroupStatistics {
        let [held, small_held, large_held] = self.held.all().map(Gauge::statistics);
        let [out, small_out, large_out] = self.out.all().map(Gauge::statistics);
        GroupStatistics { held, small_held, large_held, out, small_out, large_out }
    }

    /// Counts `bytes` that none of the pools holds against the limit, in place of those of the last call.
    pub(in crate::pool) fn set_outside(&self, bytes: Bytes) {
        let mut outside = lock(&self.outside);
        self.quota.replace(*outside, bytes);
        *outside = bytes;
    }

    pub(in crate::pool) fn reset_peaks(&self) {
        self.held.all().into_iter().chain(self.out.all()).for_each(Gauge::reset_peak);
    }
}

/// One pool's part in the sums of its group. Under the heap lock of the pool.
#[derive(Debug)]
pub(in crate::pool) struct PoolGauges {
    group: Arc<Group>,
    held: BySide,
    out: BySide,
}

impl PoolGauges {
    pub(in crate::pool) fn new(group: &Arc<Group>) -> Self {
        let none = [Bytes::ZERO; 2];
        Self { group: Arc::clone(group), held: none, out: none }
    }

    /// Publishes the bytes in live or cached blocks of one side. Returns those of both.
    #[inline]
    pub(in crate::pool) fn set_out(&mut self, side: Side, bytes: Bytes) -> Bytes {
        let [small, large] = &mut self.out;
        let before = if side == Side::Small { small } else { large };
        self.group.out.replace(side, before, bytes);
        sum(self.out)
    }

    /// Publishes the bytes held.
    pub(in crate::pool) fn set_held(&mut self, held: BySide) {
        self.group.held.replace_both(&mut self.held, held);
    }
}

impl Drop for PoolGauges {
    /// The pool has returned its memory.
    fn drop(&mut self) {
        let nothing = [Bytes::ZERO; 2];
        self.group.out.replace_both(&mut self.out, nothing);
        self.set_held(nothing);
    }
}
