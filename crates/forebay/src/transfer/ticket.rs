//! Transfers in flight.

use core::fmt;
use core::future::{Future, IntoFuture};
use core::mem::ManuallyDrop;
use core::pin::Pin;
use core::ptr;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_hal::{Call, NamedStream, Progress as DeviceProgress};

use super::engine::Engine;
use super::job::{JobId, Phase};
use super::state::Kept;
use super::statistics::Progress;
use super::worker;
use crate::Result;
use crate::handle::Refused;

/// The result of a transfer that owns memory, which is returned in any case.
pub(super) type Returned<R> = core::result::Result<R, Refused<R>>;

/// A transfer that owns its memory and returns it when done: by [`wait`](Self::wait), or by `.await`.
///
/// If it is dropped, the transfer is [cancelled](Self::cancel), and the engine frees the memory once no copy uses it;
/// [`detach`](Self::detach) lets the transfer go on. The same holds for its future.
#[must_use = "a ticket that is dropped cancels its transfer"]
pub struct Ticket<R: Send + 'static> {
    engine: Arc<Engine>,
    id: JobId,
    /// The stream of the array.
    stream: NamedStream,
    /// Taken by the drop.
    memory: ManuallyDrop<R>,
}

impl<R: Send + 'static> Ticket<R> {
    pub(super) fn new(engine: &Arc<Engine>, id: JobId, stream: NamedStream, memory: R) -> Self {
        Self { engine: Arc::clone(engine), id, stream, memory: ManuallyDrop::new(memory) }
    }

    /// The memory of a transfer that is settled or ordered.
    fn into_memory(self, outcome: Result<()>) -> Returned<R> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is never used again nor dropped, so both are taken once.
        let (memory, engine) =
            unsafe { (ManuallyDrop::take(&mut this.memory), ptr::read(&raw const this.engine)) };
        drop(engine);
        match outcome {
            Ok(()) => Ok(memory),
            Err(error) => Err(Refused::new(memory, error)),
        }
    }

    /// Waits until the transfer is done, and returns its memory. This thread helps to copy meanwhile.
    pub fn wait(self) -> Returned<R> {
        let outcome = worker::wait(&self.engine, self.id);
        self.into_memory(outcome)
    }

    /// Waits until all pieces are handed to the device, makes later work on the array's stream wait for them on the
    /// device, and returns the memory. For an upload, that is once the last piece was copied on the host. A download is
    /// done by then, unless it is into pinned memory.
    pub fn order(self) -> Returned<R> {
        let outcome = worker::order(&self.engine, self.id, self.stream);
        self.into_memory(outcome)
    }

    /// Works on the transfer for up to `timeout`. Returns whether [`wait`](Self::wait) now needs the device alone: all pieces
    /// were handed over, or the transfer has failed. For programs that show progress or listen to signals meanwhile.
    pub fn wait_for(&self, timeout: Duration) -> bool {
        if self.engine.device.descriptor().is_from_parent() {
            return true;
        }
        let deadline = Instant::now().checked_add(timeout);
        !matches!(worker::run_until(&self.engine, self.id, deadline), Some(Phase::Running))
    }

    /// Whether the transfer has finished or failed. Does not wait.
    pub fn is_done(&self) -> bool {
        worker::is_settled(&self.engine, self.id)
    }

    /// The progress of the transfer.
    pub fn progress(&self) -> Progress {
        worker::progress(&self.engine, self.id)
    }

    /// Lets the transfer go on by itself. The engine frees the memory when it is done, and nobody learns of an error.
    pub fn detach(self) {
        let mut this = ManuallyDrop::new(self);
        this.let_go();
        // SAFETY: `this` is never used again nor dropped, so the engine is dropped once.
        drop(unsafe { ptr::read(&raw const this.engine) });
    }

    /// Cancels the transfer: no further piece starts. [`wait`](Self::wait) then returns the memory with
    /// [`Cancelled`](crate::Error::Cancelled). Returns `false` if everything was already handed over, or it has failed.
    pub fn cancel(&self) -> bool {
        worker::cancel(&self.engine, self.id)
    }
}

impl<R: Send + 'static> Ticket<R> {
    /// Leaves the memory to the engine. Called once: by the drop, or by `detach`, which drops none.
    fn let_go(&mut self) {
        // SAFETY: as above, and `into_memory` drops none.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        if self.engine.device.descriptor().is_from_parent() {
            // In a forked child: the parent's threads use it.
            core::mem::forget(memory);
            return;
        }
        if worker::release(&self.engine, self.id, self.stream) {
            drop(memory);
        } else {
            let (id, memory) = (self.id, Box::new(memory));
            worker::keep(&self.engine, Kept { id, memory });
        }
    }
}

impl<R: Send + 'static> Drop for Ticket<R> {
    fn drop(&mut self) {
        self.cancel();
        self.let_go();
    }
}

// Does not show the memory: threads of the engine may be writing to it.
impl<R: Send + 'static> fmt::Debug for Ticket<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The future of a [`Ticket`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct TicketFuture<R: Send + 'static>(Option<Ticket<R>>);

impl<R: Send + 'static> IntoFuture for Ticket<R> {
    type Output = Returned<R>;
    type IntoFuture = TicketFuture<R>;

    fn into_future(self) -> TicketFuture<R> {
        TicketFuture(Some(self))
    }
}

// Nothing in it is structurally pinned.
impl<R: Send + 'static> Unpin for TicketFuture<R> {}

impl<R: Send + 'static> Future for TicketFuture<R> {
    type Output = Returned<R>;

    /// Ready once; later polls stay pending forever.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Returned<R>> {
        let this = self.get_mut();
        let Some(ticket) = &this.0 else { return Poll::Pending };
        if !is_ready(&ticket.engine, ticket.id, context.waker()) {
            return Poll::Pending;
        }
        this.0.take().map_or(Poll::Pending, |ticket| Poll::Ready(ticket.wait()))
    }
}

/// Whether waiting for a transfer would be brief. If not, wakes `waker` when it may be.
fn is_ready(engine: &Arc<Engine>, id: JobId, waker: &Waker) -> bool {
    if engine.device.descriptor().check_process(Call::SynchronizeEvent).is_err() {
        return true;
    }
    let (phase, stream, signal) = {
        let state = engine.state();
        let Some(job) = state.jobs.get(&id) else { return true };
        (job.phase.clone(), job.stream, Arc::clone(&job.signal))
    };
    signal.set(waker);
    let event = match phase {
        Phase::Done | Phase::Failed(_) => return true,
        // It may have ended before the waker was set.
        Phase::Running => return !worker::is_running(engine, id),
        Phase::Ordered(event) => event,
    };
    if !signal.asked.swap(true, Ordering::AcqRel) {
        let signal = Arc::clone(&signal);
        if engine.device.enqueue_host(Box::new(move || signal.wake()), stream).is_err() {
            // Nothing would wake it, so wait now.
            return true;
        }
    }
    // The wait will return any error.
    let is_ready = !matches!(event.query(), Ok(DeviceProgress::Pending));
    if !is_ready && engine.device.drive() {
        waker.wake_by_ref();
    }
    is_ready
}
