//! Canaries: canaries, a pattern beside each live block that nobody should write over.

use std::collections::BTreeMap;

use forebay_core::{Address, Bytes, Span};
use forebay_hal::Pattern;

use super::super::shared::Shared;
use super::FREED;
use super::probe::Odd;
use crate::sync::tracked::lock;
use crate::{Error, Result};

/// How long a canary is: what blocks are multiples of, and as much as the widest store of a warp.
pub(super) const CANARY: Bytes = Bytes::new(512);

/// What is watched beside a live block.
#[derive(Clone, Copy, Debug)]
pub(super) struct CanaryRecord {
    pub(super) size: Bytes,
    pub(super) canary: Span,
    /// How many came before it; set when it is added.
    pub(super) number: u64,
}

/// The live blocks that have a canary, by address.
#[derive(Debug, Default)]
pub(super) struct Canaries {
    blocks: BTreeMap<Address, CanaryRecord>,
    /// How many were ever added.
    added: u64,
}

impl Canaries {
    pub(super) fn add(&mut self, address: Address, watched: CanaryRecord) {
        let number = self.added;
        self.added += 1;
        self.blocks.insert(address, CanaryRecord { number, ..watched });
    }

    pub(super) fn at(&self, address: Address) -> Option<CanaryRecord> {
        self.blocks.get(&address).copied()
    }

    pub(super) fn remove(&mut self, address: Address) {
        self.blocks.remove(&address);
    }
}

/// The canary of the block at `address`: another for each, so that a copy of one block with its
/// canary over its neighbour shows too.
pub(super) fn pattern_of(address: Address) -> Pattern {
    // Addresses differ in a few bits in the middle; the product spreads them over all of the word.
    let spread = (address.get() >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    Pattern::U32(u32::try_from(spread).unwrap_or_default())
}

/// What to tell where the canary of a block is not whole.
pub(super) fn overrun(address: Address, size: Bytes, odd: Odd) -> Error {
    Error::Overrun { address, size, written: odd.at, expected: odd.expected, found: odd.found }
}

impl Shared {
    /// Looks at every canary and at what is in quarantine; gives the first finding.
    pub(in super::super) fn check(&self) -> Result<()> {
        self.birth.check()?;
        let debug = &self.debug;
        // What comes while the device is waited for may still be being filled: it is not looked at.
        let (blocks_before, kept_before) = {
            let (canaries, quarantine) = (lock(&debug.canaries), lock(&debug.quarantine));
            if canaries.blocks.is_empty() && quarantine.is_empty() {
                return Ok(());
            }
            (canaries.added, quarantine.added())
        };
        debug.probe.synchronize()?;
        let stream = debug.probe.own_stream()?;
        // Both locked throughout: nothing leaves while it is looked at, so what is read is not being
        // filled by a free on another thread. What is read is read on a stream that has nothing else to
        // do, so nothing of the program's is waited for.
        let canaries = lock(&debug.canaries);
        let mut quarantine = lock(&debug.quarantine);
        let mut first = Ok(());
        for (&address, watched) in &canaries.blocks {
            if watched.number >= blocks_before {
                continue;
            }
            let looked = debug.probe.first_odd_now(watched.canary, pattern_of(address), stream)?;
            if let Some(odd) = looked {
                first = first.and(Err(debug.found(overrun(address, watched.size, odd))));
            }
        }
        drop(canaries);
        if debug.aids.poison {
            let free = Pattern::U8(FREED);
            let look = |span| debug.probe.first_odd_now(span, free, stream);
            let spoilt = quarantine.take_spoilt(kept_before, look)?;
            for (block, odd) in spoilt {
                debug.retire(block.memory.size);
                first = first.and(Err(debug.found(block.written(odd))));
            }
        }
        first
    }
}
