//! The public object pool.

use core::fmt;
use std::sync::Arc;

use super::error::ObjectError;
use super::handle::Pooled;
use super::shared::Shared;
use super::statistics::{Maintenance, ObjectStatistics};
use crate::sync::fork::LeakOnFork;

/// Objects that are expensive to make, kept and handed out again.
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
/// A pool is shared by reference, in an [`Arc`] or in a `static`. When it is dropped, its idle objects are dropped;
/// objects of [owned](Self::get_owned) handles are dropped with their handles.
///
/// The objects may return on any thread. An object goes to the thread that returned it; so a thread that only gets and
/// another that only returns exchange objects through the shared list, half a thread cache at a time.
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

    /// Gets an object: the one this thread returned last, or another idle one, or a new one.
    ///
    /// Fails if none is idle and the create hook fails, and in a forked child.
    #[inline]
    pub fn get(&self) -> Result<Pooled<'_, T>, ObjectError> {
        let shared = self.shared.get()?;
        Ok(Pooled::borrowed(shared.get()?, shared))
    }

    /// As [`get`](Self::get), with a handle that may outlive the pool. It counts references to the pool in one place
    /// for all threads, so it is slower where several threads get and return at the same time.
    pub fn get_owned(&self) -> Result<Pooled<'static, T>, ObjectError> {
        let shared = self.shared.get()?;
        Ok(Pooled::owned(shared.get()?, Arc::clone(shared)))
    }

    /// Maintains the pool. A program calls this now and then, for example once a second from a thread of its own:
    ///
    /// 1. Objects that are too old are evicted ([`Eviction::Age`](super::Eviction::Age)).
    /// 2. Of the shared objects that nobody needed since the last call, half are evicted, in the order of the policy, but
    ///    not below the minimum. So a pool that is no longer used shrinks step by step.
    /// 3. If fewer than the minimum are idle, new ones are created. If the create hook fails, this stops with its error;
    ///    what was done until then stays done.
    ///
    /// Thread caches are emptied into the shared list, and what was reserved for threads that have ended is free again.
    pub fn maintain(&self) -> Result<Maintenance, ObjectError> {
        self.shared.get()?.maintain()
    }

    /// Evicts idle objects by the policy until `keep` are left. Returns how many it evicted; 0 in a forked child.
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
