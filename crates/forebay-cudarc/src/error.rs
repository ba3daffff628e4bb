//! Why a call failed.

use core::fmt;

use cudarc::driver::DriverError;

/// The result of a call.
pub type Result<T> = core::result::Result<T, Error>;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// cudarc's context is not the primary one of its device.
    NotPrimary {
        /// The number of the device.
        ordinal: usize,
    },
    /// The two libraries work in different contexts.
    OtherContext {
        /// cudarc's, as the driver names it.
        cudarc: u64,
        /// forebay's.
        forebay: u64,
    },
    /// The allocator belongs to another device object, which does not know the stream.
    OtherDevice {
        /// The allocator's device.
        allocator: String,
        /// The stream's.
        stream: String,
    },
    /// The slice would belong to a per-thread default stream.
    PerThreadStream,
    /// The slice's memory is not forebay's.
    NotFromAPool,
    /// The slice's memory is not cudarc's.
    NotFromCudarc,
    /// forebay returned an error.
    Forebay(forebay::Error),
    /// The driver refused a call by cudarc.
    Driver(DriverError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPrimary { ordinal } => write!(
                f,
                "the context is not the primary one of GPU {ordinal}; CudaContext::new({ordinal}) retains that"
            ),
            Self::OtherContext { cudarc, forebay } => write!(
                f,
                "cudarc works in context {cudarc:#x} and forebay in {forebay:#x}: take the device from \
                 forebay_cudarc::device, and see that both load the same libcuda"
            ),
            Self::OtherDevice { allocator, stream } => write!(
                f,
                "the memory is from another object of {allocator} than the stream's {stream}: make the pool \
                 with the device that adopted the stream"
            ),
            Self::PerThreadStream => f.write_str(
                "a slice cannot belong to a per-thread default stream: once it is on another thread, the \
                 driver takes that thread's; use new_stream() or default_stream()",
            ),
            Self::NotFromAPool => f.write_str("the memory is cudarc's: call into_cuda"),
            Self::NotFromCudarc => f.write_str("the memory is a pool's: call into_block"),
            Self::Forebay(error) => error.fmt(f),
            Self::Driver(error) => write!(f, "the CUDA driver refused: {error}"),
        }
    }
}

impl core::error::Error for Error {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Forebay(error) => Some(error),
            Self::Driver(error) => Some(error),
            _ => None,
        }
    }
}

impl From<forebay::Error> for Error {
    fn from(error: forebay::Error) -> Self {
        Self::Forebay(error)
    }
}

impl From<forebay::hal::Error> for Error {
    fn from(error: forebay::hal::Error) -> Self {
        Self::Forebay(error.into())
    }
}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

/// The error of a call that consumes a value: the value, unchanged, and the reason.
pub struct Refused<H> {
    /// In a box, so that the results of calls that go well stay small.
    parts: Box<(H, Error)>,
}

impl<H> Refused<H> {
    pub(crate) fn new(value: H, error: impl Into<Error>) -> Self {
        Self { parts: Box::new((value, error.into())) }
    }

    /// The reason.
    pub fn error(&self) -> &Error {
        &self.parts.1
    }

    /// Returns the value.
    pub fn into_value(self) -> H {
        self.parts.0
    }
}

impl<H> From<Refused<H>> for Error {
    /// The reason alone; the value is dropped.
    fn from(refused: Refused<H>) -> Self {
        refused.parts.1
    }
}

impl<H> fmt::Display for Refused<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

impl<H> fmt::Debug for Refused<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", self.error()).finish_non_exhaustive()
    }
}

impl<H> core::error::Error for Refused<H> {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(self.error())
    }
}
