//! Why there is no CUDA here.

use core::fmt;

use forebay_hal::{Call, Error};

use crate::driver::DRIVER_VARIABLE;
use crate::sys::{Code, Symbol};

/// Why there is no CUDA driver to use. A value, never a panic: most machines have none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverMissing {
    /// None of the libraries could be loaded.
    Library {
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
        /// The library.
        library: String,
        /// What it answered.
        code: Code,
    },
}

impl fmt::Display for DriverMissing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no CUDA driver: ")?;
        match self {
            Self::Library { tried } => {
                for (index, (library, reason)) in tried.iter().enumerate() {
                    let comma = if index == 0 { "tried " } else { ", " };
                    write!(f, "{comma}{library} ({reason})")?;
                }
                write!(
                    f,
                    "; install NVIDIA's driver, or name its library in {DRIVER_VARIABLE}, or use \
                     another device"
                )
            }
            Self::Function { library, symbol } => write!(
                f,
                "{library} has no {}, which CUDA {}.{} introduced; install a newer driver",
                symbol.name,
                symbol.version / 1000,
                symbol.version % 1000 / 10
            ),
            Self::Start { library, code } => {
                write!(f, "{library} does not start: {code}; {}", cure(*code))
            }
        }
    }
}

/// What helps where `cuInit` answered so.
fn cure(code: Code) -> &'static str {
    match code {
        Code::ERROR_NO_DEVICE => {
            "there is no NVIDIA device this process may see: look at CUDA_VISIBLE_DEVICES and, in a \
             container, at what devices it was given"
        }
        Code::ERROR_SYSTEM_DRIVER_MISMATCH => {
            "the library and the kernel's module are of different versions: restart the machine, or \
             install both anew"
        }
        Code::ERROR_STUB_LIBRARY => {
            "this is the toolkit's stub, for linking: take its folder out of LD_LIBRARY_PATH"
        }
        Code::ERROR_NOT_INITIALIZED => {
            "the process was forked after its parent had begun with CUDA: fork before that, or start \
             the child by exec"
        }
        Code::ERROR_SYSTEM_NOT_READY => "the machine's fabric is not up yet: wait, or start it",
        _ => "nvidia-smi tells more",
    }
}

impl core::error::Error for DriverMissing {}

impl From<DriverMissing> for Error {
    fn from(missing: DriverMissing) -> Self {
        Self::Unsupported { call: Call::Open, missing: missing.to_string().into() }
    }
}
