//! The doctor's findings, as plain data. The text and the JSON only render it.
//!
//! An unknown figure is `None` (`null`), with the reason in the section's `unknown`. Sizes are whole bytes in fields
//! named `*_bytes`.

use core::fmt;

use forebay_hal::DeviceKind;
use forebay_host::system::{Cause, Unknown};
use serde::Serialize;

use crate::report::data::Advice;

/// The name and version of this layout. Fields may be added under the same version; none is removed or changes its
/// meaning.
pub const SCHEMA: &str = "forebay.doctor.v1";

/// All findings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The version of forebay that made the report.
    pub version: &'static str,
    /// Whether forebay works here, as in the exit status.
    pub well: bool,
    /// The verdict in a sentence.
    pub verdict: String,
    /// One row for each kind of device, or one for each device of a kind with several usable devices.
    pub devices: Vec<DeviceRow>,
    /// Host memory.
    pub memory: MemorySection,
    /// NUMA nodes.
    pub numa: NumaSection,
    /// Huge pages.
    pub huge_pages: HugePageSection,
    /// What one process may have.
    pub limits: LimitSection,
    /// The settings and their sources: the keys of pools, then the variables that this command reads.
    pub settings: Vec<Setting>,
    /// Variables that look like forebay's but are not read.
    pub ignored_settings: Vec<String>,
    /// What to fix.
    pub problems: Vec<Problem>,
    /// Shortages of the GPUs and of running processes that use forebay, as `forebay monitor` warns of them.
    pub running: Vec<String>,
    /// Advice for the recorded run that was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RunSection>,
}

/// Advice for a recorded run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunSection {
    /// The run.
    pub trace: String,
    /// The advice of `forebay report`, without that on larger batches.
    pub advice: Vec<Advice>,
}

impl Report {
    /// Says what all the rest comes to: forebay works here where no device that should work failed,
    /// and no setting is refused.
    pub(super) fn judge(&mut self) {
        self.well = self.devices.iter().all(|row| row.status != Status::Broken)
            && !self.problems.iter().any(|problem| problem.fault);
        let ready = self.devices.iter().filter(|row| row.status == Status::Ready);
        let ready: Vec<String> = ready.map(DeviceRow::name).collect();
        let ready = match ready.as_slice() {
            [] => "no device was opened".to_owned(),
            [one] => format!("the {one} device is ready"),
            [first @ .., last] => format!("the {} and {last} devices are ready", first.join(", ")),
        };
        let state = match self.well {
            true => format!("forebay works here: {ready}"),
            false => format!("forebay does not work here as it is set up: {ready}"),
        };
        let mend = match self.problems.len() {
            0 => "nothing to fix".to_owned(),
            1 => "one thing to fix".to_owned(),
            count => format!("{count} things to fix"),
        };
        self.verdict = format!("{state}; {mend}");
    }
}

/// The status of a kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Status {
    /// It was opened, and did a small piece of work.
    Ready,
    /// It should be usable, but could not be opened or failed the work.
    Broken,
    /// The machine has it; this version of forebay does not drive it.
    Found,
    /// Something it needs is not on this machine.
    Missing,
    /// It belongs to another platform or machine.
    NotHere,
}

impl Status {
    /// The name for the text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Broken => "broken",
            Self::Found => "found",
            Self::Missing => "missing",
            Self::NotHere => "not here",
        }
    }
}

/// One kind of device, or one device of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceRow {
    /// The name of the kind, as used in commands.
    pub kind: &'static str,
    /// Its number, for a device that has one: commands take "cuda:0".
    pub ordinal: Option<u32>,
    /// Its status.
    pub status: Status,
    /// The same in a sentence.
    pub summary: String,
    /// What was found: cards, drivers, libraries.
    pub seen: Vec<String>,
    /// What is missing.
    pub missing: Vec<String>,
    /// How to get what is missing.
    pub cure: Option<Fix>,
    /// What it can do, for a device that was opened.
    pub capabilities: Vec<String>,
    /// All its memory, for a device that was opened.
    pub total_bytes: Option<u64>,
    /// Its free memory, for a device that was opened.
    pub free_bytes: Option<u64>,
    /// How fast data gets there and back, for a device that was opened and has memory of its own.
    pub transfers: Option<TransferSection>,
}

