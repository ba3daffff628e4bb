//! The end of a thread, and with it of its own default stream. The list of pools to notify is thread-local and needs no
//! lock.
//!
//! ```text
//!   thread   first use of its own stream in a pool ──> the pool is on the thread's list
//!            ends ──> each pool on the list records the stream's last event, and forgets the stream
//! ```
//!
//! Only the thread itself can name its own stream, so this is the last chance to record that event. The list is created
//! after the driver has made the stream, so it is dropped before the driver's own thread-local state; CUDA drops that
//! even later, with the thread's keys. If it were gone all the same, the driver would make a new stream for the ending
//! thread, whose events say nothing about the old one. So after recording the event, the pool checks that the stream
//! still has the identifier it had at first. If not, the event is not used, and memory freed on the stream is reused
//! after the next wait for the whole device.

use core::cell::{Cell, RefCell};
use core::fmt;
use std::sync::{Arc, OnceLock, Weak};

use forebay_core::StreamId;
use forebay_hal::StreamHandle;

/// What an ending thread calls, with the number by which the pool knows its own default stream.
type OnThreadEnd = dyn Fn(Option<StreamId>) + Send + Sync;

/// How ending threads notify a pool.
#[derive(Default)]
pub(in crate::pool) struct ThreadEnds(OnceLock<Box<OnThreadEnd>>);

impl fmt::Debug for ThreadEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ThreadEnds")
    }
}

/// A pool that knows the own stream of this thread.
struct WatchedPool {
    pool: Weak<ThreadEnds>,
    /// The identifier of the stream; `None` if it was never asked for.
    stream: Option<StreamId>,
}

thread_local! {
    static WATCHED: List = const { List(RefCell::new(Vec::new())) };
    /// Whether the list was dropped. Reading this does not register the list's destructor: that has to be registered
    /// after the driver's thread-local data, so that it runs before that is destroyed.
    static IS_ENDING: Cell<bool> = const { Cell::new(false) };
}

struct List(RefCell<Vec<WatchedPool>>);

impl Drop for List {
    fn drop(&mut self) {
        IS_ENDING.set(true);
        for WatchedPool { pool, stream } in self.0.take() {
            if let Some(on_end) = pool.upgrade().as_ref().and_then(|ends| ends.0.get()) {
                on_end(stream);
            }
        }
    }
}

/// Whether `stream` is the own stream of this thread, and the thread has dropped its list: thread-local data is
/// destroyed in turn, and the driver's may be gone, so nothing is known about that stream any more.
pub(in crate::pool) fn is_ending(stream: StreamHandle) -> bool {
    stream.is_per_thread() && IS_ENDING.get() && !stream.is_of_another_thread()
}

impl ThreadEnds {
    /// Sets how the pool is notified. Before this no thread can know it.
    pub(in crate::pool) fn set_on_end(&self, on_end: Box<OnThreadEnd>) {
        let _ = self.0.set(on_end);
    }

    /// Whether the pool will be notified when this thread ends, and knows the identifier of its stream.
    pub(in crate::pool) fn is_watching(self: &Arc<Self>) -> bool {
        let is_it = |known: &WatchedPool| core::ptr::eq(known.pool.as_ptr(), Arc::as_ptr(self));
        let is_known = |known: &WatchedPool| known.stream.is_some() && is_it(known);
        // The thread is already ending: there is nothing left to do.
        WATCHED.try_with(|list| list.0.borrow().iter().any(is_known)).unwrap_or(true)
    }

    /// Has the pool notified when this thread ends. In a thread that is already ending this does nothing, and the slot
    /// of its stream stays until it is taken over.
    pub(in crate::pool) fn watch_this_thread(self: &Arc<Self>, stream: Option<StreamId>) {
        let pool = Arc::downgrade(self);
        let _ = WATCHED.try_with(|list| {
            let Ok(mut pools) = list.0.try_borrow_mut() else { return };
            if let Some(known) = pools.iter_mut().find(|known| known.pool.ptr_eq(&pool)) {
                known.stream = known.stream.or(stream);
                return;
            }
            if pools.len() == pools.capacity() {
                // Pools may be dropped while a thread lives on.
                pools.retain(|known| known.pool.strong_count() > 0);
            }
            pools.push(WatchedPool { pool, stream });
        });
    }
}
