//! PyTorch's allocator with default settings: segments of plain memory.

use std::collections::BTreeMap;

use forebay_core::{Address, Bytes};

use super::heap::{BlockId, Heap, SegmentId, State};
use super::{
    GRAIN, LARGE_SEGMENT, OWN_SEGMENT_FROM, OWN_SEGMENT_UNIT, PoolKind, SMALL_MAX, SMALL_SEGMENT,
    rounded,
};
use crate::models::driver::Driver;
use crate::models::{Policy, refused, too_large};
use crate::{BlockIndex, ReplayError, StreamIndex};

/// The model of the native backend.
#[derive(Debug)]
pub(crate) struct Native {
    driver: Driver,
    heap: Heap,
    segments: BTreeMap<SegmentId, (Address, Bytes)>,
}

impl Native {
    /// Creates a model with nothing cached.
    pub(crate) fn new(driver: Driver) -> Self {
        Self { driver, heap: Heap::default(), segments: BTreeMap::new() }
    }

    /// How large a segment is got for a block.
    fn segment_size(size: Bytes) -> Option<Bytes> {
        match PoolKind::of(size) {
            PoolKind::Small => Some(SMALL_SEGMENT),
            PoolKind::Large if size < OWN_SEGMENT_FROM => Some(LARGE_SEGMENT),
            PoolKind::Large => size.checked_align_up(OWN_SEGMENT_UNIT),
        }
    }

    /// Whether what remains of a block is cut off.
    fn splits(side: PoolKind, rest: Bytes) -> bool {
        match side {
            PoolKind::Small => rest >= GRAIN.bytes(),
            PoolKind::Large => rest > SMALL_MAX,
        }
    }

    /// A new segment; where the driver has none left, cached ones go back first.
    fn grow(&mut self, size: Bytes, stream: StreamIndex) -> Result<BlockId, ReplayError> {
        let segment = Self::segment_size(size).ok_or_else(|| too_large(size, &self.driver))?;
        let at = match self.driver.allocate(segment) {
            Ok(at) => at,
            Err(error) if error.may_pass() => {
                self.release_cached()?;
                self.driver.allocate(segment).map_err(|error| refused(error, size, &self.driver))?
            }
            Err(error) => return Err(ReplayError::Device(error)),
        };
        let owner = (PoolKind::of(size), stream);
        let (id, block) = self.heap.add_segment(segment, owner, State::Free);
        self.segments.insert(id, (at, segment));
        Ok(block)
    }

    /// Gives back every segment that is wholly free, of all streams.
    fn release_cached(&mut self) -> Result<(), ReplayError> {
        for id in self.heap.all_free() {
            let Some(block) = self.heap.get(id).filter(|block| !block.is_part()) else { continue };
            if let Some((at, size)) = self.segments.remove(&block.segment()) {
                self.driver.free(at, size).map_err(ReplayError::Device)?;
            }
            self.heap.remove_segment(id);
        }
        Ok(())
    }
}

// SAFETY: the block is part of a segment that the driver allocated, no two blocks of a segment overlap, and
// its address does not change until it is freed.
unsafe impl Policy for Native {
    fn allocate(
        &mut self,
        block: BlockIndex,
        size: Bytes,
        stream: StreamIndex,
    ) -> Result<(), ReplayError> {
        let size = rounded(size).ok_or_else(|| too_large(size, &self.driver))?;
        let side = PoolKind::of(size);
        let found = self.heap.fits(side, stream, size).next();
        let id = match found {
            Some(id) => id,
            None => self.grow(size, stream)?,
        };
        self.heap.allocate(block, id, size, |rest| Self::splits(side, rest));
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
        let &(start, _) = self.segments.get(&block.segment())?;
        start.checked_add(block.offset())
    }
}
