//! One thread of a soak: its stream, its blocks, and what it does next.

use core::time::Duration;
use std::sync::{Mutex, PoisonError};

use forebay::{Error, Pool};
use forebay_core::{Address, Bytes, Random};
use forebay_hal::{Priority, StreamHandle, Streams};
use forebay_sim::SimDevice;

use crate::claims::Claims;

/// The most blocks a thread has at once.
const MAX_LIVE: u64 = 400;

/// How many operations a thread's wish for blocks stays the same: it fills up, and empties again.
const PHASE: u64 = 4096;

/// How many questions let the device do what some dozen operations had it do.
const QUERIES: u32 = 32;

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) operations: u64,
    pub(crate) allocations: u64,
    pub(crate) out_of_memory: u64,
    pub(crate) wrong: u64,
    /// Streams that ended with a word to the pool, and without one.
    pub(crate) announced: u64,
    pub(crate) unannounced: u64,
    pub(crate) freed_on_dead: u64,
    pub(crate) peak_out: Bytes,
    pub(crate) peak_held: Bytes,
}

impl Figures {
    /// Both together; of peaks, the higher.
    pub(crate) fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.allocations += other.allocations;
        self.out_of_memory += other.out_of_memory;
        self.wrong += other.wrong;
        self.announced += other.announced;
        self.unannounced += other.unannounced;
        self.freed_on_dead += other.freed_on_dead;
        self.peak_out = self.peak_out.max(other.peak_out);
        self.peak_held = self.peak_held.max(other.peak_held);
    }

    /// In one line.
    pub(crate) fn line(&self, elapsed: Duration) -> String {
        let each = elapsed.as_nanos() / u128::from(self.operations.max(1));
        format!(
            "{} operations in {:.1} s, {each} ns each; {} allocations, {} out of memory, {} wrong \
             frees refused; {} streams ended, {} without a word; at most {} out of the heap, {} held; \
             no violation",
            self.operations,
            elapsed.as_secs_f64(),
            self.allocations,
            self.out_of_memory,
            self.wrong,
            self.announced + self.unannounced,
            self.unannounced,
            self.peak_out,
            self.peak_held
        )
    }
}
/// A live block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    start: u64,
    size: u64,
}

/// What all threads of a round share.
pub(crate) struct Yard<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) device: &'a SimDevice,
    /// The oracle; without one nothing is looked at.
    pub(crate) claims: Option<&'a Claims>,
    /// What others are to free, a box for each thread.
    pub(crate) boxes: &'a [Mutex<Vec<Held>>],
    /// Streams that every thread uses.
    pub(crate) shared: &'a [StreamHandle],
    /// The largest block, as a power of two.
    pub(crate) magnitude: u64,
    /// Whether one thread runs at a time: then a block freed before is known to be free still.
    pub(crate) alone: bool,
    /// Where a block is claimed that nobody gave out.
    pub(crate) plant: Option<u64>,
}

