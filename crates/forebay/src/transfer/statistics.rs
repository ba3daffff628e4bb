//! Statistics of an engine.

use core::time::Duration;
use std::time::Instant;

use forebay_core::Bytes;

use crate::monitor::DirectionTotals;

/// Statistics of an engine in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirectionStatistics {
    /// Completed transfers.
    pub transfers: u64,
    /// Failed or cancelled transfers.
    pub failures: u64,
    /// Bytes of copied pieces.
    pub bytes: Bytes,
    /// Bytes of these that were zero, and filled on the device.
    pub zeros: Bytes,
    /// Retried device calls.
    pub retries: u64,
    /// The time during which at least one transfer was in flight, until its last piece was handed over.
    pub busy: Duration,
}

impl DirectionStatistics {
    /// Bytes per second while transfers were in flight.
    pub fn bandwidth(&self) -> f64 {
        let seconds = self.busy.as_secs_f64();
        #[allow(clippy::cast_precision_loss)] // a figure for people
        let bytes = self.bytes.get() as f64;
        if seconds > 0.0 { bytes / seconds } else { 0.0 }
    }
}

/// Statistics of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferStatistics {
    /// From the host to the device.
    pub uploads: DirectionStatistics,
    /// From the device to the host.
    pub downloads: DirectionStatistics,
    /// Transfers in flight.
    pub under_way: u64,
    /// Pinned memory in slots.
    pub pinned: Bytes,
}

/// A finished transfer, as listed by [`TransferEngine::history`](super::TransferEngine::history).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferEvent {
    /// When it was submitted.
    pub begun: Instant,
    /// Its duration, until its last piece was handed over.
    pub took: Duration,
    /// The bytes to copy.
    pub bytes: Bytes,
    /// Whether it went to the device; otherwise from it.
    pub is_upload: bool,
    /// Whether it failed or was cancelled.
    pub failed: bool,
}

/// The progress of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes of the pieces copied on the host and handed over.
    pub moved: Bytes,
    /// Total bytes.
    pub total: Bytes,
}

impl From<DirectionStatistics> for DirectionTotals {
    fn from(statistics: DirectionStatistics) -> Self {
        Self {
            transfers: statistics.transfers,
            failures: statistics.failures,
            bytes: statistics.bytes.get(),
            busy_ns: u64::try_from(statistics.busy.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}
