//! Asynchronous allocation, for growth that must not stall the caller.
//!
//! ```text
//!   allocate_async ──► queue of the pool ──► a thread: attempt ──► slot ──► the future, woken
//!        │                 ▲    │                  │                │
//!        │                 └────┼── no memory yet ─┘                │
//!        └── future dropped ────┴── leaves the queue ───────────────┴──► a late block is freed
//! ```
//!
//! No runtime is needed; any executor can poll the future. Each pool has its own queue, served by at most one thread at
//! a time, which tries the request that came first. A queue that waits for memory occupies no thread: it says when it is
//! due again. Helper threads serve whichever queue is due. They are started when none is idle, up to a limit, and exit
//! after a while without work.
//!
//! One lock guards the queues ([`WorkQueues`]). No request is served under it.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use forebay_core::Bytes;
use forebay_hal::{self as hal, Call, invalid, run_host_task};

use super::OwnedBlock;
use crate::sync::fork::{ForkGeneration, ForkSafeMutex};
use crate::sync::{lock, thread};
use crate::{Allocate, Error, Pool, PoolId, Request, Result, Tag};

#[cfg(test)]
mod tests;

/// The most helper threads. A pool occupies one during an attempt, which can last for the pool's `max_wait`.
const MAX_THREADS: usize = 64;

/// How long an idle helper thread waits for work before it exits. Long enough to serve bursts of requests, since
/// starting a thread takes tens of microseconds; short enough not to outlast a program's need for it.
const IDLE: Duration = Duration::from_millis(100);

/// The pause before a second attempt to allocate. Each later pause is twice as long.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Allocates a block on another thread and returns a future for it. If there is no memory, the request waits for some to
/// be freed, for up to `patience`, before it is refused; each attempt may take the pool's `max_wait` longer. A request
/// larger than the limit is refused at once.
///
/// The request starts at once, not on the first poll. Requests to one pool are served in order, each under the
/// [tag](crate::Tag) that the caller had at the time of the call, so one that waits for memory delays those that were made
/// later; at its deadline a request that is still behind another is tried once. Requests to different pools do not wait
/// for each other; allocators without a pool share one queue per device.
///
/// Dropping the future cancels the request, as [`cancel`](Allocation::cancel) does: a block that comes late is freed.
/// [`OnStream::owned_async`](super::OnStream::owned_async) is the short form; the example `08_async` runs it under tokio.
///
/// ```
/// use forebay::handle::allocate_async;
/// use forebay::{Bytes, Pool, Request, StreamHandle};
///
/// use std::task::{Context, Poll, Waker};
/// use std::time::Duration;
///
/// let pool = Pool::open("host")?;
/// let request = Request::new(Bytes::mib(64), StreamHandle::DEFAULT);
/// let mut growth = std::pin::pin!(allocate_async(&pool, request, Duration::from_secs(1)));
/// // In a program, `growth.await`. Here, other threads run until it is ready.
/// let block = loop {
///     match growth.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
///         Poll::Ready(block) => break block?,
///         Poll::Pending => std::thread::yield_now(),
///     }
/// };
/// assert_eq!(block.size(), Bytes::mib(64));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn allocate_async<A>(allocator: &A, request: Request, patience: Duration) -> Allocation<A>
where
    A: Allocate + Clone + 'static,
{
    let queue = Queue::of(allocator);
    let inherited = allocator.device().descriptor().is_from_parent();
    let fork_generation = ForkGeneration::here();
    let slot =
        Arc::new(PendingRequest { fork_generation, stage: Mutex::new(Stage::Pending(None)) });
    // A thread's default stream means the caller's, not that of the thread that serves the request.
    let request = Request { stream: request.stream.resolved(), ..request };
    let promise = Promise { slot: Arc::clone(&slot) };
    // Count the request under the caller's tag, whichever thread serves it.
    let (allocator, tag) = (allocator.clone(), Tag::current());
    let attempt = move |is_last| {
        let _under = tag.enter();
        attempt(&promise.slot, &allocator, request, is_last)
    };
    let waiting = Waiting {
        deadline: Instant::now().checked_add(patience),
        pause: SHORTEST_PAUSE,
        attempt: Box::new(attempt),
    };
    let submitted = if inherited { Err(Error::Forked) } else { WORKERS.submit(queue, waiting) };
    let place = submitted.map(|number| (queue, number)).map_err(|error| {
        // The dropped promise left a less exact error; replace it with the real one.
        *slot.lock() = Stage::Ready(Err(error));
    });
    Allocation { slot, place: place.ok(), size: request.size() }
}

