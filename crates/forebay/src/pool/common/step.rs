//! Test hooks at moments when another thread may intervene. In other builds they compile to nothing.

#[cfg(test)]
use std::cell::RefCell;

/// A moment at which another thread may intervene.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum Step {
    /// The pool is about to grow, and has fixed the stream slot to grow for.
    Growing,
    /// A block that is to be freed was looked at, and not claimed yet.
    Claiming,
    /// A freed block was found to have been used on other streams.
    JoiningUsers,
    /// A block has left the quarantine and is not in the heap yet.
    LeavingQuarantine,
    /// An estimate has seen the thread caches, and not yet the heap.
    Estimating,
    /// The pool is about to wait for the device.
    Settling,
    /// A growth has claimed a part of what it needs. The backing is locked.
    ClaimedPart,
    /// A growth has claimed what it needs, and the driver has not begun. The backing is locked.
    Claimed,
    /// A request that reclaims memory is about to look for it.
    Looking,
    /// The last event of a stream is about to be recorded, under the pool's locks.
    Ending,
}

#[cfg(test)]
type Hook = Box<dyn FnMut(Step)>;

#[cfg(test)]
thread_local! {
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// Calls the hook of this thread.
#[cfg(test)]
pub(in crate::pool) fn reach(step: Step) {
    let hook = HOOK.try_with(|hook| hook.borrow_mut().take()).ok().flatten();
    if let Some(mut hook) = hook {
        // Removed during the call, so that the hook does not call itself.
        hook(step);
        HOOK.set(Some(hook));
    }
}

#[cfg(not(test))]
#[inline(always)]
pub(in crate::pool) fn reach(_: Step) {}

/// Calls `hook` at each step until this thread ends.
#[cfg(test)]
#[cfg(not(loom))]
pub(in crate::pool) fn step_to_the_end(hook: impl FnMut(Step) + 'static) {
    HOOK.set(Some(Box::new(hook)));
}

/// Runs `work` on this thread, and calls `hook` at each step of it.
#[cfg(test)]
#[cfg(not(loom))]
pub(in crate::pool) fn stepping<R>(
    hook: impl FnMut(Step) + 'static,
    work: impl FnOnce() -> R,
) -> R {
    step_to_the_end(hook);
    let done = work();
    HOOK.set(None);
    done
}
