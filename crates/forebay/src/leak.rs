//! Leaks: everything live in the process, with its age and origin, and what looks suspicious about it.
//!
//! ```
//! let memory = forebay::buffer::BufferManager::host()?;
//! let forgotten = memory.buffer::<f32>(1000)?;
//! let report = forebay::leaks();
//! println!("{report}");
//! # assert!(report.buffers.iter().any(|buffer| buffer.length == 1000));
//! # drop(forgotten);
//! # Ok::<(), forebay::Error>(())
//! ```
//!
//! [`report_at_exit`] prints the same when the process ends, if anything is left. [`capture_stacks`] records the call
//! stack that makes each later buffer. The settings `leak_report` and `leak_stacks` ([`config`](crate::config)) do both
//! without changing the program: `FOREBAY_LEAK_REPORT=on`.

mod suspicion;

use core::fmt;
use core::time::Duration;
use std::io::Write;

use forebay_core::{Bytes, counted};

use crate::PoolId;
use crate::buffer::{LineStatistics, LiveBuffer, LiveShared, leaked_shared};
use crate::config::Settings;
use crate::pool::live_blocks;
use crate::report::{LeakedBlock, largest};

pub use crate::buffer::capture_stacks;
pub use suspicion::Suspicion;

/// Everything live in the process: at the end of a program, its leaks. `{}` prints it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LeakReport {
    /// Live buffers, grouped by manager, oldest first.
    pub buffers: Vec<LiveBuffer>,
    /// Shared buffers that this process holds, grouped by manager, oldest first.
    pub shared: Vec<LiveShared>,
    /// Pools with live blocks, which include the device memory of live buffers.
    pub pools: Vec<PoolLeaks>,
    /// Live host memory, oldest first.
    #[cfg(feature = "host")]
    pub host: Vec<crate::host::LiveAllocation>,
    lines: Vec<LineStatistics>,
}

/// The live blocks of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolLeaks {
    /// The pool.
    pub pool: PoolId,
    /// Number of live blocks.
    pub blocks: usize,
    /// Their total size.
    pub bytes: Bytes,
    /// The largest of them, at most [`PoolLeaks::MAX`].
    pub largest: Vec<LeakedBlock>,
}

impl PoolLeaks {
    /// The most blocks listed per pool.
    pub const MAX: usize = 4;
}

/// Lists everything live in this process: buffers, shared buffers, blocks of pools, host memory. A forked child has
/// none of its parent's.
pub fn leaks() -> LeakReport {
    let pools = live_blocks().into_iter().map(|(pool, live)| {
        let blocks = live.len();
        let (bytes, largest) = largest(live, PoolLeaks::MAX);
        PoolLeaks { pool, blocks, bytes, largest }
    });
    LeakReport {
        buffers: crate::buffer::leaks(),
        shared: leaked_shared(),
        pools: pools.filter(|pool| pool.blocks > 0).collect(),
        #[cfg(feature = "host")]
        host: crate::host::HostAllocation::live(),
        lines: crate::buffer::lines(),
    }
}

/// Prints [`leaks`] to standard error, once, if anything is live when this process returns from `main` or calls `exit`.
/// Forked children print nothing: the leaks would be their parent's.
pub fn report_at_exit() {
    crate::sync::exit::at_exit(|| {
        let report = leaks();
        if !report.is_empty() {
            // We cannot report a failed write at exit.
            let _ = writeln!(std::io::stderr().lock(), "forebay: live at exit: {report}");
        }
    });
}

impl Settings {
    /// Enables leak reports and stacks for the process if these settings request them. Never disables them.
    pub(crate) fn switch_on_leak_aids(&self) {
        if self.leak_stacks() {
            capture_stacks(true);
        }
        if self.leak_report() {
            report_at_exit();
        }
    }
}

impl LeakReport {
    /// Whether nothing is live.
    pub fn is_empty(&self) -> bool {
        #[cfg(feature = "host")]
        let host = self.host.is_empty();
        #[cfg(not(feature = "host"))]
        let host = true;
        self.buffers.is_empty() && self.shared.is_empty() && self.pools.is_empty() && host
    }

    /// Buffers of at least that age that look like leaks, with the reasons.
    pub fn suspicions(&self, older_than: Duration) -> Vec<Suspicion> {
        suspicion::find(&self.buffers, &self.lines, older_than)
    }
}

impl fmt::Display for LeakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks = self.pools.iter().map(|pool| pool.blocks as u64).sum::<u64>();
        write!(
            f,
            "{}, {}, {} of pools",
            counted(self.buffers.len() as u64, "buffer"),
            counted(self.shared.len() as u64, "shared buffer"),
            counted(blocks, "block")
        )?;
        #[cfg(feature = "host")]
        write!(f, ", {}", counted(self.host.len() as u64, "host allocation"))?;
        for buffer in &self.buffers {
            let LiveBuffer { length, element, created_at, age, statistics, .. } = buffer;
            write!(
                f,
                "\n  buffer of {length} {element} from {created_at}, {age:.1?} old: {} on the host, {} on the device",
                Bytes::new(statistics.host_bytes),
                Bytes::new(statistics.device_bytes)
            )?;
            if let Some(last) = statistics.last_copy() {
                write!(f, ", last copied {:.1?} ago", last.elapsed())?;
            }
            write!(f, "{:#}", buffer.stack)?;
        }
        for shared in &self.shared {
            let LiveShared { name, element, length, bytes, age, created_at, .. } = shared;
            let size = Bytes::new(*bytes);
            write!(
                f,
                "\n  shared buffer \"{name}\" of {length} {element}, {size}, from {created_at}, {age:.1?} old"
            )?;
            write!(f, "{:#}", shared.stack)?;
        }
        for pool in &self.pools {
            let blocks = counted(pool.blocks as u64, "block");
            write!(f, "\n  {}: {blocks}, {} in all", pool.pool, pool.bytes)?;
            for block in &pool.largest {
                write!(f, "\n    {} of {}", block.address, block.size)?;
            }
        }
        #[cfg(feature = "host")]
        for live in &self.host {
            let (size, at, age) = (live.span.size(), live.created_at, live.age);
            write!(f, "\n  host allocation of {size} from {at}, {age:.1?} old")?;
        }
        for suspicion in self.suspicions(Duration::ZERO) {
            write!(f, "\n  suspicious: {suspicion}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
