//! Private pools: where the memory of CUDA graphs and of `torch.cuda.MemPool` comes from.
//!
//! ```text
//!   retain  (1, 7)   one more user: a graph, a MemPool
//!   begin   (1, 7)   one more user; requests of some streams go there until `end`
//!   release (1, 7)   one user less
//! ```
//!
//! A pool without users keeps its memory until memory is short or the program empties the cache: a graph of another pool
//! may have been captured with a block of it, as programs do that capture again what they keep. Then it is dropped; if
//! blocks of it live, such as the results of a graph that was destroyed, only its free pages go.
//!
//! Which streams is the adapter's affair, which has PyTorch's filters. A private pool serves nothing but its users,
//! and its memory counts against the limit of its GPU. Once a graph was captured from it, it keeps what is behind its
//! addresses ([`MemoryClass::STABLE`]), records no event, waits for nothing and gives nothing back as long as it has users.

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

use forebay::bindings::Growth;
use forebay::guard::Capture;
use forebay::{Address, Bytes, MemoryClass, Pool, PoolOptions};
use forebay_sync::lock;

use super::counters;
use super::relaxed::RelaxedCapture;
use crate::device_pools;
use crate::slow_path::{CAPTURING, FLAGS};
use crate::status::Failure;

/// The number of a private pool: `c10::MempoolId_t`, a pair of 64-bit numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolNumber {
    /// Counted by graphs that were not told which pool to use.
    pub first: u64,
    /// Counted by pools that the program made.
    pub second: u64,
}

/// The first number of the pools of blocks that other processes map, and the pages of these.
const SHAREABLE: u64 = u64::MAX;
const SMALL_PAGE: Bytes = Bytes::mib(2);
const LARGE_PAGE: Bytes = Bytes::mib(64);

/// Up to this size a block that other processes map has small pages.
const SMALL_PAGES_UP_TO: u64 = 128 << 20;

/// A private pool.
struct PrivatePool {
    key: u32,
    device: c_int,
    number: PoolNumber,
    pool: Pool,
    /// Graphs, `MemPool` objects, and routes that are open.
    users: u64,
    /// Requests under way. Until one has its block, nothing else keeps the pool.
    requests: u64,
    /// `Some` once a graph was captured from it.
    capture: Option<Capture>,
}

/// A private pool that a request is made to. It is not dropped meanwhile.
pub(super) struct Held {
    pub(super) key: u32,
    pub(super) pool: Pool,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(private) = state().pools.get_mut(&self.key) {
            private.requests -= 1;
        }
    }
}

impl PrivatePool {
    fn hold(&mut self) -> Held {
        self.requests += 1;
        Held { key: self.key, pool: self.pool.clone() }
    }
}

/// Requests of some streams go to a private pool.
struct Route {
    device: c_int,
    number: PoolNumber,
    /// Keeps the GPU's own pool from recording events: a graph may be captured meanwhile. Dropped at the first
    /// request that shows that none is.
    capture: Option<Capture>,
}

struct State {
    /// By key.
    pools: BTreeMap<u32, PrivatePool>,
    /// The keys of the pools, by GPU and number.
    keys: BTreeMap<(c_int, PoolNumber), u32>,
    routes: Vec<Route>,
    last_key: u32,
}

static STATE: Mutex<State> = Mutex::new(State {
    pools: BTreeMap::new(),
    keys: BTreeMap::new(),
    routes: Vec::new(),
    last_key: 0,
});

fn state() -> MutexGuard<'static, State> {
    lock(&STATE)
}

fn missing(device: c_int, number: PoolNumber) -> Failure {
    format!("there is no pool ({}, {}) of GPU {device}", number.first, number.second).into()
}

impl State {
    fn find(&mut self, device: c_int, number: PoolNumber) -> Option<&mut PrivatePool> {
        self.pools.get_mut(self.keys.get(&(device, number))?)
    }

