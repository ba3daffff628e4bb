//! The stress workloads put a pool under extreme load: very many threads, streams, holes, pending uses and
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
mod thread_slots;
mod tools;
mod uses;

use super::row::Row;
use super::setup::BenchSetup;
use crate::output::Fault;

/// A workload of extreme load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stress {
    /// A thread that starts while many others live, and very many threads.
    ThreadSlots,
    /// One thread that uses many streams in turn.
    Streams,
    /// A heap with many holes.
    Holes,
    /// Blocks freed while other streams still use them.
    Uses,
    /// Growth while many threads are busy.
    Crowd,
    /// A program whose every step makes a large request that fails.
    Probe,
    /// One request that the device cannot satisfy.
    Refuse,
    /// Snapshots of a full pool.
    Snapshot,
    /// Many pools in one process.
    Pools,
    /// One call, at a load and at ten and a hundred times that load.
    Cliffs,
}

/// The name in commands and files, what the workload does in one line, and what measures it.
type Entry = (&'static str, &'static str, fn(BenchSetup<'_>) -> Result<Vec<Row>, Fault>);

impl Stress {
    /// All of them, in the order in which they run.
    pub(crate) const ALL: [Self; 10] = [
        Self::ThreadSlots,
        Self::Streams,
        Self::Holes,
        Self::Uses,
        Self::Crowd,
        Self::Probe,
        Self::Refuse,
        Self::Snapshot,
        Self::Pools,
        Self::Cliffs,
    ];

    #[rustfmt::skip] // a table: one line for each
    const fn entry(self) -> Entry {
        match self {
            Self::ThreadSlots => ("STRESS-SEATS", "pairs on the first thread, on the 258th, and on 10,000 live threads", thread_slots::measure),
            Self::Streams => ("STRESS-STREAMS", "pairs on one thread that cycles through 1 to 1,024 streams", streams::measure),
            Self::Holes => ("STRESS-HOLES", "random allocations among 1,000 to 500,000 holes", holes::measure),
            Self::Uses => ("STRESS-USES", "growth while other streams still use up to 50,000 freed blocks", uses::measure),
            Self::Crowd => ("STRESS-CROWD", "growth while 16 to 200 threads are busy", crowd::measure),
            Self::Probe => ("STRESS-PROBE", "a step that requests too much, fails, and falls back to less", probe::measure),
            Self::Refuse => ("STRESS-REFUSE", "a request for 100 GiB of 140 GiB, 80 GiB of which others hold", refuse::measure),
            Self::Snapshot => ("STRESS-SNAPSHOT", "snapshots of 117 GiB in 3,000 blocks, and growth during them", snapshot::measure),
            Self::Pools => ("STRESS-POOLS", "as many pools as one process can hold, up to 2,000", pools::measure),
            Self::Cliffs => ("STRESS-CLIFFS", "one call beside ever more streams, holes, pages, threads, pools and scopes", cliffs::measure),
        }
    }

    /// The name in commands and files.
    pub const fn name(self) -> &'static str {
        self.entry().0
    }

    /// What it does, in one line.
    pub const fn about(self) -> &'static str {
        self.entry().1
    }

    pub(super) fn measure(self, setup: BenchSetup<'_>) -> Result<Vec<Row>, Fault> {
        let mut rows = (self.entry().2)(setup)?;
        rows.iter_mut().for_each(|row| row.bench = self.name());
        Ok(rows)
    }
}
