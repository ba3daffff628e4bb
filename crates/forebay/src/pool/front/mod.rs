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
pub(in crate::pool) mod claimed;
mod hit;
mod own_gate;
pub(in crate::pool) mod thread_cache;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use self::all_caches::AllCaches;
use self::thread_cache::ThreadCache;
use crate::PoolId;
use crate::pool::common::counts::Counts;
use crate::pool::common::free_block::FreedBlock;
use crate::pool::front::claimed::Claimed;
use crate::pool::heap::thread_ends::is_ending;
use crate::pool::heap::{Heap, Piece};
use crate::sync::gates::Gates;
use crate::sync::map::{AddressMap, SMALL_UNITS, Side, UNIT_SHIFT};
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
    /// Counts a call that went past the caches, still in this thread's cache for the stream if it may have one.
    pub(in crate::pool) fn count(&self, stream: StreamHandle, note: impl Fn(&mut Counts)) {
        let counted =
            self.with_own(|caches| caches.of(stream).map(|cache| note(&mut cache.counts)));
        if counted.flatten().is_some() {
            return;
        }
        let mut heap = lock(&self.heap);
        if !self.with_new_cache(&mut heap, stream, &mut |_, cache| note(&mut cache.counts)) {
            note(heap.counts_of(stream));
        }
    }

    /// Runs `work` with the locked heap and this thread's cache for a stream. Returns `false` if the thread can have none.
    #[inline(always)]
    fn with_cache(
        &self,
        heap: &mut Heap,
        stream: StreamHandle,
        mut work: impl FnMut(&mut Heap, &mut ThreadCache),
    ) -> bool {
        let done = self.with_own(|caches| caches.of(stream).map(|cache| work(heap, cache)));
        done.flatten().is_some() || self.with_new_cache(heap, stream, &mut work)
    }

    /// Like [`with_cache`](Self::with_cache), for a stream without a cache: adds one.
    #[cold]
    #[inline(never)]
    fn with_new_cache(
        &self,
        heap: &mut Heap,
        stream: StreamHandle,
        work: &mut dyn FnMut(&mut Heap, &mut ThreadCache),
    ) -> bool {
        if is_ending(stream) {
            return false;
        }
        // The pool looks for caches of streams that it has seen when they end.
        heap.slots.note_seen(stream);
        let done = self.with_own(|caches| {
            caches.add_cache(stream, self.bound.load(Ordering::Relaxed));
            let done = caches.of(stream).map(|cache| work(heap, cache));
            // Last: it may take over the slot that `work` knows the stream by.
            if let Some(evicted) = caches.take_evicted() {
                evicted.empty_into(heap);
            }
            done
        });
        done.flatten().is_some()
    }

    /// Takes a piece from a hole, and counts that by `note`. The large block that this thread has cached for the stream goes
    /// to the heap first: merged with its neighbours it may be the lower hole, and if it still is the best one, it is
    /// allocated again.
    #[inline(always)]
    pub(in crate::pool) fn take_hole(
        &self,
        heap: &mut Heap,
        piece: Piece,
        stream: StreamHandle,
        note: impl Fn(&mut Counts),
    ) -> Option<Address> {
        let slot = heap.slots.get(stream)?;
        let mut found = None;
        let counted = self.with_cache(heap, stream, |heap, cache| {
            if piece.side() == Side::Large {
                cache.flush_large(heap, slot);
            }
            found = heap.take(piece, slot);
            if found.is_some() {
                note(&mut cache.counts);
            }
        });
        if counted {
            found
        } else {
            heap.take(piece, slot).inspect(|_| note(heap.counts_of(stream)))
        }
    }

    /// Caches a claimed block and counts the free, if the magazine of its stream has room or can make some in its
    /// reserve.
    #[inline]
    pub(in crate::pool) fn keep_claimed(&self, block: &Claimed<'_>, stream: StreamHandle) -> bool {
        let (known, units) = (&block.known, block.known.units());
        if units > SMALL_UNITS && !self.is_last_large(block.address) {
            return false;
        }
        let kept = self.with_own(|caches| {
            let Some(cache) = caches.of(stream) else { return false };
            let has_room = cache.magazine.move_to_reserve(units);
            let kept = has_room && cache.magazine.keep(units, block.cached());
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
        block: &Claimed<'_>,
        stream: StreamHandle,
    ) -> bool {
        let (units, requested, tag) =
            (block.known.units(), block.known.requested(), block.known.tag());
        let is_cached = units <= SMALL_UNITS || self.is_last_large(block.address);
        let free = |heap: &mut Heap, address: Address, units: u64| {
            let slot = heap.slot_to_free(stream);
            heap.free(address, Bytes::new(units << UNIT_SHIFT), slot);
        };
        let mut reached = false;
        let counted = self.with_cache(heap, stream, |heap, cache| {
            if is_cached {
                cache.magazine.evict_for(units, |cached, units| {
                    free(heap, cached.address, units);
                    reached = true;
                });
                if cache.magazine.keep(units, block.cached()) {
                    cache.counts.count_kept(units, requested, tag);
                    return;
                }
            }
            free(heap, block.address, units);
            cache.counts.count_free(units, requested, tag);
            reached = true;
        });
        if !counted {
            free(heap, block.address, units);
            heap.counts_of(stream).count_free(units, requested, tag);
        }
        reached || !counted
    }

    /// Moves the large block that this thread has cached for a stream to the heap.
    pub(in crate::pool) fn flush_own_large(&self, heap: &mut Heap, stream: StreamHandle) {
        let slot = heap.slot_to_free(stream);
        self.with_own(|caches| {
            if let Some(cache) = caches.of(stream) {
                cache.flush_large(heap, slot);
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
