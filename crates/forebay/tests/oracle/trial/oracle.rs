//! The oracle: what is live, by address, and what an allocator may therefore not do.

use std::collections::BTreeMap;
use std::fmt;

use forebay::Block;
use forebay_core::{Address, Alignment, Bytes};

/// What an allocator did that it must not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// A block that begins where none may.
    Misaligned {
        /// The block.
        block: Extent,
    },
    /// A block smaller than what was asked for.
    Short {
        /// The block.
        block: Extent,
        /// What was asked for.
        requested: Bytes,
    },
    /// A block of bytes at the null address, or one of no bytes elsewhere.
    Null {
        /// The block.
        block: Extent,
        /// What was asked for.
        requested: Bytes,
    },
    /// A block that passes the end of all addresses.
    Endless {
        /// The block.
        block: Extent,
    },
    /// A block that lies over one that is live.
    Overlap {
        /// The new block.
        block: Extent,
        /// The live one.
        live: Extent,
    },
    /// A block was to be freed that is not live: the program itself is wrong.
    NotLive {
        /// Where it was to begin.
        address: Address,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misaligned { block } => {
                write!(f, "{block} does not begin at a multiple of 512 B")
            }
            Self::Short { block, requested } => {
                write!(f, "{block} was given for {} B", requested.get())
            }
            Self::Null { block, requested } => {
                write!(f, "{block} was given for {} B: null is for no bytes", requested.get())
            }
            Self::Endless { block } => write!(f, "{block} passes the end of all addresses"),
            Self::Overlap { block, live } => write!(f, "{block} lies over {live}, which is live"),
            Self::NotLive { address } => write!(f, "no live block begins at {address}"),
        }
    }
}

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Its first address.
    pub(crate) start: u64,
    /// How large it is.
    pub(crate) size: u64,
}

impl Extent {
    /// Where `block` lies.
    pub(crate) fn of(block: &Block) -> Self {
        Self { start: block.address().get(), size: block.size().get() }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the block of {} B at {:#x}", self.size, self.start)
    }
}

/// A live block, by its start in the map.
#[derive(Clone, Copy, Debug)]
struct Live {
    end: u64,
    requested: u64,
}

/// Every live block of one allocator.
#[derive(Clone, Debug, Default)]
pub(crate) struct Oracle {
    live: BTreeMap<u64, Live>,
    bytes: u64,
    requested: u64,
    peak: u64,
}

impl Oracle {
    /// Enters a block that was given for `requested` bytes.
    pub(crate) fn allocated(&mut self, requested: Bytes, block: &Block) -> Result<(), Violation> {
        self.entered(requested, Extent::of(block))
    }

    /// Enters what lies there as given for `requested` bytes.
    pub(crate) fn entered(&mut self, requested: Bytes, block: Extent) -> Result<(), Violation> {
        let Extent { start, size } = block;
        if (start == 0) != requested.is_zero() || (size == 0) != requested.is_zero() {
            return Err(Violation::Null { block, requested });
        }
        if requested.is_zero() {
            return Ok(());
        }
        if !start.is_multiple_of(Alignment::BLOCK.get()) {
            return Err(Violation::Misaligned { block });
        }
        if size < requested.get() {
            return Err(Violation::Short { block, requested });
        }
        let end = start.checked_add(size).ok_or(Violation::Endless { block })?;
        // The last one that begins before the new one ends is the only one that need be asked:
        // those before it end before it begins.
        if let Some((&other, live)) = self.live.range(..end).next_back()
            && live.end > start
        {
            let live = Extent { start: other, size: live.end - other };
            return Err(Violation::Overlap { block, live });
        }
        self.live.insert(start, Live { end, requested: requested.get() });
        self.bytes += size;
        self.requested += requested.get();
        self.peak = self.peak.max(self.bytes);
        Ok(())
    }

    /// Takes out the block that begins at `address`.
    pub(crate) fn freed(&mut self, address: Address) -> Result<(), Violation> {
        if address.is_null() {
            return Ok(());
        }
        let start = address.get();
        let live = self.live.remove(&start).ok_or(Violation::NotLive { address })?;
        self.bytes -= live.end - start;
        self.requested -= live.requested;
        Ok(())
    }

