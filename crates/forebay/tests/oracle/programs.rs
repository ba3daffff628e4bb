//! Random programs: data stays, order holds, figures add up, nothing is left.

use forebay_core::Bytes;
use forebay_hal::Call;
use proptest::prelude::*;

use crate::trial::{Outcome, Program, Record, Run, Script, Setting, try_on_sim};

/// Plays the program of `seed` on the simulated device.
fn play(setting: Setting, steps: usize) -> Outcome {
    let program = Program::of_seed(setting.seed, steps, setting.most);
    try_on_sim(setting, &program).unwrap_or_else(|failure| panic!("{setting:?}: {failure}"))
}

#[test]
fn programs_of_many_seeds_in_pages_of_one_granule() {
    let (mut out_of_memory, mut waits, mut refused) = (0, 0, 0);
    for seed in 0..20 {
        let outcome = play(Setting::tight(seed), 400);
        out_of_memory += outcome.out_of_memory;
        waits += outcome.statistics.waits;
        refused += outcome.refused;
    }
    assert!(out_of_memory > 20, "memory was short only {out_of_memory} times");
    assert!(waits > 50, "streams took from each other only {waits} times");
    assert!(refused > 100, "only {refused} frees were wrong");
}

#[test]
fn programs_of_many_seeds_in_pages_of_several_sizes() {
    let mut moved = 0;
    for seed in 0..20 {
        let statistics = play(Setting::mixed(seed), 400).statistics;
        moved += statistics.driver.of(Call::Map) - statistics.driver.of(Call::CreatePage);
    }
    assert!(moved > 10, "pages moved only {moved} times");
}

#[test]
fn programs_of_many_seeds_at_the_size_of_an_accelerator() {
    let mut out_of_memory = 0;
    for seed in 0..10 {
        let setting = Setting::large(seed).limited_to(Bytes::mib(1500));
        out_of_memory += play(setting, 800).out_of_memory;
    }
    assert!(out_of_memory > 10, "memory was short only {out_of_memory} times");
}

/// On one thread: what other threads of the process do, those of other tests too, may decide which
/// magazines a pool looks into first.
#[test]
fn the_same_program_gets_the_same_places() {
    for seed in 0..6 {
        let setting = Setting::large(seed).limited_to(Bytes::mib(1500));
        let program = Program::of_seed(seed, 600, setting.most).on_one_thread();
        let [one, two] = [(); 2].map(|()| {
            let played = try_on_sim(setting, &program);
            played.unwrap_or_else(|failure| panic!("{setting:?}: {failure}")).places
        });
        let differs = one.iter().zip(&two).position(|(one, two)| one != two);
        assert_eq!(differs, None, "seed {seed}: the allocation that lies elsewhere");
        assert_eq!(one.len(), two.len(), "seed {seed}");
    }
}

#[test]
fn held_is_what_the_device_gave_out_and_within_the_limit() {
    for seed in 0..12 {
        let setting = Setting::large(seed).limited_to(Bytes::mib(1500));
        let program = Program::of_seed(seed, 800, setting.most);
        let run = Run::new(setting, setting.sim(), Script::NONE).unwrap().comparing_held();
        run.play(&program).unwrap_or_else(|failure| panic!("{setting:?}: {failure}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    /// What fails here is shrunk: to few operations, on few streams and threads, of small sizes.
    #[test]
    fn programs_of_any_operations(records: Vec<Record>, seed in 0_u64..1000, tight: bool) {
        let setting = if tight { Setting::tight(seed) } else { Setting::mixed(seed) };
        let program = Program::of_records(&records, setting.most);
        if let Err(failure) = try_on_sim(setting, &program) {
            prop_assert!(false, "{}\n{:#?}", failure, program.operations);
        }
    }
}
