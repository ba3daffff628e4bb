//! A barrier of which one side is free, as the pool's own gates have it.
//!
//! A thread that enters a pool writes down that it is inside and then looks whether the pool is open;
//! whoever closes one marks it as closed and then looks who is inside. Each needs a full barrier
//! between the two, or both may miss the other. Entering happens with every allocation and closing
//! hardly ever, so whoever closes pays for both: `heavy` makes every running thread pass a barrier
//! (`membarrier`), and `light` only keeps the compiler from reordering.
//!
//! Where the system has no such call, nobody enters this way ([`available`]).

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use core::sync::atomic::{Ordering, compiler_fence, fence};
    use std::sync::OnceLock;

    use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};

    /// Whether `heavy` does what it says. Asked of the system once.
    pub(crate) fn available() -> bool {
        static AVAILABLE: OnceLock<bool> = OnceLock::new();
        *AVAILABLE.get_or_init(|| {
            // A call that a sandbox refuses once it refuses always: tried before it is relied on.
            membarrier_query().contains(MembarrierQuery::PRIVATE_EXPEDITED)
                && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
                && membarrier(MembarrierCommand::PrivateExpedited).is_ok()
        })
    }

    /// The side that is often: between a write of one's own and a read of what another writes. Only
    /// where it is [`available`].
    #[inline(always)]
    pub(crate) fn light() {
        compiler_fence(Ordering::SeqCst);
    }

    /// The side that is rare. Where it is not [`available`] there is nobody on the other.
    pub(crate) fn heavy() {
        fence(Ordering::SeqCst);
        if available() {
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

    /// Full barriers on both sides are to be had everywhere.
    pub(crate) fn available() -> bool {
        true
    }

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

pub(crate) use system::{available, heavy, light};
