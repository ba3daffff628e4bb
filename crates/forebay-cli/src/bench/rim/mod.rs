//! The RIM workloads put a pool under extreme load: very many threads, streams, holes, pending uses and
//! pools, and requests that cannot be satisfied.
//!
//! Each workload chooses its own devices, a simulated one unless its rows say otherwise. Targets are
//! ratios within one run, or counts, so they hold on any machine. A missed target is a figure, not a
//! failure: the exit status does not change. A case that would take too long is stopped early, and its
//! row says where.

mod cliffs;
mod crowd;
mod holes;
mod pools;
mod probe;
mod refuse;
mod snapshot;
mod streams;
pub(super) mod text;
mod thread_slots;
mod tools;
mod uses;
mod workload;

pub use workload::Rim;

use super::ground::BenchSetup;
use super::row::Row;

/// Measures a workload.
pub(super) fn measure(rim: Rim, setup: BenchSetup<'_>) -> Result<Vec<Row>, String> {
    match rim {
        Rim::ThreadSlots => thread_slots::measure(setup),
        Rim::Streams => streams::measure(setup),
        Rim::Holes => holes::measure(setup),
        Rim::Uses => uses::measure(setup),
        Rim::Crowd => crowd::measure(setup),
        Rim::Probe => probe::measure(setup),
        Rim::Refuse => refuse::measure(setup),
        Rim::Snapshot => snapshot::measure(setup),
        Rim::Pools => pools::measure(setup),
        Rim::Cliffs => cliffs::measure(setup),
    }
}
