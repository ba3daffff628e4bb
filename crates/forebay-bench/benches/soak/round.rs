//! One round: a pool, some threads, a number of operations; then everything is freed and nothing is
//! left.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;

use forebay::{Pool, PoolOptions};
use forebay_core::address_space::Growth;
use forebay_core::{Bytes, PageSize};
use forebay_hal::{Device, Priority, StreamHandle, Streams};
use forebay_sim::{HandleReuse, MemoryModel, SimDevice, SimMachine};

use crate::claims::Claims;
use crate::pace::{Pace, Turns};
use crate::worker::{Figures, Worker, Yard};

/// What is decided by the seed: the pool, and the largest block as a power of two.
struct Shape {
    limit: Option<Bytes>,
    largest_page: Bytes,
    magnitude: u64,
}

/// Sizes as they are on accelerators; more than there is; small blocks alone; pages of one granule.
const SHAPES: [Shape; 4] = [
    Shape { limit: None, largest_page: Bytes::mib(32), magnitude: 26 },
    Shape { limit: Some(Bytes::mib(900)), largest_page: Bytes::mib(32), magnitude: 26 },
    Shape { limit: None, largest_page: Bytes::mib(32), magnitude: 18 },
    Shape { limit: Some(Bytes::gib(2)), largest_page: Bytes::mib(2), magnitude: 23 },
];

/// One round. All of it is decided by these, but for who comes first where threads run together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) seed: u64,
    pub(crate) threads: usize,
    pub(crate) pace: Pace,
    pub(crate) operations: u64,
    pub(crate) oracle: bool,
    pub(crate) plant: Option<u64>,
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, threads, pace, .. } = self;
        write!(f, "seed {seed}, threads {threads}, {pace}")
    }
}

/// What the pool did that it must not.
#[derive(Debug)]
pub(crate) struct Violation {
    round: Round,
    /// The operation, where it was one: of all in turns, of its thread's otherwise.
    step: Option<u64>,
    what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { round, step, what } = self;
        let Round { seed, threads, pace, operations, .. } = round;
        match step {
            Some(step) => writeln!(f, "violation at operation {step} of {round}: {what}")?,
            None => writeln!(f, "violation at the end of {round}: {what}")?,
        }
        let operations = step.map_or(*operations, |step| step + 1);
        write!(
            f,
            "replay: cargo xtask soak --operations {operations} --seed {seed} --threads {threads} \
             --pace {pace}"
        )?;
        match pace {
            Pace::Turns => Ok(()),
            Pace::Together => write!(
                f,
                "\nthe threads ran together, so it may take several attempts and more operations"
            ),
        }
    }
}

/// Where the operations are.
#[derive(Clone, Copy)]
struct Clock<'a> {
    /// The operation this thread is at.
    step: &'a AtomicU64,
    /// How many were begun by all, in turns.
    begun: &'a AtomicU64,
    /// How many are done by all, for whoever watches.
    done: &'a AtomicU64,
}

/// The device and the pool of a round, and what its threads share.
struct Fixture {
    machine: SimMachine,
    device: Arc<SimDevice>,
    pool: Pool,
    shared: Vec<StreamHandle>,
    claims: Claims,
}

