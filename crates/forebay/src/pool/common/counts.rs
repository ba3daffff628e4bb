//! Counters of one thread on one stream, from which statistics are summed. Part of a thread cache, behind its gate.

use forebay_core::{Bytes, Tally};

use crate::sync::map::{SMALL_UNITS, UNIT_SHIFT};

/// One counter for each possible tag number, so that no index needs a check.
const TAGS: usize = 256;

/// Size ranges of the statistics: powers of two of 512 B.
pub(in crate::pool) const CLASSES: usize = 64;

/// Counts for one range of sizes.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::pool) struct ClassCounts {
    pub(in crate::pool) allocations: u64,
    pub(in crate::pool) frees: u64,
    /// Units of 512 B in live blocks.
    pub(in crate::pool) live: u64,
}

/// Where the memory of a block came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum Source {
    /// A hole: the pool held it already.
    Hole,
    /// The driver, for this request.
    Driver,
}

/// What was allocated and what was freed, ever. Both wrap.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::pool) struct Flow {
    pub(in crate::pool) allocated: u64,
    pub(in crate::pool) freed: u64,
}

impl Flow {
    /// What is live.
    pub(in crate::pool) fn live(self) -> u64 {
        self.allocated.wrapping_sub(self.freed)
    }

    fn add(&mut self, other: Self) {
        self.allocated = self.allocated.wrapping_add(other.allocated);
        self.freed = self.freed.wrapping_add(other.freed);
    }

    pub(in crate::pool) fn minus(self, other: Self) -> Self {
        let allocated = self.allocated.wrapping_sub(other.allocated);
        Self { allocated, freed: self.freed.wrapping_sub(other.freed) }
    }
}

/// Blocks of some sizes.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::pool) struct Totals {
    pub(in crate::pool) blocks: Flow,
    /// In units of 512 B.
    pub(in crate::pool) units: Flow,
    /// In bytes, before rounding.
    pub(in crate::pool) requested: Flow,
}

impl Totals {
    fn allocated(units: u64, requested: u64) -> Self {
        let of = |allocated| Flow { allocated, freed: 0 };
        Self { blocks: of(1), units: of(units), requested: of(requested) }
    }

    fn freed(units: u64, requested: u64) -> Self {
        let of = |freed| Flow { allocated: 0, freed };
        Self { blocks: of(1), units: of(units), requested: of(requested) }
    }

    /// What a magazine has counted: it does not know requests.
    fn of_tally(tally: Tally) -> Self {
        Self {
            blocks: Flow { allocated: tally.taken, freed: tally.kept },
            units: Flow { allocated: tally.taken_size, freed: tally.kept_size },
            requested: Flow::default(),
        }
    }

    pub(in crate::pool) fn add(&mut self, other: Self) {
        self.blocks.add(other.blocks);
        self.units.add(other.units);
        self.requested.add(other.requested);
    }

    pub(in crate::pool) fn minus(self, other: Self) -> Self {
        Self {
            blocks: self.blocks.minus(other.blocks),
            units: self.units.minus(other.units),
            requested: self.requested.minus(other.requested),
        }
    }
}

/// Counts of one thread on one stream. Sums wrap: a block that another thread frees counts below zero there and above
/// zero here, and the sum over all threads is right.
#[derive(Clone, Debug)]
pub(in crate::pool) struct Counts {
    /// By size range. Blocks that pass through the magazine are counted in the magazine instead.
    pub(in crate::pool) classes: [ClassCounts; CLASSES],
    /// Units of 512 B in live blocks, by tag. An array in place: a growable list costs a hit twelve instructions more.
    pub(in crate::pool) tags: [u64; TAGS],
    /// Allocations past the magazine, and those of them that needed the driver.
    pub(in crate::pool) past_magazine: u64,
    pub(in crate::pool) misses: u64,
    /// Blocks of all sizes. Of those that pass through the magazine, only the requests.
    pub(in crate::pool) all: Totals,
    /// Large blocks, in the same way. The fast path for small blocks leaves them alone.
    pub(in crate::pool) large: Totals,
}

impl Default for Counts {
    fn default() -> Self {
        let classes = [ClassCounts::default(); CLASSES];
        let none = Totals::default();
        let (past_magazine, misses) = (0, 0);
        Self { classes, tags: [0; TAGS], past_magazine, misses, all: none, large: none }
    }
}

