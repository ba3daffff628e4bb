//! Magazines: the blocks freed last, kept whole for requests of exactly their size.
//!
//! ```text
//!   bins      [ 64 KiB: a b c ]  [ empty ]  [ 4 KiB: d ]  [ 512 B: e f g h i j ]  ...  [ 48 MiB: k ]
//!              size hashed to a bin; a bin has blocks of one size, the one freed last on top
//!                                                          all large sizes share one bin, for one block
//! ```
//!
//! A magazine stands in front of a heap: giving a block and taking one of the same size again costs
//! a few instructions and disturbs nothing. What it holds is lost to requests of other sizes until it
//! is drained, so it is bounded, and whoever is about to ask for more memory drains it first. Of large
//! blocks it holds one alone: where large blocks lie free decides where the next one goes, and so how
//! much memory a program needs.

/// How many sizes a magazine holds at most. A training step uses some dozens of sizes at a time.
const BINS: usize = 64;

/// The bin that all large sizes share.
const LARGE_BIN: usize = BINS - 1;

/// How many blocks of one size: with them a bin is two cache lines.
const DEPTH: usize = 6;

/// Powers of two that sizes are counted by.
const CLASSES: usize = 64;

/// Blocks of one size.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bin<B> {
    /// The size; whatever it was last where there is no block.
    size: u64,
    /// How many places are taken. The bin of large sizes counts all but one of them as taken, by
    /// nothing.
    count: usize,
    /// How often a block was taken and kept since the size was last another.
    taken: u64,
    kept: u64,
    blocks: [Option<B>; DEPTH],
}

/// How often blocks of a range of sizes were taken from a magazine and kept in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Blocks taken.
    pub taken: u64,
    /// Blocks kept.
    pub kept: u64,
    /// The sizes of the blocks taken less those of the blocks kept; wraps.
    pub balance: u64,
}

/// A bounded cache of just-freed blocks, by exact size. Sizes are in whatever unit the heap counts
/// in, and a block is whatever tells it.
///
/// ```
/// use forebay_core::Magazine;
///
/// let mut magazine = Magazine::new(1 << 20, 1 << 18);
/// magazine.make_way(512, |_, _| {});
/// assert!(magazine.keep(512, "a"));
/// assert_eq!(magazine.take(1024), None);
/// assert_eq!(magazine.take(512), Some("a"));
/// ```
#[derive(Clone, Debug)]
pub struct Magazine<B> {
    held: u64,
    bound: u64,
    /// Sizes above this are large.
    small: u64,
    bins: [Bin<B>; BINS],
    /// What bins counted before their size became another.
    tallies: [Tally; CLASSES],
}

impl<B: Copy> Magazine<B> {
    /// An empty magazine that takes no more once it holds `bound`; with 0 it keeps nothing. The last
    /// block may pass the bound, so that one of any size can be kept. Sizes above `small` are large.
    pub fn new(bound: u64, small: u64) -> Self {
        let empty = Bin { size: 0, count: 0, taken: 0, kept: 0, blocks: [None; DEPTH] };
        let mut bins = [empty; BINS];
        bins[LARGE_BIN].count = floor(LARGE_BIN);
        Self { held: 0, bound, small, bins, tallies: [Tally::default(); CLASSES] }
    }

    /// The sum of the sizes of all blocks in it.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Changes the bound; what is held beyond a smaller one stays until it is taken or drained.
    pub fn set_bound(&mut self, bound: u64) {
        self.bound = bound;
    }

    /// Which bin a size belongs to.
    #[inline(always)]
    fn index(&self, size: u64) -> usize {
        // Small sizes may share the bin of the large ones: it is a bin like all others for them, but
        // that it holds one.
        if size > self.small { LARGE_BIN } else { Self::small_index(size) }
    }

    /// Which bin a size that is not large belongs to.
    #[inline(always)]
    fn small_index(size: u64) -> usize {
        // The golden ratio spreads sizes that differ in few bits; the upper bits are the good ones.
        const SPREAD: u32 = 0x9e37_79b9;
        // Sizes that differ above 32 bits alone share a bin, as others do.
        #[allow(clippy::cast_possible_truncation)]
        let hashed = (size as u32).wrapping_mul(SPREAD) >> (u32::BITS - BINS.trailing_zeros());
        hashed as usize % BINS
    }

    /// The block of `size` that was kept last.
    #[inline]
    pub fn take(&mut self, size: u64) -> Option<B> {
        self.take_if(size, |_| true)
    }

    /// As [`take`](Self::take), if `allow` is true of the block.
    #[inline]
    pub fn take_if(&mut self, size: u64, allow: impl FnOnce(&B) -> bool) -> Option<B> {
        let index = self.index(size);
        let bin = self.bins.get(index)?;
        let top = bin.blocks.get(bin.count.wrapping_sub(1))?.as_ref()?;
        if bin.size != size || !allow(top) {
            return None;
        }
        self.take_from::<true>(index, size)
    }

