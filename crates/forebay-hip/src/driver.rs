//! HIP's runtime library, found at run time, loaded once and never unloaded.

use core::ffi::c_int;

use forebay_cuda::{CreatedCounts, CudaDriver, DriverMissing};
use forebay_hal::Result;

use crate::vendor::AMD;

/// HIP's runtime library. Each is loaded once and stays until the end of the process.
#[derive(Clone, Copy, Debug)]
pub struct HipDriver(&'static CudaDriver);

impl HipDriver {
    /// Loads the system's library, or the one that [`HIP_DRIVER_VARIABLE`](crate::HIP_DRIVER_VARIABLE) names.
    pub fn load() -> core::result::Result<Self, DriverMissing> {
        // SAFETY: HIP's functions do what CUDA's do, as its documentation says, or are translated.
        unsafe { CudaDriver::load_of(&AMD) }.map(Self)
    }

    /// Loads the library with this name or path.
    pub fn load_from(library: &str) -> core::result::Result<Self, DriverMissing> {
        // SAFETY: as above.
        unsafe { CudaDriver::load_first(&AMD, &[library]) }.map(Self)
    }

    /// The library it was loaded from.
    pub fn library(self) -> &'static str {
        self.0.library()
    }

    /// The version of HIP, which equals ROCm's, as in `(6, 3)`.
    pub const fn version(self) -> (c_int, c_int) {
        self.0.version()
    }

    /// The number of devices visible to this process.
    pub fn device_count(self) -> Result<u32> {
        self.0.device_count()
    }

    /// The number of streams and events created so far.
    pub fn made(self) -> CreatedCounts {
        self.0.made()
    }

    /// The calling thread's current device.
    pub fn current_device(self) -> Option<u32> {
        // The context that stands for a device is one more than its number.
        self.0.current_context().checked_sub(1).and_then(|device| u32::try_from(device).ok())
    }

    /// The CUDA driver object that calls its functions.
    pub const fn as_cuda(self) -> &'static CudaDriver {
        self.0
    }
}
