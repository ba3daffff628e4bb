//! Captures: while one is under way, the pool uses no events and waits for nothing.
//!
//! While a stream is captured into a graph, querying an event or waiting for the device is a driver error that
//! invalidates the capture, and an event recorded there becomes part of the graph and can never be queried. So during a
//! capture the pool serves requests from memory that is free in the order of their own stream, or grows; everything
//! that needs an event is deferred.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The captures of a pool.
#[derive(Clone, Debug, Default)]
pub(in crate::pool) struct Captures(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    under_way: AtomicUsize,
    begun: AtomicU64,
}

impl Captures {
    pub(in crate::pool) fn any(&self) -> bool {
        self.0.under_way.load(Ordering::SeqCst) > 0
    }

    pub(in crate::pool) fn begun(&self) -> u64 {
        self.0.begun.load(Ordering::SeqCst)
    }

    pub(in crate::pool) fn begin(&self) -> Capture {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        self.0.under_way.fetch_add(1, Ordering::SeqCst);
        Capture(self.clone())
    }
}

/// A capture, from [`Pool::capture`](crate::Pool::capture) until this guard is dropped.
#[derive(Debug)]
#[must_use = "the capture ends when this is dropped"]
pub struct Capture(Captures);

impl Drop for Capture {
    fn drop(&mut self) {
        self.0.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}
