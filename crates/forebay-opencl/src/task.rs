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

use cl3::event::{CL_COMPLETE, set_event_callback};
use cl3::types::{cl_event, cl_int};
use forebay_hal::{HostTask, Workers, run_host_task};

use crate::code::{Named, Outcome};
use crate::object::Event;
use crate::stream::Submission;

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

static WORKERS: Workers<PendingTask> = Workers::new("forebay-opencl", PendingTask::run);

/// OpenCL's callback, when the work before a task is done or has failed.
extern "C" fn begin(_event: cl_event, _status: cl_int, data: *mut c_void) {
    // SAFETY: `enqueue_after` gave this box away, and OpenCL calls once.
    WORKERS.hand_over(*unsafe { Box::from_raw(data.cast::<PendingTask>()) });
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
        WORKERS.hand_over(pending);
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
