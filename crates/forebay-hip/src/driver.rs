//! HIP's runtime library, found at run time, loaded once and never unloaded.

use forebay_cuda::{CudaDriver, DriverMissing};

use crate::vendor::AMD;

/// Loads the system's library, or the one that [`HIP_DRIVER_VARIABLE`](crate::HIP_DRIVER_VARIABLE) names. Each is loaded
/// once and stays until the end of the process. Its version equals ROCm's.
pub fn load() -> Result<&'static CudaDriver, DriverMissing> {
    // SAFETY: HIP's functions do what CUDA's do, as its documentation says, or are translated.
    unsafe { CudaDriver::load_of(&AMD) }
}

/// Loads the library with this name or path.
pub fn load_from(library: &str) -> Result<&'static CudaDriver, DriverMissing> {
    // SAFETY: as above.
    unsafe { CudaDriver::load_first(&AMD, &[library]) }
}

/// The calling thread's current device.
pub fn current_device(driver: &CudaDriver) -> Option<u32> {
    // The context that stands for a device is one more than its number.
    driver.current_context().checked_sub(1).and_then(|device| u32::try_from(device).ok())
}
