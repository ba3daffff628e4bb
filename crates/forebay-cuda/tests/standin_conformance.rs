//! All of the CUDA device's own code keeps the device contract over a driver made of the simulated
//! device, so that it is tested where there is no GPU.

mod fixture;
mod standin;

use std::process::ExitCode;

use fixture::Cuda;
use forebay_hal::conformance;
use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    match standin::Standin::load("conformance") {
        Ok(standin) => conformance::main(Cuda(standin.driver)),
        Err(text) => {
            let failed = Trial::test("standin", move || Err(Failed::from(text)));
            libtest_mimic::run(&Arguments::from_args(), vec![failed]).exit_code()
        }
    }
}
