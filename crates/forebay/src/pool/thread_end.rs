//! Telling pools that a thread has ended, and with it its own default stream.
//!
//! ```text
//!   thread   first slot of its own stream in a pool ──> the pool is on the thread's list
//!            ends ──> its stream is in the box of every pool on the list
//!   pool     empties its box when it makes a slot, or does what was put off
//! ```
//!
//! A thread that ends calls no driver, because the driver's own state of the thread may be gone, and keeps no
//! pool alive, because dropping the last reference to a pool waits for the device. It only puts its stream into
//! the box, whose lock is held for no longer than that.

use core::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use forebay_hal::StreamHandle;

use crate::fork::Birth;
use crate::sync::lock;

/// The streams of threads that have ended, as one pool is told of them.
#[derive(Debug)]
pub(super) struct EndedThreads {
    /// Whether there may be any, for those who only look.
    any: AtomicBool,
    streams: Mutex<Vec<StreamHandle>>,
    /// In a forked child the lock may be held for ever.
    birth: Birth,
}

impl Default for EndedThreads {
    fn default() -> Self {
        Self { any: AtomicBool::new(false), streams: Mutex::default(), birth: Birth::here() }
    }
}

thread_local! {
    static WATCH: Watch = const { Watch(RefCell::new(Vec::new())) };
}

/// The pools that know the stream of this thread. Tells them when the thread ends.
struct Watch(RefCell<Vec<Weak<EndedThreads>>>);

impl Drop for Watch {
    fn drop(&mut self) {
        let stream = StreamHandle::of_this_thread();
        for pool in self.0.get_mut().iter().filter_map(Weak::upgrade) {
            pool.note(stream);
        }
    }
}

impl EndedThreads {
    /// Has the pool told when this thread ends. In a thread that ends already nothing is told: its slot stays
    /// until it is taken over.
    pub(super) fn watch_this_thread(self: &Arc<Self>) {
        let pool = Arc::downgrade(self);
        let _ = WATCH.try_with(|watch| {
            let Ok(mut pools) = watch.0.try_borrow_mut() else { return };
            if pools.iter().any(|known| known.ptr_eq(&pool)) {
                return;
            }
            if pools.len() == pools.capacity() {
                // Pools come and go while a thread lives on.
                pools.retain(|known| known.strong_count() > 0);
            }
            pools.push(pool);
        });
    }

    fn note(&self, stream: StreamHandle) {
        if self.birth.check().is_ok() {
            lock(&self.streams).push(stream);
            self.any.store(true, Ordering::Release);
        }
    }

    /// Takes out those that were told of.
    pub(super) fn take(&self) -> Vec<StreamHandle> {
        // One that is missed here is found the next time.
        if !self.any.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut streams = lock(&self.streams);
        self.any.store(false, Ordering::Relaxed);
        core::mem::take(&mut streams)
    }
}
