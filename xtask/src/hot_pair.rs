//! What a hot pair takes: allocating and freeing what was just freed, from Rust and through the C edge.
//!
//! Instructions are counted, not timed: callgrind runs the probe on a made-up processor, and its count does not
//! depend on the machine's mood. Two runs that differ in the number of pairs alone, and the difference
//! of their counts, are what the pairs take.
//!
//! The probe of the C edge is a C program with the shared library, as it is installed. A call into a shared library saves
//! registers, and asks the system's loader where the thread's own data are, which Rust's inlined pair does not; so it has
//! bounds of its own. What users feel is the time, so that is compared too: both probes in turn, in one run, the
//! quickest of each.

use std::fmt;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::dashboard::{Dashboard, broken};
use crate::dist;
use crate::setup::ensure_valgrind;
use crate::step::Outcome;

/// The most instructions that a pair may take, the loop around it left out.
const MAX: u64 = 150;

/// The largest part of a pair that its statistics may take, in hundredths.
const MAX_COUNTING: u64 = 10;

/// How many hundredths of a pair's instructions it may take with events recorded. In time that is less than twice.
const MAX_RECORDING: u64 = 250;

/// The ways to free.
const WAYS: [&str; 3] = ["address", "sized", "block"];

/// The ways through C, and the most instructions of a pair. Counts of this compiler and system (gcc 12, glibc 2.36), and
/// a little more.
const C_WAYS: [(&str, u64); 4] =
    [("default", 248), ("stream", 275), ("sized", 258), ("pinned", 285)];

/// How many pairs the shorter run makes, and how many more the longer: so many that what threads of the library do
/// meanwhile is no instruction a pair, on a machine that is slow too.
const FEW: u64 = 1000;
const MORE: u64 = 200_000;

/// The most times as long as Rust's that a pair through C may take, in hundredths.
const MAX_TIME: u64 = 150;

/// How many pairs are timed at once: half a second or so. Where the system puts stack and libraries differs from run to
/// run and changes the time of the pair by half, so many short runs say more than few long ones.
const TIMED: u64 = 20_000_000;

/// How often each probe is timed. On a machine with others on it the quickest of few may still be one
/// that was disturbed: then it is timed more often before it is said to be slow.
const ROUNDS: u32 = 5;
const MAX_ROUNDS: u32 = 80;

