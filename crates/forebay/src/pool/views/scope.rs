//! Scopes: counters of a section of a program.

use forebay_core::Bytes;

use crate::pool::turn::UserRef;
use crate::pool::views::statistics::{self, Statistics};

/// A measured section of a program, made by [`Pool::scope`](crate::Pool::scope). Scopes may nest, and overlap on
/// different threads: a scope measures the whole pool, not one thread.
#[derive(Debug)]
#[must_use = "a scope returns its counters when it is ended"]
pub struct Scope {
    shared: UserRef,
    /// Its number among the open scopes; `None` once it has ended, and in a forked child.
    number: Option<u64>,
    before: Statistics,
}

/// The counters of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScopeStatistics {
    /// Blocks allocated.
    pub allocations: u64,
    /// Blocks freed.
    pub frees: u64,
    /// Requests that needed memory from the driver.
    pub misses: u64,
    /// Times a stream was made to wait for another.
    pub waits: u64,
    /// Bytes in live blocks when the scope began.
    pub live_before: Bytes,
    /// Bytes in live blocks when it ended.
    pub live_after: Bytes,
    /// The most bytes in live or cached blocks at once during the scope.
    pub peak: Bytes,
}

impl Scope {
    pub(in crate::pool) fn new(shared: &UserRef) -> Self {
        let before = statistics::of(shared);
        let number = (!shared.is_from_parent()).then(|| {
            let mut heap = shared.heap();
            let out = heap.out();
            heap.ledger.scopes.open(out)
        });
        Self { shared: shared.clone(), number, before }
    }

    /// Ends the scope and returns its counters. In a forked child, all counters of the parent's scope are 0.
    pub fn end(mut self) -> ScopeStatistics {
        let after = statistics::of(&self.shared);
        if self.shared.is_from_parent() {
            self.before = Statistics::default();
        }
        let peak = self.close().unwrap_or_default();
        let before = &self.before;
        ScopeStatistics {
            allocations: after.allocations.wrapping_sub(before.allocations),
            frees: after.frees.wrapping_sub(before.frees),
            misses: after.misses.wrapping_sub(before.misses),
            waits: after.waits.wrapping_sub(before.waits),
            live_before: before.live,
            live_after: after.live,
            peak,
        }
    }

    fn close(&mut self) -> Option<Bytes> {
        let number = self.number.take()?;
        if self.shared.is_from_parent() {
            return None;
        }
        self.shared.heap().ledger.scopes.close(number)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        self.close();
    }
}
