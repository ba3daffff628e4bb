//! A cache of blocks that serves requests of about the same size.

use core::fmt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::{Address, Alignment, Bytes, Serial, SizeClasses};
use forebay_hal::{Call, StreamHandle};

use super::OwnedBlock;
use crate::sync::lock;
use crate::{Allocate, Block, Error, Pool, Request, Result};

/// Options of a new rental.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "options do nothing until a rental is made of them"]
pub struct RentalOptions {
    most_bytes: Bytes,
    most_blocks: usize,
    waste_percent: u32,
}

impl Default for RentalOptions {
    /// Keeps at most 256 MiB in 64 blocks, enough for a few of the largest buffers of a step. Up to half of a block may
    /// be unused, as with power-of-two sizes; most hits waste far less, because a request gets the smallest block that
    /// fits.
    fn default() -> Self {
        Self { most_bytes: Bytes::mib(256), most_blocks: 64, waste_percent: 100 }
    }
}

impl RentalOptions {
    /// Sets the most bytes to keep. Beyond it, the least recently used blocks are freed.
    pub fn most_bytes(mut self, most_bytes: Bytes) -> Self {
        self.most_bytes = most_bytes;
        self
    }

    /// Sets the most blocks to keep.
    pub fn most_blocks(mut self, most_blocks: usize) -> Self {
        self.most_blocks = most_blocks;
        self
    }

    /// Sets how much larger than the request a block may be, in percent of the request. Rounding to 512 B is always
    /// allowed.
    pub fn waste_percent(mut self, waste_percent: u32) -> Self {
        self.waste_percent = waste_percent;
        self
    }

    /// Builds a rental of blocks of `allocator`, to be used in the order of `stream`.
    pub fn build<A: Allocate + Clone>(
        self,
        allocator: &A,
        stream: impl Into<StreamHandle>,
    ) -> Rental<A> {
        let shelf = Mutex::new(Shelf::default());
        Rental {
            desk: Arc::new(Desk {
                allocator: allocator.clone(),
                stream: stream.into(),
                options: self,
                shelf,
            }),
        }
    }

    /// The largest block that may serve a request for `least` bytes.
    fn largest_for(&self, least: Bytes) -> Bytes {
        let asked = u128::from(least.get());
        let most = asked + asked * u128::from(self.waste_percent) / 100;
        let most = u64::try_from(most).map_or(Bytes::MAX, Bytes::new);
        most.max(least.checked_align_up(Alignment::BLOCK).unwrap_or(least))
    }
}

/// Statistics of a rental.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RentalFigures {
    /// Requests that a returned block served.
    pub hits: u64,
    /// Requests that went to the allocator.
    pub misses: u64,
    /// Kept blocks that were freed to stay within the limits.
    pub evictions: u64,
    /// Blocks that are kept now.
    pub kept_blocks: usize,
    /// Their bytes.
    pub kept_bytes: Bytes,
}

/// Blocks for rent: a returned block serves the next request that it fits without too much waste. Clones share the same
/// rental.
///
/// Use it for sizes that vary from use to use. A rental belongs to one stream: blocks are used and returned in its
/// order, so a hit needs neither an event nor the allocator.
///
/// ```
/// use forebay::handle::Rental;
/// use forebay::{Bytes, Pool, StreamHandle};
///
/// let pool = Pool::open("host")?;
/// let rental = Rental::new(&pool, StreamHandle::DEFAULT);
/// for batch in [100_000, 90_000, 80_000] {
///     let rented = rental.rent(Bytes::new(batch))?;
///     assert!(rented.size() >= Bytes::new(batch));
/// }
/// assert_eq!((rental.figures().hits, rental.figures().misses), (2, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Rental<A: Allocate = Pool> {
    desk: Arc<Desk<A>>,
}

impl<A: Allocate + Clone> Rental<A> {
    /// Makes a rental with the default options, for blocks used in the order of `stream`.
    pub fn new(allocator: &A, stream: impl Into<StreamHandle>) -> Self {
        RentalOptions::default().build(allocator, stream)
    }

