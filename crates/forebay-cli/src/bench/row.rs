//! The result of a case, for programs.

use serde::Serialize;

use super::setup::BenchSetup;
use crate::replay::DeviceName;
use crate::settings::{Named, changed};

/// The id of the format. Existing keys keep their meaning.
const SCHEMA: &str = "forebay.bench.v1";

/// One case of one workload on one allocator.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Row {
    /// Always "forebay.bench.v1".
    pub schema: &'static str,
    /// The workload.
    pub bench: &'static str,
    /// The part of the workload.
    pub case: String,
    /// The device.
    pub device: DeviceName,
    /// The allocator.
    pub allocator: &'static str,
    /// The number of threads.
    pub threads: u64,
    /// The number of operations timed per round, over all threads.
    pub ops: u64,
    /// The number of rounds; the best one counts.
    pub rounds: u32,
    /// The clock of the figure: "host", this machine's clock, or "model", the cost table of the simulated device.
    pub clock: &'static str,
    /// The time of an operation: of all threads from the first to the last, over their operations.
    /// Null if it failed.
    pub ns_per_op: Option<f64>,
    /// The further cost of an operation's driver calls, by the cost table of the simulated device. Absent if the clock
    /// includes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_ns_per_op: Option<f64>,
    /// The figures of operations timed one by one, if the workload does that.
    #[serde(flatten)]
    pub each: Option<Each>,
    /// The ratio to the workload's yardstick in the same run: a pair of 512 B by mimalloc, or the pair without
    /// statistics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quotient: Option<f64>,
    /// The throughput divided by that of one thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed_up: Option<f64>,
    /// Further figures of the stress workloads; absent for all others.
    #[serde(flatten)]
    pub figures: Option<Figures>,
    /// The pool's non-default settings. Absent if there are none, and for other allocators.
    #[serde(skip_serializing_if = "Named::is_empty")]
    pub settings: Named,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Operations timed one by one, of all rounds. Each time includes reading the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Each {
    /// The shortest.
    pub min_ns: u64,
    /// The median.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 99.9th percentile.
    pub p99_9_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// The time of two readings of the clock with nothing in between.
    pub clock_ns: u64,
}

/// Further figures of a stress workload, each of which only some workloads have.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Figures {
    /// Calls with which the host waited for the device, in the whole case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_waits: Option<u64>,
    /// Event queries for each operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_events_per_op: Option<f64>,
    /// Driver calls for each operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_calls_per_op: Option<f64>,
    /// Bytes that the pool held before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_before_bytes: Option<u64>,
    /// Bytes that the pool held after.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_after_bytes: Option<u64>,
    /// Bytes free on the device before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_free_before_bytes: Option<u64>,
    /// Bytes free on the device after.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_free_after_bytes: Option<u64>,
    /// Bytes of main memory that the process gained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident_bytes: Option<u64>,
    /// The number of pools at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pools: Option<u64>,
    /// Bytes of device addresses that a pool reserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_bytes_per_pool: Option<u64>,
    /// Bytes of process addresses that the process gained with a pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtual_bytes_per_pool: Option<u64>,
    /// Why the case was left out or cut short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut_off: Option<String>,
    /// The targets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<Target>,
    /// Whether every target is met; null if there is none, or one could not be measured.
    pub ok: Option<bool>,
}

/// A figure with a bound.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Target {
    /// What is compared or counted.
    pub what: String,
    /// Its value; null if it could not be measured.
    pub value: Option<f64>,
    /// The bound.
    pub at_most: f64,
}

impl Target {
    /// Whether it is met; `None` if it could not be measured.
    pub(super) fn is_met(&self) -> Option<bool> {
        self.value.map(|value| value <= self.at_most)
    }
}

impl Each {
    /// The figures of `times`, in any order; `None` if there are none.
    pub(super) fn of(mut times: Vec<u64>, clock_ns: u64) -> Option<Self> {
        times.sort_unstable();
        let (min_ns, max_ns) = (times.first().copied()?, times.last().copied()?);
        let at = |parts: usize| {
            let rank = (times.len() * parts).div_ceil(1000).max(1);
            times.get(rank - 1).copied().unwrap_or(min_ns)
        };
        let (p50_ns, p99_ns, p99_9_ns) = (at(500), at(990), at(999));
        Some(Self { min_ns, p50_ns, p99_ns, p99_9_ns, max_ns, clock_ns })
    }
}

impl Row {
    /// A row without results.
    pub(super) fn of(
        bench: &'static str,
        case: impl Into<String>,
        setup: BenchSetup<'_>,
        allocator: &'static str,
    ) -> Self {
        Self {
            schema: SCHEMA,
            bench,
            case: case.into(),
            device: setup.place,
            allocator,
            threads: 1,
            ops: 0,
            rounds: 0,
            clock: "host",
            ns_per_op: None,
            driver_ns_per_op: None,
            each: None,
            quotient: None,
            speed_up: None,
            figures: None,
            settings: match allocator {
                "forebay" => changed(setup.settings),
                _ => Named::new(),
            },
            error: None,
        }
    }

    /// The time of an operation, including the driver's part.
    pub(crate) fn whole_ns(&self) -> Option<f64> {
        // The model's clock already includes the driver.
        match self.clock {
            "model" => self.ns_per_op,
            _ => Some(self.ns_per_op? + self.driver_ns_per_op.unwrap_or(0.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay::Settings;

    use super::*;
    use crate::bench::setup::Effort;
    use crate::replay::DeviceName;

    #[test]
    fn quantiles_are_those_of_all_times() {
        assert_eq!(Each::of(Vec::new(), 0), None);
        let times: Vec<u64> = (1..=1000).rev().collect();
        let each = Each::of(times, 7).unwrap();
        assert_eq!((each.min_ns, each.p50_ns, each.p99_ns, each.p99_9_ns), (1, 500, 990, 999));
        assert_eq!(each.max_ns, 1000);
        let one = Each::of(vec![5], 0).unwrap();
        assert_eq!((one.min_ns, one.p50_ns, one.p99_ns, one.p99_9_ns), (5, 5, 5, 5));
    }

    #[test]
    fn what_was_not_asked_for_is_not_there() {
        let plain = Settings::default();
        let setup = BenchSetup {
            place: DeviceName::SIM,
            effort: Effort::Quick,
            settings: &plain,
            foreign: &[],
        };
        let row = Row::of("MP-T", "1 MiB", setup, "forebay");
        let said = serde_json::to_string(&row).unwrap();
        for absent in ["min_ns", "quotient", "speed_up", "error", "each", "settings", "ok"] {
            assert!(!said.contains(absent), "{said}");
        }
        assert!(said.contains("\"ns_per_op\":null"), "{said}");
        let each = Each::of(vec![1, 2], 0);
        let said = serde_json::to_string(&Row { each, ..row }).unwrap();
        assert!(said.contains("\"p99_9_ns\":2"), "{said}");
    }
}