impl Round {
    fn shape(&self) -> &'static Shape {
        let index = usize::try_from(self.seed % SHAPES.len() as u64).unwrap_or(0);
        SHAPES.get(index).unwrap_or(&SHAPES[0])
    }

    fn violation(&self, step: Option<u64>, what: impl fmt::Display) -> Box<Violation> {
        Box::new(Violation { round: *self, step, what: what.to_string() })
    }

    fn fixture(&self) -> Result<Fixture, String> {
        let again = self.seed.is_multiple_of(2);
        let handles = if again { HandleReuse::AtOnce } else { HandleReuse::Never };
        let machine = SimMachine::builder()
            .seed(self.seed)
            .memory(MemoryModel::Phantom)
            .capacity(Bytes::gib(80))
            .granularity(PageSize::DEVICE)
            .handles(handles)
            .checked(false)
            .build()
            .map_err(|error| error.to_string())?;
        let device = machine.device(0).ok_or("a machine without a device")?;
        let shared: Arc<dyn Device> = device.clone();
        let shape = self.shape();
        let mut growth = Growth::default();
        growth.largest_page = shape.largest_page;
        let mut options = PoolOptions::new().growth(growth);
        if let Some(limit) = shape.limit {
            options = options.max_bytes(limit);
        }
        let pool = options.build(&shared).map_err(|error| error.to_string())?;
        let streams = (0..2).map(|_| device.create_stream(Priority::Normal));
        let streams = streams.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        Ok(Fixture { machine, device, pool, shared: streams, claims: Claims::default() })
    }

    /// Runs it; `done` counts along.
    pub(crate) fn run(&self, done: &AtomicU64) -> Result<Figures, Box<Violation>> {
        let fixture = self.fixture().map_err(|error| self.violation(None, error))?;
        let mut figures = self.work(&fixture, done)?;
        let statistics = fixture.pool.statistics();
        figures.peak_out = statistics.peak_out;
        figures.peak_held = statistics.peak_held;
        self.close(fixture).map_err(|what| self.violation(None, what))?;
        Ok(figures)
    }

    fn work(&self, fixture: &Fixture, done: &AtomicU64) -> Result<Figures, Box<Violation>> {
        let boxes: Vec<_> = (0..self.threads).map(|_| Mutex::default()).collect();
        let yard = Yard {
            pool: &fixture.pool,
            device: &fixture.device,
            claims: self.oracle.then_some(&fixture.claims),
            boxes: &boxes,
            shared: &fixture.shared,
            magnitude: self.shape().magnitude,
            alone: self.pace == Pace::Turns || self.threads == 1,
            plant: self.plant,
        };
        let turns = Turns::new(self.pace, self.threads, self.operations, self.seed);
        let all_done = Barrier::new(self.threads);
        // At which operation each thread is, by itself: threads that run together do not meet here.
        let steps: Vec<AtomicU64> = (0..self.threads).map(|_| AtomicU64::new(0)).collect();
        let begun = AtomicU64::new(0);
        let first: Mutex<Option<Box<Violation>>> = Mutex::new(None);
        let fail = |at: Option<u64>, what: String| {
            turns.stop();
            let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert_with(|| self.violation(at, what));
        };
        let mut sum = Figures::default();
        thread::scope(|scope| {
            let (yard, turns, all_done, fail) = (&yard, &turns, &all_done, &fail);
            let begun = &begun;
            let thread = |(number, step)| {
                scope.spawn(move || {
                    let clock = Clock { step, begun, done };
                    let worked = || self.thread(number, yard, turns, clock);
                    // A panic in the pool is a violation like any other, with its step.
                    let ended = match catch_unwind(AssertUnwindSafe(worked)) {
                        Ok(Ok(worker)) => Some(worker),
                        Ok(Err(what)) => {
                            fail(Some(step.load(Ordering::Relaxed)), what);
                            None
                        }
                        Err(_) => {
                            fail(Some(step.load(Ordering::Relaxed)), "a panic".to_owned());
                            None
                        }
                    };
                    // Nobody puts anything into a box any more: now all can be emptied.
                    all_done.wait();
                    let mut worker = ended?;
                    match worker.end() {
                        Ok(()) => Some(worker.figures),
                        Err(what) => {
                            fail(None, what);
                            None
                        }
                    }
                })
            };
            let handles: Vec<_> = steps.iter().enumerate().map(thread).collect();
            for handle in handles {
                match handle.join() {
                    Ok(figures) => sum.add(&figures.unwrap_or_default()),
                    Err(_) => fail(None, "a panic".to_owned()),
                }
            }
        });
        match first.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(violation) => Err(violation),
            None => Ok(sum),
        }
    }

    fn thread<'a>(
        &self,
        number: usize,
        yard: &'a Yard<'a>,
        turns: &Turns,
        clock: Clock<'_>,
    ) -> Result<Worker<'a>, String> {
        let mut worker = None;
        loop {
            let count = turns.take(number);
            if count == 0 {
                break;
            }
            // Made in its turn, so that streams come in an order that the seed decides.
            let mut current = match worker.take() {
                Some(worker) => worker,
                None => Worker::new(yard, number, self.seed)?,
            };
            if self.pace == Pace::Turns {
                clock
                    .step
                    .store(clock.begun.fetch_add(count, Ordering::Relaxed), Ordering::Relaxed);
            }
            let first = clock.step.load(Ordering::Relaxed);
            for step in first..first.saturating_add(count) {
                clock.step.store(step, Ordering::Relaxed);
                current.step(step)?;
            }
            clock.step.store(first.saturating_add(count), Ordering::Relaxed);
            clock.done.fetch_add(count, Ordering::Relaxed);
            worker = Some(current);
            turns.pass();
        }
        // One that never had a turn still empties its box.
        worker.map_or_else(|| Worker::new(yard, number, self.seed), Ok)
    }

    /// Everything was freed: nothing may be left.
    fn close(&self, fixture: Fixture) -> Result<(), String> {
        let Fixture { machine, device, pool, claims, .. } = fixture;
        let statistics = pool.statistics();
        let (live, requested) = (statistics.live, statistics.requested);
        let (given, back) = (statistics.allocations, statistics.frees);
        if !live.is_zero() || !requested.is_zero() || given != back {
            let told = format!("{live} live, {requested} requested, {given} given, {back} back");
            return Err(format!("with everything freed: {told}"));
        }
        if !claims.is_empty() {
            return Err("blocks were lost by the soak itself".to_owned());
        }
        pool.trim(Bytes::ZERO).map_err(|error| error.to_string())?;
        if !pool.held().is_zero() {
            return Err(format!("{} held after a trim with nothing live", pool.held()));
        }
        drop(pool);
        device.synchronize_device().map_err(|error| error.to_string())?;
        let left = machine.census();
        if (left.pages, left.mappings, left.regions, left.events) != (0, 0, 0, 0) {
            return Err(format!("left behind: {left}"));
        }
        Ok(())
    }
}
