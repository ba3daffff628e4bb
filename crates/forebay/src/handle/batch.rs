//! Allocates several blocks at once, all or none.
//!
//! There are two kinds, because parts of a block cannot be freed individually:
//!
//! ```text
//!   allocate_batch   [ block ] [ block ] [ block ]      each its own owner
//!   Batch            [ part | part | part          ]    one owner, one request, closest together
//! ```

use core::cmp::Reverse;
use core::fmt;

use forebay_core::{Address, Alignment, Bytes, Span};
use forebay_hal::{Call, StreamHandle};

use super::OwnedBlock;
use super::failure::does_not_fit;
use crate::{Allocate, Pool, Request, Result, host_vec};

/// Allocates a block for each size for `stream`, and returns them in the order of `sizes`.
///
/// If one allocation fails, the others are freed, and the error names the size. An allocator that grew meanwhile keeps
/// the memory it took from the device.
///
/// The largest blocks are allocated first, so that they lie close together and small ones do not split large holes.
///
/// ```
/// use forebay::handle::allocate_batch;
/// use forebay::{Bytes, Pool, StreamHandle};
///
/// let pool = Pool::open("host")?;
/// let sizes = [Bytes::new(1000), Bytes::mib(3), Bytes::mib(1)];
/// let blocks = allocate_batch(&pool, &sizes, StreamHandle::DEFAULT)?;
/// assert!(blocks.iter().map(|block| block.requested()).eq(sizes));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn allocate_batch<A: Allocate + Clone>(
    allocator: &A,
    sizes: &[Bytes],
    stream: impl Into<StreamHandle>,
) -> Result<Vec<OwnedBlock<A>>> {
    let stream = stream.into();
    let mut order = host_vec::with_capacity::<(usize, Bytes)>(sizes.len(), Call::Allocate)?;
    order.extend(sizes.iter().copied().enumerate());
    // Keep equal sizes in the caller's order, so that the same batch always has the same layout.
    order.sort_by_key(|&(_, size)| Reverse(size));
    let mut blocks = host_vec::with_capacity(order.len(), Call::Allocate)?;
    for (index, size) in order {
        blocks.push((index, OwnedBlock::new(allocator, Request::new(size, stream))?));
    }
    blocks.sort_by_key(|&(index, _)| index);
    Ok(blocks.into_iter().map(|(_, block)| block).collect())
}

/// One block in parts, freed as a whole when it is dropped.
///
/// One request serves all parts, so it is cheaper than separate blocks, and the parts lie closest together. Each part
/// is aligned to 512 B, with at most 511 B between two.
///
/// ```
/// use forebay::handle::Batch;
/// use forebay::{Bytes, Pool, StreamHandle};
///
/// let pool = Pool::open("host")?;
/// let batch = Batch::new(&pool, &[Bytes::new(700), Bytes::new(100)], StreamHandle::DEFAULT)?;
/// let [first, second] = batch.parts() else { return Err("two parts".into()) };
/// assert_eq!(second.start().offset_from(first.start()), Some(Bytes::new(1024)));
/// assert_eq!(pool.statistics().allocations, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the parts are freed when this is dropped"]
pub struct Batch<A: Allocate = Pool> {
    block: OwnedBlock<A>,
    parts: Vec<Span>,
}

impl<A: Allocate + Clone> Batch<A> {
    /// Allocates one block for `stream` with parts of these sizes, in this order.
    pub fn new(allocator: &A, sizes: &[Bytes], stream: impl Into<StreamHandle>) -> Result<Self> {
        let mut offsets = host_vec::with_capacity(sizes.len(), Call::Allocate)?;
        let mut parts = host_vec::with_capacity(sizes.len(), Call::Allocate)?;
        let mut end = Bytes::ZERO;
        for &size in sizes {
            offsets.push(end);
            end = size
                .align_up(Alignment::BLOCK)
                .and_then(|room| end.try_add(room))
                .map_err(|error| does_not_fit("sizes", &error))?;
        }
        let block = OwnedBlock::new(allocator, Request::new(end, stream))?;
        for (&size, offset) in sizes.iter().zip(offsets) {
            parts.push(part(block.address(), offset, size)?);
        }
        Ok(Self { block, parts })
    }
}

/// The part of a block at `start` that begins at `offset`. An empty part has no address.
fn part(start: Address, offset: Bytes, size: Bytes) -> Result<Span> {
    if size.is_zero() {
        return Ok(Span::default());
    }
    Span::new(start, offset)
        .and_then(|before| Span::new(before.end(), size))
        .map_err(|error| does_not_fit("sizes", &error))
}

impl<A: Allocate> Batch<A> {
    /// The parts, in the order of the requested sizes, as plain addresses that are valid while the batch lives. An
    /// empty part is at the null address.
    pub fn parts(&self) -> &[Span] {
        &self.parts
    }

    /// The block that holds the parts.
    pub fn block(&self) -> &OwnedBlock<A> {
        &self.block
    }

    /// Returns the block, without the parts.
    pub fn into_block(self) -> OwnedBlock<A> {
        self.block
    }
}

impl<A: Allocate> fmt::Debug for Batch<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("block", &self.block).field("parts", &self.parts).finish()
    }
}
