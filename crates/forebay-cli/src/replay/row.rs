//! The result of a pass, for programs.

use forebay::Settings;
use forebay_trace::PassReport;
use serde::Serialize;

use super::{DeviceName, Policy};
use crate::output::nanos;
use crate::settings::{Named, changed};

/// The id of the format. Existing keys keep their meaning.
const SCHEMA: &str = "forebay.replay.v1";

/// One pass of one run on one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Row {
    /// Always "forebay.replay.v1".
    pub schema: &'static str,
    /// The run.
    pub trace: String,
    /// The device.
    pub device: DeviceName,
    /// The allocator.
    pub policy: &'static str,
    /// The number of the pass, from 1.
    pub pass: u32,
    /// Allocations and frees played.
    pub ops: u64,
    /// The most the run asked for at once.
    pub peak_requested_bytes: u64,
    /// The most that was taken from the driver at once.
    pub peak_reserved_bytes: u64,
    /// The second over the first.
    pub ratio: f64,
    /// Time of an operation on this machine, the mean.
    pub mean_ns: f64,
    /// The middle one.
    pub p50_ns: u64,
    /// What one in a hundred exceeds.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Calls of the driver.
    pub driver_calls: u64,
    /// What they took: by the cost table on the simulated device, by the clock on others.
    pub driver_ns: u64,
    /// Pages mapped.
    pub maps: u64,
    /// Allocations that found no memory.
    pub ooms: u64,
    /// Whether what blocks hold was checked and found right; null where it was not checked.
    pub verified: Option<bool>,
    /// The pool's non-default settings. Absent if there are none, and for models.
    #[serde(skip_serializing_if = "Named::is_empty")]
    pub settings: Named,
}

impl Row {
    /// The row of a pass of `trace` under `policy`, which was played with `settings`.
    pub fn new(
        trace: &str,
        device: DeviceName,
        (policy, settings): (Policy, &Settings),
        report: &PassReport,
    ) -> Self {
        Self {
            schema: SCHEMA,
            trace: trace.to_owned(),
            device,
            policy: policy.name(),
            pass: report.pass,
            ops: report.operations,
            peak_requested_bytes: report.peak_requested.get(),
            peak_reserved_bytes: report.peak_reserved.get(),
            ratio: report.ratio(),
            mean_ns: report.latency.mean(),
            p50_ns: report.latency.percentile(50),
            p99_ns: report.latency.percentile(99),
            max_ns: report.latency.most(),
            driver_calls: report.driver.calls,
            driver_ns: nanos(report.driver.time),
            maps: report.driver.maps,
            ooms: report.out_of_memory,
            verified: report.verified.as_ref().map(|verdict| verdict.mismatches == 0),
            settings: match policy {
                Policy::Forebay => changed(settings),
                Policy::Model(_) => Named::new(),
            },
        }
    }
}
