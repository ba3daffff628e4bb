//! What a hit costs.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::*;

const PAIRS: u32 = 200_000;

fn time(mut pair: impl FnMut()) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let begun = Instant::now();
        (0..PAIRS).for_each(|_| pair());
        best = best.min(begun.elapsed());
    }
    best / PAIRS
}

/// The two pairs take the same path, so the factor is wide enough for any machine under load.
#[test]
fn a_pinned_hit_costs_less_than_five_device_hits() {
    let bench = Bench::with(SimMachine::builder().costs(CostModel::Free), PinnedOptions::new());
    for size in [4096, 64 << 10, 8 << 20] {
        let device = time(|| drop(black_box(bench.pool.array::<u8>(size, DEFAULT).unwrap())));
        let pinned = time(|| drop(black_box(bench.pinned.array::<u8>(size).unwrap())));
        println!("{size:>8} B: device {device:?}, pinned {pinned:?} a pair");
        assert!(pinned < device * 5, "{size} B: device {device:?}, pinned {pinned:?}");
    }
}
