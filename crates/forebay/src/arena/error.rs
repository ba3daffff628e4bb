//! Why a call of an arena failed.

use core::fmt;

use forebay_core::{BumpFull, BumpStale, Bytes, QuantityError};

use super::ArenaId;
use crate::Error;

/// Why a call of an arena failed. Nothing was changed, unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ArenaError {
    /// The arena is full, and may not grow far enough.
    Full(BumpFull),
    /// The allocator beneath did not give a chunk.
    Chunk {
        /// How large the chunk was to be.
        size: Bytes,
        /// What the allocator said.
        error: Error,
    },
    /// So many values of that type are more than 64 bits of bytes.
    Quantity(QuantityError),
    /// A token or checkpoint that is not, or no longer, one of this arena.
    Lapsed(BumpStale),
    /// A token or checkpoint of another arena.
    WrongArena {
        /// The arena that was asked.
        arena: ArenaId,
        /// The arena it is of.
        owner: ArenaId,
    },
    /// The allocator did not take chunks back. The arena is gone all the same; they stay taken until
    /// the allocator goes.
    NotGivenBack {
        /// How many chunks.
        chunks: usize,
        /// How large they are together.
        size: Bytes,
        /// What the allocator said to the first.
        error: Error,
    },
}

impl fmt::Display for ArenaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(full) => write!(f, "the arena is {full}"),
            Self::Chunk { size, error } => {
                write!(f, "the arena got no chunk of {size} ({} B): {error}", size.get())
            }
            Self::Quantity(error) => error.fmt(f),
            Self::Lapsed(lapse) => {
                write!(f, "the arena does not know it: {lapse}; use what was allocated since")
            }
            Self::WrongArena { arena, owner } => {
                write!(f, "it is of {owner}, not of {arena}: use it there")
            }
            Self::NotGivenBack { chunks, size, error } => write!(
                f,
                "{chunks} chunks of {size} ({} B) together were not taken back and stay taken until \
                 the allocator goes: {error}",
                size.get()
            ),
        }
    }
}

impl core::error::Error for ArenaError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Full(full) => Some(full),
            Self::Chunk { error, .. } | Self::NotGivenBack { error, .. } => Some(error),
            Self::Quantity(error) => Some(error),
            Self::Lapsed(lapse) => Some(lapse),
            Self::WrongArena { .. } => None,
        }
    }
}

impl From<BumpFull> for ArenaError {
    fn from(full: BumpFull) -> Self {
        Self::Full(full)
    }
}

impl From<BumpStale> for ArenaError {
    fn from(lapse: BumpStale) -> Self {
        Self::Lapsed(lapse)
    }
}

impl From<QuantityError> for ArenaError {
    fn from(error: QuantityError) -> Self {
        Self::Quantity(error)
    }
}
