//! All figures of a GPU: under PyTorch's names for the adapter, and as JSON for the Python package.

use core::ffi::{c_char, c_int};
use std::collections::BTreeMap;
use std::sync::Mutex;

use forebay::{PinnedPool, Pool, Settings, Statistics};
use forebay_sync::lock;
use serde::{Serialize, Serializer};

use super::counters::{DeviceStatistics, add_gone, number};
use super::private::{self, PoolNumber};
use crate::device_pools;
use crate::error::code_of;
use crate::text::{into_c_string, write_optional};

/// The statistics of a pool.
#[derive(Serialize)]
struct PoolStatistics {
    statistics: Statistics,
    pages: u64,
}

impl PoolStatistics {
    fn of(pool: &Pool) -> Self {
        Self { statistics: pool.statistics(), pages: pool.page_count() }
    }
}

/// A private pool: its number, and its statistics.
#[derive(Serialize)]
struct PrivatePool {
    first: u64,
    second: u64,
    #[serde(flatten)]
    pool: PoolStatistics,
}

/// What [`forebay_torch_statistics`] returns.
#[derive(Serialize)]
struct Figures {
    #[serde(flatten)]
    pool: PoolStatistics,
    peak_out_bytes: u64,
    peak_held_bytes: u64,
    refusals: u64,
    limit_bytes: u64,
    #[serde(serialize_with = "as_object")]
    settings: Settings,
    graphs: Vec<PrivatePool>,
}

fn as_object<S: Serializer>(settings: &Settings, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(settings.entries().map(|entry| (entry.key.name(), entry.value)))
}

/// The figures of GPU `device`: an object with `statistics` (as in form `forebay.pool.v1`) and `pages` of
/// its pool, `peak_out_bytes` and `peak_held_bytes` since the last reset, `refusals`, `limit_bytes`,
/// `settings` (an object of texts), and `graphs` (a list of objects with `first`, `second`, `statistics`
/// and `pages`). Text for `forebay_string_free`; null where there is no such GPU, with the reason in
/// [`forebay_last_error`](crate::error::forebay_last_error).
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_statistics(device: c_int) -> *mut c_char {
    let mut text = core::ptr::null_mut();
    code_of(|| {
        let pool = device_pools::pool(device)?;
        let group = pool.group_statistics();
        let private = private::pools_of(device).into_iter();
        let graphs = private.map(|(_, PoolNumber { first, second }, pool)| PrivatePool {
            first,
            second,
            pool: PoolStatistics::of(&pool),
        });
        let figures = Figures {
            pool: PoolStatistics::of(pool),
            peak_out_bytes: group.out.peak.get(),
            peak_held_bytes: group.held.peak.get(),
            refusals: device_pools::out_of_memory_count(device),
            limit_bytes: pool.limit().get(),
            settings: pool.settings(),
            graphs: graphs.collect(),
        };
        let json = serde_json::to_string(&figures).map_err(|error| error.to_string())?;
        text = into_c_string(json)?;
        Ok(())
    });
    text
}

/// Stands for a GPU where the figures of pinned memory are asked for.
const PINNED: c_int = -1;

/// The pools of which the figures of `device` are made, beside private pools. A GPU that is not used has none, and gets no
/// context by being asked.
fn main_pools(device: c_int) -> impl Iterator<Item = &'static Pool> {
    let pinned = device_pools::existing_pinned().filter(move |_| device == PINNED);
    device_pools::existing_pool(device).into_iter().chain(pinned.map(PinnedPool::raw))
}

/// What only grows, at the last reset.
static TOTALS: Mutex<BTreeMap<c_int, DeviceStatistics>> = Mutex::new(BTreeMap::new());

/// The largest figures that were seen since the last reset of peaks.
static SEEN: Mutex<BTreeMap<c_int, DeviceStatistics>> = Mutex::new(BTreeMap::new());

impl DeviceStatistics {
    /// The figures of a GPU: of its own pool and of its private pools, with the peaks of their sum. Or, for [`PINNED`], of
    /// all pools of pinned memory, with the sum of their peaks.
    fn of(device: c_int) -> Self {
        let mut told = Self::default();
        main_pools(device).for_each(|pool| told.add(pool));
        add_gone(device, &mut told);
        for (.., pool) in private::pools_of(device) {
            told.add(&pool);
        }
        // Counts have no peak of their own: the largest that was seen.
        let mut seen = lock(&SEEN);
        let seen = seen.entry(device).or_default();
        for (now, seen) in told.by_side().into_iter().zip(seen.by_side()) {
            for (now, seen) in now.iter_mut().zip(seen) {
                seen.peak = seen.peak.max(now.current);
                now.peak = seen.peak;
            }
        }
        let mut peaks = [[0_i64; 2]; 3];
        for group in main_pools(device).map(Pool::group_statistics) {
            let pairs = [
                [group.out, group.held],
                [group.small_out, group.small_held],
                [group.large_out, group.large_held],
            ];
            for (sum, one) in peaks.iter_mut().flatten().zip(pairs.into_iter().flatten()) {
                *sum = sum.saturating_add(number(one.peak.get()));
            }
        }
        for (at, [out, held]) in peaks.into_iter().enumerate() {
            let (allocated, requested) =
                (&mut told.allocated_bytes[at], &mut told.requested_bytes[at]);
            allocated.peak = out;
            told.reserved_bytes[at].peak = held;
            // As much of the peak as of all blocks ever.
            let part = i128::from(allocated.peak) * i128::from(requested.allocated)
                / i128::from(allocated.allocated.max(1));
            requested.peak = requested.peak.max(i64::try_from(part).unwrap_or(i64::MAX));
        }
        told
    }
}

/// Tells all figures of GPU `device`, or of the pinned memory of all GPUs where it is -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_stats(
    device: c_int,
    figures: *mut DeviceStatistics,
) -> c_int {
    code_of(|| {
        let mut told = DeviceStatistics::of(device);
        if let Some(before) = lock(&TOTALS).get_mut(&device) {
            for (now, before) in told.by_side().into_iter().zip(before.by_side()) {
                for (now, before) in now.iter_mut().zip(before) {
                    now.allocated = now.allocated.saturating_sub(before.allocated);
                    now.freed = now.freed.saturating_sub(before.freed);
                }
            }
            for (now, before) in told.totals().into_iter().zip(before.totals()) {
                *now = now.saturating_sub(*before);
            }
        }
        // SAFETY: as the caller promised.
        unsafe { write_optional(figures, told) };
        Ok(())
    })
}

/// Lets what only grows begin anew at 0, for what [`forebay_torch_stats`] tells of `device`.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_reset_totals(device: c_int) -> c_int {
    code_of(|| {
        let told = DeviceStatistics::of(device);
        lock(&TOTALS).insert(device, told);
        Ok(())
    })
}

/// Lets the peaks begin anew, for what [`forebay_torch_stats`] tells of `device`.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_reset_peaks(device: c_int) -> c_int {
    code_of(|| {
        main_pools(device).for_each(Pool::reset_group_peaks);
        lock(&SEEN).remove(&device);
        Ok(())
    })
}