    /// Adds a user to a pool, which the first creates.
    fn join_or_create(&mut self, device: c_int, number: PoolNumber) -> Result<(), Failure> {
        if self.find(device, number).is_none() {
            self.create(device, number, |options| options)?;
        }
        if let Some(private) = self.find(device, number) {
            private.users += 1;
        }
        Ok(())
    }

    /// Creates a pool without users.
    fn create(
        &mut self,
        device: c_int,
        number: PoolNumber,
        change: impl FnOnce(PoolOptions) -> PoolOptions,
    ) -> Result<(), Failure> {
        let main = device_pools::pool(device)?;
        let options = change(PoolOptions::with(main.settings())).class(MemoryClass::STABLE);
        // Without thread caches: what they hold would count in the peaks of the GPU, beside what other pools hold.
        let options = options.set(|settings| settings.magazines(false));
        let options = options.sharing_limit_with(main).exportable();
        let pool = options.build(main.device())?;
        for peer in main.peers() {
            pool.grant_access(peer)?;
        }
        self.last_key += 1;
        let key = self.last_key;
        let private =
            PrivatePool { key, device, number, pool, users: 0, requests: 0, capture: None };
        self.pools.insert(key, private);
        self.keys.insert((device, number), key);
        Ok(())
    }

    /// Removes the unused pools, and returns them with those that have blocks but no users. Dropping or trimming one
    /// calls the driver and waits for the device: the caller does it without a lock. While a graph may be captured,
    /// this returns none.
    fn take_unused(&mut self) -> (Vec<PrivatePool>, Vec<Pool>) {
        if self.routes.iter().any(|route| route.capture.is_some()) {
            return (Vec::new(), Vec::new());
        }
        let is_unused = |_: &u32, private: &mut PrivatePool| {
            private.users + private.requests == 0 && private.pool.statistics().blocks == 0
        };
        let gone = self.pools.extract_if(.., is_unused).map(|(_, private)| private);
        let gone: Vec<PrivatePool> = gone.collect();
        for private in &gone {
            self.keys.remove(&(private.device, private.number));
        }
        // Other processes may map the pages of blocks that they were sent, also of freed ones.
        let left = self.pools.values().filter(|private| private.number.first != SHAREABLE);
        let left = left.filter(|private| private.users + private.requests == 0);
        (gone, left.map(|private| private.pool.clone()).collect())
    }
}

/// Drops the unused pools, and releases the free memory of those that have blocks but no users. Returns whether that gave
/// back anything.
pub(super) fn release_unused() -> Result<bool, Failure> {
    let _relaxed = RelaxedCapture::begin();
    let (gone, left) = state().take_unused();
    for private in &gone {
        counters::keep_totals(private.device, &private.pool);
        // Graphs may have been launched on streams that the device does not know. Where it cannot wait for them, it is lost.
        let _ = private.pool.device().synchronize_process();
    }
    let mut released = Ok(!gone.is_empty());
    drop(gone);
    for pool in left {
        match pool.trim_stable() {
            Ok(bytes) => released = released.map(|any| any || !bytes.is_zero()),
            Err(error) => released = Err(error.into()),
        }
    }
    released
}

/// The private pool for blocks that other processes map, and the size for a request there. It has pages of one size, as
/// PyTorch requires: small ones for small blocks, and large ones so that a large block is not a thousand descriptors.
pub(super) fn shareable(device: c_int, size: u64) -> Result<(Held, u64), Failure> {
    let page = if size <= SMALL_PAGES_UP_TO { SMALL_PAGE } else { LARGE_PAGE };
    let number = PoolNumber { first: SHAREABLE, second: page.get() };
    let _relaxed = RelaxedCapture::begin();
    let mut state = state();
    if state.find(device, number).is_none() {
        let mut growth = Growth::default();
        growth.largest_page = page;
        // Nothing makes a page smaller.
        (growth.part, growth.reach_part, growth.early_part) = (1, 1, 1);
        state.create(device, number, |options| options.growth(growth))?;
    }
    let size = if page == LARGE_PAGE { size.next_multiple_of(page.get()) } else { size };
    let private = state.find(device, number).ok_or_else(|| missing(device, number))?;
    Ok((private.hold(), size))
}

