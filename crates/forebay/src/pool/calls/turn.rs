//! Turns: the upkeep thread's use of one pool at a time, and the references of the program, whose last one waits for it.
//!
//! ```text
//!   upkeep thread    TURN = pool   upgrade   tick ....... drop   TURN = 0
//!   program                             drop its last clone ──── waits ──> the memory is back
//! ```
//!
//! During its turn the thread has a reference to the pool. If the program drops its last one meanwhile, the pool is torn
//! down by the upkeep thread, and a drop that did not wait would return with the memory still held.

use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::time::Duration;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Condvar, Weak};
use std::time::Instant;

use crate::PoolId;
use crate::pool::calls::registry;
use crate::pool::shared::Shared;
use crate::sync::fork::ForkSafeMutex;

/// The pool whose turn it is; 0 is no pool's number.
static TURN: AtomicU64 = AtomicU64::new(0);

/// Whether the upkeep thread is in code of the program, which may itself wait for the thread that drops the pool.
static IN_PROGRAM: AtomicBool = AtomicBool::new(false);

/// Locked to change either of the above, so that a waiting thread misses nothing.
static CHANGE: ForkSafeMutex<()> = ForkSafeMutex::new(());
static CHANGED: Condvar = Condvar::new();

/// How long a drop waits for one call of the program's code by the upkeep thread. Most take microseconds.
const PATIENCE: Duration = Duration::from_millis(50);

thread_local! {
    /// Whether this is the upkeep thread in a turn.
    static HAS_TURN: Cell<bool> = const { Cell::new(false) };
}

/// A reference to a pool that the program has. When the last one is dropped, the memory is back at the device.
#[derive(Clone, Debug)]
pub(in crate::pool) struct UserRef(ManuallyDrop<Arc<Shared>>);

impl UserRef {
    #[inline]
    pub(in crate::pool) fn new(shared: Arc<Shared>) -> Self {
        Self(ManuallyDrop::new(shared))
    }
}

impl Deref for UserRef {
    type Target = Arc<Shared>;

    #[inline(always)]
    fn deref(&self) -> &Arc<Shared> {
        &self.0
    }
}

impl Drop for UserRef {
    #[inline]
    fn drop(&mut self) {
        let pool = self.id;
        // In a forked child nobody has the turn.
        let may_have_turn = self.has_upkeep.load(Ordering::Relaxed) && !self.is_inherited();
        // SAFETY: nothing uses the reference after this: it is private, and this is its drop.
        unsafe { ManuallyDrop::drop(&mut self.0) };
        if may_have_turn {
            wait_for_turn(pool);
        }
    }
}

/// Gives a pool its turn: `work` runs with a reference to it, unless it is gone.
pub(in crate::pool) fn with_turn(pool: PoolId, shared: &Weak<Shared>, work: impl FnOnce(&Shared)) {
    /// Ends by a panic too.
    struct Ending;

    impl Drop for Ending {
        fn drop(&mut self) {
            {
                let _changing = CHANGE.lock();
                TURN.store(0, Ordering::SeqCst);
            }
            CHANGED.notify_all();
            HAS_TURN.set(false);
        }
    }

    HAS_TURN.set(true);
    let _ending = Ending;
    TURN.store(pool.0, Ordering::SeqCst);
    // Before the reference is made: a thread that drops the last but this one then sees whose turn it is.
    fence(Ordering::SeqCst);
    if let Some(shared) = shared.upgrade() {
        work(&shared);
    }
}

/// Runs code of the program. During a turn, a thread that drops the pool waits for it no longer than [`PATIENCE`]: the
/// code may need a lock that this thread holds.
pub(in crate::pool) fn in_program<R>(code: impl FnOnce() -> R) -> R {
    /// Ends by a panic too.
    struct Leaving;

    impl Drop for Leaving {
        fn drop(&mut self) {
            set_in_program(false);
        }
    }

    if !HAS_TURN.try_with(Cell::get).unwrap_or(false) {
        return code();
    }
    set_in_program(true);
    let _leaving = Leaving;
    code()
}

fn set_in_program(is_in: bool) {
    {
        let _changing = CHANGE.lock();
        IN_PROGRAM.store(is_in, Ordering::SeqCst);
    }
    CHANGED.notify_all();
}

/// After a reference of the program was dropped: waits while the upkeep thread has the only one left.
#[cold]
fn wait_for_turn(pool: PoolId) {
    fence(Ordering::SeqCst);
    let has_turn = || TURN.load(Ordering::SeqCst) == pool.0;
    // On the upkeep thread itself, a callback drops the pool: the turn ends after it.
    if HAS_TURN.try_with(Cell::get).unwrap_or(false) {
        return;
    }
    let mut patience_ends: Option<Instant> = None;
    // A pool that is being torn down has no references any more.
    while has_turn() && registry::references(pool) <= 1 {
        let changing = CHANGE.lock();
        if !has_turn() {
            return;
        }
        if !IN_PROGRAM.load(Ordering::SeqCst) {
            patience_ends = None;
            drop(CHANGED.wait(changing));
            continue;
        }
        let now = Instant::now();
        let left = patience_ends.get_or_insert(now + PATIENCE).saturating_duration_since(now);
        if left.is_zero() {
            return;
        }
        drop(CHANGED.wait_timeout(changing, left));
    }
}
