use forebay_core::{Address, Bytes};

use crate::map::LARGEST;
use crate::map::slot::{Slot, tagged};

const AT: Address = Address::new(1 << 30);
const SIZE: Bytes = Bytes::new(512);

#[test]
fn generations_go_on_for_years() {
    for start in [1 << 20, 1 << 35, (1 << 50) - 2] {
        let slot = Slot::counting_from(start);
        slot.mark_live(AT, SIZE, tagged(SIZE, 3));
        let first = slot.state_at(AT).unwrap();
        assert_eq!(first.generation(), start + 1);
        assert!(slot.claim(first));
        for count in start + 2..start + 6 {
            let generation = if count % 2 == 0 {
                slot.mark_live_again(SIZE, tagged(SIZE, 3))
            } else {
                slot.mark_live(AT, SIZE, tagged(SIZE, 3))
            };
            assert_eq!(generation, count);
            assert!(!slot.claim(first) && !slot.claim_plain(first), "freed as an earlier block");
            let known = slot.plain(AT).unwrap();
            assert_eq!((slot.state_at(AT), known.generation()), (Some(known), generation));
            assert!(slot.claim_plain(known));
        }
    }
}

#[test]
fn an_owned_block_is_freed_as_owned_alone() {
    let slot = Slot::counting_from(7);
    slot.mark_live(AT, SIZE, tagged(SIZE, 3));
    assert!(slot.plain_owned(AT).is_none(), "nobody owns it");
    assert!(slot.claim_plain(slot.plain(AT).unwrap()));
    for count in 9..12 {
        let generation = slot.mark_owned_again(SIZE, tagged(SIZE, 3));
        assert_eq!(generation, count);
        let known = slot.plain_owned(AT).unwrap();
        assert!(
            known.owned()
                && slot.plain(AT).is_none()
                && slot.plain_owned(Address::new(512)).is_none()
        );
        assert_eq!(slot.expected_owned(AT, generation), known);
        assert!(!slot.claim_plain(slot.expected(AT, generation)), "freed without its owner");
        assert!(
            !slot.claim_owned(slot.expected_owned(AT, generation - 1)),
            "freed as an earlier one"
        );
        assert!(slot.claim_owned(known) && !slot.claim_owned(known), "freed once");
        assert!(slot.state_at(AT).is_some_and(|known| !known.live()));
    }
    slot.mark_live_again(SIZE, tagged(SIZE, 3));
    assert!(slot.claim_plain(slot.plain(AT).unwrap()), "the next owner is nobody");
}

#[test]
fn what_was_requested_is_kept_to_the_byte() {
    let slot = Slot::counting_from(0);
    let largest = LARGEST.get();
    let added = 1 << 24;
    for (size, requested, wide) in [
        (512, 1, false),
        (1 << 18, (1 << 17) + 1, false),
        (1 << 25, (1 << 25) - added + 1, false),
        (1 << 25, (1 << 25) - added, true),
        (1 << 31, (1 << 30) + 1, true),
        (1 << 40, (1 << 39) + 1, true),
        (largest, largest, false),
        (largest, largest - 511, false),
    ] {
        slot.mark_live(AT, Bytes::new(size), tagged(Bytes::new(requested), 255));
        let known = slot.state_at(AT).unwrap();
        let seen = (known.size().get(), known.requested(), known.tag());
        assert_eq!(seen, (size, requested, 255));
        assert_eq!(slot.plain(AT).is_none(), wide, "{requested} of {size}");
        assert!(known.live() && slot.mark_used(known) && !slot.claim(known));
        let used = slot.state_at(AT).unwrap();
        assert!(used.used_elsewhere() && slot.claim(used));
        let freed = slot.state_at(AT).unwrap();
        assert_eq!((freed.live(), freed.size().get()), (false, size));
    }
}
