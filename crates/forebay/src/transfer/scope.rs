//! Transfers that borrow their memory.

use core::marker::PhantomData;
use core::panic::AssertUnwindSafe;
use std::collections::BTreeSet;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};

use bytemuck::Pod;

use super::builder::{Choices, Ends, Transfer};
use super::engine::{Engine, TransferEngine};
use super::figures::Progress;
use super::job::{Direction, JobId};
use super::owned::{begin, copy_of};
use super::worker;
use crate::sync::lock;
use crate::{Allocate, DeviceArray, Result};

/// A scope in which transfers borrow memory, made by [`TransferEngine::scope`].
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    engine: TransferEngine,
    /// Transfers not yet waited for.
    open: Mutex<BTreeSet<JobId>>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// A transfer that borrows its memory until the end of its [`Scope`].
#[derive(Debug)]
#[must_use = "the result of a transfer is that of `wait`, or of the scope"]
pub struct ScopedTicket<'scope> {
    engine: &'scope Arc<Engine>,
    open: &'scope Mutex<BTreeSet<JobId>>,
    id: JobId,
}

/// An upload from borrowed memory to a borrowed array.
#[derive(Debug)]
pub struct ScopedUpload<'scope, T: Pod, A: Allocate> {
    from: &'scope [T],
    to: &'scope mut DeviceArray<T, A>,
    open: &'scope Mutex<BTreeSet<JobId>>,
    engine: &'scope Arc<Engine>,
}

/// A download from a borrowed array to borrowed memory.
#[derive(Debug)]
pub struct ScopedDownload<'scope, T: Pod, A: Allocate> {
    from: &'scope DeviceArray<T, A>,
    to: &'scope mut [T],
    open: &'scope Mutex<BTreeSet<JobId>>,
    engine: &'scope Arc<Engine>,
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
            engine: self.clone(),
            open: Mutex::new(BTreeSet::new()),
            scope: PhantomData,
            env: PhantomData,
        };
        let returned = catch_unwind(AssertUnwindSafe(|| body(&scope)));
        let open = core::mem::take(&mut *lock(&scope.open));
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
    pub(super) fn transfers(&self) -> &TransferEngine {
        &self.engine
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.engine.engine
    }

    pub(super) fn open(&self) -> &Mutex<BTreeSet<JobId>> {
        &self.open
    }

    /// Uploads all elements of `from` to `to`.
    pub fn upload<T: Pod + Sync, A: Allocate>(
        &'scope self,
        from: &'scope [T],
        to: &'scope mut DeviceArray<T, A>,
    ) -> Transfer<'scope, ScopedUpload<'scope, T, A>> {
        let (open, engine) = (&self.open, self.engine());
        Transfer::new(&self.engine, ScopedUpload { from, to, open, engine })
    }

    /// Downloads elements of `from` to `to`, as many as `to` has.
    pub fn download<T: Pod + Send, A: Allocate>(
        &'scope self,
        from: &'scope DeviceArray<T, A>,
        to: &'scope mut [T],
    ) -> Transfer<'scope, ScopedDownload<'scope, T, A>> {
        let (open, engine) = (&self.open, self.engine());
        Transfer::new(&self.engine, ScopedDownload { from, to, open, engine })
    }
}

impl<'scope, T: Pod + Sync, A: Allocate> Ends for ScopedUpload<'scope, T, A> {
    type Submitted = Result<ScopedTicket<'scope>>;

    fn begin(self, _: &TransferEngine, choices: Choices) -> Self::Submitted {
        let Self { from, to, open, engine } = self;
        let copy = copy_of(engine, Direction::Up, (from.as_ptr(), from.len()), to, &choices)?;
        let stream = to.block().stream_in_order()?;
        // SAFETY: both are borrowed until the end of the scope, which waits for the transfer. The host's memory is touched
        // by threads of this process alone, so it is let go of whatever the device does.
        let id = unsafe { begin(engine, Direction::Up, &copy, choices, stream) }?;
        lock(open).insert(id);
        Ok(ScopedTicket::new(engine, open, id))
    }
}

impl<'scope, T: Pod + Send, A: Allocate> Ends for ScopedDownload<'scope, T, A> {
    type Submitted = Result<ScopedTicket<'scope>>;

    fn begin(self, _: &TransferEngine, choices: Choices) -> Self::Submitted {
        let Self { from, to, open, engine } = self;
        let side = (to.as_mut_ptr().cast_const(), to.len());
        let copy = copy_of(engine, Direction::Down, side, from, &choices)?;
        let stream = from.block().stream_in_order()?;
        // SAFETY: as for an upload.
        let id = unsafe { begin(engine, Direction::Down, &copy, choices, stream) }?;
        lock(open).insert(id);
        Ok(ScopedTicket::new(engine, open, id))
    }
}

impl<'scope> ScopedTicket<'scope> {
    pub(super) fn new(
        engine: &'scope Arc<Engine>,
        open: &'scope Mutex<BTreeSet<JobId>>,
        id: JobId,
    ) -> Self {
        Self { engine, open, id }
    }

    /// Waits until the transfer is done. This thread helps to copy meanwhile.
    pub fn wait(self) -> Result<()> {
        let outcome = worker::wait(self.engine, self.id);
        lock(self.open).remove(&self.id);
        outcome
    }

    /// As [`Ticket::is_done`](super::Ticket::is_done).
    pub fn is_done(&self) -> bool {
        worker::is_settled(self.engine, self.id)
    }

    /// As [`Ticket::progress`](super::Ticket::progress).
    pub fn progress(&self) -> Progress {
        worker::progress(self.engine, self.id)
    }

    /// As [`Ticket::cancel`](super::Ticket::cancel).
    pub fn cancel(&self) -> bool {
        worker::cancel(self.engine, self.id)
    }
}
