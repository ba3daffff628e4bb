//! Forked children.
//!
//! A child has a copy of its parent's memory and one thread. The driver refuses it, the threads that are
//! the host's streams are not there, and a lock that another thread of the parent held is never given up.
//! What such a lock guards may be half changed. So nothing that was made before a fork can be used in the
//! child, on any device, nor dropped: its [`Birth`] says so before a lock is taken, calls that can fail
//! return an error, the others give an empty answer, and drops leak. A child may make devices and pools of
//! its own.
//!
//! The fast path of a pool does not look: it is some twenty instructions with no load to spare, and what it
//! does is harmless. It takes no lock and calls no driver; it hands out addresses that this very thread had
//! cached, and changes the child's copy of them alone.
//!
//! What belongs to the whole process and not to a device or pool comes in two kinds:
//!
//! * [`Whole`]: lists that the child needs as they are, such as the slots of threads and the names of tags.
//!   The thread that forks takes their locks first, so the child finds them whole and free.
//! * [`PerProcess`]: lists of things that no child can use, such as events. The child begins with empty ones.
//!   Their locks may be held while a driver is called, which a fork must not wait for.
//!
//! One value that a child must neither use nor drop is a [`LeakOnFork`].
//!
//! Nothing asks the system for the process's number. The system calls `in_child` in every child that
//! `fork` makes. What is started by `posix_spawn`, `vfork` or `exec` replaces the memory, and is no concern.

use core::any::Any;
#[cfg(unix)]
use core::cell::RefCell;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::lock;

/// How many forks lie between this process and the one that first made something.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Something was made by another process than this one: by its parent, before a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forked;

impl fmt::Display for Forked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("made before the process forked")
    }
}

impl core::error::Error for Forked {}

/// The process in which something was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Birth(u32);

impl Birth {
    /// Here. Forks are counted from now on.
    pub fn here() -> Self {
        watch();
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether this process is another one. To be asked before any lock is taken.
    pub fn is_elsewhere(self) -> bool {
        // Relaxed: the store was made by this process's only thread before it had another.
        self.0 != GENERATION.load(Ordering::Relaxed)
    }

    /// An error where this process is not the one. To be asked before any lock is taken.
    pub fn check(self) -> Result<(), Forked> {
        if self.is_elsewhere() { Err(Forked) } else { Ok(()) }
    }
}

/// A value that only the process that made it uses and drops. A forked child gets [`Forked`] instead of the
/// value and leaks it: the resource behind it belongs to the parent, and dropping it could wait for ever for
/// a lock that one of the parent's threads held.
#[derive(Debug)]
pub struct LeakOnFork<T> {
    value: ManuallyDrop<T>,
    birth: Birth,
}

impl<T> LeakOnFork<T> {
    /// Binds `value` to this process.
    pub fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), birth: Birth::here() }
    }

    /// The value; an error in a forked child.
    pub fn get(&self) -> Result<&T, Forked> {
        self.birth.check()?;
        Ok(&self.value)
    }

    /// The value for changes; an error in a forked child.
    pub fn get_mut(&mut self) -> Result<&mut T, Forked> {
        self.birth.check()?;
        Ok(&mut self.value)
    }

    /// Unwraps the value; in a forked child it is leaked, and this is an error.
    pub fn take(mut self) -> Result<T, Forked> {
        self.birth.check()?;
        // SAFETY: the value is initialised, since only this function and the drop take it out, and `self` is
        // forgotten below, so the drop does not run.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        core::mem::forget(self);
        Ok(value)
    }
}