    /// Rents a block of at least `least` bytes until the value is dropped. The contents are undefined. A request for no
    /// bytes returns the null address and counts neither as a hit nor as a miss.
    pub fn rent(&self, least: Bytes) -> Result<Rented<A>> {
        let desk = &self.desk;
        desk.allocator.device().descriptor().check_process(Call::Allocate)?;
        // A separate statement, so that the shelf is unlocked before calling the allocator.
        let mut kept = desk.shelf().take(least, desk.options.largest_for(least));
        // If a block cannot be put in order, streams that used it have ended, perhaps the rental's own, whose handle
        // may be reused. Drop it to the allocator, which keeps the order without a wait.
        let owned = match kept.take_if(|owned| owned.put_in_order()) {
            Some(owned) => owned,
            None => {
                drop(kept);
                desk.fetch(least)?
            }
        };
        let (desk, block) = (Arc::clone(desk), owned.block());
        Ok(Rented { owned: Some(owned), block, requested: least, desk })
    }
}

impl<A: Allocate> Rental<A> {
    /// The statistics. In a forked child, all 0 for the parent's rental.
    pub fn figures(&self) -> RentalFigures {
        if self.desk.is_inherited() {
            return RentalFigures::default();
        }
        let shelf = self.desk.shelf();
        let (kept_blocks, kept_bytes) = (shelf.by_age.len(), shelf.bytes);
        RentalFigures { kept_blocks, kept_bytes, ..shelf.figures }
    }

    /// Frees all kept blocks. Rented blocks stay rented. Does nothing in a forked child, for the parent's rental.
    pub fn clear(&self) {
        if self.desk.is_inherited() {
            return;
        }
        // A separate statement, so that the shelf is unlocked before calling the allocator.
        let kept = self.desk.shelf().empty();
        drop(kept);
    }
}

impl<A: Allocate> Clone for Rental<A> {
    /// Returns another handle to the same rental.
    fn clone(&self) -> Self {
        Self { desk: Arc::clone(&self.desk) }
    }
}

impl<A: Allocate> fmt::Debug for Rental<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rental").field("figures", &self.figures()).finish_non_exhaustive()
    }
}

/// A block of a [`Rental`], returned when it is dropped.
#[must_use = "the block is returned when this value goes"]
pub struct Rented<A: Allocate = Pool> {
    /// `None` only during the drop.
    owned: Option<OwnedBlock<A>>,
    block: Block,
    requested: Bytes,
    desk: Arc<Desk<A>>,
}

impl<A: Allocate> Rented<A> {
    /// The address of the first byte; null for a block of no bytes.
    pub fn address(&self) -> Address {
        self.block.address()
    }

    /// The size: the requested one or more.
    pub fn size(&self) -> Bytes {
        self.block.size()
    }

    /// The requested size.
    pub fn requested(&self) -> Bytes {
        self.requested
    }

    /// The block as plain data. The rental keeps owning it.
    pub fn block(&self) -> Block {
        self.block
    }

    /// The rental's stream.
    pub fn stream(&self) -> StreamHandle {
        self.desk.stream
    }

    /// Records that work on `stream` uses the block too. When the block is rented again, the rental's stream waits for
    /// that work on the device.
    pub fn used_on(&self, stream: impl Into<StreamHandle>) {
        if let Some(owned) = &self.owned {
            owned.used_on(stream);
        }
    }
}

impl<A: Allocate> Drop for Rented<A> {
    fn drop(&mut self) {
        let Some(mut owned) = self.owned.take() else { return };
        if self.desk.is_inherited() {
            return;
        }
        // During a capture, a block that other streams use cannot be put in order later, so it goes to the allocator,
        // which keeps it until they are done.
        if owned.is_settled() || !self.desk.allocator.is_capturing() {
            // As above: unlock the shelf before calling the allocator.
            let evicted = self.desk.shelf().put(owned, &self.desk.options);
            drop(evicted);
        }
    }
}

impl<A: Allocate> fmt::Debug for Rented<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rented")
            .field("block", &self.block)
            .field("requested", &self.requested)
            .finish_non_exhaustive()
    }
}

struct Desk<A: Allocate> {
    allocator: A,
    stream: StreamHandle,
    options: RentalOptions,
    shelf: Mutex<Shelf<A>>,
}

