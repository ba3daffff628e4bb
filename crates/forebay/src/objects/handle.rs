//! The handle of an object in use.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr;
use std::sync::Arc;

use super::object::Object;
use super::shared::Shared;
use crate::sync::fork::{Forked, LeakOnFork};

/// The pool that an object returns to.
enum Home<'p, T> {
    /// The pool outlives the handle.
    Borrowed(&'p Shared<T>),
    /// The pool may be dropped before the handle.
    Owned(LeakOnFork<Arc<Shared<T>>>),
}

impl<T: Send + 'static> Home<'_, T> {
    /// The pool; fails in a forked child.
    #[inline(always)]
    fn get(&self) -> Result<&Shared<T>, Forked> {
        match self {
            Self::Borrowed(shared) => shared.fork_generation.check().map(|()| *shared),
            Self::Owned(shared) => shared.get().map(|shared| &**shared),
        }
    }
}

/// An object of a pool, which it returns to on drop. In a forked child it leaks instead.
///
/// The lifetime is that of the pool. A handle from [`get_owned`](super::ObjectPool::get_owned) is independent of the
/// pool: it is a `Pooled<'static, T>`, as is a handle from a pool in a `static`.
#[must_use = "an object that is not used returns at once"]
pub struct Pooled<'p, T: Send + 'static> {
    /// Initialised until the handle is dropped or detached.
    object: ManuallyDrop<Box<Object<T>>>,
    home: Home<'p, T>,
}

impl<'p, T: Send + 'static> Pooled<'p, T> {
    pub(super) fn borrowed(object: Box<Object<T>>, shared: &'p Shared<T>) -> Self {
        Self { object: ManuallyDrop::new(object), home: Home::Borrowed(shared) }
    }

    /// Takes the object out of the pool for good.
    pub fn detach(self) -> T {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the object is initialised, and `this` is not dropped, so nobody takes it again.
        let object = unsafe { ManuallyDrop::take(&mut this.object) };
        // SAFETY: likewise, `home` is read out of a value that is not dropped.
        let home = unsafe { ptr::read(&raw const this.home) };
        if let Ok(shared) = home.get() {
            shared.count_detached();
        }
        let Object { value, .. } = *object;
        value
    }
}

impl<T: Send + 'static> Pooled<'static, T> {
    pub(super) fn owned(object: Box<Object<T>>, shared: Arc<Shared<T>>) -> Self {
        let home = Home::Owned(LeakOnFork::new(shared));
        Self { object: ManuallyDrop::new(object), home }
    }
}

impl<T: Send + 'static> Drop for Pooled<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let Ok(shared) = self.home.get() else { return };
        // SAFETY: the object is initialised, since only this function and `detach` take it, and `detach` prevents the
        // drop.
        let object = unsafe { ManuallyDrop::take(&mut self.object) };
        shared.put_back(object);
    }
}

impl<T: Send + 'static> Deref for Pooled<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.object.value
    }
}

impl<T: Send + 'static> DerefMut for Pooled<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.object.value
    }
}

impl<T: Send + fmt::Debug + 'static> fmt::Debug for Pooled<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pooled").field(&self.object.value).finish()
    }
}