impl<T> Drop for LeakOnFork<T> {
    fn drop(&mut self) {
        if !self.birth.is_elsewhere() {
            // SAFETY: the value is initialised, as in `take`, and nothing uses it after its drop.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// Something of the whole process behind a lock that no fork leaves locked: the thread that forks has it
/// while it does, so the child finds it whole and free.
///
/// No other lock is taken while one of these is held, but in the thread that forks: so it waits for nobody
/// who waits for it.
#[derive(Debug)]
pub struct Whole<T: 'static> {
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
    /// The value, to be a static.
    pub const fn new(value: T) -> Self {
        Self { value: Mutex::new(value), listed: AtomicBool::new(false) }
    }

    /// Locks it. No other lock is taken while the guard is there.
    pub fn lock(&'static self) -> MutexGuard<'static, T> {
        if !self.listed.load(Ordering::Acquire) {
            watch();
            // Listed with the list locked: no fork comes between the two, and nobody locks the value before.
            let mut all = lock(&WHOLE);
            if !self.listed.swap(true, Ordering::Release) {
                all.push(self);
            }
        }
        lock(&self.value)
    }
}

/// Something of the whole process of which a forked child has one of its own, empty at first. What the parent
/// had is leaked in the child.
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    of: Whole<Option<(Birth, &'static Mutex<T>)>>,
}

impl<T: Default + Send> PerProcess<T> {
    /// Empty, to be a static.
    pub const fn new() -> Self {
        Self { of: Whole::new(None) }
    }

    /// Locks this process's own. Other locks may be taken while the guard is there.
    pub fn lock(&'static self) -> MutexGuard<'static, T> {
        // A statement of its own: the outer lock is given up before the inner one is waited for.
        let own = {
            let mut of = self.of.lock();
            match *of {
                Some((birth, own)) if !birth.is_elsewhere() => own,
                _ => {
                    let own: &'static Mutex<T> = Box::leak(Box::default());
                    *of = Some((Birth::here(), own));
                    own
                }
            }
        };
        lock(own)
    }
}

impl<T: Default + Send> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
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
    // A thread that is ending has nowhere to keep them: then its fork is as without.
    let _ = HELD.try_with(|kept| {
        // Held already where the handlers were set up twice.
        if kept.borrow().is_empty() {
            let all = lock(&WHOLE);
            let mut held: Vec<Box<dyn Any>> = all.iter().map(|one| one.hold()).collect();
            held.push(Box::new(all));
            kept.replace(held);
        }
    });
}

/// Runs in the parent after a fork, in the thread that forked.
#[cfg(unix)]
extern "C" fn in_parent() {
    let _ = HELD.try_with(RefCell::take);
}

/// Has the system tell of forks.
fn watch() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if WATCHED.load(Ordering::Acquire) {
        return;
    }
    // No `Once`, which a fork of another thread would leave half done in the child for ever. Two threads may
    // both come here: the handlers do no harm when they run twice.
    // SAFETY: the functions are there as long as the process: libraries with data of threads' own are not
    // unloaded. It can fail for want of memory alone; then children are not told apart, and nothing else is
    // worse for it.
    #[cfg(all(unix, not(miri)))]
    unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    }
    WATCHED.store(true, Ordering::Release);
}

/// The function that `in_child` calls last; null until [`set_child_hook`] sets one.
static CHILD_HOOK: AtomicPtr<fn()> = AtomicPtr::new(ptr::null_mut());

/// Calls `hook` in every child that is forked from now on, before anything else of forebay runs there. Any
/// lock may be held for ever in a child, so `hook` only stores to atomics. It may run twice for one fork.
///
/// There is one hook for the process: setting another replaces it.
pub fn set_child_hook(hook: &'static fn()) {
    watch();
    CHILD_HOOK.store(ptr::from_ref(hook).cast_mut(), Ordering::Release);
}

/// Runs in the child, in the thread that forked, while any other lock may be held for ever.
#[cfg(unix)]
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    let _ = HELD.try_with(RefCell::take);
    // SAFETY: the pointer is null or comes from the `&'static fn()` of `set_child_hook`.
    if let Some(hook) = unsafe { CHILD_HOOK.load(Ordering::Acquire).as_ref() } {
        hook();
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use core::cell::Cell;

    use super::*;

    /// Counts its drops.
    #[derive(Debug)]
    struct Counted<'a>(&'a Cell<u32>);

    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    #[test]
    fn a_value_is_dropped_once_by_the_process_that_made_it() {
        let drops = Cell::new(0);
        let mut kept = LeakOnFork::new(Counted(&drops));
        assert!(kept.get().is_ok() && kept.get_mut().is_ok());
        drop(kept);
        assert_eq!(drops.get(), 1);
        let taken = LeakOnFork::new(Counted(&drops)).take();
        assert!(taken.is_ok());
        assert_eq!(drops.get(), 1, "the value is the caller's now");
        drop(taken);
        assert_eq!(drops.get(), 2);
    }

    #[test]
    fn a_value_of_another_process_is_leaked() {
        let drops = Cell::new(0);
        // The generation that a child of this process has.
        let birth = Birth(Birth::here().0.wrapping_add(1));
        let foreign = || LeakOnFork { value: ManuallyDrop::new(Counted(&drops)), birth };
        assert_eq!(foreign().get().err(), Some(Forked));
        assert_eq!(foreign().get_mut().err(), Some(Forked));
        assert_eq!(foreign().take().err(), Some(Forked));
        assert_eq!(drops.get(), 0);
    }
}
