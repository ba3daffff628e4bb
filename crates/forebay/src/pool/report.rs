//! What a pool says when it has to say no, and when it goes.

use core::fmt;

use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use crate::PoolId;

/// How a pool stood when it had no memory for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shortage {
    /// What was asked for.
    pub requested: Bytes,
    /// The most the pool may hold.
    pub limit: Bytes,
    /// What the pool holds.
    pub held: Bytes,
    /// What of that is in blocks.
    pub live: Bytes,
    /// The largest free piece of the side the request is of.
    pub largest_free: Bytes,
    /// What the device could still give.
    pub device_free: Bytes,
    /// Who has the most, by tag: the name and the bytes.
    pub owners: Vec<(String, Bytes)>,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "out of memory: {} ({} B) asked for; the pool holds {} of at most {}, {} of it in blocks",
            self.requested,
            self.requested.get(),
            self.held,
            self.limit,
            self.live
        )?;
        write!(
            f,
            ", the largest free piece is {}, and the device has {} left",
            self.largest_free, self.device_free
        )?;
        if !self.owners.is_empty() {
            write!(f, "; most of it is in ")?;
            for (index, (name, bytes)) in self.owners.iter().enumerate() {
                write!(f, "{}{name} ({bytes})", if index == 0 { "" } else { ", " })?;
            }
        }
        let needed = self.live.saturating_add(self.requested);
        if needed > self.limit {
            write!(f, "; free blocks, or raise the limit to {needed} or more")
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
pub struct LeftBlock {
    /// Where it begins.
    pub address: Address,
    /// How large it is.
    pub size: Bytes,
    /// What was asked for.
    pub requested: Bytes,
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
    /// By the stream they were allocated on: blocks less those freed there.
    pub streams: Vec<(StreamHandle, u64)>,
    /// The largest of them, at most [`DropReport::MOST`].
    pub largest: Vec<LeftBlock>,
}

impl DropReport {
    /// How many blocks a report names.
    pub const MOST: usize = 16;
}

impl fmt::Display for DropReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} went with {} live blocks of {}", self.pool, self.blocks, self.bytes)?;
        for (name, bytes) in &self.owners {
            write!(f, "\n  {name}: {bytes}")?;
        }
        for block in &self.largest {
            write!(f, "\n  {} of {}", block.address, block.size)?;
        }
        Ok(())
    }
}
