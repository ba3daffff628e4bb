//! Asynchronous allocation, for growth that must not stall the caller.
//!
//! ```text
//!   allocate_async ──► queue of the pool ──► a thread: allocate ──► slot ──► the future, woken
//!        │                                                            │
//!        └── future dropped: the slot is over ────────────────────────┴──► a late block is freed
//! ```
//!
//! No runtime is needed; any executor can poll the future. Each pool has its own queue, served by at most one thread at
//! a time: requests of a pool keep their order, and a request that waits does not delay other pools. Helper threads
//! serve whichever queue has work. They are started when none is idle, up to a limit, and exit after a while without
//! work.
//!
//! One lock guards the queues ([`WorkQueues`]). No request is served under it.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use forebay_core::Bytes;
use forebay_hal::{self as hal, Call, HostTask, invalid, run_host_task};

use super::OwnedBlock;
use crate::sync::fork::{ForkGeneration, ForkSafeMutex};
use crate::sync::{lock, thread};
use crate::{Allocate, Error, Pool, PoolId, Request, Result, Tag};

/// The most helper threads. A pool occupies one while a request of it waits, so this many pools can wait at once before
/// another is delayed. A waiting thread costs only its stack.
const MAX_THREADS: usize = 64;

/// How long an idle helper thread waits for work before it exits. Long enough to serve bursts of requests, since
/// starting a thread takes tens of microseconds; short enough not to outlast a program's need for it.
const IDLE: Duration = Duration::from_millis(100);

/// The pause before a second attempt to allocate. Each later pause is twice as long.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// The longest pause between two attempts. A request notices between attempts that its future is gone.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Allocates a block on another thread and returns a future for it. If there is no memory, the request waits for some to
/// be freed, for up to `patience`, before it is refused; each attempt may take the pool's `max_wait` longer. A request
/// larger than the limit is refused at once.
///
/// The request starts at once, not on the first poll. Requests to one pool are served in order, each under the
/// [tag](crate::Tag) that the caller had at the time of the call, so one that waits for memory delays those that were made
/// later. Requests to different pools do not wait for each other; allocators without a pool share one queue per device.
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
    let promise = Promise { slot: Arc::clone(&slot) };
    let allocator = allocator.clone();
    // A thread's default stream means the caller's, not that of the thread that serves the request.
    let request = Request { stream: request.stream.resolved(), ..request };
    let deadline = Instant::now().checked_add(patience);
    // Count the request under the caller's tag, whichever thread serves it.
    let tag = Tag::current();
    let job = move || {
        let _under = tag.enter();
        if let Some(outcome) = allocate_within(&promise.slot, &allocator, request, deadline) {
            let _ = promise.slot.fulfil(outcome);
        }
    };
    let job = Box::new(job);
    let submitted = if inherited { Err(Error::Forked) } else { WORKERS.submit(queue, job) };
    if let Err(error) = submitted {
        // The dropped job's promise left a less exact error; replace it with the real one.
        *slot.lock() = Stage::Ready(Err(error));
    }
    Allocation { slot, size: request.size() }
}

