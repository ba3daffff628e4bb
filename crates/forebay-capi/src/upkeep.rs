//! Maintenance of a pool: releasing memory, defragmenting, warming up.

use core::time::Duration;

use forebay::Bytes;
use forebay::handle::warm_up;

use crate::error::status_of;
use crate::pool::{self, forebay_pool};
use crate::sized::{SizedOut, versioned_struct};
use crate::status::forebay_status;
use crate::stream::forebay_stream;
use crate::table;
use crate::text::{Out, array};

/// The result of a warm-up.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct forebay_warm_up_result {
    /// `sizeof(forebay_warm_up_result)`, set before the call; after it, how many bytes were filled.
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

versioned_struct!(forebay_warm_up_result: 40);

/// Releases free memory to the device, down to `keep` bytes held. Waits for work that may still use it.
/// `released`, where it is not null, gets how many bytes were released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_trim(
    pool: forebay_pool,
    keep: u64,
    released: *mut u64,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::optional(released) };
    to.result(|| Ok(table::find(pool)?.pool().trim(Bytes::new(keep))?.get()))
}

/// Releases all free memory to the device: `forebay_pool_trim` with `keep` 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_empty_cache(
    pool: forebay_pool,
    released: *mut u64,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::optional(released) };
    to.result(|| Ok(table::find(pool)?.pool().trim(Bytes::ZERO)?.get()))
}

/// Releases memory to the device that was not used in the last `age_ms` milliseconds, as far as its age is
/// known. Does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_collect(
    pool: forebay_pool,
    age_ms: u64,
    released: *mut u64,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::optional(released) };
    to.result(|| Ok(table::find(pool)?.pool().collect(Duration::from_millis(age_ms))?.get()))
}

/// Merges free memory into as few and as large pieces as possible without waiting.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_pool_defragment(pool: forebay_pool) -> forebay_status {
    status_of(|| Ok(table::find(pool)?.pool().defragment()?))
}

/// Completes frees that were deferred for other streams, where those are done. Does not wait.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_pool_process_deferred(pool: forebay_pool) -> forebay_status {
    status_of(|| Ok(table::find(pool)?.pool().process_deferred()?))
}

/// Allocates `counts[i]` blocks of `sizes[i]` bytes each, all at once, and frees them on `stream`: the pool
/// then holds memory for them. Where not all fit, allocates those that do, and the figures tell how many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_warm_up(
    pool: forebay_pool,
    sizes: *const u64,
    counts: *const u64,
    count: usize,
    stream: forebay_stream,
    figures: *mut forebay_warm_up_result,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let (to, sizes, counts) = unsafe {
        (SizedOut::optional(figures), array(sizes, count, "sizes"), array(counts, count, "counts"))
    };
    to.result(|| {
        let (entry, stream) = pool::with_stream(pool, stream)?;
        let shapes = sizes?.iter().zip(counts?).map(|(&size, &count)| (Bytes::new(size), count));
        let warm = warm_up(entry.pool(), &shapes.collect::<Vec<_>>(), stream)?;
        Ok(forebay_warm_up_result {
            struct_size: 0,
            complete: u32::from(warm.is_complete()),
            asked_blocks: warm.asked_blocks,
            asked_bytes: warm.asked_bytes.get(),
            had_blocks: warm.had_blocks,
            had_bytes: warm.had_bytes.get(),
        })
    })
}
