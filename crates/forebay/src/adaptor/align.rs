//! Blocks that are aligned more strictly than requested.

use forebay_core::Alignment;
use forebay_hal::{Call, invalid};

use super::Adapt;
use crate::{Allocate, Block, Request, Result};

/// An allocator with a minimum alignment, for programs that cannot be changed to request it.
///
/// A request with a larger alignment keeps it. If the inner allocator returns a block with a smaller alignment, the
/// block is freed and the request fails.
///
/// ```
/// # use forebay::StreamHandle;
/// use forebay::adaptor::Aligned;
/// use forebay::{Alignment, Allocate, Bytes, Pool, Request};
/// # let device = forebay::HostDevice::open()?;
///
/// let aligned = Aligned::new(Pool::new(&device)?, Alignment::HOST_PAGE);
/// let block = aligned.allocate_request(Request::new(Bytes::new(100), StreamHandle::DEFAULT))?;
/// assert!(block.address().is_aligned_to(Alignment::HOST_PAGE));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Aligned<A> {
    inner: A,
    alignment: Alignment,
}

impl<A: Allocate> Aligned<A> {
    /// Aligns the blocks of `inner` to at least `alignment`.
    pub fn new(inner: A, alignment: Alignment) -> Self {
        Self { inner, alignment }
    }

    /// The minimum alignment.
    pub fn alignment(&self) -> Alignment {
        self.alignment
    }
}

impl<A: Allocate> Adapt for Aligned<A> {
    fn allocate(&self, request: Request) -> Result<Block> {
        let alignment = request.alignment().max(self.alignment);
        let block = self.inner.allocate_request(request.aligned_to(alignment))?;
        if !block.address().is_aligned_to(alignment) {
            self.inner.free(block.address(), request.stream())?;
            let kept = format!("one the allocator keeps: it gave {}", block.address());
            return Err(invalid(Call::Allocate, "alignment", alignment, kept).into());
        }
        Ok(block)
    }
}

adaptor!(Aligned<A>);
