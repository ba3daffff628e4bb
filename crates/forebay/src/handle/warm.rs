//! Memory taken ahead of time, so that the first step of a run is as fast as the others.

use core::cmp::Reverse;

use forebay_core::{Bytes, QuantityError};
use forebay_hal::StreamHandle;

use super::failure::does_not_fit;
use super::lost::{self, LostFree};
use crate::{Allocate, Block, Error, Request, Result};

/// What a warm-up asked for and got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WarmUp {
    /// Blocks asked for.
    pub asked_blocks: u64,
    /// Their bytes.
    pub asked_bytes: Bytes,
    /// Blocks that could be had together.
    pub had_blocks: u64,
    /// Their bytes, rounding not counted.
    pub had_bytes: Bytes,
    /// Why the first of the others could not be had.
    pub refusal: Option<Error>,
}

impl WarmUp {
    /// Whether all of it could be had.
    pub fn is_complete(&self) -> bool {
        self.had_blocks == self.asked_blocks
    }
}

/// Takes blocks of these sizes, so many of each, all at once, and gives them all back on `stream`:
/// what the allocator took from its device for them is then at hand.
///
/// The largest come first. Where there is no room for all, what fits is taken, and the figures say
/// how much that was. Any other error ends it, with everything given back. Sizes of no bytes ask for
/// nothing.
///
/// ```
/// use forebay::handle::warm_up;
/// use forebay::{Bytes, HostDevice, Pool, PoolOptions, StreamHandle};
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
    stream: StreamHandle,
) -> Result<WarmUp> {
    let mut shapes: Vec<(Bytes, u64)> =
        shapes.iter().copied().filter(|(size, _)| !size.is_zero()).collect();
    shapes.sort_by_key(|&(size, _)| Reverse(size));
    let mut figures = WarmUp::default();
    for &(size, count) in &shapes {
        let sum = size.try_mul(count).and_then(|bytes| figures.asked_bytes.try_add(bytes));
        figures.asked_bytes = sum.map_err(|error| does_not_fit("shapes", &error))?;
        // No more than the bytes, since no size is zero; so it fits where they do.
        figures.asked_blocks = figures.asked_blocks.saturating_add(count);
    }
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

/// Blocks that go back together. Plain ones, because there may be very many.
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

/// The figures of a transformer, for the sizes of what one step of training holds.
///
/// ```
/// use forebay::handle::Transformer;
/// use forebay::Bytes;
///
/// let transformer = Transformer {
///     batch: 4,
///     sequence: 512,
///     hidden: 512,
///     heads: 8,
///     layers: 6,
///     vocabulary: 10_000,
///     bytes_per_element: 4,
/// };
/// let shapes = transformer.shapes()?;
/// assert_eq!(shapes.iter().map(|(_, count)| count).sum::<u64>(), 61); // 60 and the logits
/// assert!(shapes.contains(&(Bytes::new(81_920_000), 1))); // 78.125 MiB
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transformer {
    /// Sequences in a batch.
    pub batch: u64,
    /// Tokens in a sequence.
    pub sequence: u64,
    /// Elements that stand for a token.
    pub hidden: u64,
    /// Heads of attention in a layer.
    pub heads: u64,
    /// Layers.
    pub layers: u64,
    /// Tokens there are.
    pub vocabulary: u64,
    /// 4 for fp32, 2 for fp16 and bf16.
    pub bytes_per_element: u64,
}

/// What a layer holds for the way back in the shape of its input: the first norm, queries, keys,
/// values, the heads' result, its projection, the second norm, and the layer's result.
const HIDDEN_PER_LAYER: u64 = 8;

/// How much wider the inner side of the feed-forward part is than its ends.
const WIDENING: u64 = 4;

impl Transformer {
    /// The sizes of the activations that one step holds on its way forward, and how many there are
    /// of each: for each layer eight in the shape of its input, the attention's scores and the inner
    /// side of the feed-forward part; and the logits, once. For [`warm_up`].
    pub fn shapes(&self) -> Result<Vec<(Bytes, u64)>> {
        self.sizes().map_err(|error| does_not_fit("shapes", &error))
    }

    fn sizes(&self) -> core::result::Result<Vec<(Bytes, u64)>, QuantityError> {
        let element = Bytes::new(self.bytes_per_element);
        let tokens = element.try_mul(self.batch)?.try_mul(self.sequence)?;
        let hidden = tokens.try_mul(self.hidden)?;
        let scores = tokens.try_mul(self.heads)?.try_mul(self.sequence)?;
        let inner = hidden.try_mul(WIDENING)?;
        let logits = tokens.try_mul(self.vocabulary)?;
        let hidden_count = Bytes::new(HIDDEN_PER_LAYER).try_mul(self.layers)?.get();
        Ok(vec![(hidden, hidden_count), (scores, self.layers), (inner, self.layers), (logits, 1)])
    }
}
