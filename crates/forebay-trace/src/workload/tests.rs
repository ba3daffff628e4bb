//! The workloads are what their descriptions say: counts, sizes and what is live at once.

use forebay_core::{GIB, KIB, MIB};

use super::*;
use crate::{Event, Statistics};

const LIMIT: Bytes = Bytes::new(16 * GIB);

fn statistics(workload: Workload) -> Vec<Statistics> {
    let sequences = workload.sequences(LIMIT).unwrap();
    sequences.iter().map(|sequence| sequence.trace().statistics()).collect()
}

fn operations(workload: Workload) -> Vec<(String, u64)> {
    let sequences = workload.sequences(LIMIT).unwrap();
    let phases = sequences.iter().flat_map(|sequence| sequence.phases().to_vec());
    let timed = phases.filter(|phase| phase.timing != Timing::Untimed);
    timed.map(|phase| (phase.case.clone(), phase.operations())).collect()
}

#[test]
fn names_are_told_apart_and_found_again() {
    for &workload in Workload::ALL {
        assert_eq!(workload.name().parse(), Ok(workload));
        assert!(!workload.about().is_empty());
    }
    let said = "MP-X".parse::<Workload>().unwrap_err().to_string();
    assert!(said.contains("MP-X") && said.contains("GE-PRESSURE"), "{said}");
}

#[test]
fn phases_are_the_whole_of_a_sequence_and_nothing_is_left_behind() {
    for &workload in Workload::ALL {
        let sequences = workload.sequences(LIMIT).unwrap();
        assert_eq!(sequences, workload.sequences(LIMIT).unwrap(), "the same every time");
        for sequence in &sequences {
            let events: usize = sequence.phases().iter().map(|phase| phase.events).sum();
            assert_eq!(events, sequence.trace().len(), "{workload}");
            assert_eq!(sequence.trace().statistics().never_freed, 0, "{workload}");
            let timed = sequence.phases().iter().filter(|phase| phase.timing != Timing::Untimed);
            assert!(timed.clone().count() > 0, "{workload}");
            assert!(timed.clone().all(|phase| !phase.case.is_empty()), "{workload}");
        }
    }
}

/// A script, played over slots, is the trace again.
#[test]
fn scripts_play_what_the_trace_says() {
    for &workload in Workload::ALL {
        for sequence in workload.sequences(LIMIT).unwrap() {
            let scripts = sequence.scripts();
            assert_eq!(scripts.len(), sequence.threads());
            let (mut steps, mut live) = (0, 0_u64);
            for script in &scripts {
                assert_eq!(script.phases().len(), sequence.phases().len());
                let mut slots: Vec<Option<Bytes>> = vec![None; script.slots()];
                for (phase, plan) in script.phases().iter().zip(sequence.phases()) {
                    steps += phase.len();
                    for step in phase {
                        match *step {
                            Step::Allocate { slot, size } => {
                                assert_eq!(slots[slot].replace(size), None, "{workload}");
                            }
                            Step::Free { slot } => assert!(slots[slot].take().is_some()),
                        }
                    }
                    if plan.timing == Timing::Each {
                        let pair = |two: &[Step]| {
                            matches!(two, [Step::Allocate { slot: a, .. }, Step::Free { slot: b }]
                                if a == b)
                        };
                        assert!(phase.chunks(2).all(pair), "{workload}");
                    }
                }
                live += script.slots() as u64;
                assert!(slots.iter().all(Option::is_none));
            }
            let sums = sequence.trace().statistics();
            assert_eq!(steps, sequence.trace().len(), "{workload}");
            assert!(live <= sums.peak_blocks.max(sequence.threads() as u64), "{workload}");
        }
    }
}

