//! The contract between forebay and a device.
//!
//! A [`Device`] is a place where memory lives and work runs: a GPU behind a driver, the host itself, or a simulation.
//! It consists of groups of calls, each an unsafe trait whose documentation is the contract an implementation keeps:
//!
//! ```text
//!   Device ── Memory          plain memory: allocate, free
//!     │   ├── Queue           who orders work
//!     │   │     Streams         orders of work, and events: points in them
//!     │   │     Transfers       copies and fills in one, two and three dimensions
//!     │   └── what it is: Descriptor, MemoryInfo, PointerClass
//!     │
//!     └── optional groups, as `Option<&dyn ...>`:
//!             VirtualMemory   reserve, create, map, set access, unmap, release
//!             PinnedMemory    host memory that the device accesses directly
//!             ManagedMemory   memory that migrates between host and device
//!             Peers           another device's memory
//!             Sharing         another process's memory
//!             ForeignStreams  streams that other libraries created
//!             Decompression   LZ4 blocks, decoded where they are
//!
//!   MemorySource              pages or segments of one kind of memory: plain, pinned, managed
//! ```
//!
//! A pool combines a source of memory with the device whose queue orders work on it.
//!
//! The traits are object-safe: the pool's hot path never reaches them, so an indirect call does not
//! matter. Every call can fail, with a typed [`Error`] that gives the argument, what was expected and
//! whether a retry can help. A group the device lacks is `None`; a call it lacks inside a group returns
//! [`Error::Unsupported`]. Neither panics.
//!
//! # Rules for every call of every device
//!
//! * A call that fails changes nothing, with two exceptions. After [`Error::Lost`] the only guarantee is
//!   that calls which release something still return. A copy or fill that fails may have enqueued part of
//!   itself: see [`Transfers`] for the effects that can still happen.
//! * A handle that never existed, or was released, is refused with [`Error::Invalid`].
//! * Any thread may make any call at any time. Only the default stream of a thread belongs to that
//!   thread: a call with another thread's default stream is refused with [`Error::Invalid`].
//! * A call leaves the caller's current device or context unchanged.
//! * Only calls whose name begins with `synchronize` wait for the device, with two exceptions. On devices
//!   without [`Capabilities::PROMPT_FREE`], the four calls that release plain, managed, pinned and
//!   registered memory may wait, because the drivers' own frees wait for all work. And a copy that fails
//!   after part of it was enqueued may wait for its stream before it returns, if that part uses the
//!   caller's host memory and cannot be cancelled.
//!
//! The `conformance` module (feature `conformance`) has a named case for each of these guarantees, and a
//! device's test file runs it in a few lines.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

#[macro_use]
mod macros;

pub mod address_book;
mod call;
mod capability;
mod check;
#[cfg(feature = "conformance")]
#[allow(
    clippy::disallowed_methods,
    reason = "the threads of a test are a program's, not the library's"
)]
pub mod conformance;
mod decompression;
mod device;
mod error;
mod memory;
mod peer;
mod refusal;
mod sharing;
mod source;
mod stream;
mod stream_end;
mod tables;
mod to_device;
mod transfer;
mod virtual_memory;
mod workers;

pub use call::{Call, CallGroup};
pub use capability::Capabilities;
pub use check::{invalid, multiple, nonzero, valid_span};
pub use decompression::{Decompression, Lz4Blocks, decode_lz4, decode_lz4_blocks};
pub use device::{Descriptor, Device, DeviceKind, MemoryInfo, PointerClass, PointerKind, Queue};
pub use error::{Error, Result};
pub use memory::{Advice, ManagedMemory, Memory, PinnedFlags, PinnedMemory};
pub use peer::{PeerCopy, PeerLocation, Peers};
pub use refusal::{Asked, DriverErrorKind};
#[cfg(unix)]
pub use sharing::Sharing;
pub use source::MemorySource;
pub use stream::{
    Event, EventHandle, EventKind, ForeignStreams, HostTask, Priority, Progress, Stream,
    StreamHandle, Streams, fresh_handle, own_thread, run_host_task,
};
pub use stream_end::{NamedStream, StreamEnd, announce_stream_end, on_stream_end, stream_ends};
pub use tables::{EventEntry, EventTable, StreamTable};
pub use to_device::ToDevice;
pub use transfer::{Copy, Extent, Fill, Location, Pattern, Pitch, Rows, Transfers};
pub use virtual_memory::{Access, Granularity, PageHandle, PageOptions, VirtualMemory};
pub use workers::Workers;
