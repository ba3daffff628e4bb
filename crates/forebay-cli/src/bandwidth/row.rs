//! A measurement: the best of several rounds of one way of copying.

use core::time::Duration;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::ways::{Direction, Way};
use crate::output::Fault;
use crate::replay::DeviceName;

/// The id of the format. Existing keys keep their meaning.
const SCHEMA: &str = "forebay.bandwidth.v1";

/// One way at one size.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) schema: &'static str,
    pub(super) device: DeviceName,
    /// "SIZES", or the name of the workload.
    pub(super) workload: &'static str,
    /// "up" to the device, "down" from it, or "both" at once.
    pub(super) direction: &'static str,
    /// "pinned", "pinned_driver", "pinned_engine", "engine", "contract" or "driver"; workloads have further ones.
    pub(super) way: &'static str,
    /// The way, in the words of the table.
    #[serde(skip)]
    pub(super) words: &'static str,
    /// The number of transfers in a round.
    pub(super) transfers: u64,
    /// The bytes of each transfer, both directions together.
    pub(super) bytes: u64,
    /// The number of rounds; the best one counts.
    pub(super) rounds: u32,
    /// The time of the best round.
    pub(super) seconds: f64,
    pub(super) gb_per_s: f64,
    /// Processor time of all threads in that round.
    pub(super) cpu_seconds: f64,
}

/// What a row measures.
#[derive(Clone, Copy)]
pub(super) struct About {
    pub(super) workload: &'static str,
    pub(super) direction: Direction,
    /// The name in JSON, and the words in tables.
    pub(super) way: (&'static str, &'static str),
    pub(super) transfers: u64,
    pub(super) bytes: u64,
}

impl About {
    pub(super) fn of(workload: &'static str, direction: Direction, way: Way, bytes: u64) -> Self {
        Self { workload, direction, way: way.names(), transfers: 1, bytes }
    }
}

/// Measures the best of `rounds` rounds, after one that warms up: it creates slots and threads.
pub(super) fn measure(
    place: DeviceName,
    about: About,
    rounds: u32,
    mut round: impl FnMut() -> Result<(), Fault>,
) -> Result<Row, Fault> {
    let mut best = (Duration::MAX, Duration::ZERO);
    for number in 0..=rounds {
        let (began, cpu) = (Instant::now(), cpu_time());
        round()?;
        let took = began.elapsed();
        if number > 0 && took < best.0 {
            best = (took, cpu_time().saturating_sub(cpu));
        }
    }
    let About { workload, direction, way: (way, words), transfers, bytes } = about;
    let seconds = best.0.as_secs_f64();
    Ok(Row {
        schema: SCHEMA,
        device: place,
        workload,
        direction: direction.name(),
        way,
        words,
        transfers,
        bytes,
        rounds,
        seconds,
        gb_per_s: transfers.saturating_mul(bytes) as f64 / seconds.max(1e-9) / 1e9,
        cpu_seconds: best.1.as_secs_f64(),
    })
}

/// Processor time of all threads so far.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(now.tv_nsec).unwrap_or(0))
}

pub(super) fn to_usize(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}
