//! Makes up addresses for formats that name blocks by them: a recording has none.
//!
//! A block goes into the smallest hole that holds it, else behind all others, so that the addresses look like an
//! allocator's and no two live blocks overlap.

use std::io;

use crate::holes::Holes;
use crate::{BlockIndex, Event, Trace};

/// Where the first block lies: where pointers of a GPU usually do.
pub(super) const BASE: u64 = 0x7f00_0000_0000;

/// The end of all addresses. Viewers that are written in JavaScript are exact up to 2^53.
const END: u64 = 1 << 53;

/// What every block begins at a multiple of. A block of no bytes takes as much, so that its address is its own.
const GRAIN: u64 = 512;

/// Where the blocks of a recording lie.
#[derive(Debug)]
pub(super) struct Placement {
    /// By block.
    addresses: Vec<u64>,
    /// The end of the highest.
    pub(super) end: u64,
}

impl Placement {
    /// Places all blocks, or says that there are not enough addresses.
    pub(super) fn of(trace: &Trace) -> io::Result<Self> {
        let mut placement = Self { addresses: Vec::with_capacity(trace.blocks()), end: BASE };
        let mut holes = Holes::default();
        for event in trace.events() {
            match event {
                Event::Allocate { size, .. } => {
                    let address = match holes.take(room(size.get())) {
                        Some(address) => address,
                        None => placement.grow(room(size.get()))?,
                    };
                    placement.addresses.push(address);
                }
                Event::Free { block, .. } => {
                    holes.add(placement.address(block), room(trace.size(block).get()), END);
                }
            }
        }
        Ok(placement)
    }

    /// Where a block lies.
    pub(super) fn address(&self, block: BlockIndex) -> u64 {
        self.addresses.get(block.0 as usize).copied().unwrap_or(BASE)
    }

    fn grow(&mut self, size: u64) -> io::Result<u64> {
        let end = self.end.checked_add(size).filter(|&end| end <= END).ok_or_else(|| {
            let said = format!("blocks of this run need more than {} B of addresses", END - BASE);
            io::Error::other(said)
        })?;
        Ok(core::mem::replace(&mut self.end, end))
    }
}

/// What a block takes, or more than there is.
pub(super) fn room(size: u64) -> u64 {
    size.max(1).checked_next_multiple_of(GRAIN).unwrap_or(u64::MAX)
}
