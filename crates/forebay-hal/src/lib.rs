//! The contract between forebay and a device.
//!
//! A [`Device`] is somewhere memory lives and work runs: a GPU behind a driver, the host itself,
//! or a simulation. It is made of groups of calls, each an unsafe trait whose documentation is the
//! contract an implementation keeps:
//!
//! ```text
//!   Device ── Memory          plain memory: allocate, free
//!     │   ├── Streams         orders of work, and events: points in them
//!     │   ├── Transfers       copies and fills in one, two and three dimensions
//!     │   └── what it is: Descriptor, MemoryInfo, PointerClass
//!     │
//!     └── only where the hardware and driver can, as `Option<&dyn ...>`:
//!             VirtualMemory   reserve, create, map, set access, unmap, release
//!             PinnedMemory    host memory the device can reach on its own
//!             ManagedMemory   memory that moves by itself
//!             Peers           another device's memory
//!             Sharing         another process's memory
//!             ForeignStreams  streams that other libraries made
//! ```
//!
//! The traits are object-safe: the pool's hot path never reaches them, so one indirect call more
//! does not matter. Every call can fail, and fails with a typed [`Error`] that says what was asked,
//! what is allowed and whether trying again can help. A group the device lacks is `None`; a call
//! it lacks inside a group is [`Error::Unsupported`]. Neither is ever a panic.
//!
//! # Rules for every call of every device
//!
//! * A call that fails has changed nothing, with two exceptions. After [`Error::Lost`] the device
//!   gives no promise but that releasing what it gave still returns. A copy or fill that fails may
//!   have enqueued a part of itself: see [`Transfers`] for what of it can still happen.
//! * A handle that was never given out, or was given back, is refused with [`Error::Invalid`].
//! * Any thread may make any call at any time. Only the default stream of a thread belongs to that
//!   thread: a call that is given another thread's is refused with [`Error::Invalid`].
//! * The caller's current device or context is the same after a call as before it.
//! * Only calls whose name begins with `synchronize` wait for the device. The four that give back
//!   plain, managed, pinned and registered memory may too, where the device lacks
//!   [`Capabilities::PROMPT_FREE`]: the drivers' own frees wait for all work there is. And a copy
//!   that fails after a part of it was enqueued may wait for its stream before it says so, where
//!   that part uses the caller's host memory and cannot be called off.
//!
//! Whether a device keeps all this is not a matter of opinion: the `conformance` module (feature
//! `conformance`) has a named case for each promise, and a device's test file is a few lines that
//! run it.

mod call;
mod capability;
mod check;
#[macro_use]
mod debug;
#[cfg(feature = "conformance")]
pub mod conformance;
mod device;
mod error;
mod memory;
mod peer;
mod sharing;
mod stream;
mod stream_end;
mod to_device;
mod transfer;
mod virtual_memory;

pub use call::{Call, CallGroup};
pub use capability::Capabilities;
pub use check::{invalid, nonzero, valid_span};
pub use device::{Descriptor, Device, DeviceKind, MemoryInfo, PointerClass, PointerKind};
pub use error::{Error, Result};
pub use memory::{Advice, ManagedMemory, Memory, PinnedFlags, PinnedMemory};
pub use peer::{PeerCopy, PeerPlace, Peers};
#[cfg(unix)]
pub use sharing::Sharing;
pub use stream::{
    Event, EventHandle, EventKind, ForeignStreams, HostTask, Priority, Progress, Stream,
    StreamHandle, Streams, fresh_handle, own_thread, run_host_task,
};
pub use stream_end::{StreamEnd, on_stream_end};
pub use to_device::ToDevice;
pub use transfer::{Copy, Extent, Fill, Pattern, Pitch, Place, Rows, Transfers};
pub use virtual_memory::{Access, Granularity, PageHandle, PageOptions, VirtualMemory};
