//! The results of the demonstration, as plain data.

use std::io::{self, Write};
use std::path::PathBuf;

use forebay::Settings;
use forebay::config::Sources;
use forebay_core::{Bytes, GIB, KIB, counted};
use forebay_hal::Call;
use forebay_sim::CostModel;
use forebay_trace::{ReplayOptions, Statistics, Trace, replay, sample};
use serde::Serialize;

use crate::bench::setup::{BenchSetup, Effort};
use crate::bench::{self, hot};
use crate::output::{Fault, json_lines, nanos};
use crate::progress::Progress;
use crate::replay::{DeviceName, Policy, Row, open_device};
use crate::report;
use crate::settings::in_words;

/// The id of the summary's form. A key that is there stays there with the same meaning.
const SCHEMA: &str = "forebay.demo.v1";

/// What the simulated device has: the memory of one H200, 139.8 GiB.
const H200: Bytes = Bytes::new(1398 * GIB / 10);

/// The pair that is timed.
const PAIR: Bytes = Bytes::new(64 * KIB);

/// Room beyond what the run asks for, without which the host is not played on: a machine that is
/// full for a demonstration is no use to anybody.
const ROOM: Bytes = Bytes::gib(1);

/// How far a bar has to go: one step for each replay, one for each turn of the pairs, and one for the report.
pub(super) const STEPS: u64 = 6 + 201 + 1;

/// What was found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Story {
    /// The run.
    pub trace: String,
    /// What it comes to.
    pub sums: Statistics,
    /// The pool on this machine's own device, cold and warm.
    pub here: Vec<Row>,
    /// Every policy on the simulated H200, cold and warm.
    pub there: Vec<Row>,
    /// The hot pair, and mimalloc's.
    pub pairs: Vec<bench::Row>,
    /// What the driver takes for a pair of that size, by its cost table.
    pub driver_pair_ns: u64,
    /// Settings of the environment that are left aside: the story is that of the defaults.
    pub left_aside: Vec<String>,
    /// The page that shows the run on the simulated H200, or why there is none.
    pub report: Result<PathBuf, String>,
}

/// What forebay saves against another allocator, in the first pass.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Saving {
    /// Against whom.
    pub policy: &'static str,
    /// What it takes more than forebay does; below zero where it takes less.
    pub bytes: i128,
    /// That over what it takes.
    pub share: f64,
    /// What it spends in the driver more than forebay does, both passes together.
    pub driver_ns: i128,
}

/// The summary, as programs read it.
#[derive(Serialize)]
struct Summary<'a> {
    schema: &'static str,
    trace: &'a str,
    device: Option<DeviceName>,
    peak_requested_bytes: u64,
    savings: Vec<Saving>,
    hot_pair_ns: Option<f64>,
    mimalloc_pair_ns: Option<f64>,
    quotient: Option<f64>,
    driver_pair_ns: u64,
    settings_left_aside: &'a [String],
    report: Option<&'a PathBuf>,
}

impl Story {
    /// Finds it all out.
    pub(super) fn live(progress: &Progress) -> Result<Self, Fault> {
        let trace = sample::gpt2_train()?;
        let sums = trace.statistics();
        let place = best_place(sums.peak_requested);
        progress.doing("on this machine");
        let settings = Settings::default();
        let here = played(&trace, place, None, (Policy::Forebay, &settings))?;
        progress.advance(1);
        let mut there = Vec::new();
        for &policy in Policy::ALL {
            progress.doing(policy.name());
            there.extend(played(&trace, DeviceName::SIM, Some(H200), (policy, &settings))?);
            progress.advance(1);
        }
        progress.doing("a hot pair");
        let terms = BenchSetup { place, effort: Effort::Full, settings: &settings, foreign: &[] };
        let pairs = hot::against_mimalloc(terms, &[PAIR], progress)?;
        let price = |call| CostModel::H200.call(call, PAIR);
        let pair = price(Call::Allocate).saturating_add(price(Call::Free));
        let driver_pair_ns = nanos(pair);
        progress.doing("the report");
        let report = report::write_for_demo(&trace, H200);
        progress.advance(1);
        let trace = trace.name().to_owned();
        let left_aside = left_aside();
        Ok(Self { trace, sums, here, there, pairs, driver_pair_ns, left_aside, report })
    }

    /// What did not go as it should: a replay that ran out of memory, a pair that failed.
    pub(super) fn faults(&self) -> Vec<String> {
        let short = self.here.iter().chain(&self.there).filter(|row| row.ooms > 0).map(|row| {
            let (policy, device, pass, ooms) = (row.policy, row.device, row.pass, row.ooms);
            let short = counted(ooms, "allocation");
            format!("{policy} on {device}, pass {pass}: {short} ran out of memory")
        });
        let failed = self.pairs.iter().filter_map(|row| {
            let why = row.error.as_ref()?;
            Some(format!("timing {} with {}: {why}", row.case, row.allocator))
        });
        short.chain(failed).collect()
    }

    /// Whether a policy found memory for all of the run, in every pass on the simulated device.
    pub(super) fn is_whole(&self, policy: &str) -> bool {
        self.there.iter().filter(|row| row.policy == policy).all(|row| row.ooms == 0)
    }

    /// A policy's pass on the simulated device.
    pub(super) fn pass(&self, policy: &str, pass: u32) -> Option<&Row> {
        self.there.iter().find(|row| row.policy == policy && row.pass == pass)
    }

