//! The limits of one process: locked memory, open files, threads, mappings, processors.
//!
//! What each limits: a mapped page takes up to one mapping (adjacent ones that are adjacent in their file too are
//! merged), a page shared with other processes takes an open file, a reserved region takes a mapping and its address
//! space, a stream takes a thread, pages are parts of a file as large as files can be, and pinned memory is locked
//! memory.

use std::path::Path;

use forebay_core::Bytes;
use forebay_hal::named_enum;
use rustix::process::Resource;

use super::file::{parse_list, quoted};
use super::{Reading, System, Unknown};

/// The limits of this process, as the system shows them.
const LIMITS: &str = "/proc/self/limits";
/// What this process is, among it the processors it may use.
const STATUS: &str = "/proc/self/status";
/// Which users of this namespace are which outside.
const USERS: &str = "/proc/self/uid_map";
/// The bit among a process's capabilities that lets it lock memory past its limit: CAP_IPC_LOCK.
const MAY_LOCK: u64 = 1 << 14;
/// The bits of which one lets it start threads past its limit: CAP_SYS_ADMIN, CAP_SYS_RESOURCE.
const MAY_SPAWN: u64 = 1 << 21 | MAY_RAISE;
/// The bit that lets it raise its hard limits: CAP_SYS_RESOURCE.
const MAY_RAISE: u64 = 1 << 24;
/// The names of users.
const PASSWORDS: &str = "/etc/passwd";
/// The most mappings a process may have.
const MAX_MAPS: &str = "/proc/sys/vm/max_map_count";
/// How the system promises memory it may not have.
const OVERCOMMIT: &str = "/proc/sys/vm/overcommit_memory";

/// A soft limit, and the hard limit up to which a process may raise it. `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ResourceLimit {
    /// The limit in force.
    pub soft: Option<u64>,
    /// How far the process may raise it.
    pub hard: Option<u64>,
}

named_enum! {
    /// The system's overcommit policy, in the order of its numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum Overcommit {
        /// Refuses only obvious overcommitment.
        Heuristic = "heuristic",
        /// Promises everything.
        Always = "always",
        /// Promises no more than it can back: large reservations with access fail.
        Never = "never",
    }
}

/// The processors a process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processors {
    /// The processors that its affinity allows.
    pub allowed: Reading<Vec<u32>>,
    /// Its containers' quota in hundredths of a processor; `None` for no limit.
    pub quota_hundredths: Option<u64>,
}

impl Processors {
    /// How many threads can run in parallel, at least one; `None` if unknown.
    pub fn usable(&self) -> Option<u64> {
        let allowed = self.allowed.as_ref().ok()?.len() as u64;
        let quota = self.quota_hundredths.map_or(u64::MAX, |quota| quota.div_ceil(100));
        Some(allowed.min(quota).max(1))
    }
}

/// The limits of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of locked memory, which limits pinned memory.
    pub locked_memory: Reading<ResourceLimit>,
    /// Whether the limit on locked memory does not apply to this process.
    pub locks_freely: Reading<bool>,
    /// Open files. Each page shared with other processes takes one.
    pub open_files: Reading<ResourceLimit>,
    /// Bytes of address space, which limits regions.
    pub address_space: Reading<ResourceLimit>,
    /// Bytes of one file, including the memory files of pages. Writing a longer one ends the process with a signal.
    pub file_size: Reading<ResourceLimit>,
    /// Threads of this user, including those of other processes. Each stream takes one.
    pub threads: Reading<ResourceLimit>,
    /// Whether the limit on threads does not apply to this process.
    pub spawns_freely: Reading<bool>,
    /// Whether this process may raise its hard limits.
    pub raises_freely: Reading<bool>,
    /// Mappings. Each mapped page and each hole between two may take one.
    pub max_maps: Reading<u64>,
    /// The overcommit policy.
    pub overcommit: Reading<Overcommit>,
    /// The processors.
    pub processors: Processors,
}

impl Limits {
    /// The limit on locked memory, if known and finite.
    pub fn locked_bytes(&self) -> Option<Bytes> {
        if self.locks_freely == Ok(true) {
            return None;
        }
        self.locked_memory.as_ref().ok()?.soft.map(Bytes::new)
    }
}

impl System {
    /// Reads the limits of this process.
    pub fn limits(&self) -> Limits {
        Limits {
            locked_memory: self.ceiling("Max locked memory", Resource::Memlock),
            locks_freely: self.has_one_of(MAY_LOCK),
            open_files: self.ceiling("Max open files", Resource::Nofile),
            address_space: self.ceiling("Max address space", Resource::As),
            file_size: self.ceiling("Max file size", Resource::Fsize),
            threads: self.ceiling("Max processes", Resource::Nproc),
            spawns_freely: self.spawns_freely(),
            raises_freely: self.has_one_of(MAY_RAISE),
            max_maps: self.number(MAX_MAPS),
            overcommit: self.overcommit(),
            processors: Processors {
                allowed: self.allowed_processors(),
                quota_hundredths: self.processor_quota(),
            },
        }
    }

