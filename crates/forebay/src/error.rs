//! The error of every call of the library.

use core::fmt;
use std::borrow::Cow;

use forebay_core::{Address, Bytes, Span};

use crate::config::ConfigError;
use crate::report::{RecentFree, Shortage};
use crate::{MemoryClass, PoolId};

/// What a call of the library gives.
pub type Result<T> = core::result::Result<T, Error>;

/// Why a call of the library failed.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// There is not that much memory left, after everything that could be given back was.
    OutOfMemory(Box<Shortage>),
    /// No block of this pool begins there, live or freed lately.
    NotABlock {
        /// The address.
        address: Address,
    },
    /// A block of this pool begins there that was freed already.
    DoubleFree {
        /// The address.
        address: Address,
        /// How large the block was.
        size: Bytes,
    },
    /// What is at the address now is a later block than the one that was to be freed.
    StaleBlock {
        /// The address.
        address: Address,
        /// How large the later block is.
        size: Bytes,
    },
    /// A handle owns the block, and alone gives it back.
    Owned {
        /// The address.
        address: Address,
    },
    /// The pool's memory is not of the class that was asked for.
    WrongClass {
        /// What was asked for.
        wanted: MemoryClass,
        /// What the pool has.
        offered: MemoryClass,
    },
    /// A class of memory that there is not, or not here.
    ClassUnavailable {
        /// The class.
        class: MemoryClass,
        /// What is missing, and what would help.
        missing: Cow<'static, str>,
    },
    /// The pool cannot be captured from, because a setting has it enqueue work of its own on streams, or
    /// wait for them.
    CaptureRefused {
        /// The setting.
        setting: &'static str,
    },
    /// The block is of another pool.
    WrongPool {
        /// The address.
        address: Address,
        /// The pool that was asked.
        pool: PoolId,
        /// The pool it is of.
        owner: PoolId,
    },
    /// The block has another size than was said.
    WrongSize {
        /// The address.
        address: Address,
        /// What was said.
        said: Bytes,
        /// What was asked for when it was allocated.
        requested: Bytes,
        /// How large it is, rounding included.
        size: Bytes,
    },
    /// The pool is gone, and all its blocks with it.
    PoolGone {
        /// Which pool.
        pool: PoolId,
    },
    /// The device gave addresses that the pool cannot keep account of.
    AddressRange {
        /// The addresses.
        span: Span,
    },
    /// Someone wrote beside a block: past its end, or before its start. Found by its canary, when it
    /// was freed or looked at; nobody knows since when.
    Overrun {
        /// Where the block begins.
        address: Address,
        /// How large it is.
        size: Bytes,
        /// The first byte that was written over.
        written: Address,
        /// What was there.
        expected: u8,
        /// What is there now.
        found: u8,
    },
    /// Someone wrote to memory that was free: through a block that had been freed, as a rule.
    WrittenAfterFree {
        /// The first byte that was written over.
        written: Address,
        /// What was there.
        expected: u8,
        /// What is there now.
        found: u8,
        /// The last block that was there, as far as is remembered.
        block: Option<RecentFree>,
    },
    /// A debugging aid cannot be had on the device.
    AidUnavailable {
        /// Its setting.
        aid: &'static str,
        /// The device.
        device: String,
        /// Why not, and what would help.
        missing: &'static str,
    },
    /// The process was forked since, and what the parent made is not the child's own.
    Forked,
    /// A setting is not allowed.
    Config(Box<ConfigError>),
    /// The device refused.
    Device(forebay_hal::Error),
}

