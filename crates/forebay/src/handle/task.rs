//! Allocation as a future: for growth that must not stall the caller.
//!
//! ```text
//!   allocate_async ──► queue ──► one thread: allocate ──► slot ──► the future, woken
//!        │                                                 │
//!        └── future dropped: the slot is over ─────────────┴──► a block that comes late goes back
//! ```
//!
//! No runtime is needed: the future is a plain one. There is one helper thread for the process,
//! started when there is something to do and ended when there was nothing for a while.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use forebay_hal::{self as hal, Call, HostTask, invalid, run_host_task};

use super::OwnedBlock;
use crate::sync::lock;
use crate::{Allocate, Error, Pool, Request, Result, Tag};

/// How long the helper thread waits for more before it ends. Long enough that requests that come in
/// bursts find it there, since starting one takes tens of microseconds; short enough that a program
/// which has done with it does not keep it.
const IDLE: Duration = Duration::from_millis(100);

/// Asks `allocator` for a block on another thread; the future gives it.
///
/// The request is queued at once, not when the future is first polled, so that memory can be on its
/// way while the caller does something else. Requests are served one after the other, in order, each
/// under the [tag](crate::Tag) that the caller had when it was made.
///
/// Dropping the future early loses nothing: a request that has not begun is not made, and a block
/// that comes late is given back.
///
/// ```
/// use std::sync::Arc;
/// use std::task::{Context, Poll, Waker};
///
/// use forebay::handle::allocate_async;
/// use forebay::{Pool, Request};
/// use forebay_core::Bytes;
/// use forebay_hal::{Device, StreamHandle};
/// use forebay_host::HostDevice;
///
/// let device: Arc<dyn Device> = HostDevice::open()?;
/// let pool = Pool::new(&device)?;
/// let request = Request::new(Bytes::mib(64), StreamHandle::DEFAULT);
/// let mut growth = std::pin::pin!(allocate_async(&pool, request));
/// // In a program, `growth.await`. Here, something else is done until it is there.
/// let block = loop {
///     match growth.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
///         Poll::Ready(block) => break block?,
///         Poll::Pending => std::thread::yield_now(),
///     }
/// };
/// assert_eq!(block.size(), Bytes::mib(64));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn allocate_async<A>(allocator: &A, request: Request) -> Allocation<A>
where
    A: Allocate + Clone + 'static,
{
    let slot = Arc::new(Slot { stage: Mutex::new(Stage::Pending(None)) });
    let promise = Promise { slot: Arc::clone(&slot) };
    let allocator = allocator.clone();
    // Whoever asks is who it is counted for, whichever thread serves it.
    let tag = Tag::current();
    let job = move || {
        let _under = tag.enter();
        if !promise.slot.is_over() {
            promise.slot.fulfil(OwnedBlock::new(&allocator, request));
        }
    };
    if let Err(error) = WORKER.submit(Box::new(job)) {
        // The job is gone, and its promise has said something less exact; this is the reason.
        *slot.lock() = Stage::Ready(Err(error));
    }
    Allocation { slot }
}

/// A block to come. Made by [`allocate_async`].
#[must_use = "a future that is dropped gives its block back"]
pub struct Allocation<A: Allocate = Pool> {
    slot: Arc<Slot<A>>,
}

impl<A: Allocate> Future for Allocation<A> {
    type Output = Result<OwnedBlock<A>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Cloned before the lock: a waker's code is the caller's.
        let waker = context.waker().clone();
        let mut stage = self.slot.lock();
        match &mut *stage {
            Stage::Pending(waiting) => {
                let before = waiting.replace(waker);
                drop(stage);
                drop(before);
                Poll::Pending
            }
            Stage::Ready(_) | Stage::Over => {
                let stage = core::mem::replace(&mut *stage, Stage::Over);
                Poll::Ready(match stage {
                    Stage::Ready(outcome) => outcome,
                    _ => Err(polled_again()),
                })
            }
        }
    }
}

impl<A: Allocate> Drop for Allocation<A> {
    fn drop(&mut self) {
        // Bound, so that the lock is gone when what was in the slot is dropped.
        let before = core::mem::replace(&mut *self.slot.lock(), Stage::Over);
        drop(before);
    }
}

