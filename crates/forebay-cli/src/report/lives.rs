//! Blocks of a recording: when each began and ended, and which were live at the peak.

use core::hash::Hash;
use std::collections::HashMap;

use forebay_trace::{BlockIndex, Event, StreamIndex, Trace};

use super::data::{Bar, OwnedBlock, Owner, Owners};

/// How many groups of blocks are named.
const GROUPS: usize = 20;

/// How many single blocks are named.
const BLOCKS: usize = 40;

/// The most call stacks and tags of a report: of up to 1 KiB each.
const MAX_LABELS: usize = 1000;

/// The life of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) block: BlockIndex,
    pub(super) bytes: u64,
    pub(super) stream: StreamIndex,
    /// The event that allocated it.
    pub(super) born: u64,
    /// The event that freed it; the number of events if none did.
    pub(super) freed: u64,
}

impl Life {
    pub(super) fn events(&self) -> u64 {
        self.freed - self.born
    }

    pub(super) fn is_live_after(&self, event: u64) -> bool {
        self.born <= event && event < self.freed
    }
}

/// All of them, by number.
pub(super) fn lives(trace: &Trace) -> Vec<Life> {
    let end = trace.len() as u64;
    let mut lives: Vec<Life> = Vec::with_capacity(trace.blocks());
    for (at, event) in (0_u64..).zip(trace.events()) {
        match event {
            Event::Allocate { block, size, stream } => {
                lives.push(Life { block, bytes: size.get(), stream, born: at, freed: end });
            }
            Event::Free { block, .. } => {
                if let Some(life) = lives.get_mut(block.0 as usize) {
                    life.freed = at;
                }
            }
        }
    }
    lives
}

/// Where a block was allocated: the innermost frame of its call stack.
pub(super) fn site(trace: &Trace, block: BlockIndex) -> Option<&str> {
    trace.stack(block)?.lines().next()
}

/// Labels as a report numbers them.
#[derive(Debug, Default)]
pub(super) struct LabelNumbers {
    texts: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl LabelNumbers {
    /// The number of the label of `block` plus one; 0 if it has none, or there are too many.
    pub(super) fn of(&mut self, trace: &Trace, block: BlockIndex) -> u32 {
        trace.label(block).map_or(0, |text| self.number_of(text))
    }

    /// The number of a text plus one; 0 if there are too many.
    fn number_of(&mut self, text: &str) -> u32 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        if self.texts.len() >= MAX_LABELS {
            return 0;
        }
        self.texts.push(text.to_owned());
        let number = u32::try_from(self.texts.len()).unwrap_or(0);
        self.numbers.insert(text.to_owned(), number);
        number
    }

    /// The same as a key of owners.
    pub(super) fn number(&mut self, text: &str) -> u64 {
        u64::from(self.number_of(text))
    }

    pub(super) fn into_texts(self) -> Vec<String> {
        self.texts
    }
}

/// Who had memory after the event `peak_at`.
pub(super) fn at_peak(
    trace: &Trace,
    lives: &[Life],
    peak_at: u64,
    labels: &mut LabelNumbers,
) -> Owners {
    let mut live: Vec<&Life> = lives.iter().filter(|life| life.is_live_after(peak_at)).collect();
    live.sort_by_key(|life| (core::cmp::Reverse(life.bytes), life.block));
    // The groups get their numbers before single blocks do: there may be too many labels.
    let by_label = by_text(lives, &live, labels, |life| trace.label(life.block));
    let by_tag = by_text(lives, &live, labels, |life| trace.tag(life.block));
    let by_site = by_text(lives, &live, labels, |life| site(trace, life.block));
    let by_thread = match trace.thread(0) {
        Some(_) => grouped(&live, |life| {
            let event = usize::try_from(life.born).unwrap_or(usize::MAX);
            trace.thread(event).map_or(0, u64::from)
        }),
        None => Vec::new(),
    };
    let largest = live.iter().take(BLOCKS).map(|life| OwnedBlock {
        block: life.block.0,
        bytes: life.bytes,
        stream: life.stream.0,
        born: life.born,
        freed: (life.freed < trace.len() as u64).then_some(life.freed),
        label: labels.of(trace, life.block),
    });
    let largest = largest.collect();
    Owners {
        by_label,
        by_tag,
        by_site,
        by_thread,
        by_size: grouped(&live, |life| life.bytes),
        by_stream: grouped(&live, |life| u64::from(life.stream.0)),
        largest,
    }
}