/// What was counted.
#[derive(Debug, PartialEq, Eq)]
struct Counted {
    /// Way and instructions. The first is a pair freed by address, as users have it.
    ways: Vec<(&'static str, u64)>,
    /// The same without statistics.
    uncounted: u64,
    /// The same with events recorded.
    recorded: u64,
    /// Way through C, instructions, and how many there may be; or why they were not counted.
    edge: Result<Vec<(&'static str, u64, u64)>, String>,
}

impl Counted {
    /// Whether all are within bounds.
    fn holds(&self) -> bool {
        let short = !self.ways.is_empty() && self.ways.iter().all(|&(_, count)| count <= MAX);
        let edge = self.edge.iter().flatten().all(|&(_, count, most)| count <= most);
        let recording = self.recorded * 100 <= self.whole() * MAX_RECORDING;
        short && edge && recording && self.counting() * 100 <= self.whole() * MAX_COUNTING
    }

    fn whole(&self) -> u64 {
        self.ways.first().map_or(0, |&(_, count)| count)
    }

    /// What of it the statistics take.
    fn counting(&self) -> u64 {
        self.whole().saturating_sub(self.uncounted)
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ways: Vec<_> =
            self.ways.iter().map(|(way, count)| format!("freed by {way} {count}")).collect();
        let (counting, whole) = (self.counting(), self.whole());
        let share = 100.0 * counting as f64 / whole.max(1) as f64;
        write!(
            f,
            "instructions a hot pair, at most {MAX}: {}; statistics {counting} of {whole}, {share:.1} %, at most \
             {MAX_COUNTING} %; with events recorded {}, at most {MAX_RECORDING} %; through C: ",
            ways.join(", "),
            self.recorded
        )?;
        match &self.edge {
            Ok(ways) => {
                let way = |(way, count, most): &_| format!("{way} {count} (at most {most})");
                f.write_str(&ways.iter().map(way).collect::<Vec<_>>().join(", "))
            }
            Err(reason) => write!(f, "not measured, {reason}"),
        }
    }
}

/// Builds the probes, as what is installed is built, and counts. One check: none of the ways passes its bound.
pub(crate) fn instructions(dashboard: &mut Dashboard<'_>) -> Result<Outcome, Outcome> {
    ensure_valgrind(dashboard).map_err(Outcome::LeftOut)?;
    let probe = rust_probe(dashboard)?;
    let around = per_pair(dashboard, &probe, "none")?;
    let mut count = |way| Ok(per_pair(dashboard, &probe, way)?.saturating_sub(around));
    let ways = WAYS.map(|way| Ok((way, count(way)?)));
    let ways = ways.into_iter().collect::<Result<_, Outcome>>()?;
    let (uncounted, recorded) = (count("uncounted")?, count("history")?);
    let edge = match c_probe(dashboard) {
        Ok(probe) => {
            let around = per_pair(dashboard, &probe, "none")?;
            let mut count = |way| Ok(per_pair(dashboard, &probe, way)?.saturating_sub(around));
            let ways = C_WAYS.map(|(way, most)| Ok((way, count(way)?, most)));
            Ok(ways.into_iter().collect::<Result<_, Outcome>>()?)
        }
        Err(Outcome::LeftOut(reason)) => Err(reason),
        Err(failed) => return Err(failed),
    };
    let counted = Counted { ways, uncounted, recorded, edge };
    let text = counted.to_string();
    Ok(if counted.holds() { Outcome::Holds(text) } else { Outcome::Broken(text) })
}

/// The time of a pair through C over that of Rust's, and whether that is within bounds. Nothing else may run meanwhile.
pub(crate) fn edge_time(dashboard: &mut Dashboard<'_>) -> Result<(String, bool), Outcome> {
    let (rust, c) = (rust_probe(dashboard)?, c_probe(dashboard)?);
    let (mut ours, mut theirs, mut ratio) = (Duration::MAX, Duration::MAX, u64::MAX);
    for round in 0..MAX_ROUNDS {
        theirs = theirs.min(time_of(dashboard, &rust, "address")?);
        ours = ours.min(time_of(dashboard, &c, "default")?);
        let hundredths = ours.as_micros() * 100 / theirs.as_micros().max(1);
        ratio = u64::try_from(hundredths).unwrap_or(u64::MAX);
        if round + 1 >= ROUNDS && ratio <= MAX_TIME {
            break;
        }
    }
    Ok((time_text(ratio), ratio <= MAX_TIME))
}

fn time_text(ratio: u64) -> String {
    let hundredths = |number: u64| format!("{}.{:02}", number / 100, number % 100);
    let (time, most) = (hundredths(ratio), hundredths(MAX_TIME));
    format!("a hot pair through C takes {time} times as long as Rust's, at most {most}")
}

/// Builds the probe, and says where it is. Where it is built already this takes no time.
fn rust_probe(dashboard: &mut Dashboard<'_>) -> Result<String, Outcome> {
    // Of the profile that the library for C is built by, with which it shares what it depends on.
    let words = "build -p forebay-bench --bin hot_pair --profile dist --message-format json";
    let built = dashboard.succeed(&dashboard.place.cargo(words))?;
    let probe = built.lines().filter_map(executable).next_back();
    probe.ok_or_else(|| Outcome::Broken("cargo has built no hot_pair".to_owned()))
}

/// Builds the library and the C probe, and says where that is.
fn c_probe(dashboard: &mut Dashboard<'_>) -> Result<String, Outcome> {
    let place = dashboard.place;
    if !dashboard.works(&place.program("gcc", "--version")) {
        return Err(Outcome::LeftOut("there is no gcc".to_owned()));
    }
    // With the feature that the Rust probe has, which adds functions that nothing in the library calls: so both
    // are made of one build of the crates.
    dashboard.succeed(&dist::shared_library(place, "--features=forebay/uncounted"))?;
    let folder = place.target().join("dist").display().to_string();
    let probe = format!("{folder}/c_hot_pair");
    let words = "-std=c11 -O2 -Icrates/forebay-capi/include crates/forebay-capi/tests/c/hot_pair.c -lforebay_capi -o";
    let found = [format!("-L{folder}"), format!("-Wl,--disable-new-dtags,-rpath,{folder}")];
    dashboard
        .succeed(&place.program("gcc", "").with(found).with(words.split(' ')).with([&probe]))?;
    Ok(probe)
}

/// The instructions of one pair of a probe.
fn per_pair(dashboard: &mut Dashboard<'_>, probe: &str, way: &str) -> Result<u64, Outcome> {
    let mut total = |pairs: u64| {
        let words = "--tool=callgrind --callgrind-out-file=/dev/null";
        let task =
            dashboard.place.program("valgrind", words).with([probe, &pairs.to_string(), way]);
        let ran = dashboard.run(&task);
        refs(&ran.output).filter(|_| ran.succeeded()).ok_or_else(|| broken(&task, &ran))
    };
    let few = total(FEW)?;
    Ok(total(FEW + MORE)?.saturating_sub(few) / MORE)
}

/// How long a probe takes for its pairs.
fn time_of(dashboard: &mut Dashboard<'_>, probe: &str, way: &str) -> Result<Duration, Outcome> {
    let task = dashboard.place.program(probe, "").with([&TIMED.to_string(), way]);
    let started = Instant::now();
    let ran = dashboard.run(&task);
    // Processor time where the system tells it: wall time counts how often the command is looked at, too.
    let took = if ran.cpu.is_zero() { started.elapsed() } else { ran.cpu };
    if ran.succeeded() { Ok(took) } else { Err(broken(&task, &ran)) }
}

/// The program in a message of cargo's.
fn executable(line: &str) -> Option<String> {
    let message: Value = serde_json::from_str(line).ok()?;
    message["executable"].as_str().map(str::to_owned)
}

/// The count in callgrind's last words: "I   refs:      12,345".
fn refs(output: &str) -> Option<u64> {
    let line = output.lines().find(|line| line.contains("refs:"))?;
    let digits: String = line.split_once("refs:")?.1.chars().filter(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_tools_are_understood() {
        assert_eq!(refs("==1== \n==1== I   refs:      21,952,900\n"), Some(21_952_900));
        assert_eq!(refs("==1== no counts\n"), None);
        let line = r#"{"reason":"compiler-artifact","executable":"/t/dist/hot_pair","fresh":true}"#;
        assert_eq!(executable(line).as_deref(), Some("/t/dist/hot_pair"));
        assert_eq!(executable(r#"{"executable":null}"#), None);
    }

    #[test]
    fn one_way_beyond_its_bound_is_enough_to_fail() {
        let with = |count, uncounted| Counted {
            ways: vec![("address", 100), ("sized", count)],
            uncounted,
            recorded: 250,
            edge: Err("there is no gcc".to_owned()),
        };
        assert!(with(MAX, 90).holds());
        assert!(!with(MAX + 1, 90).holds());
        assert!(!with(MAX, 89).holds(), "statistics take more than a tenth");
        assert!(!Counted { recorded: 251, ..with(MAX, 90) }.holds(), "recording takes too much");
        assert!(!Counted { ways: Vec::new(), recorded: 0, ..with(1, 0) }.holds());
        let edge = |count| Ok(vec![("stream", 1, 2), ("default", count, 290)]);
        assert!(Counted { edge: edge(290), ..with(MAX, 90) }.holds());
        assert!(!Counted { edge: edge(291), ..with(MAX, 90) }.holds());
        let text = with(7, 95).to_string();
        assert!(text.contains("freed by address 100, freed by sized 7; "), "{text}");
        assert!(text.contains("statistics 5 of 100, 5.0 %, at most 10 %; "), "{text}");
        assert!(text.ends_with("through C: not measured, there is no gcc"), "{text}");
        let text = Counted { edge: edge(270), ..with(7, 95) }.to_string();
        assert!(text.ends_with("through C: stream 1 (at most 2), default 270 (at most 290)"));
        let text = time_text(125);
        assert!(text.ends_with("1.25 times as long as Rust's, at most 1.50"), "{text}");
    }
}
