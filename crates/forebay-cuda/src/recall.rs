//! Calling off the host's part of a copy that fails half way.
//!
//! A copy of ordinary host memory is a row of tasks and of copies of pinned memory. Where the driver
//! refuses one in the middle, the tasks before it are in the stream for good, and would touch the
//! caller's memory after the caller was told that the copy failed. So they share a word: once it says
//! so, each of them does nothing. What the device copies between itself and the pinned memory is not
//! called off; that memory is not the caller's.

use std::sync::{Arc, Mutex};

use forebay_hal::HostTask;

use crate::stream::lock;

/// Whether the tasks of a copy may still touch the caller's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CancelState {
    /// They may.
    #[default]
    Valid,
    /// They may not: the copy has failed.
    CalledOff,
}

/// The tasks of one copy, as far as they can be called off together.
#[derive(Debug, Default)]
pub(crate) struct CancelToken(Arc<Mutex<CancelState>>);

impl CancelToken {
    /// A task that does `work`, unless it was called off before its turn.
    pub(crate) fn task(&self, work: impl FnOnce() + Send + 'static) -> HostTask {
        let standing = Arc::clone(&self.0);
        Box::new(move || {
            // Held while it works: who calls off waits for it, which is for no more than a stage.
            let standing = lock(&standing);
            if *standing == CancelState::Valid {
                work();
            }
        })
    }

    /// Calls the tasks off: when this returns, none touches the caller's memory any more.
    pub(crate) fn call_off(&self) {
        *lock(&self.0) = CancelState::CalledOff;
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