/// Adds a user to a private pool, which is created where it is not there.
pub(super) fn retain(device: c_int, number: PoolNumber) -> Result<(), Failure> {
    // Another thread may be capturing, and creating a pool calls the driver.
    let _relaxed = RelaxedCapture::begin();
    state().join_or_create(device, number)
}

/// Removes a user.
pub(super) fn release(device: c_int, number: PoolNumber) -> Result<(), Failure> {
    let mut state = state();
    let private = state.find(device, number).filter(|private| private.users > 0);
    let private = private.ok_or_else(|| missing(device, number))?;
    private.users -= 1;
    if private.users == 0 {
        private.capture = None;
    }
    Ok(())
}

/// How many users a private pool has.
pub(super) fn users(device: c_int, number: PoolNumber) -> u64 {
    state().find(device, number).map_or(0, |private| private.users)
}

/// Adds a user, whose requests go to the private pool from now on: perhaps those of a graph.
pub(super) fn begin(device: c_int, number: PoolNumber) -> Result<(), Failure> {
    let _relaxed = RelaxedCapture::begin();
    let main = device_pools::pool(device)?;
    let mut state = state();
    let capture = main.capture()?;
    state.join_or_create(device, number)?;
    state.routes.push(Route { device, number, capture: Some(capture) });
    FLAGS.fetch_or(CAPTURING, Ordering::SeqCst);
    Ok(())
}

/// Ends what [`begin`] began; the user stays until [`release`].
pub(super) fn end(device: c_int, number: PoolNumber) -> Result<(), Failure> {
    let mut state = state();
    let mut routes = state.routes.iter();
    let found = routes.rposition(|route| (route.device, route.number) == (device, number));
    let found = found.ok_or_else(|| missing(device, number))?;
    drop(state.routes.remove(found));
    if state.routes.is_empty() {
        FLAGS.fetch_and(!CAPTURING, Ordering::SeqCst);
    }
    drop(state);
    // Work that the capture deferred.
    Ok(device_pools::pool(device)?.process_deferred()?)
}

/// The private pool for a request. `capturing`: whether the stream of the request is being captured. `routed`: whether it
/// goes there by a route.
pub(super) fn pool_for(
    device: c_int,
    number: PoolNumber,
    capturing: bool,
    routed: bool,
) -> Result<Held, Failure> {
    let mut state = state();
    let private = state.find(device, number).ok_or_else(|| missing(device, number))?;
    if capturing && private.capture.is_none() {
        private.capture = Some(private.pool.capture()?);
    }
    let found = private.hold();
    let mut routes = state.routes.iter_mut();
    let route = routes.find(|route| (route.device, route.number) == (device, number));
    if let Some(route) = route.filter(|_| routed && !capturing) {
        route.capture = None;
    }
    Ok(found)
}

/// The private pool of a key.
pub(super) fn of_key(key: u32) -> Option<(PoolNumber, Pool)> {
    let state = state();
    let found = state.pools.get(&key)?;
    Some((found.number, found.pool.clone()))
}

/// The private pool that has a block at `address`.
pub(super) fn owner_of(address: Address) -> Option<Pool> {
    let state = state();
    let mut pools = state.pools.values();
    let found = pools.find(|private| private.pool.block_at(address).is_some());
    found.map(|private| private.pool.clone())
}

/// The private pools of a GPU, with their keys and numbers.
pub(super) fn pools_of(device: c_int) -> Vec<(u32, PoolNumber, Pool)> {
    let state = state();
    let of_device = state.pools.values().filter(|private| private.device == device);
    of_device.map(|private| (private.key, private.number, private.pool.clone())).collect()
}
