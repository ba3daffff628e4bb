//! All figures of a GPU: under PyTorch's names for the adapter, and as JSON for the Python package.

use core::ffi::{c_char, c_int};
use std::collections::BTreeMap;
use std::sync::Mutex;

use forebay::{PinnedPool, Pool, Settings, Statistics};
use forebay_sync::lock;
use serde::{Serialize, Serializer};

use super::adapter::write;
use super::guarded;
use super::private::{self, PoolNumber};
use crate::error::set_last_error;
use crate::{device_pools, text};

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

/// What [`forebay_torch_figures`] returns.
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
pub extern "C" fn forebay_torch_figures(device: c_int) -> *mut c_char {
    guarded(core::ptr::null_mut(), || {
        let pool = match device_pools::pool(device) {
            Ok(pool) => pool,
            Err(reason) => {
                set_last_error(&reason);
                return core::ptr::null_mut();
            }
        };
        let group = pool.group_figures();
        let private = private::pools_of(device).into_iter();
        let graphs = private.map(|(_, PoolNumber { first, second }, pool)| PrivatePool {
            first,
            second,
            pool: PoolStatistics::of(&pool),
        });
        c_json(&Figures {
            pool: PoolStatistics::of(pool),
            peak_out_bytes: group.out.peak.get(),
            peak_held_bytes: group.held.peak.get(),
            refusals: device_pools::out_of_memory_count(device),
            limit_bytes: pool.limit().get(),
            settings: pool.settings(),
            graphs: graphs.collect(),
        })
    })
}

fn c_json(value: &impl Serialize) -> *mut c_char {
    let json = serde_json::to_string(value).map_err(|error| error.to_string());
    let text = json.and_then(|json| text::into_c_string(json).map_err(|error| error.to_string()));
    text.unwrap_or_else(|reason| {
        set_last_error(&reason);
        core::ptr::null_mut()
    })
}

/// A figure as PyTorch has it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Figure {
    /// Now.
    pub current: i64,
    /// The most since the last reset.
    pub peak: i64,
    /// What was added in all.
    pub allocated: i64,
    /// What was taken away in all.
    pub freed: i64,
}

/// A figure of all blocks, of small ones, and of large ones.
type BySide = [Figure; 3];

/// All figures of a GPU under PyTorch's names.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceFigures {
    /// Blocks.
    pub allocation: BySide,
    /// Pages.
    pub segment: BySide,
    /// Free pieces.
    pub inactive_split: BySide,
    /// Bytes in blocks.
    pub allocated_bytes: BySide,
    /// Bytes taken from the device.
    pub reserved_bytes: BySide,
    /// Bytes in free pieces.
    pub inactive_split_bytes: BySide,
    /// Bytes that were asked for.
    pub requested_bytes: BySide,
    /// Driver allocations that failed; after each the pool tried another way.
    pub alloc_retries: i64,
    /// Waits for the whole device.
    pub sync_all_streams: i64,
    /// Driver calls that took memory.
    pub device_alloc: i64,
    /// Driver calls that gave memory back.
    pub device_free: i64,
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
static TOTALS: Mutex<BTreeMap<c_int, DeviceFigures>> = Mutex::new(BTreeMap::new());

/// What private pools that are gone had counted.
static GONE: Mutex<BTreeMap<c_int, DeviceFigures>> = Mutex::new(BTreeMap::new());

/// Keeps what a private pool without blocks has counted, before it is dropped.
pub(super) fn keep_totals(device: c_int, pool: &Pool) {
    let mut last = DeviceFigures::default();
    last.add(pool);
    // Its pages go with it.
    last.device_free = last.device_alloc;
    for figure in last.by_side().into_iter().flatten() {
        (figure.current, figure.freed) = (0, figure.allocated);
    }
    lock(&GONE).entry(device).or_default().join(&mut last);
}

/// The largest figures that were seen since the last reset of peaks.
static SEEN: Mutex<BTreeMap<c_int, DeviceFigures>> = Mutex::new(BTreeMap::new());

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Figure {
    fn add(&mut self, other: Self) {
        self.current = self.current.saturating_add(other.current);
        self.peak = self.peak.saturating_add(other.peak);
        self.allocated = self.allocated.saturating_add(other.allocated);
        self.freed = self.freed.saturating_add(other.freed);
    }
}

