//! What sends a request of PyTorch and the others down the slow path: a graph capture or a fork. One word holds all
//! flags, so that the fast path tests it once.

use std::sync::atomic::{AtomicU32, Ordering};

/// Streams are being captured.
pub(crate) const CAPTURING: u32 = 1;
/// The process was forked from one that had opened something, and refuses every request.
pub(crate) const FORKED: u32 = 2;

/// The flags that are set.
pub(crate) static FLAGS: AtomicU32 = AtomicU32::new(0);

/// Whether any flag is set.
#[inline(always)]
pub(crate) fn any() -> bool {
    FLAGS.load(Ordering::Relaxed) != 0
}

/// Whether the process is a forked child of one that had opened something.
pub(crate) fn forked() -> bool {
    FLAGS.load(Ordering::Relaxed) & FORKED != 0
}