    /// Whether a live block begins at `address`.
    pub(crate) fn begins_at(&self, address: Address) -> bool {
        self.live.contains_key(&address.get())
    }

    /// How many blocks are live.
    pub(crate) fn count(&self) -> usize {
        self.live.len()
    }

    /// The bytes of all live blocks, rounding counted.
    pub(crate) fn bytes(&self) -> Bytes {
        Bytes::new(self.bytes)
    }

    /// What was asked for by all live blocks.
    pub(crate) fn requested(&self) -> Bytes {
        Bytes::new(self.requested)
    }

    /// The most bytes that were live at once.
    pub(crate) fn peak(&self) -> Bytes {
        Bytes::new(self.peak)
    }

    /// The bytes of all granules of `granule` bytes that some live block lies in: what no allocator
    /// over pages of that size can do without.
    pub(crate) fn touched(&self, granule: Bytes) -> Bytes {
        let granule = granule.get().max(1);
        let mut sum = 0;
        let mut counted_to = 0;
        for (&start, live) in &self.live {
            let from = (start / granule * granule).max(counted_to);
            let to = live.end.div_ceil(granule).saturating_mul(granule);
            sum += to.saturating_sub(from);
            counted_to = counted_to.max(to);
        }
        Bytes::new(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start: u64, size: u64) -> Extent {
        Extent { start, size }
    }

    fn enter(oracle: &mut Oracle, start: u64, size: u64) -> Result<(), Violation> {
        oracle.entered(Bytes::new(size), extent(start, size))
    }

    #[test]
    fn blocks_side_by_side_are_allowed_and_any_shared_byte_is_not() {
        let mut oracle = Oracle::default();
        enter(&mut oracle, 4096, 1024).unwrap();
        enter(&mut oracle, 5120, 512).unwrap();
        enter(&mut oracle, 3584, 512).unwrap();
        for (start, size) in [(4096, 1024), (3584, 1024), (4608, 512), (1024, 1 << 20), (5120, 512)]
        {
            let found = enter(&mut oracle, start, size).unwrap_err();
            assert!(matches!(found, Violation::Overlap { .. }), "{start} {size}: {found}");
        }
        assert_eq!((oracle.count(), oracle.bytes()), (3, Bytes::new(2048)));
    }

    #[test]
    fn what_a_block_must_be_is_asked() {
        let mut oracle = Oracle::default();
        let refused = |requested, start, size| {
            Oracle::default().entered(Bytes::new(requested), extent(start, size)).unwrap_err()
        };
        assert!(matches!(refused(600, 512, 512), Violation::Short { .. }));
        assert!(matches!(refused(100, 768, 512), Violation::Misaligned { .. }));
        assert!(matches!(refused(100, 0, 512), Violation::Null { .. }));
        assert!(matches!(refused(0, 512, 512), Violation::Null { .. }));
        assert!(matches!(refused(1, u64::MAX - 511, 512), Violation::Endless { .. }));
        oracle.entered(Bytes::ZERO, extent(0, 0)).unwrap();
        assert_eq!(oracle.count(), 0);
    }

    #[test]
    fn only_what_is_live_is_freed() {
        let mut oracle = Oracle::default();
        enter(&mut oracle, 4096, 1024).unwrap();
        for wrong in [4608, 512] {
            assert!(oracle.freed(Address::new(wrong)).is_err());
        }
        oracle.freed(Address::NULL).unwrap();
        oracle.freed(Address::new(4096)).unwrap();
        assert!(oracle.freed(Address::new(4096)).is_err());
        assert_eq!((oracle.bytes(), oracle.peak()), (Bytes::ZERO, Bytes::new(1024)));
    }

    #[test]
    fn a_granule_counts_once_however_many_blocks_lie_in_it() {
        let mut oracle = Oracle::default();
        enter(&mut oracle, 512, 512).unwrap();
        enter(&mut oracle, 2048, 512).unwrap();
        enter(&mut oracle, 3584, 1024).unwrap();
        assert_eq!(oracle.touched(Bytes::new(4096)), Bytes::new(8192));
        assert_eq!(oracle.touched(Bytes::new(512)), oracle.bytes());
    }
}
