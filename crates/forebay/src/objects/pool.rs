//! The public object pool.

use core::fmt;
use std::sync::Arc;

use super::error::ObjectError;
use super::handle::Pooled;
use super::shared::Shared;
use super::statistics::{Maintenance, ObjectStatistics};
use crate::sync::fork::LeakOnFork;

/// Keeps objects that are expensive to make, and hands them out again.
///
/// ```
/// use forebay::objects::ObjectPool;
///
/// let pool = ObjectPool::new(|| vec![0_u8; 1 << 20]);
/// for round in 0..10 {
///     let mut buffer = pool.get()?;
///     buffer[0] = round;
/// }
/// let statistics = pool.statistics();
/// assert_eq!((statistics.gets, statistics.creations), (10, 1));
/// assert_eq!((statistics.hit_rate(), statistics.allocation_reduction()), (0.9, 0.9));
/// # Ok::<(), forebay::objects::ObjectError>(())
/// ```
///
/// A pool is shared by reference, in an [`Arc`] or in a `static`. Dropping it drops its idle objects; objects of
/// [owned](Self::get_owned) handles are dropped with their handles.
///
/// Objects may return on any thread, and are cached by the thread that returned them. So if one thread only gets and
/// another only returns, they exchange objects through the shared list, half a thread cache at a time.
///
/// A borrowed handle cannot outlive its pool. This does not compile:
///
/// ```compile_fail,E0505
/// # use forebay::objects::ObjectPool;
/// let pool = ObjectPool::new(String::new);
/// let name = pool.get()?;
/// drop(pool);
/// assert_eq!(*name, "");
/// # Ok::<(), forebay::objects::ObjectError>(())
/// ```
pub struct ObjectPool<T: Send + 'static> {
    shared: LeakOnFork<Arc<Shared<T>>>,
}

impl<T: Send + 'static> ObjectPool<T> {
    pub(super) fn of(shared: Shared<T>) -> Self {
        Self { shared: LeakOnFork::new(Arc::new(shared)) }
    }

    /// Gets an object: the one this thread returned last, else another idle one, else a new one.
    ///
    /// Fails if none is idle and the create hook fails, and in a forked child.
    #[inline]
    pub fn get(&self) -> Result<Pooled<'_, T>, ObjectError> {
        let shared = self.shared.get()?;
        Ok(Pooled::borrowed(shared.get()?, shared))
    }

    /// As [`get`](Self::get), with a handle that may outlive the pool. All threads share one reference count, so this
    /// is slower when several threads get and return concurrently.
    pub fn get_owned(&self) -> Result<Pooled<'static, T>, ObjectError> {
        let shared = self.shared.get()?;
        Ok(Pooled::owned(shared.get()?, Arc::clone(shared)))
    }

    /// Maintains the pool. Call it periodically, for example once a second from a background thread:
    ///
    /// 1. Evicts objects that are too old ([`Eviction::Age`](super::Eviction::Age)).
    /// 2. Evicts half of the shared objects that went unused since the last call, in the order of the policy, but not
    ///    below the minimum. So a pool that is no longer used shrinks step by step.
    /// 3. Creates objects up to the minimum. If the create hook fails, this stops with its error; earlier steps stay
    ///    done.
    ///
    /// Also empties thread caches into the shared list, and frees the reservations of threads that have ended.
    pub fn maintain(&self) -> Result<Maintenance, ObjectError> {
        self.shared.get()?.maintain()
    }

    /// Evicts idle objects by the policy until `keep` are left. Returns the number evicted; 0 in a forked child.
    pub fn shrink_to(&self, keep: usize) -> usize {
        self.shared.get().map_or(0, |shared| shared.shrink_to(keep))
    }

    /// The figures; all 0 in a forked child.
    pub fn statistics(&self) -> ObjectStatistics {
        self.shared.get().map(|shared| shared.statistics()).unwrap_or_default()
    }
}

impl<T: Send + 'static> Drop for ObjectPool<T> {
    fn drop(&mut self) {
        if let Ok(shared) = self.shared.get() {
            shared.close();
        }
    }
}

impl<T: Send + 'static> fmt::Debug for ObjectPool<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObjectPool").field(&self.statistics()).finish()
    }
}
