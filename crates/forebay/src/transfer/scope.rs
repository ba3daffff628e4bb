//! Transfers that borrow their memory.

use core::marker::PhantomData;
use core::panic::AssertUnwindSafe;
use std::collections::BTreeSet;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Mutex;

use bytemuck::Pod;
use forebay_hal::StreamHandle;

use super::builder::{Endpoints, Transfer};
use super::engine::TransferEngine;
use super::host_end::{address_of, pointer};
use super::job::{Direction, Job, JobId};
use super::owned::start;
use super::statistics::Progress;
use super::worker;
use crate::sync::lock;
use crate::{Allocate, DeviceArray, Result};

/// A scope in which transfers borrow memory, made by [`TransferEngine::scope`].
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    pub(super) open: OpenTransfers,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// The engine of a scope, and the transfers not yet waited for.
#[derive(Debug)]
pub(super) struct OpenTransfers {
    pub(super) engine: TransferEngine,
    ids: Mutex<BTreeSet<JobId>>,
}

impl OpenTransfers {
    /// Adds a transfer that has started.
    pub(super) fn enter(&self, id: JobId) -> ScopedTicket<'_> {
        lock(&self.ids).insert(id);
        ScopedTicket { open: self, id }
    }
}

/// A transfer that borrows its memory until the end of its [`Scope`].
#[derive(Debug)]
#[must_use = "the result of a transfer is that of `wait`, or of the scope"]
pub struct ScopedTicket<'scope> {
    open: &'scope OpenTransfers,
    id: JobId,
}

/// A transfer between a borrowed array and borrowed memory.
#[derive(Debug)]
pub struct Scoped<'scope, T: Pod, A: Allocate> {
    pub(super) open: &'scope OpenTransfers,
    pub(super) direction: Direction,
    pub(super) array: &'scope DeviceArray<T, A>,
    /// The address of the elements in host memory, and their number.
    pub(super) host: (u64, usize),
}

impl TransferEngine {
    /// Calls `body` with a scope in which transfers borrow memory, and returns when all of them are done. Returns the
    /// error of the first one that failed without being [waited for](ScopedTicket::wait).
    ///
    /// ```
    /// # use forebay::transfer::TransferEngine;
    /// # use forebay::{HostDevice, Pool};
    /// # let device = HostDevice::open()?;
    /// # let (pool, engine) = (Pool::new(&device)?, TransferEngine::new(&device)?);
    /// let (a, b) = (vec![1_u32; 1000], vec![2_u32; 1000]);
    /// let mut first = pool.default_stream().uninit::<u32>(1000)?;
    /// let mut second = pool.default_stream().uninit::<u32>(1000)?;
    /// engine.scope(|transfers| {
    ///     let _ = transfers.upload(&a, &mut first).submit()?;
    ///     let _ = transfers.upload(&b, &mut second).submit()?;
    ///     Ok::<(), forebay::Error>(())
    /// })??;
    /// assert_eq!(second.to_vec()?, b);
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn scope<'env, R>(
        &self,
        body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
    ) -> Result<R> {
        let scope = Scope {
            open: OpenTransfers { engine: self.clone(), ids: Mutex::default() },
            scope: PhantomData,
            env: PhantomData,
        };
        let returned = catch_unwind(AssertUnwindSafe(|| body(&scope)));
        let open = core::mem::take(&mut *lock(&scope.open.ids));
        // Wait for all of them, even if one panics: the borrows end here.
        let outcomes: Vec<_> = open
            .into_iter()
            .map(|id| catch_unwind(AssertUnwindSafe(|| worker::wait(&self.engine, id))))
            .collect();
        let mut outcome = returned.map(Ok);
        for one in outcomes {
            outcome = match (outcome, one) {
                (Ok(Ok(_)), Ok(Err(error))) => Ok(Err(error)),
                (Ok(_), Err(panic)) => Err(panic),
                (outcome, _) => outcome,
            };
        }
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Uploads all elements of `from` to `to`.
    pub fn upload<T: Pod + Sync, A: Allocate>(
        &'scope self,
        from: &'scope [T],
        to: &'scope mut DeviceArray<T, A>,
    ) -> Transfer<'scope, Scoped<'scope, T, A>> {
        let host = (address_of(from.as_ptr()), from.len());
        let ends = Scoped { open: &self.open, direction: Direction::Up, array: to, host };
        Transfer::new(&self.open.engine, ends)
    }

    /// Downloads elements of `from` to `to`, as many as `to` has.
    pub fn download<T: Pod + Send, A: Allocate>(
        &'scope self,
        from: &'scope DeviceArray<T, A>,
        to: &'scope mut [T],
    ) -> Transfer<'scope, Scoped<'scope, T, A>> {
        let host = (address_of(to.as_mut_ptr()), to.len());
        let ends = Scoped { open: &self.open, direction: Direction::Down, array: from, host };
        Transfer::new(&self.open.engine, ends)
    }
}

impl<'scope, T: Pod, A: Allocate> Endpoints for Scoped<'scope, T, A> {
    type Submitted = Result<ScopedTicket<'scope>>;

    fn begin(self, TransferEngine { engine }: &TransferEngine, job: Job) -> Self::Submitted {
        let Self { open, direction, array, host } = self;
        let host = (pointer(host.0).cast_const().cast::<T>(), host.1);
        let none = None::<fn(StreamHandle) -> Result<()>>;
        // SAFETY: both are borrowed until the end of the scope, which waits for the transfer. The host's memory is touched
        // by threads of this process alone, so it is let go of whatever the device does.
        let started = unsafe { start(engine, job, direction, host, array, none) };
        Ok(open.enter(started?.0))
    }
}

impl ScopedTicket<'_> {
    /// Waits until the transfer is done. This thread helps to copy meanwhile.
    pub fn wait(self) -> Result<()> {
        let outcome = worker::wait(&self.open.engine.engine, self.id);
        lock(&self.open.ids).remove(&self.id);
        outcome
    }

    /// As [`Ticket::is_done`](super::Ticket::is_done).
    pub fn is_done(&self) -> bool {
        worker::is_settled(&self.open.engine.engine, self.id)
    }

    /// As [`Ticket::progress`](super::Ticket::progress).
    pub fn progress(&self) -> Progress {
        worker::progress(&self.open.engine.engine, self.id)
    }

    /// As [`Ticket::cancel`](super::Ticket::cancel).
    pub fn cancel(&self) -> bool {
        worker::cancel(&self.open.engine.engine, self.id)
    }
}
