//! All of the CUDA device's own code keeps the device contract over a driver made of the simulated
//! device, so that it is tested where there is no GPU.

mod fake_driver;
mod fixture;

use std::process::ExitCode;

use fixture::cuda;
use forebay_hal::conformance;
use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    match fake_driver::FakeDriver::load("conformance") {
        Ok(fake) => conformance::main(cuda(fake.driver)),
        Err(text) => {
            let failed = Trial::test("fake driver", move || Err(Failed::from(text)));
            libtest_mimic::run(&Arguments::from_args(), vec![failed]).exit_code()
        }
    }
}