/// Blocks that have the same text, the most bytes first; none if no block of the run has a text. Those without one are a
/// group too.
fn by_text<'a>(
    all: &[Life],
    live: &[&Life],
    labels: &mut LabelNumbers,
    text: impl Fn(&Life) -> Option<&'a str>,
) -> Vec<Owner> {
    if all.iter().all(|life| text(life).is_none()) {
        return Vec::new();
    }
    let key = |text: Option<&str>| text.map_or(0, |text| labels.number(text));
    summed(live, text, key)
}

/// Blocks that have the same key, the most bytes first.
fn grouped(live: &[&Life], key: impl Fn(&Life) -> u64) -> Vec<Owner> {
    summed(live, key, |key| key)
}

/// Sums over blocks of one group. Groups beyond a number are one row, so that the rows add up to all blocks.
fn summed<G: Copy + Eq + Hash + Ord>(
    live: &[&Life],
    group: impl Fn(&Life) -> G,
    mut key: impl FnMut(G) -> u64,
) -> Vec<Owner> {
    let mut sums: HashMap<G, (u64, u64)> = HashMap::new();
    for life in live {
        let (blocks, bytes) = sums.entry(group(life)).or_default();
        *blocks += 1;
        *bytes = bytes.saturating_add(life.bytes);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|&(group, (_, bytes))| (core::cmp::Reverse(bytes), group));
    // A rest of one group is shown as what it is.
    let shown = if sums.len() == GROUPS + 1 { GROUPS + 1 } else { GROUPS };
    let rest = sums.split_off(sums.len().min(shown));
    let owner = |(group, (blocks, bytes))| Owner { key: key(group), groups: 1, blocks, bytes };
    let mut owners: Vec<Owner> = sums.into_iter().map(owner).collect();
    if !rest.is_empty() {
        let mut others = Owner { key: 0, groups: rest.len() as u64, blocks: 0, bytes: 0 };
        for (_, (blocks, bytes)) in rest {
            others.blocks += blocks;
            others.bytes = others.bytes.saturating_add(bytes);
        }
        owners.push(others);
    }
    owners
}

/// A histogram of all blocks in powers of two of `value`; bars between the first and the last are all there.
pub(super) fn histogram(lives: &[Life], peak_at: u64, value: impl Fn(&Life) -> u64) -> Vec<Bar> {
    let values = lives.iter().map(|life| (value(life), life.bytes, life.is_live_after(peak_at)));
    bars(values)
}

/// The bars of values, each with its bytes and whether it counts at the peak.
pub(super) fn bars(values: impl Iterator<Item = (u64, u64, bool)>) -> Vec<Bar> {
    let mut bars: Vec<Bar> = (0..u64::BITS)
        .map(|bit| Bar {
            from: if bit == 0 { 0 } else { 1 << bit },
            count: 0,
            bytes: 0,
            at_peak: 0,
        })
        .collect();
    for (value, bytes, at_peak) in values {
        if let Some(bar) = bars.get_mut(value.max(1).ilog2() as usize) {
            bar.count += 1;
            bar.bytes = bar.bytes.saturating_add(bytes);
            bar.at_peak += u64::from(at_peak);
        }
    }
    let last = bars.iter().rposition(|bar| bar.count > 0).map_or(0, |last| last + 1);
    bars.truncate(last);
    let first = bars.iter().position(|bar| bar.count > 0).unwrap_or(0);
    bars.split_off(first)
}
