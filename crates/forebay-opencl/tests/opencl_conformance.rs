//! OpenCL devices keep the device contract, where there are any: with buffers, with shared virtual memory as plain
//! memory, with out-of-order queues, and with ordinary memory copied by the driver and by threads.
//!
//! `FOREBAY_OPENCL_DEVICE` is the number of the one device to test; without it, every device is. With
//! `FOREBAY_OPENCL_MODE` (`svm`, `out-of-order`, `driver` or `thread`) every case is a test of devices that are opened so.

use std::process::ExitCode;
use std::sync::Arc;

use forebay_hal::conformance::{self, Case, Fixture, Outcome};
use forebay_hal::{CallGroup, Device, Result};
use forebay_opencl::{HostCopies, OpenClDevice, OpenClDriver, OpenClOptions};
use libtest_mimic::{Arguments, Completion, Trial};

/// A device and how it is opened.
struct OpenCl {
    name: String,
    ordinal: u32,
    options: OpenClOptions,
}

impl Fixture for OpenCl {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self) -> Result<Arc<dyn Device>> {
        let device = OpenClDevice::open_with(self.ordinal, self.options)?;
        Ok(device)
    }
}

/// The cases of a device, each a test; then each other way to open it, a test with the cases that it changes
/// anything for.
fn trials(ordinal: u32) -> Vec<Trial> {
    let fixture = |mode: &str, options| -> Arc<dyn Fixture> {
        Arc::new(OpenCl { name: format!("opencl:{ordinal}{mode}"), ordinal, options })
    };
    let svm = fixture("-svm", OpenClOptions::new().svm(true));
    let out_of_order = fixture("-out-of-order", OpenClOptions::new().out_of_order(true));
    let driver = fixture("-driver", OpenClOptions::new().host_copies(HostCopies::Driver));
    let thread = fixture("-thread", OpenClOptions::new().host_copies(HostCopies::Thread));
    let plain = match std::env::var("FOREBAY_OPENCL_MODE").as_deref() {
        Ok("svm") => Arc::clone(&svm),
        Ok("out-of-order") => Arc::clone(&out_of_order),
        Ok("driver") => Arc::clone(&driver),
        Ok("thread") => Arc::clone(&thread),
        _ => fixture("", OpenClOptions::new()),
    };
    let each = conformance::cases().into_iter().map(|case| {
        let plain = Arc::clone(&plain);
        let name = format!("{}/{}", plain.name(), case.name);
        Trial::ignorable_test(name, move || match conformance::run(case, &plain) {
            Outcome::Passed => Ok(Completion::Completed),
            Outcome::Skipped(reason) => Ok(Completion::ignored_with(reason)),
            Outcome::Failed(text) => Err(text.into()),
        })
    });
    let orders = |case: &Case| matches!(case.group, CallGroup::Streams | CallGroup::Transfers);
    let places = |case: &Case| {
        matches!(case.group, CallGroup::Memory | CallGroup::Transfers | CallGroup::Info)
    };
    let others = [
        together(svm, places),
        together(out_of_order, orders),
        together(driver, orders),
        together(thread, orders),
    ];
    each.chain(others).collect()
}

/// Several cases as one test.
fn together(fixture: Arc<dyn Fixture>, wanted: fn(&Case) -> bool) -> Trial {
    Trial::ignorable_test(fixture.name().to_owned(), move || {
        if let Err(error) = fixture.open() {
            return Ok(Completion::ignored_with(format!("skipped: {error}")));
        }
        let (mut passed, mut failed) = (0, String::new());
        for case in conformance::cases().into_iter().filter(|case| wanted(case)) {
            match conformance::run(case, &fixture) {
                Outcome::Passed => passed += 1,
                Outcome::Skipped(_) => {}
                Outcome::Failed(text) => failed += &format!("{}: {text}\n", case.name),
            }
        }
        // Far fewer would mean that the cases were not run.
        if failed.is_empty() && passed >= 60 {
            return Ok(Completion::Completed);
        }
        Err(format!("{passed} cases passed; failures:\n{failed}").into())
    })
}

fn skipped(name: String, reason: String) -> Trial {
    let reason = format!("skipped: {reason}");
    Trial::ignorable_test(name, move || Ok(Completion::ignored_with(reason)))
}

fn main() -> ExitCode {
    let asked = std::env::var("FOREBAY_OPENCL_DEVICE").ok();
    let devices = match (OpenClDriver::load(), asked.as_deref().map(str::parse)) {
        (_, Some(Ok(ordinal))) => Ok(vec![ordinal]),
        (_, Some(Err(_))) => Err(format!("FOREBAY_OPENCL_DEVICE is no number: {asked:?}")),
        (Ok(driver), None) if driver.device_count() == 0 => {
            Err(format!("{} shows no device", driver.platforms().join(", ")))
        }
        (Ok(driver), None) => Ok(driver.devices().iter().map(|device| device.ordinal).collect()),
        (Err(missing), None) => Err(missing.to_string()),
    };
    let trials = match devices {
        Ok(ordinals) => ordinals.into_iter().flat_map(trials).collect(),
        Err(reason) => vec![skipped("conformance".to_owned(), reason)],
    };
    let mut arguments = Arguments::from_args();
    // Cases compare figures of memory that all devices of a number share.
    arguments.test_threads = arguments.test_threads.or(Some(1));
    libtest_mimic::run(&arguments, trials).exit_code()
}
