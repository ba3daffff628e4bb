//! Numbers for what the host device gives out.

use core::sync::atomic::{AtomicU64, Ordering};

/// The next number, from 1 (0 is the default stream), for any stream, event, page or device.
///
/// One counter for the whole process, so that a handle is never given out twice and a handle of one
/// device, given to another, is not taken for one of its own.
pub(crate) fn next() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    // Only the number matters, no other memory is ordered by it.
    LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
}
