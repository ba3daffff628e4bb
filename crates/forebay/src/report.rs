//! What a pool reports: shortages, leaks, writes after a free, and single events.

use core::fmt;
use core::time::Duration;

use forebay_core::{Address, Alignment, Bytes, Span, counted};
use forebay_hal::StreamHandle;

pub use crate::stack::Stack;
use crate::sync::map::LiveBlock;
use crate::{PoolId, Tag};

/// The state of a pool when it refused a request for lack of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shortage {
    /// The bytes that were requested.
    pub requested: Bytes,
    /// The contiguous bytes that the request needs: after rounding, with its alignment and the debugging aids.
    pub needed: Bytes,
    /// The most the pool may hold.
    pub limit: Bytes,
    /// Bytes the pool holds.
    pub held: Bytes,
    /// Bytes of those in live blocks.
    pub live: Bytes,
    /// Bytes of those in free blocks that threads have cached.
    pub cached: Bytes,
    /// Bytes of those in no live block, cached blocks included. They may be in pieces that are too small, or still in
    /// use by work.
    pub free: Bytes,
    /// The largest hole on the side (small or large blocks) of the request.
    pub largest_free: Bytes,
    /// Bytes the device has free.
    pub device_free: Bytes,
    /// Bytes of the device that are neither free nor held by this pool: they belong to other programs, libraries or
    /// pools, or to the driver.
    pub held_elsewhere: Bytes,
    /// Bytes of those that other pools hold which [share the limit](crate::PoolOptions::sharing_limit_with).
    pub held_by_group: Bytes,
    /// The tags with the most live bytes, as name and bytes.
    pub owners: Vec<(String, Bytes)>,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "out of memory: {} ({} B) requested", self.requested, self.requested.get())?;
        // Rounding alone is not worth mentioning.
        if self.needed > self.requested.saturating_add(Alignment::BLOCK.bytes()) {
            write!(f, ", which need {} of contiguous memory", self.needed)?;
        }
        write!(
            f,
            "; the pool holds {} of at most {}: {} in live blocks and {} free, {} of that in thread caches",
            self.held, self.limit, self.live, self.free, self.cached
        )?;
        if !self.held_by_group.is_zero() {
            write!(f, "; pools that share the limit hold {}", self.held_by_group)?;
        }
        write!(
            f,
            "; the largest free piece for this request is {}; the device has {} free",
            self.largest_free, self.device_free
        )?;
        if !self.held_elsewhere.is_zero() {
            write!(f, " while others hold {} of it", self.held_elsewhere)?;
        }
        if !self.owners.is_empty() {
            write!(f, "; the tags with the most memory are ")?;
            for (index, (name, bytes)) in self.owners.iter().enumerate() {
                write!(f, "{}{name} ({bytes})", if index == 0 { "" } else { ", " })?;
            }
        }
        let needed = self.live.saturating_add(self.needed.max(self.requested));
        // If the device itself is too small, raising the limit does not help.
        let whole = self.held.saturating_add(self.device_free).saturating_add(self.held_elsewhere);
        if needed > whole && !whole.is_zero() {
            write!(f, "; the whole device has only {whole}: request less at a time, or free blocks")
        } else if needed.saturating_add(self.held_by_group) > self.limit {
            let needed = needed.saturating_add(self.held_by_group);
            let (exact, shown) = (needed.get(), needed.rounded_up());
            write!(f, "; free blocks, or raise the limit to {exact} B ({shown}) or more")
        } else if needed > self.held.saturating_add(self.device_free) {
            write!(f, "; free blocks, or find out which other program uses the device")
        } else {
            write!(f, "; free blocks: the free memory is in pieces that are too small")
        }
    }
}

/// A block that was live when its pool was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeakedBlock {
    /// Where it begins.
    pub address: Address,
    /// Its size, after rounding.
    pub size: Bytes,
    /// The size that was requested.
    pub requested: Bytes,
}

impl From<LiveBlock> for LeakedBlock {
    fn from(block: LiveBlock) -> Self {
        Self { address: block.address, size: block.size, requested: block.requested }
    }
}

/// The blocks that were live when a pool was dropped. Their memory is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DropReport {
    /// The pool.
    pub pool: PoolId,
    /// The number of live blocks.
    pub blocks: u64,
    /// The bytes in them.
    pub bytes: Bytes,
    /// Bytes by tag, as name and bytes.
    pub owners: Vec<(String, Bytes)>,
    /// Live blocks by the stream they were allocated on: allocations there less frees there. Forgotten streams are left
    /// out.
    pub streams: Vec<(StreamHandle, u64)>,
    /// The largest of them, at most [`DropReport::MOST`].
    pub largest: Vec<LeakedBlock>,
}

impl DropReport {
    /// The most blocks that a report lists.
    pub const MOST: usize = 16;
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
    /// Where it began.
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

/// What a call of the pool did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventAction {
    /// A block was allocated.
    Allocate,
    /// A block was freed.
    Free,
    /// A request was refused.
    Refuse,
}

/// One allocation, free or refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolEvent {
    /// The time since the pool was made.
    pub time: Duration,
    /// The kind of event.
    pub action: EventAction,
    /// The address of the block; null for a refused request.
    pub address: Address,
    /// The bytes that were requested.
    pub requested: Bytes,
    /// The stream that the call named.
    pub stream: StreamHandle,
    /// The tag that the block was allocated under.
    pub tag: Tag,
    /// A small number of the calling thread. A thread that begins after another ended may have its number.
    pub thread: u32,
    /// The call stack of an allocation or a refusal, while the setting `stacks` is on.
    pub stack: Stack,
}
