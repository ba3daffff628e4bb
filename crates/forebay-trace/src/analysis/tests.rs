//! Patterns that are known beforehand, and those of the recording that comes with the crate.

use crate::{TraceBuilder, sample};

use super::*;

/// A run of 200 steps: two weights at the start, in each step an activation of 1 MiB and ten small
/// blocks that live as long as they do, and every tenth activation freed on another stream.
fn steps() -> Trace {
    let mut builder = TraceBuilder::new("steps");
    for weight in 0..2 {
        builder.allocate(weight, Bytes::mib(8), 0).unwrap();
    }
    for step in 0..200_u64 {
        let key = 100 + step * 20;
        builder.allocate(key, Bytes::mib(1), 0).unwrap();
        for small in 1..=10 {
            builder.allocate(key + small, Bytes::new(1000), 0).unwrap();
        }
        for small in 1..=10 {
            builder.free(key + small, 0).unwrap();
        }
        builder.free(key, if step % 10 == 0 { 7 } else { 0 }).unwrap();
    }
    builder.finish()
}

#[test]
fn figures_are_those_of_the_run() {
    let found = Analysis::of(&steps());
    assert_eq!((found.requests, found.frees), (2 + 200 * 11, 200 * 11));
    assert_eq!((found.sizes, found.streams, found.freed_elsewhere), (3, 2, 20));
    let hottest: Vec<(u64, u64, u64, u64)> = found
        .hottest
        .iter()
        .map(|size| (size.size.get(), size.requests, size.max_live, size.at_peak))
        .collect();
    assert_eq!(hottest, [(1000, 2000, 10, 10), (1 << 20, 200, 1, 1), (8 << 20, 2, 2, 2)]);
    // All but the first ten small ones, the first activation, and those after one whose memory went to
    // the other stream.
    let repeats = 2200 - 10 - 1 - 20;
    assert_eq!((found.repeats, found.repeats_in_classes), (repeats, repeats));
    assert_eq!(found.small_requests, 2000);
    // A small block is freed after the nine allocated after it and those freed before: always ten.
    let lifetimes = found.lifetimes;
    assert_eq!((lifetimes.median, lifetimes.p99, lifetimes.longest), (10, 21, 21));
    assert_eq!(lifetimes.never_freed, 2);
    // The peak: the last small block of the first step.
    assert_eq!((found.peak_at, found.peak_blocks), (12, 13));
    assert_eq!(found.peak, Bytes::new((17 << 20) + 10_000));
    assert_eq!((found.peak_small, found.peak_lasting), (Bytes::new(10_000), Bytes::mib(16)));
    assert_eq!(found.peak_lasting_blocks, 2);
    assert_eq!(found.at_peak[0].size, Bytes::mib(8));
}

#[test]
fn advice_names_the_figures_it_rests_on() {
    let advice = Analysis::of(&steps()).advice();
    let said = |part: &str| assert!(advice.iter().any(|one| one.contains(part)), "{advice:#?}");
    said("100 % of requests are of 3 of 3 sizes: warm up with them");
    said("2 blocks of 8.00 MiB, 1 block of 1.00 MiB, 10 blocks of 1000 B");
    said("94 % of the peak (16.00 MiB of 17.01 MiB) is in 2 blocks");
    said("90 % of requests are for 256 KiB or less, and hold less than 1 % of the peak");
    said("20 of 2200 frees (less than 1 %) are on another stream");
    assert_eq!(advice.len(), 4, "{advice:#?}");
}

#[test]
fn sizes_that_never_repeat_are_told_how_they_would() {
    let mut builder = TraceBuilder::new("varied");
    for step in 0..500_u64 {
        builder.allocate(step, Bytes::new(100_000 + step * 512), 0).unwrap();
        builder.free(step, 0).unwrap();
    }
    let found = Analysis::of(&builder.finish());
    assert_eq!(found.repeats, 0);
    assert!(found.repeats_in_classes > 450, "{}", found.repeats_in_classes);
    let advice = found.advice();
    assert!(advice.iter().any(|one| one.contains("size_classes = geometric")), "{advice:#?}");
    assert!(!advice.iter().any(|one| one.contains("warm up")), "{advice:#?}");
}

#[test]
fn a_peak_that_is_over_soon_is_pointed_at() {
    let mut builder = TraceBuilder::new("peak");
    for step in 0..500_u64 {
        builder.allocate(step, Bytes::new(512), 0).unwrap();
        if step == 250 {
            builder.allocate(10_000, Bytes::gib(1), 0).unwrap();
            builder.free(10_000, 0).unwrap();
        }
        builder.free(step, 0).unwrap();
    }
    let advice = Analysis::of(&builder.finish()).advice();
    let pointed = "around number 501 of 1002";
    assert!(advice.iter().any(|one| one.contains(pointed)), "{advice:#?}");
}

#[test]
fn nothing_follows_from_nothing() {
    let found = Analysis::of(&TraceBuilder::new("empty").finish());
    assert_eq!(found, Analysis::default());
    assert_eq!(found.advice(), [] as [String; 0]);
}

/// Against the plain count of the same thing.
#[test]
fn the_shipped_run_has_the_patterns_it_has() {
    let trace = sample::gpt2_train().unwrap();
    let found = Analysis::of(&trace);
    let (mut live, mut most, mut at) = (0_u64, 0, 0);
    for (index, event) in trace.events().enumerate() {
        match event {
            Event::Allocate { size, .. } => {
                live += size.get();
                if live > most {
                    (most, at) = (live, index as u64);
                }
            }
            Event::Free { block, .. } => live -= trace.size(block).get(),
        }
    }
    assert_eq!((found.peak.get(), found.peak_at), (most, at));
    let sum: u64 = found.hottest.iter().map(|size| size.requests).sum();
    assert!(sum <= found.requests && found.hottest.len() == NAMED);
    assert!(found.hottest.windows(2).all(|pair| pair[0].requests >= pair[1].requests));
    assert!(found.repeats > found.requests * 9 / 10, "{}", found.repeats);
    assert_eq!((found.streams, found.freed_elsewhere, found.lifetimes.never_freed), (1, 0, 3));
}
