//! What a source may report besides the events: owners, times, threads, transfers.

use core::time::Duration;

use forebay_core::Bytes;
use forebay_hal::named_enum;

use super::labels::Labels;

/// Everything that some sources tell and others do not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Details {
    /// What blocks are used for, in the program's own words.
    pub(crate) tags: Labels,
    /// Call stacks of allocations, the innermost frame first.
    pub(crate) stacks: Labels,
    /// By event: nanoseconds since the recording began. Empty if the source has no clock.
    pub(crate) times: Vec<u64>,
    /// By event: the number of the thread. Empty if the source does not tell.
    pub(crate) threads: Vec<u32>,
    /// By block: where it lay. Empty if the source does not tell, or tells of more than one moment.
    pub(crate) addresses: Vec<u64>,
    /// Transfers between host and device, in the order of their ends.
    pub(crate) transfers: Vec<Transfer>,
}

impl Details {
    /// Makes a list that was begun as long as there are events.
    pub(super) fn complete(&mut self, events: usize) {
        if let Some(&last) = self.times.last() {
            self.times.resize(events, last);
        }
        if let Some(&last) = self.threads.last() {
            self.threads.resize(events, last);
        }
    }
}

/// One transfer between host and device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// When it began, on the clock of the events.
    pub begin: Duration,
    /// When it ended.
    pub end: Duration,
    /// The number of bytes copied.
    pub bytes: Bytes,
    /// The direction.
    pub direction: TransferDirection,
}

named_enum! {
    /// The direction of a transfer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum TransferDirection {
        /// From the host to the device.
        Upload = "upload",
        /// From the device to the host.
        Download = "download",
    }
}
