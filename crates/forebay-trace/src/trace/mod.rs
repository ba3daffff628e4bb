//! A recording in memory: what was allocated and freed, in order.
//!
//! ```text
//!   events    a0  a1  f0  a2  f2 ...      one mark (block and kind) and one stream index each
//!   sizes     0: 3145728   1: 512  ...    by block
//!   streams   0: 0x0   1: 0x317d2c10      the handles the recorder saw, by stream index
//!   details   owners of blocks, times and threads of events, transfers: where the source tells
//! ```
//!
//! Blocks are numbered in order of allocation, streams in order of appearance, so both index plain arrays: a run of
//! half a million events takes a few megabytes, and playing it needs no lookups.

mod builder;
mod details;
mod labels;
mod statistics;

pub use builder::{InvalidEvent, TraceBuilder};
pub(crate) use details::Details;
pub use details::{Transfer, TransferDirection};
pub(crate) use labels::Labels;
pub use statistics::Statistics;

use core::fmt;
use core::time::Duration;
use std::time::SystemTime;

use forebay_core::Bytes;

/// The index of a block in a recording, counted from 0 in order of allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockIndex(pub u32);

impl fmt::Display for BlockIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}", self.0)
    }
}

/// The index of a stream in a recording, counted from 0 in order of appearance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamIndex(pub u16);

impl fmt::Display for StreamIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.0)
    }
}

/// An allocation or free by the recorded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It allocated memory.
    Allocate {
        /// The block.
        block: BlockIndex,
        /// The requested size, before any rounding.
        size: Bytes,
        /// The stream of the request.
        stream: StreamIndex,
    },
    /// It freed memory.
    Free {
        /// The block.
        block: BlockIndex,
        /// The stream of the free.
        stream: StreamIndex,
    },
}

/// What a recording's source reported that is not an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SourceNotes {
    /// Allocations that failed in the recorded program.
    pub failed_allocations: u64,
    /// Blocks that were live before the recording began; they are allocated first.
    pub live_at_start: u64,
    /// When the recording began.
    pub began: Option<SystemTime>,
    /// Whether a pool of forebay was recorded.
    pub of_forebay: bool,
}

/// The bit of a mark that tells a free from an allocation.
const FREE: u32 = 1 << 31;

/// A recorded run.
///
/// Created by a reader, or with a [`TraceBuilder`], which ensures that only live blocks are freed and no live block is
/// allocated again.
///
/// ```
/// use forebay_core::Bytes;
/// use forebay_trace::TraceBuilder;
///
/// let mut builder = TraceBuilder::new("two blocks");
/// builder.allocate(17, Bytes::mib(3), 0)?;
/// builder.allocate(18, Bytes::new(512), 0)?;
/// builder.free(17, 0)?;
/// let trace = builder.finish();
/// assert_eq!(trace.len(), 3);
/// assert_eq!(trace.statistics().never_freed, 1);
/// # Ok::<(), forebay_trace::InvalidEvent>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    name: String,
    streams: Vec<u64>,
    sizes: Vec<u64>,
    marks: Vec<u32>,
    lanes: Vec<u16>,
    remarks: SourceNotes,
    details: Details,
}

impl Trace {
    /// The name of the run, usually that of its file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Renames the run.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The number of events.
    pub fn len(&self) -> usize {
        self.marks.len()
    }

    /// Whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// The number of blocks allocated.
    pub fn blocks(&self) -> usize {
        self.sizes.len()
    }

    /// The streams' handles as the recorder saw them, by [`StreamIndex`].
    pub fn streams(&self) -> &[u64] {
        &self.streams
    }

    /// The handle of a stream; 0, the default stream's, for a stream that is not in the recording.
    pub fn handle(&self, stream: StreamIndex) -> u64 {
        self.streams.get(usize::from(stream.0)).copied().unwrap_or(0)
    }

    /// The requested size of a block; 0 for a block that is not in the recording.
    pub fn size(&self, block: BlockIndex) -> Bytes {
        Bytes::new(self.sizes.get(block.0 as usize).copied().unwrap_or(0))
    }

    /// What the source reported besides the events.
    pub fn remarks(&self) -> SourceNotes {
        self.remarks
    }

    /// What allocated a block, if known: the call stack, or else the tag.
    pub fn label(&self, block: BlockIndex) -> Option<&str> {
        self.stack(block).or_else(|| self.tag(block))
    }

    /// The tag that a block was allocated under.
    pub fn tag(&self, block: BlockIndex) -> Option<&str> {
        self.details.tags.of(block)
    }

    /// The call stack of an allocation: a line for each frame, the innermost first.
    pub fn stack(&self, block: BlockIndex) -> Option<&str> {
        self.details.stacks.of(block)
    }

    /// The time of event number `event`, since the recording began.
    pub fn time(&self, event: usize) -> Option<Duration> {
        self.details.times.get(event).copied().map(Duration::from_nanos)
    }

    /// The number of the thread of event number `event`.
    pub fn thread(&self, event: usize) -> Option<u32> {
        self.details.threads.get(event).copied()
    }

    /// Transfers between host and device, in the order of their ends.
    pub fn transfers(&self) -> &[Transfer] {
        &self.details.transfers
    }

    /// The address of a block, if the source is a snapshot of one moment.
    pub fn address(&self, block: BlockIndex) -> Option<u64> {
        self.details.addresses.get(block.0 as usize).copied()
    }

    pub(crate) fn details(&self) -> &Details {
        &self.details
    }

    /// The events, in order.
    pub fn events(&self) -> impl ExactSizeIterator<Item = Event> + '_ {
        self.marks.iter().zip(&self.lanes).map(|(&mark, &lane)| {
            let (block, stream) = (BlockIndex(mark & !FREE), StreamIndex(lane));
            if mark & FREE == 0 {
                Event::Allocate { block, size: self.size(block), stream }
            } else {
                Event::Free { block, stream }
            }
        })
    }

    /// Computes the statistics of the run.
    pub fn statistics(&self) -> Statistics {
        Statistics::of(self)
    }
}
