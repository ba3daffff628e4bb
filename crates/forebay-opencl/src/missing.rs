//! Why OpenCL is not available.

use core::fmt;

use forebay_hal::{Call, Error};

use crate::code::Code;
use crate::driver::LIBRARY_VARIABLE;

/// Why OpenCL cannot be used. A value, never a panic: many machines have no OpenCL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenClMissing {
    /// The library could not be loaded.
    Library {
        /// The library tried last.
        library: String,
        /// The system's error.
        reason: String,
    },
    /// The library was loaded but has no platform: no vendor's driver is installed.
    Platform,
    /// The library was loaded, but its list of platforms could not be read.
    Start {
        /// The error code.
        code: Code,
    },
    /// The platforms show no device to this process.
    Device {
        /// Their names.
        platforms: Vec<String>,
    },
    /// The parent initialised OpenCL before the process forked, so its threads do not exist here.
    Forked,
}

impl fmt::Display for OpenClMissing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no OpenCL: ")?;
        match self {
            Self::Library { library, reason } => write!(
                f,
                "{library} could not be loaded ({reason}); install an OpenCL loader (Debian and Ubuntu: \
                 ocl-icd-libopencl1), or name the library in {LIBRARY_VARIABLE}, or use another device"
            ),
            Self::Platform => f.write_str(
                "the library is there and finds no platform; install a vendor's driver (NVIDIA's and \
                 AMD's bring one, intel-opencl-icd, or pocl-opencl-icd for the processor), and see that \
                 /etc/OpenCL/vendors names it",
            ),
            Self::Start { code } => {
                write!(f, "the platforms could not be listed: {code}; clinfo tells more")
            }
            Self::Device { platforms } => write!(
                f,
                "{} shows this process no device; in a container, look at what devices it was given",
                platforms.join(", ")
            ),
            Self::Forked => f.write_str(
                "the process was forked after its parent had begun with OpenCL; fork before that, or \
                 start the child by exec",
            ),
        }
    }
}

impl core::error::Error for OpenClMissing {}

impl From<OpenClMissing> for Error {
    fn from(missing: OpenClMissing) -> Self {
        match missing {
            OpenClMissing::Forked => Self::Forked { call: Call::Open },
            missing => Self::Unsupported { call: Call::Open, missing: missing.to_string().into() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_says_what_helps() {
        let (library, reason) = ("libOpenCL.so.1".to_owned(), "no such file".to_owned());
        for (missing, words) in [
            (OpenClMissing::Library { library, reason }, "ocl-icd-libopencl1"),
            (OpenClMissing::Platform, "pocl-opencl-icd"),
            (OpenClMissing::Start { code: Code(-6) }, "CL_OUT_OF_HOST_MEMORY"),
            (OpenClMissing::Device { platforms: vec!["PoCL".to_owned()] }, "PoCL shows"),
        ] {
            let error = Error::from(missing);
            assert!(matches!(error, Error::Unsupported { call: Call::Open, .. }), "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
        assert_eq!(Error::from(OpenClMissing::Forked), Error::Forked { call: Call::Open });
    }
}
