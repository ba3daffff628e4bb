//! The plan: which steps there are, in which order, and what each means.

mod dependencies;
mod probes;
mod python;
mod sources;
mod suites;

use std::time::Instant;

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

/// Which steps, in which order.
pub(crate) struct Plan {
    steps: Vec<Step>,
    /// What is said at the end of what this plan does not look at.
    caveat: Option<&'static str>,
}

impl Plan {
    /// Everything.
    pub(crate) fn whole() -> Self {
        let step = |name, act| Step { name, needs_build: false, act };
        let built = |name, act| Step { name, needs_build: true, act };
        Self {
            steps: vec![
                step("format", sources::format),
                step("clippy", sources::clippy),
                step("documentation", sources::documentation),
                step("layers", sources::layers),
                step("C header", sources::header),
                step("tests", suites::tests),
                built("doc tests", suites::doc_tests),
                built("soak", suites::soak),
                built("python", python::python),
                built("loom", probes::loom),
                built("instructions", probes::instructions),
                built("miri", suites::miri),
                step("licences", dependencies::licences),
                step("advisories", dependencies::advisories),
            ],
            caveat: None,
        }
    }

    /// What the inner loop needs.
    pub(crate) fn quick() -> Self {
        let step = |name, act| Step { name, needs_build: false, act };
        Self {
            steps: vec![
                step("format", sources::format),
                step("clippy", sources::clippy_libraries),
                step("layers", sources::layers),
                step("C header", sources::header),
                step("tests", suites::quick_tests),
            ],
            caveat: Some(
                "quick: documentation, lints of test code, doc tests, the soak, Python, \
                 loom, instruction counts, Miri and dependencies were not looked at; \"cargo xtask test\" does",
            ),
        }
    }

    /// The Python package alone.
    pub(crate) fn python() -> Self {
        let step = Step { name: "python", needs_build: false, act: python::python };
        Self { steps: vec![step], caveat: None }
    }

    /// Runs every step, says of each how it went as it ends, what failed in full, and ends with what
    /// was left out and the sum. Whether nothing failed.
    ///
    /// A step that fails does not stop the others: one run shows all there is to mend.
    pub(crate) fn carry_out(&self, place: &Workplace, screen: &mut Screen) -> bool {
        let mut reports: Vec<Report> = Vec::new();
        for step in &self.steps {
            let unbuilt =
                reports.iter().find(|report| matches!(report.outcome, Outcome::Untested { .. }));
            let started = Instant::now();
            let outcome = match unbuilt {
                Some(before) if step.needs_build => Outcome::LeftOut {
                    reason: format!(
                        "\"{}\" did not come to an end, so this would not",
                        before.name
                    ),
                },
                _ => (step.act)(place, &mut Desk { name: step.name, screen }),
            };
            let report = Report { name: step.name, outcome, elapsed: started.elapsed() };
            if let Some(complaint) = report.complaint() {
                screen.line(styled(BAD, format_args!("{} failed:", step.name)));
                screen.line(complaint.trim_end());
            }
            screen.line(report.row());
            reports.push(report);
        }
        if let Some(caveat) = self.caveat {
            screen.line(styled(QUIET, format_args!("\n{caveat}")));
        }
        summarize(&reports, screen).failed == 0
    }
}

/// Where a step works: it runs commands under the eyes of whoever looks at the screen.
struct Desk<'a> {
    name: &'static str,
    screen: &'a mut Screen,
}

impl Desk<'_> {
    /// Runs the command a step is about.
    fn run(&mut self, task: &Task) -> Ran {
        self.screen.begin(self.name, task);
        self.run_aside(task)
    }

    /// Runs a command that only serves the step: looking for a tool, getting it.
    fn run_aside(&mut self, task: &Task) -> Ran {
        // Kept from call to call: what passing tests print may hide how far they are.
        let mut progress = String::new();
        task.run(&mut |elapsed, tail| {
            if let Some(latest) = count::progress(tail) {
                progress = latest;
            }
            self.screen.live(self.name, elapsed, last_line(tail));
            self.screen.beat(self.name, elapsed, &progress);
        })
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

    fn plan(steps: Vec<Step>) -> (bool, Screen) {
        let mut screen = Screen::nowhere();
        let well = Plan { steps, caveat: None }.carry_out(&Workplace::here(), &mut screen);
        (well, screen)
    }

    #[test]
    fn a_failure_does_not_hide_the_next() {
        let broken = |_: &Workplace, _: &mut Desk<'_>| Outcome::Broken { output: "first".into() };
        let tested = |_: &Workplace, _: &mut Desk<'_>| Outcome::Tested {
            tally: Tally { passed: 3, failed: 1, skipped: 0 },
            skips: Vec::new(),
            output: "second".into(),
        };
        let (well, screen) = plan(vec![
            Step { name: "one", needs_build: false, act: broken },
            Step { name: "two", needs_build: true, act: tested },
        ]);
        assert!(!well);
        let text = screen.written();
        assert!(text.contains("first") && text.contains("second"), "{text}");
        for name in ["one", "two"] {
            let rows = text.lines().filter(|line| line.starts_with(&format!("  {name} ")));
            assert_eq!(rows.count(), 1, "a step is shown once: {text}");
        }
        assert_eq!(text.lines().last(), Some("3 passed, 2 failed, 0 skipped"), "{text}");
    }

    #[test]
    fn what_cannot_build_is_not_run_again_in_other_ways() {
        let untested =
            |_: &Workplace, _: &mut Desk<'_>| Outcome::Untested { output: "E0308".into() };
        let never = |_: &Workplace, _: &mut Desk<'_>| panic!("must not run");
        let (well, screen) = plan(vec![
            Step { name: "tests", needs_build: false, act: untested },
            Step { name: "doc tests", needs_build: true, act: never },
        ]);
        assert!(!well);
        let text = screen.written();
        assert!(text.contains("doc tests: \"tests\" did not come to an end"), "{text}");
        assert_eq!(text.lines().last(), Some("0 passed, 1 failed, 1 skipped"), "{text}");
    }

    #[test]
    fn a_skipped_step_is_no_failure() {
        let left_out =
            |_: &Workplace, _: &mut Desk<'_>| Outcome::LeftOut { reason: "no tool".into() };
        let (well, screen) = plan(vec![Step { name: "miri", needs_build: false, act: left_out }]);
        assert!(well);
        assert!(screen.written().contains("skipped:\n  miri: no tool"), "{}", screen.written());
    }
}
