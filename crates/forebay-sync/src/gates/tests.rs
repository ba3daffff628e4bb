use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use super::*;

/// Adds one to the owner's sum, by the fast path where it is open; first does what was asked for.
fn add(gates: &Gates<[u64; 4]>, gate: &Gate<[u64; 4]>, heeded: &AtomicU64) {
    let add = |sums: &mut [u64; 4]| sums.iter_mut().for_each(|sum| *sum += 1);
    // SAFETY: the caller's thread alone has this owner's number, and `add` enters no gate.
    if let Some(mut passed) = unsafe { gate.pass() } {
        add(passed.data());
        return passed.leave();
    }
    let heed = |sums: &mut [u64; 4]| {
        gate.take_request();
        heeded.fetch_add(core::mem::take(sums)[0], Ordering::Relaxed);
    };
    loop {
        // SAFETY: likewise.
        if gate.is_asked() && unsafe { gate.enter(heed) }.is_none() {
            gates.wait();
            continue;
        }
        // SAFETY: likewise.
        if unsafe { gate.enter(add) }.is_some() {
            return;
        }
        gates.wait();
    }
}

/// Owners add to their own sums while another thread keeps collecting them in all ways: nothing is
/// lost and nothing counted twice.
#[test]
fn nothing_is_lost_between_owners_and_a_collector() {
    const OWNERS: usize = 3;
    let steps: u64 = if cfg!(miri) { 50 } else { 100_000 };
    let gates: Gates<[u64; 4]> = Gates::new(OWNERS);
    let (mut collected, heeded) = (0, AtomicU64::new(0));
    std::thread::scope(|scope| {
        let owners: Vec<_> = (0..OWNERS)
            .map(|owner| {
                let (gates, heeded) = (&gates, &heeded);
                scope.spawn(move || {
                    let gate = gates.get_or_make(owner, || [0; 4]).unwrap();
                    (0..steps).for_each(|_| add(gates, gate, heeded));
                })
            })
            .collect();
        let mut round = 0;
        while !owners.iter().all(|owner| owner.is_finished()) {
            round += 1;
            let check = |sums: &mut [u64; 4]| {
                assert!(sums.iter().all(|sum| *sum == sums[0]), "seen half way: {sums:?}");
            };
            let mut take = |sums: &mut [u64; 4]| {
                check(sums);
                collected += core::mem::take(sums)[0];
            };
            match round % 5 {
                0 => gates.each(take),
                1 => gates.drain_all(take),
                2 => gates.measure(check),
                3 => gates.change(|data| {
                    take(data);
                    true
                }),
                _ => gates.drain(&mut take),
            }
        }
    });
    gates.drain_all(|sums| collected += core::mem::take(sums)[0]);
    assert_eq!(collected + heeded.into_inner(), steps * OWNERS as u64);
}

/// A gate is counted again once its owner or a visitor may have changed what is there, and not before.
#[test]
fn what_has_not_changed_is_not_counted_again() {
    let gates: Gates<u32> = Gates::new(3);
    let own: Vec<_> = (0..3).map(|owner| gates.get_or_make(owner, || 0).unwrap()).collect();
    let counted = || {
        let mut count = 0;
        gates.count_changed(|_| count += 1);
        count
    };
    assert_eq!((counted(), counted()), (3, 0));
    // SAFETY: no other thread owns these gates.
    assert!(unsafe { own[1].pass() }.is_none(), "the owner's fast path cannot miss it");
    // SAFETY: likewise.
    assert_eq!(unsafe { own[1].enter(|data| *data += 1) }, Some(()));
    assert_eq!((counted(), counted()), (1, 0));
    gates.each(|_| ());
    assert_eq!((counted(), counted()), (3, 0));
    gates.drain_all(|_| ());
    assert_eq!(counted(), 3, "emptied, and so changed");
    gates.drain_all(|_| panic!("counting does not fill it"));
    assert_eq!(counted(), 0);
}

/// Work that panics at one gate leaves none of them shut.
#[test]
fn every_gate_opens_again_after_a_panic() {
    let gates: Gates<u32> = Gates::new(3);
    for owner in 0..3 {
        gates.get_or_make(owner, || 0).unwrap();
    }
    let each: fn(&Gates<u32>) = |gates| gates.each(|_| panic!("on purpose"));
    let drain: fn(&Gates<u32>) = |gates| gates.drain(|_| panic!("on purpose"));
    for way in [each, drain] {
        let visit = || way(&gates);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(visit)).unwrap_err();
        for owner in 0..3 {
            let gate = gates.get_or_make(owner, || 0).unwrap();
            // SAFETY: there is one thread here, in no gate.
            assert_eq!(unsafe { gate.enter(|_| ()) }, Some(()), "gate {owner} is shut");
        }
    }
}

