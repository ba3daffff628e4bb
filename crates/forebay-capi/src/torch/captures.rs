//! Private pools: where the memory of CUDA graphs comes from.
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
//! ([`Class::STABLE`]), and is captured from as long as any graph of it lives: it records no event, waits
//! for nothing, and gives nothing back.

use core::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay::{Address, Capture, Class, Pool, StreamHandle};

use super::filter::{Filter, Function};
use super::guarded;
use super::relaxed::Relaxed;
use super::thrown::{Kind, throw_noted};
use super::watch::{ROUTES, WATCHED};
use crate::error::note;
use crate::pools;

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
    /// Where they go; or why there is no pool, which every request is told then.
    pool: Result<Pool, String>,
    /// The GPU's own pool leaves events alone meanwhile.
    _capture: Option<Capture>,
}

/// A private pool.
struct Private {
    device: c_int,
    number: PoolNumber,
    pool: Pool,
    /// How many graphs have it, or are about to.
    graphs: u64,
    /// As long as there are graphs.
    capture: Option<Capture>,
}

#[derive(Default)]
struct State {
    routes: Vec<Route>,
    private: Vec<Private>,
}

static STATE: Mutex<State> = Mutex::new(State { routes: Vec::new(), private: Vec::new() });

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// The pool of that number; one that no graph has any more, and is only there for its last blocks,
    /// does not count.
    fn find(&mut self, device: c_int, number: PoolNumber) -> Option<&mut Private> {
        let mut pools = self.private.iter_mut().filter(|private| private.graphs > 0);
        pools.find(|private| (private.device, private.number) == (device, number))
    }

    /// Counts one more graph of a pool, and makes it where it is not there.
    fn join(&mut self, device: c_int, number: PoolNumber, of: &Pool) -> Result<Pool, String> {
        if let Some(private) = self.find(device, number) {
            private.graphs += 1;
            return Ok(private.pool.clone());
        }
        let options = pools::options()?.class(Class::STABLE);
        let pool = options.build(of.device()).map_err(|error| error.to_string())?;
        let capture = Some(pool.capture().map_err(|error| error.to_string())?);
        self.private.push(Private { device, number, pool: pool.clone(), graphs: 1, capture });
        Ok(pool)
    }

    /// Takes out the pools that nobody needs any more. Dropping one calls the driver and waits for the
    /// device: for when no lock is held, and never while something is captured, on whichever GPU.
    fn take_unneeded(&mut self) -> Vec<Private> {
        let State { routes, private } = self;
        private
            .extract_if(.., |private| {
                private.graphs == 0 && routes.is_empty() && private.pool.statistics().blocks == 0
            })
            .collect()
    }
}

/// Where the requests of a stream go that is being captured: `None` for the GPU's own pool. What the
/// filter throws goes through.
pub(super) fn route(device: c_int, stream: *mut c_void) -> Option<Result<Pool, String>> {
    let state = state();
    let mut routes = state.routes.iter().filter(|route| route.device == device);
    routes.find(|route| route.filter.admits(stream)).map(|route| route.pool.clone())
}

/// The private pool that has a block at `address`.
pub(super) fn owner(address: Address) -> Option<Pool> {
    let state = state();
    let mut pools = state.private.iter();
    let found = pools.find(|private| private.pool.block_at(address).is_some());
    found.map(|private| private.pool.clone())
}

/// Frees a block of a private pool; `None` where it is of none.
pub(super) fn free(address: Address, stream: StreamHandle) -> Option<Result<(), forebay::Error>> {
    let freed = owner(address)?.free(address, stream);
    sweep();
    Some(freed)
}

/// Lets go the pools that nobody needs any more.
pub(super) fn sweep() {
    let gone = state().take_unneeded();
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
            note(
                &"a capture needs a filter that says which streams are of it, and got an empty one",
            );
            return false;
        };
        // Another thread may be capturing, and making a pool calls the driver.
        let _relaxed = Relaxed::begin();
        let mut state = state();
        let made = pools::of(device).and_then(|main| {
            let capture = main.capture().map_err(|error| error.to_string())?;
            Ok((state.join(device, number, main)?, capture))
        });
        let (pool, capture) = match made {
            Ok((pool, capture)) => (Ok(pool), Some(capture)),
            Err(reason) => (Err(reason), None),
        };
        let refused = pool.as_ref().err().cloned();
        state.routes.push(Route { device, number, filter, pool, _capture: capture });
        WATCHED.fetch_or(ROUTES, Ordering::SeqCst);
        drop(state);
        match refused {
            Some(reason) => {
                note(&reason);
                false
            }
            None => true,
        }
    });
    if !begun {
        throw_noted(Kind::Error);
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
            WATCHED.fetch_and(!ROUTES, Ordering::SeqCst);
        }
        drop(state);
        let Some(route) = route else {
            note(&format_args!(
                "nothing is allocated to pool ({}, {}) of GPU {device}",
                number.first, number.second
            ));
            return false;
        };
        // C++ destroys the filter, with no lock of ours held.
        drop(route);
        sweep();
        // What was put off for the capture's sake.
        if let Ok(main) = pools::of(device)
            && let Err(error) = main.process_deferred()
        {
            note(&error);
        }
        true
    });
    if !ended {
        throw_noted(Kind::Error);
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
            note(&format_args!(
                "there is no pool ({}, {}) of GPU {device} to let go",
                number.first, number.second
            ));
        }
        drop(state);
        sweep();
    });
}
