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

pub use direct::Direct;
pub use driver::Driver;
pub use pow2::PowersOfTwo;

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

use forebay_core::Bytes;
use forebay_hal::{Call, Device, Error};

use crate::{BlockIndex, Player, ReplayError};

/// The modelled allocators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Model {
    /// Every request goes to the driver.
    Direct,
    /// A pool of powers of two.
    PowersOfTwo,
    /// PyTorch's caching allocator.
    Torch,
    /// PyTorch's caching allocator with expandable segments.
    TorchExpandable,
}

impl Model {
    /// Every model.
    pub const ALL: &'static [Self] =
        &[Self::Torch, Self::TorchExpandable, Self::PowersOfTwo, Self::Direct];

    /// The name used in commands and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::PowersOfTwo => "pow2",
            Self::Torch => "torch",
            Self::TorchExpandable => "torch-expandable",
        }
    }

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

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no model has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownModel {
    /// The name as given.
    pub given: String,
}

impl fmt::Display for UnknownModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Model::ALL.iter().map(|model| model.name()).collect();
        write!(f, "unknown model \"{}\"; expected one of {}", self.given, names.join(", "))
    }
}

impl core::error::Error for UnknownModel {}

impl FromStr for Model {
    type Err = UnknownModel;

    fn from_str(text: &str) -> Result<Self, UnknownModel> {
        let found = Self::ALL.iter().find(|model| model.name() == text);
        found.copied().ok_or_else(|| UnknownModel { given: text.to_owned() })
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
