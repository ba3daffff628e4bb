//! Failing calls: whichever call of the device fails, and however, the pool is as it was, goes on,
//! and loses nothing.

use std::collections::BTreeMap;

use forebay_core::{Bytes, PageSize};
use forebay_hal::Call;

use crate::trial::{Failing, FreedOn, Operation, Program, Run, Script, Setting, Target};

/// A program that makes the pool do everything it does with a device: grow in both lines, take from
/// other streams, move pages, clear old mappings, trim, forget streams.
fn program() -> Program {
    let kib = |size: u64, stream: u8| Operation::Allocate { size: size << 10, stream, hand: 0 };
    let free = |which: u16| Operation::Free { which, on: FreedOn::Its, hand: 0, way: 0 };
    let other = |which: u16, stream: u8| Operation::Free {
        which,
        on: FreedOn::Another(stream),
        hand: 1,
        way: 0,
    };
    let mut operations = Vec::new();
    // Both lines grow.
    for size in [1, 300, 12, 700, 30, 280, 5] {
        operations.push(kib(size, 1));
    }
    // Holes of one stream, wanted by another.
    operations.extend([free(1), free(2), kib(290, 2), kib(20, 2), other(0, 3), kib(4, 3)]);
    // Many small holes, and a request that none of them holds: pages move.
    for stream in [1, 2, 1, 2, 1, 2] {
        operations.push(kib(260, stream));
    }
    operations.extend([free(4), free(6), free(5), kib(900, 1), Operation::SynchroniseAll]);
    operations.extend([kib(270, 2), free(3), Operation::Renew { stream: 0 }, kib(310, 1)]);
    operations.extend([Operation::Trim { keep: 1 << 20, hand: 0 }, kib(1500, 2), free(0)]);
    // More than there is: the ladder to its end.
    operations.extend([kib(3900, 1), free(1), kib(600, 3), Operation::Renew { stream: 1 }]);
    operations.extend([Operation::Trim { keep: 0, hand: 2 }, kib(40, 2), kib(800, 0)]);
    Program { operations }
}

fn setting() -> Setting {
    // Few pages, so that the program makes some hundred calls and not thousands.
    let granule = PageSize::new(64 << 10).unwrap();
    let largest_page = Bytes::new(256 << 10);
    Setting { granule, largest_page, ..Setting::mixed(2).limited_to(Bytes::mib(4)) }
}

/// Plays the program with a script. Gives how many calls were struck, and how many of the pool's
/// own calls failed for it.
fn play(script: Script) -> (u64, u64) {
    let setting = setting();
    let stage = setting.sim();
    let Some(run) = Run::new(setting, stage.clone(), script) else {
        assert_eq!(stage.left(), None, "{script:?}: no pool, yet something is left");
        return (1, 2);
    };
    let front = run.front();
    let outcome = run.play(&program()).unwrap_or_else(|failure| panic!("{script:?}: {failure}"));
    (front.struck(), outcome.failed + outcome.out_of_memory)
}

/// The calls the program makes when none fails: those up to its end, of each kind with those of the
/// end.
fn calls() -> (u64, BTreeMap<Call, u64>) {
    let setting = setting();
    // As where calls may fail: then the trial makes no calls of its own on the pool.
    let script = Script::fail(Target::Nothing, Failing::Transient);
    let run = Run::new(setting, setting.sim(), script).unwrap();
    let front = run.front();
    run.play(&program()).unwrap_or_else(|failure| panic!("{failure}"));
    let kinds = Call::ALL.iter().map(|&call| (call, front.calls_of(call)));
    (front.calls_to_mark(), kinds.filter(|&(_, count)| count > 0).collect())
}

#[test]
fn the_program_makes_every_call_a_pool_makes() {
    let (_, kinds) = calls();
    for call in [
        Call::Reserve,
        Call::CreatePage,
        Call::Map,
        Call::SetAccess,
        Call::Unmap,
        Call::ReleasePage,
        Call::ReleaseRegion,
        Call::CreateEvent,
        Call::RecordEvent,
        Call::WaitEvent,
        Call::QueryEvent,
        Call::DestroyEvent,
        Call::SynchronizeDevice,
    ] {
        assert!(kinds.contains_key(&call), "{call} is never made: {kinds:?}");
    }
    assert!(kinds[&Call::Map] > kinds[&Call::CreatePage], "no page was moved: {kinds:?}");
}

fn every_call_fails_once(failing: Failing) {
    let (total, _) = calls();
    let (mut struck, mut felt) = (0, 0);
    for number in 1..=total {
        let (hit, failed) = play(Script::fail(Target::Number(number), failing));
        struck += hit;
        felt += u64::from(failed > 1);
    }
    assert_eq!(struck, total, "some calls were not struck");
    // Without a fault one allocation fails, for it asks for more than there is.
    assert!(felt * 5 >= total, "only {felt} of {total} failures were told to the caller");
}

#[test]
fn any_call_may_fail_for_once() {
    every_call_fails_once(Failing::Transient);
}

#[test]
fn any_call_may_find_no_memory() {
    every_call_fails_once(Failing::OutOfMemory);
}

#[test]
fn the_device_may_be_lost_at_any_call() {
    let (total, _) = calls();
    for number in 1..=total {
        play(Script::fail(Target::Number(number), Failing::Lost));
    }
}

/// A kind of call that fails every time, until it no longer does.
#[test]
fn every_call_of_a_kind_may_fail_for_a_while() {
    let (_, kinds) = calls();
    for &call in kinds.keys() {
        if call == Call::DestroyEvent {
            // An event is ended by a drop, which tries twice and has nobody to tell.
            continue;
        }
        for failing in [Failing::Transient, Failing::OutOfMemory] {
            play(Script::fail(Target::Every(call), failing));
        }
    }
}

/// Giving back what a dropped pool has tries again what fails for once: nobody else can.
#[test]
fn a_call_may_fail_for_once_while_a_pool_is_dropped() {
    let program = program();
    let drop_with = |script: Script| {
        let setting = setting();
        let run = Run::new(setting, setting.sim(), script).unwrap();
        let front = run.front();
        let ended = run.play_and_abandon(&program);
        ended.unwrap_or_else(|failure| panic!("{script:?}: {failure}"));
        (front.calls_to_mark(), front.calls())
    };
    let (before, total) = drop_with(Script::fail(Target::Nothing, Failing::Transient));
    assert!(total > before + 20, "{} calls are made by the drop", total - before);
    for number in before + 1..=total {
        drop_with(Script::fail(Target::Number(number), Failing::Transient));
    }
}
