//! What came of a step, and the sum at the end.

use std::fmt;
use std::time::Duration;

use crate::screen::{BAD, GOOD, LEFT_OUT, QUIET, Screen, styled};

/// How many lines of what a failed step said are shown once more at the end.
const LINES_AGAIN: usize = 30;

/// How many tests or checks went which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Those that did what they should.
    pub(crate) passed: u64,
    /// Those that did not.
    pub(crate) failed: u64,
    /// Those that were not run.
    pub(crate) skipped: u64,
}

impl std::ops::Add for Tally {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            passed: self.passed.saturating_add(other.passed),
            failed: self.failed.saturating_add(other.failed),
            skipped: self.skipped.saturating_add(other.skipped),
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Something that was not run, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skip {
    /// The step or test.
    pub(crate) what: String,
    /// Why, in words for a person.
    pub(crate) reason: String,
}

/// What came of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A check that holds, and what there is to say of it, perhaps nothing.
    Holds(String),
    /// A check that does not hold, and everything that was said about it.
    Broken(String),
    /// Tests that ran, all well or not.
    Tested {
        /// How they went.
        tally: Tally,
        /// Which were left out. As many as the tally says.
        skips: Vec<Skip>,
        /// What the runner said; shown where a test failed.
        output: String,
    },
    /// Tests that could not be run to their end: they do not build, or ran out of time. Everything that was said about it.
    Untested(String),
    /// A step that was not run, and why.
    LeftOut(String),
}

impl Outcome {
    /// What a chore says of it.
    pub(crate) fn said(self) -> Result<String, String> {
        match self {
            Self::Holds(said) => Ok(said),
            Self::Tested { output: said, .. }
            | Self::Broken(said)
            | Self::Untested(said)
            | Self::LeftOut(said) => Err(said),
        }
    }
}

/// What a chore says of a step that it could not do.
impl From<Outcome> for String {
    fn from(outcome: Outcome) -> Self {
        outcome.said().unwrap_or_else(|said| said)
    }
}

/// A step that is over.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// The step.
    pub(crate) name: &'static str,
    /// What came of it.
    pub(crate) outcome: Outcome,
    /// How long it took.
    pub(crate) elapsed: Duration,
    /// The processor time of the commands it ran.
    pub(crate) cpu: Duration,
}

impl Report {
    /// What it counts for: its tests, or itself as one.
    pub(crate) fn tally(&self) -> Tally {
        match &self.outcome {
            Outcome::Holds(_) => Tally { passed: 1, ..Tally::default() },
            Outcome::Broken(_) | Outcome::Untested(_) => Tally { failed: 1, ..Tally::default() },
            Outcome::Tested { tally, .. } => *tally,
            Outcome::LeftOut(_) => Tally { skipped: 1, ..Tally::default() },
        }
    }

    /// What was not run in it.
    fn skips(&self) -> Vec<Skip> {
        match &self.outcome {
            Outcome::LeftOut(reason) => {
                vec![Skip { what: self.name.to_owned(), reason: reason.clone() }]
            }
            Outcome::Tested { skips, .. } => skips.clone(),
            _ => Vec::new(),
        }
    }

    /// What must be read where it failed.
    pub(crate) fn complaint(&self) -> Option<&str> {
        match &self.outcome {
            Outcome::Broken(output) | Outcome::Untested(output) => Some(output),
            Outcome::Tested { tally, output, .. } if tally.failed > 0 => Some(output),
            _ => None,
        }
    }

    /// In one line.
    pub(crate) fn row(&self) -> String {
        let (style, word) = match &self.outcome {
            _ if self.complaint().is_some() => (BAD, "failed"),
            Outcome::LeftOut(_) => (LEFT_OUT, "skipped"),
            _ => (GOOD, "passed"),
        };
        let note = match &self.outcome {
            Outcome::Holds(note) => note.clone(),
            Outcome::Tested { tally, .. } => format!("tests: {tally}"),
            Outcome::Untested(_) => "no test count: it did not come to an end".to_owned(),
            Outcome::Broken(_) | Outcome::LeftOut(_) => String::new(),
        };
        let word = styled(style, format_args!("{word:<7}"));
        let row = format!("  {:<14} {word} {:>7.1} s", self.name, self.elapsed.as_secs_f64());
        if note.is_empty() { row } else { format!("{row}  {}", styled(QUIET, note)) }
    }
}

/// Shows what was left out, how long each step took, and once more what failed. Returns the sum, which is to be the very
/// last line: a machine that keeps only the end of the output keeps what must be read.
pub(crate) fn summarize(reports: &[Report], elapsed: Duration, screen: &Screen) -> Tally {
    let skips: Vec<_> = reports.iter().flat_map(Report::skips).collect();
    if !skips.is_empty() {
        screen.line(format_args!("\nskipped:{}", by_reason(&skips)));
    }
    screen.line(times(reports, elapsed));
    for report in reports {
        if let Some(complaint) = report.complaint() {
            let title =
                styled(BAD, format_args!("{} failed; the end of what it said:", report.name));
            screen.line(format_args!("\n{title}\n{}", end_of(complaint.trim_end())));
        }
    }
    screen.line("");
    reports.iter().fold(Tally::default(), |sum, report| sum + report.tally())
}

