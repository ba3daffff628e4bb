//! Builds recordings and enforces their rules.

use core::fmt;
use std::collections::HashMap;

use forebay_core::Bytes;

use super::{BlockIndex, Details, FREE, Labels, SourceNotes, Trace, Transfer};

/// A rule of recordings that an event broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidEvent {
    /// A block was freed that is free.
    FreedTwice {
        /// The id, address or pointer of the source.
        key: u64,
    },
    /// A block was freed that was never allocated.
    NeverAllocated {
        /// The id, address or pointer of the source.
        key: u64,
    },
    /// A block was allocated under the key of a live one.
    StillLive {
        /// The id, address or pointer of the source.
        key: u64,
    },
    /// More blocks than a recording can number.
    TooManyBlocks,
    /// More streams than a recording can number.
    TooManyStreams,
    /// The total size of live blocks overflows 64 bits.
    TooMuchLive {
        /// The size of the block that overflowed it.
        size: Bytes,
    },
}

impl fmt::Display for InvalidEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FreedTwice { key } => {
                write!(f, "frees {key} ({key:#x}), which is free already; a block is freed once")
            }
            Self::NeverAllocated { key } => {
                write!(f, "frees {key} ({key:#x}), which was never allocated")
            }
            Self::StillLive { key } => write!(
                f,
                "allocates {key} ({key:#x}), which is live; a name may come back once it is freed"
            ),
            Self::TooManyBlocks => {
                write!(f, "one block too many; a recording has at most {MAX_BLOCKS}")
            }
            Self::TooManyStreams => {
                write!(f, "one stream too many; a recording has at most {MAX_STREAMS}")
            }
            Self::TooMuchLive { size } => write!(
                f,
                "{} B more than are live do not fit in 64 bits; no device has that much",
                size.get()
            ),
        }
    }
}

impl core::error::Error for InvalidEvent {}

/// The most blocks of a recording: their number shares 32 bits with the kind of event.
const MAX_BLOCKS: u32 = FREE;

/// The most streams of a recording. Programs have a few dozen.
const MAX_STREAMS: usize = 1 << 16;

/// What a name of the source stands for.
#[derive(Clone, Copy, Debug)]
enum Name {
    /// A block that is live.
    Live(u32),
    /// A block that was freed; the name may come back.
    FreeOutcome,
}

/// Builds a [`Trace`].
///
/// Blocks are named by the source's keys, such as ids or addresses. A key may be reused once its block is freed. An
/// event that breaks a rule is refused and changes nothing.
#[derive(Clone, Debug, Default)]
pub struct TraceBuilder {
    trace: Trace,
    names: HashMap<u64, Name>,
    stream_indices: HashMap<u64, u16>,
    live: Bytes,
}

impl TraceBuilder {
    /// Creates an empty recording.
    pub fn new(name: impl Into<String>) -> Self {
        let trace = Trace { name: name.into(), ..Trace::default() };
        Self { trace, ..Self::default() }
    }

    /// The number of events so far.
    pub fn len(&self) -> usize {
        self.trace.len()
    }

    /// How many blocks were allocated so far.
    pub(crate) fn blocks(&self) -> usize {
        self.trace.sizes.len()
    }

