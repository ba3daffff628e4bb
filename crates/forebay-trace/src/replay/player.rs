//! The interface of players, and how a replay can fail.

use core::fmt;
use core::time::Duration;

use forebay_core::{Address, Bytes};
use forebay_hal::{Error, StreamHandle};

use crate::{BlockIndex, StreamIndex};

/// The driver calls that a player has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverUse {
    /// All calls, including failed ones.
    pub calls: u64,
    /// Their time: by the cost table on a simulated device, by the clock on a real one.
    pub time: Duration,
    /// Pages mapped.
    pub maps: u64,
    /// Pages created and plain allocations: how often memory was taken from the driver.
    pub creates: u64,
}

impl DriverUse {
    /// The difference since `earlier`.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(earlier.calls),
            time: self.time.saturating_sub(earlier.time),
            maps: self.maps.saturating_sub(earlier.maps),
            creates: self.creates.saturating_sub(earlier.creates),
        }
    }
}

/// Why a player could not follow the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplayError {
    /// There was not enough memory, and nothing left to release. The replay continues without the block, like a program
    /// that catches the error.
    OutOfMemory {
        /// What the recording asked for.
        requested: Bytes,
        /// The bytes that the player held at that moment.
        reserved: Bytes,
        /// The memory of the device.
        capacity: Bytes,
    },
    /// forebay's pool ran out of memory, and had nothing left to release. The replay continues as after
    /// [`OutOfMemory`](Self::OutOfMemory).
    Shortage {
        /// What the recording asked for.
        requested: Bytes,
        /// The limit of the pool.
        limit: Bytes,
        /// The bytes it held.
        held: Bytes,
        /// The bytes of those in blocks.
        live: Bytes,
        /// The largest free piece.
        largest_free: Bytes,
        /// The bytes that the device could still have provided.
        device_free: Bytes,
    },
    /// The device failed in another way. The replay ends.
    Device(Error),
    /// The player was asked to free a block it does not have, or its accounting is wrong. The replay ends.
    Inconsistent {
        /// The block.
        block: BlockIndex,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Verification was requested, but the player does not report where blocks lie. The replay ends.
    NotPlaced,
    /// The hook of the [budget](crate::WorkBudget) asked to stop. The replay ends.
    Interrupted,
    /// The work takes, or would take, longer than its [budget](crate::WorkBudget) allows. The replay ends.
    TooLong {
        /// The time limit.
        limit: Duration,
        /// The elapsed time.
        elapsed: Duration,
        /// A rough estimate of the total time on this machine, if known.
        estimate: Option<Duration>,
    },
}

impl ReplayError {
    /// Whether the budget ended the replay: another one under the same budget would end too.
    pub const fn is_stop(&self) -> bool {
        matches!(self, Self::Interrupted | Self::TooLong { .. })
    }

    /// Whether memory ran out, on the device or in the pool. The replay continues after that.
    pub const fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::Shortage { .. })
    }
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory { requested, reserved, capacity } => write!(
                f,
                "out of memory: {requested} requested with {reserved} of {capacity} taken from the \
                 driver; a larger device or a tighter policy would help"
            ),
            Self::Shortage { requested, limit, held, live, largest_free, device_free } => {
                let (needed, device) =
                    (live.saturating_add(*requested), held.saturating_add(*device_free));
                write!(f, "out of memory: {requested} requested with {live} in blocks; ")?;
                if needed > *limit && *limit < device {
                    write!(
                        f,
                        "the pool's limit is {limit}, of which it holds {held}, and the device has \
                         {device_free} left; set max_bytes to {} ({}) or more for this one \
                         allocation, or to none",
                        needed.get(),
                        needed.rounded_up()
                    )
                } else if needed > device {
                    write!(
                        f,
                        "the pool holds {held}, and the device has {device_free} left; a larger \
                         device would help"
                    )
                } else {
                    write!(
                        f,
                        "the pool holds {held} of at most {limit}, the device has {device_free} \
                         left, and the largest free piece is {largest_free}: what is left is in \
                         pieces too small"
                    )
                }
            }
            Self::Device(error) => error.fmt(f),
            Self::Inconsistent { block, what } => {
                write!(f, "{block} {what}: a fault of the player, not of the recording")
            }
            Self::NotPlaced => f.write_str(
                "this player does not say where its blocks lie, so what they hold cannot be \
                 verified; play without verifying",
            ),
            Self::Interrupted => f.write_str("interrupted"),
            Self::TooLong { limit, elapsed, estimate } => {
                f.write_str("this recording ")?;
                match estimate {
                    Some(estimate) => {
                        write!(f, "would take about {} on this machine", Rough(*estimate))?;
                    }
                    None => write!(f, "has taken {} and is not done", Rough(*elapsed))?,
                }
                let enough = estimate.unwrap_or(*elapsed).saturating_mul(3) / 2;
                write!(
                    f,
                    ", longer than the limit of {}; allow more, such as --limit {}",
                    Rough(*limit),
                    Rough(enough).without_space()
                )
            }
        }
    }
}

