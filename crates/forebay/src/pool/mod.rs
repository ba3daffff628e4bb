//! The pool: stream-ordered blocks of any size, from pages that serve any request.
//!
//! ```text
//!   front     thread caches: a magazine for each stream        no lock: behind the thread's gate
//!   heap      all holes, by side and by stream                 heap lock, held briefly
//!   backing   pages, events, deferred work: the driver         backing lock, held during driver calls
//!   map       state of the block at an address                 atomics, no lock
//!   debug     debug checks, if any are on                      only on the slow path
//! ```
//!
//! Small blocks have an address space of their own, so that a block of a few bytes does not keep a large page in use.

mod api;
mod backing;
mod build;
mod calls;
mod common;
mod debug;
mod front;
mod heap;
mod inner;
mod process;
#[cfg(test)]
mod tests;
mod turn;
mod views;
#[cfg(feature = "host")]
mod work_event;

use core::fmt;
use std::sync::Arc;

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal};
use forebay_hal::{Device, NamedStream, StreamHandle, ToDevice};

use self::front::claimed::FreeClaim;
use self::inner::PoolInner;
use self::turn::UserRef;
#[cfg(feature = "uncounted")]
use crate::Tag;
use crate::pool::calls::{allocate, peers, put, restore, stream_end, trim, uses};
use crate::{Allocate, Block, Error, PoolId, RecordedUse, Request, Result};

pub use calls::block_pages::PagePart;
pub use calls::observe::Observation;
pub(crate) use calls::registry::live_blocks;
pub use calls::restore::KeptBlock;
pub use common::capture::Capture;
pub use common::group::{GroupStatistics, PeakStatistics};
pub use common::log::DriverLog;
pub use common::options::PoolOptions;
pub use process::free;
pub use views::memory_map::{MappedSpan, MemoryMap};
pub use views::scope::{Scope, ScopeStatistics};
pub use views::snapshot::{
    BlockSnapshot, DeviceSnapshot, OtherPoolSnapshot, RangeSnapshot, RefusalSnapshot,
    SettingSnapshot, Snapshot,
};
pub use views::statistics::{
    ClassStatistics, SideStatistics, Statistics, StreamStatistics, TagStatistics,
};
#[cfg(feature = "host")]
pub(crate) use work_event::WorkEvent;

/// A pool of device memory. Clones share it, and any thread may use it.
///
/// [`allocate`](Self::allocate) and [`free`](Self::free) work with plain [`Block`]s; [`on`](Self::on) binds the pool to a
/// stream, for arrays and blocks that free themselves. Dropping the last clone and the last handle returns the
/// memory to the device before that drop returns. (If one of the program's callbacks then keeps the upkeep thread for
/// longer than 50 ms, the memory is back once the callback has returned.)
#[derive(Clone)]
pub struct Pool {
    shared: UserRef,
}

impl Pool {
    fn with_shared(shared: Arc<PoolInner>) -> Self {
        Self { shared: UserRef::new(shared) }
    }
}

/// Checkpoints of a pool that graphs are captured from, for bindings.
#[doc(hidden)]
impl Pool {
    /// The live blocks, lowest address first, as a list for [`restore`](Self::restore). `stream_of` supplies the stream
    /// of each: the pool does not know on which one a block was allocated.
    pub fn kept_blocks(&self, stream_of: &dyn Fn(Address) -> StreamHandle) -> Vec<KeptBlock> {
        restore::kept_blocks(&self.shared, stream_of)
    }

