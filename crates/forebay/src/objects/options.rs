//! Options of an object pool.

use core::convert::Infallible;
use core::fmt;
use core::time::Duration;
use std::time::Instant;

use forebay_core::Bytes;

use super::hooks::{Failure, Hooks, Largest};
use super::object::Eviction;
use super::pool::ObjectPool;
use super::shared::{Limits, Shared};

/// Options of a new object pool.
///
/// ```
/// use forebay::objects::{Eviction, ObjectPoolOptions};
/// use forebay::Bytes;
///
/// let pool = ObjectPoolOptions::new(|| Vec::<u8>::with_capacity(4096))
///     .reset(Vec::clear)
///     .largest(Bytes::mib(1), |buffer| Bytes::new(buffer.capacity() as u64))
///     .max_idle(100)
///     .min_idle(10)
///     .eviction(Eviction::LeastFrequentlyUsed)
///     .build();
/// pool.maintain()?;
/// assert_eq!(pool.statistics().idle, 10);
/// # Ok::<(), forebay::objects::ObjectError>(())
/// ```
#[must_use = "options do nothing until a pool is built"]
pub struct ObjectPoolOptions<T> {
    hooks: Hooks<T>,
    limits: Limits,
}

impl<T: Send + 'static> ObjectPoolOptions<T> {
    /// A pool of objects made by `create`. Keeps at most 1,024 idle objects, and at most 16 per thread cache.
    ///
    /// A panic of `create` propagates to the caller of [`ObjectPool::get`] or [`ObjectPool::maintain`], and leaves the
    /// pool unchanged.
    pub fn new(create: impl Fn() -> T + Send + Sync + 'static) -> Self {
        Self::fallible(move || Ok::<T, Infallible>(create()))
    }

    /// As [`new`](Self::new), with a create hook that can fail.
    ///
    /// ```
    /// use forebay::objects::{ObjectError, ObjectPoolOptions};
    ///
    /// let pool = ObjectPoolOptions::fallible(|| "7 items".parse::<u32>()).build();
    /// assert!(matches!(pool.get(), Err(ObjectError::Create(_))));
    /// ```
    pub fn fallible<E>(create: impl Fn() -> Result<T, E> + Send + Sync + 'static) -> Self
    where
        E: Into<Failure>,
    {
        let begun = Instant::now();
        let hooks = Hooks {
            create: Box::new(move || create().map_err(Into::into)),
            reset: None,
            validate: None,
            largest: None,
            clock: Box::new(move || begun.elapsed()),
        };
        let limits = Limits {
            max_idle: 1024,
            min_idle: 0,
            per_thread: 16,
            eviction: Eviction::LeastRecentlyUsed,
        };
        Self { hooks, limits }
    }

    /// Sets a hook that resets each returned object. If it panics, the object is dropped and the panic is caught.
    pub fn reset(mut self, reset: impl Fn(&mut T) + Send + Sync + 'static) -> Self {
        self.hooks.reset = Some(Box::new(reset));
        self
    }

    /// Sets a test that idle objects must pass before they are handed out again. If an object fails it, or makes it
    /// panic, it is dropped, and the next one is tried.
    pub fn validate(mut self, validate: impl Fn(&mut T) -> bool + Send + Sync + 'static) -> Self {
        self.hooks.validate = Some(Box::new(validate));
        self
    }

    /// Sets the size limit for kept objects, and a function that measures them. `size` is called when an object
    /// returns, after the reset; a larger object is dropped.
    pub fn largest(
        mut self,
        most: Bytes,
        size: impl Fn(&T) -> Bytes + Send + Sync + 'static,
    ) -> Self {
        self.hooks.largest = Some(Largest { most, size: Box::new(size) });
        self
    }

    /// Sets the maximum number of idle objects. Above it, a return evicts one by the policy, from the shared objects
    /// and those of the calling thread.
    ///
    /// Reservations of other threads' caches count as idle, but take at most half of the maximum in all. On one thread,
    /// and without [thread caches](Self::thread_cache), the maximum is reached exactly.
    pub fn max_idle(mut self, max_idle: usize) -> Self {
        self.limits.max_idle = max_idle;
        self
    }

    /// Sets how many idle objects [`ObjectPool::maintain`] keeps, creating missing ones. Never more than the maximum.
    pub fn min_idle(mut self, min_idle: usize) -> Self {
        self.limits.min_idle = min_idle;
        self
    }

    /// Sets how many objects a thread may cache. With 0, every call takes the pool's lock, and the policy is exact
    /// across all threads.
    pub fn thread_cache(mut self, objects: usize) -> Self {
        self.limits.per_thread = objects;
        self
    }

    /// Sets the eviction policy.
    pub fn eviction(mut self, eviction: Eviction) -> Self {
        self.limits.eviction = eviction;
        self
    }

    /// Sets the clock of [`Eviction::Age`]: the time since any fixed moment. It must not go backwards. The default is
    /// the system's monotonic clock.
    pub fn clock(mut self, clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        self.hooks.clock = Box::new(clock);
        self
    }

    /// Builds the pool. It is empty until [`ObjectPool::maintain`] or the first return.
    pub fn build(self) -> ObjectPool<T> {
        ObjectPool::of(Shared::new(self.hooks, self.limits))
    }
}

impl<T: Send + 'static> ObjectPool<T> {
    /// Makes a pool of objects made by `create`, with the default options.
    pub fn new(create: impl Fn() -> T + Send + Sync + 'static) -> Self {
        ObjectPoolOptions::new(create).build()
    }
}

impl<T> fmt::Debug for ObjectPoolOptions<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObjectPoolOptions").field(&self.limits).finish()
    }
}
