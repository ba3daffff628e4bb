//! That the oracle without a lock finds what it is there to find. Apart from it, since the soak has
//! it too.

use proptest::prelude::*;

use crate::claims::{Claims, Conflict, SLAB, UNIT};

const MIB: u64 = 1 << 20;

#[test]
fn any_shared_unit_is_found() {
    let claims = Claims::default();
    claims.claim(5 * MIB, 3 * MIB).unwrap();
    claims.claim(5 * MIB - 512, 512).unwrap();
    claims.claim(8 * MIB, 1536).unwrap();
    for (at, free) in [(5 * MIB, false), (6 * MIB + 1, false), (8 * MIB, false)]
        .into_iter()
        .chain([(8 * MIB + 1536, true), (0, true), (40 * SLAB, true)])
    {
        assert_eq!(claims.is_free(at), free, "{at:#x}");
    }
    for (start, size) in
        [(5 * MIB, 512), (6 * MIB, MIB), (4 * MIB, 8 * MIB), (8 * MIB - 512, 512), (0, 6 * MIB)]
    {
        let found = claims.claim(start, size);
        assert!(matches!(found, Err(Conflict::Taken { .. })), "{start:#x} {size:#x}");
    }
}

#[test]
fn only_what_was_claimed_is_released() {
    let claims = Claims::default();
    assert!(matches!(claims.release(MIB, 512), Err(Conflict::NotTaken { .. })));
    claims.claim(MIB, 2 * MIB).unwrap();
    assert!(matches!(claims.release(MIB + 512, 512), Err(Conflict::NotTaken { .. })));
    assert!(matches!(claims.release(MIB, 3 * MIB), Err(Conflict::NotTaken { .. })));
    for malformed in [(MIB + 1, 512), (MIB, 0), (MIB, 511), (u64::MAX - 511, 512)] {
        let found = claims.claim(malformed.0, malformed.1);
        assert!(matches!(found, Err(Conflict::Malformed { .. })), "{malformed:?}");
    }
}

#[test]
fn slabs_far_apart_and_blocks_across_them() {
    let claims = Claims::default();
    claims.claim(SLAB - 512, 1024).unwrap();
    claims.claim(700 * SLAB * 1024, SLAB + MIB).unwrap();
    assert!(!claims.is_empty());
    claims.release(SLAB - 512, 1024).unwrap();
    claims.release(700 * SLAB * 1024, SLAB + MIB).unwrap();
    assert!(claims.is_empty());
    claims.claim(SLAB - 512, 1024).unwrap();
    assert!(claims.claim(SLAB, 512).is_err());
}

proptest! {
    /// The same as a plain list of intervals says.
    #[test]
    fn claims_agree_with_a_list(
        blocks in proptest::collection::vec((0_u64..4096, 1_u64..1500), 1..40)
    ) {
        let claims = Claims::default();
        let mut live: Vec<(u64, u64)> = Vec::new();
        for (start, size) in blocks {
            let overlaps = live.iter().any(|&(s, n)| start < s + n && s < start + size);
            let claimed = claims.claim(start * UNIT, size * UNIT);
            prop_assert_eq!(claimed.is_err(), overlaps);
            if overlaps {
                // What was found out leaves the claims half made: a run ends there.
                return Ok(());
            }
            live.push((start, size));
        }
        for (start, size) in live {
            prop_assert_eq!(claims.release(start * UNIT, size * UNIT), Ok(()));
        }
        prop_assert!(claims.is_empty());
    }
}
