//! Statistics: the counters of a pool. Serde writes them with bytes as integers in fields named `*_bytes`, times in `*_ns`.

use core::fmt;
use core::sync::atomic::Ordering;

use forebay_core::address_space::AddressSpace;
use forebay_core::{Bytes, counted};
use forebay_hal::{Call, StreamHandle};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Tag;
use crate::pool::common::counts::Totals;
use crate::pool::common::log::DriverLog;
use crate::pool::inner::PoolInner;
use crate::sync::map::{Side, UNIT_SHIFT};
use crate::sync::tracked::lock;

/// Makes a module for serde's `with`, by which a type of the library is written and read as a plain number.
macro_rules! as_number {
    ($module:ident, $kind:ty => $number:ty, $get:expr, $new:expr) => {
        mod $module {
            use super::*;

            pub(super) fn serialize<S: Serializer>(of: &$kind, to: S) -> Result<S::Ok, S::Error> {
                let get: fn(&$kind) -> $number = $get;
                get(of).serialize(to)
            }

            pub(super) fn deserialize<'de, D: Deserializer<'de>>(
                from: D,
            ) -> Result<$kind, D::Error> {
                <$number>::deserialize(from).map($new)
            }
        }
    };
}

as_number!(bytes, Bytes => u64, |bytes| bytes.get(), Bytes::new);
as_number!(
    optional_bytes,
    Option<Bytes> => Option<u64>,
    |bytes| bytes.map(Bytes::get),
    |bytes| bytes.map(Bytes::new)
);
as_number!(stream, StreamHandle => u64, |stream| stream.0, StreamHandle);

/// Counters of one range of block sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ClassStatistics {
    /// The smallest size of the range, a power of two. The next range begins at twice that.
    #[serde(rename = "from_bytes", with = "bytes")]
    pub from: Bytes,
    /// Blocks allocated.
    pub allocations: u64,
    /// Blocks freed.
    pub frees: u64,
    /// Bytes in live blocks, after rounding up.
    #[serde(rename = "live_bytes", with = "bytes")]
    pub live: Bytes,
}

/// Counters of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct StreamStatistics {
    /// The stream.
    #[serde(with = "stream")]
    pub stream: StreamHandle,
    /// Blocks allocated on it.
    pub allocations: u64,
    /// Blocks freed on it.
    pub frees: u64,
}

/// Memory of one tag.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct TagStatistics {
    /// The name of the tag.
    pub tag: String,
    /// Bytes in live blocks, after rounding up.
    #[serde(rename = "live_bytes", with = "bytes")]
    pub live: Bytes,
}

/// Counters of the small or of the large blocks of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SideStatistics {
    /// Live blocks.
    pub blocks: u64,
    /// Bytes in live blocks, after rounding up.
    #[serde(rename = "live_bytes", with = "bytes")]
    pub live: Bytes,
    /// Bytes requested for live blocks, before rounding.
    #[serde(rename = "requested_bytes", with = "bytes")]
    pub requested: Bytes,
    /// Blocks allocated.
    pub allocations: u64,
    /// Blocks freed.
    pub frees: u64,
    /// Bytes in all blocks ever allocated, after rounding up.
    #[serde(rename = "allocated_bytes", with = "bytes")]
    pub allocated: Bytes,
    /// Bytes in all blocks ever freed, after rounding up.
    #[serde(rename = "freed_bytes", with = "bytes")]
    pub freed: Bytes,
    /// Bytes requested for all blocks ever allocated, before rounding.
    #[serde(rename = "requested_allocated_bytes", with = "bytes")]
    pub requested_allocated: Bytes,
    /// Bytes requested for all blocks ever freed, before rounding.
    #[serde(rename = "requested_freed_bytes", with = "bytes")]
    pub requested_freed: Bytes,
    /// Bytes held from the device. Guarded blocks, and memory on its way back to the device, count as large.
    #[serde(rename = "held_bytes", with = "bytes")]
    pub held: Bytes,
    /// Bytes in holes.
    #[serde(rename = "in_holes_bytes", with = "bytes")]
    pub in_holes: Bytes,
    /// The number of holes.
    pub pieces: u64,
    /// Pages, or segments on a device that maps no pages.
    pub pages: u64,
}

