//! The front: each thread's caches of free blocks, a magazine for each stream. No lock: only the owning thread enters
//! its gate, and visitors shut it out first. A hit takes no lock, makes no driver call and allocates nothing.
//!
//! ```text
//!   thread ── gate ── ThreadCaches ── ThreadCache (stream A) ── magazine: small blocks by size, one large block
//!                                  └─ ThreadCache (stream B) ── magazine
//! ```
//!
//! A thread remembers the gates of the two pools that it used last, each under an **epoch** of the pool. A pool whose
//! calls are checked or observed has no epoch, so that no call is a hit: one load tells.
//!
//! The heap lock is taken before a gate is entered, never inside it: an owner waits for the heap only outside its gate.

pub(in crate::pool) mod all_caches;
pub(in crate::pool) mod claimed_as;
mod hit;
mod own_gate;
pub(in crate::pool) mod thread_cache;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use forebay_core::Bytes;
use forebay_hal::StreamHandle;

use self::all_caches::AllCaches;
use self::thread_cache::ThreadCaches;
use crate::PoolId;
use crate::pool::common::counts::Counts;
use crate::pool::common::free_block::{CachedBlock, FreedBlock};
use crate::pool::heap::Heap;
use crate::pool::heap::thread_ends::is_ending;
use crate::sync::gates::Gates;
use crate::sync::map::{AddressMap, BlockState, SMALL_UNITS, UNIT_SHIFT};
use crate::sync::tracked::lock;

/// No thread remembers a gate under this epoch.
const NO_HITS: u64 = u64::MAX;

/// Which calls may be hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum Hits {
    /// Calls that are neither checked nor recorded.
    Plain,
    /// Calls that are recorded by the thread itself.
    Recorded,
    /// None: every call is checked or observed.
    None,
}

/// The thread caches of a pool.
#[derive(Debug)]
pub(in crate::pool) struct Front {
    pool: PoolId,
    /// The number by which threads remember their gate while hits are plain.
    epoch: AtomicU64,
    /// The same while they are recorded.
    record_epoch: AtomicU64,
    /// The most that a magazine holds without pressure, in units of 512 B, and now.
    full: AtomicU64,
    bound: AtomicU64,
    /// Shared with the heap: the large block that it would allocate again.
    last_large: Arc<AtomicU64>,
    map: AddressMap,
    /// Shared with the pool: where blocks go that a visitor asked an owner to flush.
    heap: Arc<Mutex<Heap>>,
    /// Every thread's caches, for visitors.
    pub(in crate::pool) all: AllCaches,
}

/// # Settings
impl Front {
    pub(in crate::pool) fn new(
        pool: PoolId,
        map: &AddressMap,
        heap: &Arc<Mutex<Heap>>,
        last_large: Arc<AtomicU64>,
        full: u64,
    ) -> Self {
        Self {
            pool,
            epoch: AtomicU64::new(NO_HITS),
            record_epoch: AtomicU64::new(NO_HITS),
            full: AtomicU64::new(full),
            bound: AtomicU64::new(full),
            last_large,
            map: map.clone(),
            heap: Arc::clone(heap),
            all: AllCaches(Gates::of_threads()),
        }
    }

    /// Sets which calls may be hits. The epoch is new each time: what threads remember is stale.
    pub(in crate::pool) fn set_hits(&self, hits: Hits) {
        let epoch = |of| if hits == of { PoolId::next().0 } else { NO_HITS };
        self.record_epoch.store(epoch(Hits::Recorded), Ordering::Relaxed);
        self.epoch.store(epoch(Hits::Plain), Ordering::Relaxed);
    }

    /// Whether calls are neither checked nor recorded.
    #[inline(always)]
    pub(in crate::pool) fn is_plain(&self) -> bool {
        self.epoch.load(Ordering::Relaxed) != NO_HITS
    }

    /// The most that a magazine holds without pressure, in units of 512 B.
    pub(in crate::pool) fn full(&self) -> u64 {
        self.full.load(Ordering::Relaxed)
    }

    /// Sets it, without effect before the next [`set_bound`](Self::set_bound). Returns whether it has changed.
    pub(in crate::pool) fn set_full(&self, units: u64) -> bool {
        self.full.swap(units, Ordering::Relaxed) != units
    }

    /// Sets the most that a magazine holds now, in units of 512 B. A magazine above the bound shrinks at its next use.
    pub(in crate::pool) fn set_bound(&self, units: u64) {
        self.bound.store(units, Ordering::Relaxed);
        self.all.set_bound(units);
    }
}

