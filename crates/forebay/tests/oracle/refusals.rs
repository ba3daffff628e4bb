//! Refusals beside a second consumer of the device. One thread does everything, so that the device can be
//! looked at before and after: a refused request takes nothing, and what it gave up went to the device.

use std::sync::Arc;

use forebay::{Block, Error, MemoryClass, Pool, PoolOptions};
use forebay_core::address_space::Growth;
use forebay_core::{Address, Alignment, Bytes, PageSize, Random, Span};
use forebay_hal::{Device, Memory, Priority, StreamHandle, Streams};
use forebay_sim::{Kernel, SimDevice, SimMachine};

/// A pool near the capacity of a device that another consumer uses too.
struct Shared {
    machine: SimMachine,
    device: Arc<SimDevice>,
    pool: Pool,
    random: Random,
    streams: Vec<StreamHandle>,
    live: Vec<(Block, StreamHandle)>,
    /// What the other consumer has.
    theirs: Vec<(Address, Bytes)>,
    refusals: u64,
    died: u64,
}

impl Shared {
    fn new(seed: u64) -> Self {
        let options = SimMachine::builder().seed(seed).granularity(PageSize::HOST);
        let machine = options.capacity(Bytes::mib(8)).build().unwrap();
        let device = machine.device(0).unwrap();
        let shared: Arc<dyn Device> = device.clone();
        let mut growth = Growth::default();
        growth.largest_page = Bytes::kib(if seed.is_multiple_of(3) { 4 } else { 64 });
        let class =
            [MemoryClass::STITCHED, MemoryClass::STABLE, MemoryClass::STITCHED, MemoryClass::PLAIN];
        let class = class[usize::try_from(seed % 4).unwrap()];
        let pool = PoolOptions::new().growth(growth).class(class).build(&shared).unwrap();
        let streams = vec![StreamHandle::DEFAULT, StreamHandle::PER_THREAD];
        let (live, theirs) = (Vec::new(), Vec::new());
        let random = Random::new(seed);
        Self { machine, device, pool, random, streams, live, theirs, refusals: 0, died: 0 }
    }

    fn figures(&self) -> (Bytes, Bytes) {
        (self.pool.held(), self.device.memory_info().unwrap().free)
    }

    fn allocate(&mut self) {
        let magnitude = self.random.between(9, 22);
        let size = Bytes::new(1 + self.random.below(1 << magnitude));
        let stream = *self.random.pick(&self.streams).unwrap();
        let (held, free) = self.figures();
        match self.pool.allocate(size, stream) {
            Ok(block) => {
                let span = Span::new(block.address(), block.size()).unwrap();
                // SAFETY: the block is live, and is freed after this in the order of the stream.
                unsafe { self.device.launch(Kernel::new("write").writes(span), stream).unwrap() };
                self.live.push((block, stream.resolved()));
            }
            Err(Error::OutOfMemory(_)) => {
                self.refusals += 1;
                let (held_after, free_after) = self.figures();
                assert!(held_after <= held, "{size} refused: {held} held, then {held_after}");
                let gone = held.saturating_sub(held_after);
                assert_eq!(
                    free_after,
                    free.saturating_add(gone),
                    "{size} refused: {gone} given up"
                );
            }
            Err(error) => panic!("{size}: {error}"),
        }
        self.add_up();
    }

    /// What the pool holds and what the other has is what the device gave out.
    fn add_up(&self) {
        let theirs =
            self.theirs.iter().fold(Bytes::ZERO, |sum, &(_, size)| sum.saturating_add(size));
        let given = self.machine.census().held;
        assert_eq!(self.pool.held().saturating_add(theirs), given, "{theirs} of the neighbor's");
    }

    fn free(&mut self) {
        let Some(index) = self.random.index(self.live.len()) else { return };
        let (block, stream) = self.live.swap_remove(index);
        // The stream may be gone.
        self.pool.free_block(block, stream).unwrap();
    }

    fn neighbor(&mut self) {
        if self.theirs.len() < 3 && self.random.chance(1, 2) {
            let size = Bytes::kib(4 * self.random.between(1, 700));
            let before = self.machine.census().held;
            if let Ok(block) = self.device.allocate(size, Alignment::BLOCK) {
                let size = self.machine.census().held.saturating_sub(before);
                self.theirs.push((block, size));
            }
        } else if let Some((block, _)) = self.theirs.pop() {
            // SAFETY: nothing was ever enqueued on it.
            unsafe { self.device.free(block).unwrap() };
        }
    }

    fn change_streams(&mut self) {
        if self.streams.len() < 6 {
            self.streams.push(self.device.create_stream(Priority::Normal).unwrap());
            return;
        }
        let going = self.streams.remove(2);
        if self.random.chance(1, 2) {
            self.pool.forget_stream(going).unwrap();
        }
        self.device.destroy_stream(going).unwrap();
        self.died += 1;
    }

    fn play(&mut self, steps: u32) {
        for _ in 0..steps {
            match self.random.below(100) {
                0..52 => self.allocate(),
                52..90 => self.free(),
                90..96 => self.neighbor(),
                96..99 => self.change_streams(),
                _ => drop(self.pool.trim(Bytes::new(self.random.below(8 << 20))).unwrap()),
            }
        }
    }

    fn close(mut self) -> (u64, u64) {
        while !self.live.is_empty() {
            self.free();
        }
        self.add_up();
        self.pool.trim(Bytes::ZERO).unwrap();
        // A stable pool keeps what is behind its addresses.
        let stays = self.pool.class().contains(MemoryClass::STABLE);
        assert!(stays || self.pool.held().is_zero(), "{} held", self.pool.held());
        self.add_up();
        assert_eq!(self.machine.findings(), []);
        (self.refusals, self.died)
    }
}

#[test]
fn a_refused_request_takes_nothing_beside_a_second_consumer() {
    let (mut refusals, mut died) = (0, 0);
    for seed in 0..12 {
        let mut shared = Shared::new(seed);
        shared.play(1200);
        let ended = shared.close();
        refusals += ended.0;
        died += ended.1;
    }
    assert!(refusals > 250 && died > 100, "{refusals} refusals, {died} streams died");
}