/// A snapshot of the counters of a pool. Counts are exact: every call that has returned is counted once. If other
/// threads use the pool meanwhile, the values may be from slightly different moments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Statistics {
    /// Bytes in live blocks, after rounding up.
    #[serde(rename = "live_bytes", with = "bytes")]
    pub live: Bytes,
    /// Bytes requested for live blocks, before rounding.
    #[serde(rename = "requested_bytes", with = "bytes")]
    pub requested: Bytes,
    /// Live blocks.
    pub blocks: u64,
    /// The peak of bytes in live or cached blocks.
    #[serde(rename = "peak_out_bytes", with = "bytes")]
    pub peak_out: Bytes,
    /// The exact peak of bytes in live blocks, after rounding up. `None` unless the setting `statistics` is `exact`.
    #[serde(rename = "peak_live_bytes", with = "optional_bytes")]
    pub peak_live: Option<Bytes>,
    /// Bytes in free blocks that threads have cached.
    #[serde(rename = "cached_bytes", with = "bytes")]
    pub cached: Bytes,
    /// Bytes of freed blocks in quarantine, as the setting `quarantine` demands.
    #[serde(rename = "quarantined_bytes", with = "bytes")]
    pub quarantined: Bytes,
    /// Bytes that the pool never allocates again, because a debugging aid found that they were written to by mistake.
    #[serde(rename = "retired_bytes", with = "bytes")]
    pub retired: Bytes,
    /// Bytes the pool holds from the device.
    #[serde(rename = "held_bytes", with = "bytes")]
    pub held: Bytes,
    /// The peak of bytes held.
    #[serde(rename = "peak_held_bytes", with = "bytes")]
    pub peak_held: Bytes,
    /// Bytes held that are in no live block.
    #[serde(rename = "free_bytes", with = "bytes")]
    pub free: Bytes,
    /// The largest hole.
    #[serde(rename = "largest_free_bytes", with = "bytes")]
    pub largest_free: Bytes,
    /// The number of holes.
    pub pieces: u64,
    /// Blocks allocated.
    pub allocations: u64,
    /// Blocks freed.
    pub frees: u64,
    /// Allocations that needed no memory from the driver.
    pub hits: u64,
    /// Allocations from a thread cache.
    pub magazine_hits: u64,
    /// Allocations that needed memory from the driver.
    pub misses: u64,
    /// Times a stream was made to wait for another.
    pub waits: u64,
    /// Panics of the program's callbacks ([`PoolOptions`](crate::PoolOptions)). The pool went on as if the callback had
    /// done nothing.
    pub callback_panics: u64,
    /// Small blocks: up to 256 KiB, after rounding up.
    pub small: SideStatistics,
    /// Large blocks: all others. Small and large blocks never share a page.
    pub large: SideStatistics,
    /// By size range, without ranges that were never used.
    pub classes: Vec<ClassStatistics>,
    /// By stream, without forgotten ones.
    pub streams: Vec<StreamStatistics>,
    /// Blocks allocated on streams that have since been forgotten: by the program
    /// ([`Pool::forget_stream`](crate::Pool::forget_stream)), or because there were very many.
    pub forgotten_allocations: u64,
    /// Blocks freed on forgotten streams.
    pub forgotten_frees: u64,
    /// By tag, without tags that have no live block.
    pub tags: Vec<TagStatistics>,
    /// Driver calls. Not read from JSON.
    #[serde(flatten, skip_deserializing)]
    pub driver: DriverLog,
}

impl SideStatistics {
    fn new(totals: Totals, space: &AddressSpace, held: Bytes) -> Self {
        let Totals { blocks, requested } = totals;
        Self {
            blocks: blocks.live(),
            live: of_units(blocks.live_size()),
            requested: Bytes::new(requested.live()),
            allocations: blocks.taken,
            frees: blocks.kept,
            allocated: of_units(blocks.taken_size),
            freed: of_units(blocks.kept_size),
            requested_allocated: Bytes::new(requested.allocated),
            requested_freed: Bytes::new(requested.freed),
            held,
            in_holes: space.holes().bytes(),
            pieces: space.holes().count() as u64,
            pages: space.page_table().page_count() as u64,
        }
    }
}

fn of_units(units: u64) -> Bytes {
    Bytes::new(units << UNIT_SHIFT)
}

impl Statistics {
    /// Bytes that rounding adds to live blocks.
    pub fn padding(&self) -> Bytes {
        self.live.saturating_sub(self.requested)
    }

    /// The fraction of allocations that needed no memory from the driver; `None` before the first allocation.
    pub fn hit_rate(&self) -> Option<f64> {
        part(self.hits, self.allocations)
    }

    /// The fraction of the bytes held that live blocks requested: 1.0 means every byte held was asked for. `None` while
    /// nothing is held.
    pub fn efficiency(&self) -> Option<f64> {
        part(self.requested.get(), self.held.get())
    }

    /// How scattered the free memory is: 0.0 if it is a single hole, near 1.0 if it is very many. `None` if nothing is
    /// free.
    pub fn fragmentation(&self) -> Option<f64> {
        part(self.largest_free.get(), self.free.get()).map(|largest| (1.0 - largest).max(0.0))
    }

    /// Allocations for each page or segment that was created.
    pub fn reduction(&self) -> Option<f64> {
        let taken = self.driver.of(Call::CreatePage) + self.driver.of(Call::Allocate);
        part(self.allocations, taken)
    }
}

/// The quotient of two counts; `None` if the second is 0.
fn part(one: u64, of: u64) -> Option<f64> {
    // The result is for people: sixteen digits are enough.
    #[allow(clippy::cast_precision_loss)]
    (of > 0).then(|| one as f64 / of as f64)
}

fn percent(part: Option<f64>) -> String {
    part.map_or_else(|| "-".to_owned(), |part| format!("{:.2} %", part * 100.0))
}

