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

use forebay_core::Bytes;
use forebay_hal::named_enum;

use crate::InvalidEvent;
use crate::named::from_name;

/// Declares the workloads, in the order they are shown: `Variant = "NAME", "description" => sequences;`.
macro_rules! workloads {
    ($limit:ident; $(
        $(#[$doc:meta])* $variant:ident = $name:literal, $about:literal => $made:expr;
    )+) => {
        named_enum! {
            /// The workloads that concern allocation. Figures give their names.
            #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
            #[non_exhaustive]
            pub enum Workload {
                $($(#[$doc])* $variant = $name),+
            }
        }

        impl Workload {
            /// A one-line description.
            pub const fn about(self) -> &'static str {
                match self { $(Self::$variant => $about,)+ }
            }

            /// Returns the requests to an allocator. `limit` is the memory of the device for workloads about a nearly
            /// full device; others ignore it.
            pub fn sequences(self, $limit: Bytes) -> Result<Vec<Sequence>, InvalidEvent> {
                match self { $(Self::$variant => $made,)+ }
            }
        }
    };
}

workloads! { limit;
    /// Pairs of one size after one warm pair.
    MpT = "MP-T", "1000 pairs of 1 MiB after one warm pair" => pairs::after_one_warm(1000);
    /// Pairs of six sizes, each timed separately.
    MpLat = "MP-LAT", "100 warm-up and 1000 pairs, each timed by itself" => pairs::each_timed();
    /// Many pairs of one size.
    MpThr = "MP-THR", "10,000 pairs of 1 MiB" => pairs::throughput();
    /// Pairs of sizes drawn from five.
    MpMix = "MP-MIX", "5000 pairs of 64 KiB to 16 MiB, each size warmed" => pairs::mixed();
    /// Pairs on four threads at once.
    MpConc = "MP-CONC", "4 threads with 2500 pairs of 1 MiB each, no warm-up" => pairs::concurrent();
    /// Blocks held together and freed together, cold and warm.
    MpReuse = "MP-REUSE", "1000 blocks of 1 MiB held, all freed, and again" => pairs::held_twice();
    /// Small blocks that come and go, fifty at a time.
    ColabMix = "COLAB-MIX", "100,000 steps of 512 B to 256 KiB; above 50 live, the newest goes" => pairs::newest_first();
    /// Pairs of the same size, again and again.
    GeSame = "GE-SAME", "1000 pairs of each size; and 20 cycles of 50 held" => training::same();
    /// Pairs of large blocks.
    GeLarge = "GE-LARGE", "100 pairs of each size; and 20 held" => training::large();
    /// The steps of training a small transformer.
    GeTransformer = "GE-TRANSFORMER", "9 training steps of 6 layers, after one warm" => training::transformer();
    /// A device that is nearly full, with holes.
    GePressure = "GE-PRESSURE", "80 % of the device full, every other block freed" => training::pressure(limit);
    /// Batches of varying size, first in, first out.
    GeVariable = "GE-VARIABLE", "1000 batches of 1 to 32 MiB, 8 live, first in first out" => training::variable();
    /// Gradients that are held while activations churn.
    GeAccum = "GE-ACCUM", "24 gradients held over 8 micro-steps, 4 times, after one warm" => training::accumulation();
    /// A hundred blocks held and released.
    DcAlloc = "DC-ALLOC", "100 blocks of 1 MiB held, then released" => pairs::held_once();
    /// Requests that an allocator can serve from cached blocks.
    DcHit = "DC-HIT", "10,000 pairs of 1 MiB after one warm pair" => pairs::after_one_warm(10_000);
}

from_name!(Workload, "workload");

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
