//! A barrier of which one side is free.
//!
//! Two threads that each write one flag and then read the other's need a full barrier between write
//! and read, or both may miss the other. On the processor that barrier costs as much as everything
//! else in a hot allocation. Where the system can interrupt all threads of the process
//! (`membarrier`), the side that is rare pays for both: `heavy` makes every running thread pass a
//! full barrier, and `light` only keeps the compiler from reordering.
//!
//! Where it cannot, both sides take a full barrier.

#[cfg(all(target_os = "linux", not(miri), not(loom)))]
mod system {
    use core::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

    use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};

    /// Whether `light` may rely on `heavy`. Only ever goes from no to yes, so that whoever saw yes
    /// can rely on it.
    static ONE_SIDED: AtomicBool = AtomicBool::new(false);

    /// Asks the system for one-sided barriers. To be called before they pay; calling it again does
    /// nothing.
    pub(crate) fn prepare() {
        if ONE_SIDED.load(Ordering::Relaxed)
            || !membarrier_query().contains(MembarrierQuery::PRIVATE_EXPEDITED)
        {
            return;
        }
        let registered = membarrier(MembarrierCommand::RegisterPrivateExpedited);
        // A call that is refused once by a sandbox is refused always: seen before it is relied on.
        if registered.is_ok() && membarrier(MembarrierCommand::PrivateExpedited).is_ok() {
            ONE_SIDED.store(true, Ordering::SeqCst);
        }
    }

    /// Whether a light barrier is enough for the side that is often.
    pub(crate) fn one_sided() -> bool {
        ONE_SIDED.load(Ordering::SeqCst)
    }

    /// The side that is often: between writing one's flag and reading the other's. Enough where
    /// [`one_sided`] said so before.
    #[inline(always)]
    pub(crate) fn light() {
        compiler_fence(Ordering::SeqCst);
    }

    /// The same, enough in any case.
    pub(crate) fn full() {
        fence(Ordering::SeqCst);
    }

    /// The side that is rare: likewise.
    pub(crate) fn heavy() {
        fence(Ordering::SeqCst);
        // Read after the fence: a `light` that saw yes did so after it was stored.
        if ONE_SIDED.load(Ordering::SeqCst) {
            // It can fail for want of kernel memory, for a moment.
            while membarrier(MembarrierCommand::PrivateExpedited).is_err() {
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(not(all(target_os = "linux", not(miri), not(loom))))]
mod system {
    #[cfg(not(loom))]
    use core::sync::atomic::{Ordering, fence};
    #[cfg(loom)]
    use loom::sync::atomic::{Ordering, fence};

    /// Nothing to ask for.
    pub(crate) fn prepare() {}

    /// Whether a light barrier is enough: not by itself. The model checker has barriers that are
    /// full on both sides, and so can look at the light way in.
    pub(crate) fn one_sided() -> bool {
        cfg!(loom)
    }

    /// The side that is often.
    #[inline(always)]
    pub(crate) fn light() {
        #[cfg(loom)]
        fence(Ordering::SeqCst);
    }

    /// The same, enough in any case.
    pub(crate) fn full() {
        fence(Ordering::SeqCst);
    }

    /// The side that is rare.
    pub(crate) fn heavy() {
        fence(Ordering::SeqCst);
    }
}

pub(crate) use system::{full, heavy, light, one_sided, prepare};
