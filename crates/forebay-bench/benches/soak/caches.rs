//! Pools that are short of memory, under the checker: requests beside `collect`, `trim` and pressure, caches that answer
//! `on_shortage` an entry at a time, and the last drop of a pool beside its upkeep. Short episodes, each with a device of
//! its own and one pool after another on it: the next needs what the last one held.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use forebay::{DeviceArray, Error, Pool, PoolOptions};
use forebay_core::{Bytes, Random};
use forebay_hal::{Device, Priority, Stream};
use forebay_sim::{HandleReuse, SimDevice, SimMachine};

use crate::claims::Claims;

/// A thread does up to two to the power of this operations with one pool: many pools are dropped when they are young.
const MAX_EACH: u64 = 8;

/// How many pools an episode has, one after the other.
const POOLS: u64 = 16;

/// The most arrays that a thread keeps for itself.
const MAX_LIVE: usize = 8;

const CAPACITY: Bytes = Bytes::mib(64);

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    operations: u64,
    served: u64,
    refused: u64,
    given_up: u64,
    returned: u64,
    pools: u64,
}

impl Figures {
    fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.served += other.served;
        self.refused += other.refused;
        self.given_up += other.given_up;
        self.returned += other.returned;
        self.pools += other.pools;
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operations, served, refused, given_up, returned, pools } = self;
        write!(
            f,
            "caches: {operations} operations; {served} requests served and {refused} refused, {given_up} entries given \
             up for them, {returned} calls that return memory, {pools} pools dropped; no violation"
        )
    }
}

/// Runs episodes from `seed` on until so many operations are done.
pub(crate) fn run(seed: u64, operations: u64) -> Result<Figures, String> {
    let mut figures = Figures::default();
    let mut number = seed;
    while figures.operations < operations {
        episode(number, &mut figures)
            .map_err(|what| format!("violation of caches, seed {number}: {what}"))?;
        number = number.wrapping_add(1);
    }
    Ok(figures)
}

fn episode(seed: u64, figures: &mut Figures) -> Result<(), String> {
    let machine = SimMachine::builder().seed(seed).capacity(CAPACITY).handles(HandleReuse::AtOnce);
    let machine = machine.build().map_err(text)?;
    let device = machine.device(0).ok_or("a machine without a device")?;
    let mut random = Random::new(seed);
    for _ in 0..POOLS {
        let threads = random.between(1, 3);
        figures.add(&one_pool(&device, threads, &mut random)?);
        // The last clone is gone, and every thread of ours with it.
        let held = machine.census().held;
        let lost = forebay::handle::lost_frees();
        if !held.is_zero() || lost.count > 0 || machine.finding_count() > 0 {
            let findings = machine.findings();
            return Err(format!(
                "{held} held after the last drop, {lost:?}, {:?}",
                findings.first()
            ));
        }
    }
    Ok(())
}

/// An array that the oracle knows of for as long as it lives.
struct Claimed {
    array: DeviceArray<u8>,
    claims: Arc<Claims>,
    spoilt: Arc<Mutex<Option<String>>>,
}

impl Drop for Claimed {
    /// Before the array is freed, which comes next.
    fn drop(&mut self) {
        let block = self.array.block();
        if let Err(conflict) = self.claims.release(block.address().get(), block.size().get()) {
            locked(&self.spoilt).get_or_insert_with(|| conflict.to_string());
        }
    }
}

/// What the threads of a pool share.
#[derive(Clone, Default)]
struct World {
    cache: Arc<Mutex<Vec<Claimed>>>,
    claims: Arc<Claims>,
    /// What was wrong in a drop.
    spoilt: Arc<Mutex<Option<String>>>,
    given_up: Arc<Mutex<u64>>,
    /// For the callback of the pressure, once.
    pressed: Arc<Mutex<Option<Pool>>>,
}

impl World {
    /// Gives up one entry of the cache, if there is one.
    fn give_up(&self) -> bool {
        let entry = locked(&self.cache).pop();
        *locked(&self.given_up) += u64::from(entry.is_some());
        entry.is_some()
    }

    fn pool(&self, device: &Arc<SimDevice>, random: &mut Random) -> Result<Pool, String> {
        let upkeep = random.chance(3, 4);
        let grows =
            if random.chance(1, 4) { Bytes::mib(random.between(1, 8)) } else { Bytes::ZERO };
        let short = self.clone();
        let pressed = Arc::clone(&self.pressed);
        let mut options = PoolOptions::new()
            .set(|set| {
                let set = set.upkeep(upkeep).upkeep_interval(Duration::from_millis(1));
                if upkeep { set.grow_ahead(grows) } else { set }
            })
            .on_shortage(move |_| short.give_up())
            .on_pressure(move |_, _| {
                // What a program might do there: it asks for memory and returns some. The lock tells when its clone is
                // gone; what it asks for may call it again.
                let Ok(mut pressed) = pressed.try_lock() else { return };
                let Some(pool) = pressed.take() else { return };
                drop(pool.on(forebay::StreamHandle::DEFAULT).owned(Bytes::kib(64)));
                drop(pool.collect(Duration::ZERO));
                drop(pool);
            });
        if random.chance(2, 3) {
            options = options.max_bytes(Bytes::mib(random.between(16, 48)));
        }
        let pool = options.build(device).map_err(text)?;
        *locked(&self.pressed) = Some(pool.clone());
        Ok(pool)
    }
}