/// Tries to allocate, and stores the outcome. Returns `false` if there is no memory and this was not the last attempt.
/// Attempts are repeated with growing pauses: a free that notified waiters would slow the fast path.
fn attempt<A: Allocate + Clone>(
    slot: &PendingRequest<A>,
    allocator: &A,
    request: Request,
    is_last: bool,
) -> bool {
    if !slot.is_pending() {
        return true;
    }
    let outcome = match OwnedBlock::new(allocator, Request { is_retried: !is_last, ..request }) {
        Err(Error::OutOfMemory(shortage)) if !is_last => {
            if shortage.requested <= shortage.limit {
                return false;
            }
            // Refused for good: the attempt that is reported.
            OwnedBlock::new(allocator, request)
        }
        outcome => outcome,
    };
    let _ = slot.fulfil(outcome);
    true
}

/// A future for a block, made by [`allocate_async`].
#[must_use = "dropping the future cancels the request"]
pub struct Allocation<A: Allocate = Pool> {
    slot: Arc<PendingRequest<A>>,
    /// Where it waits.
    place: Option<(Queue, u64)>,
    size: Bytes,
}

impl<A: Allocate> Allocation<A> {
    /// Cancels the request: the future ends with [`Error::Cancelled`]. Returns `false` if it was ready.
    pub fn cancel(&self) -> bool {
        let cancelled = !self.slot.fork_generation.is_stale()
            && self.slot.fulfil(Err(Error::Cancelled { moved: Bytes::ZERO, total: self.size }));
        if cancelled {
            self.leave();
        }
        cancelled
    }

    /// Takes the request out of its queue.
    fn leave(&self) {
        // What is left of it is dropped without the lock.
        drop(self.place.and_then(|(queue, number)| WORKERS.remove(queue, number)));
    }
}

impl<A: Allocate> Future for Allocation<A> {
    type Output = Result<OwnedBlock<A>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Clone before locking: a waker's code is the caller's.
        let waker = context.waker().clone();
        if self.slot.fork_generation.is_stale() {
            return Poll::Ready(Err(Error::Forked));
        }
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
        if self.slot.fork_generation.is_stale() {
            // Leak it: the thread that was to fill it may hold its lock.
            core::mem::forget(Arc::clone(&self.slot));
            return;
        }
        // Bind the previous value, so that it is dropped without the lock.
        let before = core::mem::replace(&mut *self.slot.lock(), Stage::Over);
        if matches!(before, Stage::Pending(_)) {
            self.leave();
        }
        drop(before);
    }
}

impl<A: Allocate> fmt::Debug for Allocation<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = if self.slot.fork_generation.is_stale() {
            "made before the process forked"
        } else {
            match &*self.slot.lock() {
                Stage::Pending(_) => "pending",
                Stage::Ready(_) => "ready",
                Stage::Over => "over",
            }
        };
        f.debug_struct("Allocation").field("stage", &stage).finish()
    }
}

/// The progress of a request.
enum Stage<A: Allocate> {
    /// Not served yet; the waker wakes the waiting task.
    Pending(Option<Waker>),
    /// Served, but the outcome has not been taken yet.
    Ready(Result<OwnedBlock<A>>),
    /// The outcome was taken, or the future was dropped.
    Over,
}

/// Holds the outcome of a request.
struct PendingRequest<A: Allocate> {
    fork_generation: ForkGeneration,
    stage: Mutex<Stage<A>>,
}

impl<A: Allocate> PendingRequest<A> {
    fn lock(&self) -> MutexGuard<'_, Stage<A>> {
        // The stage changes by single assignments, so it is always consistent.
        lock(&self.stage)
    }

    /// Whether the outcome is still to come, and wanted.
    fn is_pending(&self) -> bool {
        matches!(*self.lock(), Stage::Pending(_))
    }

    /// Stores the outcome and wakes the waiting task. If the future is gone, or the request was already served, drops
    /// the outcome, which frees a block in it, and returns `false`.
    fn fulfil(&self, outcome: Result<OwnedBlock<A>>) -> bool {
        let mut stage = self.lock();
        let Stage::Pending(waiting) = &mut *stage else {
            drop(stage);
            return false;
        };
        let waker = waiting.take();
        *stage = Stage::Ready(outcome);
        drop(stage);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }
}

/// The duty to fill a slot. If a request ends without that, because its allocator panicked, the drop stores an error, so
/// that the future does not wait forever.
struct Promise<A: Allocate> {
    slot: Arc<PendingRequest<A>>,
}

