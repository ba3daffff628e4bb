//! Counts of blocks and bytes.

use std::sync::{Mutex, MutexGuard};

use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use super::Adapt;
use super::ledger::Ledger;
use crate::sync::lock;
use crate::{Allocate, Block, Request, Result};

/// The counts of an adaptor at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Blocks allocated.
    pub allocations: u64,
    /// Blocks freed.
    pub frees: u64,
    /// Requests that failed.
    pub failed_allocations: u64,
    /// Frees that failed.
    pub failed_frees: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// The most live blocks at once.
    pub peak_blocks: u64,
    /// Live bytes, after rounding.
    pub live: Bytes,
    /// The most live bytes at once, after rounding.
    pub peak: Bytes,
    /// Live bytes, as requested.
    pub requested: Bytes,
    /// The most live bytes at once, as requested.
    pub peak_requested: Bytes,
    /// All bytes ever allocated, after rounding.
    pub total: Bytes,
}

impl Counts {
    fn given(&mut self, entry: Entry) {
        self.allocations += 1;
        self.live_blocks += 1;
        self.peak_blocks = self.peak_blocks.max(self.live_blocks);
        self.live = self.live.saturating_add(entry.size);
        self.peak = self.peak.max(self.live);
        self.requested = self.requested.saturating_add(entry.requested);
        self.peak_requested = self.peak_requested.max(self.requested);
        self.total = self.total.saturating_add(entry.size);
    }

    fn taken_back(&mut self, entry: Entry) {
        self.frees += 1;
        self.live_blocks = self.live_blocks.saturating_sub(1);
        self.live = self.live.saturating_sub(entry.size);
        self.requested = self.requested.saturating_sub(entry.requested);
    }
}

/// The counted properties of a block.
#[derive(Clone, Copy, Debug)]
struct Entry {
    size: Bytes,
    requested: Bytes,
}

/// An allocator that counts blocks and bytes.
///
/// A block counts from the return of the inner allocation to the return of the inner free. With several threads, the
/// peaks follow that order.
///
/// ```
/// # use forebay::StreamHandle;
/// use forebay::adaptor::Counted;
/// use forebay::{Allocate, Bytes, Pool, Request};
/// # let device = forebay::HostDevice::open()?;
/// # let stream = StreamHandle::DEFAULT;
///
/// let counted = Counted::new(Pool::new(&device)?);
/// for _ in 0..3 {
///     let block = counted.allocate_request(Request::new(Bytes::new(1000), stream))?;
///     counted.free(block.address(), stream)?;
/// }
/// let counts = counted.counts();
/// assert_eq!((counts.allocations, counts.frees, counts.peak_blocks), (3, 3, 1));
/// assert_eq!((counts.live, counts.peak_requested), (Bytes::ZERO, Bytes::new(1000)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Counted<A> {
    inner: A,
    counts: Mutex<Counts>,
    ledger: Ledger<Entry>,
}

impl<A: Allocate> Counted<A> {
    /// Counts the calls to `inner`, from zero.
    pub fn new(inner: A) -> Self {
        Self { inner, counts: Mutex::default(), ledger: Ledger::new() }
    }

    /// The counts. In a forked child, those of the parent's adaptor are all 0.
    pub fn counts(&self) -> Counts {
        if self.ledger.is_from_parent() { Counts::default() } else { *self.lock() }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        // Plain numbers: consistent at any time.
        lock(&self.counts)
    }
}

impl<A: Allocate> Adapt for Counted<A> {
    fn allocate(&self, request: Request) -> Result<Block> {
        self.ledger.check_process()?;
        let block = self.inner.allocate_request(request).inspect_err(|_| {
            self.lock().failed_allocations += 1;
        })?;
        if !block.address().is_null() {
            let entry = Entry { size: block.size(), requested: request.size() };
            let past = self.ledger.enter(block.address(), entry);
            let mut counts = self.lock();
            // The block recorded at that address was freed past this adaptor.
            past.into_iter().for_each(|past| counts.taken_back(past));
            counts.given(entry);
        }
        Ok(block)
    }

    fn free_by(
        &self,
        address: Address,
        _: StreamHandle,
        free: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.ledger.check_process()?;
        let freed = self.ledger.free(address, free).inspect_err(|_| {
            self.lock().failed_frees += 1;
        })?;
        if let Some(entry) = freed {
            self.lock().taken_back(entry);
        }
        Ok(())
    }
}

adaptor!(Counted<A>);
