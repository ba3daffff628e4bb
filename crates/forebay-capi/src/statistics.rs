//! Statistics of a pool, as a structure, as JSON and as text.

use core::ffi::c_char;

use forebay::Bytes;

use crate::pool::forebay_pool;
use crate::sized::{SizedOut, versioned_struct};
use crate::status::forebay_status;
use crate::table;
use crate::text::Out;

/// The value of a figure that was not counted.
pub const FOREBAY_NOT_COUNTED: u64 = u64::MAX;

/// The statistics of a pool. Counts are exact: every call that has returned is counted once.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct forebay_statistics {
    /// `sizeof(forebay_statistics)`, set before the call; after it, how many bytes were filled.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Bytes in live blocks, rounding included.
    pub live_bytes: u64,
    /// Bytes asked for by live blocks.
    pub requested_bytes: u64,
    /// Live blocks.
    pub blocks: u64,
    /// The most bytes ever out of the heap at once, in live blocks or cached in magazines.
    pub peak_out_bytes: u64,
    /// The most bytes ever in live blocks at once; `FOREBAY_NOT_COUNTED` unless the setting
    /// `statistics` is `exact`.
    pub peak_live_bytes: u64,
    /// Bytes cached in magazines.
    pub cached_bytes: u64,
    /// Freed bytes in quarantine.
    pub quarantined_bytes: u64,
    /// Bytes that are never reused, because they were corrupted.
    pub retired_bytes: u64,
    /// Bytes taken from the device.
    pub held_bytes: u64,
    /// The most bytes ever taken from the device at once.
    pub peak_held_bytes: u64,
    /// Bytes taken from the device that are in no live block.
    pub free_bytes: u64,
    /// The largest free piece.
    pub largest_free_bytes: u64,
    /// How many free pieces the heap has.
    pub pieces: u64,
    /// Blocks allocated.
    pub allocations: u64,
    /// Blocks freed.
    pub frees: u64,
    /// Allocations that took no memory from the driver.
    pub hits: u64,
    /// Those of them that a magazine served.
    pub magazine_hits: u64,
    /// Requests that fitted in no hole.
    pub misses: u64,
    /// Times a stream was made to wait for another.
    pub waits: u64,
    /// The most bytes that the pool may take from the device.
    pub limit_bytes: u64,
    /// The wall time of all driver calls.
    pub driver_ns: u64,
}

versioned_struct!(forebay_statistics: 176);

/// The statistics of a pool. Stops the threads that use the pool for a moment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_statistics(
    pool: forebay_pool,
    statistics: *mut forebay_statistics,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { SizedOut::new(statistics, "statistics") };
    to.result(|| {
        let entry = table::find(pool)?;
        let figures = entry.pool().statistics();
        Ok(forebay_statistics {
            struct_size: 0,
            reserved: 0,
            live_bytes: figures.live.get(),
            requested_bytes: figures.requested.get(),
            blocks: figures.blocks,
            peak_out_bytes: figures.peak_out.get(),
            peak_live_bytes: figures.peak_live.map_or(FOREBAY_NOT_COUNTED, Bytes::get),
            cached_bytes: figures.cached.get(),
            quarantined_bytes: figures.quarantined.get(),
            retired_bytes: figures.retired.get(),
            held_bytes: figures.held.get(),
            peak_held_bytes: figures.peak_held.get(),
            free_bytes: figures.free.get(),
            largest_free_bytes: figures.largest_free.get(),
            pieces: figures.pieces,
            allocations: figures.allocations,
            frees: figures.frees,
            hits: figures.hits,
            magazine_hits: figures.magazine_hits,
            misses: figures.misses,
            waits: figures.waits,
            limit_bytes: entry.pool().limit().get(),
            driver_ns: u64::try_from(figures.driver.time().as_nanos()).unwrap_or(u64::MAX),
        })
    })
}

/// A snapshot of a pool as one line of JSON with the schema "forebay.pool.v1". `json` gets a string, to be
/// freed by `forebay_string_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_snapshot(
    pool: forebay_pool,
    json: *mut *mut c_char,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(json, "json") };
    to.text(|| {
        let entry = table::find(pool)?;
        Ok(entry.pool().snapshot().to_json())
    })
}

/// A summary of a pool's statistics for people. `summary` gets a string, to be freed by
/// `forebay_string_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_summary(
    pool: forebay_pool,
    summary: *mut *mut c_char,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(summary, "summary") };
    to.text(|| {
        let entry = table::find(pool)?;
        Ok(entry.pool().statistics().to_string())
    })
}
