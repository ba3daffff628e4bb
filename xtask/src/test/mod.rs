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

mod dependencies;
mod probes;
mod python;
mod sources;
mod suites;

use std::thread;
use std::time::{Duration, Instant};

use crate::count;
use crate::run::{Ran, Task, last_line};
use crate::screen::{BAD, QUIET, Screen, styled};
use crate::step::{Outcome, Report, summarize};
use crate::workplace::Workplace;

pub(crate) use probes::show_instructions;
pub(crate) use sources::show_layers;

/// One step of the plan.
struct Step {
    name: &'static str,
    /// Whether it makes no sense where the tests did not even build.
    needs_build: bool,
    act: fn(&Workplace, &mut Desk<'_>) -> Outcome,
}

/// A step that runs whatever became of those before it.
const fn step(name: &'static str, act: fn(&Workplace, &mut Desk<'_>) -> Outcome) -> Step {
    Step { name, needs_build: false, act }
}

/// A step that makes no sense where the tests did not even build.
const fn built(name: &'static str, act: fn(&Workplace, &mut Desk<'_>) -> Outcome) -> Step {
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
                    step("licences", dependencies::licences),
                    step("advisories", dependencies::advisories),
                ],
            ],
            beside: vec![
                step("instructions", probes::instructions),
                step("loom", probes::loom),
                step("miri", suites::miri),
            ],
            alone: vec![built("C edge time", probes::edge_time)],
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
    /// each, what was left out and the sum. Whether nothing failed.
    ///
    /// A step that fails does not stop the others: one run shows all there is to mend. An interrupt from the
    /// terminal reaches all commands, which are of this program's process group, and ends them with it.
    pub(crate) fn carry_out(&self, place: &Workplace, screen: &Screen) -> bool {
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
        summarize(&reports, started.elapsed(), screen).failed == 0
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
        let unbuilt = over.find(|report| matches!(report.outcome, Outcome::Untested { .. }));
        let started = Instant::now();
        let mut desk = Desk::new(step.name, screen);
        let outcome = match unbuilt {
            Some(before) if step.needs_build => Outcome::LeftOut {
                reason: format!("\"{}\" did not come to an end, so this would not", before.name),
            },
            _ => (step.act)(place, &mut desk),
        };
        let (elapsed, cpu) = (started.elapsed(), desk.cpu);
        screen.end(step.name);
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

/// Where a step works: it runs commands under the eyes of whoever looks at the screen.
struct Desk<'a> {
    name: &'static str,
    screen: &'a Screen,
    /// The processor time of what it ran.
    cpu: Duration,
}

impl<'a> Desk<'a> {
    fn new(name: &'static str, screen: &'a Screen) -> Self {
        Self { name, screen, cpu: Duration::ZERO }
    }

    /// Runs the command a step is about.
    fn run(&mut self, task: &Task) -> Ran {
        self.screen.begin(self.name, task);
        self.run_aside(task)
    }

    /// Runs a command that only serves the step: looking for a tool, getting it.
    fn run_aside(&mut self, task: &Task) -> Ran {
        // Kept from call to call: what passing tests print may hide how far they are.
        let mut progress = String::new();
        let ran = task.run(&mut |elapsed, tail| {
            if let Some(latest) = count::progress(tail) {
                progress = latest;
            }
            self.screen.live(self.name, elapsed, last_line(tail));
            self.screen.beat(self.name, elapsed, &progress);
        });
        self.cpu = self.cpu.saturating_add(ran.cpu);
        ran
    }

    /// Runs a command that is a check: it holds where the command succeeds.
    fn check(&mut self, task: &Task) -> Outcome {
        let ran = self.run(task);
        if ran.succeeded() { Outcome::Holds { note: String::new() } } else { broken(task, &ran) }
    }
}

/// A check that does not hold, with the command and all it said.
fn broken(task: &Task, ran: &Ran) -> Outcome {
    Outcome::Broken { output: told(task, ran, &ran.output) }
}

/// What a command said, and how it ended.
fn told(task: &Task, ran: &Ran, output: &str) -> String {
    format!("{}\n\"{task}\" {}", output.trim_end(), ran.ending)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Tally;

    fn plan(main: Vec<Step>) -> (bool, String) {
        carried_out(&Plan { main, ..Plan::default() })
    }

    fn carried_out(plan: &Plan) -> (bool, String) {
        let screen = Screen::nowhere();
        let well = plan.carry_out(&Workplace::here(), &screen);
        (well, screen.written())
    }

    #[test]
    fn a_failure_does_not_hide_the_next() {
        let broken = |_: &Workplace, _: &mut Desk<'_>| Outcome::Broken { output: "first".into() };
        let tested = |_: &Workplace, _: &mut Desk<'_>| Outcome::Tested {
            tally: Tally { passed: 3, failed: 1, skipped: 0 },
            skips: Vec::new(),
            output: "second".into(),
        };
        let (well, text) = plan(vec![step("one", broken), built("two", tested)]);
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
        let untested =
            |_: &Workplace, _: &mut Desk<'_>| Outcome::Untested { output: "E0308".into() };
        let never = |_: &Workplace, _: &mut Desk<'_>| panic!("must not run");
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
        let left_out =
            |_: &Workplace, _: &mut Desk<'_>| Outcome::LeftOut { reason: "no tool".into() };
        let (well, text) = plan(vec![step("miri", left_out)]);
        assert!(well);
        assert!(text.contains("skipped:\n  miri: no tool"), "{text}");
    }

    /// Runs a command that takes a moment.
    fn work(place: &Workplace, desk: &mut Desk<'_>) -> Outcome {
        desk.check(&place.program("sleep", ["0.3"], Duration::from_secs(30)))
    }

    #[test]
    fn steps_beside_the_main_ones_run_at_the_same_time_and_are_shown_whole() {
        fn fails(place: &Workplace, desk: &mut Desk<'_>) -> Outcome {
            let script = "for line in 1 2 3; do echo beside $line; sleep 0.1; done; false";
            desk.check(&place.program("sh", ["-c", script], Duration::from_secs(30)))
        }
        fn alone(_: &Workplace, desk: &mut Desk<'_>) -> Outcome {
            let before = desk.screen.written();
            assert!(before.contains("main 2 ") && before.contains("beside "), "{before}");
            Outcome::Holds { note: String::new() }
        }
        let plan = Plan {
            main: vec![step("main 1", work), step("main 2", work)],
            beside: vec![step("beside", fails)],
            ends: [vec![step("end 1", work)], vec![step("end 2", work)]],
            alone: vec![step("alone", alone)],
            caveat: None,
        };
        let (well, text) = carried_out(&plan);
        assert!(!well);
        assert!(text.contains("beside failed:\nbeside 1\nbeside 2\nbeside 3\n\"sh -c"), "{text}");
        let at = |what: &str| text.find(what).unwrap();
        assert!(at("beside: sh -c") < at("main 2: sleep"), "it did not wait for them: {text}");
        assert!(
            at("  main 2 ") < at("end 1: sleep"),
            "they did not wait for the main ones: {text}"
        );
        assert!(at("end 2: sleep") < at("  end 1 "), "they were not beside each other: {text}");
        assert_eq!(text.lines().last(), Some("5 passed, 1 failed, 0 skipped"), "{text}");
    }
}
