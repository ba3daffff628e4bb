//! Blocks, requests, and the trait that pools and adaptors implement.

use std::sync::Arc;

use forebay_core::{Address, Alignment, Bytes};
use forebay_hal::{Device, NamedStream, StreamHandle};

use crate::{Error, MemoryClass, PoolId, Result};

/// A block of a pool: plain data. Dropping it frees nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub(crate) address: Address,
    pub(crate) size: Bytes,
    pub(crate) pool: PoolId,
    pub(crate) generation: u64,
}

impl Block {
    /// The address of the first byte; null for a block of no bytes.
    pub fn address(&self) -> Address {
        self.address
    }

    /// The size: the requested one, rounded up.
    pub fn size(&self) -> Bytes {
        self.size
    }

    /// The pool that it is from.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// How many times its address was allocated, this time included. It distinguishes the block from earlier and later
    /// ones at the same address.
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

/// The properties of a block to allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a request asks for nothing until it is given to an allocator"]
pub struct Request {
    pub(crate) size: Bytes,
    pub(crate) stream: StreamHandle,
    pub(crate) alignment: Alignment,
    pub(crate) class: MemoryClass,
    /// Whether the caller tries again if it is refused. Then the refusal is not reported.
    pub(crate) is_retried: bool,
}

impl Request {
    /// Requests at least `size` bytes, aligned to 512 B, to be used in the order of `stream`.
    pub fn new(size: Bytes, stream: impl Into<StreamHandle>) -> Self {
        Self {
            size,
            stream: stream.into(),
            alignment: Alignment::BLOCK,
            class: MemoryClass::STITCHED,
            is_retried: false,
        }
    }

    /// Requests a larger alignment.
    pub const fn aligned_to(mut self, alignment: Alignment) -> Self {
        self.alignment = alignment;
        self
    }

    /// Requests a class of memory. A pool of another class refuses the request.
    pub const fn of_class(mut self, class: MemoryClass) -> Self {
        self.class = class;
        self
    }

    /// The size in bytes.
    pub const fn size(&self) -> Bytes {
        self.size
    }

    /// The stream.
    pub const fn stream(&self) -> StreamHandle {
        self.stream
    }

    /// The alignment.
    pub const fn alignment(&self) -> Alignment {
        self.alignment
    }

    /// The class of memory.
    pub const fn class(&self) -> MemoryClass {
        self.class
    }

    /// Whether it was refused, and will be tried again.
    pub(crate) fn is_refused_for_now<T>(&self, got: &Result<T>) -> bool {
        self.is_retried && matches!(got, Err(Error::OutOfMemory(_)))
    }
}

/// An allocator of blocks: a pool, or an adaptor over another allocator.
///
/// # Safety
///
/// Handles read and write blocks in safe code, so an implementation promises:
///
/// * A block is live memory of [`device`](Self::device) and has no other user, until it is freed here or the
///   allocator and all its clones are dropped.
/// * [`own`](Self::own) succeeds for one owner at a time. From then until [`disown`](Self::disown), every free of the
///   block fails. An allocator whose blocks only the caller can name may keep the default methods.
pub unsafe trait Allocate: Send + Sync {
    /// Allocates a block. Its contents are undefined. A request for no bytes returns the null address and takes no
    /// memory.
    fn allocate_request(&self, request: Request) -> Result<Block>;

    /// Frees the block at `address` in the order of `stream`: work that is enqueued there from now on may reuse the
    /// memory. Ignores the null address.
    fn free(&self, address: Address, stream: StreamHandle) -> Result<()>;

    /// As [`free`](Self::free), and refuses a block of another pool, or one whose address was allocated again since.
    ///
    /// The default method checks first and frees then, so it misses a block that other threads free and allocate in
    /// between. A pool does both at once, and adaptors pass the call on.
    fn free_block(&self, block: Block, stream: StreamHandle) -> Result<()> {
        let address = block.address();
        match self.block_at(address) {
            Some(there) if there.pool() != block.pool() => {
                Err(Error::WrongPool { address, pool: there.pool(), owner: block.pool() })
            }
            Some(there) if there.generation() != block.generation() => {
                Err(Error::StaleBlock { address, size: there.size() })
            }
            _ => self.free(address, stream),
        }
    }

    /// The live block that begins at `address`.
    fn block_at(&self, address: Address) -> Option<Block>;

    /// The device that the blocks are on.
    fn device(&self) -> &Arc<dyn Device>;

    /// Makes the caller the owner of a block, which then cannot be freed by its address. Fails if the block is no
    /// longer live or has an owner.
    fn own(&self, block: Block) -> Result<()> {
        let _ = block;
        Ok(())
    }

    /// Ends the ownership of a block that the caller is about to free or to hand on.
    ///
    /// # Safety
    ///
    /// * The caller [owns](Self::own) the block, and does not touch its memory before it owns the block again.
    unsafe fn disown(&self, block: Block) {
        let _ = block;
    }

    /// Allocates a block that the caller owns: [`allocate_request`](Self::allocate_request) and [`own`](Self::own) in
    /// one call, which a pool serves from its cache.
    fn allocate_owned(&self, request: Request) -> Result<Block> {
        let block = self.allocate_request(request)?;
        self.own(block)?;
        Ok(block)
    }

