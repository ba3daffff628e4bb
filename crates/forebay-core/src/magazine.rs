//! Magazines: the blocks freed most recently, cached for requests of exactly their size.
//!
//! ```text
//!   bins      [ 64 KiB: a b c ]  [ empty ]  [ 4 KiB: d ]  [ 512 B: e f g h i j ]  ...
//!              size hashed to a bin; a bin has blocks of one size, the one freed last on top
//!   reserve   [ 512 B: l m n o p q ]  [ 512 B: r s t u v w ]  [ 8 KiB: x y ]  ...
//!              batches from bins that were full, or that another size needed
//!   large     [ 48 MiB: k ]
//!              one block of a large size
//! ```
//!
//! A program that allocates a hundred blocks of one size and then frees them all is served by the bins,
//! except that one free in six moves a batch to the reserve and one allocation in six moves it back.
//!
//! A magazine is a cache in front of a heap: freeing a block and allocating one of the same size again
//! costs a few instructions and leaves the heap alone. Cached blocks cannot serve requests of other sizes
//! until they are drained, so the cache is bounded, and the pool drains it before it asks the device for
//! more memory. A magazine caches at most one large block: the free large blocks decide where the next
//! one is placed, and so how much memory a program needs.

/// How many sizes a magazine holds at most. A training step uses some dozens of sizes at a time.
const BINS: usize = 64;

/// How many blocks of one size: with them a bin is two cache lines.
const DEPTH: usize = 6;

/// How many bins' worth the reserve holds: with the bins, seven hundred blocks.
const RESERVE: usize = 64;

/// Powers of two that sizes are counted by.
const CLASSES: usize = 64;

/// Blocks of one size.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bin<B> {
    /// The size of its blocks. Stale while it is empty.
    size: u64,
    /// How many blocks there are.
    count: usize,
    /// How often a block was taken since the size was last another.
    taken: u64,
    /// How many blocks left in other ways since then, less those that came in other ways; wraps. The number of blocks
    /// kept follows from it, so keeping one counts nothing.
    left: u64,
    blocks: [Option<B>; DEPTH],
}

/// The one large block.
#[derive(Clone, Copy, Debug)]
struct Large<B> {
    /// Its size. Stale while there is no block.
    size: u64,
    block: Option<B>,
    /// How often a block was taken and kept since the size was last another.
    taken: u64,
    kept: u64,
}

/// The blocks of a bin, moved to the reserve.
#[derive(Clone, Copy, Debug)]
struct Batch<B> {
    count: usize,
    blocks: [Option<B>; DEPTH],
}

/// How often blocks of a range of sizes were taken from a magazine and kept in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Blocks taken.
    pub taken: u64,
    /// Blocks kept.
    pub kept: u64,
    /// The sum of the sizes of the blocks taken; wraps.
    pub taken_size: u64,
    /// The sum of the sizes of the blocks kept; wraps.
    pub kept_size: u64,
}

/// A bounded cache of just-freed blocks, by exact size. Sizes are in the heap's own unit, and `B` is
/// the heap's own description of a block.
///
/// ```
/// use forebay_core::Magazine;
///
/// let mut magazine = Magazine::new(1 << 20, 1 << 18);
/// magazine.evict_for(512, |_, _| {});
/// assert!(magazine.keep(512, "a"));
/// assert_eq!(magazine.take(1024), None);
/// assert_eq!(magazine.take(512), Some("a"));
/// ```
#[derive(Clone, Debug)]
pub struct Magazine<B> {
    /// The sum of the sizes of all blocks but the large one.
    held: u64,
    bound: u64,
    /// Sizes above this are large.
    small: u64,
    bins: [Bin<B>; BINS],
    /// The sizes of the blocks in the reserve, and the blocks.
    sizes: Vec<u64>,
    reserve: Vec<Batch<B>>,
    large: Large<B>,
    /// The counts of bins before their size changed. Only as long as the largest class counted, since
    /// programs have many magazines with few sizes each.
    tallies: Vec<Tally>,
    /// Those of large sizes alone, before the size changed.
    large_tally: Tally,
}

