//! Groups: pools that share one limit, and the figures of what they hold together. Most pools are a group of one.
//!
//! ```text
//!   Group         limits, quota, sums and peaks over all pools  atomics, no lock
//!   PoolGauges    one pool's part of these sums                 in the heap of the pool, under its lock
//! ```
//!
//! A pool [reserves](crate::sync::quota) what it is about to take from the device before it does so, so that the pools of
//! a group exceed the limit in no order of their threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::Bytes;

use crate::pool::common::limits::Limits;
use crate::sync::quota::Quota;

/// Bytes of small and of large blocks.
pub(in crate::pool) type BySide = [Bytes; 2];

pub(in crate::pool) fn sum(sides: BySide) -> Bytes {
    let [small, large] = sides;
    small.saturating_add(large)
}

/// A figure now and at its peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeakFigures {
    /// Bytes now.
    pub now: Bytes,
    /// The most bytes at once, since the first pool of the group was made or the peaks were reset.
    pub peak: Bytes,
}

/// The figures of all pools that share a limit, made by [`Pool::group_figures`](crate::Pool::group_figures). Peaks are
/// those of the sums, not sums of peaks. Memory of guarded blocks, and memory on its way back to the device, counts as
/// that of large blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupFigures {
    /// Bytes held from the device.
    pub held: PeakFigures,
    /// Of those, bytes for small blocks: up to 256 KiB.
    pub small_held: PeakFigures,
    /// Of those, bytes for large blocks.
    pub large_held: PeakFigures,
    /// Bytes in live or cached blocks.
    pub out: PeakFigures,
    /// Of those, bytes in small blocks.
    pub small_out: PeakFigures,
    /// Of those, bytes in large blocks.
    pub large_out: PeakFigures,
}

/// A sum over the pools of a group, and its peak.
#[derive(Debug, Default)]
struct Gauge {
    now: AtomicU64,
    peak: AtomicU64,
}

impl Gauge {
    /// Changes the part of one pool. The sum is never below zero: each pool takes away what it added.
    #[inline]
    fn change(&self, before: Bytes, after: Bytes) {
        if before == after {
            return;
        }
        let more = after.get().wrapping_sub(before.get());
        let now = self.now.fetch_add(more, Ordering::Relaxed).wrapping_add(more);
        // Most changes are no peak, and a load is cheaper than an exchange.
        if now > self.peak.load(Ordering::Relaxed) && after > before {
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

    fn figures(&self) -> PeakFigures {
        let now = self.now();
        PeakFigures { now, peak: Bytes::new(self.peak.load(Ordering::Relaxed)).max(now) }
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
    #[inline]
    fn change(&self, before: BySide, after: BySide) {
        let ([small, large], [small_after, large_after]) = (before, after);
        self.small.change(small, small_after);
        self.large.change(large, large_after);
        self.both.change(sum(before), sum(after));
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
    /// Of those, bytes that are held by none of the pools.
    outside: AtomicU64,
    held: SideGauges,
    out: SideGauges,
}

impl Group {
    /// Bytes held by all pools.
    pub(in crate::pool) fn held(&self) -> Bytes {
        self.held.both.now()
    }

    pub(in crate::pool) fn figures(&self) -> GroupFigures {
        let [held, small_held, large_held] = self.held.all().map(Gauge::figures);
        let [out, small_out, large_out] = self.out.all().map(Gauge::figures);
        GroupFigures { held, small_held, large_held, out, small_out, large_out }
    }

    /// Counts `bytes` that none of the pools holds against the limit, in place of those of the last call.
    pub(in crate::pool) fn set_outside(&self, bytes: Bytes) {
        let before = self.outside.swap(bytes.get(), Ordering::Relaxed);
        self.quota.replace(Bytes::new(before), bytes);
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

    /// Publishes the bytes in live or cached blocks.
    #[inline]
    pub(in crate::pool) fn set_out(&mut self, out: BySide) {
        self.group.out.change(self.out, out);
        self.out = out;
    }

    /// Publishes the bytes held.
    pub(in crate::pool) fn set_held(&mut self, held: BySide) {
        self.group.held.change(self.held, held);
        self.held = held;
    }
}

impl Drop for PoolGauges {
    /// The pool has returned its memory.
    fn drop(&mut self) {
        self.set_out([Bytes::ZERO; 2]);
        self.set_held([Bytes::ZERO; 2]);
    }
}
