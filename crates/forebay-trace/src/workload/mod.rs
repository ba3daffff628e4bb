//! Named workloads: the same requests to every allocator, for benchmarks and replays.
//!
//! ```text
//!   Workload ──► Sequence ──┬──► Trace            to replay, to convert, to compare by memory
//!                           └──► Script a thread  to time: steps over a few slots, no lookup
//! ```
//!
//! A figure gives the name of its workload, so that it can be reproduced, and the names are the same on every device. A
//! [`Sequence`] begins on a fresh allocator; its phases say what is warm-up and what is timed, and how. Random sizes
//! come from our own generator with a fixed seed, so every allocator gets the same ones.
//!
//! One operation is an allocation and a free, unless the workload says otherwise.
//!
//! ```
//! use forebay_core::Bytes;
//! use forebay_trace::workload::Workload;
//!
//! let workload: Workload = "MP-THR".parse()?;
//! let sequences = workload.sequences(Bytes::gib(16))?;
//! assert_eq!(sequences[0].trace().statistics().allocations, 10_000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod pairs;
mod script;
mod sequence;
#[cfg(test)]
mod tests;
mod training;

pub use script::{Script, Step};
pub use sequence::{Phase, Sequence, Timing};

use core::fmt;
use core::str::FromStr;

use forebay_core::Bytes;

use crate::InvalidEvent;

/// The workloads that concern allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Workload {
    /// Pairs of one size after one warm pair.
    MpT,
    /// Pairs of six sizes, each timed separately.
    MpLat,
    /// Many pairs of one size.
    MpThr,
    /// Pairs of sizes drawn from five.
    MpMix,
    /// Pairs on four threads at once.
    MpConc,
    /// Blocks held together and freed together, cold and warm.
    MpReuse,
    /// Small blocks that come and go, fifty at a time.
    ColabMix,
    /// Pairs of the same size, again and again.
    GeSame,
    /// Pairs of large blocks.
    GeLarge,
    /// The steps of training a small transformer.
    GeTransformer,
    /// A device that is nearly full, with holes.
    GePressure,
    /// Batches of varying size, first in, first out.
    GeVariable,
    /// Gradients that are held while activations churn.
    GeAccum,
    /// A hundred blocks held and released.
    DcAlloc,
    /// Requests that an allocator can serve from cached blocks.
    DcHit,
}

impl Workload {
    /// Every workload, in the order it is shown.
    pub const ALL: &'static [Self] = &[
        Self::MpT,
        Self::MpLat,
        Self::MpThr,
        Self::MpMix,
        Self::MpConc,
        Self::MpReuse,
        Self::ColabMix,
        Self::GeSame,
        Self::GeLarge,
        Self::GeTransformer,
        Self::GePressure,
        Self::GeVariable,
        Self::GeAccum,
        Self::DcAlloc,
        Self::DcHit,
    ];

    /// The name that figures give.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MpT => "MP-T",
            Self::MpLat => "MP-LAT",
            Self::MpThr => "MP-THR",
            Self::MpMix => "MP-MIX",
            Self::MpConc => "MP-CONC",
            Self::MpReuse => "MP-REUSE",
            Self::ColabMix => "COLAB-MIX",
            Self::GeSame => "GE-SAME",
            Self::GeLarge => "GE-LARGE",
            Self::GeTransformer => "GE-TRANSFORMER",
            Self::GePressure => "GE-PRESSURE",
            Self::GeVariable => "GE-VARIABLE",
            Self::GeAccum => "GE-ACCUM",
            Self::DcAlloc => "DC-ALLOC",
            Self::DcHit => "DC-HIT",
        }
    }

    /// A one-line description.
    pub const fn about(self) -> &'static str {
        match self {
            Self::MpT => "1000 pairs of 1 MiB after one warm pair",
            Self::MpLat => "100 warm-up and 1000 pairs, each timed by itself",
            Self::MpThr => "10,000 pairs of 1 MiB",
            Self::MpMix => "5000 pairs of 64 KiB to 16 MiB, each size warmed",
            Self::MpConc => "4 threads with 2500 pairs of 1 MiB each, no warm-up",
            Self::MpReuse => "1000 blocks of 1 MiB held, all freed, and again",
            Self::ColabMix => "100,000 steps of 512 B to 256 KiB; above 50 live, the newest goes",
            Self::GeSame => "1000 pairs of each size; and 20 cycles of 50 held",
            Self::GeLarge => "100 pairs of each size; and 20 held",
            Self::GeTransformer => "9 training steps of 6 layers, after one warm",
            Self::GePressure => "80 % of the device full, every other block freed",
            Self::GeVariable => "1000 batches of 1 to 32 MiB, 8 live, first in first out",
            Self::GeAccum => "24 gradients held over 8 micro-steps, 4 times, after one warm",
            Self::DcAlloc => "100 blocks of 1 MiB held, then released",
            Self::DcHit => "10,000 pairs of 1 MiB after one warm pair",
        }
    }

    /// Returns the requests to an allocator. `limit` is the memory of the device for workloads about a nearly full
    /// device; others ignore it.
    pub fn sequences(self, limit: Bytes) -> Result<Vec<Sequence>, InvalidEvent> {
        match self {
            Self::MpT => pairs::after_one_warm(1000),
            Self::MpLat => pairs::each_timed(),
            Self::MpThr => pairs::throughput(),
            Self::MpMix => pairs::mixed(),
            Self::MpConc => pairs::concurrent(),
            Self::MpReuse => pairs::held_twice(),
            Self::ColabMix => pairs::newest_first(),
            Self::GeSame => training::same(),
            Self::GeLarge => training::large(),
            Self::GeTransformer => training::transformer(),
            Self::GePressure => training::pressure(limit),
            Self::GeVariable => training::variable(),
            Self::GeAccum => training::accumulation(),
            Self::DcAlloc => pairs::held_once(),
            Self::DcHit => pairs::after_one_warm(10_000),
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no workload has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownWorkload {
    /// The name as given.
    pub given: String,
}

impl fmt::Display for UnknownWorkload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Workload::ALL.iter().map(|workload| workload.name()).collect();
        write!(f, "unknown workload \"{}\"; expected one of {}", self.given, names.join(", "))
    }
}

impl core::error::Error for UnknownWorkload {}

impl FromStr for Workload {
    type Err = UnknownWorkload;

    fn from_str(text: &str) -> Result<Self, UnknownWorkload> {
        let found = Self::ALL.iter().find(|workload| workload.name() == text);
        found.copied().ok_or_else(|| UnknownWorkload { given: text.to_owned() })
    }
}

/// Formats a size in the largest unit that divides it.
pub fn size_name(size: Bytes) -> String {
    use forebay_core::{GIB, KIB, MIB};
    let bytes = size.get();
    for (unit, name) in [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{} {name}", bytes / unit);
        }
    }
    format!("{bytes} B")
}
