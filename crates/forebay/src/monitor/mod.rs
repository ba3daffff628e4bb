//! Lets other processes of the same user observe a process: `forebay monitor` attaches to any process that has a pool
//! and the setting `monitor` ([`config`](crate::config)), for example from `FOREBAY_MONITOR=on` in its environment.
//!
//! ```text
//!   pools ────┐                         thread "forebay-monitor"             forebay monitor, or your program
//!   engines ──┼─ one ProcessSnapshot ── \0forebay.monitor/UID/PID/N  ──────> connect, read one line of JSON
//!   buffers ──┘   made when asked for   listens; reads nothing; same user
//! ```
//!
//! The thread starts with the first pool that has the setting. It sleeps until a reader connects, and answers with one
//! snapshot, of schema "forebay.process.v1". This adds no work to the program's calls: pools, engines and buffers keep
//! these figures anyway. If the system refuses the socket, the program runs without it.
//!
//! # How readers can affect the program
//!
//! * Abstract sockets have no file: the system frees the name when the process ends, in whatever way, and nothing is
//!   left behind. They have no permissions either, so each side checks the user of the other.
//! * Other users can neither read it nor block readers: their connections are closed at once, and a name that they took
//!   is recognised by the user of its socket ([`Endpoint::connect`]).
//! * The thread reads nothing from its peer. It waits at most a quarter of a second for a peer that does not read, and
//!   holds no lock meanwhile.
//! * Snapshots are taken at most twenty times a second, for all readers together; further readers get the last one.
//! * A snapshot lists at most [64 pools](ProcessSnapshot::MAX_POOLS), with the top streams and tags of each. Of the
//!   environment and the arguments it has the rank, the name that the settings give, and the file name of a script; no
//!   paths.
//!
//! While the thread reads a pool or engine, it holds a reference to it, for microseconds. If the program drops its own
//! last reference just then, the pool is dropped on this thread, as may happen on the upkeep thread.
//!
//! # Locks
//!
//! A process-wide lock guards the list of sources, and nothing is called under it. Reading a pool takes its heap lock
//! and enters its threads' caches, as [`Pool::statistics`](crate::Pool::statistics) does.

mod program;
#[cfg(target_os = "linux")]
mod reader;
#[cfg(target_os = "linux")]
mod service;
mod snapshot;
#[cfg(test)]
mod tests;
#[cfg(not(target_os = "linux"))]
mod unsupported;

use core::time::Duration;

use crate::sync::fork::ForkSafeMutex;

#[cfg(target_os = "linux")]
pub use reader::{Connection, endpoints};
#[cfg(target_os = "linux")]
pub(crate) use service::start;
pub(crate) use snapshot::shown_name;
pub use snapshot::{
    BufferCopies, DirectionTotals, LatencyBucket, ManagerStatistics, ProcessEngine, ProcessPool,
    ProcessSnapshot, StreamTotals, TagTotals,
};
#[cfg(not(target_os = "linux"))]
pub(crate) use unsupported::start;
#[cfg(not(target_os = "linux"))]
pub use unsupported::{Connection, endpoints};

/// A readable copy of forebay in a process of this user. A process has one, unless it contains forebay twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Endpoint {
    /// The process.
    pub pid: u32,
    /// The number of the copy in the process: 0 for the first, unless another process has taken that name.
    pub copy: u32,
}

impl Endpoint {
    /// The first copy of forebay in a process, whether it exists or not.
    pub fn of(pid: u32) -> Self {
        Self { pid, copy: 0 }
    }
}

/// The sources of the snapshot's parts. These modules lie above this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Pools,
    #[cfg(feature = "host")]
    Engines,
    Buffers,
}

/// Adds its part to the snapshot.
pub(crate) type Source = fn(&mut ProcessSnapshot);

static SOURCES: ForkSafeMutex<[Option<Source>; 3]> = ForkSafeMutex::new([None; 3]);

/// Registers `source` for a part of later snapshots.
pub(crate) fn provide(part: Part, source: Source) {
    if let Some(place) = SOURCES.lock().get_mut(part as usize) {
        *place = Some(source);
    }
}

/// Takes a snapshot of this process, whether the setting `monitor` is on or off.
pub fn snapshot() -> ProcessSnapshot {
    let mut snapshot = ProcessSnapshot::of_this_process();
    // Copy the list, so that it is not locked while a source takes its own locks.
    let sources = *SOURCES.lock();
    for source in sources.into_iter().flatten() {
        source(&mut snapshot);
    }
    snapshot
}

/// Why a process cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MonitorError {
    /// No process with this id listens: it does not have `monitor` on, has no pool, is in another network namespace, or
    /// has ended.
    #[error(
        "process {pid} does not answer: it was not started with FOREBAY_MONITOR=on (the setting monitor), has no pool yet, \
         or has ended"
    )]
    NotFound {
        /// The process.
        pid: u32,
    },
    /// Another user's process has taken the name.
    #[error("process {pid} is of user {owner}; only that user can attach to it")]
    OtherUser {
        /// The process.
        pid: u32,
        /// Its user.
        owner: u32,
    },
    /// The process accepts no connection now: its backlog is full.
    #[error(
        "process {pid} takes no connection: the line before its socket is full; it may be stopped, or another user has \
         taken its name"
    )]
    Busy {
        /// The process.
        pid: u32,
    },
    /// No complete answer came in time; the process may be stopped.
    #[error(
        "process {pid} gave {received} B and no whole answer in {waited:.1?}; it may be stopped"
    )]
    NoAnswer {
        /// The process.
        pid: u32,
        /// How long we waited.
        waited: Duration,
        /// Number of bytes received.
        received: usize,
    },
    /// The answer is longer than any genuine one.
    #[error("process {pid} answered more than {most} B, which no forebay does")]
    TooLong {
        /// The process.
        pid: u32,
        /// The longest answer that is accepted.
        most: usize,
    },
    /// A system call failed.
    #[error("{call}: {message}")]
    System {
        /// The name of the call.
        call: &'static str,
        /// The system's error message.
        message: String,
    },
}
