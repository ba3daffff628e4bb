use proptest::prelude::*;

use super::*;

/// Three blocks of 1 KiB of data and one of 100 bytes, with compressed lengths of 5, 1024, 7 and 100.
fn sample() -> Vec<u8> {
    let blocks = [vec![1; 5], vec![2; 1024], vec![3; 7], vec![4; 100]];
    Lz4Layout::new(1024, 3 * 1024 + 100).unwrap().assemble(&blocks, Vec::new()).unwrap()
}

#[test]
fn what_was_assembled_is_found_again() {
    let bytes = sample();
    let layout = Lz4Layout::parse(&bytes).unwrap();
    assert_eq!((layout.block(), layout.blocks(), layout.total()), (1024, 4, 3172));
    let found: Vec<_> = (0..4)
        .map(|block| (layout.range_of(&bytes, block).unwrap(), layout.length_of(block)))
        .collect();
    assert_eq!(found, [(56..61, 1024), (61..1085, 1024), (1085..1092, 1024), (1092..1192, 100)]);
    assert_eq!(layout.range_of(&bytes, 4), None);
    assert!(bytes[1092..1192].iter().all(|&byte| byte == 4));
}

#[test]
fn no_data_is_no_block() {
    let bytes = Lz4Layout::new(1024, 0).unwrap().assemble::<Vec<u8>>(&[], Vec::new()).unwrap();
    assert_eq!(bytes.len(), 24);
    assert_eq!(Lz4Layout::parse(&bytes).unwrap().blocks(), 0);
}

#[test]
fn every_truncation_and_every_byte_too_many_is_refused() {
    let bytes = sample();
    for length in 0..bytes.len() {
        assert!(Lz4Layout::parse(&bytes[..length]).is_err(), "{length}");
    }
    let longer: Vec<_> = bytes.iter().copied().chain([0]).collect();
    let expected = CompressedError::Length { expected: 1192, found: 1193 };
    assert_eq!(Lz4Layout::parse(&longer), Err(expected));
}

#[test]
fn each_field_is_checked() {
    let with = |at: usize, field: &[u8]| {
        let mut bytes = sample();
        bytes[at..at + field.len()].copy_from_slice(field);
        Lz4Layout::parse(&bytes)
    };
    assert_eq!(with(0, b"LZ4"), Err(CompressedError::NotCompressed));
    assert_eq!(with(8, &[2]), Err(CompressedError::Version { found: 2 }));
    for size in [0, 1023, (4 << 20) + 1, u32::MAX] {
        let expected = CompressedError::BlockSize { found: size.into() };
        assert_eq!(with(12, &size.to_le_bytes()), Err(expected));
    }
    // More data than there are blocks for, and more blocks than there can be.
    assert!(with(16, &4097_u64.to_le_bytes()).is_err());
    assert!(with(16, &u64::MAX.to_le_bytes()).is_err());
    // The second block ends before it begins, is empty, is longer than its data, or ends past all bytes.
    for end in [4_u64, 5, 5 + 1025, u64::MAX] {
        let outcome = with(32, &end.to_le_bytes());
        assert!(
            matches!(outcome, Err(CompressedError::BlockLength { block: 1, .. })),
            "{outcome:?}"
        );
    }
}

#[test]
fn blocks_that_do_not_fit_the_data_are_not_assembled() {
    let layout = Lz4Layout::new(1024, 2000).unwrap();
    assert!(layout.assemble(&[vec![0; 10]], Vec::new()).is_err());
    assert!(layout.assemble(&[vec![0; 10], vec![0; 977]], Vec::new()).is_err());
    assert!(layout.assemble(&[vec![0; 10], vec![0; 976]], Vec::new()).is_ok());
}

#[test]
fn statuses_keep_their_numbers() {
    for code in 0..10 {
        assert_eq!(BlockStatus::from_code(code).code(), code);
        assert_eq!(matches!(BlockStatus::from_code(code), BlockStatus::Unknown(_)), code > 5);
    }
}

proptest! {
    #[test]
    fn whatever_is_accepted_has_its_blocks_in_bounds(
        changes in prop::collection::vec((0..1192_usize, any::<u8>()), 0..6),
        cut in 0..1300_usize,
    ) {
        let mut bytes = sample();
        for (at, value) in changes {
            bytes[at] = value;
        }
        bytes.truncate(cut.max(24));
        if let Ok(layout) = Lz4Layout::parse(&bytes) {
            let mut at = layout.data_start();
            for block in 0..layout.blocks() {
                let range = layout.range_of(&bytes, block).unwrap();
                prop_assert_eq!(range.start, at);
                prop_assert!(range.len() <= layout.length_of(block) as usize);
                at = range.end;
            }
            prop_assert_eq!(at, bytes.len());
        }
    }
}