impl<B: Copy> Magazine<B> {
    /// An empty magazine that stops keeping blocks once it holds `bound`; with 0 it keeps nothing. The
    /// last block may exceed the bound. Sizes above `small` are large: one such block is kept whatever
    /// its size, and does not count towards the bound.
    pub fn new(bound: u64, small: u64) -> Self {
        let empty = Bin { size: 0, count: 0, taken: 0, left: 0, blocks: [None; DEPTH] };
        Self {
            held: 0,
            bound,
            small,
            bins: [empty; BINS],
            sizes: Vec::new(),
            reserve: Vec::new(),
            large: Large { size: 0, block: None, taken: 0, kept: 0 },
            tallies: Vec::new(),
            large_tally: Tally::default(),
        }
    }

    /// The sum of the sizes of all blocks in it.
    pub fn held(&self) -> u64 {
        let large = if self.large.block.is_some() { self.large.size } else { 0 };
        self.held.wrapping_add(large)
    }

    /// The sum of the sizes of all blocks but the large one.
    pub fn small_held(&self) -> u64 {
        self.held
    }

    /// Whether it has a large block.
    pub fn has_large(&self) -> bool {
        self.large.block.is_some()
    }

    /// Changes the bound. Blocks beyond a smaller bound stay until they are taken or drained.
    pub fn set_bound(&mut self, bound: u64) {
        self.bound = bound;
    }

    /// Which bin a size that is not large belongs to.
    #[inline(always)]
    fn index(size: u64) -> usize {
        // Fibonacci hashing: multiplying by the golden ratio spreads sizes best in the upper bits.
        const SPREAD: u32 = 0x9e37_79b9;
        // Sizes that differ only above 32 bits collide, which is harmless.
        #[allow(clippy::cast_possible_truncation)]
        let hashed = (size as u32).wrapping_mul(SPREAD) >> (u32::BITS - BINS.trailing_zeros());
        hashed as usize % BINS
    }

    /// Takes the block of `size` that was kept last.
    #[inline]
    pub fn take(&mut self, size: u64) -> Option<B> {
        if size > self.small {
            self.take_large_if(size, |_| true)
        } else {
            self.take_small::<true>(size)
        }
    }

    /// Takes the large block, if it has this size and `allow` accepts it.
    #[inline]
    pub fn take_large_if(&mut self, size: u64, allow: impl FnOnce(&B) -> bool) -> Option<B> {
        let large = &mut self.large;
        if large.size != size {
            return None;
        }
        let block = large.block.take_if(|block| allow(block))?;
        large.taken = large.taken.wrapping_add(1);
        Some(block)
    }

