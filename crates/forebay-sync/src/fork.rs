//! What a forked child may use.
//!
//! A child has a copy of its parent's memory and one thread. The driver refuses to serve it, the host streams' threads
//! do not exist in it, and a lock that another thread of the parent held stays locked forever, over data that may be
//! half changed. So a child can neither use nor drop anything created before the fork, on any device. The [`ForkGeneration`] of
//! a value tells before a lock is taken: calls that can fail return an error, the others return an empty answer, and
//! drops leak. A child may create its own devices and pools.
//!
//! The fast path of a pool does not check: it is some twenty instructions, and what it does in a child is
//! harmless. It takes no lock and calls no driver; it returns addresses that this very thread had cached,
//! and changes only the child's copy of them.
//!
//! Data that belongs to the process rather than to a device or pool comes in two kinds:
//!
//! * [`ForkSafeMutex`]: lists that the child needs as they are, such as the slots of threads and the names of tags.
//!   The forking thread takes their locks first, so the child finds them consistent and unlocked.
//! * [`PerProcess`]: lists of things that no child can use, such as events. The child starts with empty
//!   lists. Their locks may be held during driver calls, which a fork must not wait for.
//!
//! A static `OnceLock` is not among them: a fork while a thread fills it leaves it locked in the child for ever.
//!
//! A single value that a child must neither use nor drop goes into a [`LeakOnFork`]; a descriptor that it must not keep
//! open either, into a [`ProcessFd`].
//!
//! Nothing reads the process id: the system calls `in_child` in every child that `fork` creates. Processes
//! started by `posix_spawn`, `vfork` or `exec` replace the memory and need no care.

use core::any::Any;
#[cfg(unix)]
use core::cell::RefCell;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::collections::BTreeMap;
#[cfg(unix)]
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::lock;
#[cfg(unix)]
use super::try_lock;

/// The number of forks between this process and the first one that used forebay.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The value was created before the process forked, by the parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forked;

impl fmt::Display for Forked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("created before the process forked; create it again in the child")
    }
}

impl core::error::Error for Forked {}

/// The process in which a value was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkGeneration(u32);

impl ForkGeneration {
    /// This process. Forks are counted from now on.
    pub fn here() -> Self {
        watch();
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether this is a different process. Check before taking any lock.
    pub fn is_stale(self) -> bool {
        // Relaxed: the store was made by this process's only thread before it had another.
        self.0 != GENERATION.load(Ordering::Relaxed)
    }

    /// Fails in a different process. Check before taking any lock.
    pub fn check(self) -> Result<(), Forked> {
        if self.is_stale() { Err(Forked) } else { Ok(()) }
    }
}

/// A value that only the process that created it uses and drops. A forked child gets [`Forked`] instead of
/// the value and leaks it: the resource belongs to the parent, and dropping it could wait forever for a lock
/// that one of the parent's threads held.
#[derive(Debug)]
pub struct LeakOnFork<T> {
    value: ManuallyDrop<T>,
    fork_generation: ForkGeneration,
}

impl<T> LeakOnFork<T> {
    /// Binds `value` to this process.
    pub fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), fork_generation: ForkGeneration::here() }
    }

    /// The value; an error in a forked child.
    pub fn get(&self) -> Result<&T, Forked> {
        self.fork_generation.check()?;
        Ok(&self.value)
    }

    /// The value for changes; an error in a forked child.
    pub fn get_mut(&mut self) -> Result<&mut T, Forked> {
        self.fork_generation.check()?;
        Ok(&mut self.value)
    }

    /// Unwraps the value; in a forked child it is leaked, and this is an error.
    pub fn take(mut self) -> Result<T, Forked> {
        self.fork_generation.check()?;
        // SAFETY: the value is initialised, since only this function and the drop take it out, and `self` is
        // forgotten below, so the drop does not run.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        core::mem::forget(self);
        Ok(value)
    }
}

