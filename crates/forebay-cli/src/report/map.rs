//! The address map: which blocks are drawn, and where.

use forebay_trace::Trace;

use super::data::{HeldRanges, Map, MapBlocks};
use super::lives::{LabelNumbers, Life};

/// The most blocks that are drawn.
const MAX_BLOCKS: usize = 1 << 14;

/// The map of a run whose blocks lay at `address` while the pool held `maps`.
pub(super) fn map(
    trace: &Trace,
    lives: &[Life],
    address: impl Fn(&Life) -> Option<u64>,
    maps: &[HeldRanges],
    labels: &mut LabelNumbers,
) -> Map {
    let placed = lives.iter().filter(|life| life.bytes > 0);
    let placed = placed.filter_map(|life| Some((life, address(life)?)));
    let (mut placed, left_out) = largest(placed);
    placed.iter().for_each(|(life, _)| _ = labels.of(trace, life.block));
    placed.sort_by_key(|(life, _)| life.block);
    let held = maps.iter().flat_map(|map| &map.ranges).copied();
    let used = Used::of(held.chain(placed.iter().map(|&(life, at)| (at, life.bytes))).collect());
    let mut blocks = MapBlocks::default();
    for (life, address) in placed {
        blocks.offset.push(used.offset(address));
        blocks.bytes.push(life.bytes);
        blocks.born.push(life.born);
        blocks.freed.push(life.freed);
        blocks.stream.push(life.stream.0);
        blocks.label.push(labels.of(trace, life.block));
    }
    let held = maps.iter().map(|map| {
        let ranges = map.ranges.iter().map(|&(start, size)| (used.offset(start), size));
        HeldRanges { at: map.at, ranges: ranges.collect() }
    });
    Map {
        end: used.end,
        blocks,
        blocks_left_out: left_out.blocks,
        largest_left_out_bytes: left_out.largest_bytes,
        held: held.collect(),
    }
}

/// Blocks that are not drawn.
#[derive(Debug, Default)]
struct LeftOut {
    blocks: u64,
    largest_bytes: u64,
}

/// The blocks that fill the most of the picture over time, as many as are drawn. Never holds many more than that.
fn largest<'a>(all: impl Iterator<Item = (&'a Life, u64)>) -> (Vec<(&'a Life, u64)>, LeftOut) {
    let (mut kept, mut left_out) = (Vec::new(), LeftOut::default());
    let mut shorten = |kept: &mut Vec<(&'a Life, u64)>| {
        kept.sort_by_key(|(life, _)| {
            let area = u128::from(life.bytes) * u128::from(life.events());
            (core::cmp::Reverse(area), life.block)
        });
        for (life, _) in kept.drain(MAX_BLOCKS.min(kept.len())..) {
            left_out.blocks += 1;
            left_out.largest_bytes = left_out.largest_bytes.max(life.bytes);
        }
    };
    for one in all {
        kept.push(one);
        if kept.len() >= 4 * MAX_BLOCKS {
            shorten(&mut kept);
        }
    }
    shorten(&mut kept);
    (kept, left_out)
}

/// Addresses that were ever used, put one after another.
#[derive(Debug)]
pub(super) struct Used {
    /// Begin, end and offset of each range, the lowest first; none touches another.
    pub(super) ranges: Vec<(u64, u64, u64)>,
    pub(super) end: u64,
}

impl Used {
    /// Those of pairs of begin and length.
    pub(super) fn of(mut parts: Vec<(u64, u64)>) -> Self {
        parts.sort_unstable();
        let mut ranges: Vec<(u64, u64, u64)> = Vec::new();
        for (start, size) in parts {
            let end = start.saturating_add(size);
            match ranges.last_mut() {
                Some((_, last, _)) if start <= *last => *last = end.max(*last),
                _ => ranges.push((start, end, 0)),
            }
        }
        let mut total = 0_u64;
        for (start, end, offset) in &mut ranges {
            *offset = total;
            total = total.saturating_add(*end - *start);
        }
        Self { ranges, end: total }
    }

    /// The offset of an address that is in one of the ranges.
    pub(super) fn offset(&self, address: u64) -> u64 {
        let below = self.ranges.partition_point(|&(start, ..)| start <= address);
        let range = below.checked_sub(1).and_then(|index| self.ranges.get(index));
        range.map_or(0, |&(start, _, offset)| offset.saturating_add(address - start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_were_never_used_are_left_out() {
        let used = Used::of(vec![(1000, 10), (100, 50), (140, 20), (160, 5), (5000, 1)]);
        assert_eq!(used.ranges, [(100, 165, 0), (1000, 1010, 65), (5000, 5001, 75)]);
        assert_eq!(used.end, 76);
        assert_eq!([100, 164, 1005, 5000].map(|at| used.offset(at)), [0, 64, 70, 75]);
        assert_eq!((Used::of(Vec::new()).offset(7), Used::of(vec![(9, 1)]).offset(7)), (0, 0));
    }
}
