//! Leaks: what of forebay is live in the whole process, since when, from where, and what about it looks wrong.
//!
//! ```
//! let memory = forebay::buffer::Memory::host()?;
//! let forgotten = memory.buffer::<f32>(1000)?;
//! let report = forebay::leaks();
//! println!("{report}");
//! # assert!(report.buffers.iter().any(|buffer| buffer.length == 1000));
//! # drop(forgotten);
//! # Ok::<(), forebay::Error>(())
//! ```
//!
//! [`report_at_exit`] prints the same when the process ends, if anything is left. [`capture_stacks`] adds to each buffer
//! made from then on the stack of the call that made it. The settings `leak_report` and `leak_stacks`
//! ([`config`](crate::config)) do both without a change to the program: `FOREBAY_LEAK_REPORT=on`.

mod suspicion;

use core::fmt;
use core::time::Duration;
use std::io::Write;

use forebay_core::{Bytes, counted};

use crate::PoolId;
use crate::buffer::{LineFigures, LiveBuffer, LiveShared, leaked_shared};
use crate::config::Settings;
use crate::pool::live_blocks;
use crate::report::LeakedBlock;

pub use crate::buffer::capture_stacks;
pub use suspicion::Suspicion;

/// What is live in the process: at the end of a program, its leaks. `{}` shows it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LeakReport {
    /// Live buffers, those of each manager from the oldest on.
    pub buffers: Vec<LiveBuffer>,
    /// Shared buffers that this process has, those of each manager from the oldest on.
    pub shared: Vec<LiveShared>,
    /// Pools with live blocks. Device memory of live buffers is among their blocks.
    pub pools: Vec<PoolLeaks>,
    /// Live host memory, the oldest first.
    #[cfg(feature = "host")]
    pub host: Vec<crate::host::LiveAllocation>,
    lines: Vec<LineFigures>,
}

/// The live blocks of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolLeaks {
    /// The pool.
    pub pool: PoolId,
    /// How many blocks.
    pub blocks: usize,
    /// The bytes in them.
    pub bytes: Bytes,
    /// The largest of them, at most [`PoolLeaks::MOST`].
    pub largest: Vec<LeakedBlock>,
}

impl PoolLeaks {
    /// The most blocks that are listed of a pool.
    pub const MOST: usize = 4;
}

/// What of forebay is live in this process: buffers, shared buffers, blocks of pools, host memory. Nothing of a parent's in
/// a forked child.
pub fn leaks() -> LeakReport {
    let pools = live_blocks().into_iter().map(|(pool, live)| {
        let mut largest: Vec<LeakedBlock> = live.into_iter().map(Into::into).collect();
        let bytes = largest.iter().fold(Bytes::ZERO, |sum, block| sum.saturating_add(block.size));
        let blocks = largest.len();
        largest.sort_unstable_by_key(|block| (core::cmp::Reverse(block.size), block.address));
        largest.truncate(PoolLeaks::MOST);
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

/// Prints [`leaks`] to the standard error stream, once, when this process ends by returning from `main` or by `exit`, if
/// anything is left then. Not in forked children, which would report what is their parent's.
pub fn report_at_exit() {
    crate::sync::exit::at_exit(|| {
        let report = leaks();
        if !report.is_empty() {
            // Nobody is left to hear that it could not be written.
            let _ = writeln!(std::io::stderr().lock(), "forebay: live at exit: {report}");
        }
    });
}

impl Settings {
    /// Switches on what `leak_report` and `leak_stacks` ask for, in the whole process. Switches nothing off.
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

    /// Which buffers of at least that age look like leaks, and why.
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
            let LiveBuffer { length, element, created_at, age, figures, .. } = buffer;
            write!(
                f,
                "\n  buffer of {length} {element} from {created_at}, {age:.1?} old: {} on the host, {} on the device",
                Bytes::new(figures.host_bytes),
                Bytes::new(figures.device_bytes)
            )?;
            if let Some(last) = figures.last_copy() {
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