impl<T> Drop for LeakOnFork<T> {
    fn drop(&mut self) {
        if !self.fork_generation.is_stale() {
            // SAFETY: the value is initialised, as in `take`, and nothing uses it after its drop.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// A process-wide mutex that no fork leaves locked: the forking thread holds it during the fork, so the
/// child finds its data consistent and unlocked.
///
/// A thread that holds one takes no other lock, so the forking thread, which takes all of them, cannot
/// deadlock.
#[derive(Debug)]
pub struct ForkSafeMutex<T: 'static> {
    value: Mutex<T>,
    /// Whether it is among [`FORK_LOCKS`].
    listed: AtomicBool,
}

/// Every mutex that is locked before a fork.
static FORK_LOCKS: Mutex<Vec<&'static dyn LockForFork>> = Mutex::new(Vec::new());

#[cfg_attr(not(unix), allow(dead_code, reason = "there is no fork"))]
trait LockForFork: Sync {
    /// Locks it and returns the guard.
    fn lock_for_fork(&'static self) -> Box<dyn Any>;
}

impl<T: Send> LockForFork for ForkSafeMutex<T> {
    fn lock_for_fork(&'static self) -> Box<dyn Any> {
        Box::new(lock(&self.value))
    }
}

impl<T: Send> ForkSafeMutex<T> {
    /// Wraps the value of a static.
    pub const fn new(value: T) -> Self {
        Self { value: Mutex::new(value), listed: AtomicBool::new(false) }
    }

    /// Locks it. The caller takes no other lock while it holds the guard.
    pub fn lock(&'static self) -> MutexGuard<'static, T> {
        if !self.listed.load(Ordering::Acquire) {
            watch();
            // Registered under the list's lock, so no fork comes in between.
            let mut all = lock(&FORK_LOCKS);
            if !self.listed.swap(true, Ordering::Release) {
                all.push(self);
            }
        }
        lock(&self.value)
    }
}

/// A process-wide value. A forked child starts with its own default, and leaks the parent's.
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    of: ForkSafeMutex<Option<(ForkGeneration, &'static Mutex<T>)>>,
}

impl<T: Default + Send> PerProcess<T> {
    /// An empty value for a static.
    pub const fn new() -> Self {
        Self { of: ForkSafeMutex::new(None) }
    }

    /// Locks this process's value. The caller may take other locks while it holds the guard.
    pub fn lock(&'static self) -> MutexGuard<'static, T> {
        // A block of its own, so that the outer lock is released before waiting for the inner one.
        let own = {
            let mut of = self.of.lock();
            match *of {
                Some((fork_generation, own)) if !fork_generation.is_stale() => own,
                _ => {
                    let own: &'static Mutex<T> = Box::leak(Box::default());
                    *of = Some((ForkGeneration::here(), own));
                    own
                }
            }
        };
        lock(own)
    }
}

impl<T: Send + Sync> PerProcess<BTreeMap<u32, Weak<T>>> {
    /// The value with that number: the existing one if it is still in use, else a new one. The list is locked while it
    /// is opened, so that two threads that ask at once get the same one.
    pub fn get_or_open<E>(
        &'static self,
        number: u32,
        open: impl FnOnce() -> Result<Arc<T>, E>,
    ) -> Result<Arc<T>, E> {
        let mut list = self.lock();
        if let Some(value) = list.get(&number).and_then(Weak::upgrade) {
            return Ok(value);
        }
        let value = open()?;
        list.insert(number, Arc::downgrade(&value));
        Ok(value)
    }
}

impl<T: Default + Send> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// A descriptor that no forked child keeps open. The system closes descriptors on exec by itself, but a child that
/// goes on without exec has them all: a listening socket or a file lock would then outlive the process it belongs to.
///
/// A child made by a bare `clone` call, without `fork`, does keep it.
///
/// A program may close descriptors that it does not know, and open its own under their numbers. So a descriptor is
/// closed here only if it is still the same file.
#[cfg(unix)]
#[derive(Debug)]
pub struct ProcessFd {
    descriptor: ManuallyDrop<OwnedFd>,
    file: File,
    fork_generation: ForkGeneration,
}

/// What identifies a file, whatever its descriptor's number; `None` if the system does not say.
#[cfg(unix)]
type File = Option<(libc::dev_t, libc::ino_t)>;

/// The file that a descriptor's number now stands for.
#[cfg(unix)]
fn file(raw: RawFd) -> File {
    if cfg!(miri) {
        return None;
    }
    let mut about = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: any number may be asked about, and the answer is written to a place of our own.
    let answered = unsafe { libc::fstat(raw, about.as_mut_ptr()) } == 0;
    // SAFETY: the call has filled it where it succeeded.
    answered.then(|| unsafe { about.assume_init() }).map(|about| (about.st_dev, about.st_ino))
}

/// The descriptors that a forked child closes.
#[cfg(unix)]
static CLOSED_IN_CHILD: ForkSafeMutex<Vec<(RawFd, File)>> = ForkSafeMutex::new(Vec::new());

#[cfg(unix)]
impl ProcessFd {
    /// Binds `descriptor` to this process.
    pub fn new(descriptor: OwnedFd) -> Self {
        Self::make(|bound| bound(descriptor))
    }

    /// Makes descriptors while no thread forks, so that no child gets one that is not yet bound to this process. `make`
    /// waits for nothing and takes no lock.
    pub fn make<R>(make: impl FnOnce(&mut dyn FnMut(OwnedFd) -> Self) -> R) -> R {
        let fork_generation = ForkGeneration::here();
        let mut all = CLOSED_IN_CHILD.lock();
        make(&mut |descriptor| {
            let raw = descriptor.as_raw_fd();
            let file = file(raw);
            all.push((raw, file));
            Self { descriptor: ManuallyDrop::new(descriptor), file, fork_generation }
        })
    }

    /// The descriptor; an error in a forked child, where its number may be another's by now.
    pub fn get(&self) -> Result<BorrowedFd<'_>, Forked> {
        self.fork_generation.check()?;
        Ok(self.descriptor.as_fd())
    }
}

#[cfg(unix)]
impl Drop for ProcessFd {
    fn drop(&mut self) {
        if self.fork_generation.is_stale() {
            return; // The child has closed it.
        }
        let raw = self.descriptor.as_raw_fd();
        // Closed under the lock, so that no child closes what has this number next.
        let mut all = CLOSED_IN_CHILD.lock();
        if let Some(at) = all.iter().position(|&one| one == (raw, self.file)) {
            all.swap_remove(at);
        }
        if file(raw) == self.file {
            // SAFETY: the descriptor is initialised and open, and nothing uses it after this drop.
            unsafe { ManuallyDrop::drop(&mut self.descriptor) };
        }
    }
}

#[cfg(unix)]
thread_local! {
    /// The guards that this thread holds while it forks.
    static LOCKED_FOR_FORK: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Runs before a fork, in the thread that forks.
#[cfg(unix)]
extern "C" fn before() {
    // A thread that is ending cannot keep them; its fork goes ahead without.
    let _ = LOCKED_FOR_FORK.try_with(|kept| {
        // Not empty if the handlers were registered twice.
        if kept.borrow().is_empty() {
            let all = lock(&FORK_LOCKS);
            let mut held: Vec<Box<dyn Any>> = all.iter().map(|one| one.lock_for_fork()).collect();
            held.push(Box::new(all));
            kept.replace(held);
        }
    });
}

/// Runs in the parent after a fork, in the thread that forked.
#[cfg(unix)]
extern "C" fn in_parent() {
    let _ = LOCKED_FOR_FORK.try_with(RefCell::take);
}

/// Registers the fork handlers.
fn watch() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if WATCHED.load(Ordering::Acquire) {
        return;
    }
    // Not a `Once`, which a fork in another thread could leave half done in the child. Two threads may both
    // register: running the handlers twice is harmless.
    // SAFETY: the handlers stay mapped as long as the process, because libraries with thread-locals are not
    // unloaded. Registering fails only without memory; then children are not recognised as such.
    #[cfg(all(unix, not(miri)))]
    unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    }
    WATCHED.store(true, Ordering::Release);
}

/// The function that `in_child` calls last; null until [`set_child_hook`] sets one.
static CHILD_HOOK: AtomicPtr<fn()> = AtomicPtr::new(ptr::null_mut());

/// Calls `hook` in every child forked from now on, before any other forebay code runs there. In a child any
/// lock may stay locked forever, so `hook` must only store to atomics. It may run twice for one fork.
///
/// There is one hook for the process: setting another replaces it.
pub fn set_child_hook(hook: &'static fn()) {
    watch();
    CHILD_HOOK.store(ptr::from_ref(hook).cast_mut(), Ordering::Release);
}

/// Runs in the child, in the thread that forked. Any other lock may stay locked forever.
#[cfg(unix)]
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    let _ = LOCKED_FOR_FORK.try_with(RefCell::take);
    // Free, since the forking thread held it; unless that thread was ending, and then the descriptors stay open.
    if let Some(mut all) = try_lock(&CLOSED_IN_CHILD.value) {
        for (raw, _) in
            core::mem::take(&mut *all).into_iter().filter(|&(raw, own)| file(raw) == own)
        {
            // SAFETY: the child's copy of a descriptor that a `ProcessFd` owns, which does not use it in the child.
            drop(unsafe { OwnedFd::from_raw_fd(raw) });
        }
    }
    // SAFETY: the pointer is null or comes from the `&'static fn()` of `set_child_hook`.
    if let Some(hook) = unsafe { CHILD_HOOK.load(Ordering::Acquire).as_ref() } {
        hook();
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
