//! Maintenance of a pool: releasing memory, defragmenting, warming up.

use core::time::Duration;

use forebay::handle::warm_up;
use forebay::{Bytes, Pool};

use crate::error::status_of;
use crate::pool::{PoolEntry, forebay_pool};
use crate::sized::{SizedOut, versioned_struct};
use crate::status::forebay_status;
use crate::stream::{self, forebay_stream};
use crate::table;
use crate::text::{array, write_optional};

/// The result of a warm-up.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct forebay_warm_up_figures {
    /// `sizeof(forebay_warm_up_figures)`, set before the call; after it, how many bytes were filled.
    pub struct_size: u32,
    /// 1 where all blocks could be allocated, else 0.
    pub complete: u32,
    /// Requested blocks.
    pub asked_blocks: u64,
    /// Their bytes.
    pub asked_bytes: u64,
    /// Blocks that could be allocated at once.
    pub had_blocks: u64,
    /// Their bytes.
    pub had_bytes: u64,
}

versioned_struct!(forebay_warm_up_figures: 40);

/// Calls `work`, which releases memory, and reports how much.
///
/// # Safety
///
/// * `released` is null, or a number can be written there.
unsafe fn release_memory(
    pool: forebay_pool,
    released: *mut u64,
    work: impl FnOnce(&Pool) -> forebay::Result<Bytes>,
) -> forebay_status {
    status_of(|| {
        let gone = work(table::find::<PoolEntry>(pool.id)?.pool())?;
        // SAFETY: each caller's own caller promises that it is null or can be written.
        unsafe { write_optional(released, gone.get()) };
        Ok(())
    })
}

/// Releases free memory to the device, down to `keep` bytes held. Waits for work that may still use it.
/// `released`, where it is not null, gets how many bytes were released.
///
/// # Safety
///
/// * `released` is null, or a number can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_trim(
    pool: forebay_pool,
    keep: u64,
    released: *mut u64,
) -> forebay_status {
    // SAFETY: as the caller promises.
    unsafe { release_memory(pool, released, |pool| pool.trim(Bytes::new(keep))) }
}

/// Releases all free memory to the device: `forebay_pool_trim` with `keep` 0.
///
/// # Safety
///
/// * `released` is null, or a number can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_empty_cache(
    pool: forebay_pool,
    released: *mut u64,
) -> forebay_status {
    // SAFETY: as the caller promises.
    unsafe { release_memory(pool, released, |pool| pool.trim(Bytes::ZERO)) }
}

/// Releases memory to the device that was not used in the last `age_ms` milliseconds, as far as its age is
/// known. Does not wait.
///
/// # Safety
///
/// * `released` is null, or a number can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_collect(
    pool: forebay_pool,
    age_ms: u64,
    released: *mut u64,
) -> forebay_status {
    // SAFETY: as the caller promises.
    unsafe { release_memory(pool, released, |pool| pool.collect(Duration::from_millis(age_ms))) }
}

/// Merges free memory into as few and as large pieces as possible without waiting.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_pool_defragment(pool: forebay_pool) -> forebay_status {
    status_of(|| Ok(table::find::<PoolEntry>(pool.id)?.pool().defragment()?))
}

/// Completes frees that were deferred for other streams, where those are done. Does not wait.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_pool_process_deferred(pool: forebay_pool) -> forebay_status {
    status_of(|| Ok(table::find::<PoolEntry>(pool.id)?.pool().process_deferred()?))
}

/// Allocates `counts[i]` blocks of `sizes[i]` bytes each, all at once, and frees them on `stream`: the pool
/// then holds memory for them. Where not all fit, allocates those that do, and the figures tell how many.
///
/// # Safety
///
/// * `sizes` and `counts` are null, or have `count` numbers each.
/// * `figures` is null, or a `forebay_warm_up_figures` whose `struct_size` is set, which can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_warm_up(
    pool: forebay_pool,
    sizes: *const u64,
    counts: *const u64,
    count: usize,
    stream: forebay_stream,
    figures: *mut forebay_warm_up_figures,
) -> forebay_status {
    status_of(|| {
        // SAFETY: as the caller promises.
        let (sizes, counts) =
            unsafe { (array(sizes, count, "sizes")?, array(counts, count, "counts")?) };
        let to = if figures.is_null() {
            None
        } else {
            // SAFETY: as the caller promises.
            Some(unsafe { SizedOut::new(figures, "figures") }?)
        };
        let entry = table::find::<PoolEntry>(pool.id)?;
        let stream = stream::on_device(stream, entry.device())?;
        let shapes = sizes.iter().zip(counts).map(|(&size, &count)| (Bytes::new(size), count));
        let warm = warm_up(entry.pool(), &shapes.collect::<Vec<_>>(), stream)?;
        if let Some(to) = to {
            to.set(forebay_warm_up_figures {
                struct_size: 0,
                complete: u32::from(warm.is_complete()),
                asked_blocks: warm.asked_blocks,
                asked_bytes: warm.asked_bytes.get(),
                had_blocks: warm.had_blocks,
                had_bytes: warm.had_bytes.get(),
            });
        }
        Ok(())
    })
}
