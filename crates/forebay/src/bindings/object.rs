//! What languages without a borrow checker have of the library: values that the program may close, and whose uses are
//! counted. Both bindings check by this that a value is of this process, open, and not in use. One call at a time uses a
//! value; see [`ReentryLock`].

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::Error;
use crate::buffer::{self, ReentryLock};
use crate::sync::fork::LeakOnFork;

/// A value of the program's, used by one call at a time. In a forked child it is neither used nor dropped.
#[derive(Debug)]
pub struct Counted<T> {
    inner: LeakOnFork<Inner<T>>,
    /// What errors call it.
    name: &'static str,
}

#[derive(Debug)]
struct Inner<T> {
    /// `None` once it was closed.
    value: ReentryLock<Option<T>>,
    /// Whether it was closed, as of the last turn.
    is_closed: AtomicBool,
    /// Uses that outlive a call. Incremented during a turn; decremented at any time.
    pins: AtomicUsize,
}

/// Why a call failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum CountedError {
    /// An error of the value.
    Library(Error),
    /// A live view conflicts, or another call of the same thread is using the value.
    InUse(String),
    /// So many pins keep the value.
    Pinned(usize, &'static str),
    /// The view was ended, or belongs to another buffer.
    NoView,
    /// The value was closed.
    Closed(&'static str),
}

type Result<T> = core::result::Result<T, CountedError>;

impl fmt::Display for CountedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(error) => error.fmt(f),
            Self::InUse(words) => f.write_str(words),
            Self::Pinned(1, name) => {
                write!(f, "1 view of the {name} still lives: release it first")
            }
            Self::Pinned(pins, name) => {
                write!(f, "{pins} views of the {name} still live: release them first")
            }
            Self::NoView => f.write_str("the view was ended before, or is of another buffer"),
            Self::Closed(name) => write!(f, "the {name} was closed"),
        }
    }
}

impl core::error::Error for CountedError {}

impl<E: Into<Error>> From<E> for CountedError {
    fn from(error: E) -> Self {
        Self::Library(error.into())
    }
}

impl<T> Counted<T> {
    /// Takes a value. `name` is what errors call it, such as "arena".
    pub fn new(name: &'static str, value: T) -> Self {
        let (value, is_closed) = (ReentryLock::new(Some(value)), AtomicBool::new(false));
        Self { inner: LeakOnFork::new(Inner { value, is_closed, pins: AtomicUsize::new(0) }), name }
    }

    /// Waits until no other call has the value, then takes it.
    pub fn take(&self) -> Result<InUse<'_, T>> {
        let inner = self.inner.get()?;
        let value = inner.value.take().ok_or_else(|| {
            let name = self.name;
            CountedError::InUse(format!(
                "a call uses the {name} already: a callback cannot wait for it"
            ))
        })?;
        Ok(InUse { value, inner, name: self.name })
    }

    /// As [`take`](Self::take), for a call during which nothing else may refer to the value: fails while it is pinned.
    pub fn take_unpinned(&self) -> Result<InUse<'_, T>> {
        let turn = self.take()?;
        match turn.inner.pins.load(Ordering::Relaxed) {
            0 => Ok(turn),
            pins => Err(CountedError::Pinned(pins, self.name)),
        }
    }

    /// Calls `work` with the value.
    pub fn with<R, E: From<CountedError>>(
        &self,
        work: impl FnOnce(&mut T) -> core::result::Result<R, E>,
    ) -> core::result::Result<R, E> {
        work(self.take()?.value()?)
    }

    /// Calls `work` with the value, and pins the value where that succeeds.
    pub fn pin<R, E: From<CountedError>>(
        &self,
        work: impl FnOnce(&mut T) -> core::result::Result<R, E>,
    ) -> core::result::Result<R, E> {
        let mut turn = self.take()?;
        let done = work(turn.value()?)?;
        turn.inner.pins.fetch_add(1, Ordering::Relaxed);
        Ok(done)
    }

    /// Ends a pin. Does not wait.
    pub fn unpin(&self) {
        if let Ok(inner) = self.inner.get() {
            inner.pins.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Closes it, and returns the value. Fails while it is pinned, and the second time.
    pub fn close(&self) -> Result<T> {
        self.take_unpinned()?.remove()
    }

    /// Whether it was closed. Does not wait.
    pub fn is_closed(&self) -> bool {
        self.inner.get().is_ok_and(|inner| inner.is_closed.load(Ordering::Relaxed))
    }
}

/// The value for the duration of a call.
#[derive(Debug)]
pub struct InUse<'a, T> {
    value: buffer::ReentryGuard<'a, Option<T>>,
    inner: &'a Inner<T>,
    name: &'static str,
}

impl<T> InUse<'_, T> {
    /// The value.
    pub fn value(&mut self) -> Result<&mut T> {
        self.value.as_mut().ok_or(CountedError::Closed(self.name))
    }

    /// Removes the value for good, unless another is put there.
    pub fn remove(&mut self) -> Result<T> {
        self.value.take().ok_or(CountedError::Closed(self.name))
    }

    /// Puts a value in the place of the one that was removed.
    pub fn put(&mut self, value: T) {
        *self.value = Some(value);
    }
}

impl<T> Drop for InUse<'_, T> {
    fn drop(&mut self) {
        self.inner.is_closed.store(self.value.is_none(), Ordering::Relaxed);
    }
}
