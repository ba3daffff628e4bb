//! What a pool says when it has to say no, and when it goes.

use core::cell::Cell;
use core::fmt;

use forebay_core::{Address, Alignment, Bytes, counted};
use forebay_hal::StreamHandle;

use super::map::{LiveBlock, Side, UNIT_SHIFT};
use super::shared::Shared;
use super::thread_cache::Counts;
use crate::{PoolId, Request, Tag};

/// How many owners a report names.
const OWNERS: usize = 4;

/// How a pool stood when it had no memory for a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shortage {
    /// What was asked for.
    pub requested: Bytes,
    /// What that takes in one piece: rounded, with what its alignment and debugging aids add.
    pub needed: Bytes,
    /// The most the pool may hold.
    pub limit: Bytes,
    /// What the pool holds.
    pub held: Bytes,
    /// What of that is in blocks.
    pub live: Bytes,
    /// What of it is at hand in magazines of threads.
    pub cached: Bytes,
    /// What of it is in no block, that at hand counted: in pieces, or still in use by work.
    pub free: Bytes,
    /// The largest free piece of the side the request is of.
    pub largest_free: Bytes,
    /// What the device could still give.
    pub device_free: Bytes,
    /// What of the device is neither left nor this pool's: other programs', other libraries', other
    /// pools', and what the driver keeps for itself.
    pub held_elsewhere: Bytes,
    /// Who has the most, by tag: the name and the bytes.
    pub owners: Vec<(String, Bytes)>,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "out of memory: {} ({} B) asked for", self.requested, self.requested.get())?;
        // Rounding alone is not worth a word.
        if self.needed > self.requested.saturating_add(Alignment::BLOCK.bytes()) {
            write!(f, ", which takes {} in one piece", self.needed)?;
        }
        write!(
            f,
            "; the pool holds {} of at most {}, {} of it in blocks and {} free, {} of that at hand in \
             magazines",
            self.held, self.limit, self.live, self.free, self.cached
        )?;
        write!(
            f,
            ", the largest free piece for such a block is {}, and the device has {} left",
            self.largest_free, self.device_free
        )?;
        if !self.held_elsewhere.is_zero() {
            write!(f, " while others hold {} of it", self.held_elsewhere)?;
        }
        if !self.owners.is_empty() {
            write!(f, "; most of it is in ")?;
            for (index, (name, bytes)) in self.owners.iter().enumerate() {
                write!(f, "{}{name} ({bytes})", if index == 0 { "" } else { ", " })?;
            }
        }
        let needed = self.live.saturating_add(self.needed.max(self.requested));
        // What the device has not, no limit helps.
        let whole = self.held.saturating_add(self.device_free).saturating_add(self.held_elsewhere);
        if needed > whole && !whole.is_zero() {
            write!(f, "; the device has {whole} in all: ask for less at a time, or free blocks")
        } else if needed > self.limit {
            let (exact, shown) = (needed.get(), needed.rounded_up());
            write!(f, "; free blocks, or raise the limit to {exact} B ({shown}) or more")
        } else if needed > self.held.saturating_add(self.device_free) {
            write!(f, "; free blocks, or find out who else uses the device")
        } else {
            write!(f, "; free blocks: what is left is in pieces too small")
        }
    }
}

/// A block that was live when its pool went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeakedBlock {
    /// Where it begins.
    pub address: Address,
    /// How large it is.
    pub size: Bytes,
    /// What was asked for.
    pub requested: Bytes,
}

impl From<LiveBlock> for LeakedBlock {
    fn from(block: LiveBlock) -> Self {
        Self { address: block.address, size: block.size, requested: block.requested }
    }
}

/// What was still live when a pool went. Its memory is gone with it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DropReport {
    /// The pool.
    pub pool: PoolId,
    /// How many blocks.
    pub blocks: u64,
    /// How many bytes in them.
    pub bytes: Bytes,
    /// By tag: the name and the bytes.
    pub owners: Vec<(String, Bytes)>,
    /// By the stream they were allocated on: blocks less those freed there. Streams that were
    /// forgotten are left out.
    pub streams: Vec<(StreamHandle, u64)>,
    /// The largest of them, at most [`DropReport::MOST`].
    pub largest: Vec<LeakedBlock>,
}

impl DropReport {
    /// How many blocks a report names.
    pub const MOST: usize = 16;
}

impl fmt::Display for DropReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks = counted(self.blocks, "live block");
        write!(f, "{} went with {blocks} of {}", self.pool, self.bytes)?;
        for (name, bytes) in &self.owners {
            write!(f, "\n  {name}: {bytes}")?;
        }
        for block in &self.largest {
            write!(f, "\n  {} of {}", block.address, block.size)?;
        }
        Ok(())
    }
}

impl Shared {
    /// How the pool stands, with no memory for a request that takes `needed` bytes in one piece. Takes
    /// the heap's lock, once: all figures are of one moment.
    #[cold]
    pub(super) fn shortage(&self, request: Request, needed: Bytes) -> Shortage {
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
    pub(super) fn ask_to_let_go(&self, request: Request, needed: Bytes) -> bool {
        if self.options.let_go.is_empty() {
            return false;
        }
        // Whoever is asked may allocate; where that is too much as well, it is not asked again. Of
        // another pool it may have others asked.
        let Some(_asking) = Asking::begin(self.id) else { return false };
        let shortage = self.shortage(request, needed);
        // All of them, whether or not the first let anything go.
        let asked =
            self.options.let_go.iter().map(|let_go| self.callbacks.call(|| let_go(&shortage)));
        asked.filter(|&said| said == Some(true)).count() > 0
    }

    /// What is still live, when the pool goes.
    pub(super) fn left(&self) -> Option<DropReport> {
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
struct Asking(PoolId);

impl Asking {
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

impl Drop for Asking {
    fn drop(&mut self) {
        ASKING.set(ASKING.get().map(|number| if number == self.0.0 { 0 } else { number }));
    }
}
