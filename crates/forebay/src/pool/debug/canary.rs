//! Canaries: canaries, a pattern beside each live block that nobody should write over.

use std::collections::BTreeMap;

use forebay_core::{Address, Bytes, Span};
use forebay_hal::Pattern;

use super::probe::Mismatch;
use crate::Error;

/// How long a canary is: what blocks are multiples of, and as much as the widest store of a warp.
pub(in crate::pool) const CANARY: Bytes = Bytes::new(512);

/// What is watched beside a live block.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct CanaryRecord {
    pub(in crate::pool) size: Bytes,
    pub(in crate::pool) canary: Span,
    /// How many came before it; set when it is added.
    pub(in crate::pool) number: u64,
}

/// The live blocks that have a canary, by address.
#[derive(Debug, Default)]
pub(in crate::pool) struct Canaries {
    pub(in crate::pool) blocks: BTreeMap<Address, CanaryRecord>,
    /// How many were ever added.
    pub(in crate::pool) added: u64,
}

impl Canaries {
    pub(in crate::pool) fn add(&mut self, address: Address, watched: CanaryRecord) {
        let number = self.added;
        self.added += 1;
        self.blocks.insert(address, CanaryRecord { number, ..watched });
    }

    pub(in crate::pool) fn at(&self, address: Address) -> Option<CanaryRecord> {
        self.blocks.get(&address).copied()
    }

    pub(in crate::pool) fn remove(&mut self, address: Address) {
        self.blocks.remove(&address);
    }
}

/// The canary of the block at `address`: another for each, so that a copy of one block with its
/// canary over its neighbour shows too.
pub(in crate::pool) fn pattern_of(address: Address) -> Pattern {
    // Addresses differ in a few bits in the middle; the product spreads them over all of the word.
    let spread = (address.get() >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    Pattern::U32(u32::try_from(spread).unwrap_or_default())
}

/// What to tell where the canary of a block is not whole.
pub(in crate::pool) fn overrun(address: Address, size: Bytes, mismatch: Mismatch) -> Error {
    Error::Overrun {
        address,
        size,
        written: mismatch.at,
        expected: mismatch.expected,
        found: mismatch.found,
    }
}
