//! Models of allocators, to compare against on any machine.
//!
//! Each is a [`Player`] over a [`Driver`], so it works on any device. A simulated one with phantom memory plays a run
//! of many gigabytes in seconds, with the same capacity, count of driver calls and driver costs for all.
//!
//! ```text
//!   direct             every request goes to the driver
//!   pow2               powers of two, a free list each, nothing shared between them
//!   torch              PyTorch's caching allocator
//!   torch-expandable   the same with expandable segments
//! ```
//!
//! Their memory figures are close to the real allocators': see [`torch`] for how that was checked and what was assumed.
//! `pow2` models no particular allocator and was not compared with any. Their own speed is the model's, and says
//! nothing about the real allocator's.

mod direct;
mod driver;
mod packing;
mod pow2;
pub mod torch;

pub use driver::Driver;

use std::sync::Arc;

use forebay_core::{Address, Bytes};
use forebay_hal::{Call, Device, Error, StreamHandle, named_enum};

use self::direct::Direct;
use self::pow2::PowersOfTwo;
use crate::named::from_name;
use crate::{AddressedPlayer, BlockIndex, DriverUse, FreeOrder, Player, ReplayError, StreamIndex};

named_enum! {
    /// The modelled allocators.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum Model {
        /// PyTorch's caching allocator.
        Torch = "torch",
        /// PyTorch's caching allocator with expandable segments.
        TorchExpandable = "torch-expandable",
        /// A pool of powers of two.
        PowersOfTwo = "pow2",
        /// Every request goes to the driver.
        Direct = "direct",
    }
}

impl Model {
    /// Creates a player of this kind on `device`, with nothing allocated. Fails with
    /// [`Unsupported`](forebay_hal::Error::Unsupported) if the device lacks what the model needs.
    pub fn player(self, device: Arc<dyn Device>) -> Result<Box<dyn Player>, Error> {
        if self == Self::TorchExpandable && device.virtual_memory().is_none() {
            let missing = "virtual memory, which expandable segments are made of".into();
            return Err(Error::Unsupported { call: Call::Reserve, missing });
        }
        let driver = Driver::new(device)?;
        Ok(match self {
            Self::Direct => Box::new(Direct::new(driver)),
            Self::PowersOfTwo => Box::new(PowersOfTwo::new(driver)),
            Self::Torch => Box::new(torch::Native::new(driver)),
            Self::TorchExpandable => Box::new(torch::Expandable::new(driver)),
        })
    }
}

from_name!(Model, "model");

/// What one allocator does with requests, over a driver of its own. Every policy is a [`Player`].
///
/// # Safety
///
/// * A live block's address is that of memory of the driver, as large as the block or larger, and the block's alone
///   until it is freed.
unsafe trait Policy {
    fn allocate(
        &mut self,
        block: BlockIndex,
        size: Bytes,
        stream: StreamIndex,
    ) -> Result<(), ReplayError>;

    fn free(&mut self, block: BlockIndex) -> Result<(), ReplayError>;

    fn driver(&self) -> &Driver;

    fn address(&self, block: BlockIndex) -> Option<Address>;
}

impl<P: Policy> Player for P {
    fn allocate(
        &mut self,
        block: BlockIndex,
        size: Bytes,
        stream: StreamIndex,
    ) -> Result<(), ReplayError> {
        Policy::allocate(self, block, size, stream)
    }

    fn free(&mut self, block: BlockIndex, _: StreamIndex) -> Result<(), ReplayError> {
        Policy::free(self, block)
    }

    fn reserved(&self) -> Bytes {
        Policy::driver(self).reserved()
    }

    fn driver(&self) -> DriverUse {
        Policy::driver(self).used()
    }

    fn placed(&mut self) -> Option<&mut dyn AddressedPlayer> {
        Some(self)
    }
}

// SAFETY: as each policy promises. It waits for nothing: blocks are freed when they are idle.
unsafe impl<P: Policy> AddressedPlayer for P {
    fn address(&self, block: BlockIndex) -> Option<Address> {
        Policy::address(self, block)
    }

    fn stream(&mut self, _: StreamIndex) -> Result<StreamHandle, ReplayError> {
        Ok(StreamHandle::DEFAULT)
    }

    fn free_order(&self) -> FreeOrder {
        FreeOrder::Idle
    }
}

/// The replay never frees what is not live; a model that cannot find it has lost it.
fn missing(block: BlockIndex) -> ReplayError {
    ReplayError::Inconsistent { block, what: "is to be freed and is not live here" }
}

/// A driver's refusal of a request for `size`.
fn refused(error: Error, size: Bytes, driver: &Driver) -> ReplayError {
    match error {
        Error::OutOfMemory { .. } => too_large(size, driver),
        other => ReplayError::Device(other),
    }
}

/// There is not that much memory.
fn too_large(size: Bytes, driver: &Driver) -> ReplayError {
    ReplayError::OutOfMemory {
        requested: size,
        reserved: driver.reserved(),
        capacity: driver.capacity(),
    }
}

#[cfg(test)]
mod tests;
