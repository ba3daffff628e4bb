//! Statistics and layout of a GPU's pools as JSON, for the Python package to render.

use core::ffi::{c_char, c_int};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use forebay::snapshot::StatisticsSnapshot;
use forebay::statistics::Scope;
use forebay::{Bytes, Pool, Settings};
use forebay_sync::lock;
use serde::{Serialize, Serializer};

use super::captures::PoolNumber;
use super::guarded;
use super::{captures, record};
use crate::error::set_last_error;
use crate::{device_pools, text};

/// The peaks of a pool since they were reset.
struct Peaks {
    /// Measures since the peaks were last read.
    scope: Scope,
    /// The most bytes out of the heap before that.
    out: Bytes,
    /// The pool's peak of held bytes at the reset.
    held_before: Bytes,
    /// The most held bytes at any read since.
    held_seen: Bytes,
}

static PEAKS: Mutex<BTreeMap<c_int, Peaks>> = Mutex::new(BTreeMap::new());

fn peaks() -> MutexGuard<'static, BTreeMap<c_int, Peaks>> {
    lock(&PEAKS)
}

/// The peaks of bytes out of the heap and held, since the last reset or ever.
fn peaks_of(device: c_int, pool: &Pool) -> (Bytes, Bytes) {
    let figures = pool.statistics();
    let mut peaks = peaks();
    let Some(peaks) = peaks.get_mut(&device) else {
        return (figures.peak_out, figures.peak_held);
    };
    let ended = core::mem::replace(&mut peaks.scope, pool.scope()).end();
    peaks.out = peaks.out.max(ended.peak);
    peaks.held_seen = peaks.held_seen.max(figures.held);
    // A pool peak above that at the reset was reached since. Otherwise the peak since the reset lies between
    // what was seen and the pool's peak, and what was seen is reported.
    let higher = figures.peak_held > peaks.held_before;
    (peaks.out, if higher { figures.peak_held } else { peaks.held_seen })
}

/// Lets the peaks of GPU `device` begin anew. 0, or -1 with the reason in
/// [`forebay_last_error`](crate::error::forebay_last_error).
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_reset_peaks(device: c_int) -> c_int {
    guarded(-1, || match device_pools::pool(device) {
        Ok(pool) => {
            let figures = pool.statistics();
            let scope = pool.scope();
            let (held_before, held_seen) = (figures.peak_held, figures.held);
            peaks().insert(device, Peaks { scope, out: Bytes::ZERO, held_before, held_seen });
            0
        }
        Err(reason) => {
            set_last_error(&reason);
            -1
        }
    })
}

/// The statistics of a pool.
#[derive(Serialize)]
struct PoolStatistics {
    statistics: StatisticsSnapshot,
    pages: u64,
}

impl PoolStatistics {
    fn of(pool: &Pool) -> Self {
        let statistics = StatisticsSnapshot::from(&pool.statistics());
        Self { statistics, pages: pool.page_count() }
    }
}

/// The addresses of a pool.
#[derive(Serialize)]
struct PoolLayout {
    /// Address and size.
    spans: Vec<(u64, u64)>,
    /// Address, size, requested size and tag.
    blocks: Vec<(u64, u64, u64, String)>,
}

impl PoolLayout {
    fn of(pool: &Pool) -> Self {
        let layout = pool.memory_map();
        let spans = layout.spans.iter().map(|span| (span.start().get(), span.size().get()));
        let blocks = layout.blocks.into_iter();
        let blocks =
            blocks.map(|block| (block.address, block.size_bytes, block.requested_bytes, block.tag));
        Self { spans: spans.collect(), blocks: blocks.collect() }
    }
}

/// A private pool of CUDA graphs: its number, and `T` of it.
#[derive(Serialize)]
struct Graph<T> {
    first: u64,
    second: u64,
    #[serde(flatten)]
    pool: T,
}

fn graphs<T>(device: c_int, of: impl Fn(&Pool) -> T) -> Vec<Graph<T>> {
    let pools = captures::pools_of(device).into_iter();
    pools
        .map(|(PoolNumber { first, second }, pool)| Graph { first, second, pool: of(&pool) })
        .collect()
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
    graphs: Vec<Graph<PoolStatistics>>,
}

fn as_object<S: Serializer>(settings: &Settings, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(settings.entries().map(|entry| (entry.key.name(), entry.value)))
}

/// What [`forebay_torch_layout`] returns.
#[derive(Serialize)]
struct DeviceLayout {
    #[serde(flatten)]
    pool: PoolLayout,
    graphs: Vec<Graph<PoolLayout>>,
}

/// The figures of GPU `device`: an object with `statistics` (as in form `forebay.pool.v1`) and `pages` of
/// its pool, `peak_out_bytes` and `peak_held_bytes` since the last reset, `refusals`, `limit_bytes`,
/// `settings` (an object of texts), and `graphs` (a list of objects with `first`, `second`, `statistics`
/// and `pages`). Text for `forebay_string_free`; null where there is no such GPU, with the reason in
/// [`forebay_last_error`](crate::error::forebay_last_error).
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_figures(device: c_int) -> *mut c_char {
    json_of_pool(device, |pool| {
        let (out, held) = peaks_of(device, pool);
        Figures {
            pool: PoolStatistics::of(pool),
            peak_out_bytes: out.get(),
            peak_held_bytes: held.get(),
            refusals: device_pools::out_of_memory_count(device),
            limit_bytes: pool.limit().get(),
            settings: pool.settings(),
            graphs: graphs(device, PoolStatistics::of),
        }
    })
}

/// Where everything of GPU `device` lies: an object with `spans` (lists of address and size), `blocks`
/// (lists of address, size, size asked for, tag), and `graphs` (objects with `first`, `second`
/// and the same). Otherwise as [`forebay_torch_figures`].
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_layout(device: c_int) -> *mut c_char {
    json_of_pool(device, |pool| DeviceLayout {
        pool: PoolLayout::of(pool),
        graphs: graphs(device, PoolLayout::of),
    })
}

/// What was recorded of GPU `device` ([`forebay_torch_record`](super::forebay_torch_record)), the oldest
/// first: lists of what (`alloc`, `free`, `oom`), address, size asked for, stream, microseconds since
/// 1970, and the place in the program. Otherwise as [`forebay_torch_figures`].
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_records(device: c_int) -> *mut c_char {
    guarded(core::ptr::null_mut(), || c_json(&record::events(device)))
}

/// The JSON of what `describe` tells of a GPU's pool, as a C string; null where there is no such GPU.
fn json_of_pool<T: Serialize>(device: c_int, describe: impl FnOnce(&Pool) -> T) -> *mut c_char {
    guarded(core::ptr::null_mut(), || match device_pools::pool(device) {
        Ok(pool) => c_json(&describe(pool)),
        Err(reason) => {
            set_last_error(&reason);
            core::ptr::null_mut()
        }
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
