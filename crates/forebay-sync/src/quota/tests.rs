use super::*;

#[cfg(loom)]
mod model;

#[cfg(not(loom))]
const LIMIT: Bytes = Bytes::mib(100);

/// Two pools of one quota.
#[cfg(not(loom))]
fn two() -> (Quota, Share, Share) {
    let quota = Quota::default();
    let (one, two) = (Share::new(&quota), Share::new(&quota));
    (quota, one, two)
}

#[cfg(not(loom))]
#[test]
fn what_one_pool_reserves_no_other_gets() {
    let (quota, mut one, mut two) = two();
    // Both have seen room for 60 MiB.
    assert_eq!((one.others(), two.others()), (Bytes::ZERO, Bytes::ZERO));
    let first = one.reserve(Bytes::mib(60), false, LIMIT).unwrap();
    assert!(two.reserve(Bytes::mib(60), false, LIMIT).is_none());
    let second = two.reserve(Bytes::mib(40), false, LIMIT).unwrap();
    assert!(two.reserve(Bytes::new(1), false, LIMIT).is_none());
    assert_eq!((one.others(), two.others()), (Bytes::mib(40), Bytes::mib(60)));
    // It comes: what was reserved is held.
    one.commit(first);
    one.set_held(Bytes::mib(60));
    assert_eq!((two.others(), quota.claimed()), (Bytes::mib(60), LIMIT));
    // It does not come: others may have it.
    drop(second);
    assert_eq!(one.others(), Bytes::ZERO);
    // What is held outside counts like another pool's.
    quota.replace(Bytes::ZERO, Bytes::mib(30));
    assert!(two.reserve(Bytes::mib(11), false, LIMIT).is_none());
    assert_eq!(two.others(), Bytes::mib(90));
    quota.replace(Bytes::mib(30), Bytes::ZERO);
    // Moving pages takes nothing, even if the limit was lowered.
    assert!(one.reserve(Bytes::ZERO, false, Bytes::mib(1)).is_some());
    assert!(one.reserve(Bytes::mib(41), false, LIMIT).is_none());
    drop(one);
    assert_eq!((two.others(), quota.claimed()), (Bytes::ZERO, Bytes::ZERO));
}

/// A growth that fails half way leaves a page that the device has yet to take back. The page counts once, and the room is
/// as large as before when it is gone.
#[cfg(not(loom))]
#[test]
fn a_failed_growth_gives_its_room_back_once() {
    let (quota, mut one, two) = two();
    one.set_held(LIMIT);
    assert!(one.begin_room() && !one.begin_room(), "only one request has room");
    one.released(Bytes::mib(40));
    one.set_held(Bytes::mib(60));
    assert_eq!((one.room(), quota.claimed()), (Bytes::mib(40), LIMIT));
    let mut reserved = one.reserve(Bytes::mib(30), true, LIMIT).unwrap();
    // The orphan.
    one.commit(reserved.split(Bytes::mib(10)));
    one.set_held(Bytes::mib(70));
    assert_eq!((quota.claimed(), two.others()), (LIMIT, LIMIT));
    one.released(Bytes::mib(10));
    one.set_held(Bytes::mib(60));
    one.return_room(reserved);
    assert_eq!((one.room(), quota.claimed()), (Bytes::mib(40), LIMIT));
    // What is missing beyond the room comes from the limit, or the room stays whole.
    assert!(one.reserve(Bytes::mib(41), true, LIMIT).is_none());
    assert_eq!(one.room(), Bytes::mib(40));
    let all = one.reserve(Bytes::mib(50), true, Bytes::mib(110)).unwrap();
    assert_eq!((all.bytes(), one.room()), (Bytes::mib(50), Bytes::ZERO));
    one.return_room(all);
    one.end_room();
    assert_eq!(quota.claimed(), Bytes::mib(60));
}
