//! Counters of one thread on one stream; statistics sum them. Part of a thread cache, behind its gate.

use forebay_core::{Bytes, Tally};

use crate::Tag;
use crate::sync::map::{SMALL_UNITS, UNIT_SHIFT};

/// One counter for each possible tag number, so that no index needs a check.
const TAGS: usize = 256;

/// Size ranges of the statistics: powers of two of 512 B. A block has less than 2^32 of these units.
const CLASSES: usize = 32;

/// Where the memory of a block came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum Source {
    /// A hole: the pool held it already.
    Hole,
    /// The driver, for this request.
    Driver,
}

/// Bytes ever requested, before rounding, for what was allocated and for what was freed. Both wrap.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::pool) struct Requested {
    pub(in crate::pool) allocated: u64,
    pub(in crate::pool) freed: u64,
}

impl Requested {
    /// For what is live.
    pub(in crate::pool) fn live(self) -> u64 {
        self.allocated.wrapping_sub(self.freed)
    }

    fn add(&mut self, other: Self) {
        self.allocated = self.allocated.wrapping_add(other.allocated);
        self.freed = self.freed.wrapping_add(other.freed);
    }
}

/// Blocks of some sizes: how many were allocated and freed, their units of 512 B, and what was requested.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::pool) struct Totals {
    pub(in crate::pool) blocks: Tally,
    pub(in crate::pool) requested: Requested,
}

impl Totals {
    pub(in crate::pool) fn minus(self, other: Self) -> Self {
        let Requested { allocated, freed } = other.requested;
        let requested = Requested {
            allocated: self.requested.allocated.wrapping_sub(allocated),
            freed: self.requested.freed.wrapping_sub(freed),
        };
        Self { blocks: self.blocks.minus(other.blocks), requested }
    }
}

/// Counts of one thread on one stream. Sums wrap: a block that another thread frees counts below zero there and above
/// zero here, and the sum over all threads is right.
#[derive(Clone, Debug)]
pub(in crate::pool) struct Counts {
    /// By size range, in units of 512 B. Blocks that pass through the magazine are counted in the magazine instead.
    pub(in crate::pool) classes: [Tally; CLASSES],
    /// Units of 512 B in live blocks, by tag. An array in place: a growable list costs a hit twelve instructions more.
    tags: [u64; TAGS],
    /// Allocations past the magazine, and those of them that needed the driver.
    pub(in crate::pool) past_magazine: u64,
    pub(in crate::pool) misses: u64,
    /// For blocks of all sizes, those that pass through the magazine included.
    requested: Requested,
    /// Large blocks. Of those that pass through the magazine, only the requests. The fast path for small blocks leaves
    /// them alone.
    pub(in crate::pool) large: Totals,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            classes: [Tally::default(); CLASSES],
            tags: [0; TAGS],
            past_magazine: 0,
            misses: 0,
            requested: Requested::default(),
            large: Totals::default(),
        }
    }
}

/// The size range of a number of units: the largest power of two not above it.
fn class_of(units: u64) -> usize {
    (u64::BITS - 1 - (units | 1).leading_zeros()) as usize
}

impl Counts {
    /// Counts an allocation from the magazine, which counts the block itself. For a large block,
    /// [`count_large_request`](Self::count_large_request) comes with it.
    #[inline(always)]
    pub(in crate::pool) fn count_live(&mut self, units: u64, requested: u64, tag: u8) {
        self.requested.allocated = self.requested.allocated.wrapping_add(requested);
        let tagged = &mut self.tags[usize::from(tag) % TAGS];
        *tagged = tagged.wrapping_add(units);
    }

    /// Counts the request of a large block from the magazine.
    pub(in crate::pool) fn count_large_request(&mut self, requested: u64) {
        self.large.requested.add(Requested { allocated: requested, freed: 0 });
    }

    /// Counts a free into the magazine, which counts the block itself. For a large block,
    /// [`uncount_large_request`](Self::uncount_large_request) comes with it.
    #[inline(always)]
    pub(in crate::pool) fn uncount_live(&mut self, units: u64, requested: u64, tag: u8) {
        self.requested.freed = self.requested.freed.wrapping_add(requested);
        let tagged = &mut self.tags[usize::from(tag) % TAGS];
        *tagged = tagged.wrapping_sub(units);
    }

    /// Counts the request of a large block that was freed into the magazine.
    pub(in crate::pool) fn uncount_large_request(&mut self, requested: u64) {
        self.large.requested.add(Requested { allocated: 0, freed: requested });
    }

    /// Counts a free of a block of any size into the magazine, which counts the block itself.
    pub(in crate::pool) fn count_kept(&mut self, units: u64, requested: u64, tag: u8) {
        self.uncount_live(units, requested, tag);
        if units > SMALL_UNITS {
            self.uncount_large_request(requested);
        }
    }

    /// Counts an allocation past the magazine.
    pub(in crate::pool) fn count_allocation(
        &mut self,
        source: Source,
        units: u64,
        requested: u64,
        tag: u8,
    ) {
        self.past_magazine = self.past_magazine.wrapping_add(1);
        self.misses = self.misses.wrapping_add(u64::from(source == Source::Driver));
        self.count_block(units, Tally::of(units, 1, 0));
        self.count_live(units, requested, tag);
        if units > SMALL_UNITS {
            self.count_large_request(requested);
        }
    }

    /// Counts a free past the magazine.
    pub(in crate::pool) fn count_free(&mut self, units: u64, requested: u64, tag: u8) {
        self.count_block(units, Tally::of(units, 0, 1));
        self.count_kept(units, requested, tag);
    }

    fn count_block(&mut self, units: u64, block: Tally) {
        self.classes[class_of(units) % CLASSES].add(block);
        if units > SMALL_UNITS {
            self.large.blocks.add(block);
        }
    }

    /// Blocks of all sizes.
    pub(in crate::pool) fn all(&self) -> Totals {
        let mut blocks = Tally::default();
        self.classes.iter().for_each(|&class| blocks.add(class));
        Totals { blocks, requested: self.requested }
    }

    /// Bytes in live blocks.
    pub(in crate::pool) fn live(&self) -> Bytes {
        Bytes::new(self.all().blocks.live_size() << UNIT_SHIFT)
    }

    /// Bytes in live blocks by tag, without tags that have none.
    pub(in crate::pool) fn by_tag(&self) -> impl Iterator<Item = (Tag, Bytes)> {
        let tagged = self.tags.iter().enumerate().filter(|&(_, &units)| units > 0);
        tagged.filter_map(|(number, &units)| {
            Some((Tag::numbered(number)?, Bytes::new(units << UNIT_SHIFT)))
        })
    }

    /// Adds what the magazine beside these counts has counted, by size range and of large blocks alone.
    pub(in crate::pool) fn add_tallies(
        &mut self,
        tallies: impl IntoIterator<Item = Tally>,
        large: Tally,
    ) {
        self.classes.iter_mut().zip(tallies).for_each(|(class, tally)| class.add(tally));
        self.large.blocks.add(large);
    }

    pub(in crate::pool) fn add(&mut self, other: &Self) {
        self.add_tallies(other.classes, other.large.blocks);
        for (sum, one) in self.tags.iter_mut().zip(&other.tags) {
            *sum = sum.wrapping_add(*one);
        }
        self.past_magazine = self.past_magazine.wrapping_add(other.past_magazine);
        self.misses = self.misses.wrapping_add(other.misses);
        self.requested.add(other.requested);
        self.large.requested.add(other.large.requested);
    }
}
