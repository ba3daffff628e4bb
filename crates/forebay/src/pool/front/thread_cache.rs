//! Thread caches: the free blocks of a pool that one thread has cached, with a magazine and counts for each stream that
//! it uses. Guarded by the thread's gate.
//!
//! ```text
//!   front   the cache of the stream used last: found by comparing one handle
//!   index   handle ─> slot, hashed
//!   slots   [ cache | (in front) | cache | ... ]      at most 2,048; the least recently used is evicted
//! ```

use core::hash::{BuildHasherDefault, Hasher};
use std::collections::HashMap;

use forebay_core::{Bytes, Magazine, Span};
use forebay_hal::StreamHandle;

use crate::pool::common::counts::Counts;
use crate::pool::common::event::ThreadEvents;
use crate::pool::common::free_block::{CachedBlock, FreedBlock};
use crate::pool::heap::Heap;
use crate::sync::map::{SMALL, Side, UNIT_SHIFT};

/// The most streams a thread has caches for at once. A cache takes 8.5 KiB, most of it the bins of its magazine, so a
/// thread at this bound takes 24 MiB.
const MAX_CACHES: usize = 2048;

/// The cache of one thread for one stream.
#[derive(Debug)]
pub(in crate::pool) struct ThreadCache {
    pub(in crate::pool) stream: StreamHandle,
    /// Sizes in units of 512 B.
    pub(super) magazine: Magazine<CachedBlock>,
    pub(in crate::pool) counts: Counts,
    /// The number of front changes when it was last in front.
    used: u64,
    /// Whether it is among [`ThreadCaches::with_large`].
    is_listed: bool,
}

impl ThreadCache {
    /// All counts of the cache, those of its magazine included.
    pub(in crate::pool) fn counts(&self) -> Counts {
        let mut counts = self.counts.clone();
        counts.add_tallies(self.magazine.tallies(), self.magazine.large_tally());
        counts
    }

    /// Takes all counts: they begin at 0 again.
    fn take_counts(&mut self) -> Counts {
        let counts = self.counts();
        self.counts = Counts::default();
        self.magazine.reset_tallies();
        counts
    }

    /// Moves the blocks and the counts to the heap.
    pub(super) fn empty_into(mut self, heap: &mut Heap) {
        let mut returns = Vec::new();
        self.drain(|_| true, &mut returns);
        heap.counts_of(self.stream).add(&self.counts());
        heap.free_all(returns);
    }

    /// Moves the large block to the heap.
    #[inline]
    pub(super) fn flush_large(&mut self, heap: &mut Heap, slot: u32) {
        self.magazine.drain_large(|cached, units| {
            heap.free(cached.address, Bytes::new(units << UNIT_SHIFT), slot);
        });
    }