    /// Makes `kept` the live blocks of the pool; on an error, nothing changes. A live block that is listed with its
    /// size stays untouched. Every other one is freed, in the order of the stream that `stream_of` returns; its
    /// recorded uses on further streams are dropped. Missing blocks are allocated exactly where they were, **whatever
    /// stream the free memory there belongs to: the caller vouches for the order**, and for no other thread using the
    /// pool meanwhile.
    ///
    /// Fails with [`Error::NotRestorable`](crate::Error::NotRestorable) if that memory is not free or no longer there,
    /// with [`Error::Owned`](crate::Error::Owned) if a handle owns a block that would be freed, and with
    /// [`Error::CaptureRefused`](crate::Error::CaptureRefused) if a debugging aid is on that excludes captures.
    pub fn restore(
        &self,
        kept: &[KeptBlock],
        stream_of: &dyn Fn(Address) -> StreamHandle,
    ) -> Result<()> {
        restore::restore(&self.shared, kept, stream_of)
    }

    /// Releases all free memory of a pool that graphs were captured from, once none of them is left, and returns how
    /// much. Only this releases [stable](crate::MemoryClass::STABLE) memory. Waits for all work of the process.
    pub fn trim_stable(&self) -> Result<Bytes> {
        trim::trim_stable(&self.shared)
    }

    /// How many times a page was added, removed or moved.
    pub fn page_changes(&self) -> u64 {
        if self.shared.is_from_parent() {
            return 0;
        }
        let heap = self.shared.heap();
        heap.spaces.both().iter().map(|space| space.page_table().page_changes()).sum()
    }

    /// Flushes the large block that this thread has cached for a stream, which counts in the peaks of the pool's group.
    pub fn flush_large(&self, stream: StreamHandle) {
        if !self.shared.is_from_parent() {
            self.shared.front.flush_own_large(&mut self.shared.heap(), stream.resolved());
        }
    }

    /// Lets another device of the same kind read and write the pool's memory, including what it adds later.
    pub fn grant_access(&self, peer: DeviceOrdinal) -> Result<()> {
        peers::grant_access(&self.shared, peer)
    }

    /// The other devices that may read and write the pool's memory.
    pub fn peers(&self) -> Vec<DeviceOrdinal> {
        self.shared.backing().large.kind.peers()
    }
}

/// Cache hits without a function call, for bindings: a C function then keeps nothing across a call, and takes fewer
/// instructions.
#[doc(hidden)]
impl Pool {
    /// Allocates a small block from this thread's cache. Returns `None` and changes nothing if that is not possible.
    #[inline(always)]
    pub fn allocate_hit(&self, size: Bytes, stream: StreamHandle) -> Option<Address> {
        allocate::allocate_small::<false>(&self.shared, size, stream).map(|block| block.address())
    }

    /// Frees a small block into this thread's cache, and checks its size if one is given. Returns `false` and changes
    /// nothing if that is not possible.
    #[inline(always)]
    pub fn free_hit(&self, address: Address, size: Option<Bytes>, stream: StreamHandle) -> bool {
        let claimed = size.map_or(FreeClaim::Any, FreeClaim::Sized);
        self.shared.front.keep::<true, false>(address, stream, claimed)
    }
}

/// Blocks that are owned without a handle, for pinned memory of bindings.
#[cfg(feature = "host")]
impl Pool {
    /// Like [`allocate_hit`](Self::allocate_hit), with the caller as the [owner](Allocate::own) of the block.
    #[inline(always)]
    pub(crate) fn allocate_owned_hit(&self, size: Bytes, stream: StreamHandle) -> Option<Address> {
        allocate::allocate_small::<true>(&self.shared, size, stream).map(|block| block.address())
    }

    /// Like [`free_hit`](Self::free_hit), for a block that has an owner.
    ///
    /// # Safety
    ///
    /// * The caller owns the block, or acts for its owner.
    #[inline(always)]
    pub(crate) unsafe fn free_owned_hit(&self, address: Address, stream: StreamHandle) -> bool {
        self.shared.front.keep::<true, false>(address, stream, FreeClaim::Owned)
    }

    /// Frees the block at `address`, which may have an owner.
    ///
    /// # Safety
    ///
    /// * The caller owns the block, or acts for its owner.
    #[inline]
    pub(crate) unsafe fn free_owned_at(
        &self,
        address: Address,
        stream: StreamHandle,
    ) -> Result<()> {
        let freed = calls::free::free::<true>(&self.shared, address, stream, FreeClaim::Owned);
        freed.inspect_err(|_| {
            if let Some(block) = self.block_at(address) {
                put::disown(&self.shared, block);
            }
        })
    }
}

