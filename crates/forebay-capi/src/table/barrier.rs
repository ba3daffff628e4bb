//! A barrier of which one side is free, as the pool's own gates have it.
//!
//! A thread that enters a pool writes down that it is inside and then looks whether the pool is open;
//! whoever closes one marks it as closed and then looks who is inside. Each needs a full barrier
//! between the two, or both may miss the other. Entering happens with every allocation and closing
//! hardly ever, so whoever closes pays for both: `heavy` makes every running thread pass a barrier
//! (`membarrier`), and `light` only keeps the compiler from reordering. Where the system has no such
//! call, both sides take a full barrier.

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use core::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

    use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};

    /// Whether `light` may rely on `heavy`. Goes from no to yes and never back, so that whoever saw
    /// yes can rely on it.
    static ONE_SIDED: AtomicBool = AtomicBool::new(false);

    /// Asks the system for it. To be called before the first `light`.
    pub(crate) fn prepare() {
        if !membarrier_query().contains(MembarrierQuery::PRIVATE_EXPEDITED) {
            return;
        }
        let registered = membarrier(MembarrierCommand::RegisterPrivateExpedited);
        // A call that a sandbox refuses once it refuses always: tried before it is relied on.
        if registered.is_ok() && membarrier(MembarrierCommand::PrivateExpedited).is_ok() {
            ONE_SIDED.store(true, Ordering::SeqCst);
        }
    }

    /// The side that is often: between a write of one's own and a read of what another writes.
    #[inline(always)]
    pub(crate) fn light() {
        if ONE_SIDED.load(Ordering::Relaxed) {
            compiler_fence(Ordering::SeqCst);
        } else {
            full();
        }
    }

    #[cold]
    #[inline(never)]
    fn full() {
        fence(Ordering::SeqCst);
    }

    /// The side that is rare.
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

#[cfg(not(all(target_os = "linux", not(miri))))]
mod system {
    use core::sync::atomic::{Ordering, fence};

    /// Nothing to ask for.
    pub(crate) fn prepare() {}

    /// The side that is often.
    #[inline(always)]
    pub(crate) fn light() {
        fence(Ordering::SeqCst);
    }

    /// The side that is rare.
    pub(crate) fn heavy() {
        fence(Ordering::SeqCst);
    }
}

pub(crate) use system::{heavy, light, prepare};
