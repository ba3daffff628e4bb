//! What a pool says when it refuses a request, and when it is dropped with live blocks.

use core::cell::Cell;

use forebay_core::Bytes;

use crate::pool::front::thread_cache::Counts;
use crate::pool::shared::Shared;
use crate::report::{DropReport, LeakedBlock, Shortage};
use crate::sync::map::{Side, UNIT_SHIFT};
use crate::{PoolId, Request, Tag};

/// How many owners a report names.
const OWNERS: usize = 4;

impl Shared {
    /// How the pool stands, with no memory for a request that takes `needed` bytes in one piece. Takes
    /// the heap's lock, once: all figures are of one moment.
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
            limit: self.limits.limit(),
            held,
            live,
            cached,
            free: held.saturating_sub(live),
            largest_free: space.largest_hole(),
            device_free: info.free,
            held_elsewhere: info.total.saturating_sub(info.free).saturating_sub(held),
            owners: owners(&sum),
        }
    }

    /// Asks everyone who might, to let memory go.
    pub(in crate::pool) fn call_shortage_callbacks(&self, request: Request, needed: Bytes) -> bool {
        if self.options.shortage_callbacks.is_empty() {
            return false;
        }
        // Whoever is asked may allocate; where that is too much as well, it is not asked again. Of
        // another pool it may have others asked.
        let Some(_asking) = CallbackGuard::begin(self.id) else { return false };
        let shortage = self.shortage(request, needed);
        // All of them, whether or not the first let anything go.
        let asked = self
            .options
            .shortage_callbacks
            .iter()
            .map(|let_go| self.callbacks.call(|| let_go(&shortage)));
        asked.filter(|&released| released == Some(true)).count() > 0
    }

    /// What is still live, when the pool goes.
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

/// Who has the most, by tag: no more than a few, and nobody where no tags are used.
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

/// How many pools a thread can be asking for at once, each from within what the last one asked. It
/// is the depth to which callbacks nest, and programs have few pools.
const MOST_ASKING: usize = 16;

thread_local! {
    /// The numbers of the pools for which this thread is asking someone to let memory go; 0 is no
    /// pool's. No list, which a thread that ends would have lost before its last destructors allocate.
    static ASKING: Cell<[u64; MOST_ASKING]> = const { Cell::new([0; MOST_ASKING]) };
}

/// The time in which a thread asks for a pool. By a panic too it ends.
struct CallbackGuard(PoolId);

impl CallbackGuard {
    /// `None` where the thread is asking for the pool already, or for too many others.
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
