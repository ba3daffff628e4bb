//! Thread caches: what one thread has cached of a pool, a magazine and counts for each stream it uses.
//!
//! ```text
//!   front   the cache of the stream used last: found by comparing one handle
//!   index   handle ─> slot, hashed
//!   slots   [ cache | (in front) | cache | ... ]      at most 2,048; the least recently used is evicted
//! ```

use core::hash::{BuildHasherDefault, Hasher};
use std::collections::HashMap;

use forebay_core::{Bytes, Magazine, Tally};
use forebay_hal::StreamHandle;

use crate::pool::front::cached_block::{CachedBlock, FreedBlock};
use crate::sync::map::{SMALL, Side, UNIT_SHIFT};

/// How many streams a thread has caches for at once. A cache is 8.5 KiB, most of it the bins of its
/// magazine, so a thread that uses this many takes 24 MiB.
const MOST_CACHES: usize = 2048;

/// As many as a tag's number can be, so that none needs to be checked.
const TAGS: usize = 256;

/// Powers of two of 512 B.
pub(in crate::pool) const CLASSES: usize = 64;

/// What happened to blocks of a range of sizes.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::pool) struct ClassCounts {
    pub(in crate::pool) allocations: u64,
    pub(in crate::pool) frees: u64,
    /// What live blocks have, in units of 512 B.
    pub(in crate::pool) live: u64,
}

/// Counts of one thread on one stream. Sums wrap: a block freed by another thread than allocated it
/// is below zero here and above there.
#[derive(Clone, Debug)]
pub(in crate::pool) struct Counts {
    /// By the power of two of 512 B. What passes through a magazine is counted there.
    pub(in crate::pool) classes: [ClassCounts; CLASSES],
    /// What live blocks have by tag, in units of 512 B. In place: a list of as many as were counted takes a
    /// hit twelve instructions more.
    pub(in crate::pool) tags: [u64; TAGS],
    /// What was asked for by live blocks, in bytes.
    pub(in crate::pool) requested: u64,
}

impl Default for Counts {
    fn default() -> Self {
        let classes = [ClassCounts::default(); CLASSES];
        Self { classes, tags: [0; TAGS], requested: 0 }
    }
}

impl ClassCounts {
    fn add(&mut self, other: Self) {
        self.allocations = self.allocations.wrapping_add(other.allocations);
        self.frees = self.frees.wrapping_add(other.frees);
        self.live = self.live.wrapping_add(other.live);
    }
}

/// Which class a number of units counts in: the power of two not above it.
fn class_of(units: u64) -> usize {
    (u64::BITS - 1 - (units | 1).leading_zeros()) as usize
}

impl Counts {
    /// A block went out that its class is counted for elsewhere.
    #[inline(always)]
    pub(in crate::pool) fn out(&mut self, units: u64, requested: u64, tag: u8) {
        self.requested = self.requested.wrapping_add(requested);
        let tagged = &mut self.tags[usize::from(tag) % TAGS];
        *tagged = tagged.wrapping_add(units);
    }

    /// A block came back that its class is counted for elsewhere.
    #[inline(always)]
    pub(in crate::pool) fn back(&mut self, units: u64, requested: u64, tag: u8) {
        self.requested = self.requested.wrapping_sub(requested);
        let tagged = &mut self.tags[usize::from(tag) % TAGS];
        *tagged = tagged.wrapping_sub(units);
    }

    /// A block went out.
    pub(in crate::pool) fn allocated(&mut self, units: u64, requested: u64, tag: u8) {
        let class = &mut self.classes[class_of(units) % CLASSES];
        class.allocations = class.allocations.wrapping_add(1);
        class.live = class.live.wrapping_add(units);
        self.out(units, requested, tag);
    }

    /// A block came back.
    pub(in crate::pool) fn freed(&mut self, units: u64, requested: u64, tag: u8) {
        let class = &mut self.classes[class_of(units) % CLASSES];
        class.frees = class.frees.wrapping_add(1);
        class.live = class.live.wrapping_sub(units);
        self.back(units, requested, tag);
    }

    /// What live blocks have.
    pub(in crate::pool) fn live(&self) -> Bytes {
        let units = self.classes.iter().fold(0, |sum: u64, class| sum.wrapping_add(class.live));
        Bytes::new(units << UNIT_SHIFT)
    }

    /// How many blocks went out and did not come back.
    pub(in crate::pool) fn blocks(&self) -> u64 {
        self.classes.iter().fold(0, |sum: u64, class| {
            sum.wrapping_add(class.allocations).wrapping_sub(class.frees)
        })
    }

