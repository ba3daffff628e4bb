//! Patterns of a run: the sizes it requests, how long it keeps blocks, what makes up its peak, and what follows from
//! that. All figures come from the recording alone: nothing is replayed.

use std::collections::{BTreeMap, HashMap};

use forebay_core::{Bytes, SizeClasses};

use crate::{Event, StreamIndex, Trace};

mod advice;
#[cfg(test)]
mod tests;

pub use advice::Pattern;

/// How many sizes are named, of the hottest and of those at the peak.
const NAMED: usize = 12;

/// What counts as small: blocks that the pool keeps on pages of their own.
pub const SMALL: Bytes = Bytes::new(256 << 10);

/// A requested size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SizeStatistics {
    /// The size, as requested.
    pub size: Bytes,
    /// How often it was requested.
    pub requests: u64,
    /// The peak number of live blocks of this size.
    pub max_live: u64,
    /// Live blocks of this size at the peak of the run.
    pub at_peak: u64,
}

/// The lifetimes of blocks, in operations: allocations and frees, from a block's allocation to its free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lifetimes {
    /// The median over freed blocks.
    pub median: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The longest.
    pub longest: u64,
    /// Blocks that were not freed.
    pub never_freed: u64,
}

/// A run's patterns.
///
/// ```
/// use forebay_trace::{Analysis, sample};
///
/// let patterns = Analysis::of(&sample::gpt2_train()?);
/// assert_eq!(patterns.requests, 14_377);
/// assert!(!patterns.advice().is_empty());
/// # Ok::<(), forebay_trace::FormatError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Analysis {
    /// Allocations.
    pub requests: u64,
    /// Frees.
    pub frees: u64,
    /// The number of distinct sizes requested.
    pub sizes: u64,
    /// The most requested sizes, at most twelve, the hottest first.
    pub hottest: Vec<SizeStatistics>,
    /// Requests for which a block of their size, rounded to 512 B, had been freed on their stream before: the most that
    /// a cache of whole blocks could serve.
    pub repeats: u64,
    /// The same with sizes rounded to eight classes per doubling: the setting `size_classes = geometric`.
    pub repeats_in_classes: u64,
    /// Requests for at most 256 KiB.
    pub small_requests: u64,
    /// The lifetimes of blocks.
    pub lifetimes: Lifetimes,
    /// The operation, counted from 0, at which live memory first peaked.
    pub peak_at: u64,
    /// The requested bytes live at the peak.
    pub peak: Bytes,
    /// The number of blocks live at the peak.
    pub peak_blocks: u64,
    /// The part of it in blocks of at most 256 KiB.
    pub peak_small: Bytes,
    /// The part of it in blocks that lived for at least half of the run.
    pub peak_lasting: Bytes,
    /// The number of those blocks.
    pub peak_lasting_blocks: u64,
    /// The sizes with the most bytes at the peak, at most twelve, the largest sum first.
    pub at_peak: Vec<SizeStatistics>,
    /// Operations after which at least nine tenths of the peak were live.
    pub near_peak: u64,
    /// The number of streams used.
    pub streams: u64,
    /// Blocks freed on a stream other than the one they were allocated on.
    pub freed_elsewhere: u64,
}

/// A block as the recording has it.
#[derive(Clone, Copy, Debug)]
struct Life {
    born: u64,
    ended: Option<u64>,
    stream: StreamIndex,
}

impl Analysis {
    /// Analyses a run.
    pub fn of(trace: &Trace) -> Self {
        let statistics = trace.statistics();
        let mut found = Self {
            requests: statistics.allocations,
            frees: statistics.frees,
            peak: statistics.peak_requested,
            streams: statistics.streams,
            ..Self::default()
        };
        let mut sizes: BTreeMap<Bytes, SizeStatistics> = BTreeMap::new();
        let mut live_of: HashMap<Bytes, u64> = HashMap::new();
        let mut lives: Vec<Life> = Vec::with_capacity(trace.blocks());
        let mut caches = [SizeClasses::Exact, SizeClasses::Geometric].map(Cache::new);
        let mut live = Bytes::ZERO;
        // Nine tenths, without passing the end of 64 bits.
        let near = Bytes::new(found.peak.get() - found.peak.get() / 10);
        let mut peaked = false;
        for (at, event) in (0_u64..).zip(trace.events()) {
            match event {
                Event::Allocate { size, stream, .. } => {
                    lives.push(Life { born: at, ended: None, stream });
                    caches.iter_mut().for_each(|cache| cache.take(size, stream));
                    live = live.saturating_add(size);
                    found.small_requests += u64::from(size <= SMALL);
                    let new = SizeStatistics { size, requests: 0, max_live: 0, at_peak: 0 };
                    let figures = sizes.entry(size).or_insert(new);
                    figures.requests += 1;
                    let of_size = live_of.entry(size).or_default();
                    *of_size += 1;
                    figures.max_live = figures.max_live.max(*of_size);
                    if live == found.peak && !peaked {
                        peaked = true;
                        found.peak_at = at;
                    }
                }
                Event::Free { block, stream } => {
                    let size = trace.size(block);
                    live = live.saturating_sub(size);
                    caches.iter_mut().for_each(|cache| cache.keep(size, stream));
                    if let Some(of_size) = live_of.get_mut(&size) {
                        *of_size = of_size.saturating_sub(1);
                    }
                    if let Some(life) = lives.get_mut(block.0 as usize) {
                        life.ended = Some(at);
                        found.freed_elsewhere += u64::from(life.stream != stream);
                    }
                }
            }
            found.near_peak += u64::from(live >= near && !live.is_zero());
        }
        [found.repeats, found.repeats_in_classes] = caches.map(|cache| cache.served);
        found.sizes = sizes.len() as u64;
        found.lifetimes = lifetimes(&lives);
        found.look_at_peak(trace, &lives, &mut sizes);
        found.hottest = first(sizes.values(), |figures| figures.requests);
        found.at_peak = first(sizes.values().filter(|figures| figures.at_peak > 0), |figures| {
            figures.at_peak.saturating_mul(figures.size.get())
        });
        found
    }