impl<A: Allocate> fmt::Debug for Allocation<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match &*self.slot.lock() {
            Stage::Pending(_) => "pending",
            Stage::Ready(_) => "ready",
            Stage::Over => "over",
        };
        f.debug_struct("Allocation").field("stage", &stage).finish()
    }
}

/// How far a request is.
enum Stage<A: Allocate> {
    /// It has not been served; whoever waits for it is to be woken.
    Pending(Option<Waker>),
    /// It was served, and nobody has come for the outcome yet.
    Ready(Result<OwnedBlock<A>>),
    /// The outcome was taken, or nobody will come for it.
    Over,
}

/// Where the outcome of a request is put.
struct Slot<A: Allocate> {
    stage: Mutex<Stage<A>>,
}

impl<A: Allocate> Slot<A> {
    fn lock(&self) -> MutexGuard<'_, Stage<A>> {
        // The stage is changed by single assignments, so it is whole at any time.
        lock(&self.stage)
    }

    fn is_over(&self) -> bool {
        matches!(*self.lock(), Stage::Over)
    }

    /// Puts the outcome there and wakes who waits. Where nobody will come, or it was served before,
    /// the outcome is dropped, and a block in it goes back.
    fn fulfil(&self, outcome: Result<OwnedBlock<A>>) {
        let mut stage = self.lock();
        let Stage::Pending(waiting) = &mut *stage else { return drop(stage) };
        let waker = waiting.take();
        *stage = Stage::Ready(outcome);
        drop(stage);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The duty to put something into a slot. A job that ends without, because its allocator panicked,
/// leaves an error there, so that nobody waits for ever.
struct Promise<A: Allocate> {
    slot: Arc<Slot<A>>,
}

impl<A: Allocate> Drop for Promise<A> {
    fn drop(&mut self) {
        self.slot.fulfil(Err(transient("the allocator panicked")));
    }
}

fn transient(reason: impl Into<Box<str>>) -> Error {
    hal::Error::Transient { call: Call::Allocate, reason: reason.into() }.into()
}

fn polled_again() -> Error {
    invalid(Call::Allocate, "future", "polled after it was ready", "one that is not ready").into()
}

/// Whether the helper thread is there.
enum Hand {
    /// It is not: whoever brings a job starts it.
    Absent,
    /// It is, and looks at the queue before it ends.
    Present,
}

struct Desk {
    jobs: VecDeque<HostTask>,
    hand: Hand,
}

/// The helper thread and what it has to do.
struct Worker {
    desk: Mutex<Desk>,
    arrival: Condvar,
}

static WORKER: Worker = Worker {
    desk: Mutex::new(Desk { jobs: VecDeque::new(), hand: Hand::Absent }),
    arrival: Condvar::new(),
};

impl Worker {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        // No job runs under the lock, and what does leaves the desk whole.
        lock(&self.desk)
    }

    /// Queues a job, and starts the thread where it is not there. Where it cannot be started the job
    /// is dropped.
    fn submit(&'static self, job: HostTask) -> Result<()> {
        let mut desk = self.desk();
        if matches!(desk.hand, Hand::Absent) {
            let thread = std::thread::Builder::new().name("forebay-allocate".to_owned());
            let started = thread.spawn(|| self.work());
            if let Err(error) = started {
                // The job's drop is not this module's code alone, so the lock goes first.
                drop(desk);
                return Err(transient(format!("no thread to allocate on: {error}")));
            }
            desk.hand = Hand::Present;
        }
        desk.jobs.push_back(job);
        self.arrival.notify_one();
        Ok(())
    }

    /// Does what is queued, until nothing has been for a while.
    fn work(&self) {
        while let Some(job) = self.next() {
            // A job that panics is over, and the thread goes on.
            run_host_task(job);
        }
    }

    /// The next job, or none: then the thread is no longer counted on.
    fn next(&self) -> Option<HostTask> {
        let waited =
            self.arrival.wait_timeout_while(self.desk(), IDLE, |desk| desk.jobs.is_empty());
        let (mut desk, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let job = desk.jobs.pop_front();
        if job.is_none() {
            desk.hand = Hand::Absent;
        }
        job
    }
}
