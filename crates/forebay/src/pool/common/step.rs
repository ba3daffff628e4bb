//! Where a test may step in: moments at which another thread may do something, named so that the test can do it
//! there. Nothing happens there but in tests.

#[cfg(test)]
use std::cell::RefCell;

/// A moment at which others may come between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum Step {
    /// It is known in whose order room is to be made.
    MakingRoom,
    /// It is known that a block was used on other streams.
    JoiningUsers,
    /// A block is out of the quarantine and nowhere else yet.
    LeavingQuarantine,
    /// It was decided to wait for the device.
    Settling,
    /// The last event of a stream is about to be recorded, under the pool's locks.
    Ending,
}

#[cfg(test)]
type Hook = Box<dyn FnMut(Step)>;

#[cfg(test)]
thread_local! {
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// Lets a test step in.
#[cfg(test)]
pub(in crate::pool) fn reach(step: Step) {
    let hook = HOOK.try_with(|hook| hook.borrow_mut().take()).ok().flatten();
    if let Some(mut hook) = hook {
        // Not there meanwhile: what it does reaches no step.
        hook(step);
        HOOK.set(Some(hook));
    }
}

/// Does nothing.
#[cfg(not(test))]
#[inline(always)]
pub(in crate::pool) fn reach(_: Step) {}

/// Does `hook` at each step from here to the end of this thread.
#[cfg(test)]
#[cfg(not(loom))]
pub(in crate::pool) fn step_to_the_end(hook: impl FnMut(Step) + 'static) {
    HOOK.set(Some(Box::new(hook)));
}

/// Does `work` on this thread, and `hook` at each step of it.
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
