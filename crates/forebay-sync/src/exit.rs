//! Work at the end of the process.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::panic::catch_unwind;

use super::fork::Birth;

struct Hook {
    birth: Birth,
    work: fn(),
}

/// What runs at the end; null until [`at_exit`] sets it.
static HOOK: AtomicPtr<Hook> = AtomicPtr::new(ptr::null_mut());

/// Calls `work` once when this process ends by `exit` or by returning from `main`, and never in a forked child. There is one
/// hook for the process: the first that was given stays. A panic ends in it. Does nothing where the system has no `atexit`.
pub fn at_exit(work: fn()) {
    let hook = Box::into_raw(Box::new(Hook { birth: Birth::here(), work }));
    let mut seen = ptr::null_mut();
    loop {
        match HOOK.compare_exchange(seen, hook, Ordering::AcqRel, Ordering::Acquire) {
            // A child inherits the registration of its parent.
            Ok(before) => {
                if before.is_null() {
                    register();
                }
                return;
            }
            // SAFETY: every hook is a leaked box.
            Err(other) if unsafe { (*other).birth.is_elsewhere() } => seen = other,
            Err(_) => {
                // SAFETY: it was made above, and nobody saw it.
                drop(unsafe { Box::from_raw(hook) });
                return;
            }
        }
    }
}

fn register() {
    // SAFETY: the handler stays mapped as long as the process, as those of forks do.
    #[cfg(all(unix, not(miri)))]
    unsafe {
        libc::atexit(run);
    }
}

#[cfg(all(unix, not(miri)))]
extern "C" fn run() {
    // SAFETY: null, or a leaked box.
    if let Some(hook) = unsafe { HOOK.load(Ordering::Acquire).as_ref() }
        && !hook.birth.is_elsewhere()
    {
        let _ = catch_unwind(hook.work);
    }
}
