//! Handles that change streams with work pending, under the checker: filled, moved to other streams, left by their
//! streams, freed in any order. Short episodes, each with a device and a pool of its own.

use std::fmt;

use forebay::{DeviceArray, OwnedBlock, Pool, PoolOptions, SharedBlock};
use forebay_core::{Bytes, Random};
use forebay_hal::{Priority, Stream, StreamHandle};
use forebay_sim::{HandleReuse, SimMachine};

/// How many operations an episode has: clocks of the checker grow with the streams that come and go.
const EPISODE: u64 = 2048;

/// The most arrays at once.
const MAX_LIVE: usize = 40;

const STREAMS: usize = 4;

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    operations: u64,
    fills: u64,
    moves: u64,
    streams: u64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operations, fills, moves, streams } = self;
        write!(
            f,
            "handles: {operations} operations; {fills} fills, {moves} moves to other streams, {streams} streams ended \
             before their handles; no violation"
        )
    }
}

/// Runs episodes from `seed` on until so many operations are done.
pub(crate) fn run(seed: u64, operations: u64) -> Result<Figures, String> {
    let mut figures = Figures::default();
    for number in 0..operations.div_ceil(EPISODE) {
        let seed = seed.wrapping_add(number);
        let count = EPISODE.min(operations - number * EPISODE);
        Episode::new(seed)
            .and_then(|episode| episode.run(count, &mut figures))
            .map_err(|what| format!("violation of handles, seed {seed}: {what}"))?;
    }
    Ok(figures)
}

struct Episode {
    machine: SimMachine,
    pool: Pool,
    streams: Vec<Stream>,
    live: Vec<DeviceArray<u8>>,
    random: Random,
}

impl Episode {
    fn new(seed: u64) -> Result<Self, String> {
        let machine = SimMachine::builder()
            .seed(seed)
            .capacity(Bytes::mib(64))
            .handles(HandleReuse::AtOnce)
            .build()
            .map_err(|error| error.to_string())?;
        let device = machine.device(0).ok_or("a machine without a device")?;
        let pool = PoolOptions::new().build(&device).map_err(|error| error.to_string())?;
        let streams = (0..STREAMS).map(|_| Stream::new(&device, Priority::Normal));
        let streams = streams.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        Ok(Self { machine, pool, streams, live: Vec::new(), random: Random::new(seed) })
    }

    fn stream(&mut self) -> StreamHandle {
        self.random.pick(&self.streams).map_or(StreamHandle::DEFAULT, Stream::handle)
    }

    fn run(mut self, operations: u64, figures: &mut Figures) -> Result<(), String> {
        for _ in 0..operations {
            figures.operations += 1;
            self.step(figures).map_err(|error| error.to_string())?;
            if self.machine.finding_count() > 0 {
                let findings = self.machine.findings();
                return Err(findings.first().map_or_else(String::new, ToString::to_string));
            }
        }
        let lost = forebay::handle::lost_frees();
        self.live.clear();
        self.pool.trim(Bytes::ZERO).map_err(|error| error.to_string())?;
        let held = self.pool.held();
        if !held.is_zero() || lost.count > 0 || self.machine.finding_count() > 0 {
            let findings = self.machine.findings();
            return Err(format!("{held} held at the end, {lost:?}, {:?}", findings.first()));
        }
        Ok(())
    }

    fn step(&mut self, figures: &mut Figures) -> forebay::Result<()> {
        let stream = self.stream();
        let index = self.random.index(self.live.len());
        match (self.random.below(16), index) {
            (0..5, _) | (_, None) if self.live.len() < MAX_LIVE => {
                let magnitude = self.random.between(8, 18);
                let length = self.random.below(1 << magnitude);
                let length = usize::try_from(length).unwrap_or(0) + 1;
                figures.fills += 1;
                self.live.push(self.pool.on(stream).zeros(length)?);
            }
            (0..7, Some(index)) => {
                figures.fills += 1;
                self.live[index].fill(7)?;
            }
            (7, Some(index)) => {
                figures.moves += 1;
                self.live[index].set_stream(stream);
            }
            (8, Some(index)) => {
                figures.moves += 1;
                self.live[index].hand_over_to(stream)?;
            }
            (9, Some(index)) => self.live[index].block().used_on(stream),
            (10, _) => {
                figures.streams += 1;
                let Some(index) = self.random.index(self.streams.len()) else { return Ok(()) };
                // The next stream gets its handle.
                let device = self.streams.swap_remove(index).device().clone();
                self.streams.push(Stream::new(&device, Priority::Normal)?);
            }
            (11, Some(index)) => {
                figures.moves += 1;
                let array = self.live.swap_remove(index);
                array.into_block().free_on(stream)?;
            }
            (12, Some(index)) => {
                figures.moves += 1;
                let block = self.live.swap_remove(index).into_block().into_raw()?;
                self.pool.free_block(block, stream)?;
            }
            (13, Some(index)) => {
                figures.moves += 1;
                let shared = SharedBlock::from(self.live.swap_remove(index).into_block());
                shared.clone().used_on(stream);
                let block: OwnedBlock = shared.into_owned()?;
                block.free()?;
            }
            (_, Some(index)) => drop(self.live.swap_remove(index)),
            (_, None) => {}
        }
        Ok(())
    }
}
