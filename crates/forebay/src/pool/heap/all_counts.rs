//! The counts of all streams, from calls past the thread caches and from caches that were removed or counted.

use std::collections::BTreeMap;

use forebay_hal::StreamHandle;

use crate::pool::common::counts::Counts;

/// The most streams with counts of their own: the counts of a stream take some kilobytes.
const MAX_COUNTED: usize = 256;

/// Counts by stream.
#[derive(Clone, Debug, Default)]
pub(in crate::pool) struct AllCounts {
    /// Boxed: the map moves what it holds, and these are kilobytes.
    pub(in crate::pool) streams: BTreeMap<StreamHandle, Box<Counts>>,
    /// The sum over forgotten streams.
    pub(in crate::pool) forgotten: Counts,
    /// The number of streams at which those without a slot are forgotten: twice those that were left the last time, so
    /// that a look at all of them is paid for by the streams that came since.
    forget_at: usize,
}

impl AllCounts {
    /// Moves the counts of a stream to the sum of the forgotten ones.
    pub(in crate::pool) fn forget_stream(&mut self, stream: StreamHandle) {
        if let Some(counts) = self.streams.remove(&stream) {
            self.forgotten.add(&counts);
        }
    }

    /// Moves the counts of some streams to the sum of the forgotten ones.
    fn forget(&mut self, which: impl Fn(StreamHandle) -> bool) {
        for (_, counts) in self.streams.extract_if(.., |&stream, _| which(stream)) {
            self.forgotten.add(&counts);
        }
    }

    /// If there are too many streams, and `stream` is not among them, forgets those that are not `known`.
    pub(super) fn make_room_for(
        &mut self,
        stream: StreamHandle,
        known: impl Fn(StreamHandle) -> bool,
    ) {
        let is_full = self.streams.len() >= self.forget_at.max(MAX_COUNTED);
        if is_full && !self.streams.contains_key(&stream) {
            self.forget(|other| !known(other));
            self.forget_at = 2 * self.streams.len();
        }
    }

    /// Adds counts to those of a stream.
    pub(in crate::pool) fn add(&mut self, stream: StreamHandle, counts: &Counts) {
        self.streams.entry(stream).or_default().add(counts);
    }

    /// The sum over all streams.
    pub(in crate::pool) fn sum(&self) -> Counts {
        let mut sum = self.forgotten.clone();
        self.streams.values().for_each(|counts| sum.add(counts));
        sum
    }
}
