//! How the conformance suite gets HIP devices.

#[path = "../../../forebay-cuda/tests/fixture/mod.rs"]
mod fixture;

use std::sync::Arc;

use fixture::Gpu;
use forebay_cuda::CudaDriver;
use forebay_hal::Device;
use forebay_hip::HipDevice;

/// The first devices of a HIP library.
pub(crate) fn hip(driver: &'static CudaDriver) -> Gpu {
    let open = |driver: &'static CudaDriver, ordinal| {
        let driver = forebay_hip::load_from(driver.library())?;
        Ok(HipDevice::open_with(driver, ordinal)? as Arc<dyn Device>)
    };
    Gpu { name: "hip", driver, open }
}
