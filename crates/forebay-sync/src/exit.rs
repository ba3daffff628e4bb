//! Work at the end of the process.

use std::panic::catch_unwind;

use super::fork::{ForkGeneration, ForkSafeMutex};

/// The process that asked for it, and what runs at the end.
type Hook = (ForkGeneration, fn());

static HOOK: ForkSafeMutex<Option<Hook>> = ForkSafeMutex::new(None);

/// Calls `work` once when this process ends by `exit` or by returning from `main`, never in a forked child. There is
/// one hook per process: the first one set stays. A panic in it is caught. Does nothing on a system without `atexit`.
pub fn at_exit(work: fn()) {
    let mut hook = HOOK.lock();
    let before = *hook;
    if before.is_none_or(|(fork_generation, _)| fork_generation.is_stale()) {
        *hook = Some((ForkGeneration::here(), work));
    }
    drop(hook);
    // A child inherits the registration of its parent.
    if before.is_none() {
        register();
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
    let hook = *HOOK.lock();
    if let Some((fork_generation, work)) = hook
        && !fork_generation.is_stale()
    {
        let _ = catch_unwind(work);
    }
}
