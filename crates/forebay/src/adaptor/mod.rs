//! Adaptors: allocators that add one function each to another allocator.
//!
//! ```text
//!   program ── Counted ── Limited ── Tracked ── Pool         in any order, each as often as needed
//! ```
//!
//! * [`Limited`] limits the bytes that are live.
//! * [`Counted`] counts blocks and bytes, with their peaks.
//! * [`Logged`] writes a line for each operation, in the format of RMM.
//! * [`Tracked`] lists live blocks, with their age, tag and call stack.
//! * [`Failing`] fails requests on demand, to test how a program reacts.
//! * [`Aligned`] aligns every block more strictly than requested.
//!
//! All follow the same rules. An error of the inner allocator passes through unchanged and leaves the figures
//! unchanged. An adaptor accounts only for blocks that were allocated through it: it passes the free of any other block
//! on without counting it. Blocks of no bytes do not count.
//!
//! ```
//! use forebay::adaptor::{Counted, Limited, Tracked};
//! use forebay::{Allocate, Bytes, HostDevice, Pool, Request, StreamHandle};
//!
//! let device = HostDevice::open()?;
//! let memory = Counted::new(Limited::new(Tracked::new(Pool::new(&device)?), Bytes::mib(8)));
//! let block = memory.allocate_request(Request::new(Bytes::mib(6), StreamHandle::DEFAULT))?;
//! assert!(memory.allocate_request(Request::new(Bytes::mib(6), StreamHandle::DEFAULT)).is_err());
//! assert_eq!(memory.counts().failed_allocations, 1);
//! memory.free(block.address(), StreamHandle::DEFAULT)?;
//! assert!(memory.inner().inner().leaks().is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use forebay_core::Address;
use forebay_hal::StreamHandle;

use crate::{Block, Request, Result};

/// What an adaptor does around the calls of its inner allocator.
trait Adapt {
    /// Allocates a block.
    fn allocate(&self, request: Request) -> Result<Block>;

    /// Frees the block at `address` with `free`.
    fn free_by(
        &self,
        address: Address,
        stream: StreamHandle,
        free: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let _ = (address, stream);
        free()
    }
}

/// Makes an adaptor an allocator.
macro_rules! adaptor {
    ($name:ident<A $(, $other:ident: $($bound:path),+)?>) => {
        impl<A: crate::Allocate $(, $other: $($bound +)+)?> $name<A $(, $other)?> {
            /// The inner allocator.
            pub fn inner(&self) -> &A {
                &self.inner
            }
        }

        // SAFETY: blocks are those of the inner allocator, which keeps the promises.
        unsafe impl<A: crate::Allocate $(, $other: $($bound +)+)?> crate::Allocate
            for $name<A $(, $other)?>
        {
            fn allocate_request(&self, request: crate::Request) -> crate::Result<crate::Block> {
                self.allocate(request)
            }

            fn free(
                &self,
                address: forebay_core::Address,
                stream: forebay_hal::StreamHandle,
            ) -> crate::Result<()> {
                self.free_by(address, stream, || self.inner.free(address, stream))
            }

            fn free_block(
                &self,
                block: crate::Block,
                stream: forebay_hal::StreamHandle,
            ) -> crate::Result<()> {
                self.free_by(block.address(), stream, || self.inner.free_block(block, stream))
            }

            crate::block::leave_to!(self => self.inner);
        }
    };
}

mod align;
mod count;
mod fail;
mod ledger;
mod limit;
mod log;
#[cfg(test)]
mod tests;
mod track;

pub use align::Aligned;
pub use count::{Counted, Counts};
pub use fail::{FailAs, FailWhen, Failing};
pub use limit::Limited;
pub use log::Logged;
pub use track::{Leaks, LiveBlock, Tracked};
