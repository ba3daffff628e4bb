//! The HIP device keeps the device contract, where there is one.
//!
//! `FOREBAY_HIP_DRIVER` names another library, such as the bridge over a CUDA driver; the first device is the one tested.

mod gpu;

use std::process::ExitCode;

use forebay_hal::conformance;
use libtest_mimic::{Arguments, Completion, Trial};

fn main() -> ExitCode {
    let missing = match forebay_hip::load() {
        Ok(driver) => match driver.device_count() {
            Ok(0) => "HIP shows this process no device".to_owned(),
            Ok(_) => return conformance::main(gpu::hip(driver)),
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
