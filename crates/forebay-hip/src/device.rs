//! Opens AMD devices. The device type is that of `forebay-cuda`, with HIP's functions.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use forebay_cuda::{CudaDevice, CudaDriver};
use forebay_hal::Result;
use forebay_sync::fork::PerProcess;

/// Opens AMD GPUs through HIP. It has no values: a HIP device is a [`CudaDevice`] whose [`driver`](CudaDevice::driver)
/// has HIP's functions, and whose kind is [`Hip`](forebay_hal::DeviceKind::Hip).
#[derive(Debug)]
pub enum HipDevice {}

impl HipDevice {
    /// Opens a device of the system's library by its number.
    pub fn open(ordinal: u32) -> Result<Arc<CudaDevice>> {
        Self::open_with(crate::load()?, ordinal)
    }

    /// Returns the process-wide device with that number: every caller gets the same object while any of them holds it,
    /// so all share the streams that one created or adopted.
    pub fn shared(ordinal: u32) -> Result<Arc<CudaDevice>> {
        static SHARED: PerProcess<BTreeMap<u32, Weak<CudaDevice>>> = PerProcess::new();
        SHARED.get_or_open(ordinal, || Self::open(ordinal))
    }

    /// Opens a device of a given library by its number.
    pub fn open_with(driver: &'static CudaDriver, ordinal: u32) -> Result<Arc<CudaDevice>> {
        CudaDevice::open_with(driver, ordinal)
    }
}
