//! Groups: pools that share one limit, and the figures of what they hold together. Most pools are a group of one.
//!
//! ```text
//!   Group         limits, sums and peaks over all pools         atomics, no lock
//!   GroupShare    one pool's part of these sums                 in the heap of the pool, under its lock
//! ```
//!
//! A pool reserves what it is about to take from the device before it does so, so that the pools of a group exceed the
//! limit in no order of their threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::Bytes;

use crate::pool::common::limits::Limits;

/// Bytes of small and of large blocks.
pub(in crate::pool) type BySide = [Bytes; 2];

fn sum(sides: BySide) -> Bytes {
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
    claimed: AtomicU64,
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
        self.claimed.fetch_add(bytes.get().wrapping_sub(before), Ordering::Relaxed);
    }

    pub(in crate::pool) fn reset_peaks(&self) {
        self.held.all().into_iter().chain(self.out.all()).for_each(Gauge::reset_peak);
    }
}

/// One pool's part in its group. Under the heap lock of the pool.
#[derive(Debug)]
pub(in crate::pool) struct GroupShare {
    group: Arc<Group>,
    held: BySide,
    out: BySide,
    /// Bytes held and reserved.
    claimed: Bytes,
    /// Bytes that the pool is about to take from the device.
    reserved: Bytes,
}

impl GroupShare {
    pub(in crate::pool) fn new(group: &Arc<Group>) -> Self {
        let none = [Bytes::ZERO; 2];
        let (claimed, reserved) = (Bytes::ZERO, Bytes::ZERO);
        Self { group: Arc::clone(group), held: none, out: none, claimed, reserved }
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
        self.claim();
    }

    /// Publishes the bytes held and reserved, after one of them has changed.
    fn claim(&mut self) {
        let claimed = sum(self.held).saturating_add(self.reserved);
        let more = claimed.get().wrapping_sub(self.claimed.get());
        self.group.claimed.fetch_add(more, Ordering::Relaxed);
        self.claimed = claimed;
    }

    /// Bytes that all pools of the group hold or have reserved, this one too.
    pub(in crate::pool) fn claimed_by_all(&self) -> Bytes {
        Bytes::new(self.group.claimed.load(Ordering::Relaxed))
    }

    /// Keeps `bytes` reserved that the pool holds no longer. The caller publishes what is held next.
    pub(in crate::pool) fn keep_reserved(&mut self, bytes: Bytes) {
        self.reserved = self.reserved.saturating_add(bytes);
    }

    /// Bytes that the other pools of the group hold or have reserved.
    pub(in crate::pool) fn others(&self) -> Bytes {
        let claimed = self.group.claimed.load(Ordering::Relaxed);
        Bytes::new(claimed.saturating_sub(self.claimed.get()))
    }

    /// Reserves `bytes` for memory that the pool is about to take from the device. Returns `false` if the group would
    /// exceed `limit` by it.
    #[must_use]
    pub(in crate::pool) fn reserve(&mut self, bytes: Bytes, limit: Bytes) -> bool {
        let more = |claimed: u64| {
            let claimed = Bytes::new(claimed).checked_add(bytes)?;
            (claimed <= limit || bytes.is_zero()).then_some(claimed.get())
        };
        let relaxed = Ordering::Relaxed;
        let reserved = self.group.claimed.fetch_update(relaxed, relaxed, more).is_ok();
        if reserved {
            self.reserved = self.reserved.saturating_add(bytes);
            self.claimed = self.claimed.saturating_add(bytes);
        }
        reserved
    }

    /// Ends the reservation of `bytes`: the pool holds them now, or could not get them. In the first case the caller
    /// publishes what is held next, so that the bytes are never uncounted.
    pub(in crate::pool) fn unreserve(&mut self, bytes: Bytes) {
        self.reserved = self.reserved.saturating_sub(bytes);
    }
}

impl Drop for GroupShare {
    /// The pool has returned its memory.
    fn drop(&mut self) {
        self.reserved = Bytes::ZERO;
        self.set_out([Bytes::ZERO; 2]);
        self.set_held([Bytes::ZERO; 2]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Bytes = Bytes::mib(100);

    #[test]
    fn what_one_pool_reserves_no_other_gets() {
        let group = Arc::new(Group::default());
        let [mut one, mut two] = [(); 2].map(|()| GroupShare::new(&group));
        // Both have seen room for 60 MiB.
        assert_eq!((one.others(), two.others()), (Bytes::ZERO, Bytes::ZERO));
        assert!(one.reserve(Bytes::mib(60), LIMIT));
        assert!(!two.reserve(Bytes::mib(60), LIMIT));
        assert!(two.reserve(Bytes::mib(40), LIMIT) && !two.reserve(Bytes::new(1), LIMIT));
        assert_eq!((one.others(), two.others()), (Bytes::mib(40), Bytes::mib(60)));
        // It comes: what was reserved is held.
        one.unreserve(Bytes::mib(60));
        one.set_held([Bytes::mib(20), Bytes::mib(40)]);
        assert_eq!((two.others(), group.held()), (Bytes::mib(60), Bytes::mib(60)));
        // It does not come: others may have it.
        two.unreserve(Bytes::mib(40));
        two.set_held([Bytes::ZERO; 2]);
        assert_eq!(one.others(), Bytes::ZERO);
        // What is held outside counts like another pool's.
        group.set_outside(Bytes::mib(90));
        group.set_outside(Bytes::mib(30));
        assert!(!two.reserve(Bytes::mib(11), LIMIT) && two.others() == Bytes::mib(90));
        group.set_outside(Bytes::ZERO);
        // Moving pages takes nothing, even if the limit was lowered.
        assert!(one.reserve(Bytes::ZERO, Bytes::mib(1)) && !one.reserve(Bytes::mib(41), LIMIT));
        drop(one);
        assert_eq!((two.others(), group.held()), (Bytes::ZERO, Bytes::ZERO));
    }
}
