//! Handles: values that own blocks and give them back by themselves.
//!
//! A [`Block`](crate::Block) is plain data and owns nothing. Here is what does:
//!
//! ```text
//!   OwnedBlock ── one block, one owner; dropped, it goes back in the order of its stream
//!      ├── DeviceArray<T>   the same as so many elements of a plain type
//!      ├── SharedBlock      the same with several owners; the last one gives it back
//!      ├── Rental, Rented   blocks of about the size asked for, kept for the next who asks
//!      ├── Batch            one block in parts; allocate_batch: many blocks, all or none
//!      └── Allocation       a future that becomes one
//!
//!   warm_up                 takes and gives back, so that the pool has it when it is needed
//! ```
//!
//! All of them work over any [`Allocate`](crate::Allocate) that can be cloned: a [`Pool`], an adaptor
//! over one, an `Arc<dyn Allocate>`. A handle holds a clone, so its pool lives as long as it does.
//!
//! # Order
//!
//! A handle belongs to a stream: the one it was allocated for, unless told otherwise. When it goes,
//! its memory may be used again by what is enqueued on that stream afterwards. Where other streams
//! use it too there are three ways to keep order, and none makes the host wait:
//!
//! * [`used_on`](OwnedBlock::used_on): notes a further stream. Before the block is given back, the
//!   handle's stream is made to wait for everything enqueued there by then.
//! * [`hand_over_to`](OwnedBlock::hand_over_to): makes another stream wait for this one, and
//!   belongs to that one from then on.
//! * [`set_stream`](OwnedBlock::set_stream): the caller has ordered the two streams, and says so.
//!
//! While work is captured ([`Pool::capture`](crate::Pool::capture)) a drop records no event. A block that
//! other streams use stays with the pool then, which takes it back once the device was waited for.
//!
//! A stream must not be destroyed while a handle belongs to it or has noted it: a driver may give
//! the handle's value to another stream, and the order would be kept with the wrong one.
//!
//! # Drops
//!
//! Dropping a handle waits for no device, and panics only where a foreign allocator's `free` does.
//! The last handle of a pool that nobody else holds takes the pool with it, and that waits for the
//! device: keep the pool where that matters. A drop has nobody to tell of an error. What may pass
//! is tried once more; after that the block stays with its allocator, and [`lost_frees`] has the
//! count and the latest reason. Who wants to know at once calls [`free`](OwnedBlock::free).
//!
//! # Freeing by address
//!
//! `Allocate::free` takes an address, from anybody. A block that a handle owns and someone else
//! freed is found out when the handle goes: its allocator says that it is free already, and where a
//! later block begins at the address the handle leaves that one alone. Until then, the handle's
//! address is not its own any more, as with any address that was freed too early.

mod array;
mod batch;
mod failure;
mod lost;
mod order;
mod owned;
mod refused;
mod rental;
mod shared;
mod task;
#[cfg(test)]
mod tests;
mod warm;

use forebay_core::Bytes;
use forebay_hal::StreamHandle;

pub use bytemuck::Pod;

pub use self::array::DeviceArray;
pub use self::batch::{Batch, allocate_batch};
pub use self::lost::{LostFree, LostFrees, lost_frees};
pub use self::owned::OwnedBlock;
pub use self::refused::Refused;
pub use self::rental::{Rental, RentalFigures, RentalOptions, Rented};
pub use self::shared::SharedBlock;
pub use self::task::{Allocation, allocate_async};
pub use self::warm::{Transformer, WarmUp, warm_up};

use crate::{Pool, Request, Result};

/// # Handles
///
/// Blocks that free themselves. [`OwnedBlock::new`] and [`DeviceArray::new`] do the same for any allocator.
impl Pool {
    /// Allocates at least `size` bytes for `stream`. Dropping the handle frees them in the order of its stream.
    ///
    /// ```
    /// use forebay::{Bytes, HostDevice, Pool, StreamHandle};
    ///
    /// let pool = Pool::new(&HostDevice::open()?)?;
    /// let block = pool.owned(Bytes::mib(1), StreamHandle::DEFAULT)?;
    /// assert_eq!(pool.statistics().live, Bytes::mib(1));
    /// drop(block);
    /// assert_eq!(pool.statistics().live, Bytes::ZERO);
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn owned(&self, size: Bytes, stream: StreamHandle) -> Result<OwnedBlock> {
        OwnedBlock::new(self, Request::new(size, stream))
    }

    /// Allocates an array of `length` elements for `stream`. Dropping it frees it in the order of its stream. The
    /// elements are uninitialised memory of the device, so copy to the array before you read it.
    ///
    /// ```
    /// use forebay::{HostDevice, Pool, StreamHandle};
    ///
    /// let pool = Pool::new(&HostDevice::open()?)?;
    /// let mut array = pool.array::<f32>(3, StreamHandle::DEFAULT)?;
    /// array.copy_from_slice(&[1.0, 2.0, 3.0])?;
    /// let mut back = [0.0; 3];
    /// array.copy_to_slice(&mut back)?;
    /// assert_eq!(back, [1.0, 2.0, 3.0]);
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn array<T: Pod>(&self, length: usize, stream: StreamHandle) -> Result<DeviceArray<T>> {
        DeviceArray::new(self, length, stream)
    }
}
