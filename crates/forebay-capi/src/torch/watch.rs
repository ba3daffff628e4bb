//! What makes a request take the long way: a capture, or that requests are recorded. One word says
//! whether there is anything, so that a request with neither asks once.

use std::sync::atomic::{AtomicU32, Ordering};

/// Streams are being captured.
pub(super) const ROUTES: u32 = 1;
/// Requests are recorded.
pub(super) const RECORDED: u32 = 2;

/// What there is now.
pub(super) static WATCHED: AtomicU32 = AtomicU32::new(0);

/// Whether there is anything.
#[inline(always)]
pub(super) fn any() -> bool {
    WATCHED.load(Ordering::Relaxed) != 0
}

/// Whether requests are recorded.
pub(super) fn recorded() -> bool {
    WATCHED.load(Ordering::Relaxed) & RECORDED != 0
}
