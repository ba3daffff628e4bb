//! The library's threads. Every crate starts its threads here, for two reasons:
//!
//! * **Signals.** A program may block a signal at any time to take it by `sigwait` or `signalfd`. A thread of ours that
//!   left the signal unblocked would get it instead, and the default action ends the process. So our threads block every
//!   signal from their first instruction on, apart from those that report a fault of the thread itself: blocking these is
//!   undefined.
//! * **Forks.** The standard library registers every thread it starts or ends in a list, under a lock. If another thread
//!   of the parent held that lock at a fork, a `std::thread` that the child starts waits for it forever and never runs.
//!   Threads of [`spawn`] are not on that list.

use std::io;
use std::thread::Scope;

/// Runs `work` on a new detached thread that takes no signals. A panic ends only that thread. On an error, `work` is
/// dropped without running.
#[cfg(any(not(unix), miri))]
#[allow(clippy::disallowed_methods, reason = "there are no signals here")]
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

#[cfg(any(not(unix), miri))]
fn with_signals_blocked<R>(work: impl FnOnce() -> R) -> R {
    work()
}

#[cfg(all(unix, not(miri)))]
pub use system::spawn;
#[cfg(all(unix, not(miri)))]
use system::with_signals_blocked;

/// Runs `work` on a new thread of a scope that takes no signals. On an error, `work` is dropped without running.
///
/// Uses a standard-library thread, since only those have scopes: not for threads that a forked child starts.
#[allow(clippy::disallowed_methods, reason = "the thread inherits the mask that is set around it")]
pub fn spawn_scoped<'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() + Send + 'scope,
) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    with_signals_blocked(|| thread.spawn_scoped(scope, work)).map(drop)
}

#[cfg(all(unix, not(miri)))]
mod system {
    use super::io;
    use core::ffi::c_void;
    use core::mem::MaybeUninit;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// The stack size of a thread, the same as the standard library's.
    const STACK: usize = 2 << 20;

    /// The signals that a fault of a thread raises in that thread.
    const FAULTS: [libc::c_int; 7] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGSYS,
        libc::SIGABRT,
    ];

    /// The thread's name and its work.
    type Start = (Vec<u8>, Box<dyn FnOnce() + Send>);

    /// Runs `work` on a new detached thread that takes no signals. A panic ends only that thread. On an error, `work`
    /// is dropped without running.
    pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        // Linux takes names of up to 15 bytes and the zero at their end.
        let name = name.bytes().filter(|&byte| byte != 0).take(15).chain([0]).collect();
        let start: Box<Start> = Box::new((name, Box::new(work)));
        let start = Box::into_raw(start);
        let code = with_signals_blocked(|| create(start));
        if code == 0 {
            return Ok(());
        }
        // SAFETY: no thread has begun, so it is still this function's.
        drop(unsafe { Box::from_raw(start) });
        Err(io::Error::from_raw_os_error(code))
    }

    /// Calls `work` while this thread blocks all signals but faults. A thread begins with the mask of the thread that
    /// creates it, so one that `work` creates never has a signal unblocked.
    pub(super) fn with_signals_blocked<R>(work: impl FnOnce() -> R) -> R {
        let mut signals = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: each set is initialised by the first call that it is given to, and the mask is this thread's.
        unsafe {
            libc::sigfillset(signals.as_mut_ptr());
            for fault in FAULTS {
                libc::sigdelset(signals.as_mut_ptr(), fault);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, signals.as_ptr(), before.as_mut_ptr());
        }
        let done = work();
        // SAFETY: the mask that this thread had, which the call above has written.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut()) };
        done
    }

    /// Creates the thread; 0, or the error's number. The thread takes over what `start` points to.
    fn create(start: *mut Start) -> i32 {
        let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
        let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
        // SAFETY: the attributes are initialised before they are used, and only then; the thread's number is
        // written to a place of our own; `run` takes over what `start` points to, where the thread begins.
        unsafe {
            match libc::pthread_attr_init(attributes.as_mut_ptr()) {
                0 => {
                    let of = attributes.as_mut_ptr();
                    // Where the system wants a larger stack it takes its own default.
                    let _ = libc::pthread_attr_setstacksize(of, STACK);
                    libc::pthread_attr_setdetachstate(of, libc::PTHREAD_CREATE_DETACHED);
                    let code = libc::pthread_create(thread.as_mut_ptr(), of, run, start.cast());
                    libc::pthread_attr_destroy(of);
                    code
                }
                code => code,
            }
        }
    }

    extern "C" fn run(start: *mut c_void) -> *mut c_void {
        // SAFETY: `spawn` made it of a box of this type, and gave it to this thread alone.
        let (name, work) = *unsafe { Box::from_raw(start.cast::<Start>()) };
        // SAFETY: the name ends with a zero, and the thread is this one.
        #[cfg(target_os = "linux")]
        unsafe {
            libc::pthread_setname_np(libc::pthread_self(), name.as_ptr().cast());
        }
        drop(name);
        if let Err(thrown) = catch_unwind(AssertUnwindSafe(work)) {
            // What was thrown may panic itself when it is dropped.
            core::mem::forget(thrown);
        }
        core::ptr::null_mut()
    }
}

#[cfg(test)]
#[cfg(all(unix, not(miri), not(loom)))]
mod tests;
