//! How the conformance suite gets HIP devices.

#[path = "../../../forebay-cuda/tests/fixture/mod.rs"]
mod fixture;

use std::sync::Arc;

use fixture::Gpu;
use forebay_cuda::CudaDriver;
use forebay_hal::Device;
use forebay_hip::{HipDevice, HipDriver};

/// The first devices of a HIP library.
pub(crate) fn hip(driver: HipDriver) -> Gpu {
    let open = |driver: &'static CudaDriver, ordinal| {
        let driver = HipDriver::load_from(driver.library())?;
        Ok(HipDevice::open_with(driver, ordinal)? as Arc<dyn Device>)
    };
    Gpu { name: "hip", driver: driver.as_cuda(), open }
}