impl<A: Allocate> Drop for Promise<A> {
    fn drop(&mut self) {
        let _ = self.slot.fulfil(Err(transient("the allocator panicked")));
    }
}

fn transient(reason: impl Into<Box<str>>) -> Error {
    hal::Error::Transient { call: Call::Allocate, reason: reason.into() }.into()
}

fn polled_again() -> Error {
    invalid(Call::Allocate, "future", "polled after it was ready", "one that is not ready").into()
}

/// The source of a queue's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Queue {
    /// Those of a pool.
    Pool(PoolId),
    /// Those of allocators without a pool, by the address of their device.
    Device(usize),
}

impl Queue {
    fn of(allocator: &impl Allocate) -> Self {
        let device = || Arc::as_ptr(allocator.device()).cast::<()>().addr();
        allocator.pool_id().map_or_else(|| Self::Device(device()), Self::Pool)
    }
}

/// A request that waits for its turn, or for memory.
struct Waiting {
    /// When it is tried for the last time.
    deadline: Option<Instant>,
    /// The pause after the next attempt.
    pause: Duration,
    /// Tries to serve it, for the last time or not; returns whether it is done.
    attempt: Box<dyn FnMut(bool) -> bool + Send>,
}

/// The requests of a queue by number, which is the order of arrival.
#[derive(Default)]
struct Line {
    waiting: BTreeMap<u64, Waiting>,
    deadlines: BTreeSet<(Instant, u64)>,
    /// When to try the first one again; `None` is now.
    again: Option<Instant>,
    /// When the queue is due; `None` while a thread serves it.
    due: Option<Instant>,
}

impl Line {
    fn add(&mut self, number: u64, waiting: Waiting) {
        self.deadlines.extend(waiting.deadline.map(|deadline| (deadline, number)));
        self.waiting.insert(number, waiting);
    }

    fn remove(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&number)?;
        if let Some(deadline) = waiting.deadline {
            self.deadlines.remove(&(deadline, number));
        }
        Some(waiting)
    }

    /// The request to try at that time: the first, or while that one pauses, another whose deadline has passed.
    fn take(&mut self, now: Instant) -> Option<(u64, Waiting, bool)> {
        let is_pausing = self.again.is_some_and(|again| now < again);
        let overdue = self.deadlines.first().filter(|(deadline, _)| is_pausing && *deadline <= now);
        let first = self.waiting.keys().next();
        let number = overdue.map(|(_, number)| *number).or(first.copied())?;
        let waiting = self.remove(number)?;
        let is_last = waiting.deadline.is_some_and(|deadline| deadline <= now);
        Some((number, waiting, is_last))
    }

    /// When something is to be done.
    fn next(&self) -> Instant {
        let again = self.again.unwrap_or_else(Instant::now);
        self.deadlines.first().map_or(again, |(deadline, _)| again.min(*deadline))
    }
}

/// The queued requests, and the threads that serve them.
struct WorkQueues {
    /// A queue is listed while one of its requests waits or is being tried.
    lines: BTreeMap<Queue, Line>,
    /// The queues that no thread serves, by when they are due.
    due: BTreeSet<(Instant, Queue)>,
    /// The number of the next request.
    next: u64,
    /// Number of helper threads.
    threads: usize,
    /// Number of idle ones among them.
    idle: usize,
    /// The process that owns the threads.
    born: Option<ForkGeneration>,
}

impl WorkQueues {
    const fn new(born: Option<ForkGeneration>) -> Self {
        Self { lines: BTreeMap::new(), due: BTreeSet::new(), next: 0, threads: 0, idle: 0, born }
    }

    /// Lists a queue anew, or removes it if it is empty.
    fn schedule(&mut self, queue: Queue) {
        let Some(line) = self.lines.get_mut(&queue) else { return };
        if let Some(due) = line.due.take() {
            self.due.remove(&(due, queue));
        }
        if line.waiting.is_empty() {
            self.lines.remove(&queue);
        } else {
            let next = line.next();
            line.due = Some(next);
            self.due.insert((next, queue));
        }
    }

    /// Takes the request to try now from the queue that is due longest.
    fn take(&mut self, now: Instant) -> Option<Taken> {
        let &(due, queue) = self.due.first().filter(|(due, _)| *due <= now)?;
        self.due.remove(&(due, queue));
        let line = self.lines.get_mut(&queue)?;
        line.due = None;
        let (number, waiting, is_last) = line.take(now)?;
        Some(Taken { queue, number, waiting, is_last })
    }
}

/// A request that a thread tries.
struct Taken {
    queue: Queue,
    number: u64,
    waiting: Waiting,
    is_last: bool,
}

