//! Steps that run tests.

use crate::count;
use crate::dashboard::{Dashboard, broken, told};
use crate::hot_pair;
use crate::ignored;
use crate::processes::MachineTicks;
use crate::run::{Ran, Task};
use crate::setup::{ensure_hip, ensure_miri, ensure_opencl, ensure_tmux, has_subcommand};
use crate::step::{Outcome, Skip, Tally};
use crate::workplace::TESTED;

/// How many cases a random test tries in the inner loop.
const QUICK_CASES: &str = "32";

/// How Miri runs tests. proptest asks where it is, to keep failures it found; no test opens anything else. Threads take
/// turns ten times as often as they would: what one does between two steps of another is what there is to see.
const MIRI_FLAGS: &str = "-Zmiri-disable-isolation -Zmiri-preemption-rate=0.1";

/// How many cases a random test tries under Miri, which runs some hundred times slower.
const MIRI_CASES: &str = "4";

/// The most percent of the processors' time that others may take while something is timed.
const MAX_STOLEN: u64 = 5;

/// Unit and integration tests.
pub(super) fn tests(dashboard: &mut Dashboard<'_>) -> Result<Outcome, Outcome> {
    // Without these, their tests are skipped and say themselves what to install.
    for ensure in [ensure_hip, ensure_tmux, ensure_opencl] {
        let _ = ensure(dashboard);
    }
    run_tests(&format!("{TESTED} --tests"), dashboard, |task| task)
}

/// Unit tests, with fewer random cases unless the caller says how many. `quick` in `.config/nextest.toml` says which.
pub(super) fn quick_tests(dashboard: &mut Dashboard<'_>) -> Result<Outcome, Outcome> {
    let cases = std::env::var_os("PROPTEST_CASES").unwrap_or_else(|| QUICK_CASES.into());
    run_tests(&format!("{TESTED} --lib --bins"), dashboard, |task| {
        task.variable("PROPTEST_CASES", &cases).variable("NEXTEST_PROFILE", "quick")
    })
}

/// The tests of this program, of which all is built but the tests.
pub(super) fn xtask_tests(dashboard: &mut Dashboard<'_>) -> Result<Outcome, Outcome> {
    run_tests("--package xtask --tests", dashboard, |task| task)
}

/// Runs the tests of some crates, which are cargo's words.
fn run_tests(
    crates: &str,
    dashboard: &mut Dashboard<'_>,
    tune: impl Fn(Task) -> Task,
) -> Result<Outcome, Outcome> {
    if !has_subcommand("nextest", dashboard) {
        return libtest(
            &tune(dashboard.place.cargo(&format!("test {crates} --no-fail-fast"))),
            dashboard,
        );
    }
    // What passing tests print is asked for because some say there that they cannot run here.
    let words = format!(
        "nextest run {crates} --no-fail-fast --color never \
         --status-level skip --success-output immediate --failure-output immediate"
    );
    let task = tune(dashboard.place.cargo(&words)).variable("NEXTEST_HIDE_PROGRESS_BAR", "1");
    let ran = dashboard.run(&task);
    let counted = count::nextest(&ran.output).map(|(tally, mut skips)| {
        let titles = count::nextest_not_started(&ran.output);
        skips.extend(ignored::reasons(&titles, crates, dashboard));
        (tally, skips)
    });
    Ok(tested(&task, &ran, counted, &count::without_passed(&ran.output)))
}

/// The examples in the documentation.
pub(super) fn doc_tests(dashboard: &mut Dashboard<'_>) -> Result<Outcome, Outcome> {
    libtest(&dashboard.place.cargo(&format!("test --doc {TESTED} --no-fail-fast")), dashboard)
}

fn libtest(task: &Task, dashboard: &mut Dashboard<'_>) -> Result<Outcome, Outcome> {
    let ran = dashboard.run(task);
    Ok(tested(task, &ran, count::libtest(&ran.output), &ran.output))
}

/// A short soak of the pool, built as the tests are, which have built nearly all of it. One check: it holds where no
/// operation broke a rule.
pub(super) fn soak(dashboard: &mut Dashboard<'_>) -> Result<Outcome, Outcome> {
    let words = format!("test {TESTED} --bench=soak -- --operations 2000000");
    let output = dashboard.succeed(&dashboard.place.cargo(&words))?;
    let figures = output.lines().rfind(|line| line.ends_with("no violation"));
    Ok(Outcome::Holds(figures.unwrap_or_default().to_owned()))
}

