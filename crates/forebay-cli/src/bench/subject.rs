//! The allocators under test, behind one interface without lookups or indirect calls.

use core::ffi::c_void;
use core::ptr::NonNull;
use std::sync::Arc;

use forebay::{Pool, Result};
use forebay_core::{Address, Alignment, Bytes};
use forebay_hal::{Call, Device, Error, StreamHandle};

/// An allocator to be measured. Threads share it.
pub(crate) trait Subject: Sync {
    /// What stands for a block. It cannot be copied, so a block is freed once.
    type Held: Send;

    /// A block of `size` bytes.
    fn allocate(&self, size: Bytes, stream: StreamHandle) -> Result<Self::Held>;

    /// Gives a block back.
    fn free(&self, held: Self::Held, stream: StreamHandle) -> Result<()>;
}

/// forebay's pool, freed by pointer as programs in other languages do.
pub(crate) struct Forebay(pub(crate) Pool);

/// A block of the pool or of the device. It cannot be copied.
pub(crate) struct UniqueBlock(Address);

impl Subject for Forebay {
    type Held = UniqueBlock;

    #[inline]
    fn allocate(&self, size: Bytes, stream: StreamHandle) -> Result<UniqueBlock> {
        self.0.allocate(size, stream).map(|block| UniqueBlock(block.address()))
    }

    #[inline]
    fn free(&self, held: UniqueBlock, stream: StreamHandle) -> Result<()> {
        self.0.free(held.0, stream)
    }
}

/// The same pool, without the counts of its statistics.
pub(crate) struct Uncounted(pub(crate) Pool);

impl Subject for Uncounted {
    type Held = UniqueBlock;

    #[inline]
    fn allocate(&self, size: Bytes, stream: StreamHandle) -> Result<UniqueBlock> {
        self.0.allocate_uncounted(size, stream).map(|block| UniqueBlock(block.address()))
    }

    #[inline]
    fn free(&self, held: UniqueBlock, stream: StreamHandle) -> Result<()> {
        self.0.free_uncounted(held.0, stream)
    }
}

/// The device, asked for every block.
pub(crate) struct Driver(pub(crate) Arc<dyn Device>);

impl Subject for Driver {
    type Held = UniqueBlock;

    #[inline]
    fn allocate(&self, size: Bytes, _: StreamHandle) -> Result<UniqueBlock> {
        Ok(self.0.allocate(size, Alignment::BLOCK).map(UniqueBlock)?)
    }

    #[inline]
    fn free(&self, held: UniqueBlock, _: StreamHandle) -> Result<()> {
        // SAFETY: the address came from this device and is given back once, since what stands for
        // it is not copied; no work was ever enqueued on it.
        Ok(unsafe { self.0.free(held.0) }?)
    }
}

/// mimalloc, a good allocator of host memory: the yardstick of what a pair can cost.
pub(crate) struct Mimalloc;

/// Memory of mimalloc.
pub(crate) struct MimallocBlock(NonNull<c_void>);

// SAFETY: mimalloc's memory may be freed on any thread, and nothing is read or written through it.
unsafe impl Send for MimallocBlock {}

impl Subject for Mimalloc {
    type Held = MimallocBlock;

    #[inline]
    fn allocate(&self, size: Bytes, _: StreamHandle) -> Result<MimallocBlock> {
        let bytes =
            size.to_usize().map_err(|error| Error::quantity(Call::Allocate, "size", &error));
        // SAFETY: any size may be asked for; what cannot be had is null.
        let got = NonNull::new(unsafe { libmimalloc_sys::mi_malloc(bytes?) });
        let refused = || Error::OutOfMemory {
            call: Call::Allocate,
            requested: size,
            free: Bytes::ZERO,
            total: Bytes::ZERO,
        };
        Ok(MimallocBlock(got.ok_or_else(refused)?))
    }

    #[inline]
    fn free(&self, held: MimallocBlock, _: StreamHandle) -> Result<()> {
        // SAFETY: the pointer came from mimalloc and is given back once, since what stands for it
        // is not copied.
        unsafe { libmimalloc_sys::mi_free(held.0.as_ptr()) };
        Ok(())
    }
}
