//! A process as others of the same user see it: `forebay monitor` attaches to any process that has a pool and the setting
//! `monitor` ([`config`](crate::config)), for example by `FOREBAY_MONITOR=on` in its environment.
//!
//! ```text
//!   pools ────┐                         thread "forebay-monitor"             forebay monitor, or your program
//!   engines ──┼─ one ProcessSnapshot ── \0forebay.monitor/UID/PID/N  ──────> connect, read one line of JSON
//!   buffers ──┘   made when asked for   listens; reads nothing; same user
//! ```
//!
//! The thread starts with the first pool that has the setting. It sleeps until a reader connects, and answers with one
//! snapshot, of schema "forebay.process.v1". Calls of the program do nothing for it: the figures are those that pools,
//! engines and buffers count anyway. If the system refuses the socket, the program goes on without it.
//!
//! # What a reader can do to the program
//!
//! * Sockets of this kind have no file: the system frees the name with the process, however that ends, and nothing is
//!   left behind. They have no permissions either, so each side checks the user of the other.
//! * Another user can neither read it nor keep others from it: their connections are closed at once, and names that they
//!   take are told by the user of the socket ([`Endpoint::connect`]).
//! * The thread reads nothing from its peer. It waits for a peer that does not read for a quarter of a second at most,
//!   and holds no lock meanwhile.
//! * A snapshot is made at most twenty times a second, for all readers together; others get the last one.
//! * A snapshot lists at most [64 pools](ProcessSnapshot::MOST_POOLS), with the top streams and tags of each, and no
//!   environment, arguments or paths.
//!
//! While a pool or engine is read, the thread has a reference to it, for microseconds. If the program drops the last
//! reference of its own just then, the pool ends on this thread, as it does on the upkeep thread.
//!
//! # Locks
//!
//! The list of what provides figures has a process-wide lock, under which nothing is called. Reading a pool takes its
//! heap lock and enters its threads' caches, as [`Pool::statistics`](crate::Pool::statistics) does.

#[cfg(not(target_os = "linux"))]
mod elsewhere;
mod figures;
#[cfg(target_os = "linux")]
mod reader;
#[cfg(target_os = "linux")]
mod service;
#[cfg(test)]
mod tests;

use core::fmt;
use core::time::Duration;

use crate::sync::fork::ForkSafeMutex;

#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::start;
#[cfg(not(target_os = "linux"))]
pub use elsewhere::{Connection, endpoints};
pub(crate) use figures::shown_name;
pub use figures::{
    BufferCopies, BufferManager, DirectionTotals, LatencyBucket, ProcessEngine, ProcessPool,
    ProcessSnapshot, StreamTotals, TagTotals,
};
#[cfg(target_os = "linux")]
pub use reader::{Connection, endpoints};
#[cfg(target_os = "linux")]
pub(crate) use service::start;

/// A copy of forebay in a process of this user that can be read. A process has one, unless forebay is in it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Endpoint {
    /// The process.
    pub pid: u32,
    /// Which copy of forebay in it: 0 for the first, unless another process has taken that name.
    pub copy: u32,
}

impl Endpoint {
    /// The first copy of forebay in a process, whether it is there or not.
    pub fn of(pid: u32) -> Self {
        Self { pid, copy: 0 }
    }
}

/// Who provides a part of the snapshot. The modules that do are above this one.
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

/// Has `source` asked for a part of each snapshot from now on.
pub(crate) fn provide(part: Part, source: Source) {
    if let Some(place) = SOURCES.lock().get_mut(part as usize) {
        *place = Some(source);
    }
}

/// This process now, whether the setting `monitor` is on or off.
pub fn snapshot() -> ProcessSnapshot {
    let mut snapshot = ProcessSnapshot::of_this_process();
    // Copied, so that the list is not locked while a source locks what it reads.
    let sources = *SOURCES.lock();
    for source in sources.into_iter().flatten() {
        source(&mut snapshot);
    }
    snapshot
}

/// Why a process cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MonitorError {
    /// No process with this number listens: it does not have `monitor` on, has no pool, is in another network namespace, or
    /// has ended.
    NotFound {
        /// The process.
        pid: u32,
    },
    /// Another user's process has the name.
    OtherUser {
        /// The process.
        pid: u32,
        /// Its user.
        owner: u32,
    },
    /// The process takes no connection now: its line is full.
    Busy {
        /// The process.
        pid: u32,
    },
    /// No whole answer came in time: the process may be stopped.
    NoAnswer {
        /// The process.
        pid: u32,
        /// How long it had.
        waited: Duration,
        /// How many bytes came.
        received: usize,
    },
    /// The answer is longer than any of forebay's.
    TooLong {
        /// The process.
        pid: u32,
        /// The longest that is read.
        most: usize,
    },
    /// The system refused a call.
    System {
        /// Which.
        call: &'static str,
        /// Its words.
        message: String,
    },
}

impl fmt::Display for MonitorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { pid } => write!(
                f,
                "process {pid} does not answer: it was not started with FOREBAY_MONITOR=on (the setting monitor), has no \
                 pool yet, or has ended"
            ),
            Self::OtherUser { pid, owner } => {
                write!(f, "process {pid} is of user {owner}; only that user can attach to it")
            }
            Self::Busy { pid } => write!(
                f,
                "process {pid} takes no connection: the line before its socket is full; it may be stopped, or another \
                 user has taken its name"
            ),
            Self::NoAnswer { pid, waited, received } => write!(
                f,
                "process {pid} gave {received} B and no whole answer in {waited:.1?}; it may be stopped"
            ),
            Self::TooLong { pid, most } => {
                write!(f, "process {pid} answered more than {most} B, which no forebay does")
            }
            Self::System { call, message } => write!(f, "{call}: {message}"),
        }
    }
}

impl core::error::Error for MonitorError {}
