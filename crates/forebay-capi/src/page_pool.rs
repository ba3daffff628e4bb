//! The pool of pinned host memory that each open device has.

use std::sync::Arc;

use forebay::host::mapping::system_page;
use forebay::{Address, Alignment, Bytes, Device, Error, PinnedPool};

use crate::status::Failure;

/// A pool whose blocks are whole pages of the system: its segments begin at one, and where all blocks are whole pages
/// all begin at one.
pub(crate) struct PagePool {
    pub(crate) pool: PinnedPool,
    page: Alignment,
}

impl PagePool {
    pub(crate) fn new(device: &Arc<dyn Device>) -> Result<Self, Failure> {
        Ok(Self { pool: PinnedPool::new(device)?, page: system_page() })
    }

    /// Allocates a block from this thread's cache, without the call of a function.
    #[inline(always)]
    pub(crate) fn allocate_hit(&self, size: u64) -> Option<Address> {
        let below = self.page.get() - 1;
        // What overflows becomes a size that no cache has.
        self.pool.allocate_raw_hit(Bytes::new(size.wrapping_add(below) & !below))
    }

    /// Allocates whole pages.
    pub(crate) fn allocate(&self, size: u64) -> Result<Address, Failure> {
        let pages = Bytes::new(size).checked_align_up(self.page).ok_or_else(|| {
            Failure::argument("size", size, "a size that can be rounded up to whole pages")
        })?;
        let block = self.pool.allocate_raw(pages)?;
        debug_assert!(block.address().is_aligned_to(self.page), "{block:?}");
        Ok(block.address())
    }

    /// Frees a block.
    ///
    /// # Safety
    ///
    /// * As for [`PinnedPool::free_raw`].
    pub(crate) unsafe fn free(&self, memory: Address) -> Result<(), Failure> {
        // SAFETY: as the caller promises; the pool refuses what it did not give.
        match unsafe { self.pool.free_raw(memory) } {
            Err(Error::NotABlock { .. } | Error::DoubleFree { .. } | Error::WrongPool { .. }) => {
                Err(not_pinned(memory))
            }
            freed => Ok(freed?),
        }
    }
}

/// The refusal of an address at which no live memory of the pool begins.
pub(crate) fn not_pinned(memory: Address) -> Failure {
    let allowed = "memory of forebay_pinned_alloc of this device that was not freed";
    Failure::argument("memory", memory, allowed)
}