/// How long the owner of a test stays inside at the latest, so that a visit that waits for good fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Calls `visit` while the owner of gate 1 of 3 is inside its gate and stays there. It leaves when it is
/// sent word, when `visit` is done, or after [`PATIENCE`].
fn while_an_owner_is_inside(visit: impl FnOnce(&Gates<u32>, &mpsc::Sender<()>)) -> Gates<u32> {
    let gates: Gates<u32> = Gates::new(3);
    for owner in 0..3 {
        gates.get_or_make(owner, || 10).unwrap();
    }
    let (is_inside, inside) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let gates = &gates;
        scope.spawn(move || {
            let gate = gates.get_or_make(1, || 10).unwrap();
            let stay = |sum: &mut u32| {
                is_inside.send(()).unwrap();
                let _ = left.recv_timeout(PATIENCE);
                *sum += 1;
            };
            // SAFETY: the only thread that is an owner.
            unsafe { gate.enter(stay) }.unwrap();
        });
        inside.recv().unwrap();
        visit(gates, &leave);
        let _ = leave.send(());
    });
    gates
}

/// A preempted owner does not hold up a visit that need not be complete: it is asked to do the work.
#[test]
fn owners_that_stay_inside_are_passed_over_and_asked() {
    let begun = Instant::now();
    let gates = while_an_owner_is_inside(|gates, _| {
        let mut measured = 0;
        gates.measure(|sum| measured += *sum);
        assert_eq!(measured, 20);
        let gate = gates.get_or_make(1, || 10).unwrap();
        assert!(!gate.is_asked(), "measuring leaves nothing to do");
        let mut taken = 0;
        gates.drain(|sum| taken += core::mem::take(sum));
        assert_eq!(taken, 20);
        assert!(gate.is_asked());
    });
    assert!(begun.elapsed() < PATIENCE / 2, "the visits waited");
    let gate = gates.get_or_make(1, || 10).unwrap();
    // SAFETY: the owner's thread has ended: this is the next.
    assert!(unsafe { gate.pass() }.is_none(), "the owner goes on without doing what it is asked");
    let heed = |sum: &mut u32| {
        gate.take_request();
        core::mem::take(sum)
    };
    // SAFETY: likewise.
    assert_eq!(unsafe { gate.enter(heed) }, Some(11));
    // SAFETY: likewise.
    let fast = unsafe { gate.pass() }.is_some();
    assert!(fast || !crate::barrier::one_sided(), "the fast path is closed");
}

/// A visit that has to be complete is.
#[test]
fn visits_that_wait_see_what_an_owner_inside_leaves() {
    let mut seen = Vec::new();
    while_an_owner_is_inside(|gates, leave| {
        gates.each(|sum| {
            seen.push(*sum);
            if seen.len() == 2 {
                leave.send(()).unwrap();
            }
        });
    });
    assert_eq!(seen, [10, 10, 11], "those outside first");
}

/// Owners whose gates were worked on do not wait for one that is inside.
#[test]
fn gates_open_before_the_visit_has_waited_for_the_last() {
    let (mut opened, visited) = (false, AtomicBool::new(false));
    while_an_owner_is_inside(|gates, leave| {
        std::thread::scope(|scope| {
            let visitor = scope.spawn(|| gates.each(|_| visited.store(true, Ordering::Release)));
            while !visited.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            let gate = gates.get_or_make(2, || 10).unwrap();
            // SAFETY: this thread alone has this owner's number.
            while unsafe { gate.enter(|_| ()) }.is_none() {
                std::thread::yield_now();
            }
            opened = !visitor.is_finished();
            leave.send(()).unwrap();
        });
    });
    assert!(opened, "the gate opened when the visit was over");
}

/// What was emptied and not entered since is skipped by those who look for something to take.
#[test]
fn emptied_gates_are_skipped_until_their_owner_enters() {
    let gates: Gates<u32> = Gates::new(1000);
    for owner in [0, 255, 256, 999] {
        gates.get_or_make(owner, || 1).unwrap();
    }
    let visits = |gates: &Gates<u32>| {
        let mut visits = 0;
        gates.drain(|_| visits += 1);
        visits
    };
    assert_eq!([visits(&gates), visits(&gates)], [4, 0]);
    let gate = gates.get_or_make(256, || 1).unwrap();
    // SAFETY: there is one thread here, in no gate.
    assert!(unsafe { gate.pass() }.is_none(), "or its owner would not be seen");
    // SAFETY: likewise.
    unsafe { gate.enter(|_| ()) }.unwrap();
    assert_eq!([visits(&gates), visits(&gates)], [1, 0]);
    let mut all = 0;
    gates.each(|_| all += 1);
    gates.change(|_| {
        all += 1;
        true
    });
    assert_eq!(all, 8, "these have to see every gate");
}

/// Room for very many owners costs little before they come, and there is none beyond.
#[test]
fn gates_are_made_room_for_in_chunks() {
    let gates: Gates<u32> = Gates::new(crate::thread_slot::MAX_SLOTS);
    assert!(gates.chunks.len() * size_of::<OnceLock<Chunk<u32>>>() <= 8192);
    let last = crate::thread_slot::MAX_SLOTS - 1;
    assert!(gates.get_or_make(last, || 1).is_some());
    assert!(gates.get_or_make(last + 1, || 1).is_none());
    assert_eq!(gates.chunks.iter().filter_map(OnceLock::get).count(), 1);
}