    /// Takes the blocks of some sides out of the magazine.
    pub(in crate::pool) fn drain(
        &mut self,
        which: impl Fn(Side) -> bool,
        returns: &mut Vec<FreedBlock>,
    ) {
        let stream = self.stream;
        let out = |cached, units| returns.push(FreedBlock::of(cached, units, stream));
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

/// Hashes stream handles. They are addresses or small numbers that no attacker chooses, so speed matters and strength
/// does not.
#[derive(Debug, Default)]
struct HandleHasher(u64);

impl Hasher for HandleHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 divided by the golden ratio, odd: its products are well mixed in the high bits.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let spread = (self.0 ^ number).wrapping_mul(SPREAD);
        self.0 = spread ^ spread >> 32;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// What a thread knows about all its caches together.
#[derive(Debug, Default)]
struct Books {
    /// Units of 512 B in the magazines of [`ThreadCaches::slots`], without large blocks. Only the front changes between
    /// two visits, so a request need not look into the magazines of very many streams.
    slots_held: u64,
    /// The streams of caches in these slots that may have a large block; some may be gone.
    with_large: Vec<StreamHandle>,
    /// Units of 512 B in all magazines when they were last counted.
    counted: u64,
    /// Candidates for eviction with their last use, the oldest last. Those that were used since or are gone are
    /// skipped. Half of all caches are ranked at a time, so that one eviction takes logarithmic time on average.
    oldest: Vec<(u64, StreamHandle)>,
}

/// The caches of one thread.
#[derive(Debug, Default)]
pub(in crate::pool) struct ThreadCaches {
    /// The cache used last. Its slot is vacant.
    front: Option<Box<ThreadCache>>,
    front_slot: usize,
    /// All others.
    slots: Vec<Option<Box<ThreadCache>>>,
    /// The slot of each stream, that of the front included.
    index: HashMap<StreamHandle, usize, BuildHasherDefault<HandleHasher>>,
    /// The number of times the front has changed.
    changes: u64,
    /// Apart, so that an idle thread slot stays within two cache lines.
    books: Option<Box<Books>>,
    /// An evicted cache. It stays here until its blocks and counts are in the heap.
    evicted: Option<Box<ThreadCache>>,
    /// Events that are recorded. Apart, so that an idle thread slot stays within two cache lines.
    pub(in crate::pool) events: Option<Box<ThreadEvents>>,
}

impl ThreadCaches {
    /// The cache of a stream, if it was used last.
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

    /// Whether a stream has a cache, perhaps the evicted one.
    pub(in crate::pool) fn has(&self, stream: StreamHandle) -> bool {
        let is_evicted = self.evicted.as_ref().is_some_and(|cache| cache.stream == stream);
        is_evicted || self.index.contains_key(&stream)
    }

    fn bring_to_front(&mut self, stream: StreamHandle) -> Option<()> {
        let &slot = self.index.get(&stream)?;
        let cache = self.slots.get_mut(slot)?.take()?;
        self.set_front(cache, slot);
        Some(())
    }

    /// Puts a cache in front, and the previous front into its slot.
    fn set_front(&mut self, cache: Box<ThreadCache>, slot: usize) {
        self.changes += 1;
        let books = self.books.get_or_insert_default();
        books.slots_held = books.slots_held.wrapping_sub(cache.magazine.small_held());
        if let Some(mut before) = self.front.replace(cache)
            && let Some(vacant) = self.slots.get_mut(self.front_slot)
        {
            before.used = self.changes;
            books.slots_held = books.slots_held.wrapping_add(before.magazine.small_held());
            if before.magazine.has_large() && !before.is_listed {
                before.is_listed = true;
                books.with_large.push(before.stream);
            }
            *vacant = Some(before);
        }
        self.front_slot = slot;
    }

    /// Adds a cache for a stream that has none. If there are too many, the least recently used one becomes the
    /// [evicted](Self::take_evicted) one.
    pub(super) fn add_cache(&mut self, stream: StreamHandle, bound: u64) {
        let (magazine, counts) =
            (Magazine::new(bound, SMALL.get() >> UNIT_SHIFT), Counts::default());
        let slot = self.slots.len();
        self.slots.push(None);
        self.index.insert(stream, slot);
        if let Some(books) = &mut self.books
            && books.with_large.len() > 2 * slot + 16
        {
            // Streams may end while they are listed.
            let index = &self.index;
            books.with_large.retain(|stream| index.contains_key(stream));
        }
        let cache = ThreadCache { stream, magazine, counts, used: 0, is_listed: false };
        self.set_front(Box::new(cache), slot);
        if self.index.len() > MAX_CACHES && self.evicted.is_none() {
            self.evicted = self.evict();
        }
    }

    /// Takes out the least recently used cache, never the front.
    fn evict(&mut self) -> Option<Box<ThreadCache>> {
        loop {
            let (used, stream) = match self.books.get_or_insert_default().oldest.pop() {
                Some(oldest) => oldest,
                None => self.rank()?,
            };
            let slot = self.index.get(&stream).copied();
            let cache = slot.and_then(|slot| self.slots.get(slot)?.as_ref());
            if cache.is_some_and(|cache| cache.used == used) {
                return self.take_out(stream);
            }
        }
    }

    /// Ranks the least recently used half of all caches, without the front, and returns the first.
    fn rank(&mut self) -> Option<(u64, StreamHandle)> {
        let caches = self.slots.iter().flatten();
        let mut oldest: Vec<_> = caches.map(|cache| (cache.used, cache.stream)).collect();
        oldest.sort_unstable_by(|one, other| other.cmp(one));
        oldest.drain(..oldest.len() / 2);
        let first = oldest.pop();
        self.books.get_or_insert_default().oldest = oldest;
        first
    }

    /// Takes out a cache and its slot. The last slot moves into its place.
    fn take_out(&mut self, stream: StreamHandle) -> Option<Box<ThreadCache>> {
        let slot = self.index.remove(&stream)?;
        let cache = self.slots.swap_remove(slot);
        if let (Some(cache), Some(books)) = (&cache, &mut self.books) {
            books.slots_held = books.slots_held.wrapping_sub(cache.magazine.small_held());
        }
        match self.slots.get(slot) {
            Some(Some(moved)) => {
                self.index.insert(moved.stream, slot);
            }
            // The slot that moved here is the front's.
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

    /// Takes the evicted cache.
    pub(super) fn take_evicted(&mut self) -> Option<Box<ThreadCache>> {
        self.evicted.take()
    }

    /// Takes out the cache of a stream.
    pub(in crate::pool) fn remove(&mut self, stream: StreamHandle) -> Option<Box<ThreadCache>> {
        let evicted = self.evicted.take_if(|cache| cache.stream == stream);
        evicted.or_else(|| self.take_out(stream))
    }

    /// All caches, the front and the evicted one included.
    pub(in crate::pool) fn all(&mut self) -> impl Iterator<Item = &mut ThreadCache> {
        let rest = self.slots.iter_mut().flatten();
        self.front.iter_mut().chain(rest).chain(&mut self.evicted).map(|cache| &mut **cache)
    }

    /// Takes the counts of all caches, by stream. Returns by how many units of 512 B the magazines hold more than when
    /// this was last called; wraps.
    pub(super) fn take_counts(&mut self, mut take: impl FnMut(StreamHandle, Counts)) -> u64 {
        let mut held = 0_u64;
        for cache in self.all() {
            take(cache.stream, cache.take_counts());
            held = held.wrapping_add(cache.magazine.held());
        }
        let books = self.books.get_or_insert_default();
        held.wrapping_sub(core::mem::replace(&mut books.counted, held))
    }

    /// Adds the addresses of all blocks.
    pub(in crate::pool) fn add_spans(&mut self, spans: &mut Vec<Span>) {
        for cache in self.all().filter(|cache| cache.magazine.held() > 0) {
            let stream = cache.stream;
            let out = |cached, units| spans.push(FreedBlock::of(cached, units, stream).span());
            // Drains a copy: the blocks stay in the cache.
            cache.magazine.clone().drain(|_| true, out);
        }
    }

    /// Takes all blocks out of the magazines.
    pub(in crate::pool) fn drain(&mut self, returns: &mut Vec<FreedBlock>) {
        for cache in self.all() {
            cache.is_listed = false;
            cache.drain(|_| true, returns);
        }
        if let Some(books) = &mut self.books {
            books.with_large.clear();
            books.slots_held = 0;
        }
    }

    /// Takes the large blocks out of every magazine. Returns whether there were any.
    pub(super) fn drain_large(&mut self, returns: &mut Vec<FreedBlock>) -> bool {
        let before = returns.len();
        let Self { front, slots, index, books, evicted, .. } = self;
        let listed = books.iter_mut().flat_map(|books| books.with_large.drain(..));
        let mut listed: Vec<usize> =
            listed.filter_map(|stream| index.get(&stream).copied()).collect();
        // In the order of all caches.
        listed.sort_unstable();
        let mut drain = |cache: &mut Box<ThreadCache>| {
            cache.is_listed = false;
            cache.drain(|side| side == Side::Large, returns);
        };
        front.iter_mut().for_each(&mut drain);
        for slot in listed {
            slots.get_mut(slot).and_then(Option::as_mut).into_iter().for_each(&mut drain);
        }
        evicted.iter_mut().for_each(&mut drain);
        returns.len() > before
    }

    /// Sets how much each magazine may hold, in units of 512 B.
    pub(in crate::pool) fn set_bound(&mut self, units: u64) {
        self.all().for_each(|cache| cache.magazine.set_bound(units));
    }

    /// Units of 512 B in all magazines, without large blocks.
    pub(in crate::pool) fn small_held(&self) -> u64 {
        let apart = self.front.iter().chain(&self.evicted);
        let slots_held = self.books.as_ref().map_or(0, |books| books.slots_held);
        apart.fold(slots_held, |sum, cache| sum.wrapping_add(cache.magazine.small_held()))
    }
}

#[cfg(test)]
mod tests;
