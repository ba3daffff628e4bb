//! What the machine offers: memory and its limits, huge pages, NUMA nodes, process limits.
//!
//! Everything is read from the system's own files, below a root that tests can replace by a directory that describes
//! another machine:
//!
//! ```text
//!   System ── memory()      /proc/meminfo, and the memory limits of the control groups above us
//!          ├─ huge_pages()  /sys/kernel/mm/hugepages, /sys/kernel/mm/transparent_hugepage
//!          ├─ topology()    /sys/devices/system/node
//!          ├─ residence()   /proc/self/smaps: what memory of this process is made of
//!          └─ limits()      the process's limits, /proc/sys/vm, the processors it may use
//! ```
//!
//! No file is trusted: missing, truncated or malformed content becomes [`Unknown`] with the file and the reason, never
//! a panic or a guess.

mod control_group;
mod file;
mod huge_pages;
mod limits;
mod memory;
mod mounts;
mod residence;
mod topology;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use control_group::{GroupMemory, GroupVersion};
pub use file::{Cause, Reading, Unknown};
pub use huge_pages::{HugePagePool, HugePages, ShmemHuge, TransparentHuge};
pub use limits::{Limits, Overcommit, Processors, ResourceLimit};
pub use memory::{Bound, BoundSource, SystemMemory};
pub use residence::Residence;
pub use topology::{NumaNode, Topology};

/// The machine, seen through its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct System {
    root: PathBuf,
}

impl System {
    /// The machine this process runs on.
    pub fn here() -> Self {
        Self { root: PathBuf::from("/") }
    }

    /// A machine described below `root`: `root/proc`, `root/sys`, `root/etc`. For tests, and for inspecting a machine
    /// mounted elsewhere.
    ///
    /// The process's limits are then those in `root/proc/self/limits`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The root of the machine's files.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether this is the machine that the process runs on, so that system calls can be used.
    pub fn is_here(&self) -> bool {
        self.root == Path::new("/")
    }

    /// The location below the root of the absolute path `path`.
    pub fn place(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

impl Default for System {
    fn default() -> Self {
        Self::here()
    }
}