/// # The calling thread's own caches
impl Front {
    /// Counts a call that went past the caches: in this thread's cache for the stream all the same, if it has or may have
    /// one.
    #[inline]
    pub(in crate::pool) fn count(&self, stream: StreamHandle, note: impl Fn(&mut Counts)) {
        let counted = self.with_own(|caches| match caches.of(stream) {
            Some(cache) => {
                note(&mut cache.counts);
                true
            }
            None => false,
        });
        if counted != Some(true) {
            self.count_slowly(stream, &note);
        }
    }

    /// Counts a call on a stream for which this thread has no cache.
    #[cold]
    #[inline(never)]
    fn count_slowly(&self, stream: StreamHandle, note: &dyn Fn(&mut Counts)) {
        let mut heap = lock(&self.heap);
        let may_have = !is_ending(stream);
        if may_have {
            // The pool looks for caches of streams that it has seen when they end.
            heap.slots.note_seen(stream);
        }
        let counted = self.with_own(|caches| {
            if caches.of(stream).is_none() && may_have && !caches.is_full() {
                caches.add_cache(stream, self.bound.load(Ordering::Relaxed));
            }
            caches.of(stream).map(|cache| note(&mut cache.counts)).is_some()
        });
        if counted != Some(true) {
            note(heap.counts_of(stream));
        }
    }

    /// Caches a claimed block and counts the free, if the magazine of its stream has room or can make some in its
    /// reserve.
    pub(in crate::pool) fn keep_claimed(
        &self,
        block: CachedBlock,
        known: BlockState,
        stream: StreamHandle,
    ) -> bool {
        let units = known.units();
        if units > SMALL_UNITS && !self.is_last_large(block.address) {
            return false;
        }
        let kept = self.with_own(|caches| {
            let Some(cache) = caches.of(stream) else { return false };
            let kept = cache.magazine.move_to_reserve(units) && cache.magazine.keep(units, block);
            if kept {
                cache.counts.count_kept(units, known.requested(), known.tag());
            }
            kept
        });
        kept == Some(true)
    }

    /// Frees a claimed block under the heap lock and counts it: into this thread's magazine, from which blocks in its way
    /// move to the heap, or into a hole. Returns whether anything reached the heap.
    pub(in crate::pool) fn put(
        &self,
        heap: &mut Heap,
        block: CachedBlock,
        known: BlockState,
        stream: StreamHandle,
    ) -> bool {
        let (units, requested, tag) = (known.units(), known.requested(), known.tag());
        let is_cached = units <= SMALL_UNITS || self.is_last_large(block.address);
        let mut reached = false;
        let mut free = |heap: &mut Heap, cached: CachedBlock, units: u64| {
            let slot = heap.slot_to_free(stream);
            heap.free(cached.address, Bytes::new(units << UNIT_SHIFT), slot);
            reached = true;
        };
        let mut put = |heap: &mut Heap, caches: &mut ThreadCaches| {
            let cache = caches.of(stream)?;
            if is_cached {
                cache.magazine.evict_for(units, |cached, units| free(heap, cached, units));
                if cache.magazine.keep(units, block) {
                    cache.counts.count_kept(units, requested, tag);
                    return Some(());
                }
            }
            free(heap, block, units);
            cache.counts.count_free(units, requested, tag);
            Some(())
        };
        let mut counted = self.with_own(|caches| put(heap, caches)).flatten();
        if counted.is_none() {
            // The pool looks for caches of streams that it has seen when they end.
            heap.slots.note_seen(stream);
            let counted_anew = self.with_own(|caches| {
                caches.add_cache(stream, self.bound.load(Ordering::Relaxed));
                if let Some(evicted) = caches.take_evicted() {
                    evicted.empty_into(heap);
                }
                put(heap, caches)
            });
            counted = counted_anew.flatten();
        }
        if counted.is_none() {
            free(heap, block, units);
            heap.counts_of(stream).count_free(units, requested, tag);
        }
        reached
    }

    /// Moves the large block that this thread has cached for a stream to the heap: merged with its neighbours it may be
    /// the lower hole. If it still is the best one, it is allocated again.
    pub(in crate::pool) fn flush_own_large(
        &self,
        heap: &mut Heap,
        stream: StreamHandle,
        slot: u32,
    ) {
        self.with_own(|caches| {
            if let Some(cache) = caches.of(stream) {
                cache.magazine.drain_large(|cached, units| {
                    heap.free(cached.address, Bytes::new(units << UNIT_SHIFT), slot);
                });
            }
        });
    }

    /// Takes the small blocks out of this thread's magazines, if they hold at least `least` bytes.
    pub(in crate::pool) fn flush_own_small(&self, least: Bytes) -> Vec<FreedBlock> {
        let mut returns = Vec::new();
        self.with_own(|caches| {
            if Bytes::new(caches.small_held() << UNIT_SHIFT) >= least {
                caches.drain(&mut returns);
            }
        });
        returns
    }
}
