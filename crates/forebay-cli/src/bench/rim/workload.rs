//! The RIM workloads by name.

use crate::bench::ground::BenchSetup;
use crate::bench::row::{Figures, Row};

/// A workload of extreme load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rim {
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

impl Rim {
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

    /// The name in commands and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ThreadSlots => "RIM-SEATS",
            Self::Streams => "RIM-STREAMS",
            Self::Holes => "RIM-HOLES",
            Self::Uses => "RIM-USES",
            Self::Crowd => "RIM-CROWD",
            Self::Probe => "RIM-PROBE",
            Self::Refuse => "RIM-REFUSE",
            Self::Snapshot => "RIM-SNAPSHOT",
            Self::Pools => "RIM-POOLS",
            Self::Cliffs => "RIM-CLIFFS",
        }
    }

    /// What it does, in one line.
    pub const fn about(self) -> &'static str {
        match self {
            Self::ThreadSlots => {
                "pairs on the first thread, on the 258th, and on 10,000 live threads"
            }
            Self::Streams => "pairs on one thread that cycles through 1 to 1,024 streams",
            Self::Holes => "random allocations among 1,000 to 500,000 holes",
            Self::Uses => "growth while other streams still use up to 50,000 freed blocks",
            Self::Crowd => "growth while 16 to 200 threads are busy",
            Self::Probe => "a step that requests too much, fails, and falls back to less",
            Self::Refuse => "a request for 100 GiB of 140 GiB, 80 GiB of which others hold",
            Self::Snapshot => "snapshots of 117 GiB in 3,000 blocks, and growth during them",
            Self::Pools => "as many pools as one process can hold, up to 2,000",
            Self::Cliffs => {
                "one call beside ever more streams, holes, pages, threads, pools and scopes"
            }
        }
    }

    /// A row of this workload for the pool.
    pub(super) fn row(self, setup: BenchSetup<'_>, case: impl Into<String>) -> Row {
        self.row_of(setup, case, "forebay")
    }

    /// A row of this workload for `allocator`.
    pub(super) fn row_of(
        self,
        setup: BenchSetup<'_>,
        case: impl Into<String>,
        allocator: &'static str,
    ) -> Row {
        Row {
            figures: Some(Figures::default()),
            rounds: 1,
            ..Row::of(self.name(), case, setup, allocator)
        }
    }
}
