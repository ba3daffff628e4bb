//! Canaries: a pattern beside each live block that the program should never write to.

use std::collections::BTreeMap;

use forebay_core::{Address, Bytes, Span};
use forebay_hal::{Pattern, StreamHandle};

/// The length of a canary: the granularity of blocks, and the widest store of a warp.
pub(super) const CANARY: Bytes = Bytes::new(512);

/// The canary of a live block.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct CanaryRecord {
    pub(in crate::pool) size: Bytes,
    pub(in crate::pool) canary: Span,
    /// The stream on which it was written, which is the one of the request.
    pub(in crate::pool) stream: StreamHandle,
    /// Its place in the order of additions; set when it is added.
    pub(in crate::pool) number: u64,
}

/// The live blocks that have a canary, by address.
#[derive(Debug, Default)]
pub(in crate::pool) struct Canaries {
    pub(in crate::pool) blocks: BTreeMap<Address, CanaryRecord>,
    /// The number of additions so far.
    pub(in crate::pool) added: u64,
}

impl Canaries {
    pub(in crate::pool) fn add(&mut self, address: Address, watched: CanaryRecord) {
        let number = self.added;
        self.added += 1;
        self.blocks.insert(address, CanaryRecord { number, ..watched });
    }
}

/// The canary pattern of the block at `address`. Each block has a different one, so that copying a block with its
/// canary over its neighbour is detected too.
pub(in crate::pool) fn pattern_of(address: Address) -> Pattern {
    // Addresses differ in a few middle bits; the product spreads them over the whole word.
    let spread = (address.get() >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    Pattern::U32(u32::try_from(spread).unwrap_or_default())
}

/// The canary of a guarded block: in front of it, as far as its first page reaches.
pub(in crate::pool) fn canary_before(pages: Span, block: Address) -> Span {
    let room = block.offset_from(pages.start()).unwrap_or_default().min(CANARY);
    let start = Address::new(block.get().saturating_sub(room.get()));
    Span::new(start, room).unwrap_or_default()
}