#[test]
fn pairs_are_as_many_as_their_names_say() {
    let one = |case: &str, count| vec![(case.to_owned(), count)];
    assert_eq!(operations(Workload::MpT), one("1 MiB", 1000));
    assert_eq!(operations(Workload::MpThr), one("1 MiB", 10_000));
    assert_eq!(operations(Workload::MpMix), one("64 KiB to 16 MiB", 5000));
    assert_eq!(operations(Workload::MpConc), one("1 MiB", 10_000));
    assert_eq!(operations(Workload::DcHit), one("1 MiB", 10_000));
    let cases: Vec<String> =
        operations(Workload::MpLat).into_iter().map(|(case, _)| case).collect();
    assert_eq!(cases, ["512 B", "4 KiB", "64 KiB", "1 MiB", "16 MiB", "64 MiB"]);
    assert!(operations(Workload::MpLat).iter().all(|&(_, count)| count == 1000));
    assert!(operations(Workload::MpReuse).iter().all(|&(_, count)| count == 1000));
    let threads = Workload::MpConc.sequences(LIMIT).unwrap().iter().map(Sequence::threads).max();
    assert_eq!(threads, Some(4));
}

#[test]
fn mixed_sizes_are_drawn_evenly() {
    let sequences = Workload::MpMix.sequences(LIMIT).unwrap();
    let mut counts = std::collections::BTreeMap::new();
    for event in sequences[0].trace().events() {
        if let Event::Allocate { size, .. } = event {
            *counts.entry(size.get()).or_insert(0_u32) += 1;
        }
    }
    let sizes: Vec<u64> = counts.keys().copied().collect();
    assert_eq!(sizes, [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB]);
    assert!(counts.values().all(|count| (900..1100).contains(count)), "{counts:?}");
}

#[test]
fn blocks_live_as_many_at_once_as_said() {
    assert_eq!(statistics(Workload::ColabMix)[0].peak_blocks, 51);
    assert_eq!(statistics(Workload::MpReuse)[0].peak_blocks, 1000);
    assert_eq!(statistics(Workload::DcAlloc)[0].peak_requested, Bytes::mib(100));
    let variable = statistics(Workload::GeVariable)[0];
    assert_eq!((variable.allocations, variable.peak_blocks), (1000, 9), "the next comes first");
    assert_eq!(variable.largest, Bytes::mib(32));
    let last = *statistics(Workload::GeLarge).last().unwrap();
    assert_eq!((last.peak_requested, last.peak_blocks), (Bytes::mib(20 * 64), 20));
}

#[test]
fn a_transformer_has_sixty_activations_and_large_logits() {
    let sums = statistics(Workload::GeTransformer)[0];
    // 60 activations, the logits, and a gradient for each, in ten steps.
    assert_eq!(sums.allocations, 10 * 2 * 61);
    assert_eq!(sums.largest, Bytes::new(81_920_000), "78.125 MiB");
    let layer: u64 = (8 * 4 + 32 + 16) * MIB;
    let forward = 6 * layer + 81_920_000;
    // At the peak the logits' gradient stands beside everything that was held.
    assert_eq!(sums.peak_requested, Bytes::new(forward + 81_920_000));
}

#[test]
fn gradients_are_held_over_all_micro_steps() {
    let sums = statistics(Workload::GeAccum)[0];
    assert_eq!(sums.allocations, 5 * (8 * 2 * 61 + 24));
    // 24 gradients, 61 activations, and two gradients of activations at most.
    assert!((86..=87).contains(&sums.peak_blocks), "{}", sums.peak_blocks);
}

#[test]
fn a_full_device_has_enough_left_for_what_is_asked() {
    let sequences = Workload::GePressure.sequences(LIMIT).unwrap();
    let peaks: Vec<Bytes> =
        sequences.iter().map(|sequence| sequence.trace().statistics().peak_requested).collect();
    // 204 blocks of 64 MiB fill four fifths; half of them and half of the device are less than it.
    assert_eq!(peaks, [Bytes::mib(204 * 64), Bytes::mib(102 * 64 + 8192)]);
    assert!(sequences.iter().all(|sequence| sequence.limit() == Some(LIMIT)));
    assert_eq!(operations(Workload::GePressure)[0].1, 500);
    assert_eq!(operations(Workload::GePressure)[1], ("once 8 GiB".to_owned(), 1));
}

#[test]
fn sizes_are_said_in_their_unit() {
    let said = [512, 40_000, 64 * KIB, 3 * MIB / 2, 256 * MIB, 8 * GIB, 0]
        .map(|size| size_name(Bytes::new(size)));
    assert_eq!(said, ["512 B", "40000 B", "64 KiB", "1536 KiB", "256 MiB", "8 GiB", "0 B"]);
}
