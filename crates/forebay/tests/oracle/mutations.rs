//! The trials can fail: pools whose device drops a call without a word are found out.
//!
//! Whatever orders memory between streams or gives it back is a call of the device. Each kind of
//! call is swallowed here, one of it or all, and some program must complain, in the way that is
//! named beside it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use forebay::MemoryClass;
use forebay_hal::Call;

use crate::stress::Episode;
use crate::trial::{Complaint, Failure, Front, Program, Run, Script, Setting, Target};

const SEEDS: u64 = 32;

/// What the programs of some seeds have against a pool whose device follows `script`, one after the
/// other as they are asked for.
fn complaints(script: Script) -> impl Iterator<Item = Failure> {
    let play = move |seed| {
        let setting = if seed % 2 == 0 { Setting::mixed(seed) } else { Setting::tight(seed) };
        let program = Program::of_seed(seed, 250, setting.most);
        let run = Run::new(setting, setting.sim(), script)?;
        run.play(&program).err()
    };
    (0..SEEDS).filter_map(play)
}

/// Whether some program finds that memory was used without order when the `number`th call of a kind
/// is left out.
fn is_found(call: Call, number: u64) -> bool {
    let out_of_order =
        |failure: Failure| matches!(failure.complaint, Complaint::Order | Complaint::Data);
    complaints(Script::swallow(Target::Of(call, number))).any(out_of_order)
}

#[test]
fn without_sabotage_nobody_complains() {
    let found: Vec<Failure> = complaints(Script::swallow(Target::Nothing)).collect();
    assert_eq!(found, []);
}

/// One wait that is not made is a race in some program, whichever it is: a later one makes good
/// only part of what it would have ordered.
#[test]
fn any_one_wait_for_another_stream_that_is_left_out_is_found() {
    for number in 1..=10 {
        assert!(is_found(Call::WaitEvent, number), "wait {number} can be left out");
    }
}

/// An event that is not recorded orders nothing, or too little.
#[test]
fn any_one_record_of_an_event_that_is_left_out_is_found() {
    for number in 1..=10 {
        assert!(is_found(Call::RecordEvent, number), "record {number} can be left out");
    }
}

/// A test for calls that are always left out: so many programs must complain, in these ways.
macro_rules! left_out {
    ($($test:ident: $($call:ident)|+, at least $least:literal of [$($way:ident),+];)+) => {$(
        #[test]
        fn $test() {
            let script = Script::swallow(Target::EveryOf(&[$(Call::$call),+]));
            let found: Vec<Failure> = complaints(script).collect();
            let ways = [$(Complaint::$way),+];
            let matching = found.iter().filter(|failure| ways.contains(&failure.complaint)).count();
            assert!(matching >= $least, "only {matching} of {SEEDS}: {found:#?}");
        }
    )+};
}

left_out! {
    waits_for_other_streams: WaitEvent, at least 12 of [Order];
    records_of_events: RecordEvent, at least 12 of [Order];
    // In these programs the whole device is waited for where a page goes that was freed in pieces on several
    // streams, so that no one event tells. The waits for events come first, and where each of those streams
    // has something put off they have seen to its work already: leaving this one wait out is a mistake only
    // where one has not, in 9 of the programs.
    waits_for_the_device: SynchronizeDevice, at least 8 of [Order];
    // So both are left out. Every program in pages of several granules then unmaps what is in use. In pages of
    // one granule what a trim leaves is known to the byte: it tells before, since what an event would have
    // brought is asked for once more, and is not there.
    waits_on_the_host: SynchronizeDevice | SynchronizeEvent, at least 20 of [Order, Leak];
    unmapped_without_a_wait: SynchronizeDevice | SynchronizeEvent, at least 12 of [Order];
    // What is asked for once more makes this one safe: too little goes back, and that is all.
    waits_for_events: SynchronizeEvent, at least 6 of [Leak];
    // Swallowed, a query says that the event was reached.
    queries_of_events: QueryEvent, at least 20 of [Order];
    mappings: Map, at least 20 of [Data, Answer];
    access: SetAccess, at least 20 of [Data];
    ends_of_mappings: Unmap, at least 20 of [Leak, Answer, Data];
    ends_of_pages: ReleasePage, at least 20 of [Leak, Figures, Room, Answer];
    ends_of_regions: ReleaseRegion, at least 20 of [Leak];
    ends_of_events: DestroyEvent, at least 20 of [Leak];
}

/// What stress episodes of some seeds have against a pool whose device swallows some calls. On one thread and
/// without planned faults.
fn stress_complaints(target: Target) -> Vec<String> {
    let run = |seed: u64| {
        let class = if seed.is_multiple_of(3) { MemoryClass::PLAIN } else { MemoryClass::STITCHED };
        let episode = Episode { class, faults: 0, ..Episode::of_seed(seed, 1, 1800) };
        let ended = episode.run(
            |machine, device| {
                let machine = machine.clone();
                let lose = Box::new(move || machine.lose(0));
                let front: Arc<Front> = Front::new(device, lose, Script::swallow(target));
                front
            },
            &AtomicU64::new(0),
        );
        ended.err()
    };
    (0..SEEDS / 2).filter_map(run).collect()
}

#[test]
fn without_sabotage_no_episode_complains() {
    let none: [String; 0] = [];
    assert_eq!(stress_complaints(Target::Nothing), none);
}

/// A test for each call that is left out while streams die and threads come and go.
macro_rules! left_out_under_stress {
    ($($test:ident: $target:expr, at least $least:literal;)+) => {$(
        #[test]
        fn $test() {
            let found = stress_complaints($target);
            let all = SEEDS / 2;
            assert!(found.len() >= $least, "only {} of {all}: {found:#?}", found.len());
        }
    )+};
}

left_out_under_stress! {
    // A taker does not wait for the stream that freed.
    waits_for_streams_under_stress: Target::Every(Call::WaitEvent), at least 8;
    // What died without a word is had before its work is over.
    waits_for_the_device_under_stress: Target::Every(Call::SynchronizeDevice), at least 10;
    // What was put off, and the ends of streams that were forgotten, come too early.
    queries_of_events_under_stress: Target::Every(Call::QueryEvent), at least 10;
    // Others take what a thread freed on its own stream, by an event that was never recorded there.
    records_on_threads_streams: Target::OnThreadsStreams(Call::RecordEvent), at least 6;
}