    /// The sum of several.
    pub(in crate::pool) fn sum<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        all.into_iter().for_each(|counts| sum.add(counts));
        sum
    }

    pub(in crate::pool) fn add(&mut self, other: &Self) {
        for (sum, one) in self.classes.iter_mut().zip(&other.classes) {
            sum.add(*one);
        }
        for (sum, one) in self.tags.iter_mut().zip(&other.tags) {
            *sum = sum.wrapping_add(*one);
        }
        self.requested = self.requested.wrapping_add(other.requested);
    }
}

/// A magazine and counts for one stream.
#[derive(Debug)]
pub(in crate::pool) struct ThreadCache {
    pub(in crate::pool) stream: StreamHandle,
    /// Sizes in units of 512 B.
    pub(in crate::pool) magazine: Magazine<CachedBlock>,
    pub(in crate::pool) counts: Counts,
    /// When it was last in front, by the count of changes of the front.
    used: u64,
}

impl ThreadCache {
    /// All that was counted on it, in its magazine too.
    pub(in crate::pool) fn counts(&self) -> Counts {
        let mut counts = self.counts.clone();
        for (class, tally) in self.magazine.tallies().into_iter().enumerate() {
            if tally != Tally::default() {
                let (allocations, frees) = (tally.taken, tally.kept);
                let tallied = ClassCounts { allocations, frees, live: tally.balance };
                counts.classes[class % CLASSES].add(tallied);
            }
        }
        counts
    }

    /// Puts a block of `units` into the magazine, and what stands in its way into `spilled`. `false` where
    /// the magazine holds nothing.
    pub(in crate::pool) fn keep(
        &mut self,
        units: u64,
        block: CachedBlock,
        spilled: &mut Vec<FreedBlock>,
    ) -> bool {
        let stream = self.stream;
        if !self.magazine.move_to_reserve(units) {
            let spill = |kept, units| spilled.push(FreedBlock::of(kept, units, stream));
            self.magazine.evict_for(units, spill);
        }
        self.magazine.keep(units, block)
    }

    /// Takes the blocks of some sides out of the magazine.
    pub(in crate::pool) fn empty(
        &mut self,
        which: impl Fn(Side) -> bool,
        returns: &mut Vec<FreedBlock>,
    ) {
        let stream = self.stream;
        let out = |kept, units| returns.push(FreedBlock::of(kept, units, stream));
        match (which(Side::Small), which(Side::Large)) {
            (false, true) => self.magazine.drain_large(out),
            (small, large) => self.magazine.drain(
                |units| match Side::of(Bytes::new(units << UNIT_SHIFT)) {
                    Side::Small => small,
                    Side::Large => large,
                },
                out,
            ),
        }
    }
}

/// Hashes handles, which are addresses or small numbers and nobody's choice.
#[derive(Debug, Default)]
struct HandleHasher(u64);

impl Hasher for HandleHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 divided by the golden ratio, odd: the high bits are the good ones.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let spread = (self.0 ^ number).wrapping_mul(SPREAD);
        self.0 = spread ^ spread >> 32;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The caches of one thread.
#[derive(Debug, Default)]
pub(in crate::pool) struct ThreadCaches {
    /// The one used last. Its slot is vacant.
    front: Option<Box<ThreadCache>>,
    front_slot: usize,
    /// All others.
    slots: Vec<Option<Box<ThreadCache>>>,
    /// Which slot is a stream's, that of the front included.
    index: HashMap<StreamHandle, usize, BuildHasherDefault<HandleHasher>>,
    /// How often the front has changed.
    changes: u64,
    /// Caches to evict, with when they were last used, the oldest last. Those that were used since or
    /// are gone are skipped. Ranked anew when it is used up, half of all at a time, so that evicting
    /// one takes a logarithm's time on average.
    oldest: Vec<(u64, StreamHandle)>,
    /// One that has to go: here until what it held and counted is the heap's.
    leaving: Option<Box<ThreadCache>>,
}

impl ThreadCaches {
    /// The cache of a stream, if it is the one used last.
    #[inline(always)]
    pub(in crate::pool) fn front(&mut self, stream: StreamHandle) -> Option<&mut ThreadCache> {
        self.front.as_deref_mut().filter(|cache| cache.stream == stream)
    }

    /// The cache of a stream.
    #[inline]
    pub(in crate::pool) fn of(&mut self, stream: StreamHandle) -> Option<&mut ThreadCache> {
        if self.front.as_ref().is_none_or(|cache| cache.stream != stream) {
            self.bring_to_front(stream)?;
        }
        self.front(stream)
    }

    fn bring_to_front(&mut self, stream: StreamHandle) -> Option<()> {
        let &slot = self.index.get(&stream)?;
        let cache = self.slots.get_mut(slot)?.take()?;
        self.set_front(cache, slot);
        Some(())
    }