/// A time as people say it: "40 s", "5 min", "3 h".
struct Rough(Duration);

impl Rough {
    fn parts(&self) -> (u64, &'static str) {
        let rounded = |unit: u64| (self.0.as_secs().saturating_add(unit / 2) / unit).max(1);
        match self.0.as_secs() {
            0..=90 => (rounded(1), "s"),
            91..=7200 => (rounded(60), "min"),
            _ => (rounded(3600), "h"),
        }
    }

    /// As it is typed.
    fn without_space(&self) -> String {
        let (count, unit) = self.parts();
        format!("{count}{unit}")
    }
}

impl fmt::Display for Rough {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, unit) = self.parts();
        write!(f, "{count} {unit}")
    }
}

impl core::error::Error for ReplayError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Device(error) => Some(error),
            _ => None,
        }
    }
}

/// An allocator that a recording can be played on.
///
/// The replay allocates each block once per pass, frees only live blocks, and frees everything before a pass ends. A
/// block whose allocation failed is never freed.
pub trait Player {
    /// Allocates `block`.
    fn allocate(
        &mut self,
        block: BlockIndex,
        size: Bytes,
        stream: StreamIndex,
    ) -> Result<(), ReplayError>;

    /// Frees `block`.
    fn free(&mut self, block: BlockIndex, stream: StreamIndex) -> Result<(), ReplayError>;

    /// The bytes currently taken from the driver. Called after every allocation: must be cheap.
    fn reserved(&self) -> Bytes;

    /// The driver calls made since the player was created.
    fn driver(&self) -> DriverUse;

    /// The addresses of blocks, for verification; `None` if the player does not report them.
    fn placed(&mut self) -> Option<&mut dyn AddressedPlayer> {
        None
    }

    /// Called after a pass, when everything is freed: the time to wait for streams or to check the accounting.
    fn end_pass(&mut self) -> Result<(), ReplayError> {
        Ok(())
    }
}

/// When the memory of a block may be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeOrder {
    /// In stream order: work on the block that precedes the free in that order may still be pending.
    Stream,
    /// When all work on the block is done.
    Idle,
}

/// A player whose blocks can be written and read.
///
/// # Safety
///
/// An implementation promises:
///
/// * A live block of so many bytes lies at its address, all of it memory of the device that the
///   player was made on, from its allocation to its free.
/// * Work on a block that is enqueued on the stream it was allocated on, or after that, finds this
///   memory; and so does work that comes before its free, as [`free_order`](Self::free_order) says.
pub unsafe trait AddressedPlayer {
    /// Where a live block begins; null for a block of no bytes, `None` for one that is not live.
    fn address(&self, block: BlockIndex) -> Option<Address>;

    /// The device's stream for a stream of the recording.
    fn stream(&mut self, stream: StreamIndex) -> Result<StreamHandle, ReplayError>;

    /// When a block may be freed.
    fn free_order(&self) -> FreeOrder;
}
