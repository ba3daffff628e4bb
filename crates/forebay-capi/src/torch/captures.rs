//! PrivatePool pools: where the memory of CUDA graphs comes from.
//!
//! PyTorch says when it begins to allocate for a graph, with a number for the pool and a filter that
//! tells which streams are being captured; when that ends; and when a graph is gone.
//!
//! ```text
//!   begin (1, 7) ── a route: streams of the filter ──> pool (1, 7)     the pool of the GPU records no event
//!   end   (1, 7) ── no route                           pool (1, 7)     keeps its memory for the graph
//!   release      ── as often as it began               gone, once no block of it is live
//! ```
//!
//! A private pool serves nothing but its graphs, keeps what is behind its addresses
//! ([`MemoryClass::STABLE`]), and is captured from as long as any graph of it lives: it records no event, waits
//! for nothing, and gives nothing back.

use core::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

use forebay::guard::Capture;
use forebay::{Address, MemoryClass, Pool, StreamHandle};
use forebay_sync::lock;

use super::exceptions::{ExceptionKind, throw_last_error};
use super::filter::{Filter, Function};
use super::guarded;
use super::relaxed::RelaxedCapture;
use super::slow_path::{CAPTURING, FLAGS};
use crate::device_pools;
use crate::error::set_last_error;

/// The number of a private pool: `c10::cuda::MempoolId_t`, a pair of 64-bit numbers. It is a trivial
/// type to copy, so it travels in registers.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolNumber {
    /// Counted by graphs that were not told which pool to use.
    pub first: u64,
    /// Counted by pools that the program made.
    pub second: u64,
}

/// Streams whose requests go to a private pool.
struct Route {
    device: c_int,
    number: PoolNumber,
    filter: Filter,
    /// The private pool, or why there is none: then every request fails with that.
    pool: Result<Pool, String>,
    /// Keeps the GPU's own pool from recording events meanwhile.
    _capture: Option<Capture>,
}

/// A private pool.
struct PrivatePool {
    device: c_int,
    number: PoolNumber,
    pool: Pool,
    /// How many graphs use it, captures under way included.
    graphs: u64,
    /// `Some` while there are graphs.
    capture: Option<Capture>,
}

#[derive(Default)]
struct State {
    routes: Vec<Route>,
    private: Vec<PrivatePool>,
}

static STATE: Mutex<State> = Mutex::new(State { routes: Vec::new(), private: Vec::new() });

fn state() -> MutexGuard<'static, State> {
    lock(&STATE)
}

impl State {
    /// The pool of that number. A pool without graphs, which lives on for its last blocks, does not count.
    fn find(&mut self, device: c_int, number: PoolNumber) -> Option<&mut PrivatePool> {
        let mut pools = self.private.iter_mut().filter(|private| private.graphs > 0);
        pools.find(|private| (private.device, private.number) == (device, number))
    }

    /// Adds a graph to a pool, which the first graph creates.
    fn join_or_create(
        &mut self,
        device: c_int,
        number: PoolNumber,
        of: &Pool,
    ) -> Result<Pool, String> {
        if let Some(private) = self.find(device, number) {
            private.graphs += 1;
            return Ok(private.pool.clone());
        }
        let options = device_pools::pool_options()?.class(MemoryClass::STABLE);
        let pool = options.build(of.device()).map_err(|error| error.to_string())?;
        let capture = Some(pool.capture().map_err(|error| error.to_string())?);
        self.private.push(PrivatePool { device, number, pool: pool.clone(), graphs: 1, capture });
        Ok(pool)
    }

    /// Removes the unused pools. Dropping one calls the driver and waits for the device: the caller drops them
    /// without a lock. While any GPU captures, this returns none.
    fn take_unused(&mut self) -> Vec<PrivatePool> {
        let State { routes, private } = self;
        private
            .extract_if(.., |private| {
                private.graphs == 0 && routes.is_empty() && private.pool.statistics().blocks == 0
            })
            .collect()
    }
}

/// The private pool for requests of a captured stream; `None` for the GPU's own pool. An exception of the filter
/// passes through.
pub(super) fn route(device: c_int, stream: *mut c_void) -> Option<Result<Pool, String>> {
    let state = state();
    let mut routes = state.routes.iter().filter(|route| route.device == device);
    routes.find(|route| route.filter.admits(stream)).map(|route| route.pool.clone())
}

