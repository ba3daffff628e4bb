//! What a pool reports by itself: shortages, leaks, writes after a free, and events one by one.

use core::fmt;

use forebay_core::{Address, Alignment, Bytes, Span, counted};
use forebay_hal::StreamHandle;

use crate::sync::map::LiveBlock;
use crate::{PoolId, Tag};

pub use crate::pool::{EventAction, PoolEvent};

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

/// A block that was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecentFree {
    /// Where it began.
    pub address: Address,
    /// How large it was.
    pub size: Bytes,
    /// What was asked for.
    pub requested: Bytes,
    /// The tag it was allocated under.
    pub tag: Tag,
    /// The stream it was freed on.
    pub stream: StreamHandle,
}

impl RecentFree {
    /// Whether `address` lay in it.
    pub(crate) fn held(&self, address: Address) -> bool {
        Span::new(self.address, self.size).is_ok_and(|span| span.contains(address))
    }
}
