//! The pool: its options, and how it grows.

use core::fmt;
use std::sync::Arc;

use forebay_core::address_space::Growth;
use forebay_core::{Address, Bytes, PageSize};
use forebay_hal::{self as hal, Device, MemorySource, PinnedFlags, StreamHandle, ToDevice};

use super::source::PinnedSource;
use crate::block::leave_to;
use crate::config::Fraction;
use crate::pool::Capture;
use crate::{Allocate, Block, Error, OwnedBlock, Pool, PoolOptions, Request, Result, Statistics};

/// The default of `max_bytes`: half of the machine's memory. The system cannot reclaim pinned memory, so a program that
/// pins nearly all of it stalls the machine.
const MAX: Fraction = Fraction::percent(50);

/// Options of a new [`PinnedPool`]. Environment settings, which are for device memory, do not apply.
///
/// ```
/// use forebay::pinned::PinnedOptions;
/// use forebay::{Bytes, HostDevice};
///
/// let device = HostDevice::open()?;
/// let pool = PinnedOptions::new().mapped().max_bytes(Bytes::mib(64)).build(&device)?;
/// assert_eq!(pool.limit(), Bytes::mib(64));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until a pool is built"]
pub struct PinnedOptions {
    flags: PinnedFlags,
    max_bytes: Option<Bytes>,
}

impl PinnedOptions {
    /// The default options: neither mapped, portable nor write-combined, and at most half of the machine's memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Also maps the memory to a device address: [`PinnedArray::device_address`](super::PinnedArray::device_address).
    pub fn mapped(mut self) -> Self {
        self.flags |= PinnedFlags::MAPPED;
        self
    }

    /// Pins the memory for every device of the process.
    pub fn portable(mut self) -> Self {
        self.flags |= PinnedFlags::PORTABLE;
        self
    }

    /// Keeps the memory out of the processor's caches, which makes it fast for the device to read and very slow for the
    /// host to read. Building the pool fails if the device does not support it.
    pub fn write_combined(mut self) -> Self {
        self.flags |= PinnedFlags::WRITE_COMBINED;
        self
    }

    /// Limits how much the pool pins, rounded up to 4 KiB.
    pub fn max_bytes(mut self, max_bytes: Bytes) -> Self {
        self.max_bytes = Some(max_bytes);
        self
    }

    /// Builds the pool. Pins nothing yet.
    pub fn build(self, device: &impl ToDevice) -> Result<PinnedPool> {
        let device = device.to_device();
        let source = Arc::new(PinnedSource::new(Arc::clone(&device), self.flags)?);
        let options = PoolOptions::new().set(|settings| match self.max_bytes {
            Some(most) => settings.max_bytes(most),
            None => settings.max_fraction(MAX),
        });
        let in_pages = source.pages().is_some();
        let growth = if in_pages { growth_of_pages() } else { growth_of_segments() };
        let of: Arc<dyn MemorySource> = Arc::<PinnedSource>::clone(&source);
        let pool = options.growth(growth).build_from(&device, of)?;
        let host = source.host();
        Ok(PinnedPool { parts: Arc::new(Parts { pool, source, host }) })
    }
}

/// How a pool grows by pages. Pinning costs by the byte, so the smallest pages are as cheap as large ones and waste the
/// least. Pinned memory is lost to the rest of the machine, so free pages are moved in preference to pinning new ones.
fn growth_of_pages() -> Growth {
    let mut growth = Growth::default();
    growth.largest_page = PageSize::DEVICE.bytes();
    growth.part = 64;
    growth.spare_pages = 1;
    growth.spare_part = 64;
    growth
}

/// How a pool grows by segments: by a twelfth of what it holds, without a cap, because blocks of many sizes share a
/// large segment better than small ones.
fn growth_of_segments() -> Growth {
    let mut growth = Growth::default();
    growth.largest_page = Bytes::gib(1);
    growth.reach_part = 1;
    growth
}

/// A pool of a device's pinned host memory. Clones share it, and any thread may use it.
///
/// The [module's documentation](super) explains when memory is reused.
#[derive(Clone)]
pub struct PinnedPool {
    pub(super) parts: Arc<Parts>,
}

/// The state shared by a pool's clones and its arrays. One reference count for everything, because making and dropping
/// an array takes little more time than counting does.
pub(super) struct Parts {
    pub(super) pool: Pool,
    pub(super) source: Arc<PinnedSource>,
    /// The stream that represents the host.
    host: StreamHandle,
}

// SAFETY: every call is the pool's.
unsafe impl Allocate for Parts {
    fn allocate_request(&self, request: Request) -> Result<Block> {
        self.pool.allocate_request(request)
    }

    fn free(&self, address: Address, stream: StreamHandle) -> Result<()> {
        self.pool.free(address, stream)
    }

    fn free_block(&self, block: Block, stream: StreamHandle) -> Result<()> {
        self.pool.free_block(block, stream)
    }

    fn allocate_owned(&self, request: Request) -> Result<Block> {
        self.pool.allocate_owned(request)
    }

