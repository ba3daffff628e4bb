//! Streams: OpenCL queues, reused after they are destroyed.
//!
//! A queue cannot report whether its work is done. So each [`StreamQueue`] keeps the event of the last command, its
//! tail: once that is reached, so is everything before it.
//!
//! ```text
//!   queue      [copy][fill][barrier: waits for another stream's event][copy]
//!                                                                      └── tail
//! ```
//!
//! An event records the tail, and a host task waits for it. On an out-of-order queue every command waits for it, so
//! such a queue keeps the order of its calls too.

use std::sync::{Arc, Mutex, MutexGuard};

use cl3::command_queue::{enqueue_barrier_with_wait_list, enqueue_marker_with_wait_list, flush};
use cl3::error_codes::CL_SUCCESS;
use cl3::types::{cl_command_queue, cl_event, cl_uint};
use forebay_hal::{Asked, Priority, Progress, StreamHandle};
use forebay_sync::lock;

use crate::code::{Made, Outcome};
use crate::context::Context;
use crate::object::{Event, Queue};

/// How many idle queues are looked at before a new one is made.
const LOOKS: usize = 16;

/// In which order a queue runs its commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueOrder {
    /// One after another.
    InOrder,
    /// As their events allow.
    OutOfOrder,
}

/// A queue, and the end of its work.
#[derive(Debug)]
pub(crate) struct StreamQueue {
    pub(crate) context: &'static Context,
    raw: Queue,
    order: QueueOrder,
    priority: Priority,
    /// The event of the last command; `None` where none was enqueued since the queue was taken. The lock
    /// makes the order of calls that of the queue.
    tail: Mutex<Option<Event>>,
}

impl StreamQueue {
    /// A queue without work, idle or new.
    pub(crate) fn take(
        context: &'static Context,
        order: QueueOrder,
        priority: Priority,
    ) -> Outcome<Arc<Self>> {
        let priority = if context.priorities { priority } else { Priority::Normal };
        let mut idle = lock(&context.idle);
        let fits = |queue: &Self| queue.order == order && queue.priority == priority;
        let mut fitting = idle.iter().enumerate().filter(|(_, queue)| fits(queue)).take(LOOKS);
        if let Some((index, _)) = fitting.find(|(_, queue)| queue.is_over()) {
            let queue = idle.swap_remove(index);
            *lock(&queue.tail) = None;
            return Ok(queue);
        }
        drop(idle);
        let raw = context.queue(order, priority)?;
        Ok(Arc::new(Self { context, raw, order, priority, tail: Mutex::default() }))
    }

    pub(crate) const fn order(&self) -> QueueOrder {
        self.order
    }

    /// The event after which all work enqueued so far is done.
    pub(crate) fn tail(&self) -> Option<Event> {
        lock(&self.tail).clone()
    }

    /// Begins a submission of commands that belong together.
    pub(crate) fn begin(&self) -> Submission<'_> {
        Submission { queue: self, tail: lock(&self.tail) }
    }

    pub(crate) fn progress(&self) -> Outcome<Progress> {
        self.tail().map_or(Ok(Progress::Done), |tail| tail.progress())
    }

    pub(crate) fn wait(&self) -> Outcome<()> {
        self.tail().map_or(Ok(()), |tail| tail.wait())
    }

    /// Whether nothing is to come any more, well or not.
    pub(crate) fn is_over(&self) -> bool {
        self.tail().is_none_or(|tail| tail.is_over())
    }
}

/// Commands that are being enqueued on a queue, one after another. Sent to the device when it goes.
#[derive(Debug)]
pub(crate) struct Submission<'a> {
    queue: &'a StreamQueue,
    tail: MutexGuard<'a, Option<Event>>,
}

/// What a command is given: the queue, and the events that it waits for as a count and a list.
pub(crate) type Enqueue<'a> = dyn FnMut(cl_command_queue, cl_uint, *const cl_event) -> core::result::Result<cl_event, i32>
    + 'a;

impl Submission<'_> {
    /// Enqueues a command after all before it, without making it the end of the submission. On an out-of-order queue
    /// several of these may run at once; [`advance`](Self::advance) or [`join`](Self::join) ends them.
    ///
    /// # Safety
    ///
    /// * `enqueue` keeps what OpenCL demands of the function's caller. It waits for the events it is
    ///   given, and gives the command's event with a reference.
    pub(crate) unsafe fn push_beside(
        &mut self,
        function: &'static str,
        enqueue: &mut Enqueue<'_>,
    ) -> Outcome<Event> {
        let queue = self.queue.raw.raw();
        let before = self.tail.as_ref().filter(|_| self.queue.order == QueueOrder::OutOfOrder);
        let raw = match before.map(Event::raw) {
            Some(tail) => enqueue(queue, 1, &raw const tail),
            None => enqueue(queue, 0, core::ptr::null()),
        };
        let made = raw.made(function);
        if made.is_err_and(|refusal| refusal.code.0 == CL_SUCCESS) {
            // The command may be under way, and has no event: the end of the submission waits for all there is.
            let _ = self.enqueue_barrier(&[]);
        }
        // SAFETY: the function gave it, with a reference.
        made.map(|raw| unsafe { Event::new(raw) })
    }

    /// Makes the command of `event` the end of the submission.
    pub(crate) fn advance(&mut self, event: Event) {
        *self.tail = Some(event);
    }

    /// Makes everything that follows wait for `events`, and for what is enqueued before.
    pub(crate) fn join(&mut self, events: &[&Event]) -> Outcome<()> {
        let mut all: Vec<cl_event> = events.iter().map(|event| event.raw()).collect();
        if self.queue.order == QueueOrder::OutOfOrder {
            all.extend(self.tail.as_ref().map(Event::raw));
        }
        self.enqueue_barrier(&all)
    }

    /// Ends the submission with a barrier that waits for `events`, which are live; for everything before it where there are
    /// none.
    fn enqueue_barrier(&mut self, events: &[cl_event]) -> Outcome<()> {
        let count = cl_uint::try_from(events.len()).unwrap_or(cl_uint::MAX);
        let list = if events.is_empty() { core::ptr::null() } else { events.as_ptr() };
        // SAFETY: the events are live, as the caller says.
        let raw = unsafe { enqueue_barrier_with_wait_list(self.queue.raw.raw(), count, list) };
        let raw = raw.made("clEnqueueBarrierWithWaitList")?;
        // SAFETY: the function gave it, with a reference.
        *self.tail = Some(unsafe { Event::new(raw) });
        Ok(())
    }

    /// An event of its own for this point, which keeps time.
    pub(crate) fn mark(&mut self) -> Outcome<Event> {
        // SAFETY: a marker uses nothing but the events it waits for.
        let event = unsafe {
            self.push_beside("clEnqueueMarkerWithWaitList", &mut |queue, count, events| {
                enqueue_marker_with_wait_list(queue, count, events)
            })
        }?;
        self.advance(event.clone());
        Ok(event)
    }

    /// The event after which everything enqueued so far is done.
    pub(crate) fn end(&self) -> Option<Event> {
        self.tail.clone()
    }

    pub(crate) fn queue(&self) -> &StreamQueue {
        self.queue
    }
}

impl Drop for Submission<'_> {
    fn drop(&mut self) {
        // Others may wait for these commands, and OpenCL starts them only when they are sent. A refusal
        // shows in the wait for the tail.
        let _ = flush(self.queue.raw.raw());
    }
}

/// A stream, for the error of a call about it.
pub(crate) fn about(stream: StreamHandle) -> Asked {
    Asked::of("stream", stream, "a live stream")
}
