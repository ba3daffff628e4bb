//! Cancelling the host tasks of a copy that fails half way.
//!
//! A copy of pageable host memory is a sequence of host tasks and of copies of pinned memory. If the driver
//! refuses one in the middle, the tasks before it are already in the stream and would touch the caller's
//! memory after the caller was told that the copy failed. So they share a token: once it is cancelled, each
//! of them does nothing. Copies between the device and the pinned memory are not cancelled; that memory is
//! not the caller's.

use std::sync::{Arc, PoisonError, RwLock};

use forebay_hal::HostTask;

/// Whether the tasks of a copy may still touch the caller's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CancelState {
    /// They may.
    #[default]
    Valid,
    /// They may not, because the copy has failed.
    CalledOff,
}

/// Cancels the tasks of one copy together.
#[derive(Debug, Default)]
pub(crate) struct CancelToken(Arc<RwLock<CancelState>>);

impl CancelToken {
    /// A task that does `work`, unless it was cancelled before its turn.
    pub(crate) fn task(&self, work: impl FnOnce() + Send + 'static) -> HostTask {
        let standing = Arc::clone(&self.0);
        Box::new(move || {
            // Held while it works: who calls off waits for it, which is for no more than a stage. Others work meanwhile.
            let standing = standing.read().unwrap_or_else(PoisonError::into_inner);
            if *standing == CancelState::Valid {
                work();
            }
        })
    }

    /// Cancels the tasks: once this returns, none touches the caller's memory any more.
    pub(crate) fn call_off(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = CancelState::CalledOff;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn what_was_called_off_does_nothing() {
        let (recall, count) = (CancelToken::default(), Arc::new(AtomicU32::new(0)));
        let task = || {
            let count = Arc::clone(&count);
            recall.task(move || {
                count.fetch_add(1, Ordering::Relaxed);
            })
        };
        let (before, after) = (task(), task());
        before();
        recall.call_off();
        after();
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}
