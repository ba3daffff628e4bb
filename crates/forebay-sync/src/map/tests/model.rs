use loom::sync::Arc;
use loom::thread;

use forebay_core::{Address, Bytes};

use crate::map::slot::{Slot, tagged};

const AT: Address = Address::new(1 << 30);

fn live() -> Arc<Slot> {
    let slot = Slot::counting_from(0);
    slot.mark_live(AT, Bytes::new(512), tagged(Bytes::new(500), 3));
    Arc::new(slot)
}

/// Frees as the pool does: the short way, or the long one.
fn free(slot: &Slot, short: bool) -> bool {
    if short {
        slot.plain(AT).is_some_and(|known| slot.claim_plain(known))
    } else {
        slot.state_at(AT).is_some_and(|known| slot.claim(known))
    }
}

/// Two frees of one block at the same time, by either way: one of them succeeds.
#[test]
fn loom_one_of_two_frees_succeeds() {
    for ways in [[true, true], [true, false], [false, false]] {
        loom::model(move || {
            let slot = live();
            let other = Arc::clone(&slot);
            let thread = thread::spawn(move || free(&other, ways[0]));
            let mine = free(&slot, ways[1]);
            assert!(mine != thread.join().unwrap(), "both, or neither");
        });
    }
}

/// Two frees of a block that a handle owns, and one by another that does not own it: one of the first two succeeds.
#[test]
fn loom_one_of_two_owners_frees_and_nobody_else() {
    loom::model(|| {
        let slot = live();
        assert!(free(&slot, true));
        let generation = slot.mark_owned_again(Bytes::new(512), tagged(Bytes::new(7), 1));
        let (other, stranger) = (Arc::clone(&slot), Arc::clone(&slot));
        let by_address = thread::spawn(move || {
            other.plain_owned(AT).is_some_and(|known| other.claim_owned(known))
        });
        let by_stranger = thread::spawn(move || free(&stranger, true));
        let by_generation = slot.claim_owned(slot.expected_owned(AT, generation));
        assert!(by_generation != by_address.join().unwrap(), "both, or neither");
        assert!(!by_stranger.join().unwrap());
    });
}

/// A free that looked at a block before it was freed and given out again does not free the next.
#[test]
fn loom_a_late_free_does_not_touch_the_next_block() {
    loom::model(|| {
        let slot = live();
        let late = Arc::clone(&slot);
        let thread = thread::spawn(move || free(&late, true));
        let again = slot.plain(AT).is_some_and(|known| slot.claim_plain(known));
        if again {
            // This thread has the block now, and gives it out again.
            slot.mark_live_again(Bytes::new(512), tagged(Bytes::new(7), 1));
        }
        let freed = thread.join().unwrap();
        let known = slot.state_at(AT).unwrap();
        match (again, freed) {
            // The late one freed the block itself, or the one that was given out after it looked
            // afresh; the count of frees and what the slot says agree.
            (true, true) => assert!(!known.live()),
            (true, false) => assert!(known.live() && known.requested() == 7),
            (false, true) => assert!(!known.live()),
            (false, false) => panic!("nobody freed a live block"),
        }
    });
}

/// A use recorded while the block is freed: either it is recorded, or the free came first.
#[test]
fn loom_a_recorded_use_is_not_lost() {
    loom::model(|| {
        let slot = live();
        let user = Arc::clone(&slot);
        let thread = thread::spawn(move || {
            user.state_at(AT).is_some_and(|known| known.live() && user.mark_used(known))
        });
        let plain = slot.plain(AT).is_some_and(|known| slot.claim_plain(known));
        let recorded = thread.join().unwrap();
        assert!(plain != recorded, "freed without a look at a use that was recorded");
    });
}

/// A look at a block that is freed and handed out again meanwhile sees one of the two live, not some
/// of each.
#[test]
fn loom_a_look_sees_one_block() {
    loom::model(|| {
        let slot = live();
        let reader = Arc::clone(&slot);
        let thread = thread::spawn(move || reader.state_at(AT).unwrap());
        assert!(free(&slot, true));
        slot.mark_live(AT, Bytes::new(1024), tagged(Bytes::new(1000), 4));
        let known = thread.join().unwrap();
        let seen = (known.generation(), known.size().get(), known.requested(), known.tag());
        // A freed one may have the size of the one that is being handed out.
        let one = [(1, 512, 500, 3), (2, 1024, 1000, 4)].contains(&seen);
        assert!(one || !known.live(), "{seen:?}");
    });
}
