//! What a data loader asks for: how much is pinned for it.

use std::collections::{BTreeMap, VecDeque};

use super::*;

/// The arrays of one batch, by bytes.
type Batch = Vec<u64>;

/// Batches of images of any resolution, with their labels.
fn images(random: &mut Random) -> Batch {
    let (count, side) = (random.between(16, 64), random.between(16, 36) * 8);
    vec![count * 3 * side * side * 4, count * 8]
}

/// Batches of sentences, padded to the longest: tokens, mask, positions, labels.
fn sentences(random: &mut Random) -> Batch {
    let (count, length) = (random.between(8, 128), random.between(16, 512) * 8);
    vec![count * length * 8, count * length, count * length * 8, count * length * 8]
}

/// Recordings of any length, as samples and as a spectrum.
fn recordings(random: &mut Random) -> Batch {
    let seconds = (0..16).map(|_| random.between(1, 30)).max().unwrap_or(1);
    vec![16 * seconds * 16000 * 4, 16 * seconds * 100 * 80 * 4, 16 * 8]
}

/// A pool of powers of two, as PyTorch's pinned allocator: what is free serves requests of its own size class alone.
#[derive(Default)]
struct PowersOfTwo {
    free: BTreeMap<u64, u64>,
    held: u64,
}

impl PowersOfTwo {
    fn allocate(&mut self, size: u64) {
        let class = size.next_power_of_two();
        match self.free.get_mut(&class).filter(|count| **count > 0) {
            Some(count) => *count -= 1,
            None => self.held += class,
        }
    }

    fn free(&mut self, size: u64) {
        *self.free.entry(size.next_power_of_two()).or_default() += 1;
    }
}

/// Runs a loader that keeps `depth` batches ready. Returns the most asked for and pinned at once, and the most that
/// powers of two would have pinned.
fn run(make: fn(&mut Random) -> Batch, depth: usize, seed: u64) -> (u64, u64, u64) {
    let machine = SimMachine::builder().costs(CostModel::Free).build().unwrap();
    let pool = PinnedPool::new(&machine.device(0).unwrap()).unwrap();
    let (mut random, mut model) = (Random::new(seed), PowersOfTwo::default());
    let mut queue: VecDeque<Vec<PinnedArray<u8>>> = VecDeque::new();
    let (mut asked, mut most, mut pinned) = (0, 0, 0);
    for _ in 0..4000 {
        let sizes = make(&mut random);
        let batch = sizes.iter().map(|&size| {
            model.allocate(size);
            asked += size;
            pool.array::<u8>(usize::try_from(size).unwrap()).unwrap()
        });
        queue.push_back(batch.collect());
        (most, pinned) = (most.max(asked), pinned.max(pool.held().get()));
        if queue.len() >= depth {
            for array in queue.pop_front().unwrap() {
                model.free(array.len() as u64);
                asked -= array.len() as u64;
            }
        }
    }
    assert_eq!(machine.finding_count(), 0);
    (most, pinned, model.held)
}

#[test]
fn a_data_loader_pins_hardly_more_than_it_asks_for() {
    let loaders: [(&str, fn(&mut Random) -> Batch); 3] =
        [("images", images), ("sentences", sentences), ("recordings", recordings)];
    for (name, make) in loaders {
        for depth in [4, 16, 64] {
            let (asked, pinned, powers) = run(make, depth, 7);
            println!(
                "{name:>10} depth {depth:>2}: asked {:>9} pinned {:>9} {:.3}  powers of two {:>9} {:.3}",
                Bytes::new(asked).to_string(),
                Bytes::new(pinned).to_string(),
                pinned as f64 / asked as f64,
                Bytes::new(powers).to_string(),
                powers as f64 / asked as f64,
            );
        }
    }
}
