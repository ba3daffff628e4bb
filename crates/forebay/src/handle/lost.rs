//! Frees that failed in a drop, which cannot return an error.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use forebay_hal::StreamHandle;

use crate::sync::fork::ForkSafeMutex;
use crate::{Block, Error};

static COUNT: AtomicU64 = AtomicU64::new(0);
static LATEST: ForkSafeMutex<Option<LostFree>> = ForkSafeMutex::new(None);

/// A block that a drop could not free.
///
/// After [`Error::NotABlock`], [`Error::DoubleFree`], [`Error::StaleBlock`] or [`Error::WrongPool`], the block had
/// already been freed. After any other error it is live, and can be freed by its address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostFree {
    /// The block.
    pub block: Block,
    /// The stream it was to be freed on.
    pub stream: StreamHandle,
    /// The error of the free.
    pub error: Error,
}

impl fmt::Display for LostFree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the block of {} at {} could not be given back on {}: {}",
            self.block.size(),
            self.block.address(),
            self.stream,
            self.error
        )
    }
}

/// The number of frees that failed in drops, and the latest one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostFrees {
    /// The number in this process so far.
    pub count: u64,
    /// The latest one.
    pub latest: Option<LostFree>,
}

/// The frees that failed in drops, of all handles of the process.
///
/// ```
/// use forebay::handle::lost_frees;
///
/// let lost = lost_frees();
/// assert_eq!(lost.count, 0, "{:?}", lost.latest);
/// ```
pub fn lost_frees() -> LostFrees {
    // Relaxed: only the number matters; the latest error is under its own lock.
    let count = COUNT.load(Ordering::Relaxed);
    let latest = LATEST.lock().clone();
    LostFrees { count, latest }
}

/// Records a failed free. Holds the lock for a few stores only, never during a wait.
pub(super) fn note(lost: LostFree) {
    COUNT.fetch_add(1, Ordering::Relaxed);
    // Bind the previous value, so that it is dropped without the lock.
    let before = LATEST.lock().replace(lost);
    drop(before);
}
