//! Why a call of an arena failed.

use core::fmt;

use forebay_core::{BumpFull, BumpStale, Bytes, QuantityError};

use super::ArenaId;
use crate::Error;

/// Why a call of an arena failed. Nothing has changed, unless the variant says otherwise.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ArenaError {
    /// The arena is full and may not grow far enough.
    Full(BumpFull),
    /// The allocator could not provide a chunk.
    Chunk {
        /// The size of the chunk.
        size: Bytes,
        /// The allocator's error.
        error: Error,
    },
    /// The size in bytes does not fit in 64 bits.
    Quantity(QuantityError),
    /// The token or checkpoint is not, or no longer, valid.
    Lapsed(BumpStale),
    /// The token or checkpoint is from another arena.
    WrongArena {
        /// The arena that was called.
        arena: ArenaId,
        /// The arena that it is from.
        owner: ArenaId,
    },
    /// The allocator could not free chunks. The arena is closed all the same; the chunks stay allocated until the
    /// allocator is dropped.
    NotGivenBack {
        /// The number of chunks.
        chunks: usize,
        /// Their total size.
        size: Bytes,
        /// The allocator's error for the first of them.
        error: Error,
    },
}

forebay_hal::debug_as_message!(ArenaError {
    Full(value),
    Chunk { size, error },
    Quantity(value),
    Lapsed(value),
    WrongArena { arena, owner },
    NotGivenBack { chunks, size, error },
});

impl fmt::Display for ArenaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(full) => write!(f, "the arena is {full}"),
            Self::Chunk { size, error } => {
                write!(f, "the arena got no chunk of {size} ({} B): {error}", size.get())
            }
            Self::Quantity(error) => error.fmt(f),
            Self::Lapsed(lapse) => {
                write!(f, "stale arena block: {lapse}; use what was allocated since")
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
