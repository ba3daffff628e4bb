//! The plan: which steps there are, in which order, and what each means.
//!
//! ```text
//!   main    ── format ─ clippy ─ documentation ─ ... ─ tests ─┬─ python ──────────────────┐
//!   built                                                     └─ doc tests ─ soak ─ ... ──┤
//!   beside  ── instructions ─ loom ─ miri ───────────────────────────────────────────────┤
//!   alone                                                                                 └─ C edge time
//! ```
//!
//! The main steps share cargo's build folder, and so run one after another, but for those at the end, which find nearly all
//! built and build hardly anything. The steps beside them have build
//! folders of their own and use one core only, mostly: linking with LTO, valgrind, Miri. They run at a lower
//! priority, so they take mostly the time in which a main step leaves a core idle; not at the lowest, at which they
//! would not end in time beside steps that use both cores. What is timed runs alone, after both.

mod python;
mod sources;
mod suites;

use std::thread;
use std::time::Instant;

use crate::dashboard::Dashboard;
use crate::hot_pair;
use crate::screen::{BAD, QUIET, Screen, styled};
use crate::step::{Outcome, Report, summarize};
use crate::workplace::Workplace;

pub(crate) use sources::show_layers;

/// What a step does. What keeps it from going on is its outcome too.
type Act = fn(&mut Dashboard<'_>) -> Result<Outcome, Outcome>;

/// One step of the plan.
struct Step {
    name: &'static str,
    /// Whether it makes no sense where the tests did not even build.
    needs_build: bool,
    act: Act,
}

/// A step that runs whatever became of those before it.
const fn step(name: &'static str, act: Act) -> Step {
    Step { name, needs_build: false, act }
}

/// A step that makes no sense where the tests did not even build.
const fn built(name: &'static str, act: Act) -> Step {
    Step { name, needs_build: true, act }
}

/// Which steps, in which order.
#[derive(Default)]
pub(crate) struct Plan {
    /// One after another.
    main: Vec<Step>,
    /// After those, each list one after another beside the other.
    ends: [Vec<Step>; 2],
    /// One after another, beside the main ones.
    beside: Vec<Step>,
    /// One after another, when nothing else runs.
    alone: Vec<Step>,
    /// What is said at the end of what this plan does not look at.
    caveat: Option<&'static str>,
}

impl Plan {
    /// Everything.
    pub(crate) fn whole() -> Self {
        Self {
            main: vec![
                step("format", sources::format),
                step("clippy", sources::clippy),
                step("metal lints", sources::metal),
                step("documentation", sources::documentation),
                step("layers", sources::layers),
                step("C header", sources::header),
                step("packages", sources::packages),
                step("tests", suites::tests),
            ],
            ends: [
                vec![built("python", python::python)],
                vec![
                    built("doc tests", suites::doc_tests),
                    built("soak", suites::soak),
                    step("xtask tests", suites::xtask_tests),
                    step("licences", sources::licences),
                    step("advisories", sources::advisories),
                ],
            ],
            beside: vec![
                step("instructions", hot_pair::instructions),
                step("loom", suites::loom),
                step("miri", suites::miri),
            ],
            alone: vec![built("C edge time", suites::edge_time)],
            caveat: None,
        }
    }

    /// What the inner loop needs.
    pub(crate) fn quick() -> Self {
        Self {
            main: vec![
                step("format", sources::format),
                step("clippy", sources::clippy_libraries),
                step("layers", sources::layers),
                step("C header", sources::header),
                step("tests", suites::quick_tests),
                step("xtask tests", suites::xtask_tests),
            ],
            caveat: Some(
                "quick: integration and slow unit tests, documentation, lints of test code, doc tests, the soak, \
                 Python, loom, instruction counts, Miri, packages and dependencies were not looked at; \
                 \"cargo xtask test\" does",
            ),
            ..Self::default()
        }
    }

    /// The Python package alone.
    pub(crate) fn python() -> Self {
        Self { main: vec![step("python", python::python)], ..Self::default() }
    }

    /// Runs every step, says of each how it went as it ends, what failed in full, and ends with the time of
    /// each, what was left out and the sum, which is an error if something failed.
    ///
    /// A step that fails does not stop the others: one run shows all there is to mend. An interrupt from the
    /// terminal reaches all commands, which are of this program's process group, and ends them with it.
    pub(crate) fn carry_out(&self, place: &Workplace, screen: &Screen) -> Result<String, String> {
        let started = Instant::now();
        let mut reports = thread::scope(|scope| {
            let beside = scope.spawn(|| {
                yield_to_others();
                carry_out(&self.beside, &[], place, screen)
            });
            let mut reports = carry_out(&self.main, &[], place, screen);
            let [one, other] = &self.ends;
            let before = &reports[..];
            let ends = thread::scope(|scope| {
                let other = scope.spawn(|| carry_out(other, before, place, screen));
                let one = carry_out(one, before, place, screen);
                one.into_iter().chain(joined(other)).collect::<Vec<_>>()
            });
            reports.extend(ends);
            reports.extend(joined(beside));
            reports
        });
        reports.extend(carry_out(&self.alone, &reports, place, screen));
        if let Some(caveat) = self.caveat {
            screen.line(styled(QUIET, format_args!("\n{caveat}")));
        }
        let sum = summarize(&reports, started.elapsed(), screen);
        if sum.failed == 0 { Ok(sum.to_string()) } else { Err(sum.to_string()) }
    }
}

/// What a thread returned; its panic goes on.
fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Gives this thread, and every command it starts, a lower priority: half the share of others.
fn yield_to_others() {
    // Linux has a priority for each thread; elsewhere it is the process's, and the main steps keep theirs. Where
    // it is refused, the steps beside only compete.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(3);
}

/// Runs steps one after another, those `before` them being over.
fn carry_out(steps: &[Step], before: &[Report], place: &Workplace, screen: &Screen) -> Vec<Report> {
    let mut reports: Vec<Report> = Vec::new();
    for step in steps {
        let mut over = before.iter().chain(&reports);
        let unbuilt = over.find(|report| matches!(report.outcome, Outcome::Untested(_)));
        let started = Instant::now();
        let mut dashboard = Dashboard::new(step.name, place, screen);
        let outcome = match unbuilt {
            Some(before) if step.needs_build => Outcome::LeftOut(format!(
                "\"{}\" did not come to an end, so this would not",
                before.name
            )),
            _ => (step.act)(&mut dashboard).unwrap_or_else(|stopped| stopped),
        };
        let (elapsed, cpu) = (started.elapsed(), dashboard.cpu);
        let report = Report { name: step.name, outcome, elapsed, cpu };
        // One text, so that no other step's line comes in between.
        screen.line(match report.complaint() {
            Some(complaint) => {
                let title = styled(BAD, format_args!("{} failed:", step.name));
                format!("{title}\n{}\n{}", complaint.trim_end(), report.row())
            }
            None => report.row(),
        });
        reports.push(report);
    }
    reports
}

/// Counts and times hot pairs, and says what came of it; an error if one is beyond its bounds.
pub(crate) fn show_instructions(place: &Workplace, screen: &Screen) -> Result<String, String> {
    let [counted, timed] = [
        ("instructions", hot_pair::instructions as Act),
        ("C edge time", suites::edge_time as Act),
    ]
    .map(|(name, act)| {
        act(&mut Dashboard::new(name, place, screen)).unwrap_or_else(|stopped| stopped)
    });
    match (counted.said(), timed.said()) {
        (Ok(counted), Ok(timed)) => Ok(format!("{counted}\n{timed}")),
        (Ok(said) | Err(said), Ok(also) | Err(also)) => Err(format!("{said}\n{also}")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::step::Tally;

    fn carried_out(plan: &Plan) -> (bool, String) {
        let screen = Screen::stdout();
        let (is_well, last) = match plan.carry_out(&Workplace::here(), &screen) {
            Ok(last) => (true, last),
            Err(last) => (false, last),
        };
        (is_well, screen.written() + &last)
    }

    #[test]
    fn a_failure_does_not_hide_the_next() {
        let broken: Act = |_| Err(Outcome::Broken("first".into()));
        let tested: Act = |_| {
            let tally = Tally { passed: 3, failed: 1, skipped: 0 };
            Ok(Outcome::Tested { tally, skips: Vec::new(), output: "second".into() })
        };
        let main = vec![step("one", broken), built("two", tested)];
        let (well, text) = carried_out(&Plan { main, ..Plan::default() });
        assert!(!well);
        assert!(text.contains("first") && text.contains("second"), "{text}");
        for name in ["one", "two"] {
            let row = format!("  {name:<14} failed ");
            let rows = text.lines().filter(|line| line.starts_with(&row));
            assert_eq!(rows.count(), 1, "a step is shown once: {text}");
        }
        assert_eq!(text.lines().last(), Some("3 passed, 2 failed, 0 skipped"), "{text}");
    }

    #[test]
    fn what_cannot_build_is_not_run_again_in_other_ways() {
        let untested: Act = |_| Err(Outcome::Untested("E0308".into()));
        let never: Act = |_| panic!("must not run");
        let (well, text) = carried_out(&Plan {
            main: vec![step("tests", untested), built("doc tests", never)],
            alone: vec![built("time", never)],
            ..Plan::default()
        });
        assert!(!well);
        let reason =
            "2 times: \"tests\" did not come to an end, so this would not\n    doc tests\n    time";
        assert!(text.contains(reason), "{text}");
        assert_eq!(text.lines().last(), Some("0 passed, 1 failed, 2 skipped"), "{text}");
    }

    #[test]
    fn a_skipped_step_is_no_failure() {
        let left_out: Act = |_| Err(Outcome::LeftOut("no tool".into()));
        let main = vec![step("miri", left_out)];
        let (well, text) = carried_out(&Plan { main, ..Plan::default() });
        assert!(well);
        assert!(text.contains("skipped:\n  miri: no tool"), "{text}");
    }

    #[test]
    fn steps_beside_the_main_ones_run_at_the_same_time_and_are_shown_whole() {
        let work: Act = |dashboard| dashboard.check(&dashboard.place.program("sleep", "0.3"), "");
        let fails: Act = |dashboard| {
            let script = "for line in 1 2 3; do echo beside $line; sleep 0.1; done; false";
            dashboard.check(&dashboard.place.program("sh", "-c").with([script]), "")
        };
        let alone: Act = |dashboard| {
            let before = dashboard.screen.written();
            assert!(before.contains("main 2 ") && before.contains("beside "), "{before}");
            Ok(Outcome::Holds(String::new()))
        };
        let plan = Plan {
            main: vec![step("main 1", work), step("main 2", work)],
            beside: vec![step("beside", fails)],
            ends: [vec![step("end 1", work)], vec![step("end 2", work)]],
            alone: vec![step("alone", alone)],
            caveat: None,
        };
        let began = Instant::now();
        let (well, text) = carried_out(&plan);
        assert!(!well);
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        assert!(text.contains("beside failed:\nbeside 1\nbeside 2\nbeside 3\n\"sh -c"), "{text}");
        let at = |what: &str| text.find(what).unwrap();
        assert!(at("  beside ") < at("end 1 "), "it did not run beside them: {text}");
        assert!(at("  main 2 ") < at("  end 1 "), "they did not wait for the main ones: {text}");
        assert_eq!(text.lines().last(), Some("5 passed, 1 failed, 0 skipped"), "{text}");
    }
}