    unsafe fn free_owned(&self, block: Block, stream: StreamHandle) -> Result<()> {
        // SAFETY: as the caller promised.
        unsafe { self.pool.free_owned(block, stream) }
    }

    leave_to!(self => self.pool);
}

impl PinnedPool {
    /// Makes a pool with the default options. Fails with [`Unsupported`](forebay_hal::Error::Unsupported) if `device`
    /// cannot pin host memory.
    pub fn new(device: &impl ToDevice) -> Result<Self> {
        PinnedOptions::new().build(device)
    }

    pub(super) fn owned(&self, request: Request) -> Result<OwnedBlock<Arc<Parts>>> {
        let owned = OwnedBlock::new(&self.parts, request).map_err(|error| self.explain(error))?;
        Ok(owned.on_lasting_stream())
    }

    /// The device's error if it has less memory than the pool knows: the system limits the memory a process locks.
    fn explain(&self, error: Error) -> Error {
        let refusal = match &error {
            Error::OutOfMemory(_) => self.parts.pool.take_refusal(),
            _ => None,
        };
        match refusal {
            Some(refusal @ hal::Error::OutOfMemory { total, .. })
                if self.parts.source.memory_info().is_ok_and(|info| total < info.total) =>
            {
                Error::Device(refusal)
            }
            _ => error,
        }
    }

    /// The device that copies from and to the memory.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.parts.pool.device()
    }

    /// The most that the pool pins.
    pub fn limit(&self) -> Bytes {
        self.parts.pool.limit()
    }

    /// How much the pool has pinned.
    pub fn held(&self) -> Bytes {
        self.parts.pool.held()
    }

    /// Statistics of the pool at one moment. All blocks count for one stream, which represents the host.
    pub fn statistics(&self) -> Statistics {
        self.parts.pool.statistics()
    }

    /// Unpins free memory until the pool holds `keep` bytes, and returns the bytes unpinned. Waits for work that uses
    /// freed memory.
    pub fn trim(&self, keep: Bytes) -> Result<Bytes> {
        self.parts.pool.trim(keep)
    }

    /// Makes the pool and its arrays safe to use while work is captured into a graph, as
    /// [`Pool::capture`](crate::Pool::capture) does for device memory: no event is recorded or queried until the guard
    /// is dropped. Memory used by work meanwhile is reused after a wait for the whole device.
    pub fn capture(&self) -> Result<Capture> {
        self.parts.pool.capture()
    }

    /// The stream that represents the host.
    pub(super) fn host(&self) -> StreamHandle {
        self.parts.host
    }
}

/// Blocks without a handle, for bindings.
#[doc(hidden)]
impl PinnedPool {
    /// Allocates a block that only [`free_raw`](Self::free_raw) frees.
    pub fn allocate_raw(&self, size: Bytes) -> Result<Block> {
        let request = Request::new(size, self.host());
        self.parts.pool.allocate_owned(request).map_err(|error| self.explain(error))
    }

    /// Inlined fast path of [`allocate_raw`](Self::allocate_raw) for small blocks. Returns `None`, without effect, if
    /// it does not apply.
    #[inline(always)]
    pub fn allocate_raw_hit(&self, size: Bytes) -> Option<Address> {
        self.parts.pool.allocate_owned_hit(size, self.parts.host)
    }

    /// The requested size of a live block of [`allocate_raw`](Self::allocate_raw).
    pub fn requested_raw(&self, address: Address) -> Option<Bytes> {
        self.parts.pool.requested_at(address)
    }

    /// Records that work enqueued so far on `stream`, on the device of `of`, uses the block. Waits for the work if no
    /// event can be recorded.
    pub fn record_raw(&self, address: Address, of: &Pool, stream: StreamHandle) -> Result<()> {
        let record = || {
            let event = of.work_event()?;
            event.record(stream)?;
            self.parts.pool.record_use_until(address, Some(&event))
        };
        match record() {
            Err(_) if of.device().synchronize_stream(stream).is_ok() => Ok(()),
            recorded => recorded,
        }
    }

    /// The pool of the blocks, for its statistics.
    pub fn raw(&self) -> &Pool {
        &self.parts.pool
    }

    /// Frees a block of [`allocate_raw`](Self::allocate_raw). Its memory may be allocated again at once.
    ///
    /// # Safety
    ///
    /// * All work that uses the block is done or recorded, and nothing uses it from now on.
    pub unsafe fn free_raw(&self, address: Address) -> Result<()> {
        // SAFETY: the caller gives the block up.
        unsafe { self.parts.pool.free_owned_at(address, self.parts.host) }
    }

    /// Inlined fast path of [`free_raw`](Self::free_raw) for small blocks. Returns `false`, without effect, if it does
    /// not apply.
    ///
    /// # Safety
    ///
    /// * As for [`free_raw`](Self::free_raw).
    #[inline(always)]
    pub unsafe fn free_raw_hit(&self, address: Address) -> bool {
        // SAFETY: the caller gives the block up.
        unsafe { self.parts.pool.free_owned_hit(address, self.parts.host) }
    }
}

impl fmt::Debug for PinnedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedPool({:?} on {})", self.parts.pool, self.device().descriptor())
    }
}