    /// As [`take`](Self::take), for a size that the caller knows not to be large. It may be left out
    /// of the tallies, to see what keeping them costs.
    #[inline(always)]
    pub fn take_small<const COUNTED: bool>(&mut self, size: u64) -> Option<B> {
        self.take_from::<COUNTED>(Self::small_index(size), size)
    }

    #[inline(always)]
    fn take_from<const COUNTED: bool>(&mut self, index: usize, size: u64) -> Option<B> {
        let bin = &mut self.bins[index % BINS];
        let top = bin.count.wrapping_sub(1);
        if bin.size != size {
            return None;
        }
        let block = (*bin.blocks.get(top)?)?;
        bin.count = top;
        if COUNTED {
            bin.taken = bin.taken.wrapping_add(1);
        }
        self.held = self.held.wrapping_sub(size);
        Some(block)
    }

    /// Keeps a block where its size has a bin with room, and the bound is not reached. Where it says
    /// no, [`make_way`](Self::make_way) helps, unless the bound is 0.
    #[inline]
    pub fn keep(&mut self, size: u64, block: B) -> bool {
        self.keep_if(size, block, || true)
    }

    /// As [`keep`](Self::keep), if `allow`, which is asked only where there is room.
    #[inline]
    pub fn keep_if(&mut self, size: u64, block: B, allow: impl FnOnce() -> bool) -> bool {
        self.keep_in::<true>(self.index(size), size, block, allow)
    }

    /// As [`keep_if`](Self::keep_if), for a size that the caller knows not to be large. It may be left
    /// out of the tallies, to see what keeping them costs.
    #[inline(always)]
    pub fn keep_small_if<const COUNTED: bool>(
        &mut self,
        size: u64,
        block: B,
        allow: impl FnOnce() -> bool,
    ) -> bool {
        self.keep_in::<COUNTED>(Self::small_index(size), size, block, allow)
    }

    #[inline(always)]
    fn keep_in<const COUNTED: bool>(
        &mut self,
        index: usize,
        size: u64,
        block: B,
        allow: impl FnOnce() -> bool,
    ) -> bool {
        if self.held >= self.bound {
            return false;
        }
        let bin = &mut self.bins[index % BINS];
        if bin.size != size {
            return false;
        }
        let count = bin.count;
        let Some(place) = bin.blocks.get_mut(count) else { return false };
        if !allow() {
            return false;
        }
        *place = Some(block);
        bin.count = count + 1;
        if COUNTED {
            bin.kept = bin.kept.wrapping_add(1);
        }
        self.held = self.held.wrapping_add(size);
        true
    }

    /// Gives `size` a bin with room, and puts out what stands in its way: the blocks of that bin,
    /// where it is full or of another size, and everything, where the bound is reached.
    pub fn make_way(&mut self, size: u64, mut out: impl FnMut(B, u64)) {
        let index = self.index(size);
        let bin = &mut self.bins[index];
        if bin.size != size || bin.count == DEPTH {
            let put_out = bin.put_out(&mut out);
            bin.count = floor(index);
            let (before, tally) = (bin.size, bin.tally());
            bin.size = size;
            (bin.taken, bin.kept) = (0, 0);
            self.held = self.held.wrapping_sub(put_out);
            self.tallies[class_of(before)].add(tally);
        }
        if self.held >= self.bound {
            self.drain(|_| true, out);
        }
    }

    /// How often blocks were taken and kept, for each power of two from 1 up: a size counts with the
    /// largest that is not above it.
    pub fn tallies(&self) -> [Tally; CLASSES] {
        let mut sums = self.tallies;
        for bin in &self.bins {
            sums[class_of(bin.size)].add(bin.tally());
        }
        sums
    }

    /// Puts out the large block, if there is one, as (block, size).
    pub fn drain_large(&mut self, mut out: impl FnMut(B, u64)) {
        let bin = &mut self.bins[LARGE_BIN];
        if bin.count > floor(LARGE_BIN) && bin.size > self.small {
            self.held = self.held.wrapping_sub(bin.put_out(&mut out));
            bin.count = floor(LARGE_BIN);
        }
    }

    /// Puts out every block whose size `which` is true of, as (block, size).
    pub fn drain(&mut self, which: impl Fn(u64) -> bool, mut out: impl FnMut(B, u64)) {
        if self.held == 0 {
            return;
        }
        for (index, bin) in self.bins.iter_mut().enumerate() {
            if bin.count > floor(index) && which(bin.size) {
                self.held = self.held.wrapping_sub(bin.put_out(&mut out));
                bin.count = floor(index);
            }
        }
    }
}

impl Tally {
    /// Adds another.
    pub fn add(&mut self, other: Self) {
        self.taken = self.taken.wrapping_add(other.taken);
        self.kept = self.kept.wrapping_add(other.kept);
        self.balance = self.balance.wrapping_add(other.balance);
    }
}

