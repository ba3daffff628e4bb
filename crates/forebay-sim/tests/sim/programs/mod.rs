//! Random programs of streams, events, copies, fills, kernels and mappings.
//!
//! Each is made free of races by putting waits where its operations would otherwise conflict, and
//! then run on the simulated device, whose result must be that of doing the steps one after the
//! other. Then one of those waits is taken out: where the program, by a plain search through the
//! graph of its steps, now has a race, the checker must name it; where it has none, the checker must
//! be silent.
// A test that cannot go on says so by panicking.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

mod graph;
mod program;
mod run;

use forebay_core::Random;

use self::graph::Order;
use self::program::{Program, Step};
use self::run::{Outcome, run};

/// As many as the contract of this test names; each is run whole, and once with a wait taken out.
const PROGRAMS: u64 = 10_000;

impl Outcome {
    fn is_clean(&self) -> bool {
        self.races.is_empty() && self.taken.is_empty()
    }
}

/// Programs `from..to`; several tests share the work so that it spreads over threads.
fn check(from: u64, to: u64) {
    let (mut races, mut silent, mut taken_in_use) = (0, 0, 0);
    for seed in from..to {
        let mut random = Random::new(seed);
        let program = Program::generate(&mut random);
        let order = Order::of(&program);
        assert!(order.mistakes(&program).is_empty(), "seed {seed}: the generator left a race");

        let outcome = run(&program, random.next_u64());
        assert!(outcome.is_clean(), "seed {seed}: {outcome:?}\n{program}");
        assert_eq!(outcome.memory, program.one_after_the_other(), "seed {seed}\n{program}");

        let Some(broken) = program.without_one_wait(&mut random) else { continue };
        let mistakes = Order::of(&broken).mistakes(&broken);
        let outcome = run(&broken, random.next_u64());
        let told = || format!("seed {seed}: {mistakes:?} but {outcome:?}\n{broken}");
        // None that is not there; and of those that are, the first of all, and every unmapping.
        // What comes after a race may hide behind it.
        assert!(outcome.races.iter().all(|race| mistakes.races.contains(race)), "{}", told());
        let known = |operation| mistakes.taken.iter().any(|&(_, taken)| taken == operation);
        assert!(outcome.taken.iter().all(|&operation| known(operation)), "{}", told());
        let first = outcome.races.iter().map(|&(_, second)| second).min();
        assert_eq!(first, mistakes.first_race(), "{}", told());
        assert_eq!(outcome.taken.len(), mistakes.early_unmaps(), "{}", told());
        races += u64::from(first.is_some());
        taken_in_use += u64::from(!outcome.taken.is_empty());
        silent += u64::from(mistakes.is_empty());
    }
    println!("{races} races and {taken_in_use} memories taken in use found, {silent} harmless");
    let programs = to - from;
    assert!(races > programs / 4, "too few planted races to mean anything: {races}");
    assert!(taken_in_use > programs / 200, "too few memories taken in use: {taken_in_use}");
    assert!(silent > programs / 200, "too few harmless removals: {silent}");
}

#[test]
fn random_programs_agree_with_the_oracle_first_quarter() {
    check(0, PROGRAMS / 4);
}

#[test]
fn random_programs_agree_with_the_oracle_second_quarter() {
    check(PROGRAMS / 4, PROGRAMS / 2);
}

#[test]
fn random_programs_agree_with_the_oracle_third_quarter() {
    check(PROGRAMS / 2, PROGRAMS / 4 * 3);
}

#[test]
fn random_programs_agree_with_the_oracle_last_quarter() {
    check(PROGRAMS / 4 * 3, PROGRAMS);
}

/// The order of unordered work depends on the seed, and on nothing else.
#[test]
fn the_seed_decides_the_order() {
    let both = |stream, value| Step::fill(stream, 0, 0, 64, value);
    let program = Program::of(2, vec![both(0, 1), both(1, 2)]);
    let results: Vec<_> = (0..20).map(|seed| run(&program, seed).memory).collect();
    let again: Vec<_> = (0..20).map(|seed| run(&program, seed).memory).collect();
    assert_eq!(results, again);
    assert!(results.iter().any(|result| result != &results[0]), "twenty seeds, one order");
}

/// An order that events fix is the same for every seed.
#[test]
fn events_decide_before_the_seed_does() {
    let steps = vec![
        Step::fill(0, 0, 0, 64, 1),
        Step::Record { event: 0, stream: 0 },
        Step::Wait { stream: 1, event: 0 },
        Step::fill(1, 0, 0, 64, 2),
    ];
    let program = Program::of(2, steps);
    for seed in 0..50 {
        assert_eq!(run(&program, seed).memory, program.one_after_the_other());
    }
}
