//! Steps that run tests.

use std::time::Duration;

use super::{Desk, broken, told};
use crate::count;
use crate::ignored;
use crate::run::{Ran, Task};
use crate::setup::{ensure_hip, ensure_miri, ensure_opencl, ensure_tmux, has_subcommand};
use crate::soak::{self, Build, Soak};
use crate::step::{Outcome, Skip, Tally};
use crate::workplace::{TESTED, Workplace};

/// How long building and running all tests may be silent, on two cores.
const ALL_TESTS: Duration = Duration::from_secs(1800);

/// How long Miri may be silent, building its standard library included.
const MIRI: Duration = Duration::from_secs(900);

/// How many cases a random test tries in the inner loop.
const QUICK_CASES: &str = "32";

/// How Miri runs tests. proptest asks where it is, to keep failures it found; no test opens anything else. Threads take
/// turns ten times as often as they would: what one does between two steps of another is what there is to see.
const MIRI_FLAGS: &str = "-Zmiri-disable-isolation -Zmiri-preemption-rate=0.1";

/// How many cases a random test tries under Miri, which runs some hundred times slower.
const MIRI_CASES: &str = "4";

/// Unit and integration tests.
pub(super) fn tests(place: &Workplace, desk: &mut Desk<'_>) -> Outcome {
    ensure_hip(place, &mut |task| desk.run_aside(task));
    let _ = ensure_tmux(place, &mut |task| desk.run_aside(task));
    // Without it the tests of OpenCL devices are skipped, and say themselves what to install.
    let _ = ensure_opencl(place, &mut |task| desk.run_aside(task));
    run_tests(&format!("{TESTED} --tests"), place, desk, |task| task)
}

/// Unit tests, with fewer random cases unless the caller says how many. `quick` in `.config/nextest.toml` says which.
pub(super) fn quick_tests(place: &Workplace, desk: &mut Desk<'_>) -> Outcome {
    let cases = std::env::var_os("PROPTEST_CASES").unwrap_or_else(|| QUICK_CASES.into());
    let crates = format!("{TESTED} --lib --bins");
    run_tests(&crates, place, desk, |task| {
        task.variable("PROPTEST_CASES", &cases).variable("NEXTEST_PROFILE", "quick")
    })
}

/// The tests of this program, of which all is built but the tests.
pub(super) fn xtask_tests(place: &Workplace, desk: &mut Desk<'_>) -> Outcome {
    run_tests("--package xtask --tests", place, desk, |task| task)
}

/// Runs the tests of some crates, which are cargo's words.
fn run_tests(
    crates: &str,
    place: &Workplace,
    desk: &mut Desk<'_>,
    tune: impl Fn(Task) -> Task,
) -> Outcome {
    if !has_subcommand(place, "nextest", &mut |task| desk.run_aside(task)) {
        let words = format!("test {crates} --no-fail-fast");
        let task = tune(place.cargo(words.split_whitespace(), ALL_TESTS));
        let ran = desk.run(&task);
        return tested(&task, &ran, count::libtest(&ran.output), &ran.output);
    }
    // What passing tests print is asked for because some say there that they cannot run here.
    let words = format!(
        "nextest run {crates} --no-fail-fast --color never \
         --status-level skip --success-output immediate --failure-output immediate"
    );
    let task = tune(place.cargo(words.split_whitespace(), ALL_TESTS))
        .variable("NEXTEST_HIDE_PROGRESS_BAR", "1");
    let ran = desk.run(&task);
    let counted = count::nextest(&ran.output).map(|(tally, mut skips)| {
        let titles = count::nextest_not_started(&ran.output);
        skips.extend(ignored::reasons(&titles, crates, place, &mut |task| desk.run_aside(task)));
        (tally, skips)
    });
    tested(&task, &ran, counted, &count::without_passed(&ran.output))
}

/// The examples in the documentation.
pub(super) fn doc_tests(place: &Workplace, desk: &mut Desk<'_>) -> Outcome {
    let words = format!("test --doc {TESTED} --no-fail-fast");
    let task = place.cargo(words.split_whitespace(), ALL_TESTS);
    let ran = desk.run(&task);
    tested(&task, &ran, count::libtest(&ran.output), &ran.output)
}

