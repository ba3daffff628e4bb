//! Buffers: typed data with a replica on the host and one on a device, kept coherent.
//!
//! ```text
//!   BufferManager ── the pool of device memory, the live buffers
//!     └── Buffer<T> ── host memory ⇄ device memory, and for each range which is newer
//!           ├── host, host_mut, ...         &[T] and guards; copy to the host what it lacks, and wait
//!           ├── on_device, ..._mut          an address, ordered for a stream; copy what the device lacks
//!           └── slice, cast                 parts and other types of the same memory
//! ```
//!
//! A buffer copies only when a use needs it, and only the bytes it needs: a buffer used only on the device takes no
//! host memory, and after writing ten elements of a million on the host, the next use on the device copies ten. Memory
//! that was never written is zero on both sides, and is never copied.
//!
//! ```
//! use forebay::buffer::BufferManager;
//! use forebay::{HostDevice, StreamHandle};
//!
//! let memory = BufferManager::new(&HostDevice::open()?)?; // CudaDevice::open(0)? for the first GPU
//! let mut x = memory.buffer::<f32>(1_000_000)?;
//! x.host_mut()?.fill(2.0); // the host's replica is newer
//! let on_device = x.on_device_mut(StreamHandle::DEFAULT)?; // copied once, if the device has memory of its own
//! // ... launch a kernel on `on_device.stream()` that changes `on_device.address()`
//! # let _ = on_device;
//! assert_eq!(x.host()?[7], 2.0); // copied back, after the kernel
//! # Ok::<(), forebay::Error>(())
//! ```
//!
//! A buffer can also wrap memory that the program already has, without a copy: see [`BufferManager::wrap`],
//! [`BufferManager::wrap_raw_parts`], and `BufferManager::map_file` for a mapped file.
//!
//! The guide, docs/buffers.md, tabulates what each operation does in each [state](Buffer::state). The policy is
//! [`forebay_core::Coherence`].
//!
//! # Order
//!
//! Uses on a device are ordered there: a read waits for the last write, a write for all earlier uses. The host waits
//! only for copies to and from host memory. Dropping a buffer never waits, unless it is the last of a dropped manager:
//! device memory returns to the pool in stream order, and host memory that a copy reads is freed after it. If device
//! memory is the host's own, a host access waits for the streams that use it.
//!
//! After a stream is destroyed, the next use of a buffer that was used on it waits for the whole device, once.

mod access;
mod bulk;
mod device_buffer;
mod device_side;
mod double;
mod external;
mod fetch;
mod fields;
mod guard;
mod host_memory;
mod host_use;
mod managed;
#[cfg(feature = "host")]
mod managed_source;
mod memory;
mod raw;
mod reentry;
mod registry;
mod replicas;
mod slice;
mod statistics;
mod store;
mod typed;

#[cfg(test)]
mod tests;

pub use access::Access;
pub use device_buffer::DeviceBuffer;
pub use double::DoubleBuffer;
pub use fetch::Fetch;
pub use fields::Field;
pub use forebay_core::{BufferState, Replica};
pub use forebay_hal::Advice;
pub use guard::{HostMut, OnDevice};
pub use memory::{BufferManager, leaks};
pub(crate) use memory::{leaked_shared, lines};
pub(crate) use reentry::{ReentryGuard, ReentryLock};
pub use registry::{BufferTotals, LiveBuffer, LiveShared, capture_stacks};
pub(crate) use registry::{LineStatistics, SharedRegistration};
pub use slice::{BufferSlice, BufferSliceMut};
pub use statistics::{BufferStatistics, CopyStatistics};
pub use typed::Buffer;
