//! Handles on the simulated device, with the checker looking on, and on the host.

mod array;
mod batch;
mod ended;
mod moves;
mod owned;
mod shared;
pub(crate) mod task;
mod warm;

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::{Address, Bytes, Span};
use forebay_hal::{Device, Priority, StreamHandle, Streams};
use forebay_sim::{Fault, FaultKind, Kernel, SimDevice, SimMachine, SimOptions, When};

use super::*;
use crate::transformer::Transformer;
use crate::{Allocate, Block, Error, Pool, PoolId, PoolOptions, Request, Result};
use forebay_hal::Call;

const DEFAULT: StreamHandle = StreamHandle::DEFAULT;

/// A machine with one device and a pool on it.
struct Bench {
    machine: SimMachine,
    device: Arc<SimDevice>,
    pool: Pool,
}

impl Bench {
    fn new() -> Self {
        Self::with(SimMachine::builder(), PoolOptions::new())
    }

    fn limited(most: Bytes) -> Self {
        Self::with(SimMachine::builder(), PoolOptions::new().max_bytes(most))
    }

    fn with(options: SimOptions, pool: PoolOptions) -> Self {
        let machine = options.build().unwrap();
        let device = machine.device(0).unwrap();
        let shared: Arc<dyn Device> = device.clone();
        let pool = pool.build(&shared).unwrap();
        Self { machine, device, pool }
    }

    fn stream(&self) -> StreamHandle {
        self.device.create_stream(Priority::Normal).unwrap()
    }

    fn live(&self) -> Bytes {
        self.pool.statistics().live
    }

    /// A kernel that writes or reads all of a block, late, in the order of `stream`.
    fn launch(&self, name: &str, block: Block, stream: StreamHandle, effect: Effect) {
        let span = Span::new(block.address(), block.size()).unwrap();
        let kernel = match effect {
            Effect::Writes => Kernel::new(name).writes(span),
            Effect::Reads => Kernel::new(name).reads(span),
        };
        // SAFETY: the block is live, and the pool keeps what it is made of.
        unsafe { self.device.launch(kernel, stream) }.unwrap();
    }

    fn write(&self, name: &str, block: Block, stream: StreamHandle) {
        self.launch(name, block, stream, Effect::Writes);
    }

    fn read(&self, name: &str, block: Block, stream: StreamHandle) {
        self.launch(name, block, stream, Effect::Reads);
    }

    /// Makes `later` wait for `earlier`, as a caller would.
    fn order(&self, earlier: StreamHandle, later: StreamHandle) {
        let event = self.device.create_event(forebay_hal::EventKind::Order).unwrap();
        self.device.record_event(event, earlier).unwrap();
        self.device.wait_event(later, event).unwrap();
        self.device.destroy_event(event).unwrap();
    }

    /// Runs everything and sees that nothing raced.
    fn assert_no_race(&self) {
        self.device.synchronize_device().unwrap();
        assert_eq!(self.machine.finding_count(), 0, "{}", self.machine.findings()[0]);
    }

    /// Runs everything, and gives how many races there were.
    fn races(&self) -> u64 {
        self.device.synchronize_device().unwrap();
        self.machine.finding_count()
    }
}

enum Effect {
    Writes,
    Reads,
}

/// Those who look at the process-wide count of lost frees, or add to it, go one after the other.
fn counting_lost() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An allocator that keeps what it was asked for, and can be told to fail. Its blocks are of the
/// generation of their request, whatever the pool counts.
#[derive(Clone)]
struct Recorder {
    pool: Pool,
    requests: Arc<Mutex<Vec<Request>>>,
    generations: Arc<Mutex<BTreeMap<Address, u64>>>,
    frees: Arc<Mutex<Vec<(Address, StreamHandle)>>>,
    failing_frees: Arc<AtomicU64>,
}

impl Recorder {
    fn new(pool: &Pool) -> Self {
        Self {
            pool: pool.clone(),
            requests: Arc::default(),
            generations: Arc::default(),
            frees: Arc::default(),
            failing_frees: Arc::default(),
        }
    }

    /// The next so many frees fail for once.
    fn fail_frees(&self, count: u64) {
        self.failing_frees.store(count, Ordering::Relaxed);
    }
}

// SAFETY: for tests, which touch no memory that is not theirs.
unsafe impl Allocate for Recorder {
    fn allocate_request(&self, request: Request) -> Result<Block> {
        let mut requests = self.requests.lock().unwrap();
        requests.push(request);
        let generation = requests.len() as u64;
        let block = Allocate::allocate_request(&self.pool, request)?;
        self.generations.lock().unwrap().insert(block.address(), generation);
        Ok(Block { generation, ..block })
    }

    fn free(&self, address: Address, stream: StreamHandle) -> Result<()> {
        let failing = &self.failing_frees;
        let fails =
            failing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if fails.is_ok() {
            let reason = "told to".into();
            return Err(forebay_hal::Error::Transient { call: Call::Free, reason }.into());
        }
        self.frees.lock().unwrap().push((address, stream));
        Allocate::free(&self.pool, address, stream)
    }

    fn block_at(&self, address: Address) -> Option<Block> {
        let generation = *self.generations.lock().unwrap().get(&address)?;
        let block = Allocate::block_at(&self.pool, address)?;
        Some(Block { generation, ..block })
    }

    fn device(&self) -> &Arc<dyn Device> {
        Allocate::device(&self.pool)
    }
}

/// Fails every driver call of a run in turn, in the ways that pass, with the drops of the run among
/// the calls; then sees that the pool is as empty as before.
fn sweep(run: impl Fn(&Bench)) {
    let calls = {
        let bench = Bench::new();
        let before = bench.machine.calls().total();
        run(&bench);
        (before + 1)..=bench.machine.calls().total()
    };
    assert!(calls.clone().count() > 3, "the run makes no driver calls");
    for kind in [FaultKind::Transient, FaultKind::OutOfMemory] {
        for number in calls.clone() {
            let bench = Bench::new();
            bench.machine.plan(Fault::new(When::Call(number), kind));
            run(&bench);
            bench.machine.clear_faults();
            assert_eq!(bench.live(), Bytes::ZERO, "{kind} at call {number}");
            bench.assert_no_race();
            let Bench { machine, pool, .. } = bench;
            drop(pool);
            let left = machine.census();
            let leaked = (left.pages, left.mappings, left.regions, left.events);
            assert_eq!(leaked, (0, 0, 0, 0), "{kind} at call {number}: {left}");
        }
    }
}
