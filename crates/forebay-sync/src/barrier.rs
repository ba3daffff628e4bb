//! An asymmetric barrier: one side of a two-sided handshake costs nothing.
//!
//! Two threads that each write a flag and then read the other's flag need a full barrier between
//! write and read, or both may miss the other. A full barrier costs as much as the rest of a cached
//! allocation. [`heavy`] pays for both sides: it makes every running thread of the process pass a
//! full barrier, so the frequent side needs only [`light`], which stops the compiler from reordering.
//!
//! ```text
//!   Symmetric ── prepare() ──> Preparing ── membarrier works ──> OneSided ── it is refused ──> Refused
//!   both sides take            light() is enough; heavy()                          both sides, for good
//!   full barriers              completes it first ───────── it is refused ───────────────────────^
//! ```
//!
//! In a process with threads, the kernel takes milliseconds to register for `membarrier`: ten on a machine with a GPU,
//! more than everything else in opening a pool. So a separate thread does it. Until it is done, `light` is still
//! enough, because no `heavy` returns before then.
//!
//! A sandbox can forbid `membarrier` after the process has started to rely on it. Threads that took
//! the light side then still exist, so `heavy` falls back to a barrier that needs no permission
//! (`interrupt_every_core`) and returns `false`: the caller has to move its threads to full barriers.

#[cfg(all(target_os = "linux", not(miri), not(loom)))]
mod system {
    use core::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};
    use core::time::Duration;

    use rustix::io::Errno;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
    use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};

    /// `membarrier` was not requested, or the system does not have it.
    const SYMMETRIC: u8 = 0;
    /// `membarrier` works.
    const ONE_SIDED: u8 = 1;
    /// `membarrier` worked, or seemed to, and is refused now.
    const REFUSED: u8 = 2;
    /// The system has `membarrier`, and it is being registered for.
    const PREPARING: u8 = 3;

    static STATE: AtomicU8 = AtomicU8::new(SYMMETRIC);

    /// How often a call that failed for lack of kernel memory is retried, a millisecond apart.
    const RETRIES: u32 = 100;

    /// How long a store may stay in the store buffer of its core, with a wide margin. A buffer drains
    /// in well under a microsecond, whatever its core executes: this is four orders of magnitude more.
    const DRAINED: Duration = Duration::from_millis(10);

    /// Asks the system for one-sided barriers, without waiting for it. Further calls do nothing.
    pub fn prepare() {
        if STATE.load(Ordering::Relaxed) != SYMMETRIC
            || !membarrier_query().contains(MembarrierQuery::PRIVATE_EXPEDITED)
            || !changes(SYMMETRIC, PREPARING)
        {
            return;
        }
        if crate::thread::spawn("forebay-barrier", register).is_err() {
            register();
        }
    }

    /// Completes the preparation. Several threads may do so at once.
    fn register() {
        let registered = retried(MembarrierCommand::RegisterPrivateExpedited);
        let works = registered.is_ok() && retried(MembarrierCommand::PrivateExpedited).is_ok();
        changes(PREPARING, if works { ONE_SIDED } else { REFUSED });
    }

    fn changes(from: u8, to: u8) -> bool {
        STATE.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Whether [`light`] is enough for threads that begin to use it now.
    pub fn one_sided() -> bool {
        matches!(STATE.load(Ordering::SeqCst), ONE_SIDED | PREPARING)
    }

    /// The frequent side, between writing one's own flag and reading the other's. Enough against
    /// [`heavy`] wherever [`one_sided`] was true before.
    #[inline(always)]
    pub fn light() {
        compiler_fence(Ordering::SeqCst);
    }

    /// A full barrier of the calling thread: either side, against [`full`] on the other.
    pub fn full() {
        fence(Ordering::SeqCst);
    }

    /// The rare side: every thread of the process passes a full barrier before this returns.
    ///
    /// Returns `false` if the system refuses `membarrier`. The barrier was still passed, but it took milliseconds: the
    /// caller should have the other side take [`full`] barriers from now on.
    #[must_use]
    pub fn heavy() -> bool {
        fence(Ordering::SeqCst);
        if STATE.load(Ordering::SeqCst) == PREPARING {
            // Not by waiting for the other thread: a forked child has none.
            register();
        }
        if STATE.load(Ordering::SeqCst) == ONE_SIDED {
            if retried(MembarrierCommand::PrivateExpedited).is_ok() {
                return true;
            }
            STATE.store(REFUSED, Ordering::SeqCst);
        }
        if STATE.load(Ordering::SeqCst) == REFUSED {
            interrupt_every_core();
            return false;
        }
        true
    }

    /// Calls `membarrier`; an error is one that will not pass.
    fn retried(command: MembarrierCommand) -> Result<(), Errno> {
        for _ in 0..RETRIES {
            match membarrier(command) {
                Err(Errno::NOMEM | Errno::AGAIN | Errno::INTR) => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                done => return done,
            }
        }
        membarrier(command)
    }

    /// A heavy barrier without `membarrier`, in two ways of which either is enough:
    ///
    /// * Taking the permission to write from a page that was written makes the kernel flush it from
    ///   the address caches of all cores that run this process. On most x86-64 machines it interrupts
    ///   them for that, and an interrupt is a full barrier. A thread that does not run passed one when
    ///   it was switched out. Cores with broadcast flushes are not interrupted, and a sandbox may
    ///   forbid the calls, so their outcome is not relied on.
    /// * Sleeping much longer than a store can stay in a store buffer. The caller's flag was visible to
    ///   all cores before, so a thread that read its old value did so before the sleep, and its own
    ///   flag, written before that read, is visible after the sleep.
    fn interrupt_every_core() {
        const PAGE: usize = 4096;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the mapping is new, at an address of the system's choice, and nothing else has it.
        let page =
            unsafe { mmap_anonymous(core::ptr::null_mut(), PAGE, access, MapFlags::PRIVATE) };
        if let Ok(page) = page {
            // SAFETY: the page was just mapped, can be written, and is this call's alone.
            unsafe { page.cast::<u8>().write_volatile(1) };
            // SAFETY: as above; the page is not accessed after this.
            let _ = unsafe { mprotect(page, PAGE, MprotectFlags::READ) };
            // SAFETY: as above; nothing refers to the page.
            let _ = unsafe { munmap(page, PAGE) };
        }
        std::thread::sleep(DRAINED);
        fence(Ordering::SeqCst);
    }
}

#[cfg(not(all(target_os = "linux", not(miri), not(loom))))]
mod system {
    #[cfg(not(loom))]
    use core::sync::atomic::{Ordering, fence};
    #[cfg(loom)]
    use loom::sync::atomic::{Ordering, fence};

    /// There is nothing to ask for.
    pub fn prepare() {}

    /// Whether a light barrier is enough. It is for the model checker alone, whose light barriers are
    /// full ones, so that it can check the light way in.
    pub fn one_sided() -> bool {
        cfg!(loom)
    }

    /// The frequent side.
    #[inline(always)]
    pub fn light() {
        #[cfg(loom)]
        fence(Ordering::SeqCst);
    }

    /// A full barrier of the calling thread.
    pub fn full() {
        fence(Ordering::SeqCst);
    }

    /// The rare side.
    #[must_use]
    pub fn heavy() -> bool {
        fence(Ordering::SeqCst);
        true
    }
}

pub use system::{full, heavy, light, one_sided, prepare};

#[cfg(test)]
mod tests;