impl fmt::Display for Statistics {
    /// A summary with a line for each subject, and one for each stream and tag if there are several streams or any
    /// tags.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "live      {} in {}; {} requested, {} of rounding",
            self.live,
            counted(self.blocks, "block"),
            self.requested,
            self.padding()
        )?;
        writeln!(
            f,
            "held      {}, {} at the peak; {} of it requested",
            self.held,
            self.peak_held,
            percent(self.efficiency())
        )?;
        let in_holes = self.small.in_holes.saturating_add(self.large.in_holes);
        write!(
            f,
            "free      {} of that: {} in thread caches, {in_holes} in {}, the largest {}",
            self.free,
            self.cached,
            counted(self.pieces, "piece"),
            self.largest_free
        )?;
        let elsewhere = [self.cached, in_holes, self.quarantined, self.retired];
        let pending = elsewhere.into_iter().fold(self.free, Bytes::saturating_sub);
        if !pending.is_zero() {
            write!(f, ", {pending} pending or in canaries")?;
        }
        writeln!(f)?;
        writeln!(
            f,
            "requests  {}, {}; {} without the driver, {} from thread caches; {}",
            counted(self.allocations, "allocation"),
            counted(self.frees, "free"),
            percent(self.hit_rate()),
            percent(part(self.magazine_hits, self.allocations)),
            if self.misses == 1 { "1 miss".to_owned() } else { format!("{} misses", self.misses) }
        )?;
        let calls: u64 = self.driver.entries().map(|(.., count)| count).sum();
        write!(
            f,
            "driver    {}, {:.1?}; {} between streams",
            counted(calls, "call"),
            self.driver.time(),
            counted(self.waits, "wait")
        )?;
        if self.callback_panics > 0 {
            let panics = counted(self.callback_panics, "panic");
            write!(f, "\ncallbacks {panics}")?;
        }
        if self.streams.len() > 1 {
            for figures in &self.streams {
                write!(
                    f,
                    "\nstream    {:#x}: {}, {}",
                    figures.stream.0,
                    counted(figures.allocations, "allocation"),
                    counted(figures.frees, "free")
                )?;
            }
        }
        if self.tags.iter().any(|figures| figures.tag != Tag::UNTAGGED) {
            for figures in &self.tags {
                write!(f, "\ntag       {}: {}", figures.tag, figures.live)?;
            }
        }
        Ok(())
    }
}

pub(in crate::pool) fn of(shared: &PoolInner) -> Statistics {
    if shared.is_from_parent() {
        return Statistics::default();
    }
    let driver = shared.log.snapshot();
    let mut heap = shared.heap();
    let (counts, cached) = shared.census(&mut heap);
    let sum = counts.sum();
    let all = sum.all();
    let (allocations, frees, live) = (all.blocks.taken, all.blocks.kept, sum.live());
    let classes = (0_u32..).zip(&sum.classes).filter(|(_, class)| class.taken > 0);
    let classes = classes.map(|(log, class)| ClassStatistics {
        from: of_units(1 << log),
        allocations: class.taken,
        frees: class.kept,
        live: of_units(class.live_size()),
    });
    let streams = counts.streams.iter().map(|(&stream, counts)| {
        let Totals { blocks, .. } = counts.all();
        StreamStatistics { stream, allocations: blocks.taken, frees: blocks.kept }
    });
    let forgotten = counts.forgotten.all().blocks;
    let spaces = heap.spaces.both();
    let largest = spaces.iter().map(|space| space.holes().largest()).max();
    let [small_held, large_held] = heap.held_by_side();
    let small = SideStatistics::new(all.minus(sum.large), heap.spaces.of(Side::Small), small_held);
    Statistics {
        live,
        requested: Bytes::new(all.requested.live()),
        blocks: all.blocks.live(),
        peak_out: heap.ledger.peak_out,
        peak_live: shared.debug.peak_live(),
        quarantined: lock(&shared.debug.quarantine).bytes(),
        retired: Bytes::new(shared.debug.retired.load(Ordering::Relaxed)),
        cached,
        held: heap.held(),
        peak_held: heap.ledger.peak_held,
        free: heap.held().saturating_sub(live),
        largest_free: largest.unwrap_or_default(),
        pieces: spaces.iter().map(|space| space.holes().count() as u64).sum(),
        allocations,
        frees,
        hits: allocations.saturating_sub(sum.misses),
        magazine_hits: allocations.saturating_sub(sum.past_magazine),
        misses: sum.misses,
        waits: heap.waits,
        callback_panics: shared.callbacks.panics(),
        small,
        large: SideStatistics::new(sum.large, heap.spaces.of(Side::Large), large_held),
        classes: classes.collect(),
        streams: streams.collect(),
        forgotten_allocations: forgotten.taken,
        forgotten_frees: forgotten.kept,
        tags: sum.by_tag().map(|(tag, live)| TagStatistics { tag: tag.name(), live }).collect(),
        driver,
    }
}
