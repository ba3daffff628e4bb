//! HIP's runtime library: found when the program runs, loaded once, never unloaded.

use core::ffi::c_int;

use forebay_cuda::{CreatedCounts, CudaDriver, DriverMissing};
use forebay_hal::Result;

use crate::vendor::AMD;

/// HIP's runtime library. Each is loaded once and stays until the end of the process.
#[derive(Clone, Copy, Debug)]
pub struct HipDriver(&'static CudaDriver);

impl HipDriver {
    /// The system's library, or the one that [`HIP_DRIVER_VARIABLE`](crate::HIP_DRIVER_VARIABLE) names.
    pub fn load() -> core::result::Result<Self, DriverMissing> {
        // SAFETY: HIP's functions do what CUDA's do, as its documentation says, or are translated.
        unsafe { CudaDriver::load_of(&AMD) }.map(Self)
    }

    /// The library of this name or path.
    pub fn load_from(library: &str) -> core::result::Result<Self, DriverMissing> {
        // SAFETY: as above.
        unsafe { CudaDriver::load_first(&AMD, &[library]) }.map(Self)
    }

    /// What it was loaded from.
    pub fn library(self) -> &'static str {
        self.0.library()
    }

    /// The version of HIP, which is that of ROCm, as `(6, 3)`.
    pub const fn version(self) -> (c_int, c_int) {
        self.0.version()
    }

    /// How many devices it shows to this process.
    pub fn device_count(self) -> Result<u32> {
        self.0.device_count()
    }

    /// How many streams and events were made of it so far.
    pub fn made(self) -> CreatedCounts {
        self.0.made()
    }

    /// The calling thread's current device.
    pub fn current_device(self) -> Option<u32> {
        // The context that stands for a device is one more than its number.
        self.0.current_context().checked_sub(1).and_then(|device| u32::try_from(device).ok())
    }

    /// The driver that works with its functions.
    pub const fn as_cuda(self) -> &'static CudaDriver {
        self.0
    }
}