/// The results of a short measurement of transfers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TransferSection {
    /// Pinned memory to the device: the limit.
    pub upload_limit_bytes_per_s: u64,
    /// Pinned memory from the device: the limit.
    pub download_limit_bytes_per_s: u64,
    /// Ordinary memory to the device, by the transfer engine.
    pub upload_bytes_per_s: u64,
    /// Ordinary memory from the device, by the transfer engine.
    pub download_bytes_per_s: u64,
    /// The threads that copy on the host.
    pub threads: usize,
    /// The size of a piece.
    pub chunk_bytes: u64,
    /// Whether they copy past the caches.
    pub past_caches: bool,
    /// How long the measurement took.
    pub took_ms: u64,
}

impl DeviceRow {
    /// A row with nothing in it yet.
    pub(super) fn new(kind: DeviceKind, status: Status, summary: impl Into<String>) -> Self {
        Self {
            kind: kind.name(),
            ordinal: None,
            status,
            summary: summary.into(),
            seen: Vec::new(),
            missing: Vec::new(),
            cure: None,
            capabilities: Vec::new(),
            total_bytes: None,
            free_bytes: None,
            transfers: None,
        }
    }

    /// Its name in commands: "host", "cuda:0".
    pub fn name(&self) -> String {
        match self.ordinal {
            Some(ordinal) => format!("{}:{ordinal}", self.kind),
            None => self.kind.to_owned(),
        }
    }

    /// The same with `seen`.
    pub(super) fn seen(mut self, seen: Vec<String>) -> Self {
        self.seen = seen;
        self
    }

    /// The same with what is missing and how to get it.
    pub(super) fn lacking(mut self, missing: Vec<String>, cure: Fix) -> Self {
        self.missing = missing;
        self.cure = Some(cure);
        self
    }
}

/// Host memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemorySection {
    /// The most this process can hold.
    pub usable_total_bytes: Option<u64>,
    /// Who says so.
    pub usable_total_whence: Option<String>,
    /// The memory available now, including reclaimable page cache.
    pub usable_free_bytes: Option<u64>,
    /// Who says so.
    pub usable_free_whence: Option<String>,
    /// The machine's memory.
    pub machine_total_bytes: Option<u64>,
    /// The machine's available memory, including reclaimable page cache.
    pub machine_available_bytes: Option<u64>,
    /// Total swap.
    pub swap_total_bytes: Option<u64>,
    /// Free swap.
    pub swap_free_bytes: Option<u64>,
    /// Whether a container limits this process to less than the machine has.
    pub contained: bool,
    /// Why a figure is not known.
    pub unknown: Vec<Unread>,
}

/// NUMA nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NumaSection {
    /// The nodes by number; one where the machine shows none.
    pub nodes: Vec<NodeRow>,
    /// Whether the single node is assumed, because the machine shows none.
    pub assumed: bool,
    /// Why a figure is not known.
    pub unknown: Vec<Unread>,
}

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeRow {
    /// The system's number for it.
    pub id: u32,
    /// Its processors as "0-3,7".
    pub cpus: Option<String>,
    /// All its memory.
    pub total_bytes: Option<u64>,
    /// Its free memory, page cache not counted; of an assumed node, with it.
    pub free_bytes: Option<u64>,
    /// The distance to each node, in order; 10 is itself.
    pub distances: Option<Vec<u32>>,
}

/// Huge pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HugePageSection {
    /// Whether explicit huge pages are granted, or why not, in a sentence.
    pub summary: String,
    /// Whether explicit huge pages are available now.
    pub granted: bool,
    /// How to get explicit huge pages, where the machine has empty pools of them.
    pub cure: Option<Fix>,
    /// The pools, smallest pages first.
    pub pools: Vec<PoolRow>,
    /// The setting for a process's own memory.
    pub transparent: Option<String>,
    /// Whether a process's own memory can get huge pages under it.
    pub transparent_granted: Option<bool>,
    /// The setting for memory files.
    pub shmem: Option<String>,
    /// Whether memory files can get huge pages under it.
    pub shmem_granted: Option<bool>,
    /// Why a figure is not known.
    pub unknown: Vec<Unread>,
}

/// The pool of huge pages of one size. Counts are pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolRow {
    /// The size of one page.
    pub page_bytes: u64,
    /// Pages in the pool.
    pub total: Option<u64>,
    /// Unused pages.
    pub free: Option<u64>,
    /// Free pages promised to others.
    pub reserved: Option<u64>,
    /// Pages beyond the number set aside.
    pub surplus: Option<u64>,
    /// How many surplus pages may be made on demand.
    pub overcommit: Option<u64>,
    /// Pages available now.
    pub obtainable: Option<u64>,
}