/// What the threads of the pool share, in every order that the memory model allows. One check.
///
/// In a target directory of its own: the flag that swaps the atomics would have everything built anew
/// each time. Not optimised: the models take two seconds, building them faster many.
pub(super) fn loom(dashboard: &mut Dashboard<'_>) -> Result<Outcome, Outcome> {
    let words = "test -p forebay-sync --lib --target-dir target/loom loom_";
    let task = dashboard
        .place
        .cargo(words)
        .variable("RUSTFLAGS", "--cfg loom")
        .variable("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
        .variable("CARGO_PROFILE_DEV_DEBUG", "0");
    match count::libtest(&dashboard.succeed(&task)?) {
        Some((tally, _)) if tally.passed > 0 => {
            Ok(Outcome::Holds(format!("{} models under loom", tally.passed)))
        }
        _ => Err(Outcome::Broken(format!("\"{task}\" ran no models"))),
    }
}

/// The unsafe code under Miri, which sees undefined behaviour and leaks: the contract, and what the threads of a pool
/// share, which need no device. (`forebay-core` forbids unsafe code.) One check: the tests in it are counted where
/// they run at full speed.
pub(super) fn miri(dashboard: &mut Dashboard<'_>) -> Result<Outcome, Outcome> {
    ensure_miri(dashboard).map_err(Outcome::LeftOut)?;
    let words = "run nightly cargo miri test -p forebay-hal -p forebay-sync --lib --no-fail-fast";
    let task = dashboard
        .place
        .program("rustup", words)
        .variable("MIRIFLAGS", MIRI_FLAGS)
        // Tests panic on purpose, and naming the calls of a stack takes Miri seconds.
        .variable("RUST_BACKTRACE", "0")
        .variable("PROPTEST_CASES", MIRI_CASES);
    let ran = dashboard.run(&task);
    match count::libtest(&ran.output) {
        Some((tally, _)) if ran.succeeded() => {
            Ok(Outcome::Holds(format!("{} tests under Miri", tally.passed)))
        }
        _ if is_too_old(&ran.output) => Err(Outcome::LeftOut(
            "the nightly toolchain here is older than the Rust this workspace needs; \
             \"rustup update nightly\" helps"
                .to_owned(),
        )),
        _ => Err(broken(&task, &ran)),
    }
}

/// Whether cargo refused because the compiler is too old.
fn is_too_old(output: &str) -> bool {
    output.contains("is not supported by the following package")
        || output.contains("cannot be built because it requires rustc")
}

/// The time of a hot pair through C over that of Rust's. One check, to be made while nothing else runs. Where other
/// machines took processor time meanwhile, a ratio that is too high says nothing, and is said to.
pub(super) fn edge_time(dashboard: &mut Dashboard<'_>) -> Result<Outcome, Outcome> {
    let before = MachineTicks::now();
    let (ratio, holds) = hot_pair::edge_time(dashboard)?;
    let stolen =
        before.zip(MachineTicks::now()).map_or(0, |(before, after)| after.stolen_since(before));
    if holds {
        Ok(Outcome::Holds(ratio))
    } else if stolen > MAX_STOLEN {
        let meanwhile = format!("others took {stolen} % of the processors meanwhile");
        Err(Outcome::LeftOut(format!("{ratio}; but {meanwhile}")))
    } else {
        Err(Outcome::Broken(ratio))
    }
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
        _ => Outcome::Untested(output),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A command that says `text` and exits with `code`, and what comes of it.
    fn outcome(text: &str, code: u8) -> Outcome {
        let script = format!("printf '%s\\n' '{text}'; exit {code}");
        let task = Task::new("sh", "-c", Path::new("/")).with([script]);
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
        assert!(matches!(outcome(good, 101), Outcome::Untested(_)));
        assert!(matches!(outcome("error: could not compile", 101), Outcome::Untested(_)));
        assert!(matches!(outcome("nothing ran", 0), Outcome::Untested(_)));
    }

    #[test]
    fn an_old_nightly_is_told_from_a_broken_test() {
        assert!(is_too_old(
            "error: rustc 1.90.0-nightly is not supported by the following package:"
        ));
        assert!(!is_too_old("error: Undefined Behavior: out-of-bounds pointer"));
    }
}
