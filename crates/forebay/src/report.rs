//! Reports of a pool: shortages, leaks, writes after a free, and single events.

mod shortage;

use core::fmt;
use core::time::Duration;

use forebay_core::{Address, Bytes, Span, counted};
use forebay_hal::StreamHandle;

pub use self::shortage::{RefusalCause, ReportFile, Shortage};
pub use crate::stack::Stack;
/// A live block: in a [`DropReport`], one that was live when its pool was dropped.
pub use crate::sync::map::LiveBlock as LeakedBlock;
use crate::{PoolId, Tag};

/// The total size of blocks, and the largest of them, at most `most`.
pub(crate) fn largest(mut blocks: Vec<LeakedBlock>, most: usize) -> (Bytes, Vec<LeakedBlock>) {
    let bytes = blocks.iter().map(|block| block.size).sum();
    blocks.sort_unstable_by_key(|block| (core::cmp::Reverse(block.size), block.address));
    blocks.truncate(most);
    (bytes, blocks)
}

/// The blocks that were live when a pool was dropped. Their memory no longer exists.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DropReport {
    /// The pool.
    pub pool: PoolId,
    /// The number of live blocks.
    pub blocks: u64,
    /// Their total size.
    pub bytes: Bytes,
    /// Bytes by tag, as name and bytes, largest first. After a few tags, one entry sums up the rest, so that the total
    /// is that of all blocks.
    pub owners: Vec<(String, Bytes)>,
    /// Live blocks by the stream they were allocated on: allocations minus frees there. Forgotten streams are omitted.
    pub streams: Vec<(StreamHandle, u64)>,
    /// The largest of them, at most [`DropReport::MAX`].
    pub largest: Vec<LeakedBlock>,
}

impl DropReport {
    /// The most blocks that a report lists.
    pub const MAX: usize = 16;
}

impl fmt::Display for DropReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks = counted(self.blocks, "live block");
        write!(
            f,
            "{} was dropped with {blocks}, {} in all; keep it alive until they are freed",
            self.pool, self.bytes
        )?;
        for (name, bytes) in &self.owners {
            write!(f, "\n  {name}: {bytes}")?;
        }
        for block in &self.largest {
            write!(f, "\n  {} of {}", block.address, block.size)?;
        }
        Ok(())
    }
}

/// A block that was freed recently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecentFree {
    /// Its address.
    pub address: Address,
    /// Its size, after rounding.
    pub size: Bytes,
    /// The size that was requested.
    pub requested: Bytes,
    /// The tag it was allocated under.
    pub tag: Tag,
    /// The stream it was freed on.
    pub stream: StreamHandle,
}

impl RecentFree {
    /// Whether `address` was in the block.
    pub(crate) fn held(&self, address: Address) -> bool {
        Span::new(self.address, self.size).is_ok_and(|span| span.contains(address))
    }
}

/// The action of a pool's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventAction {
    /// A block was allocated.
    Allocate,
    /// A block was freed.
    Free,
    /// A request failed.
    Refuse,
}

/// An allocation, a free or a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolEvent {
    /// The time since the pool was made.
    pub time: Duration,
    /// The kind of event.
    pub action: EventAction,
    /// The address of the block; null for a refused request.
    pub address: Address,
    /// The requested size.
    pub requested: Bytes,
    /// The stream that the call named.
    pub stream: StreamHandle,
    /// The tag that the block was allocated under.
    pub tag: Tag,
    /// A small number for the calling thread. Threads may reuse the number of one that has ended.
    pub thread: u32,
    /// The call stack of an allocation or a refusal, while the setting `stacks` is on.
    pub stack: Stack,
}
