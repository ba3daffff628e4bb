//! The soak: millions of random operations on the pool, with an oracle looking on.
//!
//! What it does lives beside the pool (`crates/forebay/benches/soak`), so that this program builds
//! where the pool does not. Here it is built, started and watched.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::run::{Task, last_line};
use crate::screen::{BAD, Screen, styled};
use crate::workplace::{TESTED, Workplace};

/// How long building it may be silent, at full speed and on two cores.
const BUILD: Duration = Duration::from_secs(1200);

/// And for each operation, some ten times what it takes on average on a slow machine.
const EACH: Duration = Duration::from_micros(30);

/// Which rounds there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Phantom memory and no checker: fast.
    Plain,
    /// Under the checker, with streams that die, threads that come and go, faults and a neighbor.
    Stress,
}

/// How threads run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pace {
    /// All at once.
    Together,
    /// One at a time, in an order that the seed decides: what fails so fails again.
    Turns,
}

/// How it is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Build {
    /// At full speed.
    Fast,
    /// As the tests are, which have built all but the soak itself.
    AsTests,
}

/// What is to be soaked.
#[derive(Clone, Debug, Args)]
pub(crate) struct Soak {
    /// How many operations, over all rounds.
    #[arg(long, default_value_t = 100_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    operations: u64,
    /// The seed of the first round; each round after it has the next.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many threads; unless said, from 1 to 8 in different rounds.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: Option<u64>,
    /// How the threads run; unless said, either in different rounds. With --threads it is one round
    /// alone, as a failure names it.
    #[arg(long, value_enum)]
    pace: Option<Pace>,
    /// Rounds of one kind alone; unless said, one operation in 64 is in a stress round.
    #[arg(long, value_enum)]
    kind: Option<Kind>,
    /// Where to write what ran, as JSON.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

impl Soak {
    /// The one that is part of every test run: less than a minute.
    pub(crate) const SHORT: Self = Self {
        operations: 2_000_000,
        seed: 1,
        threads: None,
        pace: None,
        kind: None,
        record: None,
    };

    /// The command that builds it and runs it.
    pub(crate) fn task(&self, build: Build, place: &Workplace) -> Task {
        let build = match build {
            Build::Fast => "bench --package=forebay".to_owned(),
            Build::AsTests => format!("test {TESTED}"),
        };
        let mut words: Vec<String> = build.split(' ').map(str::to_owned).collect();
        words.extend([
            "--bench=soak".to_owned(),
            "--".to_owned(),
            format!("operations={}", self.operations),
            format!("seed={}", self.seed),
        ]);
        words.extend(self.threads.map(|threads| format!("threads={threads}")));
        words.extend(self.pace.map(|pace| match pace {
            Pace::Together => "pace=together".to_owned(),
            Pace::Turns => "pace=turns".to_owned(),
        }));
        words.extend(self.kind.map(|kind| match kind {
            Kind::Plain => "kind=plain".to_owned(),
            Kind::Stress => "kind=stress".to_owned(),
        }));
        words.extend(self.record.as_deref().map(|path| {
            // The benchmark runs in the folder of its crate.
            let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            format!("record={}", path.display())
        }));
        let operations = u32::try_from(self.operations).unwrap_or(u32::MAX);
        let patience = BUILD.saturating_add(EACH.saturating_mul(operations));
        place.cargo(words.iter().map(String::as_str), patience)
    }

    /// Runs it under the eyes of whoever looks at the screen. Whether nothing was violated.
    pub(crate) fn run(&self, place: &Workplace, screen: &Screen) -> bool {
        let task = self.task(Build::Fast, place);
        screen.begin("soak", &task);
        let ran = task.run(&mut |elapsed, tail| {
            screen.live("soak", elapsed, last_line(tail));
            screen.beat("soak", elapsed, last_line(tail));
        });
        for line in ran.output.lines().filter(|line| is_result(line)) {
            screen.line(line);
        }
        if ran.succeeded() {
            return true;
        }
        if !ran.output.lines().any(is_result) {
            screen.line(ran.output.trim_end());
        }
        screen.line(styled(BAD, format_args!("soak failed: \"{task}\" {}", ran.ending)));
        false
    }
}

/// The last line of figures in what it said.
pub(crate) fn figures(output: &str) -> Option<&str> {
    output.lines().rfind(|line| line.ends_with("no violation")).map(str::trim)
}

/// Whether a line is something that came of it, as opposed to how far it is and what cargo says.
fn is_result(line: &str) -> bool {
    line.ends_with("no violation")
        || line.starts_with("violation ")
        || line.starts_with("replay: ")
        || line.starts_with("the threads ran together")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "   Compiling forebay v0.1.0
seed 1, threads 1, turns: 8 operations in 0.1 s, 12 ns each; at most 1 MiB live; no violation
██████░░░░░░░░░░░░░░  30 %  3 of 10 operations, 3 ns each
10 operations in 0.2 s, 20 ns each; at most 1 MiB live; no violation
";

    #[test]
    fn the_sum_is_told_from_the_rounds_and_from_progress() {
        assert!(figures(SAID).is_some_and(|line| line.starts_with("10 operations in 0.2 s")));
        assert_eq!(SAID.lines().filter(|line| is_result(line)).count(), 2);
        assert_eq!(figures("error: could not compile"), None);
        assert!(is_result("violation at operation 7 of seed 1, threads 1, turns: overlap"));
    }

    #[test]
    fn all_that_was_said_is_passed_on() {
        let soak = Soak {
            operations: 70,
            seed: 9,
            threads: Some(4),
            pace: Some(Pace::Together),
            kind: None,
            record: None,
        };
        let words = soak.task(Build::Fast, &Workplace::here()).to_string();
        let end = "bench --package=forebay --bench=soak -- operations=70 seed=9 threads=4 \
                   pace=together";
        assert!(words.ends_with(end), "{words}");
        let short = Soak::SHORT.task(Build::AsTests, &Workplace::here()).to_string();
        assert!(short.ends_with("operations=2000000 seed=1"), "{short}");
        let stress =
            Soak { kind: Some(Kind::Stress), record: Some("/tmp/soak.json".into()), ..Soak::SHORT };
        let stress = stress.task(Build::Fast, &Workplace::here()).to_string();
        assert!(stress.ends_with("seed=1 kind=stress record=/tmp/soak.json"), "{stress}");
    }
}