    /// The limit on `resource`: from the system itself where that is this machine, else from the
    /// line of the file that begins with `name`.
    fn ceiling(&self, name: &str, resource: Resource) -> Reading<ResourceLimit> {
        if self.is_here() {
            let limit = rustix::process::getrlimit(resource);
            return Ok(ResourceLimit { soft: limit.current, hard: limit.maximum });
        }
        let text = self.text(LIMITS)?;
        let missing = || Unknown::malformed(Path::new(LIMITS), format!("has no line \"{name}\""));
        let rest = text.lines().find_map(|line| line.strip_prefix(name)).ok_or_else(missing)?;
        let mut words = rest.split_whitespace();
        let mut limit = || match words.next()? {
            "unlimited" => Some(None),
            number => number.parse().ok().map(Some),
        };
        match (limit(), limit()) {
            (Some(soft), Some(hard)) => Ok(ResourceLimit { soft, hard }),
            _ => Err(Unknown::malformed(
                Path::new(LIMITS),
                format!("{name}: expected two limits, found {}", quoted(rest)),
            )),
        }
    }

    /// Whether this process has one of `capabilities` in a way that lifts a limit.
    ///
    /// A capability counts only in the first namespace of users: inside a container's own the
    /// process may be shown to have it while the system goes by the limit all the same.
    fn has_one_of(&self, capabilities: u64) -> Reading<bool> {
        let digits = self.status("CapEff:")?;
        let held = u64::from_str_radix(digits.trim(), 16)
            .map_err(|_| Unknown::malformed(Path::new(STATUS), "has no readable CapEff"))?;
        if held & capabilities == 0 {
            return Ok(false);
        }
        self.is_first_namespace()
    }

    /// Whether this process may have more threads than the limit says. To the first namespace's
    /// root it does not apply, whatever capabilities were taken away.
    fn spawns_freely(&self) -> Reading<bool> {
        if self.user()? == 0 && self.is_first_namespace()? {
            return Ok(true);
        }
        self.has_one_of(MAY_SPAWN)
    }

    /// Whether this process is in the first namespace of users: the one that maps every user there
    /// can be to itself.
    fn is_first_namespace(&self) -> Reading<bool> {
        let users = self.text(USERS)?;
        Ok(users.split_whitespace().eq(["0", "0", "4294967295"]))
    }

    /// The number of the user this process runs as.
    pub fn user(&self) -> Reading<u32> {
        let line = self.status("Uid:")?;
        // The first of four is the real one, which limits go by.
        line.split_whitespace().next().and_then(|number| number.parse().ok()).ok_or_else(|| {
            let found = quoted(&line);
            Unknown::malformed(Path::new(STATUS), format!("Uid: expected numbers, found {found}"))
        })
    }

    /// The name of user number `user`; `None` if the list of users lacks it.
    pub fn user_name(&self, user: u32) -> Option<String> {
        let list = self.text(PASSWORDS).ok()?;
        list.lines().find_map(|line| {
            let mut fields = line.split(':');
            let (name, _password, number) = (fields.next()?, fields.next()?, fields.next()?);
            (number.parse() == Ok(user)).then(|| name.to_owned())
        })
    }

    /// What stands behind `name` in the description of this process.
    fn status(&self, name: &str) -> Reading<String> {
        let text = self.text(STATUS)?;
        let rest = text.lines().find_map(|line| line.strip_prefix(name));
        let missing = || Unknown::malformed(Path::new(STATUS), format!("has no line \"{name}\""));
        rest.map(str::to_owned).ok_or_else(missing)
    }

    fn overcommit(&self) -> Reading<Overcommit> {
        let number: usize = self.number(OVERCOMMIT)?;
        Overcommit::ALL.get(number).copied().ok_or_else(|| {
            let reason = format!("expected 0, 1 or 2, found {number}");
            Unknown::malformed(Path::new(OVERCOMMIT), reason)
        })
    }

    fn allowed_processors(&self) -> Reading<Vec<u32>> {
        let list = self.status("Cpus_allowed_list:")?;
        parse_list(&list).filter(|cpus| !cpus.is_empty()).ok_or_else(|| {
            let found = quoted(&list);
            let reason = format!("expected Cpus_allowed_list as 0-3,7, found {found}");
            Unknown::malformed(Path::new(STATUS), reason)
        })
    }
}
