//! No, on demand.

use std::sync::{Mutex, MutexGuard};

use forebay_core::{Address, Bytes, Random};
use forebay_hal::{Call, StreamHandle};

use crate::block::leave_to;
use crate::report::Shortage;
use crate::sync::lock;
use crate::{Allocate, Block, Error, Request, Result};

/// Which requests fail. Those of no bytes never do, and do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailWhen {
    /// None.
    Never,
    /// The one with this number, counted from 1.
    Number(u64),
    /// Every one whose number is a multiple of this; none for 0.
    Every(u64),
    /// So many in a million, as the seed decides: the same ones again for the same seed.
    PerMillion {
        /// How many; all from a million on.
        times: u32,
        /// What decides which.
        seed: u64,
    },
    /// Those for more than this.
    Above(Bytes),
}

/// What a request that is to fail is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailAs {
    /// That there is no memory: [`Error::OutOfMemory`], with the device's figures.
    #[default]
    OutOfMemory,
    /// That it failed this time: a transient error of the device.
    Transient,
}

/// What decides about the next request.
#[derive(Debug)]
struct Plan {
    when: FailWhen,
    random: Random,
    requests: u64,
    failures: u64,
}

impl Plan {
    fn new(when: FailWhen) -> Self {
        let seed = if let FailWhen::PerMillion { seed, .. } = when { seed } else { 0 };
        Self { when, random: Random::new(seed), requests: 0, failures: 0 }
    }

    /// Counts a request; gives its number where it is to fail.
    fn strikes(&mut self, size: Bytes) -> Option<u64> {
        self.requests += 1;
        let number = self.requests;
        let strikes = match self.when {
            FailWhen::Never => false,
            FailWhen::Number(at) => number == at,
            FailWhen::Every(step) => number.checked_rem(step) == Some(0),
            FailWhen::PerMillion { times, .. } => self.random.chance(u64::from(times), 1_000_000),
            FailWhen::Above(most) => size > most,
        };
        self.failures += u64::from(strikes);
        strikes.then_some(number)
    }
}

/// An allocator that says no when it is told to, to see what a program does then. The allocator
/// beneath is not asked; frees always pass.
///
/// ```
/// # use forebay::StreamHandle;
/// use forebay::adaptor::{FailWhen, Failing};
/// use forebay::{Allocate, Bytes, Error, Pool, Request};
/// # let device = forebay::HostDevice::open()?;
///
/// let failing = Failing::new(Pool::new(&device)?, FailWhen::Number(2));
/// let request = Request::new(Bytes::mib(1), StreamHandle::DEFAULT);
/// assert!(failing.allocate_request(request).is_ok());
/// assert!(matches!(failing.allocate_request(request), Err(Error::OutOfMemory { .. })));
/// assert!(failing.allocate_request(request).is_ok());
/// assert_eq!((failing.requests(), failing.failures()), (3, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Failing<A> {
    inner: A,
    fail_as: FailAs,
    plan: Mutex<Plan>,
}

impl<A: Allocate> Failing<A> {
    /// Fails requests for `inner` as `when` says.
    pub fn new(inner: A, when: FailWhen) -> Self {
        Self { inner, fail_as: FailAs::default(), plan: Mutex::new(Plan::new(when)) }
    }

    /// The same with another error.
    #[must_use]
    pub fn fail_as(mut self, fail_as: FailAs) -> Self {
        self.fail_as = fail_as;
        self
    }

    /// Changes which requests fail, and counts them from nothing. Does nothing in a forked child, to its
    /// parent's.
    pub fn plan(&self, when: FailWhen) {
        if let Some(mut plan) = self.lock() {
            *plan = Plan::new(when);
        }
    }

    /// How many requests there were, failed ones counted. 0 in a forked child, of its parent's.
    pub fn requests(&self) -> u64 {
        self.lock().map_or(0, |plan| plan.requests)
    }

    /// How many of them were made to fail. 0 in a forked child, of its parent's.
    pub fn failures(&self) -> u64 {
        self.lock().map_or(0, |plan| plan.failures)
    }

    /// The allocator beneath.
    pub fn inner(&self) -> &A {
        &self.inner
    }

    /// `None` in a forked child, of its parent's: it may be locked for ever.
    fn lock(&self) -> Option<MutexGuard<'_, Plan>> {
        let inherited = self.inner.device().descriptor().is_inherited();
        // Plain numbers: whole at any time.
        (!inherited).then(|| lock(&self.plan))
    }

    fn failure(&self, requested: Bytes, number: u64) -> Error {
        match self.fail_as {
            FailAs::OutOfMemory => {
                let info = self.inner.device().memory_info().unwrap_or_default();
                Error::from(Shortage {
                    requested,
                    needed: requested,
                    limit: info.total,
                    held: info.held,
                    live: info.held,
                    device_free: info.free,
                    ..Shortage::default()
                })
            }
            FailAs::Transient => Error::Device(forebay_hal::Error::Transient {
                call: Call::Allocate,
                reason: format!("request {number}, for {requested}, was made to fail").into(),
            }),
        }
    }
}

// SAFETY: blocks are those of the allocator within, which keeps the promises.
unsafe impl<A: Allocate> Allocate for Failing<A> {
    fn allocate_request(&self, request: Request) -> Result<Block> {
        let size = request.size();
        if !size.is_zero() {
            let struck = self.lock().and_then(|mut plan| plan.strikes(size));
            if let Some(number) = struck {
                return Err(self.failure(size, number));
            }
        }
        self.inner.allocate_request(request)
    }

    fn free(&self, address: Address, stream: StreamHandle) -> Result<()> {
        self.inner.free(address, stream)
    }

    fn free_block(&self, block: Block, stream: StreamHandle) -> Result<()> {
        self.inner.free_block(block, stream)
    }

    leave_to!(self => self.inner);
}
