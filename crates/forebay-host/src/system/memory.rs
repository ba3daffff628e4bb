//! How much memory this process may use, and whether the machine or a container limits it.

use core::fmt;
use std::path::{Path, PathBuf};

use forebay_core::Bytes;

use super::control_group::MemoryGroups;
use super::file::kilobytes;
use super::{GroupMemory, Reading, System, Unknown};

/// The machine's own account of its memory.
const MEMINFO: &str = "/proc/meminfo";

/// The source of a memory bound.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BoundSource {
    /// The memory of the machine.
    Machine,
    /// A container: the control group with this file.
    Container(PathBuf),
}

impl fmt::Display for BoundSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => f.write_str("the machine's memory"),
            Self::Container(file) => write!(f, "the container's limit in {}", file.display()),
        }
    }
}

/// A bound on memory and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The number of bytes.
    pub bytes: Bytes,
    /// The source.
    pub whence: BoundSource,
}

/// The memory of the machine and of the containers this process is in, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemMemory {
    /// The machine's memory.
    pub total: Reading<Bytes>,
    /// The memory available without swapping: free and reclaimable.
    pub available: Reading<Bytes>,
    /// Total swap.
    pub swap_total: Reading<Bytes>,
    /// Free swap.
    pub swap_free: Reading<Bytes>,
    /// The control groups of this process, its own first, then their ancestors.
    pub groups: Vec<GroupMemory>,
    /// Control group files that exist but could not be parsed; their limits, if any, are not counted.
    pub unknown: Vec<Unknown>,
}

impl SystemMemory {
    /// The most this process can ever hold: the machine's memory or the tightest container limit.
    pub fn usable_total(&self) -> Reading<Bytes> {
        self.total_bound().map(|bound| bound.bytes)
    }

    /// The memory available now: the machine's available memory or the room in the tightest container. Never above
    /// [`usable_total`](Self::usable_total).
    pub fn usable_free(&self) -> Reading<Bytes> {
        self.free_bound().map(|bound| bound.bytes)
    }

    /// [`usable_total`](Self::usable_total) and its source.
    pub fn total_bound(&self) -> Reading<Bound> {
        let machine = Bound { bytes: self.total.clone()?, whence: BoundSource::Machine };
        Ok(self.tightest(machine, GroupMemory::ceiling))
    }

    /// [`usable_free`](Self::usable_free) and its source.
    pub fn free_bound(&self) -> Reading<Bound> {
        let machine = Bound { bytes: self.available.clone()?, whence: BoundSource::Machine };
        let free = self.tightest(machine, GroupMemory::room);
        // The figures are read one after the other, while others take and give back.
        Ok(self.total_bound().ok().filter(|total| total.bytes < free.bytes).unwrap_or(free))
    }

    /// Whether a container limits this process to less than the machine has.
    pub fn is_contained(&self) -> bool {
        self.total_bound().is_ok_and(|bound| bound.whence != BoundSource::Machine)
    }

    fn tightest(
        &self,
        machine: Bound,
        of_group: impl Fn(&GroupMemory) -> Option<(Bytes, PathBuf)>,
    ) -> Bound {
        let groups = self.groups.iter().filter_map(of_group);
        groups.fold(machine, |tightest, (bytes, file)| {
            if bytes < tightest.bytes {
                Bound { bytes, whence: BoundSource::Container(file) }
            } else {
                tightest
            }
        })
    }
}

impl System {
    /// Reads the memory figures.
    pub fn memory(&self) -> SystemMemory {
        let text = self.text(MEMINFO);
        let size = |key| {
            let text = text.as_ref().map_err(Unknown::clone)?;
            kilobytes(Path::new(MEMINFO), text, key)
        };
        let MemoryGroups { groups, unknown } = self.memory_groups();
        SystemMemory {
            total: size("MemTotal"),
            available: size("MemAvailable"),
            swap_total: size("SwapTotal"),
            swap_free: size("SwapFree"),
            groups,
            unknown,
        }
    }
}
