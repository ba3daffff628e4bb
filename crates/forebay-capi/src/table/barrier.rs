//! The asymmetric barrier of the pool's own gates (`forebay_sync::barrier`), as the handle table uses it.
//!
//! A thread on the fast path publishes its handle and then reads whether the pool is open; a thread that
//! closes a pool marks it as closed and then reads the published handles. Each side needs a full barrier
//! between its write and its read, or both may miss the other. The fast path is frequent and closing is rare,
//! so the closing side pays for both.
//!
//! Where the system has no one-sided barriers, no thread takes the fast path ([`available`]). Where a sandbox
//! forbids them later, the fast path stays sound, and closing a pool takes some milliseconds.

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use std::sync::Once;

    pub(crate) use forebay_sync::barrier::light;

    /// Whether a thread may begin to use light barriers.
    pub(crate) fn available() -> bool {
        static PREPARED: Once = Once::new();
        PREPARED.call_once(forebay_sync::barrier::prepare);
        forebay_sync::barrier::one_sided()
    }

    /// The rare side.
    pub(crate) fn heavy() {
        // The barrier is passed in either case, and closing is rare enough to be slow.
        let _ = forebay_sync::barrier::heavy();
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod system {
    pub(crate) use forebay_sync::barrier::full as light;

    /// Full barriers on both sides are available everywhere.
    pub(crate) fn available() -> bool {
        true
    }

    /// The rare side.
    pub(crate) fn heavy() {
        forebay_sync::barrier::full();
    }
}

pub(crate) use system::{available, heavy, light};
