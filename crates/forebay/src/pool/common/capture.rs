//! Capturing: a time in which the pool leaves events and waiting alone.
//!
//! While work on a stream is captured into a graph instead of being done, asking for an event and
//! waiting for the device are errors of the driver that spoil the capture, and an event recorded there
//! is part of the graph and can never be asked for. So in that time a pool gives what is free in the
//! order of the stream itself, or grows; whatever needs an event is put off.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many captures are under way.
#[derive(Clone, Debug, Default)]
pub(in crate::pool) struct Captures(Arc<AtomicUsize>);

impl Captures {
    /// Whether there is one.
    pub(in crate::pool) fn any(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }

    pub(in crate::pool) fn begin(&self) -> Capture {
        self.0.fetch_add(1, Ordering::SeqCst);
        Capture(self.clone())
    }
}

/// A capture under way, from [`Pool::capture`](crate::Pool::capture) until this is dropped.
#[derive(Debug)]
#[must_use = "dropped, it is over"]
pub struct Capture(Captures);

impl Drop for Capture {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}