    /// Like [`take`](Self::take), for a size that the caller knows not to be large. `COUNTED` is false only in
    /// benchmarks that measure the cost of the tallies.
    #[inline(always)]
    pub fn take_small<const COUNTED: bool>(&mut self, size: u64) -> Option<B> {
        let bin = &mut self.bins[Self::index(size)];
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

    /// Keeps a block if the bin of its size has room and the bound is not reached. If it returns `false`,
    /// [`move_to_reserve`](Self::move_to_reserve) may make room, and [`evict_for`](Self::evict_for) does
    /// unless the bound is 0.
    #[inline]
    pub fn keep(&mut self, size: u64, block: B) -> bool {
        self.keep_if(size, block, || true)
    }

    /// Like [`keep`](Self::keep), but only if `allow`, which is called only if there is room, returns true.
    #[inline]
    pub fn keep_if(&mut self, size: u64, block: B, allow: impl FnOnce() -> bool) -> bool {
        if size > self.small {
            self.keep_large_if(size, block, allow)
        } else {
            self.keep_small_if(size, block, allow)
        }
    }

    /// Like [`keep_if`](Self::keep_if), for a size that the caller knows to be large.
    #[inline]
    pub fn keep_large_if(&mut self, size: u64, block: B, allow: impl FnOnce() -> bool) -> bool {
        if self.bound == 0 || self.large.block.is_some() || !allow() {
            return false;
        }
        let large = &mut self.large;
        if large.size != size {
            add(&mut self.tallies, large.size, large.taken, large.kept);
            self.large_tally.add(Tally::of(large.size, large.taken, large.kept));
            (large.size, large.taken, large.kept) = (size, 0, 0);
        }
        large.block = Some(block);
        large.kept = large.kept.wrapping_add(1);
        true
    }

    /// Like [`keep_if`](Self::keep_if), for a size that the caller knows not to be large.
    #[inline(always)]
    pub fn keep_small_if(&mut self, size: u64, block: B, allow: impl FnOnce() -> bool) -> bool {
        if self.held >= self.bound {
            return false;
        }
        let bin = &mut self.bins[Self::index(size)];
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
        self.held = self.held.wrapping_add(size);
        true
    }

    /// Makes room for `size` without evicting anything: blocks in its way move to the reserve. Returns
    /// `false` and changes nothing if the reserve is full or the bound is reached.
    pub fn move_to_reserve(&mut self, size: u64) -> bool {
        if size > self.small {
            return self.large.block.is_none();
        }
        if self.held >= self.bound {
            return false;
        }
        let index = Self::index(size);
        let bin = &self.bins[index];
        if bin.size == size && bin.count < DEPTH {
            return true;
        }
        if bin.count > 0 {
            if self.reserve.len() >= RESERVE {
                return false;
            }
            self.sizes.push(bin.size);
            self.reserve.push(bin.batch());
        }
        self.assign_bin(index, size, None);
        true
    }

    /// Refills the empty bin of `size` from the reserve; `false` if the reserve has no such blocks either.
    /// Blocks of another size in the bin take their place.
    pub fn refill(&mut self, size: u64) -> bool {
        let index = Self::index(size);
        let bin = &self.bins[index];
        if bin.size == size && bin.count > 0 {
            return true;
        }
        let Some(found) = self.sizes.iter().rposition(|&other| other == size) else { return false };
        let batch = match (self.reserve.get_mut(found), self.sizes.get_mut(found)) {
            (Some(batch), Some(other)) if bin.count > 0 => {
                *other = bin.size;
                core::mem::replace(batch, bin.batch())
            }
            _ => {
                self.sizes.swap_remove(found);
                self.reserve.swap_remove(found)
            }
        };
        self.assign_bin(index, size, Some(batch));
        true
    }

    /// Assigns a bin to `size`, with the blocks of `batch`. Its former blocks are elsewhere already.
    fn assign_bin(&mut self, index: usize, size: u64, batch: Option<Batch<B>>) {
        let bin = &mut self.bins[index % BINS];
        bin.set_count(0);
        if bin.size != size {
            add(&mut self.tallies, bin.size, bin.taken, bin.kept());
            (bin.size, bin.taken, bin.left) = (size, 0, 0);
        }
        bin.set_count(batch.map_or(0, |batch| batch.count));
        if let Some(batch) = batch {
            bin.blocks = batch.blocks;
        }
    }

    /// Makes room for `size` by evicting: the blocks of its bin if it is full or of another size, the
    /// large block if `size` is large, and every block if the bound is reached.
    pub fn evict_for(&mut self, size: u64, mut out: impl FnMut(B, u64)) {
        if size > self.small {
            self.drain_large(out);
            return;
        }
        let index = Self::index(size);
        let bin = &mut self.bins[index];
        if bin.size != size || bin.count == DEPTH {
            let evict = bin.evict(&mut out);
            self.held = self.held.wrapping_sub(evict);
            self.assign_bin(index, size, None);
        }
        if self.held >= self.bound {
            self.drain(|_| true, out);
        }
    }

    /// How often blocks were taken and kept, for each power of two from 1 up: a size counts with the
    /// largest that is not above it.
    pub fn tallies(&self) -> [Tally; CLASSES] {
        let mut sums = [Tally::default(); CLASSES];
        for (sum, &tally) in sums.iter_mut().zip(&self.tallies) {
            sum.add(tally);
        }
        for bin in &self.bins {
            sums[class_of(bin.size)].add(Tally::of(bin.size, bin.taken, bin.kept()));
        }
        let large = &self.large;
        sums[class_of(large.size)].add(Tally::of(large.size, large.taken, large.kept));
        sums
    }

    /// How often large blocks were taken and kept. The [`tallies`](Self::tallies) contain them.
    pub fn large_tally(&self) -> Tally {
        let mut sum = self.large_tally;
        sum.add(Tally::of(self.large.size, self.large.taken, self.large.kept));
        sum
    }

    /// Resets [`tallies`](Self::tallies) and [`large_tally`](Self::large_tally) to 0. The blocks stay.
    pub fn reset_tallies(&mut self) {
        for bin in &mut self.bins {
            // Nothing was taken or kept: what is there came in other ways.
            (bin.taken, bin.left) = (0, 0_u64.wrapping_sub(bin.count as u64));
        }
        (self.large.taken, self.large.kept) = (0, 0);
        self.tallies.clear();
        self.large_tally = Tally::default();
    }

    /// Evicts the large block, if there is one, as (block, size).
    #[inline]
    pub fn drain_large(&mut self, mut out: impl FnMut(B, u64)) {
        if let Some(block) = self.large.block.take() {
            out(block, self.large.size);
        }
    }

    /// Evicts every block whose size `which` accepts, as (block, size).
    pub fn drain(&mut self, which: impl Fn(u64) -> bool, mut out: impl FnMut(B, u64)) {
        if which(self.large.size) {
            self.drain_large(&mut out);
        }
        if self.held == 0 {
            return;
        }
        for bin in &mut self.bins {
            if bin.count > 0 && which(bin.size) {
                self.held = self.held.wrapping_sub(bin.evict(&mut out));
                bin.set_count(0);
            }
        }
        let mut number = 0;
        while let Some(&size) = self.sizes.get(number) {
            if !which(size) {
                number += 1;
                continue;
            }
            self.sizes.swap_remove(number);
            let batch = self.reserve.swap_remove(number);
            for block in batch.blocks.into_iter().take(batch.count).flatten() {
                out(block, size);
                self.held = self.held.wrapping_sub(size);
            }
        }
    }
}

impl Tally {
    /// Blocks of one size.
    pub fn of(size: u64, taken: u64, kept: u64) -> Self {
        let (taken_size, kept_size) = (taken.wrapping_mul(size), kept.wrapping_mul(size));
        Self { taken, kept, taken_size, kept_size }
    }

