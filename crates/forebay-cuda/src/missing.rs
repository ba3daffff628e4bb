//! Why no driver is available.

use core::fmt;

use forebay_hal::{Call, Error};

use crate::sys::{Refusal, Symbol};
use crate::vendor::Vendor;

/// Why no driver can be used. A value, never a panic: most machines have no driver.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverMissing {
    /// None of the libraries could be loaded.
    Library {
        /// The vendor of the driver.
        vendor: &'static Vendor,
        /// The libraries tried, each with the system's error.
        tried: Vec<(String, String)>,
    },
    /// A library was loaded but lacks a required function.
    Function {
        /// The library.
        library: String,
        /// The function.
        symbol: &'static Symbol,
    },
    /// The driver failed to start.
    Start {
        /// The vendor of the driver.
        vendor: &'static Vendor,
        /// The library.
        library: String,
        /// The failed call and its error code.
        refusal: Refusal,
    },
    /// The process has reached the limit of loaded libraries of this kind.
    TooMany {
        /// The vendor of the drivers.
        vendor: &'static Vendor,
        /// The limit.
        limit: usize,
    },
}

impl fmt::Display for DriverMissing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let interface = match self {
            Self::Function { symbol, .. } => symbol.interface,
            Self::Library { vendor, .. }
            | Self::Start { vendor, .. }
            | Self::TooMany { vendor, .. } => vendor.interface,
        };
        write!(f, "no {} driver: ", interface.name)?;
        match self {
            Self::Library { vendor, tried } => {
                for (index, (library, reason)) in tried.iter().enumerate() {
                    let comma = if index == 0 { "tried " } else { ", " };
                    write!(f, "{comma}{library} ({reason})")?;
                }
                let Vendor { install, variable, .. } = vendor;
                write!(f, "; {install}, or name its library in {variable}, or use another device")
            }
            Self::Function { library, symbol } => write!(
                f,
                "{library} has no {}, which {} introduced; install a newer driver",
                symbol.name,
                symbol.since()
            ),
            Self::Start { vendor, library, refusal } => {
                let said = vendor.interface.describe(refusal.code);
                write!(f, "{library} does not start: {said}; {}", (vendor.cure)(refusal.code))
            }
            Self::TooMany { limit, .. } => {
                write!(f, "the process has loaded {limit} libraries, the most it can; name one")
            }
        }
    }
}

impl core::error::Error for DriverMissing {}

impl From<DriverMissing> for Error {
    fn from(missing: DriverMissing) -> Self {
        Self::Unsupported { call: Call::Open, missing: missing.to_string().into() }
    }
}