impl ClassCounts {
    fn add(&mut self, other: Self) {
        self.allocations = self.allocations.wrapping_add(other.allocations);
        self.frees = self.frees.wrapping_add(other.frees);
        self.live = self.live.wrapping_add(other.live);
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
        let flow = &mut self.all.requested;
        flow.allocated = flow.allocated.wrapping_add(requested);
        self.add_to_tag(units, tag);
    }

    /// Counts the request of a large block from the magazine.
    pub(in crate::pool) fn count_large_request(&mut self, requested: u64) {
        self.large.requested.add(Flow { allocated: requested, freed: 0 });
    }

    /// Counts a free into the magazine, which counts the block itself. For a large block,
    /// [`uncount_large_request`](Self::uncount_large_request) comes with it.
    #[inline(always)]
    pub(in crate::pool) fn uncount_live(&mut self, units: u64, requested: u64, tag: u8) {
        let flow = &mut self.all.requested;
        flow.freed = flow.freed.wrapping_add(requested);
        self.subtract_from_tag(units, tag);
    }

    /// Counts the request of a large block that was freed into the magazine.
    pub(in crate::pool) fn uncount_large_request(&mut self, requested: u64) {
        self.large.requested.add(Flow { allocated: 0, freed: requested });
    }

    /// Counts a free of a block of any size into the magazine, which counts the block itself.
    pub(in crate::pool) fn count_kept(&mut self, units: u64, requested: u64, tag: u8) {
        self.uncount_live(units, requested, tag);
        if units > SMALL_UNITS {
            self.uncount_large_request(requested);
        }
    }

    #[inline(always)]
    fn add_to_tag(&mut self, units: u64, tag: u8) {
        let tagged = &mut self.tags[usize::from(tag) % TAGS];
        *tagged = tagged.wrapping_add(units);
    }

    #[inline(always)]
    fn subtract_from_tag(&mut self, units: u64, tag: u8) {
        let tagged = &mut self.tags[usize::from(tag) % TAGS];
        *tagged = tagged.wrapping_sub(units);
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
        let class = &mut self.classes[class_of(units) % CLASSES];
        class.allocations = class.allocations.wrapping_add(1);
        class.live = class.live.wrapping_add(units);
        self.add_to_tag(units, tag);
        self.add_totals(units, Totals::allocated(units, requested));
    }

    /// Counts a free past the magazine.
    pub(in crate::pool) fn count_free(&mut self, units: u64, requested: u64, tag: u8) {
        let class = &mut self.classes[class_of(units) % CLASSES];
        class.frees = class.frees.wrapping_add(1);
        class.live = class.live.wrapping_sub(units);
        self.subtract_from_tag(units, tag);
        self.add_totals(units, Totals::freed(units, requested));
    }

    fn add_totals(&mut self, units: u64, totals: Totals) {
        self.all.add(totals);
        if units > SMALL_UNITS {
            self.large.add(totals);
        }
    }

    /// Bytes in live blocks.
    pub(in crate::pool) fn live(&self) -> Bytes {
        Bytes::new(self.all.units.live() << UNIT_SHIFT)
    }

    /// The number of live blocks.
    pub(in crate::pool) fn blocks(&self) -> u64 {
        self.all.blocks.live()
    }

    /// The sum of several.
    pub(in crate::pool) fn sum<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        all.into_iter().for_each(|counts| sum.add(counts));
        sum
    }

    /// Adds what the magazine beside these counts has counted.
    pub(in crate::pool) fn add_tallies(&mut self, tallies: [Tally; CLASSES], large: Tally) {
        for (class, tally) in self.classes.iter_mut().zip(tallies) {
            if tally != Tally::default() {
                let (allocations, frees) = (tally.taken, tally.kept);
                let live = tally.taken_size.wrapping_sub(tally.kept_size);
                class.add(ClassCounts { allocations, frees, live });
                self.all.add(Totals::of_tally(tally));
            }
        }
        self.large.add(Totals::of_tally(large));
    }

    pub(in crate::pool) fn add(&mut self, other: &Self) {
        for (sum, one) in self.classes.iter_mut().zip(&other.classes) {
            sum.add(*one);
        }
        for (sum, one) in self.tags.iter_mut().zip(&other.tags) {
            *sum = sum.wrapping_add(*one);
        }
        self.past_magazine = self.past_magazine.wrapping_add(other.past_magazine);
        self.misses = self.misses.wrapping_add(other.misses);
        self.all.add(other.all);
        self.large.add(other.large);
    }
}
