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
