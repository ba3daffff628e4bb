//! Blocks and requests: plain data that every allocator and adaptor speaks in.

use std::sync::Arc;

use forebay_core::{Address, Alignment, Bytes};
use forebay_hal::{self as hal, Call, Device, StreamHandle};

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
    /// Where it begins; null for a block of no bytes.
    pub fn address(&self) -> Address {
        self.address
    }

    /// How large it is: what was asked for, rounded up.
    pub fn size(&self) -> Bytes {
        self.size
    }

    /// The pool it is of.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// How often its address was given out, this time included: tells it from every other block that was
    /// or will be at the same address.
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

/// What a block is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a request asks for nothing until it is given to an allocator"]
pub struct Request {
    pub(crate) size: Bytes,
    pub(crate) stream: StreamHandle,
    pub(crate) alignment: Alignment,
    pub(crate) class: MemoryClass,
}

impl Request {
    /// At least `size` bytes, to be used in the order of `stream`, at a multiple of 512 B.
    pub const fn new(size: Bytes, stream: StreamHandle) -> Self {
        Self { size, stream, alignment: Alignment::BLOCK, class: MemoryClass::STITCHED }
    }

    /// At a multiple of `alignment` too.
    pub const fn aligned_to(mut self, alignment: Alignment) -> Self {
        self.alignment = alignment;
        self
    }

    /// Of this class: a pool of another refuses it.
    pub const fn of_class(mut self, class: MemoryClass) -> Self {
        self.class = class;
        self
    }

    /// How many bytes.
    pub const fn size(&self) -> Bytes {
        self.size
    }

    /// In whose order.
    pub const fn stream(&self) -> StreamHandle {
        self.stream
    }

    /// What its address is a multiple of.
    pub const fn alignment(&self) -> Alignment {
        self.alignment
    }

    /// Which class of memory it has to be.
    pub const fn class(&self) -> MemoryClass {
        self.class
    }
}

/// What hands out blocks: a pool, or an adaptor over another allocator.
///
/// # Safety
///
/// Handles read and write blocks in safe code, so an implementation promises:
///
/// * A block that it gives is memory of [`device`](Self::device), live and nobody else's, until it is freed
///   here or the allocator and all its clones are gone.
/// * [`own`](Self::own) succeeds for one owner at a time, and from then until
///   [`disown`](Self::disown) nothing but that frees the block. One whose blocks nobody can name may leave
///   both as they are.
pub unsafe trait Allocate: Send + Sync {
    /// A block as requested. What it holds is not defined. No bytes: the null address, and no
    /// memory.
    fn allocate_request(&self, request: Request) -> Result<Block>;

    /// Gives back the block that begins at `address`, in the order of `stream`: its memory may be
    /// used again by what is enqueued there from now on. The null address is ignored.
    fn free(&self, address: Address, stream: StreamHandle) -> Result<()>;

    /// As [`free`](Self::free), for the very block that was given out: one of another pool is
    /// refused, and one whose address was given out again since.
    ///
    /// Unless an allocator does better, it looks and then frees: a block that is freed and given out
    /// again by others in between is not told from the one meant. A pool does both at once, and
    /// adaptors leave it to what is beneath them.
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

    /// The device the blocks are on.
    fn device(&self) -> &Arc<dyn Device>;

    /// Makes the caller the owner of a block that was just given out: from now on it cannot be freed by its
    /// address. Refused where it is not live any more, or has an owner.
    fn own(&self, block: Block) -> Result<()> {
        let _ = block;
        Ok(())
    }

    /// The caller does not own the block any more, and is about to free it or to hand it on.
    ///
    /// # Safety
    ///
    /// * The caller [owns](Self::own) the block, and touches its memory no more before it owns it again.
    unsafe fn disown(&self, block: Block) {
        let _ = block;
    }

    /// The pool that requests reach in the end, if there is one. Requests of
    /// [`allocate_async`](crate::handle::allocate_async) to one pool are served in their order, and do
    /// not wait for those to another.
    fn pool_id(&self) -> Option<PoolId> {
        None
    }

    /// Whether work on streams is being captured into a graph
    /// ([`Pool::capture`](crate::Pool::capture)): then nobody records events there.
    fn is_capturing(&self) -> bool {
        false
    }

    /// Notes that the block at `address` is used on `stream` beside the one it will be freed on, as
    /// [`Pool::record_use`](crate::Pool::record_use). Asked of an allocator that
    /// [is capturing](Self::is_capturing), in place of an event; refused unless an allocator has it.
    fn record_use(&self, address: Address, stream: StreamHandle) -> Result<()> {
        let _ = (address, stream);
        let missing = "an allocator that notes further uses of its blocks".into();
        Err(hal::Error::Unsupported { call: Call::RecordEvent, missing }.into())
    }
}

/// The methods of [`Allocate`] that an adaptor leaves to the allocator beneath it: all but those that
/// allocate and free. `self` is named so that the expression may use it.
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

        fn record_use(
            &$self,
            address: forebay_core::Address,
            stream: forebay_hal::StreamHandle,
        ) -> $crate::Result<()> {
            $beneath.record_use(address, stream)
        }
    };
}

pub(crate) use leave_to;

/// Passes every call on to what a pointer points to.
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

            leave_to!(self => (**self));
        })*
    };
}

behind!(Arc<A>, &A);
