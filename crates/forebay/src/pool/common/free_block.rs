//! Free blocks: in a magazine, and on their way from there to the heap.

use forebay_core::{Address, Bytes, Span};
use forebay_hal::StreamHandle;

use crate::sync::map::{SlotRef, UNIT_SHIFT};

/// A free block in a magazine.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct CachedBlock {
    pub(in crate::pool) address: Address,
    pub(in crate::pool) slot: SlotRef,
}

/// A free block on its way to the heap.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct FreedBlock {
    pub(in crate::pool) address: Address,
    pub(in crate::pool) size: Bytes,
    pub(in crate::pool) stream: StreamHandle,
}

impl FreedBlock {
    /// A block of `units` of 512 B from a magazine.
    pub(in crate::pool) fn of(cached: CachedBlock, units: u64, stream: StreamHandle) -> Self {
        Self { address: cached.address, size: Bytes::new(units << UNIT_SHIFT), stream }
    }

    pub(in crate::pool) fn span(&self) -> Span {
        Span::new(self.address, self.size).unwrap_or_default()
    }
}
