//! Forked children.
//!
//! A child has a copy of its parent's memory and one thread. The driver refuses it, the threads that
//! are the host's streams are not there, and a lock that another thread of the parent held will never
//! be given up. So nothing that the parent opened can be used in a child, on any device: every call
//! that would is refused with `FOREBAY_STATUS_FORKED`, before any lock is taken. A process that forks
//! first and opens its first device afterwards is no child in this sense.
//!
//! No call asks for the process's number. The system calls [`in_child`] in every child that `fork`
//! makes, which marks all handles as closed: so the quick way in fails as for any closed handle, and
//! the slow one looks here. What is started by `posix_spawn`, `vfork` or `clone` without memory of its
//! own shares or replaces the parent's, and is no concern.

use core::sync::atomic::{AtomicBool, Ordering};

use crate::status::{Failure, forebay_status as Status};
use crate::{table, torch};

/// Whether this process was forked from one that had opened something.
static FORKED: AtomicBool = AtomicBool::new(false);

static WATCHED: AtomicBool = AtomicBool::new(false);

/// Has the system tell of forks from now on. To be called before anything is opened.
pub(crate) fn watch() {
    if WATCHED.load(Ordering::Acquire) {
        return;
    }
    // No `Once`, which a fork of another thread would leave half done in the child for ever. Two threads may both
    // come here: what is done in a child can be done twice.
    // SAFETY: the function is there as long as the process: Rust's libraries with threads' own data are not
    // unloaded.
    #[cfg(unix)]
    unsafe {
        // It can fail for want of memory alone; then children are not told apart, and nothing else is
        // worse for it.
        libc::pthread_atfork(None, None, Some(in_child));
    }
    WATCHED.store(true, Ordering::Release);
}

/// Runs in the child, in the thread that forked, while any lock may be held for ever: stores and
/// nothing else.
#[cfg(unix)]
extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
    table::close_all_at_once();
    torch::refuse_all();
}

/// An error in a forked child.
pub(crate) fn refuse() -> Result<(), Failure> {
    if !FORKED.load(Ordering::Relaxed) {
        return Ok(());
    }
    Err(Failure::new(
        Status::Forked,
        "this process was forked from one that had opened a device, and nothing of that is its own: \
         open devices after the fork, or start the child by exec",
    ))
}
