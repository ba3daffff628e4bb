//! The CUDA device keeps the device contract, where there is one.
//!
//! `FOREBAY_CUDA_DRIVER` names another driver's library; the first device is the one tested.

mod fixture;

use std::process::ExitCode;

use fixture::cuda;
use forebay_cuda::CudaDriver;
use forebay_hal::conformance;
use libtest_mimic::{Arguments, Completion, Trial};

fn main() -> ExitCode {
    let missing = match CudaDriver::load() {
        Ok(driver) => match driver.device_count() {
            Ok(0) => "the CUDA driver shows this process no device".to_owned(),
            Ok(_) => return conformance::main(cuda(driver)),
            Err(error) => error.to_string(),
        },
        Err(missing) => missing.to_string(),
    };
    // One line in place of all cases, with the reason.
    let reason = format!("skipped: {missing}");
    let skipped =
        Trial::ignorable_test("conformance", move || Ok(Completion::ignored_with(reason)));
    libtest_mimic::run(&Arguments::from_args(), vec![skipped]).exit_code()
}
