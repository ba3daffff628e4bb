//! The threads beside the workers: one that keeps house, a second consumer of the device, and visitors.

use core::time::Duration;
use std::sync::Barrier;
use std::thread;

use forebay::Error;
use forebay_core::{Address, Alignment, Bytes, Random};
use forebay_hal::{Memory, StreamHandle};

use super::world::World;
use super::{Figures, Outcome};

/// The most blocks the neighbor has.
const NEIGHBOR_BLOCKS: usize = 3;

/// Does chores until the episode is over.
pub(super) fn keep(world: &World, seed: u64) -> Outcome<Figures> {
    let mut random = Random::new(seed ^ 0x6b65_6570);
    let mut figures = Figures::default();
    while !world.is_over() {
        chore(world, &mut random, &mut figures)?;
        thread::sleep(Duration::from_micros(random.below(400)));
    }
    Ok(figures)
}

/// One call that any thread may make at any time.
pub(super) fn chore(world: &World, random: &mut Random, figures: &mut Figures) -> Outcome {
    let pool = &world.pool;
    figures.chores += 1;
    let done = match random.below(16) {
        // Rarely: it waits for the device, after which nothing races.
        0 => pool.trim(Bytes::new(random.below(8 << 20))).map(drop),
        1..3 => pool.collect(Duration::from_micros(random.below(2000))).map(drop),
        3..6 => pool.defragment(),
        6..8 => pool.process_deferred(),
        8..12 => {
            let figures = pool.statistics();
            if !world.adds_up(figures.live, figures.held) {
                return Err(format!("{} live, {} held", figures.live, figures.held));
            }
            Ok(())
        }
        // Whoever uses the stream still may go on: the pool gives it another slot.
        _ => match world.some_stream(random.next_u64()) {
            Some(stream) => pool.forget_stream(stream),
            None => Ok(()),
        },
    };
    match done {
        Ok(()) => Ok(()),
        Err(Error::Device(error)) if error.may_pass() => {
            figures.failures += 1;
            Ok(())
        }
        Err(error) => Err(format!("a chore: {error}")),
    }
}

/// A second consumer of the device's memory, which comes and goes.
pub(super) fn neighbor(world: &World, seed: u64) -> Outcome<Figures> {
    let mut random = Random::new(seed ^ 0x6e65_6967);
    let mut blocks: Vec<Address> = Vec::new();
    while !world.is_over() {
        if blocks.len() < NEIGHBOR_BLOCKS && random.chance(1, 2) {
            let size = Bytes::new(1 + random.below(2 << 20));
            // Where there is none left, it does without.
            blocks.extend(world.sim.allocate(size, Alignment::BLOCK).ok());
        } else if let Some(block) = blocks.pop() {
            leave(world, block)?;
        }
        thread::sleep(Duration::from_micros(random.below(300)));
    }
    blocks.into_iter().try_for_each(|block| leave(world, block))?;
    Ok(Figures::default())
}

fn leave(world: &World, block: Address) -> Outcome {
    // SAFETY: nothing was ever enqueued on it.
    world.own(|| unsafe { world.sim.free(block) })
}

/// One thread's short life: blocks on its own default stream, some freed there before it ends, the others
/// left to whoever takes them.
pub(super) fn visit(world: &World, seed: u64, meet: impl Fn()) -> Outcome {
    let mut random = Random::new(seed);
    let mut figures = Figures::default();
    let mut blocks = Vec::new();
    for _ in 0..1 + random.below(5) {
        let magnitude = random.between(9, 16);
        let size = 1 + random.below(1 << magnitude);
        let tag = u8::try_from(random.below(251)).unwrap_or(0);
        blocks.extend(world.allocate(size, StreamHandle::PER_THREAD, tag, &mut figures)?);
    }
    meet();
    for mut parcel in blocks {
        if random.chance(1, 2) {
            world.free(parcel, &mut figures)?;
        } else {
            parcel.after = world.event_after(StreamHandle::PER_THREAD)?;
            world.send(parcel);
        }
    }
    Ok(())
}

/// So many threads that live at the same time.
pub(super) fn crowd(world: &World, count: usize, seed: u64) -> Outcome<u64> {
    let barrier = Barrier::new(count);
    let outcomes: Vec<Outcome> = thread::scope(|scope| {
        let barrier = &barrier;
        let spawn = |number: u64| {
            let seed = seed.wrapping_mul(0x9e37_79b9).wrapping_add(number);
            scope.spawn(move || visit(world, seed, || _ = barrier.wait()))
        };
        let threads: Vec<_> = (0..count as u64).map(spawn).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Outcome>| {
            thread.join().unwrap_or_else(|_| Err("a panic of a visitor".to_owned()))
        };
        threads.into_iter().map(join).collect()
    });
    outcomes.into_iter().try_for_each(|outcome| outcome)?;
    Ok(count as u64)
}
