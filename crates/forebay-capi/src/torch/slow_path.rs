//! What sends a request down the slow path: a graph capture or a fork. One word holds all flags,
//! so that the fast path tests it once.

use std::sync::atomic::{AtomicU32, Ordering};

/// Streams are being captured.
pub(super) const CAPTURING: u32 = 1;
/// The process is a forked child, which refuses every request.
pub(super) const FORKED: u32 = 2;

/// The flags that are set.
pub(super) static FLAGS: AtomicU32 = AtomicU32::new(0);

/// Whether any flag is set.
#[inline(always)]
pub(super) fn any() -> bool {
    FLAGS.load(Ordering::Relaxed) != 0
}

/// Whether the process is a forked child of one that had a pool.
pub(super) fn forked() -> bool {
    FLAGS.load(Ordering::Relaxed) & FORKED != 0
}
