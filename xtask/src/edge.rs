//! What a hot pair costs through the C edge: counted beside that of Rust, and timed beside it.
//!
//! The probe is a C program with the shared library, as it is installed. Instructions are held below a
//! bound of their own: a call into a shared library saves registers, and asks the system's loader where
//! the thread's own data are, which Rust's inlined pair does not. What users feel is the time, so that is
//! what is compared: both probes in turn, in one run, the quickest of each.

use std::time::{Duration, Instant};

use crate::dist;
use crate::instructions::{self, NotCounted, per_pair};
use crate::setup::Runner;
use crate::workplace::Workplace;

/// The most times as long as Rust's that a pair may take, in hundredths.
const MOST_TIME: u64 = 150;

/// The most instructions of a pair, by way. Counts of this compiler and system (gcc 12, glibc 2.36), and
/// a little more.
const WAYS: [(&str, u64); 4] = [("default", 248), ("stream", 275), ("sized", 258), ("pinned", 285)];

/// How many pairs are timed at once: half a second or so. Where the system puts stack and libraries differs from run to
/// run and changes the time of the pair by half, so many short runs say more than few long ones.
const PAIRS: &str = "20000000";

/// How often each probe is timed. On a machine with others on it the quickest of few may still be one
/// that was disturbed: then it is timed more often before it is said to be slow.
const ROUNDS: u32 = 5;
const MOST_ROUNDS: u32 = 80;

/// How long building the library may be silent, as one, on two busy cores; and the probe; and a run of it.
const BUILD: Duration = Duration::from_secs(1200);
const COMPILE: Duration = Duration::from_secs(60);
const RUN: Duration = Duration::from_secs(120);

/// The instructions of a pair.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    /// Way, instructions, and how many there may be.
    pub(crate) ways: Vec<(&'static str, u64, u64)>,
}

impl Edge {
    /// Whether it is within bounds.
    pub(crate) fn holds(&self) -> bool {
        !self.ways.is_empty() && self.ways.iter().all(|&(_, count, most)| count <= most)
    }
}

impl core::fmt::Display for Edge {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "through C:")?;
        for (index, (way, count, most)) in self.ways.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma} {way} {count} (at most {most})")?;
        }
        Ok(())
    }
}

/// The time of a pair over that of Rust's, in hundredths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ratio(u64);

impl Ratio {
    /// Whether it is within bounds.
    pub(crate) fn holds(self) -> bool {
        self.0 <= MOST_TIME
    }
}

impl core::fmt::Display for Ratio {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let hundredths = |number: u64| format!("{}.{:02}", number / 100, number % 100);
        let (time, most) = (hundredths(self.0), hundredths(MOST_TIME));
        write!(f, "a hot pair through C takes {time} times as long as Rust's, at most {most}")
    }
}

/// Builds the library and the probe, and counts. The inner error says why that is not possible here.
pub(crate) fn count(
    place: &Workplace,
    run: &mut Runner<'_>,
) -> Result<Result<Edge, String>, NotCounted> {
    let probe = match build(place, run)? {
        Ok(probe) => probe,
        Err(reason) => return Ok(Err(reason)),
    };
    let around = per_pair(place, run, &probe, "none")?;
    let mut ways = Vec::new();
    for (way, most) in WAYS {
        ways.push((way, per_pair(place, run, &probe, way)?.saturating_sub(around), most));
    }
    Ok(Ok(Edge { ways }))
}

/// Times both probes, which are built first where they are not; nothing else may run meanwhile. The inner
/// error says why that is not possible here.
pub(crate) fn time(
    place: &Workplace,
    run: &mut Runner<'_>,
) -> Result<Result<Ratio, String>, NotCounted> {
    let rust = instructions::build(place, run)?;
    let probe = match build(place, run)? {
        Ok(probe) => probe,
        Err(reason) => return Ok(Err(reason)),
    };
    let (mut ours, mut theirs) = (Duration::MAX, Duration::MAX);
    let mut ratio = Ratio(u64::MAX);
    for round in 0..MOST_ROUNDS {
        theirs = theirs.min(time_of(place, run, &rust, "address")?);
        ours = ours.min(time_of(place, run, &probe, "default")?);
        let hundredths = ours.as_micros() * 100 / theirs.as_micros().max(1);
        ratio = Ratio(u64::try_from(hundredths).unwrap_or(u64::MAX));
        if round + 1 >= ROUNDS && ratio.holds() {
            break;
        }
    }
    Ok(Ok(ratio))
}

/// Builds the library and the probe, and says where the probe is. The inner error says why that is not possible
/// here.
fn build(place: &Workplace, run: &mut Runner<'_>) -> Result<Result<String, String>, NotCounted> {
    if !run(&place.program("gcc", ["--version"], COMPILE)).succeeded() {
        return Ok(Err("there is no gcc".to_owned()));
    }
    // With the feature that the Rust probe has, which adds functions that nothing in the library calls: so both
    // are made of one build of the crates.
    let features = Some("--features=forebay/uncounted");
    let build = place.cargo(dist::shared_library(features), BUILD);
    let built = run(&build);
    if !built.succeeded() {
        return Err(NotCounted::Failed(Box::new((build, built))));
    }
    let folder = dist::target(place).join("dist").display().to_string();
    let probe = format!("{folder}/c_hot_pair");
    let source = "crates/forebay-capi/tests/c/hot_pair.c";
    let (path, at_run) =
        (format!("-L{folder}"), format!("-Wl,--disable-new-dtags,-rpath,{folder}"));
    let include = "-Icrates/forebay-capi/include";
    let words =
        ["-std=c11", "-O2", include, source, "-o", &probe, &path, "-lforebay_capi", &at_run];
    let compile = place.program("gcc", words, COMPILE);
    let compiled = run(&compile);
    if !compiled.succeeded() {
        return Err(NotCounted::Failed(Box::new((compile, compiled))));
    }
    Ok(Ok(probe))
}

/// How long a probe takes for its pairs.
fn time_of(
    place: &Workplace,
    run: &mut Runner<'_>,
    probe: &str,
    way: &str,
) -> Result<Duration, NotCounted> {
    let task = place.program(probe, [PAIRS, way], RUN);
    let started = Instant::now();
    let ran = run(&task);
    // Processor time where the system tells it: wall time counts how often the command is looked at, too.
    let took = if ran.cpu.is_zero() { started.elapsed() } else { ran.cpu };
    if ran.succeeded() { Ok(took) } else { Err(NotCounted::Failed(Box::new((task, ran)))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bound_that_is_passed_is_enough_to_fail() {
        let edge = |count| Edge { ways: vec![("stream", 1, 2), ("default", count, 290)] };
        assert!(edge(290).holds());
        assert!(!edge(291).holds());
        assert!(!Edge { ways: Vec::new() }.holds());
        let text = edge(270).to_string();
        assert_eq!(text, "through C: stream 1 (at most 2), default 270 (at most 290)");
        assert!(Ratio(MOST_TIME).holds());
        assert!(!Ratio(MOST_TIME + 1).holds());
        let text = Ratio(125).to_string();
        assert!(text.ends_with("1.25 times as long as Rust's, at most 1.50"), "{text}");
    }
}