    /// Puts a cache in front, and what was there into its slot.
    fn set_front(&mut self, cache: Box<ThreadCache>, slot: usize) {
        self.changes += 1;
        if let Some(mut before) = self.front.replace(cache)
            && let Some(vacant) = self.slots.get_mut(self.front_slot)
        {
            before.used = self.changes;
            *vacant = Some(before);
        }
        self.front_slot = slot;
    }

    /// Puts up a cache for a stream that has none. Where there are too many, the one that was not used
    /// for the longest is [leaving](Self::take_leaving).
    pub(in crate::pool) fn put_up(&mut self, stream: StreamHandle, bound: u64) {
        let (magazine, counts) =
            (Magazine::new(bound, SMALL.get() >> UNIT_SHIFT), Counts::default());
        let slot = self.slots.len();
        self.slots.push(None);
        self.index.insert(stream, slot);
        self.set_front(Box::new(ThreadCache { stream, magazine, counts, used: 0 }), slot);
        if self.index.len() > MOST_CACHES && self.leaving.is_none() {
            self.leaving = self.evict();
        }
    }

    /// Takes out the cache that was not used for the longest, of those that are not in front.
    fn evict(&mut self) -> Option<Box<ThreadCache>> {
        if self.oldest.is_empty() {
            self.rank();
        }
        loop {
            let (used, stream) = match self.oldest.pop() {
                Some(oldest) => oldest,
                None => {
                    self.rank();
                    self.oldest.pop()?
                }
            };
            let slot = self.index.get(&stream).copied();
            let cache = slot.and_then(|slot| self.slots.get(slot)?.as_ref());
            if cache.is_some_and(|cache| cache.used == used) {
                return self.take_out(stream);
            }
        }
    }

    /// Ranks the half of all caches that was not used for the longest, but for the front.
    fn rank(&mut self) {
        let caches = self.slots.iter().flatten();
        self.oldest = caches.map(|cache| (cache.used, cache.stream)).collect();
        self.oldest.sort_unstable_by(|one, other| other.cmp(one));
        self.oldest.drain(..self.oldest.len() / 2);
    }

    /// Takes out a cache and its slot, into which the last one moves.
    fn take_out(&mut self, stream: StreamHandle) -> Option<Box<ThreadCache>> {
        let slot = self.index.remove(&stream)?;
        let cache = self.slots.swap_remove(slot);
        match self.slots.get(slot) {
            Some(Some(moved)) => {
                self.index.insert(moved.stream, slot);
            }
            // That of the front has moved here.
            Some(None) => {
                self.front_slot = slot;
                if let Some(front) = &self.front {
                    self.index.insert(front.stream, slot);
                }
            }
            None => {}
        }
        cache.or_else(|| self.front.take())
    }

    /// Takes out the cache that has to go.
    pub(in crate::pool) fn take_leaving(&mut self) -> Option<Box<ThreadCache>> {
        self.leaving.take()
    }

    /// Whether a cache has to go before a stream can have one.
    pub(in crate::pool) fn is_full_for(&mut self, stream: StreamHandle) -> bool {
        self.of(stream).is_none() && self.index.len() >= MOST_CACHES
    }

    /// Takes out the cache of a stream.
    pub(in crate::pool) fn remove(&mut self, stream: StreamHandle) -> Option<Box<ThreadCache>> {
        let leaving = self.leaving.take_if(|cache| cache.stream == stream);
        leaving.or_else(|| self.take_out(stream))
    }

    /// All of them.
    pub(in crate::pool) fn all(&mut self) -> impl Iterator<Item = &mut ThreadCache> {
        let rest = self.slots.iter_mut().flatten();
        self.front.iter_mut().chain(rest).chain(&mut self.leaving).map(|cache| &mut **cache)
    }

    /// Takes all blocks out of the magazines.
    pub(in crate::pool) fn drain(&mut self, returns: &mut Vec<FreedBlock>) {
        self.all().for_each(|cache| cache.empty(|_| true, returns));
    }

    /// Takes the large blocks out of every magazine.
    pub(in crate::pool) fn drain_large(&mut self, returns: &mut Vec<FreedBlock>) {
        self.all().for_each(|cache| cache.empty(|side| side == Side::Large, returns));
    }

    /// Changes how much each magazine holds.
    pub(in crate::pool) fn set_bound(&mut self, units: u64) {
        self.all().for_each(|cache| cache.magazine.set_bound(units));
    }

    /// What the magazines hold, but for large blocks, in units of 512 B.
    pub(in crate::pool) fn small_held(&mut self) -> u64 {
        self.all().fold(0, |sum, cache| sum.saturating_add(cache.magazine.small_held()))
    }
}

#[cfg(test)]
mod tests;
