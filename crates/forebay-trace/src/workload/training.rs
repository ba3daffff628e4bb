//! Training workloads: reconstructions from a description, with sizes derived from the shapes it names. Where it names
//! none, we chose the shapes, and the comments say so.

use std::collections::VecDeque;

use forebay_core::{Bytes, KIB, MIB, Random};

use super::sequence::{Key, Sequence, SequenceBuilder};
use super::size_name;
use crate::InvalidEvent;

type Sequences = Result<Vec<Sequence>, InvalidEvent>;

/// Bytes of a number.
const FLOAT: u64 = 4;
/// Numbers of a token.
const HIDDEN: u64 = 512;
/// Tokens of a sample.
const LENGTH: u64 = 512;
const HEADS: u64 = 8;
const LAYERS: usize = 6;
const VOCABULARY: u64 = 10_000;
/// Samples of a step, and of a micro-step where gradients are accumulated.
const BATCH: u64 = 4;
const MICRO_BATCH: u64 = 1;

/// Steps of training, of which the first is not timed.
const STEPS: u32 = 10;

/// Rounds of accumulation, of which the first is not timed, and the micro-steps of one.
const ROUNDS: u32 = 5;
const MICRO_STEPS: u32 = 8;

/// Batches that vary: how many samples, and how many batches are live.
const BATCHES: [u64; 6] = [1, 2, 4, 8, 16, 32];
const BATCHES_LIVE: usize = 8;
const BATCHES_SEED: u64 = 0x4745_5641_5200;

/// A full device: the blocks that fill it, and the sizes asked of it then.
const FILLER: Bytes = Bytes::new(64 * MIB);
const PRESSURE_SEED: u64 = 0x4745_5052_4500;

/// Pairs of each size, one after the other; and cycles of blocks that are held together.
pub(super) fn same() -> Sequences {
    let one = |size: u64| {
        let size = Bytes::new(size);
        let mut sequence = SequenceBuilder::new("the same size");
        sequence.pairs(size, 1000)?;
        sequence.together(size_name(size));
        Ok(sequence.finish())
    };
    let sizes = [4 * KIB, 40_000, 400_000, 4 * MIB, 64 * MIB];
    let mut all: Vec<Sequence> = sizes.into_iter().map(one).collect::<Result<_, InvalidEvent>>()?;
    let mut cycles = SequenceBuilder::new("cycles of one size");
    for _ in 0..20 {
        cycles.batch(Bytes::mib(4), 50)?;
    }
    cycles.together("20 x (50 x 4 MiB)");
    all.push(cycles.finish());
    Ok(all)
}

pub(super) fn large() -> Sequences {
    let one = |mib: u64| {
        let size = Bytes::mib(mib);
        let mut sequence = SequenceBuilder::new("large blocks");
        sequence.pairs(size, 100)?;
        sequence.together(size_name(size));
        Ok(sequence.finish())
    };
    let mut all: Vec<Sequence> =
        [1, 4, 16, 64, 256].into_iter().map(one).collect::<Result<_, InvalidEvent>>()?;
    let mut held = SequenceBuilder::new("large blocks held");
    held.batch(Bytes::mib(64), 20)?;
    held.together("20 x 64 MiB");
    all.push(held.finish());
    Ok(all)
}

/// What one layer keeps for the way back, for `batch` samples: ten activations.
fn layer(batch: u64) -> [Bytes; 10] {
    let plain = batch * LENGTH * HIDDEN * FLOAT;
    let scores = batch * HEADS * LENGTH * LENGTH * FLOAT;
    let wide = 4 * plain;
    // Normalised, query, key, value, scores, context, projected, normalised, widened, narrowed.
    [plain, plain, plain, plain, scores, plain, plain, plain, wide, plain].map(Bytes::new)
}

/// Forwards: every activation is held, and the logits after them.
fn forward(sequence: &mut SequenceBuilder, batch: u64) -> Result<Vec<(Key, Bytes)>, InvalidEvent> {
    let logits = Bytes::new(batch * LENGTH * VOCABULARY * FLOAT);
    let layers = (0..LAYERS).flat_map(|_| layer(batch));
    layers.chain([logits]).map(|size| Ok((sequence.hold(size)?, size))).collect()
}

