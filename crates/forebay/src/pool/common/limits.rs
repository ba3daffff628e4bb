//! Limits: the limit of a pool, where its levels of pressure begin, and how much it holds. Read without a lock, so that nobody waits for the driver to learn them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::Bytes;
use forebay_core::pressure::Thresholds;

use crate::Settings;

/// The limit and the levels, as settings have them. Each is right by itself; read while settings
/// change, some may be of before and some of after.
#[derive(Debug, Default)]
pub(in crate::pool) struct Limits {
    limit: AtomicU64,
    low: AtomicU64,
    moderate: AtomicU64,
    high: AtomicU64,
    critical: AtomicU64,
}

impl Limits {
    pub(in crate::pool) fn new(limit: Bytes, settings: &Settings) -> Self {
        let limits = Self::default();
        limits.set(limit, settings);
        limits
    }

    /// Notes what settings say now.
    pub(in crate::pool) fn set(&self, limit: Bytes, settings: &Settings) {
        let set = |mark: &AtomicU64, bytes: Bytes| mark.store(bytes.get(), Ordering::Relaxed);
        set(&self.limit, limit);
        set(&self.low, settings.pressure_low().of(limit));
        set(&self.moderate, settings.pressure_moderate().of(limit));
        set(&self.high, settings.pressure_high().of(limit));
        set(&self.critical, settings.pressure_critical().of(limit));
    }

    /// The most the pool may hold.
    pub(in crate::pool) fn limit(&self) -> Bytes {
        read(&self.limit)
    }

    /// Where levels of pressure begin.
    pub(in crate::pool) fn thresholds(&self) -> Thresholds {
        Thresholds {
            low: read(&self.low),
            moderate: read(&self.moderate),
            high: read(&self.high),
            critical: read(&self.critical),
        }
    }
}

fn read(mark: &AtomicU64) -> Bytes {
    Bytes::new(mark.load(Ordering::Relaxed))
}

/// What a pool holds, as it was after the last change. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(in crate::pool) struct HeldGauge(Arc<AtomicU64>);

impl HeldGauge {
    /// Notes it, under the heap's lock.
    pub(in crate::pool) fn set(&self, held: Bytes) {
        self.0.store(held.get(), Ordering::Relaxed);
    }

    /// What is held.
    pub(in crate::pool) fn get(&self) -> Bytes {
        read(&self.0)
    }
}
