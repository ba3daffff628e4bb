//! The error type of the library.

use std::borrow::Cow;
use std::path::PathBuf;

use forebay_core::transfer::CompressedError;
use forebay_core::{Address, BumpFull, BumpStale, Bytes, QuantityError, Span};
use forebay_hal::StreamHandle;

use crate::config::ConfigError;
use crate::named::error::SharedError;
use crate::pool_id::ArenaId;
use crate::report::{RecentFree, Shortage};
use crate::safetensors::WeightsError;
use crate::{MemoryClass, PoolId};

/// The result of a call of the library.
pub type Result<T> = core::result::Result<T, Error>;

/// Why a call of the library failed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool has no memory for the request, even after reclaiming all it could.
    #[error("{0}")]
    OutOfMemory(Box<Shortage>),
    /// No block, live or recently freed, begins at the address. A call of a pool looks in that pool, a call of
    /// [`process`](crate::process) in all pools.
    #[error(
        "{address} is not a block of a pool: it never was one, it lies inside a block, or the block was freed long ago; \
         nothing was changed"
    )]
    NotABlock {
        /// The address.
        address: Address,
    },
    /// The block at the address was freed already.
    #[error("the block of {size} at {address} was freed already; nothing was changed")]
    DoubleFree {
        /// The address.
        address: Address,
        /// The size of the block.
        size: Bytes,
    },
    /// The block was freed already, and a later block is at its address.
    #[error(
        "the block at {address} was freed already, and a newer block of {size} is there now; nothing was changed"
    )]
    StaleBlock {
        /// The address.
        address: Address,
        /// The size of the later block.
        size: Bytes,
    },
    /// A handle owns the block. Only the handle can free it.
    #[error(
        "a handle owns the block at {address}; drop or free the handle, or take the block out of it with into_raw"
    )]
    Owned {
        /// The address.
        address: Address,
    },
    /// The pool's memory is not of the requested class.
    #[error(
        "the request is for memory that is {wanted}, and the memory of this pool is {offered}; make a pool of that class"
    )]
    WrongClass {
        /// The requested class.
        wanted: MemoryClass,
        /// The pool's class.
        offered: MemoryClass,
    },
    /// The device cannot provide this class of memory.
    #[error("the device cannot provide memory that is {class}: {missing}")]
    ClassUnavailable {
        /// The class.
        class: MemoryClass,
        /// What is missing and what would help.
        missing: Cow<'static, str>,
    },
    /// The pool cannot be used in a capture, because a setting makes it enqueue work of its own or wait for streams.
    #[error(
        "{setting} is on, and with it the pool enqueues work of its own or waits for streams, which would invalidate a \
         capture; capture from a pool without it"
    )]
    CaptureRefused {
        /// The setting.
        setting: &'static str,
    },
    /// The pool cannot be reset to contain this block: the memory is not free, or no block can lie there.
    #[error("the block of {size} at {address} cannot be restored: {reason}; nothing was changed")]
    NotRestorable {
        /// The address.
        address: Address,
        /// The size.
        size: Bytes,
        /// The reason.
        reason: &'static str,
    },
    /// The block is from another pool.
    #[error(
        "the block at {address} is from {owner}, not from {pool}; free it there; nothing was changed"
    )]
    WrongPool {
        /// The address.
        address: Address,
        /// The pool that was called.
        pool: PoolId,
        /// The pool that the block is from.
        owner: PoolId,
    },
    /// The block's size differs from the one that the caller gave.
    #[error(
        "the block at {address} was freed with size {} B, but {} B were requested and it has {} B; nothing was changed",
        claimed.get(), requested.get(), size.get()
    )]
    WrongSize {
        /// The address.
        address: Address,
        /// The size that the caller gave.
        claimed: Bytes,
        /// The size that was requested for the block.
        requested: Bytes,
        /// The size of the block, after rounding.
        size: Bytes,
    },
    /// The pool was dropped, and its blocks with it.
    #[error(
        "{pool} was dropped, and its blocks with it; keep a pool alive until its blocks are freed"
    )]
    PoolGone {
        /// Which pool.
        pool: PoolId,
    },
    /// The device returned addresses that the pool cannot manage.
    #[error("the device returned {span}, which overlaps addresses that the pool manages already")]
    AddressRange {
        /// The addresses.
        span: Span,
    },
    /// The program wrote past the end or before the start of a block. The block's canary showed it when the block was
    /// freed or checked; the write may be older.
    #[error("{}", overrun(*address, *size, *written, *expected, *found))]
    Overrun {
        /// The address of the block.
        address: Address,
        /// The size of the block.
        size: Bytes,
        /// The first byte that was overwritten.
        written: Address,
        /// The value that was there.
        expected: u8,
        /// The value that is there now.
        found: u8,
    },
    /// A block was freed on a stream that is not ordered after the one it was allocated on: when the free's turn came
    /// there, the other stream had not yet begun to use the block. Work on it may go on after the free.
    #[error(
        "the block of {} B at {address} was freed on {freed_on} while {allocated_on}, which it was allocated on, had \
         work before it; free it on {allocated_on}, make {freed_on} wait for an event there, or record the use",
        size.get()
    )]
    UnorderedFree {
        /// The address of the block.
        address: Address,
        /// The size of the block.
        size: Bytes,
        /// The stream it was freed on.
        freed_on: StreamHandle,
        /// The stream it was allocated on.
        allocated_on: StreamHandle,
    },
    /// The program wrote to free memory, usually through a block that it had freed.
    #[error(
        "{written} was written to while it was free: expected {expected:#04x}, found {found:#04x}{}",
        last_block(*written, block.as_ref())
    )]
    WrittenAfterFree {
        /// The first byte that was overwritten.
        written: Address,
        /// The value that was there.
        expected: u8,
        /// The value that is there now.
        found: u8,
        /// The last block that was there, if the pool remembers it.
        block: Option<RecentFree>,
    },
    /// A debugging aid does not work on the device.
    #[error("{aid} does not work on {device}: {missing}")]
    AidUnavailable {
        /// The setting of the aid.
        aid: &'static str,
        /// The device.
        device: String,
        /// The reason and what would help.
        missing: &'static str,
    },
    /// The buffer's host memory is read-only: it was wrapped or mapped that way.
    #[error(
        "the host memory of this buffer of {size} may only be read, so neither the host nor the device may write the \
         buffer; copy it to a buffer of the manager's own, or wrap or map the memory for writing"
    )]
    ReadOnly {
        /// The size of the buffer.
        size: Bytes,
    },
    /// A file could not be mapped, read or written.
    #[error("{} could not be used: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error message.
        reason: String,
    },
    /// A file was changed while it was read: what was read may be of both versions.
    #[error(
        "{} was changed while it was read: it had {} B and has {} B now; load it again once it is whole, and replace \
         files by renaming rather than writing over them",
        path.display(), before.get(), now.get()
    )]
    FileChanged {
        /// The file.
        path: PathBuf,
        /// Its size when it was opened.
        before: Bytes,
        /// Its size now.
        now: Bytes,
    },
    /// A file of weights, or an index of several, is damaged or not what its name says.
    #[error("{0}")]
    Weights(#[source] Box<WeightsError>),
    /// A transfer or an allocation was cancelled. Data that a transfer copied by then is kept; the rest of the destination
    /// is unchanged or partly written.
    #[error("cancelled after {moved} of {total}")]
    Cancelled {
        /// The bytes that were copied.
        moved: Bytes,
        /// All bytes of the transfer.
        total: Bytes,
    },
    /// A comparison found that host memory and device memory differ.
    #[error(
        "byte {} is {host:#04x} on the host and {device:#04x} on the device; copy again, and if it stays, check the \
         device and its memory",
        offset.get()
    )]
    Differs {
        /// The first differing byte of its piece, counted from the first byte of the host's memory.
        offset: Bytes,
        /// What the host has there.
        host: u8,
        /// What the device has there.
        device: u8,
    },
    /// Compressed data is damaged or in an unknown format.
    #[error("{0}")]
    Compressed(#[from] CompressedError),
    /// The pool, handle or device was made before the process forked, and belongs to the parent.
    #[error(
        "this was made before the process forked, and belongs to the parent; make devices and pools after the fork, or \
         start the child by exec"
    )]
    Forked,
    /// A setting was refused.
    #[error("{0}")]
    Config(#[source] Box<ConfigError>),
    /// A named shared buffer could not be created, opened or locked.
    #[error("{0}")]
    Shared(#[source] Box<SharedError>),
    /// The arena is full and may not grow far enough.
    #[error("the arena is {0}")]
    ArenaFull(#[from] BumpFull),
    /// The arena's token or checkpoint is not, or no longer, valid.
    #[error("stale arena block: {0}; use what was allocated since")]
    ArenaLapsed(#[from] BumpStale),
    /// The token or checkpoint is from another arena.
    #[error("it is of {owner}, not of {arena}: use it there")]
    WrongArena {
        /// The arena that was called.
        arena: ArenaId,
        /// The arena that it is from.
        owner: ArenaId,
    },
    /// The allocator could not free chunks of an arena. The arena is closed all the same; the chunks stay allocated
    /// until the allocator is dropped.
    #[error(
        "{chunks} chunks of the arena, {size} ({} B) together, could not be freed and stay allocated until the \
         allocator is dropped: {error}",
        size.get()
    )]
    ChunksNotFreed {
        /// The number of chunks.
        chunks: usize,
        /// Their total size.
        size: Bytes,
        /// The allocator's error for the first of them.
        #[source]
        error: Box<Self>,
    },
    /// A size, an alignment or an address is not allowed.
    #[error("{0}")]
    Quantity(#[from] QuantityError),
    /// A call of the device failed.
    #[error("{0}")]
    Device(#[source] forebay_hal::Error),
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
    NotRestorable { address, size, reason },
    WrongPool { address, pool, owner },
    WrongSize { address, claimed, requested, size },
    PoolGone { pool },
    AddressRange { span },
    Overrun { address, size, written, expected, found },
    UnorderedFree { address, size, freed_on, allocated_on },
    WrittenAfterFree { written, expected, found, block },
    AidUnavailable { aid, device, missing },
    ReadOnly { size },
    File { path, reason },
    FileChanged { path, before, now },
    Weights(value),
    Cancelled { moved, total },
    Differs { offset, host, device },
    Compressed(value),
    Forked,
    Config(value),
    Shared(value),
    ArenaFull(value),
    ArenaLapsed(value),
    WrongArena { arena, owner },
    ChunksNotFreed { chunks, size, error },
    Quantity(value),
    Device(value),
});

/// The message of [`Error::Overrun`].
fn overrun(address: Address, size: Bytes, written: Address, expected: u8, found: u8) -> String {
    let end = address.checked_add(size).unwrap_or(address);
    let (distance, side) = match written.offset_from(end) {
        Some(past) => (past, "past the end"),
        None => (address.offset_from(written).unwrap_or_default(), "before the start"),
    };
    format!(
        "{written}, {} B {side} of the block of {} B at {address}, was overwritten: expected {expected:#04x}, found \
         {found:#04x}; look for a write out of bounds",
        distance.get(),
        size.get()
    )
}

/// What [`Error::WrittenAfterFree`] says of the last block there.
fn last_block(written: Address, block: Option<&RecentFree>) -> String {
    let Some(block) = block else { return String::new() };
    format!(
        "; it is {} B into a block of {} B at {}, tag {}, that was freed on {}; look for a use after that free",
        written.offset_from(block.address).unwrap_or_default().get(),
        block.size.get(),
        block.address,
        block.tag.name(),
        block.stream
    )
}

impl Error {
    /// Whether this reports a mistake of the program that a debugging aid found.
    ///
    /// Unlike after every other error, the call may have had an effect:
    ///
    /// * A block that was to be freed is freed. Do not free it again. The mistake may be in another block that was
    ///   freed before.
    /// * A request has allocated no block, and can be repeated.
    /// * Memory that was written to by mistake stays out of use while the pool lives
    ///   ([`Statistics::retired`](crate::Statistics::retired)), because the program may write there again.
    pub const fn is_finding(&self) -> bool {
        matches!(
            self,
            Self::Overrun { .. } | Self::UnorderedFree { .. } | Self::WrittenAfterFree { .. }
        )
    }
}

impl From<Shortage> for Error {
    fn from(shortage: Shortage) -> Self {
        Self::OutOfMemory(Box::new(shortage))
    }
}

impl From<SharedError> for Error {
    fn from(error: SharedError) -> Self {
        Self::Shared(Box::new(error))
    }
}

impl From<WeightsError> for Error {
    fn from(error: WeightsError) -> Self {
        Self::Weights(Box::new(error))
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
