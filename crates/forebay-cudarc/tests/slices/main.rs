//! Slices of forebay's memory in cudarc's hands, over a CUDA driver: the fake one, which cudarc is made to load, or the
//! system's where `FOREBAY_TEST_DEVICES` names `cuda:0`.

#![allow(clippy::unwrap_used, reason = "what a test needs and does not get fails it")]

mod driver;
mod order;
mod ownership;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use driver::Driver;

/// A case, and whether it sets faults and so has to run alone, on the fake driver.
type Case = (&'static str, fn(), Needs);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Any,
    FakeDriverAlone,
}

fn main() -> ExitCode {
    let driver = match driver::start() {
        Ok(driver) => driver,
        Err(reason) => {
            let reason = format!("skipped: {reason}");
            let skipped =
                Trial::ignorable_test("slices", move || Ok(Completion::ignored_with(reason)));
            return libtest_mimic::run(&Arguments::from_args(), vec![skipped]).exit_code();
        }
    };
    let cases = [order::CASES, ownership::CASES].concat();
    let trials = cases.into_iter().map(|case| trial(case, driver)).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn trial((name, act, needs): Case, driver: &'static Driver) -> Trial {
    Trial::ignorable_test(name, move || {
        if needs == Needs::FakeDriverAlone && !driver.is_fake() {
            let reason = "skipped: only the fake driver fails when told to";
            return Ok(Completion::ignored_with(reason));
        }
        let run = || std::panic::catch_unwind(act).map_err(said);
        match needs {
            Needs::Any => driver.beside_others(run),
            Needs::FakeDriverAlone => driver.alone(run),
        }?;
        Ok(Completion::Completed)
    })
}

fn said(panic: Box<dyn std::any::Any + Send>) -> Failed {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
    text.unwrap_or_default().into()
}
