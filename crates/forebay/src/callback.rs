//! Invokes the program's callbacks: on a shortage, on pressure, on events, and when the pool is dropped.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Calls callbacks and catches their panics. The calling request or thread goes on as if the callback had done nothing.
/// Panics are counted; the program's panic hook has already reported them.
///
/// Clones share the count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Callbacks {
    panics: Arc<AtomicU64>,
}

thread_local! {
    /// How many callbacks are running, nested, on this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Counts a callback while it runs.
struct Inside;

impl Inside {
    fn enter() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get().saturating_sub(1));
    }
}

impl Callbacks {
    /// Whether the calling thread is inside a callback, which must not wait for its caller.
    pub(crate) fn is_inside() -> bool {
        DEPTH.get() > 0
    }

    /// Calls `callback`; returns `None` if it panicked.
    ///
    /// The caller holds no lock of the pool, so a panic leaves none of the pool's state half changed. Keeping its own
    /// state consistent is up to the callback: it will be called again.
    pub(crate) fn call<R>(&self, callback: impl FnOnce() -> R) -> Option<R> {
        let _inside = Inside::enter();
        match catch_unwind(AssertUnwindSafe(callback)) {
            Ok(returned) => Some(returned),
            Err(panic) => {
                self.panics.fetch_add(1, Ordering::Relaxed);
                // The payload belongs to the program, and its drop may panic too.
                if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
                    core::mem::forget(again);
                }
                None
            }
        }
    }

    /// The number of panics so far.
    pub(crate) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    /// A payload whose drop panics too.
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
