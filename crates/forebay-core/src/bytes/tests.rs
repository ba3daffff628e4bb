use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn align_up_is_the_next_multiple(size: u64, shift in 0_u32..64) {
        let alignment = Alignment::new(1 << shift).unwrap();
        match Bytes::new(size).checked_align_up(alignment) {
            Some(up) => {
                prop_assert!(up.get() >= size && up.get() - size < alignment.get());
                prop_assert!(up.is_aligned_to(alignment));
            }
            None => prop_assert!(u128::from(size) + u128::from(alignment.mask()) > u128::from(u64::MAX)),
        }
        prop_assert!(Bytes::new(size).align_down(alignment).get() <= size);
    }

    #[test]
    fn only_powers_of_two_align(given: u64) {
        prop_assert_eq!(Alignment::new(given).is_ok(), given.count_ones() == 1);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,40}") {
        let _ = text.parse::<Bytes>();
    }

    #[test]
    fn a_limit_set_as_advised_admits_the_size(size in 0..u64::MAX / 2, shift in 0_u32..64) {
        let size = Bytes::new(size >> shift);
        let advised: Bytes = size.rounded_up().to_string().parse().unwrap();
        prop_assert!(advised >= size, "{advised:?} for {size:?}");
        // And no more than a hundredth of the unit above it, which is at most 1 % of the size.
        prop_assert!(advised.get() - size.get() <= size.get() / 100 + 1);
    }

    #[test]
    fn the_figure_shown_is_within_half_a_hundredth(size in 0..u64::MAX / 2, shift in 0_u32..64) {
        let size = size >> shift;
        let shown: Bytes = Bytes::new(size).to_string().parse().unwrap();
        prop_assert!(shown.get().abs_diff(size) <= size / 200 + 1);
    }

    #[test]
    fn numbers_read_back(size: u64) {
        prop_assert_eq!(size.to_string().parse::<Bytes>().unwrap().get(), size);
    }
}

#[test]
fn sizes_are_read_as_people_write_them() {
    for (text, bytes) in [
        ("0", 0),
        ("512", 512),
        ("512B", 512),
        (" 4 KiB ", 4096),
        ("24G", 24 * GIB),
        ("24GiB", 24 * GIB),
        ("1.5gib", GIB + GIB / 2),
        ("2GB", 2_000_000_000),
        ("0.5TiB", TIB / 2),
    ] {
        assert_eq!(text.parse::<Bytes>().unwrap().get(), bytes, "{text}");
    }
    for text in [
        "",
        "-1",
        "1.",
        ".5",
        "1e9",
        "1..5",
        "4 PiB",
        "GiB",
        "0x10",
        "1.0000000001G",
        "1.5",
        "1.5B",
    ] {
        assert!(text.parse::<Bytes>().is_err(), "{text}");
    }
    assert!(matches!("99999999TiB".parse::<Bytes>(), Err(QuantityError::Overflow { .. })));
}

#[test]
fn counts_of_units_are_bytes_and_never_wrap() {
    let of = |unit: fn(u64) -> Bytes| [0, 3, u64::MAX].map(|count| unit(count).get());
    assert_eq!(of(Bytes::kib), [0, 3 * 1024, u64::MAX]);
    assert_eq!(of(Bytes::mib), [0, 3 * 1024 * 1024, u64::MAX]);
    assert_eq!(of(Bytes::gib), [0, 3 * 1024 * 1024 * 1024, u64::MAX]);
}

#[test]
fn people_read_binary_units() {
    for (bytes, text) in [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536 * KIB, "1.50 MiB"),
        (GIB - 1, "1.00 GiB"),
        (GIB, "1.00 GiB"),
        (u64::MAX, "16777216.00 TiB"),
    ] {
        assert_eq!(Bytes::new(bytes).to_string(), text);
    }
}

#[test]
fn sizes_are_rounded_to_the_nearest_hundredth() {
    // 20 MiB and 4000 B, which is 20.0038 MiB.
    let over = 20 * MIB + 4000;
    for (bytes, nearest, up) in [
        (over, "20.00 MiB", "20.01 MiB"),
        (20 * MIB, "20.00 MiB", "20.00 MiB"),
        // A hundredth of a KiB is 10.24 B: 1029 B are 1.0049 KiB and 1030 B are 1.0059 KiB.
        (1029, "1.00 KiB", "1.01 KiB"),
        (1030, "1.01 KiB", "1.01 KiB"),
        // 1023.9941 KiB, and 1023.9951 KiB, which rounds to the next unit.
        (MIB - 6, "1023.99 KiB", "1.00 MiB"),
        (MIB - 5, "1.00 MiB", "1.00 MiB"),
        (400_000 * KIB, "390.63 MiB", "390.63 MiB"),
    ] {
        let size = Bytes::new(bytes);
        assert_eq!(
            (size.to_string().as_str(), size.rounded_up().to_string().as_str()),
            (nearest, up)
        );
    }
}

#[test]
fn an_overflow_names_its_figures() {
    let text = Bytes::of::<u64>(u64::MAX).unwrap_err().to_string();
    assert!(text.contains("8 B x 18446744073709551615"), "{text}");
}