/// What a bin counts as taken when it is empty.
const fn floor(index: usize) -> usize {
    if index == LARGE_BIN { DEPTH - 1 } else { 0 }
}

/// The power of two that a size counts with.
const fn class_of(size: u64) -> usize {
    (u64::BITS - 1 - (size | 1).leading_zeros()) as usize % CLASSES
}

impl<B: Copy> Bin<B> {
    fn tally(&self) -> Tally {
        let (taken, kept) = (self.taken, self.kept);
        Tally { taken, kept, balance: taken.wrapping_sub(kept).wrapping_mul(self.size) }
    }

    /// Puts out all its blocks, the one freed first first; gives the sum of their sizes.
    fn put_out(&mut self, out: &mut impl FnMut(B, u64)) -> u64 {
        let mut sum: u64 = 0;
        for block in self.blocks.iter_mut().take(self.count).filter_map(Option::take) {
            out(block, self.size);
            sum = sum.wrapping_add(self.size);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::Random;

    /// The same calls on a magazine and on lists: what is taken is what was kept last of that size,
    /// nothing is lost, nothing is had twice, and no bound is passed.
    #[test]
    fn keeps_what_lists_keep() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let bound = *random.pick(&[0, 4096, 1 << 20, u64::MAX]).unwrap();
            let small = 512 * 150;
            let mut magazine = Magazine::new(bound, small);
            let mut lists: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            let (mut next, mut taken, mut kept) = (0, 0_u64, 0_u64);
            let mut balance = 0_u64;
            for _ in 0..3000 {
                let size = 512 * (1 + random.below(200));
                if random.chance(1, 2) {
                    next += 512;
                    if !magazine.keep(size, next) {
                        magazine.make_way(size, |block, size| {
                            let list = lists.get_mut(&size).unwrap();
                            assert_eq!(list.remove(0), block);
                        });
                        let kept = magazine.keep(size, next);
                        assert_eq!(kept, bound > 0, "seed {seed}: no way was made");
                        if !kept {
                            continue;
                        }
                    }
                    lists.entry(size).or_default().push(next);
                    kept += 1;
                    balance = balance.wrapping_sub(size);
                } else {
                    let expected = lists.get_mut(&size).and_then(Vec::pop);
                    if expected.is_some() {
                        taken += 1;
                        balance = balance.wrapping_add(size);
                    }
                    let small = size <= small && random.chance(1, 2);
                    let taken =
                        if small { magazine.take_small::<true>(size) } else { magazine.take(size) };
                    assert_eq!(taken, expected, "seed {seed}");
                }
                let held: u64 = lists.iter().map(|(size, list)| size * list.len() as u64).sum();
                let blocks: usize = lists.values().map(Vec::len).sum();
                assert_eq!(magazine.held(), held);
                let last = lists.keys().next_back().copied().unwrap_or(0);
                assert!(held < bound.saturating_add(last) || blocks == 0, "seed {seed}: {held}");
                let large: usize = lists.range(small + 1..).map(|(_, list)| list.len()).sum();
                assert!(large <= 1, "seed {seed}: {large} large blocks");
            }
            let large = lists.range(small + 1..).flat_map(|(_, list)| list).next().copied();
            let mut drained = None;
            magazine.drain_large(|block, size| {
                drained = Some(block);
                lists.get_mut(&size).unwrap().clear();
            });
            assert_eq!(drained, large, "seed {seed}");
            let mut sum = Tally::default();
            magazine.tallies().into_iter().for_each(|tally| sum.add(tally));
            assert_eq!(sum, Tally { taken, kept, balance }, "seed {seed}");
            magazine.drain(
                |size| size > 51_200,
                |block, size| {
                    assert_eq!(lists.get_mut(&size).unwrap().remove(0), block);
                },
            );
            assert!(lists.range(51_201..).all(|(_, list)| list.is_empty()));
            let rest: u64 = lists.iter().map(|(size, list)| size * list.len() as u64).sum();
            assert_eq!(magazine.held(), rest);
        }
    }

    #[test]
    fn one_block_is_kept_whatever_its_size() {
        let mut magazine = Magazine::new(1024, 4096);
        magazine.make_way(1 << 40, |_, _| panic!("nothing is there"));
        assert!(magazine.keep(1 << 40, 'a'));
        magazine.make_way(512, |block, size| assert_eq!((block, size), ('a', 1 << 40)));
        assert_eq!(magazine.take(1 << 40), None, "it was put out");
        assert!(magazine.keep(512, 'b'));
        assert_eq!(magazine.take(512), Some('b'));
        let mut none = Magazine::new(0, 4096);
        none.make_way(512, |_, _| {});
        assert!(!none.keep(512, 'c'));
    }
}
