//! Looking into a pool: its snapshot, its memory map, its pages, and what debug checks have found.

use forebay_core::Address;

use crate::pool::Pool;
use crate::pool::calls::block_pages::PagePart;
use crate::pool::views::memory_map::{self, MemoryMap};
use crate::pool::views::snapshot::{self, Snapshot};
use crate::sync::tracked::lock;
use crate::{Error, Result};

impl Pool {
    /// All there is to see of the pool now, as plain data. The figures are of one moment; the blocks of
    /// a moment soon after, where other threads go on. Looks at every block there ever was: for now and
    /// then, not for every step. In a forked child all figures of its
    /// parent's pool are 0, and no blocks are named.
    pub fn snapshot(&self) -> Snapshot {
        snapshot::of(&self.shared, &self.settings())
    }

    /// Where the memory of the pool lies, and every block in it. The blocks are of a moment soon after
    /// that of the memory, where other threads go on. Looks at every page and at every block there ever
    /// was: for now and then, not for every step.
    ///
    /// With the setting `guard_pages` each block lies in pages of its own, which are not among the spans.
    /// Empty in a forked child, of its parent's pool.
    pub fn memory_map(&self) -> MemoryMap {
        memory_map::of(&self.shared)
    }

    /// How many pages the pool holds, or segments on a device that has no pages. 0 in a forked child, of its
    /// parent's pool.
    pub fn page_count(&self) -> u64 {
        if self.shared.is_inherited() {
            return 0;
        }
        let heap = self.shared.heap();
        [&heap.small, &heap.large]
            .map(|side_heap| side_heap.space.pages().count() as u64)
            .iter()
            .sum()
    }

    /// The pages behind the live block at `address`, in the order of its addresses; none where its
    /// memory is not made of pages. Each is wholly the device's unit: others may have blocks in it.
    ///
    /// They are the block's as long as it is live. In a pool of [`MemoryClass::SHAREABLE`](crate::MemoryClass) they
    /// can be exported ([`Sharing`](forebay_hal::Sharing)), and stay behind these addresses afterwards
    /// too; whoever imports one maps it and finds the block at the offset.
    pub fn pages_of(&self, address: Address) -> Result<Vec<PagePart>> {
        self.shared.pages_of(address)
    }

    /// Looks over all that the debugging aids watch: the canaries of live blocks, and what is in
    /// quarantine. Gives the first mistake of the program that is found; [`findings`](Self::findings)
    /// has all. Waits for the device. With no aid on there is nothing to look at.
    ///
    /// A live block stays live, with its canary as it is. What is in quarantine and was written to is
    /// retired.
    ///
    /// ```
    /// use forebay::{Bytes, HostDevice, PoolOptions, StreamHandle};
    ///
    /// let device = HostDevice::open()?;
    /// let pool = PoolOptions::new().set(|settings| settings.canaries(true)).build(&device)?;
    /// let block = pool.allocate(Bytes::new(4096), StreamHandle::DEFAULT)?;
    /// pool.check()?;
    /// pool.free(block.address(), StreamHandle::DEFAULT)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check(&self) -> Result<()> {
        self.shared.check()
    }

    /// The mistakes of the program that the debugging aids have found so far, each once, the first
    /// thousand. The first of each call was its error as well, unless it was found in the background or by a
    /// [`change`](Self::change). Empty if the pool was made before a fork.
    pub fn findings(&self) -> Vec<Error> {
        if self.shared.is_inherited() {
            return Vec::new();
        }
        lock(&self.shared.debug.findings).clone()
    }
}
