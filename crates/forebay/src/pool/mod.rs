//! The pool: blocks of any size, in the order of streams, from pages that serve any request.
//!
//! ```text
//!   allocate ── this stream's holes, best fit
//!            ── the stream that has the best hole: one event there, one wait here, on the device
//!            ── all other streams likewise
//!            ── a plan: new pages, or pages that lie free elsewhere mapped here
//!            ── give back what is idle, and once more; then an error with all figures
//!   free     ── a hole in the order of the stream it was freed on, one with its neighbours
//! ```
//!
//! Small blocks live on a line of their own, so that a block of a few bytes does not keep a large
//! page from becoming free. One lock over all of it, today.

mod ground;
mod lanes;
mod state;
#[cfg(test)]
mod tests;

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use forebay_core::line::Growth;
use forebay_core::{Address, Bytes};
use forebay_hal::{Call, Device, StreamHandle};

use self::state::State;
use crate::{Error, Result};

/// A block of a pool: plain data. Dropping it frees nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub(crate) address: Address,
    pub(crate) size: Bytes,
}

impl Block {
    /// Where it begins; null for a block of no bytes.
    pub fn address(&self) -> Address {
        self.address
    }

    /// How large it is: what was asked for, rounded up.
    pub fn size(&self) -> Bytes {
        self.size
    }
}

/// How a pool is to be.
#[derive(Clone, Debug)]
#[must_use = "options do nothing until a pool is built"]
pub struct PoolOptions {
    pub(crate) max_bytes: Bytes,
    pub(crate) growth: Growth,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { max_bytes: Bytes::MAX, growth: Growth::default() }
    }
}

impl PoolOptions {
    /// No limit but the device's memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// The most the pool may take from the device.
    pub fn max_bytes(mut self, max_bytes: Bytes) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// How pages are chosen.
    pub fn growth(mut self, growth: Growth) -> Self {
        self.growth = growth;
        self
    }

    /// The pool, on `device`.
    pub fn build(self, device: &Arc<dyn Device>) -> Result<Pool> {
        Ok(Pool { shared: Arc::new(Mutex::new(State::new(device, self)?)) })
    }
}

/// How often the pool called the driver, and over what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverLog {
    counts: BTreeMap<(Call, Bytes), u64>,
    time: Duration,
}

impl DriverLog {
    /// Makes one call over one page or range of `size`, and notes it.
    pub(crate) fn make<T>(&mut self, call: Call, size: Bytes, make: impl FnOnce() -> T) -> T {
        *self.counts.entry((call, size)).or_default() += 1;
        let begun = Instant::now();
        let made = make();
        self.time = self.time.saturating_add(begun.elapsed());
        made
    }

    /// How long all of them took, by the clock.
    pub fn time(&self) -> Duration {
        self.time
    }

    /// Each kind of call, the size it was over, and how often it was made.
    pub fn entries(&self) -> impl Iterator<Item = (Call, Bytes, u64)> {
        self.counts.iter().map(|(&(call, size), &count)| (call, size, count))
    }

    /// How often a kind of call was made.
    pub fn of(&self, call: Call) -> u64 {
        self.entries().filter(|&(kind, ..)| kind == call).map(|(.., count)| count).sum()
    }
}

/// How a pool stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Bytes in blocks, rounding counted.
    pub live: Bytes,
    /// The most bytes ever in blocks at once.
    pub peak_live: Bytes,
    /// Bytes asked for by live blocks.
    pub requested: Bytes,
    /// Bytes taken from the device.
    pub held: Bytes,
    /// The most bytes ever taken from the device at once.
    pub peak_held: Bytes,
    /// Blocks given out.
    pub allocations: u64,
    /// Blocks taken back.
    pub frees: u64,
    /// Requests that no hole held.
    pub misses: u64,
    /// Times a stream was made to wait for another.
    pub waits: u64,
    /// Calls of the driver.
    pub driver: DriverLog,
}

/// A pool of device memory. Clones are the same pool.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Mutex<State>>,
}

impl Pool {
    /// A pool on `device` with the default options.
    pub fn new(device: &Arc<dyn Device>) -> Result<Self> {
        PoolOptions::default().build(device)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of the state is made in steps that each leave it whole.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of at least `size` bytes, to be used in the order of `stream`. What it holds is not
    /// defined. No bytes: the null address, and no memory.
    pub fn allocate(&self, size: Bytes, stream: StreamHandle) -> Result<Block> {
        self.state().allocate(size, stream)
    }

    /// Gives back the block at `address`, in the order of `stream`: its memory may be used again by
    /// what is enqueued on `stream` from now on. The null address is ignored.
    pub fn free(&self, address: Address, stream: StreamHandle) -> Result<()> {
        self.state().free(address, stream)
    }

    /// Says that a stream will be destroyed: to be called before that. What was freed on it becomes
    /// everybody's once its work so far is done.
    pub fn forget_stream(&self, stream: StreamHandle) -> Result<()> {
        self.state().forget_stream(stream)
    }

    /// Gives back to the device what is free and idle, down to `keep` bytes held; gives how much.
    /// Waits for the device.
    pub fn trim(&self, keep: Bytes) -> Result<Bytes> {
        self.state().trim(keep)
    }

    /// How much is taken from the device now.
    pub fn held(&self) -> Bytes {
        self.state().held()
    }

    /// How the pool stands.
    pub fn statistics(&self) -> Statistics {
        self.state().statistics()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state().statistics();
        write!(f, "Pool({} live, {} held)", state.live, state.held)
    }
}

/// The error for a device that cannot map pages.
pub(crate) fn no_virtual_memory(device: &Arc<dyn Device>) -> Error {
    Error::NoVirtualMemory { device: device.descriptor().to_string() }
}