/// What was left out, one paragraph for each reason.
fn by_reason(skips: &[Skip]) -> String {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for Skip { what, reason } in skips {
        match reasons.iter_mut().find(|(known, _)| known == reason) {
            Some((_, names)) => names.push(what),
            None => reasons.push((reason, vec![what])),
        }
    }
    let paragraph = |(reason, names): (&str, Vec<&str>)| match &names[..] {
        [name] => format!("\n  {name}: {reason}"),
        names => format!("\n  {} times: {reason}\n    {}", names.len(), names.join("\n    ")),
    };
    reasons.into_iter().map(paragraph).collect()
}

/// The last lines of a text.
fn end_of(text: &str) -> &str {
    let begin = text.rmatch_indices('\n').nth(LINES_AGAIN - 1).map_or(0, |(at, _)| at + 1);
    text.get(begin..).unwrap_or(text)
}

/// A table of the steps: wall time and processor time. Steps run side by side, so the first column does not
/// add up to the whole.
fn times(reports: &[Report], elapsed: Duration) -> String {
    let row = |name: &str, elapsed: Duration, cpu: Duration| {
        format!("\n  {name:<14} {:>8.1} {:>8.1}", elapsed.as_secs_f64(), cpu.as_secs_f64())
    };
    let mut table = format!("\n  {:<14} {:>8} {:>8}", "step", "seconds", "CPU");
    table.extend(reports.iter().map(|report| row(report.name, report.elapsed, report.cpu)));
    table + &row("whole run", elapsed, reports.iter().map(|report| report.cpu).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcome: Outcome) -> Report {
        let (elapsed, cpu) = (Duration::from_millis(1250), Duration::from_millis(1800));
        Report { name: "step", outcome, elapsed, cpu }
    }

    #[test]
    fn the_table_has_both_times_of_each_step_and_of_the_whole() {
        let reports = [(); 2].map(|()| report(Outcome::Holds(String::new())));
        let table = times(&reports, Duration::from_secs(2));
        let rows: Vec<Vec<&str>> =
            table.trim().lines().map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["step", "seconds", "CPU"]);
        // 1.25 s is shown with one figure after the point.
        assert_eq!(rows[1], ["step", "1.2", "1.8"]);
        assert_eq!(rows[3], ["whole", "run", "2.0", "3.6"]);
    }

    #[test]
    fn what_was_left_out_is_sorted_by_reason() {
        let skip = |what: &str, reason: &str| Skip { what: what.into(), reason: reason.into() };
        let text = by_reason(&[skip("a", "no GPU"), skip("b", "no tool"), skip("c", "no GPU")]);
        assert_eq!(text, "\n  2 times: no GPU\n    a\n    c\n  b: no tool");
    }

    #[test]
    fn the_end_says_once_more_what_failed() {
        let output: String = (1..=100).map(|line| format!("line {line}\n")).collect();
        let screen = Screen::stdout();
        let sum = summarize(&[report(Outcome::Broken(output))], Duration::from_secs(2), &screen);
        let text = screen.written();
        let again = "step failed; the end of what it said:\nline 71\n";
        assert!(text.contains(again) && !text.contains("line 70"), "{text}");
        assert!(text.ends_with("line 100\n\n"), "{text}");
        assert_eq!(sum.to_string(), "0 passed, 1 failed, 0 skipped");
        assert_eq!(end_of("one"), "one");
    }

    #[test]
    fn a_check_counts_as_one_and_tests_as_many() {
        let tally = Tally { passed: 7, failed: 0, skipped: 2 };
        let tested = Outcome::Tested { tally, skips: Vec::new(), output: "all of it".into() };
        assert_eq!(report(tested.clone()).tally(), tally);
        assert_eq!(report(tested).complaint(), None);
        let broken = report(Outcome::Broken("why".into()));
        assert_eq!(broken.tally().to_string(), "0 passed, 1 failed, 0 skipped");
        assert_eq!(broken.complaint(), Some("why"));
        let left_out = report(Outcome::LeftOut("no tool".into()));
        assert_eq!(left_out.tally().to_string(), "0 passed, 0 failed, 1 skipped");
        assert_eq!(left_out.skips(), [Skip { what: "step".into(), reason: "no tool".into() }]);
    }

    #[test]
    fn a_failed_test_or_one_that_does_not_build_shows_the_runners_words() {
        let untested = report(Outcome::Untested("error[E0308]".into()));
        assert_eq!(untested.tally().failed, 1);
        assert!(untested.row().contains("failed"), "{}", untested.row());
        let tally = Tally { passed: 1, failed: 1, skipped: 0 };
        let outcome = Outcome::Tested { tally, skips: Vec::new(), output: "panicked".into() };
        assert_eq!(report(outcome).complaint(), Some("panicked"));
    }
}
