//! Windows: where a block could lie once gaps are filled.
//!
//! ```text
//!   hole   gap        hole  gap         an opening: gaps and the usable holes that touch them
//!   [....][          ][..][      ]
//!      [   window   ]                   the missing bytes are those of its gaps
//! ```
//!
//! Only gaps and the holes beside them are considered: a hole that touches no gap cannot be extended. Where a
//! page can return to a kept mapping, filling the gap is free.

use super::Offset;

/// A part of an opening: a hole, or a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::address_space) struct FreeRange {
    pub(in crate::address_space) start: Offset,
    pub(in crate::address_space) end: Offset,
    pub(in crate::address_space) is_gap: bool,
    /// What it costs the driver to fill a byte of it.
    pub(in crate::address_space) price: u64,
}

impl FreeRange {
    /// A gap: a page has to be mapped.
    pub(in crate::address_space) fn gap((start, end): (Offset, Offset)) -> Self {
        Self { start, end, is_gap: true, price: MAP }
    }

    /// A hole: nothing has to be done.
    pub(in crate::address_space) fn hole((start, end): (Offset, Offset)) -> Self {
        Self { start, end, is_gap: false, price: 0 }
    }
}

/// The price of a gap: a page has to be mapped.
const MAP: u64 = 3;

/// The price of a gap where another page is still mapped: on one H200, to remove a mapping takes two thirds of the time
/// of making one.
pub(super) const UNMAP_AND_MAP: u64 = 5;

/// Where a block could lie once its gaps are filled; the smaller, the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::address_space) struct Window {
    /// What it costs the driver to fill its gaps.
    pub(in crate::address_space) price: u64,
    pub(in crate::address_space) missing: u64,
    /// The bytes of its opening that stay free: using up a small opening is better than splitting a
    /// large one.
    pub(in crate::address_space) left: u64,
    pub(in crate::address_space) at: Offset,
}

/// Groups the ranges into runs that touch.
pub(in crate::address_space) fn openings(
    ranges: &[FreeRange],
) -> impl Iterator<Item = &[FreeRange]> {
    ranges.chunk_by(|one, next| one.end == next.start)
}

/// The best window for `size` in an opening: from the start of one of its ranges, or up to
/// the end of one of its holes.
///
/// Both ends of a window only ever go up, so all windows are measured in one pass.
pub(in crate::address_space) fn window(
    granule: u64,
    opening: &[FreeRange],
    size: u64,
) -> Option<Window> {
    let (start, end) = (opening.first()?.start, opening.last()?.end);
    let left = (end - start).checked_sub(size)?;
    // The missing bytes below each range, and below the end of the opening, and their price.
    let mut below = vec![(0, 0)];
    below.extend(opening.iter().scan((0_u64, 0_u64), |sum, it| {
        let length = if it.is_gap { it.end - it.start } else { 0 };
        sum.0 += length;
        sum.1 += it.price * length;
        Some(*sum)
    }));
    // The bytes of gaps below `at`, which lies in the range with this number. A granule that `at`
    // divides counts as above for a window that starts there, and as below for one that ends there.
    let under = |number: usize, at: Offset, up: bool| -> (u64, u64) {
        let (missing, price) = below.get(number).copied().unwrap_or((0, 0));
        match opening.get(number) {
            Some(it) if it.is_gap => {
                let edge = if up { at.div_ceil(granule) } else { at / granule };
                let part = (edge * granule).clamp(it.start, it.end) - it.start;
                (missing + part, price + it.price * part)
            }
            _ => (missing, price),
        }
    };
    let mut best: Option<Window> = None;
    let mut offer = |at: Offset, from: (u64, u64), to: (u64, u64)| {
        let window = Window { price: to.1 - from.1, missing: to.0 - from.0, left, at };
        best = Some(best.map_or(window, |best| best.min(window)));
    };
    let mut upper = 0;
    for (number, it) in opening.iter().enumerate() {
        let Some(stop) = it.start.checked_add(size).filter(|&stop| stop <= end) else { break };
        while opening.get(upper).is_some_and(|it| it.end < stop) {
            upper += 1;
        }
        offer(it.start, under(number, it.start, false), under(upper, stop, true));
    }
    let mut lower = 0;
    for (number, it) in opening.iter().enumerate().filter(|(_, it)| !it.is_gap) {
        let Some(at) = it.end.checked_sub(size).filter(|&at| at >= start) else { continue };
        while opening.get(lower).is_some_and(|it| it.end <= at) {
            lower += 1;
        }
        offer(at, under(lower, at, false), under(number, it.end, true));
    }
    best
}
