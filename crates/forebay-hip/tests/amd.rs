//! AMD's own library, as a distribution installs it: it is loaded and asked for devices.

use std::process::ExitCode;

use forebay_hal::Error;
use forebay_hip::{AMD, DriverMissing, HipDevice};
use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// Opens the first device, or looks at why there is none.
fn opens_or_says_why() -> Result<Completion, Failed> {
    // What `FOREBAY_HIP_DRIVER` names is tested elsewhere.
    let loaded = AMD.libraries.iter().map(|library| forebay_hip::load_from(library));
    let mut found = loaded.filter(|loaded| !matches!(loaded, Err(DriverMissing::Library { .. })));
    let Some(found) = found.next() else {
        let names = AMD.libraries.join(", ");
        let reason = format!("none of {names} is here: \"apt-get install libamdhip64-5\"");
        return Ok(Completion::ignored_with(reason));
    };
    match found {
        Ok(driver) => {
            let (major, minor) = driver.version();
            if !(5..=7).contains(&major) {
                return Err(format!("HIP {major}.{minor}").into());
            }
            if driver.device_count()? > 0 {
                HipDevice::open_with(driver, 0)?;
            }
        }
        // No AMD device: every function was found, and the answer says what to look at.
        Err(missing) => {
            let text = missing.to_string();
            let is_start = matches!(missing, DriverMissing::Start { .. });
            let is_unsupported = matches!(Error::from(missing), Error::Unsupported { .. });
            let says_why = text.contains("there is no AMD device this process may see");
            if !is_start || !is_unsupported || !says_why {
                return Err(text.into());
            }
        }
    }
    Ok(Completion::Completed)
}

fn main() -> ExitCode {
    let name = "AMD's library opens a device or says why there is none";
    let trial = Trial::ignorable_test(name, opens_or_says_why);
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}
