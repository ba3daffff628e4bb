//! What the upkeep of a pool remembers from one round to the next.

use std::time::Instant;

use forebay_core::Decay;
use forebay_core::pressure::Gauge;

/// What upkeep remembers.
#[derive(Debug)]
pub(in crate::pool) struct Upkeep {
    pub(in crate::pool) begun: Instant,
    pub(in crate::pool) decay: Decay,
    pub(in crate::pool) gauge: Gauge,
    /// Whether magazines hold little at present.
    pub(in crate::pool) pressed: bool,
}

impl Upkeep {
    pub(in crate::pool) fn new() -> Self {
        Self {
            begun: Instant::now(),
            decay: Decay::default(),
            gauge: Gauge::default(),
            pressed: false,
        }
    }
}
