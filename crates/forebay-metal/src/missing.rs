//! Why there is no Metal device.

use core::fmt;

use forebay_hal::{Call, Error};

/// Why there is no Metal device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetalMissing {
    /// The system is not macOS.
    System {
        /// The system, as Rust names it.
        system: &'static str,
    },
    /// No device has this number.
    Device {
        /// The number asked for.
        ordinal: u32,
        /// The number of devices.
        count: usize,
    },
    /// The device lacks what forebay needs: addresses that the GPU itself uses.
    Family {
        /// The device's name.
        name: String,
    },
    /// Metal created no command queue, event or listener for the device.
    Queue {
        /// The device's name.
        name: String,
    },
}

impl fmt::Display for MetalMissing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System { system } => write!(f, "Metal needs macOS, and this is {system}"),
            Self::Device { ordinal, count: 0 } => {
                write!(f, "no Metal device {ordinal}: this process is shown none")
            }
            Self::Device { ordinal, count } => {
                write!(f, "no Metal device {ordinal}: there are {count}, counted from 0")
            }
            Self::Family { name } => {
                write!(
                    f,
                    "{name} is not of the family Metal 3: macOS 13 and a GPU of 2017 or later are needed"
                )
            }
            Self::Queue { name } => write!(f, "Metal created no command queue for {name}"),
        }
    }
}

impl core::error::Error for MetalMissing {}

impl From<MetalMissing> for Error {
    fn from(missing: MetalMissing) -> Self {
        Self::Unsupported { call: Call::Open, missing: missing.to_string().into() }
    }
}
