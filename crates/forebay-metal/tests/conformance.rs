//! The Metal device keeps the device contract, where there is one.

use std::process::ExitCode;
use std::sync::Arc;

use forebay_hal::conformance::{self, Fixture};
use forebay_hal::{Device, Result};
use libtest_mimic::{Arguments, Completion, Trial};

struct Metal;

impl Fixture for Metal {
    fn name(&self) -> &str {
        "metal"
    }

    fn open(&self) -> Result<Arc<dyn Device>> {
        Ok(forebay_metal::open(0)?)
    }
}

fn main() -> ExitCode {
    let missing = match forebay_metal::open(0) {
        Ok(_) => return conformance::main(Metal),
        Err(missing) => missing,
    };
    // One line in place of all cases, with the reason.
    let reason = format!("skipped: {missing}");
    let skipped =
        Trial::ignorable_test("conformance", move || Ok(Completion::ignored_with(reason)));
    libtest_mimic::run(&Arguments::from_args(), vec![skipped]).exit_code()
}
