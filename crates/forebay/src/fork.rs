//! Forked children.
//!
//! A child has a copy of its parent's memory and one thread. The driver refuses it, the threads that are
//! the host's streams are not there, and a lock that another thread of the parent held is never given up.
//! So nothing that was made before a fork can be used in the child, on any device: a call that would wait
//! for a lock or for the device returns [`Error::Forked`] instead, before it takes a lock. A child may make
//! devices and pools of its own.
//!
//! The fast path does not look: it is some twenty instructions with no load to spare, and what it does is
//! harmless. It takes no lock and calls no driver; it hands out addresses that this very thread had cached,
//! and changes the child's copy of them alone.
//!
//! Nothing asks the system for the process's number. The system calls [`in_child`] in every child that
//! `fork` makes. What is started by `posix_spawn`, `vfork` or `exec` replaces the memory, and is no concern.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Once;

use crate::{Error, Result};

/// How many forks lie between this process and the one that first made something.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The process in which something was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Birth(u32);

impl Birth {
    /// Here. Forks are counted from now on.
    pub(crate) fn here() -> Self {
        watch();
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// An error where this process is not the one. For the slow path, before any lock is taken.
    pub(crate) fn check(self) -> Result<()> {
        // Relaxed: the store was made by this process's only thread before it had another.
        if self.0 == GENERATION.load(Ordering::Relaxed) { Ok(()) } else { Err(Error::Forked) }
    }
}

/// Whether this process is a forked child of one that made something.
pub(crate) fn is_forked() -> bool {
    GENERATION.load(Ordering::Relaxed) != 0
}

/// Has the system tell of forks.
fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the function is there as long as the process: libraries with data of threads' own are not
        // unloaded. It can fail for want of memory alone; then children are not told apart, and nothing
        // else is worse for it.
        #[cfg(unix)]
        unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
        }
    });
}

/// Runs in the child, in the thread that forked, while any lock may be held for ever: one store.
#[cfg(unix)]
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
