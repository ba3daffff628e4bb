//! General pool workloads: pairs of one size and of several, blocks held together.

use forebay_core::{Bytes, KIB, MIB, Random};

use super::sequence::{Key, Sequence, SequenceBuilder};
use super::size_name;
use crate::InvalidEvent;

type Sequences = Result<Vec<Sequence>, InvalidEvent>;

/// What most of these workloads ask for.
const BLOCK: Bytes = Bytes::new(MIB);

/// The sizes whose pairs are timed one by one.
const TIMED: [u64; 6] = [512, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB];

/// The sizes that are mixed.
const MIXED: [u64; 5] = [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB];
const MIXED_SEED: u64 = 0x4d50_4d49_5800;

/// The sizes of blocks that come and go.
const SMALL: [u64; 6] = [512, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB];
const SMALL_SEED: u64 = 0x434f_4c41_4200;
/// Above so many live blocks the newest goes.
const SMALL_LIVE: usize = 50;

/// `count` pairs, of which one before them is not timed.
pub(super) fn after_one_warm(count: u32) -> Sequences {
    let mut sequence = SequenceBuilder::new("pairs of 1 MiB");
    sequence.pair(BLOCK)?;
    sequence.untimed();
    sequence.pairs(BLOCK, count)?;
    sequence.together("1 MiB");
    Ok(vec![sequence.finish()])
}

pub(super) fn each_timed() -> Sequences {
    let one = |size: u64| {
        let size = Bytes::new(size);
        let mut sequence = SequenceBuilder::new("pairs one by one");
        sequence.pairs(size, 100)?;
        sequence.untimed();
        sequence.pairs(size, 1000)?;
        sequence.each(size_name(size));
        Ok(sequence.finish())
    };
    TIMED.into_iter().map(one).collect()
}

pub(super) fn throughput() -> Sequences {
    let mut sequence = SequenceBuilder::new("many pairs");
    sequence.pairs(BLOCK, 10_000)?;
    sequence.together("1 MiB");
    Ok(vec![sequence.finish()])
}

pub(super) fn mixed() -> Sequences {
    let mut random = Random::new(MIXED_SEED);
    let mut sequence = SequenceBuilder::new("pairs of mixed sizes");
    for size in MIXED {
        sequence.pair(Bytes::new(size))?;
    }
    sequence.untimed();
    for _ in 0..5000 {
        let size = random.pick(&MIXED).copied().unwrap_or(MIB);
        sequence.pair(Bytes::new(size))?;
    }
    sequence.together("64 KiB to 16 MiB");
    Ok(vec![sequence.finish()])
}

pub(super) fn concurrent() -> Sequences {
    let mut sequence = SequenceBuilder::new("pairs on four threads");
    for _ in 0..2500 {
        for thread in 0..4 {
            sequence.pair_on(BLOCK, thread)?;
        }
    }
    sequence.together("1 MiB");
    Ok(vec![sequence.finish()])
}

pub(super) fn held_twice() -> Sequences {
    let mut sequence = SequenceBuilder::new("held, freed, and again");
    for case in ["1000 x 1 MiB, cold", "1000 x 1 MiB, warm"] {
        sequence.batch(BLOCK, 1000)?;
        sequence.together(case);
    }
    Ok(vec![sequence.finish()])
}

pub(super) fn held_once() -> Sequences {
    let mut sequence = SequenceBuilder::new("held, then released");
    for case in ["100 x 1 MiB, cold", "100 x 1 MiB, warm"] {
        sequence.batch(BLOCK, 100)?;
        sequence.together(case);
    }
    Ok(vec![sequence.finish()])
}

pub(super) fn newest_first() -> Sequences {
    let mut random = Random::new(SMALL_SEED);
    let mut sequence = SequenceBuilder::new("small blocks that come and go");
    let mut live: Vec<Key> = Vec::with_capacity(SMALL_LIVE + 1);
    for _ in 0..100_000 {
        let size = random.pick(&SMALL).copied().unwrap_or(KIB);
        live.push(sequence.hold(Bytes::new(size))?);
        if live.len() > SMALL_LIVE
            && let Some(newest) = live.pop()
        {
            sequence.release(newest)?;
        }
    }
    sequence.together("512 B to 256 KiB");
    while let Some(newest) = live.pop() {
        sequence.release(newest)?;
    }
    Ok(vec![sequence.finish()])
}
