//! PyTorch's allocator with `expandable_segments:True`: one growing range for each pool and stream.
//!
//! ```text
//!   range   [ live ][ free ][ live ][ free |.............. bare ..............]
//!            page     page    page    page
//! ```
//!
//! A range reserves addresses for an eighth more than the device's memory. Pages are mapped at its lowest bare part as
//! needed, and released only when memory runs out, if they are wholly free.

use std::collections::BTreeMap;

use forebay_core::{Address, Bytes, Span};
use forebay_hal::{Call, Error, PageHandle};

use super::heap::{Block, BlockId, Heap, SegmentId, State};
use super::{GRAIN, LARGE_SEGMENT, PoolKind, SMALL_SEGMENT, rounded};
use crate::models::driver::Driver;
use crate::models::{Policy, refused, too_large};
use crate::{BlockIndex, ReplayError, StreamIndex};

/// A reserved range and the pages behind it.
#[derive(Debug)]
struct Range {
    start: Address,
    page: Bytes,
    /// By offset.
    pages: BTreeMap<Bytes, PageHandle>,
}

/// The model of expandable segments.
#[derive(Debug)]
pub(crate) struct Expandable {
    driver: Driver,
    heap: Heap,
    ranges: BTreeMap<SegmentId, Range>,
}

/// Whether the block is not live: free, or bare addresses.
fn is_open(block: &Block) -> bool {
    block.state != State::Live
}

impl Expandable {
    /// Creates a model with nothing reserved.
    pub(crate) fn new(driver: Driver) -> Self {
        Self { driver, heap: Heap::default(), ranges: BTreeMap::new() }
    }

    const fn page(side: PoolKind) -> Bytes {
        match side {
            PoolKind::Small => SMALL_SEGMENT,
            PoolKind::Large => LARGE_SEGMENT,
        }
    }

    /// The size of a free block with the bare addresses after it, into which it can grow.
    fn reach(&self, id: BlockId) -> Bytes {
        let Some(block) = self.heap.get(id) else { return Bytes::ZERO };
        let after = block.next().and_then(|next| self.heap.get(next));
        let bare = after.filter(|next| next.state == State::Bare).map_or(Bytes::ZERO, |b| b.size);
        block.size.saturating_add(bare)
    }

    /// The best fit, where the block that can still grow counts as large as it can become: it is
    /// spared for as long as another holds the request.
    fn best_fit(&self, side: PoolKind, stream: StreamIndex, size: Bytes) -> Option<BlockId> {
        let mut fits = self.heap.fits(side, stream, size);
        let mut best = fits.next()?;
        for next in fits {
            let part = self.heap.get(best).is_some_and(Block::is_part);
            if !part || self.reach(next) >= self.reach(best) {
                break;
            }
            best = next;
        }
        Some(best)
    }

    /// Whether the open blocks from `id` on hold `size` together.
    fn has_room(&self, id: BlockId, size: Bytes) -> bool {
        let mut sum = Bytes::ZERO;
        let mut at = Some(id);
        while let Some(block) = at.and_then(|id| self.heap.get(id)).filter(|block| is_open(block)) {
            sum = sum.saturating_add(block.size);
            if sum >= size {
                return true;
            }
            at = block.next();
        }
        false
    }

    /// Where to grow: the lowest bare block, with the free one before it, that has room.
    fn growth(&self, side: PoolKind, stream: StreamIndex, size: Bytes) -> Option<BlockId> {
        self.heap.bare(side, stream).find_map(|bare| {
            let before = self.heap.get(bare)?.previous();
            let open = before.filter(|&id| self.heap.get(id).is_some_and(is_open));
            let first = open.unwrap_or(bare);
            self.has_room(first, size).then_some(first)
        })
    }

    /// A new range, all of it bare.
    fn reserve(&mut self, side: PoolKind, stream: StreamIndex) -> Result<BlockId, Error> {
        let page = Self::page(side);
        let capacity = self.driver.capacity();
        let wanted = capacity.saturating_add(Bytes::new(capacity.get() / 8));
        let size = page.try_mul(wanted.get().div_ceil(page.get()));
        let size = size.map_err(|error| Error::quantity(Call::Reserve, "size", &error))?;
        let span = self.driver.reserve(size)?;
        let (id, block) = self.heap.add_segment(size, (side, stream), State::Bare);
        self.ranges.insert(id, Range { start: span.start(), page, pages: BTreeMap::new() });
        Ok(block)
    }

