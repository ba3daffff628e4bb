//! What a hit costs.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::*;

/// So few that a round fits between two turns of the scheduler.
const PAIRS: u32 = 2_000;
const ROUNDS: usize = 200;

fn time(pair: &mut dyn FnMut()) -> Duration {
    let begun = Instant::now();
    (0..PAIRS).for_each(|_| pair());
    begun.elapsed()
}

/// The two pairs take the same path, so the factor is wide enough for any machine under load.
#[test]
fn a_pinned_hit_costs_less_than_five_device_hits() {
    let bench = Bench::with(SimMachine::builder().costs(CostModel::Free), PinnedOptions::new());
    for size in [4096, 64 << 10, 8 << 20] {
        let (mut device, mut pinned) = (Duration::MAX, Duration::MAX);
        for _ in 0..ROUNDS {
            let mut one = || drop(black_box(bench.pool.on(DEFAULT).uninit::<u8>(size).unwrap()));
            device = device.min(time(&mut one));
            let mut one = || drop(black_box(bench.pinned.array::<u8>(size).unwrap()));
            pinned = pinned.min(time(&mut one));
        }
        println!("{size:>8} B: device {:?}, pinned {:?} a pair", device / PAIRS, pinned / PAIRS);
        assert!(pinned < device * 5, "{size} B: device {device:?}, pinned {pinned:?}");
    }
}
