//! The pool on a CUDA driver, with long work on its streams: what is freed on a busy stream is not
//! written to by others early, nothing waits in secret, and nothing is left behind.
//!
//! Each case runs twice where the driver runs kernels: with kernels, loaded as text through the
//! driver and checked on the device, and with fills behind a task of the host. Without a GPU the
//! second runs on the driver made of the simulated device. A plain program that needs no files:
//!
//! * `FOREBAY_CUDA_DRIVER` names another driver's library.
//! * `FOREBAY_CYCLES` says how often pools are made and dropped, at the most in a minute.
//!
//! What was measured is printed as lines that begin with `record: `, each an object.
#![allow(clippy::print_stdout, reason = "figures are what it is run for")]

mod compressed;
#[path = "../oracle/trial/front.rs"]
#[allow(dead_code, reason = "the trials of the oracle use all of it")]
#[allow(clippy::expect_used, reason = "it is a test's, and this program does not look like one")]
mod front;
mod hands;
mod leftovers;
mod order;
mod own;
mod prompt;
mod room;
mod scattered;

use std::process::ExitCode;
use std::sync::Arc;

use forebay::CudaDevice;
use forebay::cuda::CudaDriver;
use hands::{Hands, Work};
use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// What a case gives.
type Step<T = ()> = Result<T, Failed>;

/// Fails a case with what it says, unless something holds.
macro_rules! ensure {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err(libtest_mimic::Failed::from(format!($($words)+)));
        }
    };
}
use ensure;

/// A driver to test with, and whether there is hardware behind it.
#[derive(Clone, Copy)]
struct Found {
    driver: &'static CudaDriver,
    real: bool,
}

/// The system's driver or the one that is named; else the fake driver that cargo has built beside the
/// test, or a folder up.
fn find() -> Result<Found, String> {
    const FAKE_DRIVER: &str = "libforebay_cuda_fake_driver.so";
    let missing = match CudaDriver::load() {
        Ok(driver) => {
            let real = !driver.library().ends_with(FAKE_DRIVER);
            return match driver.device_count() {
                Ok(0) => Err("the CUDA driver shows this process no device".to_owned()),
                Ok(_) => Ok(Found { driver, real }),
                Err(error) => Err(error.to_string()),
            };
        }
        Err(missing) => missing.to_string(),
    };
    let test = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut folders = test.ancestors().skip(1).take(2).map(|folder| folder.join(FAKE_DRIVER));
    let path = folders.find(|path| path.exists()).ok_or(missing)?;
    let driver = CudaDriver::load_from(&path.display().to_string());
    driver.map(|driver| Found { driver, real: false }).map_err(|missing| missing.to_string())
}

type Case = fn(&Hands) -> Step;

/// Every case that is about work on streams.
const CASES: [(&str, Case); 16] = [
    ("what is freed on a busy stream waits for it", order::freed),
    ("with the wait left out that is seen to fail", order::freed_without_wait),
    ("what another stream uses waits for it", order::used_elsewhere),
    ("with the use not recorded that is seen to fail", order::used_in_secret),
    ("moved pages wait for the stream they were freed on", order::moved),
    ("with the wait left out moved pages are seen to fail", order::moved_without_wait),
    ("what a forgotten stream freed waits for it", order::forgotten),
    ("with the record left out that is seen to fail too", order::forgotten_without_record),
    ("a request that takes another stream's memory returns at once", order::at_once),
    ("what a thread frees on its own stream waits for it", own::freed),
    ("what a thread leaves on its own stream waits for it", own::ended),
    ("trim takes no pages from under a thread's own stream", own::trimmed),
    ("a refused request leaves others their memory", room::refused),
    ("trim waits without holding up a request that grows", room::grown_meanwhile),
    ("no call waits while work runs elsewhere", prompt::no_hidden_wait),
    ("no call waits while a pool at its limit moves pages", prompt::no_hidden_wait_at_the_limit),
];

fn trial(name: &str, found: Found, work: Work, case: Case) -> Trial {
    Trial::test(format!("{work}: {name}"), move || {
        let device = CudaDevice::open_with(found.driver, 0)?;
        case(&Hands::new(&device, found.real, work)?)
    })
}

fn ignored(name: &str, reason: String) -> Trial {
    let completion = Completion::ignored_with(format!("skipped: {reason}"));
    Trial::ignorable_test(name, move || Ok(completion))
}

fn main() -> ExitCode {
    let mut trials = Vec::new();
    match find() {
        Ok(found) => {
            let table = found.driver.table();
            // The fake driver knows no kernels but forebay's own.
            let runs_kernels = found.real
                && table.module_load.is_some()
                && table.module_get_function.is_some()
                && table.launch_kernel.is_some();
            if runs_kernels {
                let kernels = CASES.iter();
                trials.extend(kernels.map(|&(name, case)| trial(name, found, Work::Kernels, case)));
            } else {
                let reason =
                    format!("{} runs no kernels of the tests' own", found.driver.library());
                trials.push(ignored("kernels", reason));
            }
            trials.extend(CASES.iter().map(|&(name, case)| trial(name, found, Work::Fills, case)));
            trials.extend([
                Trial::test("compressed data is decoded by the device", move || {
                    compressed::arrives(found.driver)
                }),
                Trial::test("damaged data is told by the device as by the host", move || {
                    compressed::damaged(found.driver)
                }),
            ]);
            trials.push(Trial::test("many small copies at once arrive", move || {
                scattered::arrives(found.driver)
            }));
            if found.real {
                trials.push(Trial::test("how fast many small copies are", move || {
                    scattered::figures(found.driver)
                }));
            }
            trials.push(if found.real {
                Trial::test("how fast compressed data is decoded", move || {
                    compressed::figures(found.driver)
                })
            } else {
                Trial::test("the host decodes where the driver refuses", move || {
                    compressed::refused(found.driver)
                })
            });
            trials.push(Trial::test("nothing is left behind", move || {
                leftovers::nothing_is_left(found.driver, found.real)
            }));
        }
        Err(missing) => trials.push(ignored("kernels", missing)),
    }
    // One after another: times are measured, and all memory of the device is counted.
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// The device as the pool takes it.
fn as_device(device: &Arc<CudaDevice>) -> Arc<dyn forebay::Device> {
    Arc::<CudaDevice>::clone(device)
}
