//! The conditions of a report.

use forebay::Settings;
use forebay_core::Bytes;
use forebay_trace::WorkBudget;

/// How much is replayed for a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Depth {
    /// The run as it is.
    Quick,
    /// The run with other settings and with each change that is advised.
    Advice,
    /// And on devices of many sizes, and with larger batches.
    Thorough,
}

/// How a report is made.
pub(super) struct Terms<'a> {
    /// The name of the recording's file, if it has one.
    pub(super) file: Option<&'a str>,
    /// What forebay's pool goes by.
    pub(super) settings: &'a Settings,
    /// What the simulated device has; unless said, more than any run asks for.
    pub(super) capacity: Option<Bytes>,
    /// How much is replayed.
    pub(super) depth: Depth,
    /// Told what begins.
    pub(super) tell: &'a dyn Fn(&'static str),
    /// What all replays together may take.
    pub(super) budget: &'a WorkBudget<'a>,
}
