//! The edge between a pool and the program's own code: whoever is asked to let go, or told of
//! pressure, events and the end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Calls what the program gave a pool to call. A panic ends here: the request or the thread that
/// called goes on without an answer. The program's hook has told of it by then, and it is counted.
///
/// Clones count together.
#[derive(Clone, Debug, Default)]
pub(in crate::pool) struct Callbacks {
    panics: Arc<AtomicU64>,
}

impl Callbacks {
    /// What `callback` says; `None` where it panicked.
    ///
    /// No lock of the pool is held, so nothing of the pool's can be half done. What the callback has
    /// of its own is the program's to keep whole: it is called again the next time.
    pub(in crate::pool) fn call<R>(&self, callback: impl FnOnce() -> R) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(callback)) {
            Ok(said) => Some(said),
            Err(panic) => {
                self.panics.fetch_add(1, Ordering::Relaxed);
                // What was panicked with is the program's, and its drop may panic as well.
                if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
                    core::mem::forget(again);
                }
                None
            }
        }
    }

    /// How often one panicked.
    pub(in crate::pool) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    /// A panic with something whose drop panics too.
    struct Bad;

    impl Drop for Bad {
        fn drop(&mut self) {
            panic!("on purpose, when dropped");
        }
    }

    #[test]
    fn panics_end_here_and_are_counted() {
        let callbacks = Callbacks::default();
        assert_eq!(callbacks.call(|| 7), Some(7));
        assert_eq!(callbacks.call(|| panic!("on purpose")), None::<u32>);
        assert_eq!(callbacks.clone().call(|| panic_any(Bad)), None::<u32>);
        assert_eq!(callbacks.panics(), 2);
    }
}
