//! The state that upkeep keeps from one round to the next. Guarded by the upkeep lock.

use std::time::Instant;

use forebay_core::pressure::Gauge;
use forebay_core::{Bytes, Decay};
use forebay_hal::StreamHandle;

/// The state of a pool's upkeep.
#[derive(Debug, Default)]
pub(in crate::pool) struct Upkeep {
    pub(in crate::pool) decay: Decay,
    pub(in crate::pool) gauge: Gauge,
    /// How much to keep, if a collection left memory for later because work still used it.
    pub(in crate::pool) collecting: Option<Bytes>,
    /// Bytes that are still to be released because the pressure became critical.
    pub(in crate::pool) to_release: Bytes,
    /// Whether magazines have a small bound because of pressure.
    pub(in crate::pool) under_pressure: bool,
    /// The stream for which a request made the pool grow last, and its serial, if the thread is to grow it further.
    pub(in crate::pool) grown_for: Option<(StreamHandle, u64)>,
    /// When a refusal was last reported in a file.
    pub(in crate::pool) last_report: Option<Instant>,
}
