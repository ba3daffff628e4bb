//! What sends a request of PyTorch and the others down the slow path: a graph capture, a fork, or tags that do not belong
//! to a thread. One word holds all flags, so that the fast path tests it once.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Streams are being captured.
pub(crate) const CAPTURING: u32 = 1;
/// The process was forked from one that had opened something, and refuses every request.
pub(crate) const FORKED: u32 = 2;
/// The program's tags belong to its tasks, which take turns on a thread.
const TASKS: u32 = 4;

/// Puts the calling thread under the tag of its current task.
static ENTER_TAG: OnceLock<fn()> = OnceLock::new();

/// The flags that are set.
pub(crate) static FLAGS: AtomicU32 = AtomicU32::new(0);

/// Whether any flag is set.
#[inline(always)]
pub(crate) fn any() -> bool {
    FLAGS.load(Ordering::Relaxed) != 0
}

/// Whether the process is a forked child of one that had opened something.
pub(crate) fn forked() -> bool {
    FLAGS.load(Ordering::Relaxed) & FORKED != 0
}

/// Whether streams are being captured.
pub(crate) fn capturing() -> bool {
    FLAGS.load(Ordering::Relaxed) & CAPTURING != 0
}

/// Calls `enter` before each request from now on: it puts the thread under the tag of its current task. Only the first
/// call has an effect.
pub(crate) fn follow_tasks(enter: fn()) {
    if ENTER_TAG.set(enter).is_ok() {
        FLAGS.fetch_or(TASKS, Ordering::Relaxed);
    }
}

/// Puts the thread under the tag of its current task, if tags belong to tasks.
pub(crate) fn enter_tag() {
    if FLAGS.load(Ordering::Relaxed) & TASKS != 0
        && let Some(enter) = ENTER_TAG.get()
    {
        enter();
    }
}
