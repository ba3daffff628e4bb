//! Figures: what happened in a pool, and how it stands.

use core::fmt;

use forebay_core::{Bytes, counted};
use forebay_hal::{Call, StreamHandle};

use crate::Tag;
use crate::pool::common::log::DriverLog;
use crate::pool::front::thread_cache::ClassCounts;
use crate::pool::shared::Shared;
use crate::sync::map::UNIT_SHIFT;

/// What happened to blocks of a range of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassFigures {
    /// The smallest size of the range, a power of two; the next begins at its double.
    pub from: Bytes,
    /// Blocks given out.
    pub allocations: u64,
    /// Blocks taken back.
    pub frees: u64,
    /// Bytes in blocks, rounding counted.
    pub live: Bytes,
}

/// What happened on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamFigures {
    /// The stream.
    pub stream: StreamHandle,
    /// Blocks given out on it.
    pub allocations: u64,
    /// Blocks taken back on it.
    pub frees: u64,
}

/// What one tag has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TagFigures {
    /// The tag.
    pub tag: Tag,
    /// Bytes in blocks, rounding counted.
    pub live: Bytes,
}

/// How a pool stands. Counts are exact: every operation that has returned is in them once. Read while
/// other threads are at work they may be of slightly different moments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Bytes in blocks, rounding counted.
    pub live: Bytes,
    /// Bytes asked for by live blocks.
    pub requested: Bytes,
    /// Blocks that are live.
    pub blocks: u64,
    /// The most bytes ever out of the heap at once, in blocks or at hand in magazines.
    pub peak_out: Bytes,
    /// The most bytes ever in live blocks at once, rounding counted: exact at every moment, where the
    /// setting `statistics` says so.
    pub peak_live: Option<Bytes>,
    /// Bytes at hand in magazines.
    pub cached: Bytes,
    /// Freed bytes that are kept from use for a while, as the setting `quarantine` says.
    pub quarantined: Bytes,
    /// Bytes that nobody gets any more, because a debugging aid found that they were written to
    /// without right.
    pub retired: Bytes,
    /// Bytes taken from the device.
    pub held: Bytes,
    /// The most bytes ever taken from the device at once.
    pub peak_held: Bytes,
    /// Bytes taken from the device that are in no block.
    pub free: Bytes,
    /// The largest free piece.
    pub largest_free: Bytes,
    /// In how many pieces the heap is free.
    pub pieces: u64,
    /// Blocks given out.
    pub allocations: u64,
    /// Blocks taken back.
    pub frees: u64,
    /// Allocations that took no memory from the driver.
    pub hits: u64,
    /// Of those, the ones that a magazine had.
    pub magazine_hits: u64,
    /// Requests that no hole held.
    pub misses: u64,
    /// Times a stream was made to wait for another.
    pub waits: u64,
    /// Times that someone who was asked or told something ([`PoolOptions`](crate::PoolOptions))
    /// panicked. The pool went on without an answer.
    pub callback_panics: u64,
    /// By size; ranges in which nothing happened are left out.
    pub classes: Vec<ClassFigures>,
    /// By stream, but for those that were forgotten.
    pub streams: Vec<StreamFigures>,
    /// Blocks given out on streams that were forgotten since: by the program
    /// ([`Pool::forget_stream`](crate::Pool::forget_stream)), or because there were very many.
    pub forgotten_allocations: u64,
    /// Blocks taken back on them.
    pub forgotten_frees: u64,
    /// By tag; those that have nothing are left out.
    pub tags: Vec<TagFigures>,
    /// Calls of the driver.
    pub driver: DriverLog,
}

impl Statistics {
    /// Bytes in blocks that nobody asked for: what rounding adds.
    pub fn padding(&self) -> Bytes {
        self.live.saturating_sub(self.requested)
    }

    /// The part of allocations that took no memory from the driver; nothing where there were none.
    pub fn hit_rate(&self) -> Option<f64> {
        part(self.hits, self.allocations)
    }

    /// The part of what is held that was asked for: 1 is the limit.
    pub fn efficiency(&self) -> Option<f64> {
        part(self.requested.get(), self.held.get())
    }

    /// How scattered the free memory is: 0 where it is in one piece, near 1 where in very many.
    pub fn fragmentation(&self) -> Option<f64> {
        part(self.largest_free.get(), self.free.get()).map(|largest| (1.0 - largest).max(0.0))
    }