/// A short soak of the pool. One check: it holds where no operation broke a rule.
pub(super) fn soak(place: &Workplace, desk: &mut Desk<'_>) -> Outcome {
    let task = Soak::SHORT.task(Build::AsTests, place);
    let ran = desk.run(&task);
    match soak::figures(&ran.output) {
        Some(figures) if ran.succeeded() => Outcome::Holds { note: figures.to_owned() },
        _ => broken(&task, &ran),
    }
}

/// What runs under Miri: the contract, and what the threads of a pool share, which has unsafe code and needs
/// no device. (`forebay-core` forbids unsafe code, and has nothing for it to see.)
const UNDER_MIRI: &str =
    "run nightly cargo miri test -p forebay-hal -p forebay-sync --lib --no-fail-fast";

/// The unsafe code under Miri, which sees undefined behaviour and leaks. One check: the tests in it
/// are counted where they run at full speed.
pub(super) fn miri(place: &Workplace, desk: &mut Desk<'_>) -> Outcome {
    if let Err(reason) = ensure_miri(place, &mut |task| desk.run_aside(task)) {
        return Outcome::LeftOut { reason };
    }
    let task = place
        .rustup(UNDER_MIRI.split_whitespace(), MIRI)
        .variable("MIRIFLAGS", MIRI_FLAGS)
        // Tests panic on purpose, and naming the calls of a stack takes Miri seconds.
        .variable("RUST_BACKTRACE", "0")
        .variable("PROPTEST_CASES", MIRI_CASES);
    let ran = desk.run(&task);
    match count::libtest(&ran.output) {
        Some((tally, _)) if ran.succeeded() => {
            Outcome::Holds { note: format!("{} tests under Miri", tally.passed) }
        }
        _ if is_too_old(&ran.output) => Outcome::LeftOut {
            reason: "the nightly toolchain here is older than the Rust this workspace needs; \
                     \"rustup update nightly\" helps"
                .to_owned(),
        },
        _ => broken(&task, &ran),
    }
}

/// Whether cargo refused because the compiler is too old.
fn is_too_old(output: &str) -> bool {
    output.contains("is not supported by the following package")
        || output.contains("cannot be built because it requires rustc")
}

/// What came of a command that runs tests.
pub(super) fn tested(
    task: &Task,
    ran: &Ran,
    counted: Option<(Tally, Vec<Skip>)>,
    shown: &str,
) -> Outcome {
    let output = told(task, ran, shown);
    match counted {
        Some((tally, skips)) if ran.succeeded() || tally.failed > 0 => {
            Outcome::Tested { tally, skips, output }
        }
        // No count, or a failure that no test owns: a build that broke, a runner that died.
        _ => Outcome::Untested { output },
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A command that says `text` and exits with `code`, and what comes of it.
    fn outcome(text: &str, code: u8) -> Outcome {
        let script = format!("printf '%s\\n' '{text}'; exit {code}");
        let task = Task::new("sh", ["-c", &script], Path::new("/"), Duration::from_secs(30));
        let ran = task.run(&mut |_, _| {});
        tested(&task, &ran, count::libtest(&ran.output), &ran.output)
    }

    #[test]
    fn a_count_is_believed_only_with_the_exit_code() {
        let good = "test result: ok. 2 passed; 0 failed; 0 ignored";
        let bad = "test result: FAILED. 1 passed; 1 failed; 0 ignored";
        let tally = |passed, failed| Tally { passed, failed, skipped: 0 };
        assert!(matches!(outcome(good, 0), Outcome::Tested { tally: t, .. } if t == tally(2, 0)));
        assert!(matches!(outcome(bad, 101), Outcome::Tested { tally: t, .. } if t == tally(1, 1)));
        // A binary that crashed prints no result of its own: the sum of the others is no success.
        assert!(matches!(outcome(good, 101), Outcome::Untested { .. }));
        assert!(matches!(outcome("error: could not compile", 101), Outcome::Untested { .. }));
        assert!(matches!(outcome("nothing ran", 0), Outcome::Untested { .. }));
    }

    #[test]
    fn an_old_nightly_is_told_from_a_broken_test() {
        assert!(is_too_old(
            "error: rustc 1.90.0-nightly is not supported by the following package:"
        ));
        assert!(!is_too_old("error: Undefined Behavior: out-of-bounds pointer"));
    }
}