    /// Puts pages behind the first `size` bytes of a bare block, which begins at a page. All or
    /// none; what it got merges with free neighbours.
    fn back(&mut self, id: BlockId, size: Bytes) -> Result<(), Error> {
        let lost = || Error::Invalid {
            call: Call::Map,
            argument: "block",
            given: "a block that is gone".into(),
            allowed: "a bare block of a range".into(),
        };
        let block = *self.heap.get(id).ok_or_else(lost)?;
        let range = self.ranges.get_mut(&block.segment()).ok_or_else(lost)?;
        let page = range.page;
        let count = size.get().div_ceil(page.get());
        let mut backed: Vec<(Bytes, PageHandle)> = Vec::new();
        let mut offset = block.offset();
        for _ in 0..count {
            let at = range.start.checked_add(offset).ok_or_else(lost)?;
            match self.driver.back(at, page) {
                Ok(handle) => backed.push((offset, handle)),
                Err(error) => {
                    for (offset, handle) in backed {
                        let span = page_span(range.start, offset, page)?;
                        self.driver.unback(span, handle)?;
                    }
                    return Err(error);
                }
            }
            offset = offset.saturating_add(page);
        }
        range.pages.extend(backed);
        let start = range.start.checked_add(block.offset()).ok_or_else(lost)?;
        let whole = page
            .try_mul(count)
            .and_then(|size| Span::new(start, size))
            .map_err(|error| Error::quantity(Call::SetAccess, "span", &error))?;
        self.driver.grant(whole, page)?;
        self.heap.split(id, whole.size());
        self.heap.set_state(id, State::Free);
        self.heap.merge(id);
        Ok(())
    }

    /// A free block of at least `size`, got by growing.
    fn grow(&mut self, side: PoolKind, stream: StreamIndex, size: Bytes) -> Result<BlockId, Error> {
        // No range could ever hold it: do not reserve one more each time it is tried.
        if size > self.driver.capacity() {
            return Err(self.exhausted(size));
        }
        let mut candidate = match self.growth(side, stream, size) {
            Some(id) => id,
            None => self.reserve(side, stream)?,
        };
        while let Some(block) = self.heap.get(candidate).copied() {
            match block.state {
                State::Bare => self.back(candidate, size.min(block.size))?,
                _ if block.size >= size => return Ok(candidate),
                _ => {
                    let Some(next) = block.next() else { break };
                    let bare = self.heap.get(next).map_or(Bytes::ZERO, |next| next.size);
                    self.back(next, size.saturating_sub(block.size).min(bare))?;
                    candidate = next;
                }
            }
        }
        // Room was seen before the first page, so the chain does not end early.
        Err(self.exhausted(size))
    }

    /// There is not that much.
    fn exhausted(&self, size: Bytes) -> Error {
        let total = self.driver.capacity();
        let free = total.saturating_sub(self.driver.reserved());
        Error::OutOfMemory { call: Call::CreatePage, requested: size, free, total }
    }

    /// Takes the pages that lie wholly in free blocks away, of all streams.
    fn release_cached(&mut self) -> Result<(), Error> {
        for id in self.heap.all_free() {
            let Some(block) = self.heap.get(id).copied() else { continue };
            let Some(range) = self.ranges.get_mut(&block.segment()) else { continue };
            let page = range.page.get();
            let first = block.offset().get().div_ceil(page) * page;
            let end = block.offset().saturating_add(block.size).get() / page * page;
            if first >= end {
                continue;
            }
            let span = Bytes::new(first)..Bytes::new(end);
            let taken: Vec<(Bytes, PageHandle)> =
                range.pages.range(span).map(|(&offset, &handle)| (offset, handle)).collect();
            for (offset, handle) in taken {
                self.driver.unback(page_span(range.start, offset, range.page)?, handle)?;
                range.pages.remove(&offset);
            }
            let before = first - block.offset().get();
            let bare = match before {
                0 => Some(id),
                _ => self.heap.split(id, Bytes::new(before)),
            };
            if let Some(bare) = bare {
                self.heap.split(bare, Bytes::new(end - first));
                self.heap.set_state(bare, State::Bare);
                self.heap.merge(bare);
            }
        }
        Ok(())
    }
}

fn page_span(start: Address, offset: Bytes, page: Bytes) -> Result<Span, Error> {
    let start = Address::new(start.get().saturating_add(offset.get()));
    Span::new(start, page).map_err(|error| Error::quantity(Call::Unmap, "span", &error))
}

// SAFETY: the block is a part of a range that has pages and access there, and no two blocks of
// one share bytes; and it is the block's until it is freed.
unsafe impl Policy for Expandable {
    fn allocate(
        &mut self,
        block: BlockIndex,
        size: Bytes,
        stream: StreamIndex,
    ) -> Result<(), ReplayError> {
        let size = rounded(size).ok_or_else(|| too_large(size, &self.driver))?;
        let side = PoolKind::of(size);
        let id = match self.best_fit(side, stream, size) {
            Some(id) => id,
            None => match self.grow(side, stream, size) {
                Ok(id) => id,
                Err(error) if error.may_pass() => {
                    self.release_cached().map_err(ReplayError::Device)?;
                    self.grow(side, stream, size)
                        .map_err(|error| refused(error, size, &self.driver))?
                }
                Err(error) => return Err(ReplayError::Device(error)),
            },
        };
        self.heap.allocate(block, id, size, |rest| rest >= GRAIN.bytes());
        Ok(())
    }

    fn free(&mut self, block: BlockIndex) -> Result<(), ReplayError> {
        self.heap.free(block)
    }

    fn driver(&self) -> &Driver {
        &self.driver
    }

    fn address(&self, block: BlockIndex) -> Option<Address> {
        let block = self.heap.live(block)?;
        self.ranges.get(&block.segment())?.start.checked_add(block.offset())
    }
}
