//! A report as plain data: "forebay.report.v1". The page draws it and `--json` prints it.
//!
//! Times are event numbers, from 0, because recordings have an order but not always a clock. Lists that grow with the
//! recording are bounded, and state what they omit.

use core::fmt;

use serde::Serialize;

use crate::replay::Row;

/// The id of the format. Existing keys keep their meaning.
pub(super) const SCHEMA: &str = "forebay.report.v1";

/// Everything the report of one run says.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Always "forebay.report.v1".
    pub schema: &'static str,
    /// The version of the program.
    pub forebay: &'static str,
    /// When the report was made, in milliseconds since 1970.
    pub made_unix_ms: u64,
    /// The run.
    pub run: Run,
    /// The capacity of the simulated device; null if it was not limited.
    pub capacity_bytes: Option<u64>,
    /// Memory over time, in the first pass.
    pub timeline: Timeline,
    /// forebay's pool at moments of the first pass.
    pub pool: PoolSamples,
    /// What happened to forebay's pool in the first pass.
    pub happenings: Happenings,
    /// Where forebay's pool put blocks in the first pass.
    pub map: Map,
    /// Who had memory at the peak.
    pub owners: Owners,
    /// Requests by size.
    pub sizes: Vec<Bar>,
    /// Blocks by lifetime, in events.
    pub lifetimes: Vec<Bar>,
    /// The memory of each allocator, a row for each pass, as `forebay replay --json` prints them.
    pub policies: Vec<Row>,
    /// The smallest device under some allocators, as `forebay fit` finds it.
    pub fits: Vec<SmallestDevice>,
    /// Settings that were tried.
    pub trials: Vec<Trial>,
    /// How much larger a batch would fit.
    pub batch: Option<Batch>,
    /// What to do, the most useful first.
    pub advice: Vec<Advice>,
    /// Call stacks, call sites and tags, by number.
    pub labels: Vec<String>,
    /// Transfers between host and device; null if the recording has none, or no clock.
    pub transfers: Option<Transfers>,
}

/// The recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Run {
    /// Its name.
    pub name: String,
    /// The name of its file, without what only says its form; null if it came from elsewhere.
    pub file: Option<String>,
    /// When it began, in milliseconds since 1970; null if that is unknown.
    pub began_unix_ms: Option<u64>,
    /// Whether a pool of forebay was recorded.
    pub of_forebay: bool,
    /// Allocations and frees.
    pub events: u64,
    /// Allocations.
    pub allocations: u64,
    /// Frees.
    pub frees: u64,
    /// Blocks that were not freed.
    pub never_freed: u64,
    /// The largest block.
    pub largest_bytes: u64,
    /// Streams by the handles that the recorder saw, at most 64.
    pub streams: Vec<u64>,
    /// How many streams there were.
    pub stream_count: u64,
    /// The most requested at once.
    pub peak_requested_bytes: u64,
    /// The event after which that was so for the first time.
    pub peak_at: u64,
    /// Blocks that were live then.
    pub peak_blocks: u64,
    /// Allocations that failed while the run was recorded.
    pub failed_allocations: u64,
    /// Blocks that were live before the recording began; they are allocated first.
    pub live_at_start: u64,
}

impl Run {
    /// What the page is called: after the file, which its user has named.
    pub(super) fn title(&self) -> &str {
        self.file.as_deref().unwrap_or(&self.name)
    }
}

/// Memory over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Timeline {
    /// Events in each bucket; the last may have fewer.
    pub events_per_bucket: u64,
    /// What the program requested, then what each allocator held.
    pub series: Vec<Series>,
    /// Events in each bucket of the owners' bands.
    pub events_per_band_bucket: u64,
    /// Who had what was requested: by tag and by call site, if the recording tells, and by size.
    pub owners: Vec<Ownership>,
    /// The clock of the recording: nanoseconds since its first event, at the first event of each bucket and at the last event of
    /// all. Null if it has no clock, or no time passed. It never goes back.
    pub clock_ns: Option<Vec<u64>>,
}