/// The hot pair without statistics, to measure their cost. The pool's statistics are wrong afterwards.
#[cfg(feature = "uncounted")]
#[doc(hidden)]
impl Pool {
    #[inline(always)]
    pub fn allocate_uncounted(&self, size: Bytes, stream: StreamHandle) -> Result<Block> {
        allocate::allocate::<false>(&self.shared, size, stream, Tag::NONE)
    }

    #[inline(always)]
    pub fn free_uncounted(&self, address: Address, stream: StreamHandle) -> Result<()> {
        calls::free::free::<false>(&self.shared, address, stream, FreeClaim::Any)
    }
}

// SAFETY: every block is memory of a page or segment of the pool's device, and the heap gives each byte to at most one
// live block. `own` marks a block in the address map, and every free refuses it from then on. Clones share the memory,
// which stays until the last one is dropped.
unsafe impl Allocate for Pool {
    fn allocate_request(&self, request: Request) -> Result<Block> {
        Self::allocate_request(self, request)
    }

    fn free(&self, address: Address, stream: StreamHandle) -> Result<()> {
        Self::free(self, address, stream)
    }

    fn free_block(&self, block: Block, stream: StreamHandle) -> Result<()> {
        Self::free_block(self, block, stream)
    }

    fn block_at(&self, address: Address) -> Option<Block> {
        Self::block_at(self, address)
    }

    fn own(&self, block: Block) -> Result<()> {
        put::own(&self.shared, block)
    }

    unsafe fn disown(&self, block: Block) {
        put::disown(&self.shared, block);
    }

    #[inline]
    fn allocate_owned(&self, request: Request) -> Result<Block> {
        // A forked child owns nothing, not even what its thread had cached.
        if !self.shared.is_from_parent()
            && request.alignment() <= Alignment::BLOCK
            && self.class().contains(request.class())
            && let Some(block) =
                allocate::take_owned(&self.shared, request.size(), request.stream())
        {
            return Ok(block);
        }
        let block = Self::allocate_request(self, request)?;
        put::own(&self.shared, block)?;
        Ok(block)
    }

    #[inline]
    unsafe fn free_owned(&self, block: Block, stream: StreamHandle) -> Result<()> {
        let Block { address, pool: owner, generation, .. } = block;
        if owner != self.shared.id {
            return Err(Error::WrongPool { address, pool: self.shared.id, owner });
        }
        let claimed = FreeClaim::ExactOwned(generation);
        let freed = calls::free::free::<true>(&self.shared, address, stream, claimed);
        // After an error the block has no owner.
        freed.inspect_err(|_| put::disown(&self.shared, block))
    }

    fn device(&self) -> &Arc<dyn Device> {
        Self::device(self)
    }

    fn pool_id(&self) -> Option<PoolId> {
        Some(self.id())
    }

    fn is_capturing(&self) -> bool {
        self.shared.captures.any()
    }

    fn watch_stream(&self, stream: StreamHandle) {
        stream_end::watch_stream(&self.shared, stream);
    }

    fn record_use(&self, address: Address, stream: NamedStream) -> Result<RecordedUse> {
        uses::record_named_use(&self.shared, address, stream)?;
        Ok(RecordedUse::Recorded)
    }
}

/// A pool stands for its device: `Stream::new(&pool, Priority::High)`, `TransferOptions::new().build(&pool)`.
impl ToDevice for Pool {
    fn to_device(&self) -> Arc<dyn Device> {
        Arc::clone(self.device())
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.shared.is_from_parent() {
            return write!(f, "Pool({}, made before the process forked)", self.id());
        }
        let heap = self.shared.heap();
        write!(f, "Pool({}, {} out, {} held)", self.id(), heap.out(), heap.held())
    }
}
