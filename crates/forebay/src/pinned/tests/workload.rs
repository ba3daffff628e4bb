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

/// Batches of images of one resolution.
fn equal_images(_: &mut Random) -> Batch {
    vec![64 * 3 * 224 * 224 * 4, 64 * 8]
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

/// Runs a loader on `machine` that keeps `depth` batches ready. Returns the most asked for and pinned at once, and the most that
/// powers of two would have pinned.
fn run(machine: SimOptions, make: fn(&mut Random) -> Batch, depth: usize) -> (u64, u64, u64) {
    let machine = machine.costs(CostModel::Free).build().unwrap();
    let pool = PinnedPool::new(&machine.device(0).unwrap()).unwrap();
    let (mut random, mut model) = (Random::new(7), PowersOfTwo::default());
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

/// With pages, at most 1.05 of what is asked for at the peak, and four pages that are used in part. Without, a block
/// cannot span two segments, and free segments that are too small for the next batch lie idle beside it; so only equal
/// batches need hardly more than they are.
#[test]
fn a_data_loader_pins_hardly_more_than_it_asks_for() {
    type Loader = (&'static str, fn(&mut Random) -> Batch);
    let loaders: [Loader; 4] = [
        ("equal images", equal_images),
        ("images", images),
        ("sentences", sentences),
        ("recordings", recordings),
    ];
    for (name, make) in loaders {
        for depth in [4, 16, 64] {
            let (asked, pinned, powers) = run(SimMachine::builder(), make, depth);
            let (_, segments, _) = run(in_segments(), make, depth);
            let ratio = |bytes: u64| bytes as f64 / asked as f64;
            println!(
                "{name:>12}, {depth:>2} batches, {:>10} asked for: pages {:.3}, segments {:.3}, powers of two {:.3}",
                Bytes::new(asked).to_string(),
                ratio(pinned),
                ratio(segments),
                ratio(powers),
            );
            let most = |asked: u64| asked + asked / 20 + (8 << 20);
            assert!(pinned <= most(asked), "{name}: {pinned} B pinned for {asked} B");
            assert!(
                name != "equal images" || segments <= most(asked),
                "{segments} B for {asked} B"
            );
        }
    }
}
