//! Runs cases with one device each and a deadline, alone or as a test program.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use forebay_core::Bytes;
use libtest_mimic::{Arguments, Completion, Trial};

use super::bench::LastCall;
use super::verdict::{Step, ensure, ensure_equal};
use super::{Bench, Case, Failure, Fixture, Outcome, Requirement, cases};

/// No case takes this long unless something waits for ever. Cases take a second at most on the
/// slowest device seen; a gate gives up after three.
const DEADLINE: Duration = Duration::from_secs(20);

/// What [`Fixture::open`] is asked for: told once and plainly, not by whatever case runs out.
const LEAST_FREE: Bytes = Bytes::mib(256);

/// Runs one case on a device of its own, within twenty seconds.
pub fn run(case: &'static Case, fixture: &Arc<dyn Fixture>) -> Outcome {
    run_within(DEADLINE, case, fixture)
}

/// Runs one case on a device of its own, within `deadline`.
///
/// It runs in a thread, so that a device that blocks for ever fails the case and not the suite;
/// such a thread is left behind.
pub fn run_within(deadline: Duration, case: &'static Case, fixture: &Arc<dyn Fixture>) -> Outcome {
    if case.wants == Requirement::AddressChecks && !fixture.checks_addresses() {
        return Outcome::Skipped("addresses are not checked when a call is made".to_owned());
    }
    let (sender, receiver) = mpsc::channel();
    let steps = Arc::new(LastCall::default());
    let (fixture, theirs) = (Arc::clone(fixture), Arc::clone(&steps));
    let spawned = std::thread::Builder::new().name(case.name.to_owned()).spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| run_here(case, &fixture, theirs)))
            .unwrap_or_else(|panic| {
                Outcome::Failed(format!("a call panicked: {}", panic_text(&*panic)))
            });
        // The suite may have given up on us.
        let _ = sender.send(outcome);
    });
    if let Err(error) = spawned {
        return Outcome::Failed(format!("no thread to run the case in: {error}"));
    }
    receiver.recv_timeout(deadline).unwrap_or_else(|_| {
        let last = steps.name();
        Outcome::Failed(format!("not done after {} s; last seen in {last}", deadline.as_secs_f32()))
    })
}

fn run_here(case: &Case, fixture: &Arc<dyn Fixture>, steps: Arc<LastCall>) -> Outcome {
    let attempt = || -> Step<Option<String>> {
        let opening = |error| Failure::from(error).during("opening the device");
        let (device, partner, foreign) = match case.wants {
            Requirement::Pair => {
                let Some(pair) = fixture.pair() else {
                    return Ok(Some("there is no second device".to_owned()));
                };
                let (one, two) = pair.map_err(opening)?;
                (one, Some(two), None)
            }
            Requirement::ForeignStream => {
                let Some(given) = fixture.foreign_stream() else {
                    return Ok(Some("nobody else makes streams there".to_owned()));
                };
                let (device, raw) = given.map_err(opening)?;
                (device, None, Some(raw))
            }
            Requirement::Device | Requirement::AddressChecks => {
                (fixture.open().map_err(opening)?, None, None)
            }
        };
        let missing = case.needs.difference(device.descriptor().capabilities);
        if !missing.is_empty() {
            return Ok(Some(format!("the device lacks: {missing}")));
        }
        let free = device.memory_info().map_err(opening)?.free;
        ensure!(free >= LEAST_FREE, "the suite needs {LEAST_FREE} free, and the device has {free}");
        let context = fixture.current_context();
        let bench = Bench::new(device, partner, Arc::clone(fixture), steps).with_foreign(foreign);
        (case.run)(&bench)?;
        bench.finish()?;
        ensure_equal!("the thread's current context", fixture.current_context(), context);
        Ok(None)
    };
    match attempt() {
        Ok(None) => Outcome::Passed,
        Ok(Some(reason)) => Outcome::Skipped(reason),
        Err(failure) => Outcome::Failed(failure.to_string()),
    }
}

/// What a panic said.
fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&'static str>().copied())
        .unwrap_or("without a text")
}

/// The `main` of a device's test file: runs every case as a test, and shows skipped ones with the reason.
pub fn main(fixture: impl Fixture) -> ExitCode {
    let fixture: Arc<dyn Fixture> = Arc::new(fixture);
    let mut arguments = Arguments::from_args();
    // Cases compare figures of memory that all devices of a machine share.
    arguments.test_threads = arguments.test_threads.or(Some(1));
    let trials = cases()
        .into_iter()
        .map(|case| {
            let fixture = Arc::clone(&fixture);
            let name = fixture.name().to_owned();
            let test = Trial::ignorable_test(case.name, move || match run(case, &fixture) {
                Outcome::Passed => Ok(Completion::Completed),
                Outcome::Skipped(reason) => Ok(Completion::ignored_with(reason)),
                Outcome::Failed(text) => Err(text.into()),
            });
            test.with_kind(name)
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