/// Tries to allocate until it succeeds or the deadline has passed (`None` never does). Returns `None` if the future is
/// gone or cancelled. Retries with growing pauses: a free that notified waiters would slow the fast path.
fn allocate_within<A: Allocate + Clone>(
    slot: &PendingRequest<A>,
    allocator: &A,
    request: Request,
    deadline: Option<Instant>,
) -> Option<Result<OwnedBlock<A>>> {
    let mut pause = SHORTEST_PAUSE;
    while slot.is_pending() {
        let left = deadline
            .map_or(LONGEST_PAUSE, |deadline| deadline.saturating_duration_since(Instant::now()));
        let attempt = Request { is_retried: !left.is_zero(), ..request };
        match OwnedBlock::new(allocator, attempt) {
            Err(Error::OutOfMemory(shortage))
                if attempt.is_retried && shortage.requested <= shortage.limit => {}
            // Refused for good: the attempt that is reported.
            Err(Error::OutOfMemory(_)) if attempt.is_retried => {
                return Some(OwnedBlock::new(allocator, request));
            }
            outcome => return Some(outcome),
        }
        std::thread::sleep(pause.min(left));
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
    None
}

/// A future for a block, made by [`allocate_async`].
#[must_use = "dropping the future cancels the request"]
pub struct Allocation<A: Allocate = Pool> {
    slot: Arc<PendingRequest<A>>,
    size: Bytes,
}

impl<A: Allocate> Allocation<A> {
    /// Cancels the request: the future ends with [`Error::Cancelled`]. Returns `false` if it was ready.
    pub fn cancel(&self) -> bool {
        !self.slot.fork_generation.is_stale()
            && self.slot.fulfil(Err(Error::Cancelled { moved: Bytes::ZERO, total: self.size }))
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

/// The duty to fill a slot. If a job ends without doing so, because its allocator panicked, the drop stores an error,
/// so that the future does not wait forever.
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

/// The queued requests, and the threads that serve them.
struct WorkQueues {
    /// The waiting requests of each queue. A queue is listed while one of its requests waits or is being served.
    queues: BTreeMap<Queue, VecDeque<HostTask>>,
    /// Queues with work that no thread serves, longest waiting first.
    ready: VecDeque<Queue>,
    /// Number of helper threads.
    threads: usize,
    /// Number of idle ones among them.
    idle: usize,
    /// The process that owns the threads.
    born: Option<ForkGeneration>,
}

impl WorkQueues {
    const fn new(born: Option<ForkGeneration>) -> Self {
        Self { queues: BTreeMap::new(), ready: VecDeque::new(), threads: 0, idle: 0, born }
    }

    /// Takes the next request from the longest waiting queue.
    fn take(&mut self) -> Option<(Queue, HostTask)> {
        let queue = self.ready.pop_front()?;
        Some((queue, self.queues.get_mut(&queue)?.pop_front()?))
    }

    /// Ends the service of a queue: marks it ready again, or removes it if empty.
    fn put_back(&mut self, queue: Queue) {
        match self.queues.get(&queue) {
            Some(jobs) if !jobs.is_empty() => self.ready.push_back(queue),
            _ => drop(self.queues.remove(&queue)),
        }
    }
}

/// The helper threads and their work.
struct Workers {
    desk: ForkSafeMutex<WorkQueues>,
    arrival: Condvar,
}

static WORKERS: Workers = Workers::new();

impl Workers {
    const fn new() -> Self {
        Self { desk: ForkSafeMutex::new(WorkQueues::new(None)), arrival: Condvar::new() }
    }

    fn desk(&'static self) -> MutexGuard<'static, WorkQueues> {
        // No job runs under the lock, and the code that does leaves the desk consistent.
        let mut desk = self.desk.lock();
        let here = Some(ForkGeneration::here());
        if desk.born != here {
            // The threads and their work are the parent's. Leak the work: dropping it would free the parent's blocks
            // and wake its tasks.
            core::mem::forget(core::mem::replace(&mut *desk, WorkQueues::new(here)));
        }
        desk
    }

    /// Queues a job, and starts a thread if none is idle. If there is no thread and none can be started, drops the job.
    fn submit(&'static self, queue: Queue, job: HostTask) -> Result<()> {
        let mut desk = self.desk();
        if let Some(jobs) = desk.queues.get_mut(&queue) {
            // The thread that serves this queue, now or next, will run it.
            jobs.push_back(job);
            return Ok(());
        }
        if desk.ready.len() >= desk.idle && desk.threads < MAX_THREADS {
            match thread::spawn("forebay-allocate", || self.work()) {
                Ok(()) => desk.threads += 1,
                Err(error) if desk.threads == 0 => {
                    // Dropping the job runs foreign code, so unlock first.
                    drop(desk);
                    return Err(transient(format!("no thread to allocate on: {error}")));
                }
                // The existing threads will run it.
                Err(_) => {}
            }
        }
        desk.queues.insert(queue, VecDeque::from([job]));
        desk.ready.push_back(queue);
        self.arrival.notify_one();
        Ok(())
    }

    /// Runs queued jobs until none arrive for a while.
    fn work(&'static self) {
        while let Some((queue, job)) = self.next() {
            // A panicking job ends there; the thread goes on.
            run_host_task(job);
            self.desk().put_back(queue);
        }
    }

    /// The next job and its queue. `None` if there is none, and this thread is no longer counted.
    fn next(&'static self) -> Option<(Queue, HostTask)> {
        let mut desk = self.desk();
        desk.idle += 1;
        let waited = self.arrival.wait_timeout_while(desk, IDLE, |desk| desk.ready.is_empty());
        let (mut desk, _) = waited.unwrap_or_else(PoisonError::into_inner);
        desk.idle -= 1;
        let taken = desk.take();
        if taken.is_none() {
            desk.threads -= 1;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use super::*;

    static GATE: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());
    static SERVED: AtomicUsize = AtomicUsize::new(0);

    fn wait_at_the_gate() {
        let open = GATE.1.wait_while(lock(&GATE.0), |open| !*open);
        drop(open.unwrap_or_else(PoisonError::into_inner));
        SERVED.fetch_add(1, Ordering::SeqCst);
    }

    fn wait_until(workers: &'static Workers, what: &str, holds: impl Fn(&WorkQueues) -> bool) {
        let begun = Instant::now();
        while !holds(&workers.desk()) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// More pools wait than there are threads: no more are started, all are served in the end, and then
    /// nothing is left, neither a thread nor a queue.
    #[test]
    fn threads_are_bounded_and_end_when_idle() {
        let workers: &'static Workers = Box::leak(Box::new(Workers::new()));
        let count = MAX_THREADS + 5;
        for number in 0..count {
            for _ in 0..2 {
                let queue = Queue::Device(number);
                workers.submit(queue, Box::new(wait_at_the_gate)).unwrap();
            }
        }
        wait_until(workers, "all are at the gate", |desk| desk.ready.len() == 5);
        assert_eq!(workers.desk().threads, MAX_THREADS);
        *lock(&GATE.0) = true;
        GATE.1.notify_all();
        wait_until(workers, "the threads have ended", |desk| desk.threads == 0);
        assert_eq!(SERVED.load(Ordering::SeqCst), 2 * count);
        let desk = workers.desk();
        assert!(desk.queues.is_empty() && desk.ready.is_empty() && desk.idle == 0);
    }
}