    /// How many allocations there were for each page or segment taken from the driver.
    pub fn reduction(&self) -> Option<f64> {
        let taken = self.driver.of(Call::CreatePage) + self.driver.of(Call::Allocate);
        part(self.allocations, taken)
    }
}

/// One number as a part of another.
fn part(one: u64, of: u64) -> Option<f64> {
    // Figures for people: sixteen digits are enough.
    #[allow(clippy::cast_precision_loss)]
    (of > 0).then(|| one as f64 / of as f64)
}

/// A part as people read it.
fn percent(part: Option<f64>) -> String {
    part.map_or_else(|| "-".to_owned(), |part| format!("{:.2} %", part * 100.0))
}

impl fmt::Display for Statistics {
    /// A summary for people: a line a subject, and one for each stream and tag where there are several
    /// streams and any tags.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "live      {} in {}; {} asked for, {} of rounding",
            self.live,
            counted(self.blocks, "block"),
            self.requested,
            self.padding()
        )?;
        writeln!(
            f,
            "held      {}, {} at the most; {} of it asked for",
            self.held,
            self.peak_held,
            percent(self.efficiency())
        )?;
        writeln!(
            f,
            "free      {} of that, {} of it at hand in magazines; the rest in {}, the largest {}",
            self.free,
            self.cached,
            counted(self.pieces, "piece"),
            self.largest_free
        )?;
        writeln!(
            f,
            "requests  {}, {}; {} without the driver, {} from magazines; {}",
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
            write!(f, "\ncallbacks {panics} of who was asked or told")?;
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
        if self.tags.iter().any(|figures| figures.tag != Tag::NONE) {
            for figures in &self.tags {
                write!(f, "\ntag       {}: {}", figures.tag.name(), figures.live)?;
            }
        }
        Ok(())
    }
}

/// The figures of a pool.
pub(in crate::pool) fn of(shared: &Shared) -> Statistics {
    if shared.is_inherited() {
        return Statistics::default();
    }
    let driver = shared.log.snapshot();
    let heap = shared.heap();
    let (counts, cached) = shared.census(&heap);
    let sum = counts.sum();
    let bytes = |units: u64| Bytes::new(units << UNIT_SHIFT);
    let total = |classes: &[ClassCounts], of: fn(&ClassCounts) -> u64| -> u64 {
        classes.iter().map(of).fold(0, u64::wrapping_add)
    };
    let allocations = total(&sum.classes, |class| class.allocations);
    let frees = total(&sum.classes, |class| class.frees);
    let live = sum.live();
    let classes = (0_u32..).zip(&sum.classes).filter(|(_, class)| class.allocations > 0);
    let classes = classes.map(|(log, class)| ClassFigures {
        from: bytes(1_u64.checked_shl(log).unwrap_or(0)),
        allocations: class.allocations,
        frees: class.frees,
        live: bytes(class.live),
    });
    let streams = counts.streams.iter().map(|(&stream, counts)| StreamFigures {
        stream,
        allocations: total(&counts.classes, |class| class.allocations),
        frees: total(&counts.classes, |class| class.frees),
    });
    let tags = sum.tags.iter().enumerate().filter(|&(_, &units)| units > 0);
    let tags = tags.filter_map(|(number, &units)| {
        Some(TagFigures { tag: Tag::numbered(number)?, live: bytes(units) })
    });
    let spaces = [&heap.small.space, &heap.large.space];
    let largest = spaces.iter().map(|space| space.largest_hole()).max();
    Statistics {
        live,
        requested: Bytes::new(sum.requested),
        blocks: sum.blocks(),
        peak_out: heap.peak_out,
        peak_live: shared.debug.peak_live(),
        quarantined: shared.debug.quarantined(),
        retired: shared.debug.retired(),
        cached,
        held: heap.held(),
        peak_held: heap.peak_held,
        free: heap.held().saturating_sub(live),
        largest_free: largest.unwrap_or_default(),
        pieces: spaces.iter().map(|space| space.hole_count() as u64).sum(),
        allocations,
        frees,
        hits: allocations.saturating_sub(heap.misses),
        magazine_hits: allocations.saturating_sub(heap.misses.saturating_add(heap.heap_hits)),
        misses: heap.misses,
        waits: heap.waits,
        callback_panics: shared.callbacks.panics(),
        classes: classes.collect(),
        streams: streams.collect(),
        forgotten_allocations: total(&counts.forgotten.classes, |class| class.allocations),
        forgotten_frees: total(&counts.forgotten.classes, |class| class.frees),
        tags: tags.collect(),
        driver,
    }
}
