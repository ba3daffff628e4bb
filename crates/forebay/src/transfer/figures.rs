//! What an engine has done.

use core::time::Duration;
use std::time::Instant;

use forebay_core::Bytes;

/// What an engine has done in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirectionFigures {
    /// Transfers that are done.
    pub transfers: u64,
    /// Transfers that failed or were cancelled.
    pub failures: u64,
    /// Bytes of the pieces that were copied.
    pub bytes: Bytes,
    /// Bytes of those that were zero, and filled in on the device.
    pub zeros: Bytes,
    /// Calls of the device that were tried again.
    pub retries: u64,
    /// The time during which at least one transfer was under way, up to the last piece being handed over.
    pub busy: Duration,
}

impl DirectionFigures {
    /// Bytes a second while transfers were under way.
    pub fn bandwidth(&self) -> f64 {
        let seconds = self.busy.as_secs_f64();
        #[allow(clippy::cast_precision_loss)] // a figure for people
        let bytes = self.bytes.get() as f64;
        if seconds > 0.0 { bytes / seconds } else { 0.0 }
    }
}

/// What an engine has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferFigures {
    /// From the host to the device.
    pub uploads: DirectionFigures,
    /// From the device to the host.
    pub downloads: DirectionFigures,
    /// Transfers under way.
    pub under_way: u64,
    /// Pinned memory in slots.
    pub pinned: Bytes,
}

/// A transfer that is over, as [`TransferEngine::history`](super::TransferEngine::history) lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferEvent {
    /// When it was handed to the engine.
    pub begun: Instant,
    /// How long it took, up to the last piece being handed over.
    pub took: Duration,
    /// How much was to be copied.
    pub bytes: Bytes,
    /// Whether it went to the device; else from it.
    pub is_upload: bool,
    /// Whether it failed or was cancelled.
    pub failed: bool,
}

/// How far a transfer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The bytes of pieces that were copied on the host and handed over.
    pub moved: Bytes,
    /// All bytes.
    pub total: Bytes,
}
