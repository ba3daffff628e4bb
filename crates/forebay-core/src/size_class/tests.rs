use proptest::prelude::*;

use super::*;

const EVERY_KIND: [SizeClasses; 3] =
    [SizeClasses::Geometric, SizeClasses::PowersOfTwo, SizeClasses::Exact];

/// Sizes of every magnitude, and those next to powers of two.
fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>().prop_flat_map(|bits| (0_u32..64).prop_map(move |shift| bits >> shift)),
        (0_u32..64, 0_u64..5)
            .prop_map(|(shift, near)| (1_u64 << shift).wrapping_add(near).wrapping_sub(2)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The bounds people are promised, worked out without the code under test.
    #[test]
    fn rounding_is_enough_and_within_its_bound(size in sizes()) {
        for classes in EVERY_KIND {
            let Ok(rounded) = classes.round(Bytes::new(size)) else {
                prop_assert!(size > u64::MAX - 512);
                continue;
            };
            let rounded = rounded.get();
            let waste = rounded.checked_sub(size).unwrap();
            let most = match classes {
                SizeClasses::Geometric if size <= 1 << 20 => size / 8,
                SizeClasses::PowersOfTwo if size <= 1 << 31 => size,
                _ => 0,
            };
            prop_assert!(waste < 512 || waste <= most, "{size} -> {rounded}");
            prop_assert_eq!(rounded % 512, 0);
            prop_assert_eq!(classes.round(Bytes::new(rounded)).unwrap().get(), rounded);
            if classes == SizeClasses::PowersOfTwo && (1..=1 << 31).contains(&size) {
                prop_assert_eq!(rounded, size.next_power_of_two().max(512));
            }
        }
    }

    #[test]
    fn a_larger_request_never_gets_a_smaller_block(one in sizes(), two in sizes()) {
        let (small, large) = (Bytes::new(one.min(two)), Bytes::new(one.max(two)));
        for classes in EVERY_KIND {
            if let (Ok(a), Ok(b)) = (classes.round(small), classes.round(large)) {
                prop_assert!(a <= b);
            }
        }
    }
}

#[test]
fn a_mebibyte_has_so_many_classes() {
    for (classes, due) in EVERY_KIND.into_iter().zip([72, 12, 2048]) {
        let rounded = (1..=1 << 20).step_by(512);
        let rounded: std::collections::BTreeSet<_> =
            rounded.map(|size| classes.round(Bytes::new(size)).unwrap()).collect();
        assert_eq!(rounded.len(), due, "{classes:?}");
    }
}
