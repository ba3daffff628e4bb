//! The behaviour of pools, buffers and transfers on whatever device is named, through the public interface alone, with
//! the data of every block checked by copies.
//!
//! A plain program that needs no files. `FOREBAY_TEST_DEVICES` says which devices, as `host,sim,cuda:0`. Without it all
//! that a machine without a GPU can have: the host, the simulated device, the fake CUDA driver, HIP over it, and OpenCL
//! where a platform is installed. A device that is not there is a case that was skipped, with the reason.

mod buffers;
mod figures;
mod handles;
mod programs;
mod refusals;
mod stage;
mod transfers;

use std::path::PathBuf;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use stage::Stage;

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

type Case = fn(&Stage) -> Step;

/// Every case.
const CASES: [(&str, Case); 27] = [
    ("random programs on several streams keep their data", programs::streams),
    ("random programs on several threads keep their data", programs::threads),
    ("a stream gets what another freed, with its own data", programs::across_streams),
    ("a block used on another stream comes back after it", programs::used_elsewhere),
    ("more streams than are told apart keep their data", programs::many_streams),
    ("pages move and what lies beside them stays", programs::moved_pages),
    ("a limit is kept and its error has figures", figures::limit),
    ("what was asked to let go is asked before an error", figures::let_go),
    ("trim gives back what is free", figures::trim),
    ("collect gives back what was not needed", figures::collect),
    ("counts add up", figures::counts),
    ("arrays and owned blocks carry data and go back", handles::arrays),
    ("an arena hands out parts and takes all back", handles::arena),
    ("the process has one pool for a device", handles::process_pool),
    ("a buffer is coherent whichever side writes", buffers::coherent),
    ("managed memory is one replica, or emulated", buffers::managed),
    ("a field of every structure is copied", buffers::fields),
    ("pinned memory is reused after its copies alone", buffers::pinned),
    ("transfers of every size arrive, both ways", transfers::sizes),
    ("pinned memory is transferred without a detour", transfers::pinned),
    ("a region is transferred, and nothing beside it", transfers::region),
    ("of a batch each item arrives or has its error", transfers::batch),
    ("files go to the device and come back", transfers::file),
    ("uploads and downloads go on at once", transfers::both_directions),
    ("a cancelled transfer gives its memory back", transfers::cancelled),
    ("wrong frees are refused in every way", refusals::wrong_frees),
    ("wrong requests are refused", refusals::wrong_requests),
];

/// Why a case cannot run on a device, if it cannot.
fn reason_to_skip(case: Case, stage: &Stage) -> Option<&'static str> {
    let pins: [Case; 8] = [
        buffers::pinned,
        transfers::sizes,
        transfers::pinned,
        transfers::region,
        transfers::batch,
        transfers::file,
        transfers::both_directions,
        transfers::cancelled,
    ];
    let is_pinning = pins.iter().any(|&other| core::ptr::fn_addr_eq(case, other));
    (is_pinning && stage.device.pinned_memory().is_none())
        .then_some("the device has no pinned memory, which transfers go through")
}

/// A library that cargo has built for the tests: beside this one, or a folder up.
fn built(file: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    let mut folders = test.ancestors().skip(1).take(2).map(|folder| folder.join(file));
    folders.find(|path| path.exists()).unwrap_or_else(|| file.into())
}

/// All devices that need no GPU, with the drivers they need; drivers that are named already stay.
fn without_gpu() -> String {
    for (variable, file) in [
        ("FOREBAY_CUDA_DRIVER", "libforebay_cuda_fake_driver.so"),
        ("FOREBAY_HIP_DRIVER", "libforebay_hip_bridge.so"),
    ] {
        if std::env::var_os(variable).is_none() {
            // SAFETY: no other thread runs yet.
            unsafe { std::env::set_var(variable, built(file)) };
        }
    }
    "host,sim,cuda:0,hip:0,opencl:0".to_owned()
}

fn main() -> ExitCode {
    let named = std::env::var("FOREBAY_TEST_DEVICES").unwrap_or_else(|_| without_gpu());
    let mut trials = Vec::new();
    for name in named.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        match Stage::open(name) {
            Ok(_) => trials.extend(CASES.iter().map(|&(case, run)| {
                let name = name.to_owned();
                Trial::ignorable_test(format!("{name}: {case}"), move || {
                    // Each case has a device of its own, so that what one leaves is not another's.
                    let stage = Stage::open(&name)?;
                    if let Some(reason) = reason_to_skip(run, &stage) {
                        return Ok(Completion::ignored_with(format!("skipped: {reason}")));
                    }
                    run(&stage).map(|()| Completion::Completed)
                })
            })),
            Err(missing) => {
                let completion = Completion::ignored_with(format!("skipped: {missing}"));
                trials.push(Trial::ignorable_test(name, move || Ok(completion)));
            }
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
