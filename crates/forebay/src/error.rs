//! The error of every call of the library.

use core::fmt;

use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

/// What a call of the library gives.
pub type Result<T> = core::result::Result<T, Error>;

/// Why a call of the library failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// There is not that much memory left, after everything that could be given back was.
    OutOfMemory {
        /// What was asked for.
        requested: Bytes,
        /// The most the pool may hold.
        limit: Bytes,
        /// What the pool holds.
        held: Bytes,
        /// What of that is in blocks.
        live: Bytes,
        /// The largest piece of the rest.
        largest_free: Bytes,
        /// What the device could still give.
        device_free: Bytes,
    },
    /// No live block begins there: never given out by this pool, or freed already.
    NotABlock {
        /// The address.
        address: Address,
    },
    /// The pool tells no more streams apart.
    TooManyStreams {
        /// The stream that is one too many.
        stream: StreamHandle,
        /// How many there may be.
        most: u32,
    },
    /// A device without virtual memory: the pool cannot work on it yet.
    NoVirtualMemory {
        /// The device.
        device: String,
    },
    /// The device refused.
    Device(forebay_hal::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory { requested, limit, held, live, largest_free, device_free } => {
                write!(
                    f,
                    "out of memory: {requested} ({} B) asked for; the pool holds {held} of at most \
                 {limit}, {live} of it in blocks, the largest free piece is {largest_free}, and the \
                 device has {device_free} left; free blocks, or raise the limit",
                    requested.get()
                )
            }
            Self::NotABlock { address } => write!(
                f,
                "{address} is no live block of this pool: never given out by it, inside a block, or \
                 freed already; nothing was changed"
            ),
            Self::TooManyStreams { stream, most } => write!(
                f,
                "{stream} is one too many: a pool tells {most} streams apart; forget those that are \
                 no longer used"
            ),
            Self::NoVirtualMemory { device } => {
                write!(f, "{device} cannot map pages, and the pool does not work without yet")
            }
            Self::Device(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for Error {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Device(error) => Some(error),
            _ => None,
        }
    }
}

impl From<forebay_hal::Error> for Error {
    fn from(error: forebay_hal::Error) -> Self {
        Self::Device(error)
    }
}