/// A pool from its first request to its last drop.
fn one_pool(device: &Arc<SimDevice>, threads: u64, random: &mut Random) -> Result<Figures, String> {
    let world = World::default();
    let pool = world.pool(device, random)?;
    let mut figures = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let (world, pool, seed) = (world.clone(), pool.clone(), random.next_u64());
                scope.spawn(move || Worker::new(world, pool, device, seed, threads == 1)?.run())
            })
            .collect();
        let mut sum = Figures::default();
        for worker in workers {
            let ended = worker.join().map_err(|_| "a thread panicked".to_owned())?;
            sum.add(&ended?);
        }
        Ok::<_, String>(sum)
    })?;
    // Waits for a callback that has this clone: a drop there is on the upkeep thread and cannot wait for it.
    let pressed = locked(&world.pressed).take();
    drop(pressed);
    drop(pool);
    // The handles of the cache hold the pool, and the last of them is its last drop.
    let rest = core::mem::take(&mut *locked(&world.cache));
    drop(rest);
    figures.pools += 1;
    figures.given_up += *locked(&world.given_up);
    if let Some(conflict) = locked(&world.spoilt).take() {
        return Err(conflict);
    }
    if !world.claims.is_empty() {
        return Err("claims are left after the last drop".to_owned());
    }
    Ok(figures)
}

struct Worker {
    world: World,
    pool: Pool,
    stream: Stream,
    live: Vec<Claimed>,
    random: Random,
    is_alone: bool,
    figures: Figures,
}

impl Worker {
    fn new(
        world: World,
        pool: Pool,
        device: &Arc<SimDevice>,
        seed: u64,
        is_alone: bool,
    ) -> Result<Self, String> {
        let device: Arc<dyn Device> = device.clone();
        let stream = Stream::new(&device, Priority::Normal).map_err(text)?;
        let (live, figures) = (Vec::new(), Figures::default());
        Ok(Self { world, pool, stream, live, random: Random::new(seed), is_alone, figures })
    }

    fn run(mut self) -> Result<Figures, String> {
        for _ in 0..1 << self.random.between(0, MAX_EACH) {
            self.figures.operations += 1;
            match self.random.below(16) {
                0..9 => self.request()?,
                9..11 => self.keep_one(),
                11..14 => self.return_memory()?,
                _ => {
                    if let Some(index) = self.random.index(self.live.len()) {
                        drop(self.live.swap_remove(index));
                    }
                }
            }
        }
        Ok(self.figures)
    }

    fn request(&mut self) -> Result<(), String> {
        while self.live.len() >= MAX_LIVE {
            self.keep_one();
        }
        let magnitude = self.random.between(9, 23);
        let length = usize::try_from(self.random.below(1 << magnitude)).unwrap_or(0) + 1;
        // Its work is pending wherever it goes from here.
        let array = match self.pool.on(self.stream.handle()).zeros(length) {
            Ok(array) => array,
            Err(Error::OutOfMemory(shortage)) => {
                self.figures.refused += 1;
                let left = locked(&self.world.cache).len();
                if shortage.held > self.pool.limit() || self.is_alone && left > 0 {
                    return Err(format!("refused with {left} entries in the cache: {shortage:?}"));
                }
                return Ok(());
            }
            Err(error) => return Err(format!("{length} B: {error}")),
        };
        self.figures.served += 1;
        let block = array.block();
        let claimed = self.world.claims.claim(block.address().get(), block.size().get());
        claimed.map_err(|conflict| format!("{block:?}: {conflict}"))?;
        let (claims, spoilt) = (Arc::clone(&self.world.claims), Arc::clone(&self.world.spoilt));
        self.live.push(Claimed { array, claims, spoilt });
        Ok(())
    }

    /// Puts an array into the cache.
    fn keep_one(&mut self) {
        let Some(index) = self.random.index(self.live.len()) else { return };
        let array = self.live.swap_remove(index);
        locked(&self.world.cache).push(array);
    }

    fn return_memory(&mut self) -> Result<(), String> {
        self.figures.returned += 1;
        let keep = Bytes::new(self.random.below(8 << 20));
        let returned = match self.random.below(3) {
            0 => self.pool.collect(Duration::ZERO).map(drop),
            1 => self.pool.trim(keep).map(drop),
            _ => self.pool.process_deferred(),
        };
        returned.map_err(|error| format!("a call that returns memory: {error}"))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}
