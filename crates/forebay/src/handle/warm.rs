//! Warm-up: takes memory from the device ahead of time, so that the first step of a run is as fast as later ones.

use core::cmp::Reverse;

use forebay_core::Bytes;
use forebay_hal::StreamHandle;

use super::failure::does_not_fit;
use super::lost::{self, LostFree};
use crate::{Allocate, Block, Error, Request, Result};

/// The results of a warm-up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WarmUp {
    /// Blocks requested.
    pub asked_blocks: u64,
    /// Bytes requested.
    pub asked_bytes: Bytes,
    /// Blocks that were allocated at the same time.
    pub had_blocks: u64,
    /// Their bytes, as requested.
    pub had_bytes: Bytes,
    /// The error of the first request that failed.
    pub refusal: Option<Error>,
}

impl WarmUp {
    /// Whether all requested blocks were allocated.
    pub fn is_complete(&self) -> bool {
        self.had_blocks == self.asked_blocks
    }
}

/// Allocates blocks of these sizes and counts, all at once, and frees them on `stream`. The allocator then holds enough
/// memory for them.
///
/// The largest blocks come first. If not all fit, allocates as many as do, and reports how many. Any other error ends
/// the warm-up and frees all blocks. Zero sizes are skipped.
///
/// ```
/// use forebay::handle::warm_up;
/// use forebay::{Bytes, HostDevice, PoolOptions, StreamHandle};
///
/// let device = HostDevice::open()?;
/// let pool = PoolOptions::new().max_bytes(Bytes::mib(64)).build(&device)?;
/// let shapes = [(Bytes::mib(8), 2), (Bytes::new(4096), 100)];
/// let warm = warm_up(&pool, &shapes, StreamHandle::DEFAULT)?;
/// assert!(warm.is_complete());
/// assert_eq!(pool.statistics().live, Bytes::ZERO);
/// assert!(pool.statistics().held >= Bytes::mib(16));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn warm_up<A: Allocate>(
    allocator: &A,
    shapes: &[(Bytes, u64)],
    stream: impl Into<StreamHandle>,
) -> Result<WarmUp> {
    let mut shapes: Vec<(Bytes, u64)> =
        shapes.iter().copied().filter(|(size, _)| !size.is_zero()).collect();
    shapes.sort_by_key(|&(size, _)| Reverse(size));
    let mut figures = WarmUp::default();
    for &(size, count) in &shapes {
        let sum = size.try_mul(count).and_then(|bytes| figures.asked_bytes.try_add(bytes));
        figures.asked_bytes = sum.map_err(|error| does_not_fit("shapes", &error))?;
        // At most the number of bytes, since no size is zero, so it cannot overflow if they do not.
        figures.asked_blocks = figures.asked_blocks.saturating_add(count);
    }
    let stream = stream.into();
    let mut taken = Taken { allocator, stream, blocks: Vec::new() };
    for (size, count) in shapes {
        for _ in 0..count {
            match allocator.allocate_request(Request::new(size, stream)) {
                Ok(block) => {
                    taken.blocks.push(block);
                    figures.had_blocks += 1;
                    figures.had_bytes = figures.had_bytes.saturating_add(size);
                }
                Err(error) if is_out_of_memory(&error) => {
                    figures.refusal.get_or_insert(error);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(figures)
}

/// Whether smaller requests may still be served.
fn is_out_of_memory(error: &Error) -> bool {
    matches!(
        error,
        Error::OutOfMemory { .. } | Error::Device(forebay_hal::Error::OutOfMemory { .. })
    )
}

/// Blocks freed together. Plain ones rather than handles, because there may be very many.
struct Taken<'a, A: Allocate> {
    allocator: &'a A,
    stream: StreamHandle,
    blocks: Vec<Block>,
}

impl<A: Allocate> Drop for Taken<'_, A> {
    fn drop(&mut self) {
        while let Some(block) = self.blocks.pop() {
            if let Err(error) = self.allocator.free(block.address(), self.stream) {
                lost::note(LostFree { block, stream: self.stream, error });
            }
        }
    }
}
