//! Stress episodes: a pool, its threads, its streams and a second consumer of the device, all at once,
//! under the checker. Shared by the tests and the soak.
//!
//! ```text
//!   Episode   what is decided by the seed: threads, operations, the pool, faults, a neighbor
//!   World     the device, the pool, who has which bytes, blocks on their way between threads
//!   Worker    one thread: streams that come, go and die; blocks used, handed on, freed
//!   sidekicks threads that trim, collect and forget; a neighbor that allocates; visitors that come and go
//! ```
//!
//! Every block is written once, on its stream, and read wherever it is used: the device checks the order of
//! all accesses, and the kernels check what they read. What the program owes the pool it does: a block is
//! freed in the order of a stream that its work is on, and uses on other streams are recorded.

mod sidekicks;
mod worker;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use forebay::{MemoryClass, PoolOptions};
use forebay_core::address_space::Growth;
use forebay_core::{Bytes, PageSize};
use forebay_hal::Device;
use forebay_sim::{Fault, FaultKind, SimDevice, SimMachine, When};

use self::worker::Worker;
use self::world::World;

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) operations: u64,
    pub(crate) allocations: u64,
    pub(crate) refusals: u64,
    /// Calls of the pool and its handles that failed because a call of the device did.
    pub(crate) failures: u64,
    pub(crate) streams_made: u64,
    /// Streams that ended with an announcement to the pool.
    pub(crate) streams_announced: u64,
    /// Streams that were destroyed without one.
    pub(crate) streams_unannounced: u64,
    /// Blocks freed on a stream that was gone.
    pub(crate) freed_on_dead: u64,
    /// Uses on a further stream.
    pub(crate) uses: u64,
    /// Blocks handed between threads.
    pub(crate) handed: u64,
    /// Threads that came and went beside the workers.
    pub(crate) visitors: u64,
    /// Arrays copied to the device and back.
    pub(crate) copies: u64,
    /// Calls of `trim`, `collect`, `defragment`, `statistics` and `forget_stream`.
    pub(crate) chores: u64,
}

impl Figures {
    /// Both together.
    pub(crate) fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.allocations += other.allocations;
        self.refusals += other.refusals;
        self.failures += other.failures;
        self.streams_made += other.streams_made;
        self.streams_announced += other.streams_announced;
        self.streams_unannounced += other.streams_unannounced;
        self.freed_on_dead += other.freed_on_dead;
        self.uses += other.uses;
        self.handed += other.handed;
        self.visitors += other.visitors;
        self.copies += other.copies;
        self.chores += other.chores;
    }
}

/// A refusal of the trial: what the pool did that it must not.
pub(crate) type Outcome<T = ()> = Result<T, String>;

/// One episode. Everything but the order of the threads is decided by it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Episode {
    pub(crate) seed: u64,
    pub(crate) threads: usize,
    /// Operations, over all threads.
    pub(crate) operations: u64,
    pub(crate) class: MemoryClass,
    pub(crate) capacity: Bytes,
    pub(crate) limit: Option<Bytes>,
    /// How many calls of the device fail, in a million.
    pub(crate) faults: u32,
    /// Whether another consumer of the device comes and goes.
    pub(crate) neighbor: bool,
    /// How many threads come at once, stay a moment and go, at the middle of each worker's part.
    pub(crate) crowd: usize,
}

impl Episode {
    /// The episode of a seed: in turn with and without faults, a limit, a neighbor.
    pub(crate) fn of_seed(seed: u64, threads: usize, operations: u64) -> Self {
        Self {
            seed,
            threads,
            operations,
            class: match seed % 5 {
                3 => MemoryClass::PLAIN,
                4 => MemoryClass::STABLE,
                _ => MemoryClass::STITCHED,
            },
            capacity: Bytes::mib(8),
            limit: seed.is_multiple_of(3).then_some(Bytes::mib(5)),
            faults: if seed % 2 == 1 { 2000 } else { 0 },
            neighbor: seed % 4 >= 2,
            crowd: 0,
        }
    }

    /// Runs it on a simulated device of its own, with the pool on what `front` puts before it; `done` counts
    /// along.
    pub(crate) fn run(
        &self,
        front: impl FnOnce(&SimMachine, Arc<SimDevice>) -> Arc<dyn Device>,
        done: &AtomicU64,
    ) -> Outcome<Figures> {
        let world = self.world(front)?;
        let figures = Mutex::new(Figures::default());
        let failed: Mutex<Option<String>> = Mutex::new(None);
        let note = |ended: Outcome<Figures>| match ended {
            Ok(one) => figures.lock().unwrap_or_else(PoisonError::into_inner).add(&one),
            Err(what) => {
                world.stop();
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
            }
        };
        if self.faults > 0 {
            world.machine.plan(Fault::new(When::PerMillion(self.faults), FaultKind::Transient));
        }
        thread::scope(|scope| {
            let (world, note) = (&world, &note);
            let workers: Vec<_> = (0..self.threads)
                .map(|number| scope.spawn(move || note(guarded(|| self.work(world, number, done)))))
                .collect();
            let mut sidekicks = Vec::new();
            if self.threads > 1 {
                let keep = move || note(guarded(|| sidekicks::keep(world, self.seed)));
                sidekicks.push(scope.spawn(keep));
            }
            if self.neighbor {
                let neighbor = move || note(guarded(|| sidekicks::neighbor(world, self.seed)));
                sidekicks.push(scope.spawn(neighbor));
            }
            for worker in workers {
                // What panicked was caught, and noted as a failure.
                let _ = worker.join();
            }
            world.stop();
            // Joined, not only done: a thread that ends has the pool give memory back.
            sidekicks.into_iter().for_each(|sidekick| _ = sidekick.join());
        });
        if let Some(what) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(what);
        }
        let mut figures = figures.into_inner().unwrap_or_else(PoisonError::into_inner);
        figures.add(&guarded(|| world.close(self.faults > 0))?);
        Ok(figures)
    }

    fn world(
        &self,
        front: impl FnOnce(&SimMachine, Arc<SimDevice>) -> Arc<dyn Device>,
    ) -> Outcome<World> {
        let machine = SimMachine::builder()
            .seed(self.seed)
            .granularity(PageSize::HOST)
            .capacity(self.capacity)
            .build()
            .map_err(|error| error.to_string())?;
        let sim = machine.device(0).ok_or("a machine without a device")?;
        let device = front(&machine, Arc::clone(&sim));
        let mut growth = Growth::default();
        growth.largest_page = Bytes::kib(64);
        let mut options = PoolOptions::new().growth(growth).class(self.class);
        if let Some(limit) = self.limit {
            options = options.max_bytes(limit);
        }
        let pool = options.build(&device).map_err(|error| error.to_string())?;
        Ok(World::new(machine, sim, device, pool, self.threads == 1))
    }

    fn work(&self, world: &World, number: usize, done: &AtomicU64) -> Outcome<Figures> {
        let share = self.operations / self.threads as u64;
        let mut worker = Worker::new(world, self.seed, number)?;
        for step in 0..share {
            if world.is_over() {
                break;
            }
            if self.crowd > 0 && step == share / 2 {
                worker.figures.visitors += sidekicks::crowd(world, self.crowd, self.seed)?;
            }
            worker.step()?;
            if step % 64 == 63 {
                done.fetch_add(64, Ordering::Relaxed);
            }
        }
        done.fetch_add(share % 64, Ordering::Relaxed);
        worker.end()
    }
}

/// What `act` says; a panic in it is a failure like any other.
fn guarded<T>(act: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
        Err(format!("a panic: {}", text.unwrap_or_default()))
    })
}
