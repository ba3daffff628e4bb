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
//! The lists of pools and of the threads that the library has started are [whole in the child](Whole): the
//! thread that forks takes their locks first. So the pools that a child makes find each other and their
//! threads as in any process. A [`Birth`] marks the entries that the child inherited.
//!
//! Nothing asks the system for the process's number. The system calls [`in_child`] in every child that
//! `fork` makes. What is started by `posix_spawn`, `vfork` or `exec` replaces the memory, and is no concern.

use core::any::Any;
#[cfg(unix)]
use core::cell::RefCell;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once};

use crate::sync::lock;
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

/// Something of the whole process behind a lock that no fork leaves locked: the thread that forks has it
/// while it does, so the child finds it whole and free.
///
/// No other lock is taken while one of these is held, but in the thread that forks: so it waits for nobody
/// who waits for it.
#[derive(Debug)]
pub(crate) struct Whole<T: 'static> {
    value: Mutex<T>,
    /// Whether it is among [`WHOLE`].
    listed: AtomicBool,
}

/// Everything that is taken before a fork.
static WHOLE: Mutex<Vec<&'static dyn Hold>> = Mutex::new(Vec::new());

#[cfg_attr(not(unix), allow(dead_code, reason = "there is no fork"))]
trait Hold: Sync {
    /// Keeps it locked as long as this is there.
    fn hold(&'static self) -> Box<dyn Any>;
}

impl<T: Send> Hold for Whole<T> {
    fn hold(&'static self) -> Box<dyn Any> {
        Box::new(lock(&self.value))
    }
}

impl<T: Send> Whole<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { value: Mutex::new(value), listed: AtomicBool::new(false) }
    }

    pub(crate) fn lock(&'static self) -> MutexGuard<'static, T> {
        if !self.listed.swap(true, Ordering::Relaxed) {
            watch();
            lock(&WHOLE).push(self);
        }
        lock(&self.value)
    }
}

#[cfg(unix)]
thread_local! {
    /// What this thread holds while it forks.
    static HELD: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Runs before a fork, in the thread that forks.
#[cfg(unix)]
extern "C" fn before() {
    let all = lock(&WHOLE);
    let mut held: Vec<Box<dyn Any>> = all.iter().map(|one| one.hold()).collect();
    held.push(Box::new(all));
    // A thread that is ending has nowhere to keep them: then its fork is as without.
    let _ = HELD.try_with(|kept| kept.replace(held));
}

/// Runs in the parent after a fork, in the thread that forked.
#[cfg(unix)]
extern "C" fn in_parent() {
    let _ = HELD.try_with(RefCell::take);
}

/// Has the system tell of forks.
fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the functions are there as long as the process: libraries with data of threads' own are not
        // unloaded. It can fail for want of memory alone; then children are not told apart, and nothing
        // else is worse for it.
        #[cfg(unix)]
        unsafe {
            libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
        }
    });
}

/// Runs in the child, in the thread that forked, while any other lock may be held for ever.
#[cfg(unix)]
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    let _ = HELD.try_with(RefCell::take);
}
