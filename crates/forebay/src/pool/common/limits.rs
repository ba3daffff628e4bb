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
    /// Where the pressure becomes normal, moderate, high and critical.
    levels: [AtomicU64; 4],
}

impl Limits {
    /// Takes over the values of `settings` for a device of `total` bytes, whose smallest page is `granule`. A pool
    /// holds whole pages, so the limit is rounded up to a whole page if the device has it: a block that large fits.
    pub(in crate::pool) fn set(&self, total: Bytes, granule: PageSize, settings: &Settings) {
        let limit = settings.limit_of(total);
        let limit = limit.checked_align_up(granule.alignment()).unwrap_or(limit).min(total);
        self.limit.store(limit.get(), Ordering::Relaxed);
        let levels = [
            settings.pressure_low(),
            settings.pressure_moderate(),
            settings.pressure_high(),
            settings.pressure_critical(),
        ];
        for (level, from) in self.levels.iter().zip(levels) {
            level.store(from.of(limit).get(), Ordering::Relaxed);
        }
    }

    /// The most that the pools of the group may hold together.
    pub(in crate::pool) fn limit(&self) -> Bytes {
        read(&self.limit)
    }

    /// The bytes held at which each pressure level begins.
    pub(in crate::pool) fn thresholds(&self) -> Thresholds {
        let [low, moderate, high, critical] = self.levels.each_ref().map(read);
        Thresholds { low, moderate, high, critical }
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

    pub(in crate::pool) fn get(&self) -> Bytes {
        read(&self.0)
    }
}
