//! What programs rely on: policies, hooks that panic, threads, and that every object is dropped once.

mod arrays;
mod hooks;
mod life;
mod policies;
mod threads;

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use crate::sync::lock;

/// What became of the objects of one test.
#[derive(Debug, Default)]
struct Log {
    made: AtomicU64,
    dropped: Mutex<Vec<u64>>,
}

impl Log {
    fn new() -> Arc<Self> {
        Arc::default()
    }

    /// An object that enters its end here.
    fn make(self: &Arc<Self>) -> Witness {
        let id = self.made.fetch_add(1, Ordering::Relaxed);
        Witness { id, busy: AtomicBool::new(false), size: 0, log: Arc::clone(self) }
    }

    fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// The objects dropped since the last call, in order.
    fn take_dropped(&self) -> Vec<u64> {
        core::mem::take(&mut *lock(&self.dropped))
    }

    /// Fails unless every object was dropped once. Nothing was taken from the log before.
    fn assert_each_dropped_once(&self) {
        let mut dropped = self.take_dropped();
        dropped.sort_unstable();
        assert_eq!(dropped, (0..self.made()).collect::<Vec<_>>());
    }
}

/// An object that tells when it is dropped.
#[derive(Debug)]
struct Witness {
    id: u64,
    /// Set while a thread uses it.
    busy: AtomicBool,
    size: u64,
    log: Arc<Log>,
}

impl Drop for Witness {
    fn drop(&mut self) {
        lock(&self.log.dropped).push(self.id);
    }
}

/// Options of a pool whose objects tell `log` of their end.
fn options(log: &Arc<Log>) -> ObjectPoolOptions<Witness> {
    let log = Arc::clone(log);
    ObjectPoolOptions::new(move || log.make())
}
