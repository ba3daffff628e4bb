//! Turns: the use of a pool by a thread that has no reference of its own, for upkeep, for the monitor or because a stream
//! ends; and the references of the program, whose last one waits for it.
//!
//! ```text
//!   that thread    turn = pool   upgrade   tick ....... drop   turn = 0
//!   program                           drop its last clone ──── waits ──> the memory is back
//! ```
//!
//! During its turn the thread has a reference to the pool. If the program drops its last one meanwhile, the pool is torn
//! down by that thread, and a drop that did not wait would return with the memory still held.

use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::time::Duration;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Condvar, Weak};
use std::time::Instant;

use crate::PoolId;
use crate::pool::shared::Shared;
use crate::sync::fork::ForkSafeMutex;

/// The pools whose turn it is; 0 is no pool's number. Few threads have a turn at a time.
static TURNS: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

/// Whether a pool ever had a turn: most drops need to look no further.
static ANY_TURN: AtomicBool = AtomicBool::new(false);

/// How many threads in turns are in code of the program, which may itself wait for the thread that drops the pool.
static IN_PROGRAM: AtomicU64 = AtomicU64::new(0);

/// Locked to end a turn and to change [`IN_PROGRAM`], so that a waiting thread misses nothing.
static CHANGE: ForkSafeMutex<()> = ForkSafeMutex::new(());
static CHANGED: Condvar = Condvar::new();

/// How long a drop waits for one call of the program's code by the upkeep thread. Most take microseconds.
const PATIENCE: Duration = Duration::from_millis(50);

thread_local! {
    /// Whether this is a thread in a turn.
    static HAS_TURN: Cell<bool> = const { Cell::new(false) };
}

/// A reference to a pool that the program has. When the last one is dropped, the memory is back at the device, unless a
/// callback of the program keeps a thread in its turn for longer than [`PATIENCE`].
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
        let may_have_turn = ANY_TURN.load(Ordering::Relaxed) && !self.is_inherited();
        let weak = may_have_turn.then(|| Arc::downgrade(&self.0));
        // SAFETY: nothing uses the reference after this: it is private, and this is its drop.
        unsafe { ManuallyDrop::drop(&mut self.0) };
        if let Some(weak) = weak {
            wait_for_turn(pool, &weak);
        }
    }
}

/// Gives a pool its turn: `work` runs with a reference to it, unless it is gone. If too many threads have turns, a drop
/// does not wait for this one.
pub(in crate::pool) fn with_turn<R>(
    pool: PoolId,
    shared: &Weak<Shared>,
    work: impl FnOnce(&Shared) -> R,
) -> Option<R> {
    /// Ends by a panic too.
    struct Ending {
        turn: Option<&'static AtomicU64>,
        /// For a turn within a turn, as in a callback that reads the figures.
        had_turn: bool,
    }

    impl Drop for Ending {
        fn drop(&mut self) {
            if let Some(turn) = self.turn {
                let _changing = CHANGE.lock();
                turn.store(0, Ordering::SeqCst);
            }
            CHANGED.notify_all();
            HAS_TURN.set(self.had_turn);
        }
    }

    ANY_TURN.store(true, Ordering::SeqCst);
    let had_turn = HAS_TURN.replace(true);
    let claim = |turn: &&AtomicU64| {
        turn.compare_exchange(0, pool.0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    };
    let _ending = Ending { turn: TURNS.iter().find(claim), had_turn };
    // Before the reference is made: a thread that drops the last but this one then sees whose turn it is.
    fence(Ordering::SeqCst);
    shared.upgrade().map(|shared| work(&shared))
}

/// Runs code of the program. During a turn, a thread that drops the pool waits for it no longer than [`PATIENCE`]: the
/// code may need a lock that this thread holds.
pub(in crate::pool) fn in_program<R>(code: impl FnOnce() -> R) -> R {
    /// Ends by a panic too.
    struct Leaving;

    impl Drop for Leaving {
        fn drop(&mut self) {
            change_in_program(|number| number.saturating_sub(1));
        }
    }

    if !HAS_TURN.try_with(Cell::get).unwrap_or(false) {
        return code();
    }
    change_in_program(|number| number.saturating_add(1));
    let _leaving = Leaving;
    code()
}

fn change_in_program(change: impl Fn(u64) -> u64) {
    {
        let _changing = CHANGE.lock();
        IN_PROGRAM.store(change(IN_PROGRAM.load(Ordering::SeqCst)), Ordering::SeqCst);
    }
    CHANGED.notify_all();
}

/// After a reference of the program was dropped: waits while threads in turns have the only ones left.
#[cold]
fn wait_for_turn(pool: PoolId, shared: &Weak<Shared>) {
    fence(Ordering::SeqCst);
    let turns = || TURNS.iter().filter(|turn| turn.load(Ordering::SeqCst) == pool.0).count();
    // On the thread in its turn, a callback drops the pool: the turn ends after it.
    if HAS_TURN.try_with(Cell::get).unwrap_or(false) {
        return;
    }
    let mut patience_ends: Option<Instant> = None;
    // A pool that is being torn down has no references any more.
    while turns() > 0 && shared.strong_count() <= turns() {
        let changing = CHANGE.lock();
        if turns() == 0 {
            return;
        }
        if IN_PROGRAM.load(Ordering::SeqCst) == 0 {
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