/// One thread.
pub(crate) struct Worker<'a> {
    yard: &'a Yard<'a>,
    number: usize,
    random: Random,
    own: StreamHandle,
    live: Vec<Held>,
    wish: u64,
    steps: u64,
    /// The stream this thread had last, which is gone.
    gone: Option<StreamHandle>,
    /// Blocks freed lately, round and round.
    freed: [u64; 16],
    pub(crate) figures: Figures,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(yard: &'a Yard<'a>, number: usize, seed: u64) -> Result<Self, String> {
        let own = yard.device.create_stream(Priority::Normal).map_err(|error| error.to_string())?;
        let mut random = Random::new(seed ^ (number as u64).wrapping_mul(0x9e37_79b9));
        let wish = random.below(MAX_LIVE);
        Ok(Self {
            yard,
            number,
            random,
            own,
            live: Vec::new(),
            wish,
            steps: 0,
            gone: None,
            freed: [0; 16],
            figures: Figures::default(),
        })
    }

    /// One operation: the one with this number, of all in turns and of this thread's otherwise.
    pub(crate) fn step(&mut self, step: u64) -> Result<(), String> {
        self.figures.operations += 1;
        self.steps += 1;
        if self.yard.plant == Some(step)
            && let (Some(claims), Some(held)) = (self.yard.claims, self.live.first())
        {
            return claims.claim(held.start, held.size).map_err(|conflict| conflict.to_string());
        }
        if self.steps.is_multiple_of(PHASE) {
            self.wish = self.random.below(MAX_LIVE);
        }
        match self.random.below(1 << 16) {
            0 => self.trim(),
            1 => self.yard.device.synchronize_device().map_err(|error| error.to_string()),
            2..14 => self.renew(),
            14..20 => self.chore(),
            20..60 => self.use_elsewhere(),
            // A simulated device does nothing unless it is asked something, and a pool that waits sleeps
            // between two questions.
            64000.. => (0..QUERIES).try_for_each(|_| {
                let asked = self.yard.device.query_stream(StreamHandle::DEFAULT);
                asked.map(drop).map_err(|error| error.to_string())
            }),
            60..1024 => self.free_wrongly(),
            1024..3000 => self.empty_box(),
            _ => {
                let filling = (self.live.len() as u64) < self.wish;
                // Mostly towards the wish, and sometimes away from it.
                if filling == self.random.chance(7, 10) { self.allocate() } else { self.free() }
            }
        }
    }

    fn stream(&mut self) -> StreamHandle {
        match self.random.below(16) {
            0..11 => self.own,
            11 => StreamHandle::PER_THREAD,
            _ => self.random.pick(self.yard.shared).copied().unwrap_or(self.own),
        }
    }

    fn allocate(&mut self) -> Result<(), String> {
        let magnitude = self.random.between(0, self.yard.magnitude);
        let requested = self.random.below(1 << magnitude);
        let stream = self.stream();
        let before = self.yard.pool.held();
        let block = match self.yard.pool.allocate(Bytes::new(requested), stream) {
            Ok(block) => block,
            Err(Error::OutOfMemory { .. }) => {
                self.figures.out_of_memory += 1;
                let after = self.yard.pool.held();
                if self.yard.alone && after > before {
                    return Err(format!("{requested} B refused: {before} held, then {after}"));
                }
                return self.free();
            }
            Err(error) => return Err(format!("{requested} B on {stream}: {error}")),
        };
        let (start, size) = (block.address().get(), block.size().get());
        if requested == 0 {
            let null = start == 0 && size == 0;
            return if null { Ok(()) } else { Err(format!("{block:?} was given for no bytes")) };
        }
        if start == 0 || size < requested {
            return Err(format!("{block:?} was given for {requested} B"));
        }
        // Claimed once it is had, and released before it is given back.
        if let Some(claims) = self.yard.claims {
            claims.claim(start, size).map_err(|conflict| format!("{block:?}: {conflict}"))?;
        }
        self.figures.allocations += 1;
        self.live.push(Held { start, size });
        Ok(())
    }

    fn free(&mut self) -> Result<(), String> {
        let Some(index) = self.random.index(self.live.len()) else { return Ok(()) };
        let held = self.live.swap_remove(index);
        if self.random.chance(1, 8)
            && let Some(other) = self.random.pick(self.yard.boxes)
        {
            other.lock().unwrap_or_else(PoisonError::into_inner).push(held);
            return Ok(());
        }
        self.give_back(held)
    }

    fn give_back(&mut self, held: Held) -> Result<(), String> {
        if let Some(claims) = self.yard.claims {
            let released = claims.release(held.start, held.size);
            released.map_err(|conflict| format!("{held:?}: {conflict}"))?;
        }
        // Now and then on a stream that is gone.
        let gone = self.gone.filter(|_| self.random.chance(1, 256));
        self.figures.freed_on_dead += u64::from(gone.is_some());
        let stream = gone.unwrap_or_else(|| self.stream());
        let freed = self.yard.pool.free(Address::new(held.start), stream);
        freed.map_err(|error| format!("{held:?} on {stream}: {error}"))?;
        self.freed.rotate_right(1);
        self.freed[0] = held.start;
        Ok(())
    }

    /// Frees what others have left here.
    fn empty_box(&mut self) -> Result<(), String> {
        let own = self.yard.boxes.get(self.number);
        let Some(own) = own else { return Ok(()) };
        let left = core::mem::take(&mut *own.lock().unwrap_or_else(PoisonError::into_inner));
        left.into_iter().try_for_each(|held| self.give_back(held))
    }

    fn free_wrongly(&mut self) -> Result<(), String> {
        let inside = self.random.pick(&self.live).map(|held| {
            [held.start + 1, held.start + held.size - 1, held.start + held.size / 2 / 512 * 512]
        });
        let freed = self.random.pick(&self.freed).copied().unwrap_or(0);
        let address = match (self.random.below(4), inside) {
            (0, _) => u64::MAX - self.random.below(1 << 20),
            (1, _) if self.yard.alone && self.is_free(freed) => freed,
            (2, _) => 1 + self.random.below(4096),
            (which, Some(places)) => {
                let inside = places[usize::from(which == 3)];
                // Half way into a block of one unit is its start.
                if self.live.iter().any(|held| held.start == inside) {
                    return Ok(());
                }
                inside
            }
            _ => return Ok(()),
        };
        self.figures.wrong += 1;
        let stream = self.stream();
        match self.yard.pool.free(Address::new(address), stream) {
            Err(
                Error::NotABlock { .. }
                | Error::DoubleFree { .. }
                | Error::StaleBlock { .. }
                | Error::WrongPool { .. },
            ) => Ok(()),
            answer => Err(format!("a free of {address:#x}, where no block begins: {answer:?}")),
        }
    }

    /// Whether nothing is live at `address`, as the oracle knows while this thread runs alone.
    fn is_free(&self, address: u64) -> bool {
        address != 0 && self.yard.claims.is_some_and(|claims| claims.is_free(address))
    }

    fn trim(&mut self) -> Result<(), String> {
        let keep = Bytes::new(self.random.below(1 << 34));
        self.yard.pool.trim(keep).map(drop).map_err(|error| error.to_string())
    }

    /// Ends the thread's stream, half the time without a word to the pool, and makes another.
    fn renew(&mut self) -> Result<(), String> {
        if self.random.chance(1, 2) {
            self.figures.announced += 1;
            self.yard.pool.forget_stream(self.own).map_err(|error| error.to_string())?;
        } else {
            self.figures.unannounced += 1;
        }
        let device = self.yard.device;
        device.destroy_stream(self.own).map_err(|error| error.to_string())?;
        self.gone = Some(self.own);
        self.own = device.create_stream(Priority::Normal).map_err(|error| error.to_string())?;
        Ok(())
    }

    /// Says that a block is used on a further stream, which may be gone when it is freed.
    fn use_elsewhere(&mut self) -> Result<(), String> {
        let stream = self.stream();
        let Some(held) = self.random.pick(&self.live) else { return Ok(()) };
        let recorded = self.yard.pool.record_use(Address::new(held.start), stream);
        recorded.map_err(|error| format!("{held:?} used on {stream}: {error}"))
    }

    /// What any thread may ask of the pool at any time.
    fn chore(&mut self) -> Result<(), String> {
        let pool = self.yard.pool;
        let done = match self.random.below(5) {
            0 => pool.collect(Duration::from_micros(self.random.below(100_000))).map(drop),
            1 => pool.defragment(),
            2 => pool.process_deferred(),
            3 => self
                .random
                .pick(self.yard.shared)
                .map_or(Ok(()), |&stream| pool.forget_stream(stream)),
            _ => {
                let figures = pool.statistics();
                let sound = figures.live <= figures.held || !self.yard.alone;
                return if sound { Ok(()) } else { Err(format!("{figures:?}")) };
            }
        };
        done.map_err(|error| error.to_string())
    }

    /// Frees everything.
    pub(crate) fn end(&mut self) -> Result<(), String> {
        self.empty_box()?;
        while let Some(held) = self.live.pop() {
            self.give_back(held)?;
        }
        Ok(())
    }
}
