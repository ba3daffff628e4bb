//! Turns: a thread without a reference of its own uses a pool in a turn, for upkeep, for the monitor, or because a
//! stream or a thread ends. Also the program's references, the last of which waits for turns to end.
//!
//! ```text
//!   that thread    begins its turn   upgrades   works ....... drops   ends its turn
//!   program                             drops its last clone ────────── waits ──> the memory is back
//! ```
//!
//! During its turn the thread has a reference to the pool. If the program drops its last one meanwhile, that thread
//! tears the pool down, and a drop that did not wait would return with the memory still held.

use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::ptr;
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;
use std::cell::Cell;
use std::sync::{Arc, Condvar, Weak};
use std::time::Instant;

use crate::PoolId;
use crate::pool::inner::PoolInner;
use crate::sync::fork::ForkSafeMutex;

/// The turns under way, of all pools.
struct Turns {
    pools: Vec<PoolId>,
    /// How many of these threads run the program's code, which may itself wait for the thread that drops the pool.
    in_program: usize,
}

static TURNS: ForkSafeMutex<Turns> = ForkSafeMutex::new(Turns { pools: Vec::new(), in_program: 0 });
/// Notified when a turn ends, and when a thread in a turn enters or leaves code of the program.
static CHANGED: Condvar = Condvar::new();

/// How long a drop waits for one call of the program's code by a thread in its turn. Most take microseconds.
const PATIENCE: Duration = Duration::from_millis(50);

thread_local! {
    /// Whether this is a thread in a turn.
    static HAS_TURN: Cell<bool> = const { Cell::new(false) };
}

/// The program's reference to a pool. Once the last one is dropped, the memory is back at the device, unless one of the
/// program's callbacks keeps a thread in its turn for longer than [`PATIENCE`], or the last drop is itself in a
/// callback that a thread makes in its turn.
///
/// All of them share one reference of the `Arc`, so that creating and dropping one costs a count like the `Arc`'s own,
/// and only the last drop looks for turns.
#[derive(Debug)]
pub(in crate::pool) struct UserRef(ManuallyDrop<Arc<PoolInner>>);

impl UserRef {
    pub(in crate::pool) fn new(shared: Arc<PoolInner>) -> Self {
        let is_first = shared.users.fetch_add(1, Ordering::Relaxed) == 0;
        let user = Self(ManuallyDrop::new(shared));
        if !is_first {
            // SAFETY: the users before this one have a reference, which stays until this one is dropped too.
            unsafe { Arc::decrement_strong_count(Arc::as_ptr(&user.0)) };
        }
        user
    }
}

impl Clone for UserRef {
    #[inline]
    fn clone(&self) -> Self {
        self.users.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the copy is one more user of the reference that all of them have, and was counted.
        Self(ManuallyDrop::new(unsafe { ptr::read(&raw const *self.0) }))
    }
}

impl Deref for UserRef {
    type Target = Arc<PoolInner>;

    #[inline(always)]
    fn deref(&self) -> &Arc<PoolInner> {
        &self.0
    }
}

impl Drop for UserRef {
    #[inline]
    fn drop(&mut self) {
        // As an `Arc` does: what the other users did comes before what follows the last drop.
        if self.users.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            self.drop_last();
        }
    }
}

impl UserRef {
    #[cold]
    fn drop_last(&mut self) {
        let (pool, is_from_parent) = (self.id, self.is_from_parent());
        // SAFETY: the count was 1, so no other user has the reference, and this is the drop of the last one. A user that
        // is made meanwhile brings a reference of its own.
        unsafe { ManuallyDrop::drop(&mut self.0) };
        // The threads that had turns do not exist in a forked child.
        if !is_from_parent {
            wait_for_turns(pool);
        }
    }
}

/// Runs `work` in a turn, with a reference to the pool, unless the pool is gone. If host memory is short, a drop does
/// not wait for this turn.
pub(in crate::pool) fn with_turn<R>(
    pool: PoolId,
    shared: &Weak<PoolInner>,
    work: impl FnOnce(&PoolInner) -> R,
) -> Option<R> {
    /// Also ends on a panic.
    struct Ending {
        pool: Option<PoolId>,
        /// For a turn within a turn, as in a callback that reads the figures.
        had_turn: bool,
    }

    impl Drop for Ending {
        fn drop(&mut self) {
            if let Some(pool) = self.pool {
                let mut turns = TURNS.lock();
                // One turn of a pool is like another.
                if let Some(at) = turns.pools.iter().position(|&other| other == pool) {
                    turns.pools.swap_remove(at);
                }
            }
            CHANGED.notify_all();
            HAS_TURN.set(self.had_turn);
        }
    }

    // Before the reference is made: a thread that dropped the last but this one, and looks for turns then, finds it.
    let is_listed = {
        let mut turns = TURNS.lock();
        let has_room = turns.pools.try_reserve(1).is_ok();
        if has_room {
            turns.pools.push(pool);
        }
        has_room
    };
    let _ending = Ending { pool: is_listed.then_some(pool), had_turn: HAS_TURN.replace(true) };
    shared.upgrade().map(|shared| work(&shared))
}

/// Runs code of the program. During a turn, a thread that drops the pool waits for it no longer than [`PATIENCE`]: the
/// code may need a lock that this thread holds.
pub(in crate::pool) fn in_program<R>(code: impl FnOnce() -> R) -> R {
    /// Also ends on a panic.
    struct Leaving;

    impl Drop for Leaving {
        fn drop(&mut self) {
            TURNS.lock().in_program -= 1;
            CHANGED.notify_all();
        }
    }

    if !HAS_TURN.get() {
        return code();
    }
    TURNS.lock().in_program += 1;
    CHANGED.notify_all();
    let _leaving = Leaving;
    code()
}

/// After the program has dropped its last reference, waits for the threads in turns, which may have the last of all.
fn wait_for_turns(pool: PoolId) {
    // A callback drops the pool on a thread in its turn. If the turn is this pool's, it ends after the callback; if it
    // is another's, this could wait for a thread that waits for this one.
    if HAS_TURN.get() {
        return;
    }
    let mut patience_ends: Option<Instant> = None;
    loop {
        let turns = TURNS.lock();
        if !turns.pools.contains(&pool) {
            return;
        }
        if turns.in_program == 0 {
            patience_ends = None;
            drop(CHANGED.wait(turns));
            continue;
        }
        let now = Instant::now();
        let left = patience_ends.get_or_insert(now + PATIENCE).saturating_duration_since(now);
        if left.is_zero() {
            return;
        }
        drop(CHANGED.wait_timeout(turns, left));
    }
}