/// Backwards: for each activation, the last first, a gradient of its size comes; the activation
/// and the gradient it was made from go.
fn backward(sequence: &mut SequenceBuilder, held: Vec<(Key, Bytes)>) -> Result<(), InvalidEvent> {
    let mut before: Option<Key> = None;
    for (activation, size) in held.into_iter().rev() {
        let gradient = sequence.hold(size)?;
        sequence.release(activation)?;
        if let Some(done) = before.replace(gradient) {
            sequence.release(done)?;
        }
    }
    before.map_or(Ok(()), |last| sequence.release(last))
}

pub(super) fn transformer() -> Sequences {
    let mut sequence = SequenceBuilder::new("training a transformer");
    for step in 0..STEPS {
        let held = forward(&mut sequence, BATCH)?;
        backward(&mut sequence, held)?;
        if step == 0 {
            sequence.untimed();
        }
    }
    sequence.together("9 steps, batch 4");
    Ok(vec![sequence.finish()])
}

/// The shapes are ours: the weights of the transformer above, four of a layer, and its activations
/// for one sample.
pub(super) fn accumulation() -> Sequences {
    let square = HIDDEN * HIDDEN * FLOAT;
    let weights = [3 * square, square, 4 * square, 4 * square].map(Bytes::new);
    let mut sequence = SequenceBuilder::new("accumulating gradients");
    for round in 0..ROUNDS {
        let mut gradients: Vec<Key> = Vec::new();
        for micro_step in 0..MICRO_STEPS {
            let held = forward(&mut sequence, MICRO_BATCH)?;
            if micro_step == 0 {
                for size in (0..LAYERS).flat_map(|_| weights) {
                    gradients.push(sequence.hold(size)?);
                }
            }
            backward(&mut sequence, held)?;
        }
        gradients.into_iter().try_for_each(|gradient| sequence.release(gradient))?;
        if round == 0 {
            sequence.untimed();
        }
    }
    sequence.together("4 x 8 micro-steps");
    Ok(vec![sequence.finish()])
}

pub(super) fn variable() -> Sequences {
    let mut random = Random::new(BATCHES_SEED);
    let mut sequence = SequenceBuilder::new("batches that vary");
    let mut live: VecDeque<Key> = VecDeque::new();
    for _ in 0..1000 {
        let samples = random.pick(&BATCHES).copied().unwrap_or(1);
        live.push_back(sequence.hold(Bytes::new(samples * 512 * 512 * FLOAT))?);
        if live.len() > BATCHES_LIVE
            && let Some(oldest) = live.pop_front()
        {
            sequence.release(oldest)?;
        }
    }
    while let Some(oldest) = live.pop_front() {
        sequence.release(oldest)?;
    }
    sequence.together("1 to 32 MiB");
    Ok(vec![sequence.finish()])
}

/// A device filled to four fifths, with every other block freed again.
fn holed(name: &str, limit: Bytes) -> Result<(SequenceBuilder, Vec<Key>), InvalidEvent> {
    let mut sequence = SequenceBuilder::new(name).limit(limit);
    let count = limit.get() / 5 * 4 / FILLER.get();
    let (mut kept, mut freed) = (Vec::new(), Vec::new());
    for index in 0..count {
        let filler = sequence.hold(FILLER)?;
        if index % 2 == 0 { kept.push(filler) } else { freed.push(filler) }
    }
    freed.into_iter().try_for_each(|filler| sequence.release(filler))?;
    sequence.untimed();
    Ok((sequence, kept))
}

/// Three fifths of the device are then free, in pieces: small requests find them, and so must a
/// request for half of the device, since the bytes suffice.
pub(super) fn pressure(limit: Bytes) -> Sequences {
    let mut random = Random::new(PRESSURE_SEED);
    let (mut pairs, kept) = holed("pairs under pressure", limit)?;
    for _ in 0..500 {
        pairs.pair(Bytes::new(random.between(MIB, 32 * MIB)))?;
    }
    pairs.together("1 to 32 MiB");
    kept.into_iter().try_for_each(|filler| pairs.release(filler))?;
    let (mut half, kept) = holed("half of the device", limit)?;
    half.pair(Bytes::new(limit.get() / 2))?;
    half.together(format!("once {}", size_name(Bytes::new(limit.get() / 2))));
    kept.into_iter().try_for_each(|filler| half.release(filler))?;
    Ok(vec![pairs.finish(), half.finish()])
}
