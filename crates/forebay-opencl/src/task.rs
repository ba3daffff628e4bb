//! Host functions in stream order.
//!
//! OpenCL calls back when a command is done, on a driver thread that must not block. So the callback only passes the
//! task to a thread of ours. The stream waits for a user event, which that thread completes when the task is done:
//!
//! ```text
//!   queue      [work] ──done──> callback: hand over      [barrier: user event][work]
//!                                    |                          ^
//!   thread                           +──────> task ─────────────+ complete
//! ```

use core::ffi::c_void;
use core::fmt;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use cl3::event::{CL_COMPLETE, set_event_callback};
use cl3::types::{cl_event, cl_int};
use forebay_hal::{Call, HostTask, Result, StreamHandle, run_host_task};
use forebay_sync::{lock, thread};

use crate::OpenClDevice;
use crate::code::{Named, Outcome};
use crate::object::Event;
use crate::stream::{Submission, about};

/// How long a thread waits for another task before it ends.
const PATIENCE: Duration = Duration::from_secs(10);

/// A task, and the event that says it is over.
struct PendingTask {
    task: HostTask,
    over: Event,
}

impl PendingTask {
    fn run(self) {
        run_host_task(self.task);
        self.over.complete();
    }
}

/// The threads that run tasks: as many as there are tasks at once, since any may block.
#[derive(Default)]
struct Workers {
    tasks: VecDeque<PendingTask>,
    /// Threads that wait for a task.
    idle: usize,
    threads: usize,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("threads", &self.threads).finish_non_exhaustive()
    }
}

static WORKERS: Mutex<Workers> =
    Mutex::new(Workers { tasks: VecDeque::new(), idle: 0, threads: 0 });
static CAME: Condvar = Condvar::new();

/// Has a thread run the task, soon.
fn hand_over(pending: PendingTask) {
    let mut workers = lock(&WORKERS);
    workers.tasks.push_back(pending);
    if workers.idle >= workers.tasks.len() {
        CAME.notify_one();
        return;
    }
    workers.threads += 1;
    drop(workers);
    if thread::spawn("forebay-opencl", work).is_ok() {
        return;
    }
    let mut workers = lock(&WORKERS);
    workers.threads -= 1;
    // Other threads will come to it; without any, this one must.
    let pending = if workers.threads == 0 { workers.tasks.pop_front() } else { None };
    drop(workers);
    if let Some(pending) = pending {
        pending.run();
    }
}

/// What each thread does.
fn work() {
    let mut workers = lock(&WORKERS);
    loop {
        if let Some(pending) = workers.tasks.pop_front() {
            drop(workers);
            pending.run();
            workers = lock(&WORKERS);
            continue;
        }
        workers.idle += 1;
        let (guard, waited) =
            CAME.wait_timeout(workers, PATIENCE).unwrap_or_else(PoisonError::into_inner);
        workers = guard;
        workers.idle -= 1;
        if waited.timed_out() && workers.tasks.is_empty() {
            workers.threads -= 1;
            return;
        }
    }
}

/// OpenCL's callback, when the work before a task is done or has failed.
extern "C" fn begin(_event: cl_event, _status: cl_int, data: *mut c_void) {
    // SAFETY: `enqueue_after` gave this box away, and OpenCL calls once.
    hand_over(*unsafe { Box::from_raw(data.cast::<PendingTask>()) });
}

/// Runs `task` when `after` was reached, or at once without it, and makes the submission wait for its end.
pub(crate) fn enqueue_after(
    submission: &mut Submission<'_>,
    after: Option<&Event>,
    task: HostTask,
) -> Outcome<()> {
    // SAFETY: contexts live as long as the process.
    let over = unsafe { Event::user(submission.queue().context.raw()) }?;
    submission.join(&[&over])?;
    let pending = PendingTask { task, over: over.clone() };
    let Some(after) = after else {
        hand_over(pending);
        return Ok(());
    };
    let data = Box::into_raw(Box::new(pending));
    set_event_callback(after.raw(), CL_COMPLETE, begin, data.cast())
        .of("clSetEventCallback")
        .inspect_err(|_| {
            // SAFETY: OpenCL has refused it, so it is ours again.
            drop(unsafe { Box::from_raw(data) });
            // The submission goes on without the task.
            over.complete();
        })
}

/// Runs `task` after everything before it in the submission, and makes what follows wait for its end.
pub(crate) fn enqueue(submission: &mut Submission<'_>, task: HostTask) -> Outcome<()> {
    let before = submission.end().filter(|tail| !tail.is_over());
    enqueue_after(submission, before.as_ref(), task)
}

impl OpenClDevice {
    pub(crate) fn enqueue_task(&self, task: HostTask, stream: StreamHandle) -> Result<()> {
        let call = Call::EnqueueHost;
        let queue = self.queue(call, stream)?;
        enqueue(&mut queue.begin(), task)
            .map_err(|refusal| self.refused(call, refusal, &about(stream)))
    }
}
