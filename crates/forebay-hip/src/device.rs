//! Opening AMD's devices. The device is the one of `forebay-cuda`, with HIP's functions.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use forebay_cuda::CudaDevice;
use forebay_hal::Result;
use forebay_sync::fork::PerProcess;

use crate::HipDriver;

/// Opens AMD GPUs through HIP. It has no values:
/// a HIP device is a [`CudaDevice`] whose [`driver`](CudaDevice::driver) has HIP's functions, and whose kind is
/// [`Hip`](forebay_hal::DeviceKind::Hip).
#[derive(Debug)]
pub enum HipDevice {}

impl HipDevice {
    /// Opens a device of the system's library by its number.
    pub fn open(ordinal: u32) -> Result<Arc<CudaDevice>> {
        Self::open_with(HipDriver::load()?, ordinal)
    }

    /// The device of that number for the whole process: the same object for everybody who asks here, as long as anyone has
    /// it, so that the streams one made or adopted are known to all.
    pub fn shared(ordinal: u32) -> Result<Arc<CudaDevice>> {
        static SHARED: PerProcess<BTreeMap<u32, Weak<CudaDevice>>> = PerProcess::new();
        SHARED.get_or_open(ordinal, || Self::open(ordinal))
    }

    /// Opens a device of a given library by its number.
    pub fn open_with(driver: HipDriver, ordinal: u32) -> Result<Arc<CudaDevice>> {
        CudaDevice::open_with(driver.as_cuda(), ordinal)
    }
}
