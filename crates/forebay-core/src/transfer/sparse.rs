//! What of sparse data is sent.

use core::ops::Range;

/// The ranges of `size` bytes that are sent, in order: all but runs of zero blocks that are as long as `gap` at least, in
/// bytes. Shorter ones are sent with what is around them: a copy more would cost more. `is_zero` tells of each block of
/// `block` bytes whether it is zero; the last may be shorter.
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn all_that_is_not_zero_is_sent_and_only_long_runs_are_not(
            zero in prop::collection::vec(any::<bool>(), 0..60),
            block in 1_u64..50,
            cut in 0_u64..50,
            gap in 1_u64..400,
        ) {
            let size = (zero.len() as u64 * block).saturating_sub(cut % block);
            let ranges = ranges_to_send(zero.iter().copied(), block, size, gap);
            let mut sent = vec![false; usize::try_from(size).unwrap()];
            let mut last = None;
            for range in &ranges {
                prop_assert!(range.start < range.end && range.end <= size);
                let skipped = range.start - last.unwrap_or(0);
                let is_first = last.is_none() && range.start == 0;
                prop_assert!(is_first || skipped >= gap, "{ranges:?}");
                last = Some(range.end);
                for at in range.clone() {
                    sent[usize::try_from(at).unwrap()] = true;
                }
            }
            let rest = size - last.unwrap_or(0);
            prop_assert!(rest == 0 || rest >= gap, "{ranges:?}");
            for (at, &is_sent) in sent.iter().enumerate() {
                let is_zero = zero[at / usize::try_from(block).unwrap()];
                prop_assert!(is_sent || is_zero, "byte {at}");
            }
            // A run of zero blocks that is long enough is never sent.
            let mut begin = 0;
            for (number, &is_zero) in zero.iter().chain([&false]).enumerate() {
                if is_zero {
                    continue;
                }
                let end = (number as u64 * block).min(size);
                if end > begin && end - begin >= gap {
                    prop_assert!(!sent[usize::try_from(begin).unwrap()..usize::try_from(end).unwrap()].contains(&true));
                }
                begin = end + block;
            }
        }
    }
}