/// The helper threads and their work.
struct Workers {
    state: ForkSafeMutex<WorkQueues>,
    arrival: Condvar,
}

static WORKERS: Workers = Workers::new();

impl Workers {
    const fn new() -> Self {
        Self { state: ForkSafeMutex::new(WorkQueues::new(None)), arrival: Condvar::new() }
    }

    fn queues(&'static self) -> MutexGuard<'static, WorkQueues> {
        // No request is tried under the lock, and the code that does leaves the queues consistent.
        let mut queues = self.state.lock();
        let here = Some(ForkGeneration::here());
        if queues.born != here {
            // The threads and their work are the parent's. Leak the work: dropping it would free the parent's blocks
            // and wake its tasks.
            core::mem::forget(core::mem::replace(&mut *queues, WorkQueues::new(here)));
        }
        queues
    }

    /// Queues a request and returns its number. Starts a thread if none is idle; fails if there is none and none can be
    /// started.
    fn submit(&'static self, queue: Queue, waiting: Waiting) -> Result<u64> {
        let mut queues = self.queues();
        let is_served = queues.lines.get(&queue).is_some_and(|line| line.due.is_none());
        if !is_served && let Err(error) = self.staff(&mut queues) {
            // Dropping the request runs foreign code, so unlock first.
            drop(queues);
            return Err(error);
        }
        let number = queues.next;
        queues.next += 1;
        queues.lines.entry(queue).or_default().add(number, waiting);
        if !is_served {
            queues.schedule(queue);
            self.arrival.notify_one();
        }
        Ok(number)
    }

    /// Starts a thread if none is idle and there may be more. Fails if there is none at all.
    fn staff(&'static self, queues: &mut WorkQueues) -> Result<()> {
        if queues.idle == 0 && queues.threads < MAX_THREADS {
            match thread::spawn("forebay-allocate", || self.work()) {
                Ok(()) => queues.threads += 1,
                Err(error) if queues.threads == 0 => {
                    return Err(transient(format!("no thread to allocate on: {error}")));
                }
                // The existing threads do it.
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Removes a request that is not being tried.
    fn remove(&'static self, queue: Queue, number: u64) -> Option<Waiting> {
        let mut queues = self.queues();
        let line = queues.lines.get_mut(&queue)?;
        let is_first = line.waiting.keys().next() == Some(&number);
        let removed = line.remove(number);
        if line.due.is_some() {
            // The next one may need less.
            line.again = if is_first { None } else { line.again };
            queues.schedule(queue);
            self.arrival.notify_one();
        }
        removed
    }

    /// Tries requests until none are queued for a while.
    fn work(&'static self) {
        while let Some(Taken { queue, number, mut waiting, is_last }) = self.next() {
            let kept = Arc::new(Mutex::new(None));
            let keep = Arc::clone(&kept);
            // One whose allocator panics ends there; the thread goes on.
            run_host_task(Box::new(move || {
                if !(waiting.attempt)(is_last) {
                    *lock(&keep) = Some(waiting);
                }
            }));
            let kept = lock(&kept).take();
            let mut queues = self.queues();
            let Some(line) = queues.lines.get_mut(&queue) else { continue };
            line.again = None;
            if let Some(mut waiting) = kept {
                line.again = Instant::now().checked_add(waiting.pause);
                waiting.pause = (2 * waiting.pause).min(LONGEST_PAUSE);
                line.add(number, waiting);
            }
            queues.schedule(queue);
        }
    }

    /// The next request to try. `None` if there has been none for a while, and this thread is no longer counted.
    fn next(&'static self) -> Option<Taken> {
        let (mut queues, idle_since) = (self.queues(), Instant::now());
        loop {
            let now = Instant::now();
            if let Some(taken) = queues.take(now) {
                // Some thread waits for the next queue to be due.
                if !queues.due.is_empty() {
                    let _ = self.staff(&mut queues);
                }
                return Some(taken);
            }
            let first = queues.due.first().map(|(due, _)| due.saturating_duration_since(now));
            let is_needed = first.is_some() && queues.idle == 0;
            let left = IDLE.saturating_sub(now.duration_since(idle_since));
            if left.is_zero() && !is_needed {
                queues.threads -= 1;
                return None;
            }
            let wait = first.map_or(left, |first| if is_needed { first } else { first.min(left) });
            queues.idle += 1;
            let waited = self.arrival.wait_timeout(queues, wait);
            (queues, _) = waited.unwrap_or_else(PoisonError::into_inner);
            queues.idle -= 1;
        }
    }
}
