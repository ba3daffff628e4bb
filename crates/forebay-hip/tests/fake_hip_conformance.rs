//! All of the HIP device keeps the device contract over the bridge and the fake CUDA driver, so that it is tested where
//! there is no GPU.

#[path = "../../forebay-cuda/tests/fake_driver/mod.rs"]
mod fake_driver;
mod fake_hip;
mod gpu;

use std::process::ExitCode;

use forebay_hal::conformance;
use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    match fake_hip::load("conformance") {
        Ok((_fake, driver)) => conformance::main(gpu::hip(driver)),
        Err(text) => {
            let failed = Trial::test("fake HIP", move || Err(Failed::from(text)));
            libtest_mimic::run(&Arguments::from_args(), vec![failed]).exit_code()
        }
    }
}
