//! The ledger: what a pool holds from the device and what is out of its holes, with the peaks, and its share of the limit.
//!
//! ```text
//!   held = pages in the address spaces + outgoing + guarded          share = held + reserved, see `sync::quota`
//! ```

use std::sync::Arc;

use forebay_core::Bytes;

use crate::pool::common::group::{BySide, Group, PoolGauges, sum};
use crate::pool::common::limits::HeldGauge;
use crate::pool::heap::scope_peaks::ScopePeaks;
use crate::sync::map::Side;
use crate::sync::quota::Share;

/// The bytes of a pool.
#[derive(Debug)]
pub(in crate::pool) struct Ledger {
    /// Bytes of pages that are out of the address spaces and not yet returned to the device.
    outgoing: Bytes,
    /// Bytes of guarded blocks: their pages are in no address space.
    guarded: Bytes,
    /// The most bytes ever out of the holes at once.
    pub(in crate::pool) peak_out: Bytes,
    /// The most bytes out of the holes since upkeep last read it.
    pub(in crate::pool) window_peak: Bytes,
    /// The most bytes out of the holes since each scope began.
    pub(in crate::pool) scopes: ScopePeaks,
    /// The most bytes ever taken from the device at once.
    pub(in crate::pool) peak_held: Bytes,
    /// The bytes held, for readers without the heap lock.
    held_gauge: HeldGauge,
    /// This pool's part in the figures of its group.
    gauges: PoolGauges,
    /// This pool's part of the limit: what it holds and what is reserved for it.
    pub(in crate::pool) share: Share,
}

impl Ledger {
    pub(in crate::pool) fn new(group: &Arc<Group>) -> Self {
        Self {
            outgoing: Bytes::ZERO,
            guarded: Bytes::ZERO,
            peak_out: Bytes::ZERO,
            window_peak: Bytes::ZERO,
            scopes: ScopePeaks::default(),
            peak_held: Bytes::ZERO,
            held_gauge: HeldGauge::default(),
            gauges: PoolGauges::new(group),
            share: Share::new(&group.quota),
        }
    }

    /// The bytes held, for readers without the heap lock.
    pub(in crate::pool) fn held_gauge(&self) -> HeldGauge {
        self.held_gauge.clone()
    }

    /// Bytes held by side, with `backed` bytes of pages. Those of no address space count as large.
    pub(in crate::pool) fn held(&self, [small, large]: BySide) -> BySide {
        [small, large.saturating_add(self.outgoing).saturating_add(self.guarded)]
    }

    /// Bytes out of the holes, of which `taken` are in address spaces.
    pub(in crate::pool) fn out(&self, taken: BySide) -> Bytes {
        sum(taken).saturating_add(self.guarded)
    }

    /// Publishes what is out of the holes of a side, of which `taken` bytes are in its address space. Guarded blocks count
    /// as large. Returns what is out of the holes of both sides.
    #[inline]
    pub(in crate::pool) fn set_out(&mut self, side: Side, taken: Bytes) -> Bytes {
        let guarded = if side == Side::Large { self.guarded } else { Bytes::ZERO };
        self.gauges.set_out(side, taken.saturating_add(guarded))
    }

    /// The same after an increase: also updates the peaks.
    #[inline]
    pub(super) fn raise_out(&mut self, side: Side, taken: Bytes) {
        let out = self.set_out(side, taken);
        self.peak_out = self.peak_out.max(out);
        self.window_peak = self.window_peak.max(out);
        self.scopes.note(out);
    }

    /// Publishes what is held, and updates its peak.
    pub(in crate::pool) fn set_held(&mut self, backed: BySide) {
        let by_side = self.held(backed);
        let held = sum(by_side);
        self.held_gauge.set(held);
        self.peak_held = self.peak_held.max(held);
        self.gauges.set_held(by_side);
        self.share.set_held(held);
    }

    /// Bytes of pages that are out of the address spaces and not yet returned to the device.
    pub(in crate::pool) fn outgoing(&self) -> Bytes {
        self.outgoing
    }

    /// Counts `size` bytes that left the address spaces.
    pub(in crate::pool) fn add_outgoing(&mut self, size: Bytes) {
        self.outgoing = self.outgoing.saturating_add(size);
    }

    /// Counts `size` bytes that are in the address spaces again.
    pub(in crate::pool) fn remove_outgoing(&mut self, size: Bytes) {
        self.outgoing = self.outgoing.saturating_sub(size);
    }

    /// Counts `size` bytes as returned to the device. They stay reserved while a request reclaims memory for itself.
    pub(in crate::pool) fn released(&mut self, size: Bytes) {
        self.remove_outgoing(size);
        self.share.released(size);
    }

    /// Sets the bytes of guarded blocks.
    pub(in crate::pool) fn set_guarded(&mut self, size: Bytes) {
        self.guarded = size;
    }
}