    /// Whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.trace.is_empty()
    }

    /// Adds a stream before its first event, which fixes its index.
    pub fn stream(&mut self, handle: u64) -> Result<(), InvalidEvent> {
        self.lane(handle).map(|_| ())
    }

    /// Adds an allocation of `size` bytes on the stream `handle`; `key` names the block from now on.
    pub fn allocate(&mut self, key: u64, size: Bytes, handle: u64) -> Result<(), InvalidEvent> {
        if let Some(Name::Live(_)) = self.names.get(&key) {
            return Err(InvalidEvent::StillLive { key });
        }
        let live = self.live.checked_add(size).ok_or(InvalidEvent::TooMuchLive { size })?;
        let block = u32::try_from(self.trace.sizes.len())
            .ok()
            .filter(|&block| block < MAX_BLOCKS)
            .ok_or(InvalidEvent::TooManyBlocks)?;
        let lane = self.lane(handle)?;
        self.live = live;
        self.names.insert(key, Name::Live(block));
        self.trace.sizes.push(size.get());
        self.trace.marks.push(block);
        self.trace.lanes.push(lane);
        Ok(())
    }

    /// Adds a free of the block `key` on the stream `handle`.
    pub fn free(&mut self, key: u64, handle: u64) -> Result<(), InvalidEvent> {
        let block = match self.names.get(&key) {
            Some(Name::Live(block)) => *block,
            Some(Name::FreeOutcome) => return Err(InvalidEvent::FreedTwice { key }),
            None => return Err(InvalidEvent::NeverAllocated { key }),
        };
        let lane = self.lane(handle)?;
        self.names.insert(key, Name::FreeOutcome);
        let size = self.trace.sizes.get(block as usize).copied().unwrap_or(0);
        self.live = self.live.saturating_sub(Bytes::new(size));
        self.trace.marks.push(block | FREE);
        self.trace.lanes.push(lane);
        Ok(())
    }

    /// Sets the tag of the last allocated block. At most 65,536 different tags are kept, and 1 KiB of each.
    pub fn tag(&mut self, text: &str) {
        self.label(text, |details| &mut details.tags);
    }

    /// Sets the call stack of the last allocated block: a line for each frame, the innermost first. The limits are
    /// those of tags.
    pub fn stack(&mut self, text: &str) {
        self.label(text, |details| &mut details.stacks);
    }

    fn label(&mut self, text: &str, labels: impl FnOnce(&mut Details) -> &mut Labels) {
        let block = self.trace.sizes.len().checked_sub(1);
        if let Some(block) = block.and_then(|block| u32::try_from(block).ok()) {
            labels(&mut self.trace.details).set(BlockIndex(block), text);
        }
    }

    /// Sets the time of the last event, and of earlier ones without a time, in nanoseconds since the recording began.
    pub fn time(&mut self, nanoseconds: u64) {
        self.trace.details.times.resize(self.trace.marks.len(), nanoseconds);
    }

    /// Sets the thread of the last event, and of earlier ones without a thread.
    pub fn thread(&mut self, number: u32) {
        self.trace.details.threads.resize(self.trace.marks.len(), number);
    }

    /// Adds a transfer, which is not an event.
    pub fn transfer(&mut self, transfer: Transfer) {
        self.trace.details.transfers.push(transfer);
    }

    pub(crate) fn details(&mut self) -> &mut Details {
        &mut self.trace.details
    }

    /// Whether `key` names a live block.
    pub fn is_live(&self, key: u64) -> bool {
        matches!(self.names.get(&key), Some(Name::Live(_)))
    }

    /// What the source reports besides the events.
    pub fn remarks(&mut self) -> &mut SourceNotes {
        &mut self.trace.remarks
    }

    /// Finishes the recording. Live blocks stay live to its end.
    pub fn finish(mut self) -> Trace {
        self.trace.details.complete(self.trace.marks.len());
        self.trace
    }

    /// The index of a stream, a new one for a handle not seen before.
    fn lane(&mut self, handle: u64) -> Result<u16, InvalidEvent> {
        if let Some(&lane) = self.stream_indices.get(&handle) {
            return Ok(lane);
        }
        let lane =
            u16::try_from(self.trace.streams.len()).map_err(|_| InvalidEvent::TooManyStreams)?;
        self.trace.streams.push(handle);
        self.stream_indices.insert(handle, lane);
        Ok(lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockIndex, Event, StreamIndex};

    #[test]
    fn a_breach_is_refused_and_changes_nothing() {
        let mut builder = TraceBuilder::new("breaches");
        builder.allocate(7, Bytes::new(100), 0).unwrap();
        assert_eq!(builder.allocate(7, Bytes::new(1), 9), Err(InvalidEvent::StillLive { key: 7 }));
        assert_eq!(builder.free(8, 9), Err(InvalidEvent::NeverAllocated { key: 8 }));
        builder.free(7, 0).unwrap();
        assert_eq!(builder.free(7, 0), Err(InvalidEvent::FreedTwice { key: 7 }));
        let much = Bytes::MAX;
        builder.allocate(1, much, 0).unwrap();
        let size = Bytes::new(1);
        assert_eq!(builder.allocate(2, size, 0), Err(InvalidEvent::TooMuchLive { size }));
        let trace = builder.finish();
        assert_eq!(trace.len(), 3);
        assert_eq!(trace.streams(), [0], "a refused event brings no stream");
    }

    #[test]
    fn a_name_that_comes_back_is_another_block() {
        let mut builder = TraceBuilder::new("again");
        builder.allocate(5, Bytes::new(1), 30).unwrap();
        builder.free(5, 40).unwrap();
        builder.allocate(5, Bytes::ZERO, 40).unwrap();
        let events: Vec<Event> = builder.finish().events().collect();
        let (first, second) = (BlockIndex(0), BlockIndex(1));
        assert_eq!(
            events,
            [
                Event::Allocate { block: first, size: Bytes::new(1), stream: StreamIndex(0) },
                Event::Free { block: first, stream: StreamIndex(1) },
                Event::Allocate { block: second, size: Bytes::ZERO, stream: StreamIndex(1) },
            ]
        );
    }

    #[test]
    fn streams_have_an_end() {
        let mut builder = TraceBuilder::new("streams");
        for handle in 0..MAX_STREAMS as u64 {
            builder.stream(handle).unwrap();
        }
        assert_eq!(builder.stream(MAX_STREAMS as u64), Err(InvalidEvent::TooManyStreams));
        assert_eq!(builder.stream(3), Ok(()));
    }
}
