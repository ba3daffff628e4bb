//! The further uses of live blocks, and the recently ended streams, whose work may still use some.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_hal::{NamedStream, StreamHandle};

use crate::pool::common::log::LoggedEvent;
use crate::pool::heap::serials::Serial;
use crate::pool::heap::stream_slots::StreamSlots;

/// A further use of a live block.
#[derive(Clone, Debug)]
pub(in crate::pool) enum Use {
    /// On a stream, by the work that is enqueued there when the block is freed.
    Stream(StreamHandle),
    /// On a stream that has ended since it was named.
    Ended(NamedStream),
    /// Until an event.
    #[cfg(feature = "host")]
    Until(Arc<LoggedEvent>),
    /// Only a wait for the whole device shows that it is over.
    Unknown,
}

/// The further uses of a live block, beside those on the stream it was allocated on.
#[derive(Clone, Debug, Default)]
pub(in crate::pool) struct Uses {
    pub(in crate::pool) streams: Vec<Serial>,
    /// Uses that end with an event.
    pub(in crate::pool) events: Vec<Arc<LoggedEvent>>,
    /// Whether a use was on a stream that had no slot: only a wait for the whole device shows that such a use is over.
    pub(in crate::pool) unknown: bool,
    /// The number of streams at which those that are done are removed.
    full_at: usize,
    /// The number of events at which those that are done are removed.
    #[cfg(feature = "host")]
    events_full_at: usize,
}

impl Uses {
    /// Below this number, it is not worth looking for streams that are done.
    const FEW: usize = 8;

    /// Adds a use until `event`. Those that are done go each time the number has doubled.
    #[cfg(feature = "host")]
    pub(super) fn add_event(&mut self, event: Arc<LoggedEvent>) {
        if self.events.len() >= self.events_full_at.max(Self::FEW) {
            self.events.retain(|event| !event.is_reached());
            self.events_full_at = 2 * self.events.len();
        }
        self.events.push(event);
    }

    pub(in crate::pool) fn add(&mut self, serial: Serial, slots: &StreamSlots) {
        if self.streams.contains(&serial) {
            return;
        }
        if self.streams.len() >= self.full_at.max(Self::FEW) {
            let Self { streams, unknown, .. } = self;
            streams.retain(|&user| {
                let lost = slots.serials.is_lost(user);
                *unknown |= lost;
                !lost && !slots.is_done(user)
            });
            // Doubling makes the check cost each use a constant on average.
            self.full_at = self.streams.len() * 2;
        }
        self.streams.push(serial);
    }
}

/// The most ended streams that are remembered.
const MAX_ENDED: usize = 1024;

/// Recently ended streams, by the handle that another stream may have by now.
#[derive(Debug, Default)]
pub(in crate::pool) struct EndedStreams {
    /// Each with the count of ends at the time, oldest first.
    ends: VecDeque<(StreamHandle, u64, Serial)>,
    /// Ends up to this count may be forgotten.
    forgotten: u64,
}

impl EndedStreams {
    pub(in crate::pool) fn add(&mut self, stream: StreamHandle, count: u64, serial: Serial) {
        if self.ends.len() >= MAX_ENDED
            && let Some((_, count, _)) = self.ends.pop_front()
        {
            self.forgotten = self.forgotten.max(count);
        }
        self.ends.push_back((stream, count, serial));
    }

    /// Every stream with the handle of `named` that ended since it was named; the first of them is the one that was
    /// meant. `None` if that is not known.
    pub(in crate::pool) fn since(&self, named: NamedStream) -> Option<Vec<Serial>> {
        let is_since = |&&(stream, count, _): &&(StreamHandle, u64, Serial)| {
            stream == named.handle() && count > named.named_at()
        };
        let serials: Vec<Serial> =
            self.ends.iter().filter(is_since).map(|&(.., serial)| serial).collect();
        (named.named_at() >= self.forgotten && !serials.is_empty()).then_some(serials)
    }
}
