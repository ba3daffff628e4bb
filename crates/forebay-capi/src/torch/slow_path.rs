//! What makes a request take the long way: a capture, that requests are recorded, or a fork. One word says
//! whether there is anything, so that a request with neither asks once.

use std::sync::atomic::{AtomicU32, Ordering};

/// Streams are being captured.
pub(super) const ROUTES: u32 = 1;
/// Requests are recorded.
pub(super) const RECORDED: u32 = 2;
/// The process is a forked child: nothing is served.
pub(super) const FORKED: u32 = 4;

/// What there is now.
pub(super) static WATCHED: AtomicU32 = AtomicU32::new(0);

/// Whether there is anything.
#[inline(always)]
pub(super) fn any() -> bool {
    WATCHED.load(Ordering::Relaxed) != 0
}

/// Whether the process is a forked child of one that had a pool.
pub(super) fn forked() -> bool {
    WATCHED.load(Ordering::Relaxed) & FORKED != 0
}

/// Whether requests are recorded.
pub(super) fn recorded() -> bool {
    WATCHED.load(Ordering::Relaxed) & RECORDED != 0
}