forebay_hal::debug_as_message!(Error {
    OutOfMemory(value),
    NotABlock { address },
    DoubleFree { address, size },
    StaleBlock { address, size },
    Owned { address },
    WrongClass { wanted, offered },
    ClassUnavailable { class, missing },
    CaptureRefused { setting },
    WrongPool { address, pool, owner },
    WrongSize { address, said, requested, size },
    PoolGone { pool },
    AddressRange { span },
    Overrun { address, size, written, expected, found },
    WrittenAfterFree { written, expected, found, block },
    AidUnavailable { aid, device, missing },
    Forked,
    Config(value),
    Device(value),
});

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory(shortage) => shortage.fmt(f),
            Self::NotABlock { address } => write!(
                f,
                "{address} is no block of this pool: never given out by it, inside a block, or freed \
                 long ago; nothing was changed"
            ),
            Self::DoubleFree { address, size } => {
                write!(f, "the block of {size} at {address} is free already; nothing was changed")
            }
            Self::StaleBlock { address, size } => write!(
                f,
                "the block that was at {address} is free already, and a later one of {size} is there \
                 now; nothing was changed"
            ),
            Self::Owned { address } => write!(
                f,
                "the block at {address} is owned by a handle; drop or free the handle, or take the block \
                 out of it with into_raw"
            ),
            Self::WrongClass { wanted, offered } => write!(
                f,
                "memory that is {wanted} was asked for, and that of this pool is {offered}: make a \
                 pool of that class"
            ),
            Self::ClassUnavailable { class, missing } => {
                write!(f, "there is no memory here that is {class}: {missing}")
            }
            Self::CaptureRefused { setting } => write!(
                f,
                "{setting} and a capture do not go together: it has the pool enqueue work of its own on \
                 streams, or wait for them; capture from a pool without it"
            ),
            Self::WrongPool { address, pool, owner } => write!(
                f,
                "the block at {address} is of {owner}, not of {pool}: free it there; nothing was \
                 changed"
            ),
            Self::WrongSize { address, said, requested, size } => write!(
                f,
                "the block at {address} was said to have {} B; {} B were asked for and it has {} B; \
                 nothing was changed",
                said.get(),
                requested.get(),
                size.get()
            ),
            Self::PoolGone { pool } => {
                write!(
                    f,
                    "{pool} was dropped, and its blocks went with it; keep a pool as long as they"
                )
            }
            Self::AddressRange { span } => write!(
                f,
                "the device gave {span}, which the pool cannot tell from other memory of its own"
            ),
            Self::Overrun { address, size, written, expected, found } => {
                let end = address.checked_add(*size).unwrap_or(*address);
                let (distance, side) = match written.offset_from(end) {
                    Some(past) => (past, "past the end"),
                    None => (address.offset_from(*written).unwrap_or_default(), "before the start"),
                };
                write!(
                    f,
                    "{written}, {} B {side} of the block of {} B at {address}, was written over: \
                     {expected:#04x} was there, {found:#04x} is",
                    distance.get(),
                    size.get()
                )
            }
            Self::WrittenAfterFree { written, expected, found, block } => {
                write!(
                    f,
                    "{written} was written to while it was free: {expected:#04x} was there, \
                     {found:#04x} is"
                )?;
                let Some(block) = block else { return Ok(()) };
                write!(
                    f,
                    "; it is {} B into a block of {} B at {}, tag {}, that was freed on {}",
                    written.offset_from(block.address).unwrap_or_default().get(),
                    block.size.get(),
                    block.address,
                    block.tag.name(),
                    block.stream
                )
            }
            Self::AidUnavailable { aid, device, missing } => {
                write!(f, "{aid} cannot be on for {device}: {missing}")
            }
            Self::Forked => f.write_str(
                "this was made before the process forked, and its threads and its device did not come \
                 along; make devices and pools after the fork, or start the child by exec",
            ),
            Self::Config(error) => error.fmt(f),
            Self::Device(error) => error.fmt(f),
        }
    }
}

impl Error {
    /// Whether this tells of a mistake of the program that a debugging aid found.
    ///
    /// Unlike after every other error, what was asked was done as far as it could be:
    ///
    /// * A block that was to be freed is taken back, and must not be freed again. What was found may be
    ///   in another block, that was freed before.
    /// * A request has got no block, and may be made again.
    /// * Memory that was written to without right is kept from use as long as the pool lives
    ///   ([`Statistics::retired`](crate::Statistics::retired)): whoever wrote there may do so again.
    pub const fn is_finding(&self) -> bool {
        matches!(self, Self::Overrun { .. } | Self::WrittenAfterFree { .. })
    }
}

impl core::error::Error for Error {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Config(error) => Some(error),
            Self::Device(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Shortage> for Error {
    fn from(shortage: Shortage) -> Self {
        Self::OutOfMemory(Box::new(shortage))
    }
}

impl From<forebay_hal::Error> for Error {
    fn from(error: forebay_hal::Error) -> Self {
        match error {
            forebay_hal::Error::Forked { .. } => Self::Forked,
            error => Self::Device(error),
        }
    }
}

impl From<forebay_sync::fork::Forked> for Error {
    fn from(_: forebay_sync::fork::Forked) -> Self {
        Self::Forked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_is_the_message_and_alternate_debug_the_structure() {
        let error = Error::NotABlock { address: Address::new(0x200) };
        assert_eq!(format!("{error:?}"), error.to_string());
        assert!(format!("{error:#?}").starts_with("NotABlock {\n    address: "), "{error:#?}");
        assert_eq!(format!("{:#?}", Error::Forked), "Forked");
        let device = forebay_hal::Error::Forked { call: forebay_hal::Call::Copy };
        assert!(format!("{:#?}", Error::Device(device)).starts_with("Device(\n    Forked {"));
    }
}
