//! Patterns of a run: which sizes it asks for, how long it keeps what it got, what its peak is made
//! of, and what follows from that. All figures are of the recording alone: nothing is played.

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
const SMALL: Bytes = Bytes::new(256 << 10);

/// A size that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SizeFigures {
    /// The size, as asked for.
    pub size: Bytes,
    /// How often it was asked for.
    pub requests: u64,
    /// The most blocks of it that were live at once.
    pub most_live: u64,
    /// How many were live at the peak of the run.
    pub at_peak: u64,
}

/// How long blocks lived, in operations: allocations and frees from theirs to their end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lifetimes {
    /// The middle one of the blocks that were freed.
    pub median: u64,
    /// What one in a hundred of them exceeds.
    pub p99: u64,
    /// The longest of them.
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
    /// How many different sizes were asked for.
    pub sizes: u64,
    /// The sizes asked for most often, at most twelve, the hottest first.
    pub hottest: Vec<SizeFigures>,
    /// Requests that could have had a block of their size, rounded to 512 B, that was freed on their
    /// stream before: what a cache of whole blocks could serve at most.
    pub repeats: u64,
    /// The same with sizes rounded to eight classes a doubling: the setting `size_classes = geometric`.
    pub repeats_in_classes: u64,
    /// Requests for at most 256 KiB.
    pub small_requests: u64,
    /// How long blocks lived.
    pub lifetimes: Lifetimes,
    /// At which operation, counted from 0, the most was live for the first time.
    pub peak_at: u64,
    /// What was live then, by what was asked for.
    pub peak: Bytes,
    /// In how many blocks.
    pub peak_blocks: u64,
    /// What of it was in blocks of at most 256 KiB.
    pub peak_small: Bytes,
    /// What of it was in blocks that lived for at least half of the run.
    pub peak_lasting: Bytes,
    /// In how many of them.
    pub peak_lasting_blocks: u64,
    /// The sizes that had the most bytes then, at most twelve, the largest sum first.
    pub at_peak: Vec<SizeFigures>,
    /// Operations after which at least nine tenths of the peak were live.
    pub near_peak: u64,
    /// Streams that took part.
    pub streams: u64,
    /// Blocks freed on another stream than they were allocated on.
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
    /// The patterns of a run.
    pub fn of(trace: &Trace) -> Self {
        let statistics = trace.statistics();
        let mut found = Self {
            requests: statistics.allocations,
            frees: statistics.frees,
            peak: statistics.peak_requested,
            streams: statistics.streams,
            ..Self::default()
        };
        let mut sizes: BTreeMap<Bytes, SizeFigures> = BTreeMap::new();
        let mut live_of: HashMap<Bytes, u64> = HashMap::new();
        let mut lives: Vec<Life> = Vec::with_capacity(trace.blocks());
        let mut caches = [SizeClasses::exact(), SizeClasses::geometric()].map(Cache::new);
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
                    let new = SizeFigures { size, requests: 0, most_live: 0, at_peak: 0 };
                    let figures = sizes.entry(size).or_insert(new);
                    figures.requests += 1;
                    let of_size = live_of.entry(size).or_default();
                    *of_size += 1;
                    figures.most_live = figures.most_live.max(*of_size);
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
        sizes: &mut BTreeMap<Bytes, SizeFigures>,
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

    /// What follows from the figures, in sentences that name them. Nothing where nothing does.
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
    all: impl Iterator<Item = &'a SizeFigures>,
    most: impl Fn(&SizeFigures) -> u64,
) -> Vec<SizeFigures> {
    let mut all: Vec<SizeFigures> = all.copied().collect();
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
