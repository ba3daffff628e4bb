//! Requests that fail on demand.

use std::sync::{Mutex, MutexGuard};

use forebay_core::{Bytes, Random};
use forebay_hal::Call;

use super::Adapt;
use crate::report::{RefusalCause, Shortage};
use crate::sync::lock;
use crate::{Allocate, Block, Error, Request, Result};

/// Which requests fail. Requests for no bytes never fail and do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailWhen {
    /// No request fails.
    Never,
    /// The request with this number fails, counted from 1.
    Number(u64),
    /// Every request whose number is a multiple of this fails; none for 0.
    Every(u64),
    /// Pseudo-random requests fail, the same ones for the same seed.
    PerMillion {
        /// How many in a million fail.
        times: u32,
        /// The seed.
        seed: u64,
    },
    /// Requests for more than this fail.
    Above(Bytes),
}

/// The error of a request that is made to fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailAs {
    /// [`Error::OutOfMemory`], with the device's figures.
    #[default]
    OutOfMemory,
    /// A transient error of the device.
    Transient,
}

/// Decides whether the next request fails.
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

    /// Counts a request; returns its number if it is to fail.
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

/// An allocator that fails requests on demand, to test how a program reacts. A request that fails does not reach the
/// inner allocator; frees always do.
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
    /// Fails the requests to `inner` that `when` selects.
    pub fn new(inner: A, when: FailWhen) -> Self {
        Self { inner, fail_as: FailAs::default(), plan: Mutex::new(Plan::new(when)) }
    }

    /// Sets the error of requests that fail.
    #[must_use]
    pub fn fail_as(mut self, fail_as: FailAs) -> Self {
        self.fail_as = fail_as;
        self
    }

    /// Changes which requests fail, and counts requests from zero again. Does nothing in a forked child, for the
    /// parent's adaptor.
    pub fn plan(&self, when: FailWhen) {
        if let Some(mut plan) = self.lock() {
            *plan = Plan::new(when);
        }
    }

    /// The number of requests, with those that failed. In a forked child, 0 for the parent's adaptor.
    pub fn requests(&self) -> u64 {
        self.lock().map_or(0, |plan| plan.requests)
    }

    /// The number of requests that were made to fail. In a forked child, 0 for the parent's adaptor.
    pub fn failures(&self) -> u64 {
        self.lock().map_or(0, |plan| plan.failures)
    }

    /// `None` in a forked child: the parent may have held the lock at the fork, so it might never be released.
    fn lock(&self) -> Option<MutexGuard<'_, Plan>> {
        let inherited = self.inner.device().descriptor().is_from_parent();
        // Plain numbers: consistent at any time.
        (!inherited).then(|| lock(&self.plan))
    }

    fn failure(&self, requested: Bytes, number: u64) -> Error {
        match self.fail_as {
            FailAs::OutOfMemory => {
                let info = self.inner.device().memory_info().unwrap_or_default();
                Error::from(Shortage {
                    requested,
                    needed: requested,
                    cause: RefusalCause::Injected,
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

impl<A: Allocate> Adapt for Failing<A> {
    fn allocate(&self, request: Request) -> Result<Block> {
        let size = request.size();
        if !size.is_zero() {
            let struck = self.lock().and_then(|mut plan| plan.strikes(size));
            if let Some(number) = struck {
                return Err(self.failure(size, number));
            }
        }
        self.inner.allocate_request(request)
    }
}

adaptor!(Failing<A>);
