//! The behaviour of pools and buffers on whatever device is named, through the public interface alone, with the
//! data of every block checked by copies.
//!
//! A plain program that needs no files. `FOREBAY_TEST_DEVICES` says which devices, as
//! `host,sim,cuda:0`; without it the host and the simulated device. A device that is not there is a
//! case that was skipped, with the reason.

mod buffers;
mod figures;
mod handles;
mod programs;
mod refusals;
mod stage;

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
const CASES: [(&str, Case); 20] = [
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
    ("wrong frees are refused in every way", refusals::wrong_frees),
    ("wrong requests are refused", refusals::wrong_requests),
];

fn main() -> ExitCode {
    let named = std::env::var("FOREBAY_TEST_DEVICES").unwrap_or_else(|_| "host,sim".to_owned());
    let mut trials = Vec::new();
    for name in named.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        match Stage::open(name) {
            Ok(_) => trials.extend(CASES.iter().map(|&(case, run)| {
                let name = name.to_owned();
                // Each case has a device of its own, so that what one leaves is not another's.
                Trial::test(format!("{name}: {case}"), move || run(&Stage::open(&name)?))
            })),
            Err(missing) => {
                let completion = Completion::ignored_with(format!("skipped: {missing}"));
                trials.push(Trial::ignorable_test(name, move || Ok(completion)));
            }
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
