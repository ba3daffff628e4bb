//! OpenCL devices keep the device contract, where there are any.
//!
//! `FOREBAY_OPENCL_DEVICE` is the number of the device that is tested, 0 without it.

use std::process::ExitCode;
use std::sync::Arc;

use forebay_hal::conformance::{self, Fixture};
use forebay_hal::{Device, Result};
use forebay_opencl::{OpenClDevice, OpenClDriver, OpenClMissing, OpenClOptions};
use libtest_mimic::{Arguments, Completion, Trial};

struct OpenCl {
    ordinal: u32,
    options: OpenClOptions,
}

impl Fixture for OpenCl {
    fn name(&self) -> &str {
        "opencl"
    }

    fn open(&self) -> Result<Arc<dyn Device>> {
        let device = OpenClDevice::open_with(self.ordinal, self.options)?;
        Ok(device)
    }
}

fn main() -> ExitCode {
    let ordinal = std::env::var("FOREBAY_OPENCL_DEVICE").ok();
    let ordinal = ordinal.map_or(Ok(0), |number| number.parse());
    let missing = match (OpenClDriver::load(), ordinal) {
        (Ok(driver), Ok(ordinal)) if driver.device_count() > 0 => {
            return conformance::main(OpenCl { ordinal, options: OpenClOptions::new() });
        }
        (Ok(driver), _) => {
            OpenClMissing::Device { platforms: driver.platforms().to_vec() }.to_string()
        }
        (Err(missing), _) => missing.to_string(),
    };
    // One line in place of all cases, with the reason.
    let reason = format!("skipped: {missing}");
    let skipped =
        Trial::ignorable_test("conformance", move || Ok(Completion::ignored_with(reason)));
    libtest_mimic::run(&Arguments::from_args(), vec![skipped]).exit_code()
}
