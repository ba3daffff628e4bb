//! The asymmetric barrier of the pool's own gates (`forebay::barrier`), as the handle table uses it.
//!
//! A thread that enters a pool writes down that it is inside and then reads whether the pool is open; a
//! thread that closes a pool marks it as closed and then reads which threads are inside. Each side
//! needs a full barrier between the two, or both may miss the other. Entering is frequent and closing
//! is rare, so the closing side pays for both.
//!
//! Where the system has no one-sided barriers, no thread enters this way ([`available`]). Where a
//! sandbox takes them away later, threads that enter this way go on, and closing a pool takes some
//! milliseconds.

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use std::sync::Once;

    pub(crate) use forebay::barrier::light;

    /// Whether a thread may begin to enter by the light side.
    pub(crate) fn available() -> bool {
        static PREPARED: Once = Once::new();
        PREPARED.call_once(forebay::barrier::prepare);
        forebay::barrier::one_sided()
    }

    /// The rare side.
    pub(crate) fn heavy() {
        // Passed in either case: the light side stays sound, and closing is rare enough to be slow.
        let _ = forebay::barrier::heavy();
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod system {
    pub(crate) use forebay::barrier::full as light;

    /// Full barriers on both sides are available everywhere.
    pub(crate) fn available() -> bool {
        true
    }

    /// The rare side.
    pub(crate) fn heavy() {
        forebay::barrier::full();
    }
}

pub(crate) use system::{available, heavy, light};
