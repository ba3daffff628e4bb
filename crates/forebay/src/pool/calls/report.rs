//! The reports of a pool: on a refused request, and on a drop with live blocks.

use core::cell::Cell;

use forebay_core::Bytes;

use crate::pool::front::thread_cache::Counts;
use crate::pool::shared::Shared;
use crate::report::{DropReport, LeakedBlock, Shortage};
use crate::sync::map::{Side, UNIT_SHIFT};
use crate::{PoolId, Request, Tag};

/// The most tags that a report names.
const OWNERS: usize = 4;

impl Shared {
    /// The figures of the pool for a refused request that needs `needed` contiguous bytes. Takes the heap lock once, so
    /// that all figures are of one moment.
    #[cold]
    pub(in crate::pool) fn shortage(&self, request: Request, needed: Bytes) -> Shortage {
        let info = self.device.memory_info().unwrap_or_default();
        let heap = self.heap();
        let (counts, cached) = self.census(&heap);
        let sum = counts.sum();
        let space = match Side::of(request.size) {
            Side::Small => &heap.small.space,
            Side::Large => &heap.large.space,
        };
        let (held, live) = (heap.held(), sum.live());
        Shortage {
            requested: request.size,
            needed,
            limit: self.group.limits.limit(),
            held,
            held_by_group: heap.share.others(),
            live,
            cached,
            free: held.saturating_sub(live),
            largest_free: space.largest_hole(),
            device_free: info.free,
            held_elsewhere: info.total.saturating_sub(info.free).saturating_sub(held),
            owners: owners(&sum),
        }
    }

    /// Calls the program's shortage callbacks. Returns whether any of them released memory.
    pub(in crate::pool) fn call_shortage_callbacks(&self, request: Request, needed: Bytes) -> bool {
        if self.options.shortage_callbacks.is_empty() {
            return false;
        }
        // A callback may allocate. If that request fails too, the callbacks of this pool are not called again from
        // within; those of another pool are.
        let Some(_asking) = CallbackGuard::begin(self.id) else { return false };
        let shortage = self.shortage(request, needed);
        // Calls all of them, whether or not the first released anything.
        let asked = self
            .options
            .shortage_callbacks
            .iter()
            .map(|let_go| self.callbacks.call(|| let_go(&shortage)));
        asked.filter(|&released| released == Some(true)).count() > 0
    }

    /// The report of the blocks that are still live; `None` if there are none.
    pub(in crate::pool) fn drop_report(&self) -> Option<DropReport> {
        let (counts, _) = self.census(&self.heap());
        let sum = counts.sum();
        if sum.blocks() == 0 {
            return None;
        }
        let mut largest: Vec<LeakedBlock> =
            self.map.live_blocks().into_iter().map(Into::into).collect();
        let bytes = largest.iter().fold(Bytes::ZERO, |sum, block| sum.saturating_add(block.size));
        largest.sort_unstable_by_key(|block| (core::cmp::Reverse(block.size), block.address));
        largest.truncate(DropReport::MOST);
        let streams = counts.streams.iter().map(|(&stream, counts)| (stream, counts.blocks()));
        let streams = streams.filter(|&(_, blocks)| blocks > 0 && blocks < u64::MAX / 2).collect();
        let (blocks, owners) = (sum.blocks(), owners(&sum));
        Some(DropReport { pool: self.id, blocks, bytes, owners, streams, largest })
    }
}

/// The tags with the most live bytes, at most a few.
fn owners(sum: &Counts) -> Vec<(String, Bytes)> {
    let tagged = sum.tags.iter().enumerate().filter(|&(_, &units)| units > 0);
    let mut owners: Vec<(String, Bytes)> = tagged
        .filter_map(|(number, &units)| {
            Some((Tag::numbered(number)?.name(), Bytes::new(units << UNIT_SHIFT)))
        })
        .collect();
    owners.sort_by(|one, two| two.1.cmp(&one.1).then_with(|| one.0.cmp(&two.0)));
    owners.truncate(OWNERS);
    owners
}

/// The most pools for which one thread is calling callbacks at once, each from within a callback of the last. Programs
/// have few pools.
const MOST_ASKING: usize = 16;

thread_local! {
    /// The pools whose callbacks this thread is calling; 0 is no pool's number. An array, because a list would be
    /// destroyed before the last destructors of an ending thread allocate.
    static ASKING: Cell<[u64; MOST_ASKING]> = const { Cell::new([0; MOST_ASKING]) };
}

/// Held while a thread calls the callbacks of a pool; also ends by a panic.
struct CallbackGuard(PoolId);

impl CallbackGuard {
    /// `None` if the thread is calling the callbacks of the pool already, or those of too many others.
    fn begin(pool: PoolId) -> Option<Self> {
        let mut asking = ASKING.get();
        if asking.contains(&pool.0) {
            return None;
        }
        *asking.iter_mut().find(|number| **number == 0)? = pool.0;
        ASKING.set(asking);
        Some(Self(pool))
    }
}

impl Drop for CallbackGuard {
    fn drop(&mut self) {
        ASKING.set(ASKING.get().map(|number| if number == self.0.0 { 0 } else { number }));
    }
}