impl<A: Allocate> Drop for Desk<A> {
    fn drop(&mut self) {
        if self.is_inherited() {
            // Another thread of the parent may have been changing it.
            let shelf = self.shelf.get_mut().unwrap_or_else(PoisonError::into_inner);
            core::mem::forget(core::mem::take(shelf));
        }
    }
}

impl<A: Allocate> Desk<A> {
    /// Whether this is a forked child that inherited its parent's rental.
    fn is_inherited(&self) -> bool {
        self.allocator.device().descriptor().is_inherited()
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf<A>> {
        // No code of the caller runs under the lock, and the shelf's own code does not panic.
        lock(&self.shelf)
    }

    /// Allocates a block. If the allocator is out of memory, frees the kept blocks first.
    fn fetch(&self, least: Bytes) -> Result<OwnedBlock<A>>
    where
        A: Clone,
    {
        // Round to a class, so that the next request of about this size finds the block, unless that wastes more than
        // is allowed.
        let class = SizeClasses::geometric().round(least).unwrap_or(least);
        let size = if class <= self.options.largest_for(least) { class } else { least };
        let request = Request::new(size, self.stream);
        let mut fetched = OwnedBlock::new(&self.allocator, request);
        if matches!(fetched, Err(Error::OutOfMemory { .. })) {
            let kept = self.shelf().empty();
            if !kept.is_empty() {
                drop(kept);
                fetched = OwnedBlock::new(&self.allocator, request);
            }
        }
        if fetched.is_ok() && !least.is_zero() {
            self.shelf().figures.misses += 1;
        }
        fetched
    }
}

/// The returned blocks, by size for renting and by age for eviction.
struct Shelf<A: Allocate> {
    by_size: BTreeMap<(Bytes, u64), OwnedBlock<A>>,
    by_age: BTreeMap<u64, Bytes>,
    bytes: Bytes,
    serial: Serial,
    figures: RentalFigures,
}

impl<A: Allocate> Default for Shelf<A> {
    fn default() -> Self {
        Self {
            by_size: BTreeMap::new(),
            by_age: BTreeMap::new(),
            bytes: Bytes::ZERO,
            serial: Serial::default(),
            figures: RentalFigures::default(),
        }
    }
}

impl<A: Allocate> Shelf<A> {
    /// The smallest block of `least` to `most` bytes.
    fn take(&mut self, least: Bytes, most: Bytes) -> Option<OwnedBlock<A>> {
        if least.is_zero() {
            return None;
        }
        let (&(size, number), _) = self.by_size.range((least, 0)..=(most, u64::MAX)).next()?;
        let owned = self.remove(size, number)?;
        self.figures.hits += 1;
        Some(owned)
    }

    fn remove(&mut self, size: Bytes, number: u64) -> Option<OwnedBlock<A>> {
        self.by_age.remove(&number);
        let owned = self.by_size.remove(&(size, number))?;
        self.bytes = self.bytes.saturating_sub(size);
        Some(owned)
    }

    /// Keeps a block, and returns those evicted for it, least recently used first. A block that is too large by itself
    /// is returned at once.
    fn put(&mut self, owned: OwnedBlock<A>, options: &RentalOptions) -> Vec<OwnedBlock<A>> {
        let size = owned.size();
        if size.is_zero() {
            return Vec::new();
        }
        if size > options.most_bytes || options.most_blocks == 0 {
            self.figures.evictions += 1;
            return vec![owned];
        }
        let mut evicted = Vec::new();
        let room = options.most_bytes.saturating_sub(size);
        while self.bytes > room || self.by_age.len() >= options.most_blocks {
            let Some((&number, &oldest)) = self.by_age.first_key_value() else { break };
            self.figures.evictions += 1;
            evicted.extend(self.remove(oldest, number));
        }
        let number = self.serial.take();
        self.by_size.insert((size, number), owned);
        self.by_age.insert(number, size);
        self.bytes = self.bytes.saturating_add(size);
        evicted
    }

    /// Takes all blocks out.
    fn empty(&mut self) -> BTreeMap<(Bytes, u64), OwnedBlock<A>> {
        self.by_age.clear();
        self.bytes = Bytes::ZERO;
        core::mem::take(&mut self.by_size)
    }
}
