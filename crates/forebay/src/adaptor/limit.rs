//! A limit on live bytes.

use core::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use super::Adapt;
use super::ledger::Ledger;
use crate::report::{RefusalCause, Shortage};
use crate::{Allocate, Block, Error, Request, Result};

/// An allocator that limits the bytes that are live at once.
///
/// It counts requested bytes, so a program meets the limit at the same request however the inner allocator rounds. It
/// reserves the bytes before it calls the inner allocator and releases them if that fails, so several threads never
/// exceed the limit together.
///
/// ```
/// # use forebay::StreamHandle;
/// use forebay::adaptor::Limited;
/// use forebay::{Allocate, Bytes, Error, Pool, Request};
/// # let device = forebay::HostDevice::open()?;
/// # let stream = StreamHandle::DEFAULT;
///
/// let limited = Limited::new(Pool::new(&device)?, Bytes::mib(10));
/// let block = limited.allocate_request(Request::new(Bytes::mib(7), stream))?;
/// let refused = limited.allocate_request(Request::new(Bytes::mib(4), stream));
/// assert!(matches!(refused, Err(Error::OutOfMemory(shortage)) if shortage.limit == Bytes::mib(10)));
/// limited.free(block.address(), stream)?;
/// assert_eq!(limited.available(), Bytes::mib(10));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Limited<A> {
    inner: A,
    limit: Bytes,
    used: AtomicU64,
    ledger: Ledger<Bytes>,
}

impl<A: Allocate> Limited<A> {
    /// Limits the live bytes of `inner` to `limit`.
    pub fn new(inner: A, limit: Bytes) -> Self {
        Self { inner, limit, used: AtomicU64::new(0), ledger: Ledger::new() }
    }

    /// The limit.
    pub fn limit(&self) -> Bytes {
        self.limit
    }

    /// The bytes that are live or being allocated.
    pub fn used(&self) -> Bytes {
        Bytes::new(self.used.load(Ordering::Relaxed))
    }

    /// The bytes that are left.
    pub fn available(&self) -> Bytes {
        self.limit.saturating_sub(self.used())
    }

    /// Reserves `size` bytes. Dropping the returned value releases them unless it is kept.
    fn reserve(&self, size: Bytes) -> Result<Room<'_>> {
        let room = |used: u64| {
            Bytes::new(used).checked_add(size).filter(|&sum| sum <= self.limit).map(Bytes::get)
        };
        // Relaxed: the sum is exact in any order, and it orders no other memory.
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room) {
            Ok(_) => Ok(Room { used: &self.used, size }),
            Err(used) => Err(self.refuse(size, Bytes::new(used))),
        }
    }

    fn refuse(&self, requested: Bytes, used: Bytes) -> Error {
        let info = self.inner.device().memory_info().unwrap_or_default();
        let (room, enough) = (self.limit.saturating_sub(used), used.checked_add(requested));
        Error::from(Shortage {
            requested,
            needed: requested,
            cause: RefusalCause::Limit,
            limit: self.limit,
            held: used,
            live: used,
            largest_free: room,
            device_free: info.free,
            held_elsewhere: info.total.saturating_sub(info.free).saturating_sub(used),
            // Only the inner allocator knows whether it has the memory.
            enough_limit: enough.filter(|&enough| enough <= info.total || info.total.is_zero()),
            fits: room,
            ..Shortage::default()
        })
    }
}

/// Reserved bytes. Dropping it releases them, so that a panic of the inner allocator loses none.
struct Room<'a> {
    used: &'a AtomicU64,
    size: Bytes,
}

impl Room<'_> {
    /// Keeps the bytes reserved.
    fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.used.fetch_sub(self.size.get(), Ordering::Relaxed);
    }
}

impl<A: Allocate> Adapt for Limited<A> {
    fn allocate(&self, request: Request) -> Result<Block> {
        self.ledger.check_process()?;
        let room = self.reserve(request.size())?;
        let block = self.inner.allocate_request(request)?;
        // The block recorded at that address was freed past this adaptor: release its bytes.
        let past = self.ledger.enter(block.address(), request.size());
        drop(past.map(|size| Room { used: &self.used, size }));
        room.keep();
        Ok(block)
    }

    fn free_by(
        &self,
        address: Address,
        _: StreamHandle,
        free: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let freed = self.ledger.free(address, free)?;
        drop(freed.map(|size| Room { used: &self.used, size }));
        Ok(())
    }
}

adaptor!(Limited<A>);
