//! Handles: values that own blocks and free them when they are dropped.
//!
//! A [`Block`](crate::Block) is plain data and owns nothing. These types do:
//!
//! ```text
//!   OwnedBlock ── one block, one owner; dropping it frees the block in the order of its stream
//!      ├── DeviceArray<T>   the block as elements of a plain type
//!      ├── SharedBlock      several owners; the last one frees the block
//!      ├── Batch            one block in parts; allocate_batch: many blocks, all or none
//!      └── Allocation       a future that becomes one
//!
//!   warm_up                 allocates and frees, so that the pool has the memory when it is needed
//! ```
//!
//! All of them work with any [`Allocate`](crate::Allocate) that can be cloned: a [`Pool`](crate::Pool), an adaptor over
//! one, an `Arc<dyn Allocate>`. A handle holds a clone, which keeps its pool alive.
//!
//! # Order
//!
//! A handle belongs to a stream, at first the one it was allocated for. After the handle is dropped, work that is
//! enqueued on that stream may reuse the memory. If other streams use the block too, there are three ways to keep the
//! order, and none makes the host wait:
//!
//! * [`used_on`](OwnedBlock::used_on) records a further stream. After the block is freed, its memory is reused only after
//!   everything enqueued there by then. No stream waits for it.
//! * [`hand_over_to`](OwnedBlock::hand_over_to) makes another stream wait for this one, and moves the handle to it.
//! * [`set_stream`](OwnedBlock::set_stream) moves the handle to another stream, and records this one as a further stream.
//!
//! These orders survive even if the handle [gives up its block](OwnedBlock::into_raw).
//!
//! If an allocator [records no uses](crate::RecordedUse::Unsupported), a handle makes its stream wait, on the device,
//! for the further ones before it frees the block.
//!
//! During a capture ([`Pool::capture`](crate::Pool::capture)) a drop records no event. A block that other streams use
//! then stays with the pool, which reuses it after the next wait for the device.
//!
//! # Streams that end first
//!
//! A stream may end while a handle belongs to it or has recorded it, and the driver may reuse its handle for another
//! stream. A handle [tells the two apart](forebay_hal::NamedStream) if the end was announced: by dropping a
//! [`Stream`](crate::Stream), or by [`Pool::forget_stream`](crate::Pool::forget_stream). The memory of the freed block
//! is then reused after the last event of the ended stream or, if the pool no longer knows it, after a wait for the
//! whole device. Plain blocks are freed in the order of whichever stream currently has the handle that the call names.
//!
//! # Drops
//!
//! Dropping a handle does not wait for the device (unless its allocator records no uses and one of its streams has
//! ended), and panics only if a custom allocator panics. If the handle is the last owner of its pool, the drop also
//! drops the pool, which waits for the device: keep a clone of the pool to avoid that. A drop cannot report an error.
//! It retries a transient one once; after that the block stays allocated, and [`lost_frees`] has the count and the last
//! error. Call [`free`](OwnedBlock::free) to get the error.
//!
//! # Freeing by address
//!
//! A pool refuses to free an owned block by its address ([`Error::Owned`](crate::Error::Owned)). An allocator without ownership
//! ([`Allocate::own`](crate::Allocate::own)) may free it; the handle then finds out when it is dropped, and leaves a
//! later block at the address alone.

mod array;
mod batch;
pub(crate) mod failure;
mod lost;
mod on_stream;
pub(crate) mod order;
mod owned;
mod refused;
mod shared;
mod slice;
mod task;
#[cfg(test)]
pub(crate) mod tests;
mod warm;

pub use bytemuck::Pod;

pub use self::array::DeviceArray;
pub use self::batch::{Batch, allocate_batch};
pub use self::lost::{LostFree, LostFrees, lost_frees};
pub use self::on_stream::OnStream;
pub use self::owned::OwnedBlock;
pub use self::refused::Refused;
pub use self::shared::SharedBlock;
pub use self::slice::{DeviceSlice, DeviceSliceMut};
pub use self::task::{Allocation, allocate_async};
pub use self::warm::{WarmUp, warm_up};