impl DeviceFigures {
    fn by_side(&mut self) -> [&mut BySide; 7] {
        [
            &mut self.allocation,
            &mut self.segment,
            &mut self.inactive_split,
            &mut self.allocated_bytes,
            &mut self.reserved_bytes,
            &mut self.inactive_split_bytes,
            &mut self.requested_bytes,
        ]
    }

    fn totals(&mut self) -> [&mut i64; 4] {
        [
            &mut self.alloc_retries,
            &mut self.sync_all_streams,
            &mut self.device_alloc,
            &mut self.device_free,
        ]
    }

    /// Adds the figures of a pool.
    fn add(&mut self, pool: &Pool) {
        let told = pool.statistics();
        for (at, side) in [(1, &told.small), (2, &told.large)] {
            let now = |value: u64| Figure { current: number(value), ..Figure::default() };
            let all = |value: u64, allocated: u64, freed: u64| Figure {
                allocated: number(allocated),
                freed: number(freed),
                ..now(value)
            };
            let figures = [
                all(side.blocks, side.allocations, side.frees),
                now(side.pages),
                now(side.pieces),
                all(side.live.get(), side.allocated.get(), side.freed.get()),
                now(side.held.get()),
                now(side.in_holes.get()),
                all(
                    side.requested.get(),
                    side.requested_allocated.get(),
                    side.requested_freed.get(),
                ),
            ];
            for (sum, one) in self.by_side().into_iter().zip(figures) {
                sum[at].add(one);
                sum[0].add(one);
            }
        }
        let calls = |names: [&str; 2]| {
            let entries = told.driver.entries().filter(|(call, ..)| names.contains(&call.name()));
            entries.fold((0_u64, 0_u64), |(calls, bytes), (_, size, count)| {
                (calls + count, bytes.saturating_add(size.get().saturating_mul(count)))
            })
        };
        let (asked, _) = calls(["create_page", "allocate"]);
        let (given_back, bytes_back) = calls(["release_page", "free"]);
        let taken = (told.small.pages + told.large.pages).saturating_add(given_back);
        // The driver's calls are not counted by side.
        let held = told.small.held.get().saturating_add(told.large.held.get());
        for (all, added, removed) in [
            (&mut self.segment[0], taken, given_back),
            (&mut self.reserved_bytes[0], held.saturating_add(bytes_back), bytes_back),
        ] {
            all.allocated = all.allocated.saturating_add(number(added));
            all.freed = all.freed.saturating_add(number(removed));
        }
        // What was asked for and neither is there nor was given back: the driver had none, and the pool tried another
        // way.
        let failed = asked.saturating_sub(taken);
        let counts = [failed, calls(["synchronize_device", ""]).0, taken, given_back];
        for (sum, one) in self.totals().into_iter().zip(counts) {
            *sum = sum.saturating_add(number(one));
        }
    }

    /// Adds other figures.
    fn join(&mut self, other: &mut Self) {
        for (sum, one) in self.by_side().into_iter().zip(other.by_side()) {
            sum.iter_mut().zip(one).for_each(|(sum, one)| sum.add(*one));
        }
        for (sum, one) in self.totals().into_iter().zip(other.totals()) {
            *sum = sum.saturating_add(*one);
        }
    }

    /// The figures of a GPU: of its own pool and of its private pools, with the peaks of their sum. Or, for [`PINNED`], of
    /// all pools of pinned memory, with the sum of their peaks.
    fn of(device: c_int) -> Self {
        let mut told = Self::default();
        main_pools(device).for_each(|pool| told.add(pool));
        if let Some(gone) = lock(&GONE).get_mut(&device) {
            told.join(gone);
        }
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
        for group in main_pools(device).map(Pool::group_figures) {
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
///
/// # Safety
///
/// * `figures` is null, or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_stats(device: c_int, figures: *mut DeviceFigures) -> c_int {
    guarded(-1, || {
        let mut told = DeviceFigures::of(device);
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
        unsafe { write(figures, told) };
        0
    })
}

/// Lets what only grows begin anew at 0, for what [`forebay_torch_stats`] tells of `device`.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_reset_totals(device: c_int) -> c_int {
    guarded(-1, || {
        let told = DeviceFigures::of(device);
        lock(&TOTALS).insert(device, told);
        0
    })
}

/// Lets the peaks begin anew, for what [`forebay_torch_stats`] tells of `device`.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_reset_peaks(device: c_int) -> c_int {
    guarded(-1, || {
        main_pools(device).for_each(Pool::reset_group_peaks);
        lock(&SEEN).remove(&device);
        0
    })
}
