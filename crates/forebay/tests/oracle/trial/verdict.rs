//! What came of a program: what the pool did wrong, or how it went.

use std::fmt;

use forebay::Statistics;
use forebay_core::Address;

/// What a trial has against a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Complaint {
    /// A block that may not be.
    Block,
    /// An answer that may not be given: a refusal of what is right, or none of what is wrong.
    Answer,
    /// Figures that do not add up.
    Figures,
    /// A request that failed although there was room.
    Room,
    /// Two uses of the same memory that nothing orders, or memory taken away in use.
    Order,
    /// Bytes of a block that are not what was written there.
    Data,
    /// Something that was not given back.
    Leak,
}

/// What went wrong, and at which step; after the last where there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) complaint: Complaint,
    pub(crate) step: Option<usize>,
    pub(crate) text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            Some(step) => write!(f, "step {step}: {:?}: {}", self.complaint, self.text),
            None => write!(f, "at the end: {:?}: {}", self.complaint, self.text),
        }
    }
}

/// What came of a part of a program, before its step is known.
pub(super) type Verdict<T = ()> = Result<T, (Complaint, String)>;

/// What came of a program that ran well.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Where each block lay, in the order of allocation; null where there was none.
    pub(crate) places: Vec<Address>,
    /// How the pool stood before it was dropped.
    pub(crate) statistics: Statistics,
    /// How many allocations failed for want of memory.
    pub(crate) out_of_memory: u64,
    /// How many calls failed because a call of the device did.
    pub(crate) failed: u64,
    /// How many frees were refused, as they should be.
    pub(crate) refused: u64,
}
