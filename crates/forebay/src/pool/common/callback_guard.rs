//! Keeps callbacks that use the pool from being called again by their own calls.

use core::cell::Cell;

use crate::PoolId;

/// The most pools for which one thread is calling callbacks at once, each from within a callback of the last. Programs
/// have few pools.
const MAX_CALLING: usize = 16;

/// A kind of callback, which its own calls of the pool do not call again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum Callback {
    Shortage,
    Pressure,
    Observer,
}

thread_local! {
    /// The pools whose callbacks this thread is calling. An array, because a list would be destroyed before the last
    /// destructors of an ending thread allocate.
    static CALLING: Cell<[Option<(PoolId, Callback)>; MAX_CALLING]> =
        const { Cell::new([None; MAX_CALLING]) };
}

/// Held while a thread calls the callbacks of a pool; also ends by a panic.
pub(in crate::pool) struct CallbackGuard(PoolId, Callback);

impl CallbackGuard {
    /// `None` if the thread is calling these callbacks of the pool already, or those of too many others.
    pub(in crate::pool) fn begin(pool: PoolId, kind: Callback) -> Option<Self> {
        let mut calling = CALLING.get();
        if calling.contains(&Some((pool, kind))) {
            return None;
        }
        *calling.iter_mut().find(|entry| entry.is_none())? = Some((pool, kind));
        CALLING.set(calling);
        Some(Self(pool, kind))
    }
}

impl Drop for CallbackGuard {
    fn drop(&mut self) {
        let own = Some((self.0, self.1));
        CALLING.set(CALLING.get().map(|entry| if entry == own { None } else { entry }));
    }
}