/// The private pool that has a block at `address`.
pub(super) fn owner_of(address: Address) -> Option<Pool> {
    let state = state();
    let mut pools = state.private.iter();
    let found = pools.find(|private| private.pool.block_at(address).is_some());
    found.map(|private| private.pool.clone())
}

/// Frees a block of a private pool; `None` where no private pool has it.
pub(super) fn free(address: Address, stream: StreamHandle) -> Option<Result<(), forebay::Error>> {
    let freed = owner_of(address)?.free(address, stream);
    drop_unused();
    Some(freed)
}

/// Drops the unused pools.
pub(super) fn drop_unused() {
    let gone = state().take_unused();
    drop(gone);
}

/// The private pools of a GPU, with their numbers.
pub(super) fn pools_of(device: c_int) -> Vec<(PoolNumber, Pool)> {
    let state = state();
    let of_device = state.private.iter().filter(|private| private.device == device);
    of_device.map(|private| (private.number, private.pool.clone())).collect()
}

/// From now on requests for GPU `device` on streams for which `filter` is true are served by the private
/// pool `number`, which is made where it is not there. What cannot be is thrown as `RuntimeError`, and
/// such requests are refused until [`forebay_torch_end_allocate_to_pool`].
///
/// # Safety
///
/// * `filter` is a live `std::function<bool(cudaStream_t)>` of libstdc++ that nobody else uses meanwhile.
///   It is moved out of.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn forebay_torch_begin_allocate_to_pool(
    device: c_int,
    number: PoolNumber,
    filter: *mut Function,
) {
    let begun = guarded(false, || {
        // SAFETY: as the caller promised.
        let Some(filter) = (unsafe { Filter::take(filter) }) else {
            set_last_error(
                &"a capture needs a filter that says which streams are of it, and got an empty one",
            );
            return false;
        };
        // Another thread may be capturing, and creating a pool calls the driver.
        let _relaxed = RelaxedCapture::begin();
        let mut state = state();
        let made = device_pools::pool(device).and_then(|main| {
            let capture = main.capture().map_err(|error| error.to_string())?;
            Ok((state.join_or_create(device, number, main)?, capture))
        });
        let (pool, capture) = match made {
            Ok((pool, capture)) => (Ok(pool), Some(capture)),
            Err(reason) => (Err(reason), None),
        };
        let refused = pool.as_ref().err().cloned();
        state.routes.push(Route { device, number, filter, pool, _capture: capture });
        FLAGS.fetch_or(CAPTURING, Ordering::SeqCst);
        drop(state);
        match refused {
            Some(reason) => {
                set_last_error(&reason);
                false
            }
            None => true,
        }
    });
    if !begun {
        throw_last_error(ExceptionKind::Error);
    }
}

/// Ends what [`forebay_torch_begin_allocate_to_pool`] began; what was allocated stays the graph's.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn forebay_torch_end_allocate_to_pool(device: c_int, number: PoolNumber) {
    let ended = guarded(false, || {
        let mut state = state();
        let mut routes = state.routes.iter();
        let found = routes.rposition(|route| (route.device, route.number) == (device, number));
        let route = found.map(|found| state.routes.remove(found));
        if state.routes.is_empty() {
            FLAGS.fetch_and(!CAPTURING, Ordering::SeqCst);
        }
        drop(state);
        let Some(route) = route else {
            set_last_error(&format_args!(
                "nothing is allocated to pool ({}, {}) of GPU {device}",
                number.first, number.second
            ));
            return false;
        };
        // C++ destroys the filter, so no lock of ours is held.
        drop(route);
        drop_unused();
        // Work that the capture deferred.
        if let Ok(main) = device_pools::pool(device)
            && let Err(error) = main.process_deferred()
        {
            set_last_error(&error);
        }
        true
    });
    if !ended {
        throw_last_error(ExceptionKind::Error);
    }
}

/// A graph that used the private pool is gone. The pool goes with the last of them, or with its last
/// block after that.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn forebay_torch_release_pool(device: c_int, number: PoolNumber) {
    guarded((), || {
        let mut state = state();
        if let Some(private) = state.find(device, number) {
            private.graphs -= 1;
            if private.graphs == 0 {
                private.capture = None;
            }
        } else {
            set_last_error(&format_args!(
                "there is no pool ({}, {}) of GPU {device} to release",
                number.first, number.second
            ));
        }
        drop(state);
        drop_unused();
    });
}
