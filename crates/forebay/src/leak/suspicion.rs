//! Rules that find live buffers that look like leaks, each with its reason and figures.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;

use forebay_core::{Bytes, counted};

use crate::buffer::{LineStatistics, LiveBuffer};

/// With fewer buffers from a line there is no suspicion: programs keep some arrays for good.
const MANY: u64 = 8;

/// A buffer is suspicious once it lives this many times longer than others of its line.
const FAR_LONGER: u32 = 4;

/// Why buffers look like a leak.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Suspicion {
    /// Buffers from one line keep growing in number: the current number is the peak, and most that were made are live.
    Growing {
        /// The line of the program that makes them.
        created_at: String,
        /// Number of live ones.
        live: u64,
        /// Number made there.
        made: u64,
        /// Their total size.
        bytes: Bytes,
        /// The age of the oldest.
        oldest: Duration,
    },
    /// A buffer outlives others from its line by far.
    Outlived {
        /// The line of the program that made it.
        created_at: String,
        /// The buffer's number.
        id: u64,
        /// Its age.
        age: Duration,
        /// Number of dropped buffers from the line.
        dropped: u64,
        /// The longest lifetime of those.
        longest: Duration,
    },
    /// A buffer was never used, on either side.
    NeverUsed {
        /// The line of the program that made it.
        created_at: String,
        /// The buffer's number.
        id: u64,
        /// Its age.
        age: Duration,
        /// The bytes it would need.
        bytes: Bytes,
    },
}

impl fmt::Display for Suspicion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Growing { created_at, live, made, bytes, oldest } => write!(
                f,
                "{created_at} has {live} live buffers of {made} made, {bytes} in all, and never had more; the oldest is \
                 {oldest:.1?} old"
            ),
            Self::Outlived { created_at, id, age, dropped, longest } => write!(
                f,
                "buffer {id} from {created_at} is {age:.1?} old; {} from that line lived for {longest:.1?} at most",
                counted(*dropped, "dropped buffer")
            ),
            Self::NeverUsed { created_at, id, age, bytes } => {
                write!(f, "buffer {id} of {bytes} from {created_at}, {age:.1?} old, was never used")
            }
        }
    }
}

/// Suspicions about buffers of at least that age, starting with those about lines.
pub(super) fn find(
    buffers: &[LiveBuffer],
    lines: &[LineStatistics],
    older_than: Duration,
) -> Vec<Suspicion> {
    let mut by_line: BTreeMap<&str, Vec<&LiveBuffer>> = BTreeMap::new();
    for buffer in buffers.iter().filter(|buffer| buffer.age >= older_than) {
        by_line.entry(&buffer.created_at).or_default().push(buffer);
    }
    let (mut growing, mut single) = (Vec::new(), Vec::new());
    for (created_at, old) in by_line {
        let of_line = lines.iter().filter(|line| line.created_at.to_string() == created_at);
        // With several managers, use the one with the most.
        let Some(line) = of_line.max_by_key(|line| line.live) else { continue };
        let created_at = created_at.to_owned();
        if old.len() as u64 >= MANY
            && line.live == line.most
            && line.live.saturating_mul(2) > line.made
        {
            let bytes = old.iter().map(|buffer| Bytes::new(buffer.bytes));
            growing.push(Suspicion::Growing {
                created_at: created_at.clone(),
                live: line.live,
                made: line.made,
                bytes: bytes.fold(Bytes::ZERO, Bytes::saturating_add),
                oldest: old.iter().map(|buffer| buffer.age).max().unwrap_or_default(),
            });
        }
        for buffer in old {
            let (id, age, created_at) = (buffer.id, buffer.age, created_at.clone());
            let dropped = line.made - line.live.min(line.made);
            if buffer.statistics == Default::default() {
                let bytes = Bytes::new(buffer.bytes);
                single.push(Suspicion::NeverUsed { created_at, id, age, bytes });
            } else if dropped >= MANY && age > line.longest.saturating_mul(FAR_LONGER) {
                let longest = line.longest;
                single.push(Suspicion::Outlived { created_at, id, age, dropped, longest });
            }
        }
    }
    growing.extend(single);
    growing
}
