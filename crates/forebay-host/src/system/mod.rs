//! What the machine offers: memory and who limits it, huge pages, NUMA nodes, limits.
//!
//! Everything is read from the files the system shows of itself, below a root that can be
//! replaced, so that a test lays out another machine in a directory:
//!
//! ```text
//!   System ── memory()      /proc/meminfo, and the memory limits of the control groups above us
//!          ├─ huge_pages()  /sys/kernel/mm/hugepages, /sys/kernel/mm/transparent_hugepage
//!          ├─ topology()    /sys/devices/system/node
//!          ├─ residence()   /proc/self/smaps: what memory of this process is made of
//!          └─ limits()      the process's limits, /proc/sys/vm, the processors it may use
//! ```
//!
//! No file is trusted: what is missing, cut off or nonsense becomes [`Unknown`] with the file and
//! the reason, and never a panic. A value that is unknown is not guessed.

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

    /// A machine laid out below `root`: `root/proc`, `root/sys`, `root/etc`. For tests, and for
    /// looking at a machine mounted elsewhere.
    ///
    /// The limits of the process are then those of `root/proc/self/limits`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where the machine's files begin.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether this is the machine the process runs on, so that the system can be asked directly.
    pub fn is_here(&self) -> bool {
        self.root == Path::new("/")
    }

    /// The place of `path`, an absolute path on the machine, below the root.
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