/// Owners over time, by one property of blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Ownership {
    /// "tag", "site" (the call site) or "size".
    pub by: &'static str,
    /// The seven owners that had the most at any moment, the steadiest first; then all others, then blocks without an owner,
    /// where there are any.
    pub bands: Vec<Band>,
    /// The band of each block of the map.
    pub map: Vec<u8>,
}

/// What one owner had over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Band {
    /// As in [`Owner`].
    pub key: u64,
    /// As in [`Owner`].
    pub groups: u64,
    /// Bytes at the moment of each bucket at which the most was requested: the bands add up to that.
    pub bytes: Vec<u64>,
}

/// One line of the chart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Series {
    /// "requested", or the allocator.
    pub name: &'static str,
    /// The least of each bucket.
    pub min: Vec<u64>,
    /// The most of each bucket.
    pub max: Vec<u64>,
    /// The most of all.
    pub peak_bytes: u64,
    /// The event after which that was so for the first time.
    pub peak_at: u64,
}

/// forebay's pool at evenly spaced moments. Lists are of one length.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PoolSamples {
    /// The events after which the samples were taken.
    pub at: Vec<u64>,
    /// Taken from the driver.
    pub held_bytes: Vec<u64>,
    /// In live blocks, after rounding up.
    pub live_bytes: Vec<u64>,
    /// Free, not counting what threads cache.
    pub free_bytes: Vec<u64>,
    /// The largest free piece.
    pub largest_free_bytes: Vec<u64>,
    /// How scattered the free memory is: 0 if it is one piece, near 1 if it is many. Null if nothing is free.
    pub fragmentation: Vec<Option<f64>>,
    /// Pages that were mapped again elsewhere, since the sample before.
    pub moved_pages: Vec<u64>,
}

/// What happened to the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Happenings {
    /// How often the pool took memory from the driver.
    pub growths: u64,
    /// How often it gave memory back.
    pub releases: u64,
    /// How many pages it moved.
    pub moved_pages: u64,
    /// How many allocations found no memory.
    pub out_of_memory: u64,
    /// The largest of them in order of time, at most 600.
    pub listed: Vec<Happening>,
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Happening {
    /// The event after which it was seen.
    pub at: u64,
    /// What.
    pub kind: HappeningKind,
    /// How many bytes: grown by, released, requested in vain; 0 for moves.
    pub bytes: u64,
    /// How many pages were moved; 1 for others.
    pub count: u64,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HappeningKind {
    /// The pool took memory from the driver.
    Growth,
    /// The pool gave memory back.
    Release,
    /// The pool moved pages to other addresses.
    PageMoves,
    /// An allocation found no memory.
    OutOfMemory,
}

/// Where blocks were. Addresses that were never used are left out, so that offsets are consecutive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Map {
    /// The end of the offsets.
    pub end: u64,
    /// Blocks in order of their allocation: those with the most bytes times events, at most 16,384.
    pub blocks: MapBlocks,
    /// Blocks beyond those.
    pub blocks_left_out: u64,
    /// The largest of them.
    pub largest_left_out_bytes: u64,
    /// What the pool held, at moments.
    pub held: Vec<HeldRanges>,
}

/// Blocks by columns of one length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MapBlocks {
    /// Where each begins.
    pub offset: Vec<u64>,
    /// How much was requested.
    pub bytes: Vec<u64>,
    /// The event that allocated it.
    pub born: Vec<u64>,
    /// The event that freed it; the number of events if none did.
    pub freed: Vec<u64>,
    /// The index of its stream.
    pub stream: Vec<u16>,
    /// The number of its label plus one; 0 if it has none.
    pub label: Vec<u32>,
}

/// What the pool held at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HeldRanges {
    /// The event after which this was so.
    pub at: u64,
    /// Pairs of begin and length, the lowest first, at most 128.
    pub ranges: Vec<(u64, u64)>,
}

