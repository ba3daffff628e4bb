//! Inspecting a pool: snapshot, memory map, pages, and findings of the debug checks.

use forebay_core::Address;

use crate::pool::Pool;
use crate::pool::calls::block_pages::PagePart;
use crate::pool::views::memory_map::{self, MemoryMap};
use crate::pool::views::snapshot::{self, Snapshot};
use crate::sync::tracked::lock;
use crate::{Error, Result};

impl Pool {
    /// The whole visible state of the pool, as plain data. The counters are from one moment; the blocks from a moment
    /// soon after, if other threads use the pool. It reads every block slot ever used, so call it now and then, not at
    /// every step. In a forked child, all counters of the parent's pool are 0, and no blocks are listed.
    pub fn snapshot(&self) -> Snapshot {
        snapshot::of(&self.shared, &self.settings())
    }

    /// The addresses of the pool's memory, and every block in it. The blocks are from a moment soon after that of the
    /// memory, if other threads use the pool. It reads every page and every block slot ever used, so call it now and
    /// then, not at every step.
    ///
    /// With the setting `guard_pages` each block is on pages of its own, which are not among the spans. Empty in a
    /// forked child for the parent's pool.
    pub fn memory_map(&self) -> MemoryMap {
        memory_map::of(&self.shared)
    }

    /// The number of pages the pool holds, or of segments on a device that maps no pages. 0 in a forked child for the
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

    /// The pages behind the live block at `address`, in the order of its addresses; empty if its memory does not
    /// consist of pages. Other blocks may be in the same pages.
    ///
    /// The pages stay behind the block while it is live. In a pool of [`MemoryClass::SHAREABLE`](crate::MemoryClass)
    /// they can be exported ([`Sharing`](forebay_hal::Sharing)), and stay behind these addresses afterwards too. The
    /// importing process maps a page and finds the block at the offset.
    pub fn pages_of(&self, address: Address) -> Result<Vec<PagePart>> {
        self.shared.pages_of(address)
    }

    /// Checks everything that the debugging aids watch: the canaries of live blocks, and the quarantine. Returns the
    /// first mistake found; [`findings`](Self::findings) has all. Waits for the device. Without debugging aids it does
    /// nothing.
    ///
    /// A live block with a damaged canary stays live. A quarantined block that was written to is retired.
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

    /// The mistakes of the program that the debugging aids have found so far, each once, at most a thousand. Each call
    /// also returned its first one as an error, unless it was found in the background or by a [`change`](Self::change).
    /// Empty if the pool was made before a fork.
    pub fn findings(&self) -> Vec<Error> {
        if self.shared.is_inherited() {
            return Vec::new();
        }
        lock(&self.shared.debug.findings).clone()
    }
}
