//! Which parts of sparse data are sent.

use core::ops::Range;

/// The ranges of `size` bytes that are sent, in order: all but runs of zero blocks at least `gap` bytes long. Shorter
/// runs are sent with what is around them: another copy would cost more. `is_zero` tells whether each block of `block`
/// bytes is zero; the last may be shorter.
///
/// ```
/// use forebay_core::transfer::ranges_to_send;
///
/// let zero = [true, true, true, false, true, false, true, true];
/// assert_eq!(ranges_to_send(zero, 10, 80, 20), [30..60]);
/// assert_eq!(ranges_to_send(zero, 10, 75, 30), [30..75], "the last 15 are too few");
/// ```
pub fn ranges_to_send(
    is_zero: impl IntoIterator<Item = bool>,
    block: u64,
    size: u64,
    gap: u64,
) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut start = 0;
    // The end of the last block that is not zero, or the first byte.
    let mut end = 0;
    let mut send = |range: Range<u64>, until: u64| match ranges.last_mut() {
        Some(last) if range.start - last.end < gap => last.end = until,
        None if range.start < gap => ranges.push(0..until),
        _ => ranges.push(range.start..until),
    };
    for is_zero in is_zero {
        if start >= size {
            break;
        }
        let next = start.saturating_add(block.max(1)).min(size);
        if !is_zero {
            send(start..next, next);
            end = next;
        }
        start = next;
    }
    let rest = size - end;
    if rest > 0 && rest < gap {
        match ranges.last_mut() {
            Some(last) => last.end = size,
            None => ranges.push(0..size),
        }
    }
    ranges
}

#[cfg(test)]
mod tests;