    /// The pool's pair, or mimalloc's.
    pub(super) fn pair(&self, allocator: &str) -> Option<&bench::Row> {
        self.pairs.iter().find(|row| row.allocator == allocator)
    }

    /// What is saved against each of the others: of those that played all of the run. Who takes less
    /// because allocations failed saves nothing, and there is nothing to tell where forebay is that.
    pub fn savings(&self) -> Vec<Saving> {
        let ours = self.pass("forebay", 1).filter(|ours| self.is_whole(ours.policy));
        let Some(ours) = ours else { return Vec::new() };
        let driver = |policy: &str| -> i128 {
            let passes = self.there.iter().filter(|row| row.policy == policy);
            passes.map(|row| i128::from(row.driver_ns)).sum()
        };
        let others = self.there.iter().filter(|row| row.pass == 1 && row.policy != ours.policy);
        others
            .filter(|other| self.is_whole(other.policy))
            .map(|other| {
                let bytes =
                    i128::from(other.peak_reserved_bytes) - i128::from(ours.peak_reserved_bytes);
                Saving {
                    policy: other.policy,
                    bytes,
                    share: bytes as f64 / other.peak_reserved_bytes.max(1) as f64,
                    driver_ns: driver(other.policy) - driver(ours.policy),
                }
            })
            .collect()
    }

    /// One object a line: the rows, then the summary.
    pub(super) fn json(&self, out: &mut impl Write) -> io::Result<()> {
        json_lines(self.here.iter().chain(&self.there), &mut *out)?;
        json_lines(&self.pairs, &mut *out)?;
        let ours = self.pair("forebay");
        let summary = Summary {
            schema: SCHEMA,
            trace: &self.trace,
            device: self.here.first().map(|row| row.device),
            peak_requested_bytes: self.sums.peak_requested.get(),
            savings: self.savings(),
            hot_pair_ns: ours.and_then(|row| row.ns_per_op),
            mimalloc_pair_ns: self.pair("mimalloc").and_then(|row| row.ns_per_op),
            quotient: ours.and_then(|row| row.quotient),
            driver_pair_ns: self.driver_pair_ns,
            settings_left_aside: &self.left_aside,
            report: self.report.as_ref().ok(),
        };
        json_lines([summary], out)
    }
}

/// What the environment sets that is not the default anyway, allowed or not, each with its source.
fn left_aside() -> Vec<String> {
    let examined = Sources::here().examine();
    let refused = examined.refused.iter().map(ToString::to_string);
    in_words(&examined.settings).into_iter().chain(refused).collect()
}

/// A GPU or else the host, where it has room for a run of that peak; the simulated device elsewhere.
fn best_place(peak: Bytes) -> DeviceName {
    let has_room = |place: &DeviceName| {
        let device = open_device(*place, None, true).ok();
        let info = device.and_then(|device| device.memory_info().ok());
        info.is_some_and(|info| info.free >= peak.saturating_add(ROOM))
    };
    [DeviceName::cuda(0), DeviceName::HOST].into_iter().find(has_room).unwrap_or(DeviceName::SIM)
}

/// A cold and a warm pass of one policy.
fn played(
    trace: &Trace,
    place: DeviceName,
    capacity: Option<Bytes>,
    (policy, settings): (Policy, &Settings),
) -> Result<Vec<Row>, String> {
    let said = |error: &dyn core::fmt::Display| format!("{}: {policy}: {error}", trace.name());
    let device = open_device(place, capacity, false).map_err(|error| said(&error))?;
    let mut player = policy.player(device, settings).map_err(|error| said(&error))?;
    let reports =
        replay(trace, &mut *player, ReplayOptions::new()).map_err(|error| said(&error))?;
    let row = |report| Row::new(trace.name(), place, (policy, settings), report);
    Ok(reports.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A story of one pass in which `short` of the policies lack memory.
    fn story(short: &[&str]) -> Story {
        let trace = sample::gpt2_train().unwrap();
        let settings = Settings::default();
        let row = |(name, policy): (&&str, &Policy)| {
            let capacity = if short.contains(name) { Bytes::gib(8) } else { H200 };
            played(&trace, DeviceName::SIM, Some(capacity), (*policy, &settings)).unwrap()
        };
        let named = [("forebay", &Policy::ALL[0]), ("torch", &Policy::ALL[1])];
        let there = named.iter().flat_map(|(name, policy)| row((name, policy))).collect();
        Story {
            trace: trace.name().to_owned(),
            sums: trace.statistics(),
            here: Vec::new(),
            there,
            pairs: Vec::new(),
            driver_pair_ns: 1,
            left_aside: Vec::new(),
            report: Err("not written".to_owned()),
        }
    }

    #[test]
    fn who_lacked_memory_saves_nothing_and_is_told() {
        let whole = story(&[]);
        assert_eq!((whole.savings().len(), whole.faults()), (1, Vec::new()));
        for short in ["forebay", "torch"] {
            let story = story(&[short]);
            assert_eq!(story.savings(), [], "{short}");
            let faults = story.faults();
            assert_eq!(faults.len(), 2, "a pass each: {faults:?}");
            assert!(faults[0].starts_with(&format!("{short} on sim, pass 1: ")), "{faults:?}");
            assert!(faults[0].ends_with(" allocations ran out of memory"), "{faults:?}");
        }
    }
}