/// What one process may have. In a limit's `soft` and `hard`, `None` is no limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LimitSection {
    /// Locked memory in bytes.
    pub locked_memory: Option<LimitRow>,
    /// Whether the limit on locked memory does not apply to this process.
    pub locks_freely: Option<bool>,
    /// Open files.
    pub open_files: Option<LimitRow>,
    /// Addresses in bytes.
    pub address_space: Option<LimitRow>,
    /// The size of one file in bytes; pages lie in memory files.
    pub file_size: Option<LimitRow>,
    /// Threads of this user, all processes together.
    pub threads: Option<LimitRow>,
    /// Whether the limit on threads does not apply to this process.
    pub spawns_freely: Option<bool>,
    /// Whether this process may raise its hard limits.
    pub raises_freely: Option<bool>,
    /// The user the limits are those of, as files of limits have it: a name, or "1000:1000" where
    /// it has none.
    pub user: Option<String>,
    /// Mappings.
    pub max_map_count: Option<u64>,
    /// How the system promises memory: heuristic, always or never.
    pub overcommit: Option<&'static str>,
    /// Threads that can truly run at once.
    pub processors: Option<u64>,
    /// The processors as "0-3,7".
    pub processors_allowed: Option<String>,
    /// Hundredths of a processor's time that containers allow; `None` for no limit.
    pub processor_quota_hundredths: Option<u64>,
    /// Why a figure is not known.
    pub unknown: Vec<Unread>,
}

/// A limit and how far the process itself may raise it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LimitRow {
    /// What holds now.
    pub soft: Option<u64>,
    /// How far it may be raised without rights.
    pub hard: Option<u64>,
}

/// Whose a setting is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Owner {
    /// Pools that are made from the environment: a key of the library.
    Pool,
    /// This command: a variable.
    Command,
}

/// A setting in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Its name: a key of the library, or a variable.
    pub name: &'static str,
    /// Whose it is.
    pub of: Owner,
    /// What it is; `None` where it is a variable that is not set.
    pub value: Option<String>,
    /// Where that came from, in a word: "default", "preset", "file", "conf" or "environment".
    pub source: &'static str,
    /// The exact source: the line of a file, or the name of a variable.
    pub whence: String,
    /// Whether it can change while a program runs.
    pub changeable: bool,
    /// What it does.
    pub effect: &'static str,
}

/// A problem and its fix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// What is wrong, with figures.
    pub what: String,
    /// What it leads to.
    pub why: String,
    /// What to do about it.
    pub cure: Fix,
    /// Whether something that should work does not until this is mended. The exit status tells.
    pub fault: bool,
}

/// What to do, and what to type for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Fix {
    /// What to do, in words.
    pub how: String,
    /// Commands for a shell, each to be typed as it stands; none where there is nothing to type.
    pub commands: Vec<String>,
}

impl Fix {
    /// Something to do that no command does.
    pub(super) fn advice(how: impl Into<String>) -> Self {
        Self { how: how.into(), commands: Vec::new() }
    }

    /// Something to type, and what it does.
    pub(super) fn command(how: impl Into<String>, command: impl Into<String>) -> Self {
        Self { how: how.into(), commands: vec![command.into()] }
    }
}

/// A file that would have told something, and why it did not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unread {
    /// The file.
    pub file: String,
    /// What is wrong with it.
    pub reason: String,
    /// The same as a kind: absent, forbidden, unreadable or malformed.
    pub cause: &'static str,
}

impl Unread {
    /// What [`cause`](Self::cause) says of a file that is not there.
    pub(super) const ABSENT: &'static str = "absent";
    /// What it says of a file that this user may not read.
    pub(super) const FORBIDDEN: &'static str = "forbidden";
}

impl From<Unknown> for Unread {
    fn from(unknown: Unknown) -> Self {
        Self {
            file: unknown.file.display().to_string(),
            reason: unknown.reason,
            cause: match unknown.cause {
                Cause::Absent => Self::ABSENT,
                Cause::Forbidden => Self::FORBIDDEN,
                Cause::Malformed => "malformed",
                _ => "unreadable",
            },
        }
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.reason)
    }
}
