//! The limit of a pool, its pressure thresholds, and the bytes it holds. All are read without a lock, so that no reader
//! waits for a thread that is inside the driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::pressure::Thresholds;
use forebay_core::{Bytes, PageSize};

use crate::Settings;

/// The limit and the thresholds, as the settings have them. Each value is valid by itself; a reader may see some values
/// from before a change of settings and some from after.
#[derive(Debug, Default)]
pub(in crate::pool) struct Limits {
    limit: AtomicU64,
    low: AtomicU64,
    moderate: AtomicU64,
    high: AtomicU64,
    critical: AtomicU64,
}

impl Limits {
    /// Takes over the values of `settings` for a device of `total` bytes, whose smallest page is `granule`. A pool holds
    /// whole pages, so the limit is rounded up to the next, if the device has that: what is as large as the limit fits.
    pub(in crate::pool) fn set(&self, total: Bytes, granule: PageSize, settings: &Settings) {
        let limit = settings.limit_of(total);
        let limit = limit.checked_align_up(granule.alignment()).unwrap_or(limit).min(total);
        let set = |mark: &AtomicU64, bytes: Bytes| mark.store(bytes.get(), Ordering::Relaxed);
        set(&self.limit, limit);
        set(&self.low, settings.pressure_low().of(limit));
        set(&self.moderate, settings.pressure_moderate().of(limit));
        set(&self.high, settings.pressure_high().of(limit));
        set(&self.critical, settings.pressure_critical().of(limit));
    }

    /// The most that the pools of the group may hold together.
    pub(in crate::pool) fn limit(&self) -> Bytes {
        read(&self.limit)
    }

    /// The bytes held at which each pressure level begins.
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

/// The bytes a pool holds, as of the last change. Clones share the value.
#[derive(Clone, Debug, Default)]
pub(in crate::pool) struct HeldGauge(Arc<AtomicU64>);

impl HeldGauge {
    /// Sets the bytes held. The caller holds the heap lock, so values arrive in order.
    pub(in crate::pool) fn set(&self, held: Bytes) {
        self.0.store(held.get(), Ordering::Relaxed);
    }

    /// The bytes held.
    pub(in crate::pool) fn get(&self) -> Bytes {
        read(&self.0)
    }
}
