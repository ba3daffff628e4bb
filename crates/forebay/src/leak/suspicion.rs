//! Which live buffers look like leaks: rules, each of which names its reason and its figures.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;

use forebay_core::{Bytes, counted};

use crate::buffer::{LineFigures, LiveBuffer};

/// Fewer buffers from one line say nothing: a program has some arrays that it keeps.
const MANY: u64 = 8;

/// How many times longer than the others a buffer lives that was forgotten.
const FAR_LONGER: u32 = 4;

/// Why buffers look like a leak.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Suspicion {
    /// Buffers from one line become more and more: so many are live, there were never more, and most that were made are.
    Growing {
        /// The line of the program that makes them.
        created_at: String,
        /// How many are live.
        live: u64,
        /// How many were made there.
        made: u64,
        /// Bytes of the live ones.
        bytes: Bytes,
        /// The age of the oldest.
        oldest: Duration,
    },
    /// A buffer lives far longer than the others from its line did.
    Outlived {
        /// The line of the program that made it.
        created_at: String,
        /// The buffer's number.
        id: u64,
        /// Its age.
        age: Duration,
        /// How many others from the line were dropped.
        dropped: u64,
        /// The longest that one of those lived.
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

/// The suspicions about buffers of at least that age, those about lines first.
pub(super) fn find(
    buffers: &[LiveBuffer],
    lines: &[LineFigures],
    older_than: Duration,
) -> Vec<Suspicion> {
    let mut by_line: BTreeMap<&str, Vec<&LiveBuffer>> = BTreeMap::new();
    for buffer in buffers.iter().filter(|buffer| buffer.age >= older_than) {
        by_line.entry(&buffer.created_at).or_default().push(buffer);
    }
    let (mut growing, mut single) = (Vec::new(), Vec::new());
    for (created_at, old) in by_line {
        let of_line = lines.iter().filter(|line| line.created_at.to_string() == created_at);
        // Of several managers, the one that has most.
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
            if buffer.figures == Default::default() {
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
