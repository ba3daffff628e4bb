use proptest::prelude::*;

use super::*;

fn bytes(count: u64) -> Bytes {
    Bytes::new(count)
}

fn device(address: u64) -> Location {
    Location::Device(Address::new(address))
}

proptest! {
    /// The rows are those a plain double loop gives, whatever was merged on the way.
    #[test]
    fn rows_are_all_bytes_once(
        width in 0_u64..9, rows in 0_u64..5, slices in 0_u64..4,
        gaps in (0_u64..3, 0_u64..3, 0_u64..3, 0_u64..3),
    ) {
        let (to_row, from_row) = (width + gaps.0, width + gaps.1);
        let to_pitch = Pitch { row: bytes(to_row), slice: bytes(to_row * (rows + gaps.2)) };
        let from_pitch = Pitch { row: bytes(from_row), slice: bytes(from_row * (rows + gaps.3)) };
        let extent = Extent { width: bytes(width), rows, slices };
        let copy = Copy::volumes(device(1000), to_pitch, device(90_000), from_pitch, extent).unwrap();

        let mut expected = Vec::new();
        for slice in 0..slices {
            for row in 0..rows {
                for byte in 0..width {
                    expected.push((
                        1000 + slice * to_pitch.slice.get() + row * to_row + byte,
                        90_000 + slice * from_pitch.slice.get() + row * from_row + byte,
                    ));
                }
            }
        }
        let mut seen = Vec::new();
        for (to, from) in copy.rows() {
            prop_assert_eq!(to.size(), from.size());
            for byte in 0..to.size().get() {
                seen.push((to.start().get() + byte, from.start().get() + byte));
            }
        }
        if let (Some(first), Some(last)) = (expected.first(), expected.last()) {
            prop_assert_eq!(copy.written().start().get(), first.0);
            prop_assert_eq!(copy.written().end().get(), last.0 + 1);
            prop_assert_eq!(copy.read().end().get(), last.1 + 1);
        }
        prop_assert_eq!(extent.bytes().get(), seen.len() as u64);
        prop_assert_eq!(seen, expected);
    }

    /// Any numbers at all give a shape or an error, and a shape stays inside the addresses.
    #[test]
    fn no_shape_wraps(
        at: u64, width: u64, rows: u64, slices: u64, row: u64, slice: u64, small: bool,
    ) {
        let cut = |value: u64| if small { value % 5 } else { value };
        let extent = Extent { width: bytes(width), rows: cut(rows), slices: cut(slices) };
        let pitch = Pitch { row: bytes(row), slice: bytes(slice) };
        if let Ok(copy) = Copy::volumes(device(at), pitch, device(0), pitch, extent) {
            let reach = copy.written();
            prop_assert!(copy.rows().take(100).all(|(to, _)| reach.contains_span(to)));
        }
        let _ = Copy::linear(device(at), Location::Host(Address::new(row)), bytes(width));
        let _ = Fill::plane(Address::new(at), bytes(row), (bytes(width), rows), Pattern::U16(7));
    }
}

#[test]
fn a_bad_pitch_says_what_is_allowed() {
    let error =
        Copy::planes(device(0), bytes(7), device(100), bytes(8), (bytes(8), 2)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "copy: invalid to: row pitch 7 B; expected 8 B (the width) or more (correct the argument; \
         trying again will not help)"
    );
    let extent = Extent { width: bytes(8), rows: 2, slices: 2 };
    let pitch = Pitch { row: bytes(8), slice: bytes(17) };
    assert!(Copy::volumes(device(0), pitch, device(100), pitch, extent).is_err());
}

#[test]
fn linear_copies_do_not_overlap_on_one_side() {
    assert!(Copy::linear(device(0), device(15), bytes(16)).is_err());
    assert!(Copy::linear(device(0), device(16), bytes(16)).is_ok());
    assert!(Copy::linear(device(0), Location::Host(Address::new(8)), bytes(16)).is_ok());
    assert!(Copy::linear(device(8), device(8), bytes(0)).is_ok());
}

#[test]
fn fills_are_multiples_of_their_pattern() {
    let at = Address::new(2);
    assert!(Fill::linear(at, bytes(8), Pattern::U16(1)).is_ok());
    assert!(Fill::linear(at, bytes(8), Pattern::U32(1)).is_err());
    assert!(Fill::linear(at, bytes(7), Pattern::U16(1)).is_err());
    assert!(Fill::plane(at, bytes(7), (bytes(4), 2), Pattern::U16(1)).is_err());
}