    /// Frees a block that the caller owns: [`disown`](Self::disown) and [`free_block`](Self::free_block) in one call.
    /// After an error the block has no owner.
    ///
    /// # Safety
    ///
    /// * As for [`disown`](Self::disown).
    unsafe fn free_owned(&self, block: Block, stream: StreamHandle) -> Result<()> {
        // SAFETY: as the caller promised.
        unsafe { self.disown(block) };
        self.free_block(block, stream)
    }

    /// The pool that serves the requests in the end, if there is one. [`allocate_async`](crate::handle::allocate_async)
    /// queues requests per pool, so that those of one pool do not wait for those of another.
    fn pool_id(&self) -> Option<PoolId> {
        None
    }

    /// Whether work is being captured into a graph ([`Pool::capture`](crate::Pool::capture)). Handles record no events
    /// then.
    fn is_capturing(&self) -> bool {
        false
    }

    /// Tells the allocator that work on `stream` uses one of its blocks, so that it detects the end of the stream.
    fn watch_stream(&self, stream: StreamHandle) {
        let _ = stream;
    }

    /// Records that the block at `address` is also used on `stream`, as [`Pool::record_use`](crate::Pool::record_use)
    /// does: once the block is freed, its memory is reused only after the work that was enqueued there by then, or
    /// before the stream ended.
    ///
    /// An allocator that keeps no such record returns [`RecordedUse::Unsupported`], as the default method does. A
    /// handle then makes the stream it frees on wait for the other streams before it frees the block.
    fn record_use(&self, address: Address, stream: NamedStream) -> Result<RecordedUse> {
        let _ = (address, stream);
        Ok(RecordedUse::Unsupported)
    }
}

/// How an allocator handled a [use](Allocate::record_use) of a block on another stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a use that was not recorded has to be ordered by the caller"]
pub enum RecordedUse {
    /// The memory is reused only after that use.
    Recorded,
    /// Not recorded: the caller must order it.
    Unsupported,
}

/// Frees a block without a handle in the order of a stream that may have ended since it was named. If it has, frees in
/// the order of the default stream and records the ended one as a use.
pub(crate) fn free_named(
    allocator: &impl Allocate,
    address: Address,
    stream: NamedStream,
) -> Result<()> {
    if !stream.has_ended(allocator.device()) {
        return allocator.free(address, stream.handle());
    }
    if allocator.record_use(address, stream)? == RecordedUse::Unsupported {
        allocator.device().synchronize_device()?;
    }
    allocator.free(address, StreamHandle::DEFAULT)
}

/// The methods of [`Allocate`] that an adaptor forwards to the allocator beneath it: all except those that allocate and
/// free. `self` is passed so that the expression may use it.
macro_rules! leave_to {
    ($self:ident => $beneath:expr) => {
        fn block_at(&$self, address: forebay_core::Address) -> Option<$crate::Block> {
            $beneath.block_at(address)
        }

        fn device(&$self) -> &std::sync::Arc<dyn forebay_hal::Device> {
            $beneath.device()
        }

        fn own(&$self, block: $crate::Block) -> $crate::Result<()> {
            $beneath.own(block)
        }

        unsafe fn disown(&$self, block: $crate::Block) {
            // SAFETY: as the caller promised.
            unsafe { $beneath.disown(block) };
        }

        fn pool_id(&$self) -> Option<$crate::PoolId> {
            $beneath.pool_id()
        }

        fn is_capturing(&$self) -> bool {
            $beneath.is_capturing()
        }

        fn watch_stream(&$self, stream: forebay_hal::StreamHandle) {
            $crate::Allocate::watch_stream(&$beneath, stream);
        }

        fn record_use(
            &$self,
            address: forebay_core::Address,
            stream: forebay_hal::NamedStream,
        ) -> $crate::Result<$crate::RecordedUse> {
            $crate::Allocate::record_use(&$beneath, address, stream)
        }
    };
}

pub(crate) use leave_to;

/// Forwards every call through a pointer.
macro_rules! behind {
    ($($pointer:ty),*) => {
        // SAFETY: every call goes to what is pointed to, which keeps the promises.
        $(unsafe impl<A: Allocate + ?Sized> Allocate for $pointer {
            fn allocate_request(&self, request: Request) -> Result<Block> {
                (**self).allocate_request(request)
            }

            fn free(&self, address: Address, stream: StreamHandle) -> Result<()> {
                (**self).free(address, stream)
            }

            fn free_block(&self, block: Block, stream: StreamHandle) -> Result<()> {
                (**self).free_block(block, stream)
            }

            fn allocate_owned(&self, request: Request) -> Result<Block> {
                (**self).allocate_owned(request)
            }

            unsafe fn free_owned(&self, block: Block, stream: StreamHandle) -> Result<()> {
                // SAFETY: as the caller promised.
                unsafe { (**self).free_owned(block, stream) }
            }

            leave_to!(self => (**self));
        })*
    };
}

behind!(Arc<A>, &A);