    /// Adds another tally.
    pub fn add(&mut self, other: Self) {
        self.taken = self.taken.wrapping_add(other.taken);
        self.kept = self.kept.wrapping_add(other.kept);
        self.taken_size = self.taken_size.wrapping_add(other.taken_size);
        self.kept_size = self.kept_size.wrapping_add(other.kept_size);
    }

    /// What is left without `part`.
    #[must_use]
    pub fn minus(self, part: Self) -> Self {
        Self {
            taken: self.taken.wrapping_sub(part.taken),
            kept: self.kept.wrapping_sub(part.kept),
            taken_size: self.taken_size.wrapping_sub(part.taken_size),
            kept_size: self.kept_size.wrapping_sub(part.kept_size),
        }
    }

    /// Blocks taken and not kept.
    pub fn live(self) -> u64 {
        self.taken.wrapping_sub(self.kept)
    }

    /// The sum of their sizes.
    pub fn live_size(self) -> u64 {
        self.taken_size.wrapping_sub(self.kept_size)
    }
}

/// Adds the counts of a size to the tally of its class.
fn add(tallies: &mut Vec<Tally>, size: u64, taken: u64, kept: u64) {
    let class = class_of(size);
    if (taken, kept) == (0, 0) {
        return;
    }
    if tallies.len() <= class {
        tallies.resize(class + 1, Tally::default());
    }
    if let Some(tally) = tallies.get_mut(class) {
        tally.add(Tally::of(size, taken, kept));
    }
}

/// The class in which a size is counted: its highest power of two.
const fn class_of(size: u64) -> usize {
    (u64::BITS - 1 - (size | 1).leading_zeros()) as usize % CLASSES
}

impl<B: Copy> Bin<B> {
    fn batch(&self) -> Batch<B> {
        Batch { count: self.count, blocks: self.blocks }
    }

    /// How often a block was kept since the size was last another.
    fn kept(&self) -> u64 {
        self.taken.wrapping_add(self.count as u64).wrapping_add(self.left)
    }

    /// Notes that blocks left or came in other ways than by being taken or kept.
    fn set_count(&mut self, count: usize) {
        self.left = self.left.wrapping_add(self.count as u64).wrapping_sub(count as u64);
        self.count = count;
    }

    /// Evicts all its blocks, the one freed first first; returns the sum of their sizes.
    fn evict(&mut self, out: &mut impl FnMut(B, u64)) -> u64 {
        let mut sum: u64 = 0;
        for block in self.blocks.iter_mut().take(self.count).filter_map(Option::take) {
            out(block, self.size);
            sum = sum.wrapping_add(self.size);
        }
        sum
    }
}

#[cfg(test)]
mod tests;