    /// Who was live at the peak.
    fn look_at_peak(
        &mut self,
        trace: &Trace,
        lives: &[Life],
        sizes: &mut BTreeMap<Bytes, SizeStatistics>,
    ) {
        let (at, end) = (self.peak_at, trace.len() as u64);
        for (block, life) in (0_u32..).zip(lives) {
            let ended = life.ended.unwrap_or(end);
            if life.born > at || ended <= at {
                continue;
            }
            let size = trace.size(crate::BlockIndex(block));
            self.peak_blocks += 1;
            if size <= SMALL {
                self.peak_small = self.peak_small.saturating_add(size);
            }
            if ended - life.born >= end / 2 {
                self.peak_lasting = self.peak_lasting.saturating_add(size);
                self.peak_lasting_blocks += 1;
            }
            if let Some(figures) = sizes.get_mut(&size) {
                figures.at_peak += 1;
            }
        }
    }

    /// Requests of the hottest sizes.
    pub fn hot_requests(&self) -> u64 {
        self.hottest.iter().map(|figures| figures.requests).sum()
    }

    /// Advice that follows from the figures, in sentences that name them; empty if none applies.
    pub fn advice(&self) -> Vec<String> {
        advice::of(self).map(|(_, text)| text).collect()
    }

    /// The same, each with the pattern behind it.
    pub fn advice_by_pattern(&self) -> Vec<(Pattern, String)> {
        advice::of(self).collect()
    }
}

/// The few of them with the most of something, the most first; the smaller size where that is equal.
fn first<'a>(
    all: impl Iterator<Item = &'a SizeStatistics>,
    most: impl Fn(&SizeStatistics) -> u64,
) -> Vec<SizeStatistics> {
    let mut all: Vec<SizeStatistics> = all.copied().collect();
    all.sort_by_key(|figures| (core::cmp::Reverse(most(figures)), figures.size));
    all.truncate(NAMED);
    all
}

fn lifetimes(lives: &[Life]) -> Lifetimes {
    let spans = lives.iter().filter_map(|life| Some(life.ended? - life.born));
    let mut spans: Vec<u64> = spans.collect();
    spans.sort_unstable();
    // The smallest that so many in a hundred do not exceed.
    let percentile = |percent: usize| {
        let index = (spans.len() * percent).div_ceil(100).saturating_sub(1);
        spans.get(index).copied().unwrap_or(0)
    };
    Lifetimes {
        median: percentile(50),
        p99: percentile(99),
        longest: spans.last().copied().unwrap_or(0),
        never_freed: (lives.len() - spans.len()) as u64,
    }
}

/// A cache of whole blocks without a bound, by stream and rounded size.
struct Cache {
    classes: SizeClasses,
    blocks: HashMap<(StreamIndex, Bytes), u64>,
    served: u64,
}

impl Cache {
    fn new(classes: SizeClasses) -> Self {
        Self { classes, blocks: HashMap::new(), served: 0 }
    }

    fn of(&mut self, size: Bytes, stream: StreamIndex) -> &mut u64 {
        // What no class holds is a size of its own.
        let size = self.classes.round(size).unwrap_or(size);
        self.blocks.entry((stream, size)).or_default()
    }

    fn take(&mut self, size: Bytes, stream: StreamIndex) {
        let blocks = self.of(size, stream);
        if let Some(rest) = blocks.checked_sub(1) {
            *blocks = rest;
            self.served += 1;
        }
    }

    fn keep(&mut self, size: Bytes, stream: StreamIndex) {
        *self.of(size, stream) += 1;
    }
}
