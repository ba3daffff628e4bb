//! A block with several owners.

use core::fmt;
use std::sync::Arc;

use forebay_core::{Address, Bytes};
use forebay_hal::{self as hal, Call, StreamHandle};

use super::{OwnedBlock, Refused};
use crate::{Allocate, Block, Error, Pool};

/// A block with several owners: clones share it, and the last one frees it.
///
/// Owners that use the block on other streams record them with [`used_on`](Self::used_on). After the last owner is
/// dropped, the memory is reused after the work of all recorded streams; none of them waits.
///
/// ```
/// use forebay::{Bytes, HostDevice, Pool, Priority, SharedBlock, Stream};
///
/// let device = HostDevice::open()?;
/// let pool = Pool::new(&device)?;
/// let side = Stream::new(&device, Priority::Normal)?;
/// let weights = SharedBlock::from(pool.default_stream().owned(Bytes::mib(4))?);
/// let reader = weights.clone();
/// reader.used_on(side.handle());
/// drop(weights);
/// assert_eq!(pool.statistics().live, Bytes::mib(4));
/// drop(reader);
/// assert_eq!(pool.statistics().live, Bytes::ZERO);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the block is freed when its last owner is dropped"]
pub struct SharedBlock<A: Allocate = Pool> {
    block: Arc<OwnedBlock<A>>,
}

impl<A: Allocate> SharedBlock<A> {
    /// The address of the first byte; null for a block of no bytes.
    pub fn address(&self) -> Address {
        self.block.address()
    }

    /// The size: the requested one, rounded up.
    pub fn size(&self) -> Bytes {
        self.block.size()
    }

    /// The requested size.
    pub fn requested(&self) -> Bytes {
        self.block.requested()
    }

    /// The block as plain data. Its owners keep owning it.
    pub fn block(&self) -> Block {
        self.block.block()
    }

    /// The stream that the block belongs to.
    pub fn stream(&self) -> StreamHandle {
        self.block.stream()
    }

    /// Records that work on `stream` uses the block too; see [`OwnedBlock::used_on`].
    pub fn used_on(&self, stream: impl Into<StreamHandle>) {
        self.block.used_on(stream);
    }

    /// The current number of owners. Other threads may change it at any time.
    pub fn owners(&self) -> usize {
        Arc::strong_count(&self.block)
    }

    /// Converts the last owner into an [`OwnedBlock`], with the recorded streams. If there are other owners, fails and
    /// returns the handle.
    pub fn into_owned(self) -> core::result::Result<OwnedBlock<A>, Refused<Self>> {
        Arc::try_unwrap(self.block).map_err(|block| {
            let (address, owners) = (block.address(), Arc::strong_count(&block));
            let what = format!("the block at {address} has {owners} owners").into();
            let error = Error::Device(hal::Error::Busy { call: Call::Free, what });
            Refused::new(Self { block }, error)
        })
    }
}

impl<A: Allocate> From<OwnedBlock<A>> for SharedBlock<A> {
    fn from(block: OwnedBlock<A>) -> Self {
        Self { block: Arc::new(block) }
    }
}

impl<A: Allocate> Clone for SharedBlock<A> {
    /// Adds an owner.
    fn clone(&self) -> Self {
        Self { block: Arc::clone(&self.block) }
    }
}

impl<A: Allocate> fmt::Debug for SharedBlock<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBlock")
            .field("block", &self.block)
            .field("owners", &self.owners())
            .finish()
    }
}
