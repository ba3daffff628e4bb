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

/// What a warm-up asked for and got.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct forebay_warm_up_figures {
    /// `sizeof(forebay_warm_up_figures)`, set before the call; after it, how much of it was filled.
    pub struct_size: u32,
    /// 1 where all of it could be had, else 0.
    pub complete: u32,
    /// Blocks asked for.
    pub asked_blocks: u64,
    /// Their bytes.
    pub asked_bytes: u64,
    /// Blocks that could be had together.
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

/// Gives back to the device what is free, down to `keep` bytes held. Waits for the device where work
/// may still use it. `released`, where it is not null, gets how much that was.
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

/// Gives back to the device everything that is free: `forebay_pool_trim` that keeps nothing.
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

/// Gives back to the device what was not needed in the last `age_ms` milliseconds, as far as that was
/// watched. Does not wait.
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

/// Makes what is free as few and as large pieces as can be without waiting.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_pool_defragment(pool: forebay_pool) -> forebay_status {
    status_of(|| Ok(table::find::<PoolEntry>(pool.id)?.pool().defragment()?))
}

/// Takes back what was freed while other streams used it, as far as they are done. Does not wait.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_pool_process_deferred(pool: forebay_pool) -> forebay_status {
    status_of(|| Ok(table::find::<PoolEntry>(pool.id)?.pool().process_deferred()?))
}

/// Takes `counts[i]` blocks of `sizes[i]` bytes each, all at once, and gives them back on `stream`:
/// what the pool took from its device for them is then at hand. Where there is no room for all, what
/// fits is taken, and the figures say how much that was.
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
