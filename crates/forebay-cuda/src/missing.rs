//! Why there is no driver here.

use core::fmt;

use forebay_hal::{Call, Error};

use crate::sys::{Refusal, Symbol};
use crate::vendor::Vendor;

/// Why there is no driver to use. A value, never a panic: most machines have none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverMissing {
    /// None of the libraries could be loaded.
    Library {
        /// Whose driver it would be.
        vendor: &'static Vendor,
        /// What was tried, and what the system said of each.
        tried: Vec<(String, String)>,
    },
    /// A library was loaded, and lacks a function that no device can do without.
    Function {
        /// The library.
        library: String,
        /// The function.
        symbol: &'static Symbol,
    },
    /// The driver did not begin.
    Start {
        /// Whose driver it is.
        vendor: &'static Vendor,
        /// The library.
        library: String,
        /// What it answered, and to which call.
        refusal: Refusal,
    },
    /// The process has loaded as many such libraries as it can.
    TooMany {
        /// Whose drivers they are.
        vendor: &'static Vendor,
        /// How many it can load.
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