/// Who had memory at the peak. The rows of each list but the last add up to all that was requested then.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Owners {
    /// By call stack or tag, the most bytes first, at most 20 and one for the rest. Empty if the recording has neither.
    pub by_label: Vec<Owner>,
    /// By tag, in the same way.
    pub by_tag: Vec<Owner>,
    /// By call site, the innermost frame of the call stack, in the same way.
    pub by_site: Vec<Owner>,
    /// By thread, the most bytes first, at most 20. Empty if the recording does not tell.
    pub by_thread: Vec<Owner>,
    /// By size, the most bytes first, at most 20.
    pub by_size: Vec<Owner>,
    /// By stream, the most bytes first, at most 20.
    pub by_stream: Vec<Owner>,
    /// The largest blocks, at most 40.
    pub largest: Vec<OwnedBlock>,
}

/// Blocks that have something in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Owner {
    /// What: the number of the label plus one, or 0 for blocks without one; the number of the thread, the size in bytes,
    /// or the index of the stream.
    pub key: u64,
    /// 1; or how many groups this row is the sum of, whose keys are not listed.
    pub groups: u64,
    /// How many blocks.
    pub blocks: u64,
    /// How many bytes they requested.
    pub bytes: u64,
}

/// A block that was live at the peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct OwnedBlock {
    /// Its number, in order of allocation.
    pub block: u32,
    /// How much was requested.
    pub bytes: u64,
    /// The index of its stream.
    pub stream: u16,
    /// The event that allocated it.
    pub born: u64,
    /// The event that freed it; null if none did.
    pub freed: Option<u64>,
    /// The number of its label plus one; 0 if it has none.
    pub label: u32,
}

/// Transfers between host and device. Pairs are of those to the device, and of those from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Transfers {
    /// How many.
    pub counts: [u64; 2],
    /// The size in bytes.
    pub bytes: [u64; 2],
    /// The bytes of those under way after each event, up to the next.
    pub under_way: [Series; 2],
    /// The largest, at most 40.
    pub listed: Vec<TransferRow>,
}

/// One transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TransferRow {
    /// "upload" or "download".
    pub direction: &'static str,
    /// The last event before it began.
    pub at: u64,
    /// When it began, since the recording began.
    pub begin_ns: u64,
    /// How long it took.
    pub took_ns: u64,
    /// The number of bytes copied.
    pub bytes: u64,
}

/// One bar of a histogram: values from a power of two up to below the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Bar {
    /// The least value of the bar; 0 and 1 are in one bar.
    pub from: u64,
    /// How many blocks.
    pub count: u64,
    /// How many bytes they requested.
    pub bytes: u64,
    /// How many of them were live at the peak.
    pub at_peak: u64,
}

/// What a run needs under an allocator.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SmallestDevice {
    /// The allocator.
    pub policy: &'static str,
    /// The smallest capacity with which two passes go through, a multiple of 2 MiB.
    pub smallest_bytes: u64,
    /// That over the peak of what was requested.
    pub ratio: f64,
}

/// forebay's pool with other settings, in two passes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Trial {
    /// The settings, as in FOREBAY_CONF; or the change to the run.
    pub change: &'static str,
    /// The most taken from the driver.
    pub peak_reserved_bytes: u64,
    /// Calls of the driver.
    pub driver_calls: u64,
    /// Their time by the cost table.
    pub driver_ns: u64,
}

/// How much larger a batch would fit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Batch {
    /// The device.
    pub capacity_bytes: u64,
    /// Bytes at the peak in blocks that live for less than half of the run. These are assumed to grow with the batch.
    pub scaled_bytes: u64,
    /// The largest factor, in steps of 1/64 up to 64, with which two passes of the scaled run went through under
    /// forebay.
    pub factor: f64,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Advice {
    /// In a few words.
    pub title: String,
    /// In sentences, with the figures behind it.
    pub text: String,
    /// What it gains, measured by replaying; null where it was not measured.
    pub gain: Option<String>,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.title, self.text)?;
        self.gain.as_ref().map_or(Ok(()), |gain| write!(f, " Measured by replay: {gain}."))
    }
}
