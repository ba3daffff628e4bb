//! How many instructions a hot pair takes: allocating and freeing what was just freed.
//!
//! Counted, not timed: callgrind runs the program on a made-up processor, and its count does not
//! depend on the machine's mood. Two runs that differ in the number of pairs alone, and the difference
//! of their counts, are what the pairs take.

use std::time::Duration;

use crate::edge::{self, Edge};
use crate::run::{Ran, Task};
use crate::setup::{Runner, ensure_valgrind};
use crate::workplace::Workplace;

/// The most that a pair may take, the loop around it left out.
pub(crate) const MOST: u64 = 150;

/// How many pairs the shorter run makes, and how many more the longer: so many that what threads of the library do
/// meanwhile is no instruction a pair, on a machine that is slow too.
const FEW: u64 = 1000;
const MORE: u64 = 200_000;

/// How long building the probe may be silent, and running it once.
const BUILD: Duration = Duration::from_secs(900);
const RUN: Duration = Duration::from_secs(120);

/// The largest part of a pair that its statistics may take, in hundredths.
const MOST_COUNTING: u64 = 10;

/// How many hundredths of a pair's instructions it may take with events recorded. In time that is less than twice.
const MOST_RECORDING: u64 = 250;

/// The ways to free.
const WAYS: [&str; 3] = ["address", "sized", "block"];

/// What was counted, a pair of each way.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Way and instructions.
    pub(crate) ways: Vec<(&'static str, u64)>,
    /// The same freed by address, without statistics.
    pub(crate) uncounted: u64,
    /// The same freed by address, with events recorded.
    pub(crate) recorded: u64,
    /// The same through the C edge; or why that was not measured.
    pub(crate) edge: Result<Edge, String>,
}

impl Counted {
    /// Whether all are within bounds.
    pub(crate) fn holds(&self) -> bool {
        let short = !self.ways.is_empty() && self.ways.iter().all(|&(_, count)| count <= MOST);
        let edge = self.edge.as_ref().map_or(true, Edge::holds);
        let recording = self.recorded * 100 <= self.whole() * MOST_RECORDING;
        short && edge && recording && self.counting() * 100 <= self.whole() * MOST_COUNTING
    }

    /// A pair freed by address, as users have it.
    fn whole(&self) -> u64 {
        self.ways.first().map_or(0, |&(_, count)| count)
    }

    /// What of it the statistics take.
    fn counting(&self) -> u64 {
        self.whole().saturating_sub(self.uncounted)
    }
}

impl core::fmt::Display for Counted {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "instructions a hot pair, at most {MOST}:")?;
        for (index, (way, count)) in self.ways.iter().enumerate() {
            write!(f, "{} freed by {way} {count}", if index == 0 { "" } else { "," })?;
        }
        let share = 100.0 * self.counting() as f64 / self.whole().max(1) as f64;
        write!(f, "; statistics {} of {}, ", self.counting(), self.whole())?;
        write!(f, "{share:.1} %, at most {MOST_COUNTING} %; ")?;
        write!(f, "with events recorded {}, at most {MOST_RECORDING} %; ", self.recorded)?;
        match &self.edge {
            Ok(edge) => edge.fmt(f),
            Err(reason) => write!(f, "through C: not measured, {reason}"),
        }
    }
}

/// Why nothing was counted.
pub(crate) enum NotCounted {
    /// There is no valgrind, and it could not be had.
    Without(String),
    /// A command failed.
    Failed(Box<(Task, Ran)>),
}

/// Builds the probe, as what is installed is built, and counts.
pub(crate) fn count(place: &Workplace, run: &mut Runner<'_>) -> Result<Counted, NotCounted> {
    ensure_valgrind(place, run).map_err(NotCounted::Without)?;
    let probe = build(place, run)?;
    let around = per_pair(place, run, &probe, "none")?;
    let mut ways = Vec::new();
    for way in WAYS {
        ways.push((way, per_pair(place, run, &probe, way)?.saturating_sub(around)));
    }
    let uncounted = per_pair(place, run, &probe, "uncounted")?.saturating_sub(around);
    let recorded = per_pair(place, run, &probe, "history")?.saturating_sub(around);
    let edge = edge::count(place, run)?;
    Ok(Counted { ways, uncounted, recorded, edge })
}

/// Builds the probe, and says where it is. Where it is built already this takes no time.
pub(crate) fn build(place: &Workplace, run: &mut Runner<'_>) -> Result<String, NotCounted> {
    // Of the profile that the library for C is built by, with which it shares what it depends on.
    let words = "build -p forebay-probe --profile dist --message-format json";
    let build = place.cargo(words.split_whitespace(), BUILD);
    let built = run(&build);
    let probe = built.output.lines().filter_map(executable).next_back();
    match probe.filter(|_| built.succeeded()) {
        Some(probe) => Ok(probe),
        None => Err(NotCounted::Failed(Box::new((build, built)))),
    }
}

/// The instructions of one pair of a probe.
pub(crate) fn per_pair(
    place: &Workplace,
    run: &mut Runner<'_>,
    probe: &str,
    way: &str,
) -> Result<u64, NotCounted> {
    let mut total = |pairs: u64| -> Result<u64, NotCounted> {
        let pairs = pairs.to_string();
        let words = ["--tool=callgrind", "--callgrind-out-file=/dev/null", probe, &pairs, way];
        let task = place.program("valgrind", words, RUN);
        let ran = run(&task);
        match instructions(&ran.output).filter(|_| ran.succeeded()) {
            Some(count) => Ok(count),
            None => Err(NotCounted::Failed(Box::new((task, ran)))),
        }
    };
    let few = total(FEW)?;
    Ok(total(FEW + MORE)?.saturating_sub(few) / MORE)
}

/// The program in a message of cargo's.
fn executable(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("\"executable\":\"")?;
    Some(rest.split_once('"')?.0.to_owned())
}

/// The count in callgrind's last words: "I   refs:      12,345".
fn instructions(output: &str) -> Option<u64> {
    let line = output.lines().find(|line| line.contains("refs:"))?;
    let digits: String = line.split_once("refs:")?.1.chars().filter(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_tools_are_understood() {
        assert_eq!(instructions("==1== \n==1== I   refs:      21,952,900\n"), Some(21_952_900));
        assert_eq!(instructions("==1== no counts\n"), None);
        let line = r#"{"reason":"compiler-artifact","executable":"/t/dist/hot_pair","fresh":true}"#;
        assert_eq!(executable(line).as_deref(), Some("/t/dist/hot_pair"));
        assert_eq!(executable(r#"{"executable":null}"#), None);
    }

    #[test]
    fn one_way_beyond_the_bound_is_enough_to_fail() {
        let with = |count, uncounted| Counted {
            ways: vec![("address", 100), ("sized", count)],
            uncounted,
            recorded: 250,
            edge: Err("there is no gcc".to_owned()),
        };
        assert!(with(MOST, 90).holds());
        assert!(!with(MOST + 1, 90).holds());
        assert!(!with(MOST, 89).holds(), "statistics take more than a tenth");
        assert!(!Counted { recorded: 251, ..with(MOST, 90) }.holds(), "recording takes too much");
        let edge = Err(String::new());
        assert!(!Counted { ways: Vec::new(), uncounted: 0, recorded: 0, edge }.holds());
        let text = with(7, 95).to_string();
        assert!(text.contains("freed by address 100, freed by sized 7; "), "{text}");
        assert!(text.contains("statistics 5 of 100, 5.0 %, at most 10 %; "), "{text}");
        assert!(text.ends_with("through C: not measured, there is no gcc"), "{text}");
    }
}
